//! A pipeline, checked and prepared: which columns exist at which level, and of what type.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use keyaki_store::{KeyCodec, KeyRange, TreeView};

use crate::base::columns::project;
use crate::{Error, Filter, Join, KeyPart, Pipeline, Result};

/// Rows gathered before a filter is evaluated and their lookups are started.
const FLUSH_ROWS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Plan {
    pub ranges: Vec<KeyRange>,
    /// What each level (see [`crate::query::flow`]) is made of; level 0 is the driver's.
    pub levels: Vec<LevelPlan>,
    /// Step s leads from level s to level s + 1.
    pub steps: Vec<StepPlan>,
    pub batch_rows: usize,
}

/// How the rows of a level are made: columns of the level before ("outer"), followed by columns of a tree ("inner").
#[derive(Debug)]
pub(crate) struct LevelPlan {
    pub view: TreeView,
    /// Columns of the level before; 0 for the driver.
    pub outer_columns: usize,
    /// Columns of the tree.
    pub inner_columns: Vec<usize>,
    /// The driver counts as `Inner`.
    pub join: Join,
    pub filter: Option<Arc<dyn Filter>>,
    /// Outer and inner columns: what the filter sees.
    pub all: SchemaRef,
    /// Which of them the level keeps, in order; `None`: all.
    pub keep: Option<Vec<usize>>,
    /// The schema of the level.
    pub schema: SchemaRef,
    pub flush_rows: usize,
}

/// How the lookups of a step are made from the rows of the level before it.
#[derive(Debug)]
pub(crate) struct StepPlan {
    pub codec: KeyCodec,
    pub key: Vec<KeyPart>,
}

impl LevelPlan {
    /// Whether outer rows are kept until it is known that no match passes the filter.
    pub fn must_track_matches(&self) -> bool {
        self.join == Join::LeftOuter && self.filter.is_some()
    }
}

impl Plan {
    /// # Errors
    /// [`Error::Plan`] for columns, types or keys that do not fit.
    pub fn new(pipeline: &Pipeline) -> Result<Plan> {
        let driver = &pipeline.driver;
        let last = pipeline.steps.len();
        let batch_rows = pipeline.batch_rows.max(1);
        let flush_rows = |level| if level == last { batch_rows } else { batch_rows.min(FLUSH_ROWS) };
        let first = project(&driver.view, &driver.columns)?;
        let mut levels = vec![LevelPlan {
            view: driver.view.clone(),
            outer_columns: 0,
            inner_columns: driver.columns.clone(),
            join: Join::Inner,
            filter: driver.filter.clone(),
            all: Arc::new(first.clone()),
            keep: None,
            schema: Arc::new(first),
            flush_rows: flush_rows(0),
        }];
        let mut steps = Vec::with_capacity(last);
        for (number, step) in pipeline.steps.iter().enumerate() {
            let before = levels[number].schema.clone();
            check_key(&step.key, &step.view, &before)
                .map_err(|problem| Error::Plan(format!("step {number}: {problem}")))?;
            let inner = project(&step.view, &step.columns)?;
            let outer_join = step.join == Join::LeftOuter;
            let inner = inner.fields().iter().map(|field| match outer_join {
                true => Arc::new(Field::clone(field).with_nullable(true)),
                false => field.clone(),
            });
            let all = Arc::new(Schema::new(before.fields().iter().cloned().chain(inner).collect::<Vec<_>>()));
            let schema = match &step.keep {
                Some(keep) => Arc::new(all.project(keep)?),
                None => all.clone(),
            };
            levels.push(LevelPlan {
                view: step.view.clone(),
                outer_columns: before.fields().len(),
                inner_columns: step.columns.clone(),
                join: step.join,
                filter: step.filter.clone(),
                all,
                keep: step.keep.clone(),
                schema,
                flush_rows: flush_rows(number + 1),
            });
            let codec = KeyCodec::new(step.view.schema());
            steps.push(StepPlan { codec, key: step.key.clone() });
        }
        Ok(Plan { ranges: driver.ranges.clone(), levels, steps, batch_rows })
    }

    /// The last level, whose rows are the output.
    pub fn last(&self) -> usize {
        self.steps.len()
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.levels[self.last()].schema
    }

    pub fn views(&self) -> Vec<TreeView> {
        self.levels.iter().map(|level| level.view.clone()).collect()
    }
}

fn check_key(key: &[KeyPart], view: &TreeView, before: &SchemaRef) -> Result<(), String> {
    let schema = view.schema();
    if key.len() > schema.key_columns() {
        return Err(format!("{} key parts for a key of {} columns", key.len(), schema.key_columns()));
    }
    for (number, part) in key.iter().enumerate() {
        let wanted = schema.columns()[number].ty.arrow();
        let found = match part {
            KeyPart::Column(column) if *column < before.fields().len() => before.field(*column).data_type(),
            KeyPart::Column(column) => return Err(format!("there is no column {column}")),
            KeyPart::Constant(constant) if constant.len() == 1 => constant.data_type(),
            KeyPart::Constant(constant) => return Err(format!("a constant of {} values", constant.len())),
        };
        same_type(number, found, &wanted)?;
    }
    Ok(())
}

fn same_type(number: usize, found: &DataType, wanted: &DataType) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("key column {number} is of type {wanted}, its value of {found}")) }
}

impl StepPlan {
    /// The key columns for a batch of outer rows: constants are repeated.
    pub fn key_columns(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<ArrayRef>> {
        let repeat = arrow_array::UInt32Array::from_value(0, rows);
        let column = |part: &KeyPart| match part {
            KeyPart::Column(column) => Ok(columns[*column].clone()),
            KeyPart::Constant(constant) => Ok(arrow_select::take::take(constant, &repeat, None)?),
        };
        self.key.iter().map(column).collect()
    }
}
