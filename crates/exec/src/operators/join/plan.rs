//! The checked form of a pipeline: the columns of each level with their types, and the keys of each step.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_schema::{Field, Schema, SchemaRef};
use arrow_select::take::take;
use keyaki_store::{ColumnType, KeyCodec, KeyRange, Projection, TreeView};

use crate::base::{Driver, DriverScan, Filter, Join, KeyPart, Pipeline, PlanError, Result, project};

/// Rows buffered on a level before they are filtered and their lookups start. The last level buffers whole output batches.
const FLUSH_ROWS: usize = 1024;

/// A pipeline whose columns, types and keys fit its trees.
#[derive(Debug)]
pub(crate) struct PipelinePlan {
    /// The tree of the driver and its key ranges; `None` if rows are pushed.
    pub driver: Option<(TreeView, Vec<KeyRange>)>,
    /// By level; level 0 is the driver's (see [`Flow`](crate::query::Flow)).
    pub levels: Vec<LevelPlan>,
    /// Step s leads from level s to level s + 1.
    pub steps: Vec<StepPlan>,
    /// Rows per output batch, at least 1.
    pub batch_rows: usize,
}

/// The rows of a level: columns of the level before ("outer"), followed by columns of a tree ("inner").
#[derive(Debug)]
pub(crate) struct LevelPlan {
    /// Columns of the level before; 0 for the driver.
    pub outer_columns: usize,
    /// Columns of the tree; empty if rows are pushed.
    pub inner_columns: Vec<usize>,
    /// The columns of pages that the pipeline uses, for all levels with the same tree; `None` if these are all columns of
    /// the tree, or if rows are pushed.
    pub projection: Option<Arc<Projection>>,
    /// The types of these columns.
    pub inner_types: Vec<ColumnType>,
    /// The driver counts as `Inner`.
    pub join: Join,
    pub filter: Option<Arc<dyn Filter>>,
    /// Outer and inner columns, which the filter sees.
    pub all: SchemaRef,
    /// The columns that the level keeps, in order; `None` keeps all.
    pub keep: Option<Vec<usize>>,
    /// The columns kept.
    pub schema: SchemaRef,
    /// A buffer is flushed when it has this many rows.
    pub flush_rows: usize,
}

/// The lookup keys of a step, made from rows of the level before it.
#[derive(Debug)]
pub(crate) struct StepPlan {
    pub view: TreeView,
    pub codec: KeyCodec,
    pub key: Vec<KeyPart>,
}

impl LevelPlan {
    /// True if the filter decides whether an outer row continues without a match, or has one.
    pub fn must_track_matches(&self) -> bool {
        self.join != Join::Inner && self.filter.is_some()
    }
}

impl PipelinePlan {
    /// # Errors
    /// A [`PlanError`] for columns, types or keys that do not fit.
    pub fn new(pipeline: &Pipeline) -> Result<PipelinePlan> {
        let last = pipeline.steps.len();
        let batch_rows = pipeline.batch_rows.max(1);
        let flush_rows = |level| if level == last { batch_rows } else { batch_rows.min(FLUSH_ROWS) };
        let (driver, first, inner_columns, inner_types, filter) = match &pipeline.driver {
            Driver::Scan(DriverScan { view, ranges, columns, filter }) => {
                let schema = Arc::new(project(view.schema().arrow(), columns, None)?);
                let types = types(view, columns);
                (Some((view.clone(), ranges.clone())), schema, columns.clone(), types, filter.clone())
            }
            Driver::Pushed(_) if last == 0 => return Err(PlanError::NoSteps.into()),
            Driver::Pushed(schema) => (None, schema.clone(), Vec::new(), Vec::new(), None),
        };
        // The columns of all accesses to the same tree.
        let projection_of = |view: &TreeView| {
            let driven = match &pipeline.driver {
                Driver::Scan(driver) if driver.view.tree() == view.tree() => &*driver.columns,
                _ => &[],
            };
            let steps = pipeline.steps.iter().filter(|step| step.view.tree() == view.tree());
            let columns = steps.flat_map(|step| &step.columns).chain(driven).copied();
            Projection::partial(view.schema(), columns).filter(|_| !pipeline.whole_pages)
        };
        let projection = driver.as_ref().and_then(|(view, _)| projection_of(view));
        let mut levels = vec![LevelPlan {
            outer_columns: 0,
            inner_columns,
            projection,
            inner_types,
            join: Join::Inner,
            filter,
            all: first.clone(),
            keep: None,
            schema: first,
            flush_rows: flush_rows(0),
        }];
        let mut steps = Vec::with_capacity(last);
        for (number, step) in pipeline.steps.iter().enumerate() {
            let before = levels[number].schema.clone();
            check_key(number, &step.key, &step.view, &before)?;
            let inner = project(step.view.schema().arrow(), &step.columns, Some(number))?;
            let is_outer = step.join == Join::LeftOuter;
            let inner = inner.fields().iter().map(|field| match is_outer {
                true => Arc::new(Field::clone(field).with_nullable(true)),
                false => field.clone(),
            });
            let all = Arc::new(Schema::new(before.fields().iter().cloned().chain(inner).collect::<Vec<_>>()));
            let outer_columns = before.fields().len();
            let keep = match (&step.keep, step.join.is_existence()) {
                (Some(keep), _) => Some(keep.clone()),
                (None, true) => Some((0..outer_columns).collect()),
                (None, false) => None,
            };
            let offered = if step.join.is_existence() { &before } else { &all };
            let schema = match &keep {
                Some(keep) => Arc::new(project(offered, keep, Some(number))?),
                None => all.clone(),
            };
            levels.push(LevelPlan {
                outer_columns,
                inner_columns: step.columns.clone(),
                projection: projection_of(&step.view),
                inner_types: types(&step.view, &step.columns),
                join: step.join,
                filter: step.filter.clone(),
                all,
                keep,
                schema,
                flush_rows: flush_rows(number + 1),
            });
            let codec = KeyCodec::new(step.view.schema());
            steps.push(StepPlan { view: step.view.clone(), codec, key: step.key.clone() });
        }
        assert_eq!(levels.len(), steps.len() + 1, "each step adds a level");
        Ok(PipelinePlan { driver, levels, steps, batch_rows })
    }

    /// The last level, whose rows are the output.
    pub fn last(&self) -> usize {
        self.steps.len()
    }

    /// The schema of the output.
    pub fn schema(&self) -> &SchemaRef {
        &self.levels[self.last()].schema
    }

    /// The views of all trees.
    pub fn views(&self) -> Vec<TreeView> {
        let driver = self.driver.iter().map(|(view, _)| view);
        driver.chain(self.steps.iter().map(|step| &step.view)).cloned().collect()
    }
}

/// The types of columns of a tree, which [`project`] has checked.
fn types(view: &TreeView, columns: &[usize]) -> Vec<ColumnType> {
    columns.iter().map(|&column| view.schema().columns()[column].ty).collect()
}

/// Checks the key values of a step against the key columns of its tree and the columns of the rows before it.
fn check_key(step: usize, key: &[KeyPart], view: &TreeView, before: &SchemaRef) -> Result<(), PlanError> {
    let schema = view.schema();
    if key.len() > schema.key_columns() {
        return Err(PlanError::TooManyKeyParts { step, parts: key.len(), key_columns: schema.key_columns() });
    }
    for (part, value) in key.iter().enumerate() {
        let expected = schema.columns()[part].ty.arrow();
        let found = match value {
            KeyPart::Column(column) if *column < before.fields().len() => before.field(*column).data_type(),
            &KeyPart::Column(column) => {
                return Err(PlanError::KeyColumnOutOfRange { step, part, column, columns: before.fields().len() });
            }
            KeyPart::Constant(constant) if constant.len() == 1 => constant.data_type(),
            KeyPart::Constant(constant) => {
                return Err(PlanError::ConstantLength { step, part, values: constant.len() });
            }
        };
        if *found != expected {
            return Err(PlanError::KeyType { step, part, expected, found: found.clone() });
        }
    }
    Ok(())
}

impl StepPlan {
    /// The key columns for a batch of outer rows; constants are repeated.
    pub fn key_columns(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<ArrayRef>> {
        let repeat = UInt32Array::from_value(0, rows);
        let column = |part: &KeyPart| match part {
            KeyPart::Column(column) => Ok(columns[*column].clone()),
            KeyPart::Constant(constant) => Ok(take(constant, &repeat, None)?),
        };
        self.key.iter().map(column).collect()
    }
}
