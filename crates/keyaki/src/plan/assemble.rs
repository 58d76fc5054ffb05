//! Turns a chosen plan into the complete specification of an index pipeline: the columns that each access decodes, the
//! access that evaluates each predicate, and the columns that the pipeline carries from one access to the next.
//!
//! Each access (the driver, then the lookup steps) becomes one stage, or two if a table lookup follows an index lookup.
//! Two passes over the stages:
//!
//! - Forward: a predicate becomes a residual filter of the first stage at which all its columns are available. It is
//!   dropped if the driver's ranges contain only rows for which it is true, if the predicate of a partial index implies it,
//!   or if lookup keys and earlier filters have made its two columns equal.
//! - Backward: a column is carried from the first tree of its relation that contains it to its last use.
//!
//! Invariants: every predicate of the pipeline's relations that is not late is evaluated once or proven to hold. The
//! residual filters of an outer relation are all at its first stage, where the pipeline decides if a row has a match.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::{DFSchema, DFSchemaRef, JoinType, TableReference};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;

use super::facts::{Facts, TreeFacts, local_filters};
use super::graph::{ColumnId, Graph, RelationSet, bit};
use super::node::{AccessSpec, KeyValue, PipelineSpec};
use super::rules::protected;
use super::search::{Access, KeySource, Node, Plan, is_implied};

type Columns = BTreeSet<ColumnId>;

/// One access of the pipeline under construction.
struct Stage<'a> {
    relation: usize,
    /// The tree of the access; `None` for the rows of another plan, which are the driver. `relation` is one of its
    /// relations.
    tree: Option<&'a TreeFacts>,
    /// Values of the leading key columns to look up; empty for the driver.
    key: Vec<KeySource>,
    /// The join with the stages before; `Inner` for the driver.
    join: JoinType,
    filters: Vec<&'a Expr>,
    /// Columns of the relation that no earlier stage provides.
    offers: Columns,
    /// Columns of `offers` to decode.
    reads: Columns,
    /// Columns that later stages or the output use after this stage's filter.
    live: Columns,
}

impl Stage<'_> {
    /// Columns of the relation that form the key of the tree.
    fn tree_key(&self) -> &[usize] {
        self.tree.map_or(&[], TreeFacts::key)
    }
}

/// Returns the specification of the pipeline whose last access is `plans[root]`, and the plan whose rows are its input.
pub(super) fn pipeline(
    graph: &Graph,
    facts: &Facts,
    plans: &[Plan],
    root: usize,
) -> Result<(PipelineSpec, Option<usize>)> {
    let (input, accesses) = accesses(plans, root)?;
    let input_set = input.map_or(0, |input| plans[input].set);
    let mut stages = stages(graph, facts, input_set, &accesses)?;
    place_filters(graph, facts, &mut stages, input_set, plans[root].set)?;
    let mut required = required(graph, plans[root].set);
    if required.is_empty() {
        // Batches need a column to represent their rows. Every tree has the table's key.
        required.extend(stages[0].offers.first().copied());
    }
    place_columns(graph, &mut stages, &required);
    Ok((specify(graph, facts, &stages, &required, &plans[root])?, input))
}

/// Returns the accesses of the pipeline that ends with `plans[plan]`, driver first, and before them the plan that
/// drives it, if that is no tree.
fn accesses(plans: &[Plan], mut plan: usize) -> Result<(Option<usize>, Vec<&Access>)> {
    let mut accesses = Vec::new();
    loop {
        match &plans[plan].node {
            Node::Step(input, access) => {
                accesses.push(access);
                plan = *input;
            }
            Node::Driver(access) => {
                accesses.push(access);
                accesses.reverse();
                return Ok((None, accesses));
            }
            Node::Input(input) => {
                accesses.reverse();
                return Ok((Some(*input), accesses));
            }
            other => return Err(DataFusionError::Internal(format!("{other:?} is no part of a pipeline"))),
        }
    }
}

/// Expands accesses to stages, without filters and decoded columns.
fn stages<'a>(graph: &Graph, facts: &'a Facts, input: RelationSet, accesses: &[&Access]) -> Result<Vec<Stage<'a>>> {
    let mut stages = Vec::new();
    // The input has only the columns that are used above it, one of each class of equal columns that links it with
    // others.
    let offered = required(graph, input);
    let available = |source: &KeySource| match source {
        KeySource::Column(column) if input & bit(column.relation) != 0 && !offered.contains(column) => {
            let class = facts.classes.iter().filter(|class| class.contains(column)).flatten();
            let other = class.copied().find(|other| offered.contains(other));
            let other = other.ok_or_else(|| DataFusionError::Internal(format!("the input lacks column {column:?}")))?;
            Ok(KeySource::Column(other))
        }
        other => Ok(other.clone()),
    };
    if input != 0 {
        stages.push(Stage {
            relation: input.trailing_zeros() as usize,
            tree: None,
            key: Vec::new(),
            join: JoinType::Inner,
            filters: Vec::new(),
            offers: offered.clone(),
            reads: Columns::new(),
            live: Columns::new(),
        });
    }
    for (i, access) in accesses.iter().enumerate() {
        let relation = access.relation;
        let trees = &facts.relations[relation].trees;
        // If an outer relation is the driver, a hash join above the pipeline performs the left join.
        let join = match i > 0 || input != 0 {
            true => graph.relations[relation].join_type(),
            false => JoinType::Inner,
        };
        let id = |&column: &usize| ColumnId { relation, column };
        let tree = &trees[access.tree];
        let is_own = |column: &&usize| **column < graph.relations[relation].columns.len();
        let offers: Columns = tree.columns.iter().filter(is_own).map(id).collect();
        let stage = |tree, key, offers| Stage {
            relation,
            tree: Some(tree),
            key,
            join,
            filters: Vec::new(),
            offers,
            reads: Columns::new(),
            live: Columns::new(),
        };
        let rest = trees[0].columns.iter().map(id).filter(|column| !offers.contains(column)).collect();
        let primary = trees[0].key().iter().map(|c| KeySource::Column(id(c))).collect();
        let key = access.key.iter().map(available).collect::<Result<Vec<_>>>()?;
        stages.push(stage(tree, key, offers));
        if access.then_table {
            stages.push(stage(&trees[0], primary, rest));
        }
    }
    Ok(stages)
}

/// Columns of `set` that the plan above the pipeline uses: for the output, for predicates that are late or involve
/// other relations, and for the ON conditions of left joins above the pipeline.
fn required(graph: &Graph, set: RelationSet) -> Columns {
    let above = |relations: RelationSet| relations & !set != 0;
    let predicates = graph.predicates.iter().filter(|p| p.late || above(p.relations)).map(|p| &p.expr);
    let on = graph.relations.iter().enumerate().filter(|(relation, _)| {
        // A pipeline over an outer relation alone is joined above.
        above(bit(*relation)) || (set == bit(*relation))
    });
    let on = on.flat_map(|(_, relation)| relation.on());
    let exprs = graph.output.iter().chain(predicates).chain(on);
    exprs.flat_map(|expr| graph.columns_of(expr)).filter(|column| set & bit(column.relation) != 0).collect()
}

/// Classes of columns that are equal and not null in every row so far.
#[derive(Default)]
struct EqualColumns {
    groups: Vec<Columns>,
}

impl EqualColumns {
    fn join(&mut self, a: ColumnId, b: ColumnId) {
        let mut merged = Columns::from([a, b]);
        self.groups.retain_mut(|group| {
            let touches = group.contains(&a) || group.contains(&b);
            if touches {
                merged.append(group);
            }
            !touches
        });
        self.groups.push(merged);
    }
    /// Joins columns that an equality compares, if they have one type.
    fn join_if_alike(&mut self, graph: &Graph, a: ColumnId, b: ColumnId) {
        if graph.data_type(a) == graph.data_type(b) {
            self.join(a, b);
        }
    }
    fn are_equal(&self, a: ColumnId, b: ColumnId) -> bool {
        self.groups.iter().any(|group| group.contains(&a) && group.contains(&b))
    }
}

/// A predicate that no stage evaluates yet.
struct Unplaced<'a> {
    expr: &'a Expr,
    /// The two columns of `a = b`.
    equality: Option<(ColumnId, ColumnId)>,
    /// The driver's ranges contain exactly the rows for which the predicate is true.
    answered: bool,
}

/// Forward pass: assigns every predicate of `set` to a stage, or drops it as implied.
///
/// Fails with an internal error if a predicate uses a column that no stage provides.
fn place_filters<'a>(
    graph: &'a Graph,
    facts: &Facts,
    stages: &mut [Stage<'a>],
    input: RelationSet,
    set: RelationSet,
) -> Result<()> {
    let mut unplaced = unplaced(graph, facts, stages, input, set);
    let mut available = Columns::new();
    let mut equal = EqualColumns::default();
    // The predicates of the input hold.
    for (a, b) in graph.predicates.iter().filter(|p| !p.late && p.relations & !input == 0).filter_map(|p| p.equality) {
        equal.join_if_alike(graph, a, b);
    }
    for i in 0..stages.len() {
        let stage = &stages[i];
        let after_index = i > 0 && stages[i - 1].tree.is_some() && stages[i - 1].relation == stage.relation;
        if stage.join != JoinType::Inner {
            if !after_index {
                stages[i].filters = outer_filters(graph, stage);
            }
            continue;
        }
        available.extend(stage.offers.iter().copied());
        if !after_index {
            for (source, &column) in stage.key.iter().zip(stage.tree_key()) {
                if let KeySource::Column(other) = source {
                    equal.join(*other, ColumnId { relation: stage.relation, column });
                }
            }
        }
        unplaced.retain(|predicate| {
            if !graph.columns_of(predicate.expr).iter().all(|column| available.contains(column)) {
                return true;
            }
            let holds = predicate.equality.is_some_and(|(a, b)| equal.are_equal(a, b));
            if !holds && !predicate.answered {
                stages[i].filters.push(predicate.expr);
            }
            if let Some((a, b)) = predicate.equality {
                equal.join_if_alike(graph, a, b);
            }
            false
        });
    }
    match unplaced.first() {
        None => Ok(()),
        Some(predicate) => Err(DataFusionError::Internal(format!("no place for {}", predicate.expr))),
    }
}

/// Predicates that a pipeline over `set` has to evaluate. For an outer relation alone: the conditions of its ON that
/// use no other relation.
fn unplaced<'a>(
    graph: &'a Graph,
    facts: &Facts,
    stages: &[Stage<'_>],
    input: RelationSet,
    set: RelationSet,
) -> Vec<Unplaced<'a>> {
    let driver = &stages[0];
    let place = |relation: usize, index| facts.relations[relation].locals.iter().position(|&local| local == index);
    let answered = |index| {
        let place = place(driver.relation, index);
        driver.tree.zip(place).is_some_and(|(tree, place)| tree.ranges.answered[place])
    };
    // The positions of local filters count in ON for an outer relation, which is not the driver of other relations.
    let is_implied = |index| {
        let mut inner = stages.iter().filter(|stage| stage.join == JoinType::Inner && stage.tree.is_some());
        inner.any(|stage| {
            let place = place(stage.relation, index);
            stage.tree.zip(place).is_some_and(|(tree, place)| tree.implied[place])
        })
    };
    if driver.tree.is_some() && graph.relations[driver.relation].outer.is_some() {
        let own = local_filters(graph, driver.relation).into_iter().filter(|(i, _)| !is_implied(*i));
        return own.map(|(i, expr)| Unplaced { expr, equality: None, answered: answered(i) }).collect();
    }
    let predicates = graph.predicates.iter().enumerate().filter(|(_, p)| !p.late && p.relations & !set == 0);
    let predicates = predicates.filter(|(_, p)| input == 0 || p.relations & !input != 0);
    let predicates = predicates.filter(|(i, _)| !is_implied(*i));
    let unplaced = |(i, p)| {
        let p: &'a super::graph::Predicate = p;
        Unplaced { expr: &p.expr, equality: p.equality, answered: answered(i) }
    };
    predicates.map(unplaced).collect()
}

/// Conditions of ON that the lookup key does not imply.
fn outer_filters<'a>(graph: &'a Graph, stage: &Stage<'_>) -> Vec<&'a Expr> {
    let on = graph.relations[stage.relation].on().iter();
    on.filter(|expr| !is_implied(graph, stage.relation, stage.tree_key(), &stage.key, expr)).collect()
}

/// Columns of earlier stages in the lookup key.
fn key_columns(stage: &Stage<'_>) -> impl Iterator<Item = ColumnId> {
    stage.key.iter().filter_map(|source| match source {
        KeySource::Column(column) => Some(*column),
        KeySource::Constant(_) => None,
    })
}

/// Backward pass: sets the columns that each stage decodes (`reads`) and the columns in use after it (`live`).
fn place_columns(graph: &Graph, stages: &mut [Stage<'_>], required: &Columns) {
    let mut live = required.clone();
    for stage in stages.iter_mut().rev() {
        stage.live = live.clone();
        live.extend(stage.filters.iter().flat_map(|filter| graph.columns_of(filter)));
        stage.reads = live.intersection(&stage.offers).copied().collect();
        live.retain(|column| !stage.reads.contains(column));
        live.extend(key_columns(stage));
    }
}

/// Translates column identities to positions in the batches of the pipeline.
fn specify(
    graph: &Graph,
    facts: &Facts,
    stages: &[Stage<'_>],
    required: &Columns,
    plan: &Plan,
) -> Result<PipelineSpec> {
    let mut columns: Vec<ColumnId> = Vec::new();
    let mut accesses = Vec::new();
    for (i, stage) in stages.iter().enumerate() {
        let place = |id: &ColumnId| position(&columns, *id);
        let key = stage.key.iter().map(|source| match source {
            KeySource::Column(column) => place(column).map(KeyValue::Column),
            KeySource::Constant(value) => Ok(KeyValue::Constant(value.clone())),
        });
        let key = key.collect::<Result<Vec<_>>>()?;
        columns.extend(stage.reads.iter().copied());
        // `reads` is a subset of the tree's columns.
        let reads = match stage.tree {
            Some(tree) => stage.reads.iter().filter_map(|column| tree.place(column.column)).collect(),
            None => (0..stage.reads.len()).collect(),
        };
        let scope = schema(graph, &columns)?;
        let kept: Vec<usize> = (0..columns.len()).filter(|&c| stage.live.contains(&columns[c])).collect();
        let keep = (i > 0 && kept.len() < columns.len()).then(|| kept.clone());
        if keep.is_some() {
            columns = kept.into_iter().map(|c| columns[c]).collect();
        }
        accesses.push(AccessSpec {
            name: access_name(graph, stage),
            condition: condition(graph, stage, i),
            view: stage.tree.map(|tree| tree.view.clone()),
            ranges: stage.tree.filter(|_| i == 0).map_or(Vec::new(), |tree| tree.ranges.ranges.clone()),
            key,
            columns: reads,
            join: stage.join,
            filter: filter(stage)?,
            scope,
            keep,
        });
    }
    let ordered: Vec<ColumnId> = required.iter().copied().collect();
    let output = ordered.iter().map(|id| position(&columns, *id)).collect::<Result<Vec<_>>>()?;
    let table = stages.iter().find(|stage| stage.tree.is_some());
    let table = table.and_then(|stage| graph.relations[stage.relation].table());
    let context = table.map(|table| table.context.clone());
    Ok(PipelineSpec {
        context: context.ok_or_else(|| DataFusionError::Internal("a pipeline without a tree".into()))?,
        accesses,
        output,
        schema: schema(graph, &ordered)?,
        rows: plan.rows,
        distinct: ordered.iter().map(|&id| facts.distinct(id).min(plan.rows)).collect(),
        seconds: plan.seconds,
        input_seconds: plan.input_seconds,
        without_seconds: None,
    })
}

/// The filters of a stage. They come from different nodes of the plan, and have not been protected from each other yet.
fn filter(stage: &Stage<'_>) -> Result<Option<Expr>> {
    let filters: Vec<Expr> = stage.filters.iter().map(|&filter| filter.clone()).collect();
    Ok(conjunction(protected(&filters)?.unwrap_or(filters)))
}

fn position(columns: &[ColumnId], id: ColumnId) -> Result<usize> {
    let found = columns.iter().position(|&column| column == id);
    found.ok_or_else(|| DataFusionError::Internal(format!("{id:?} is not carried by the pipeline")))
}

/// The schema of canonical columns.
fn schema(graph: &Graph, columns: &[ColumnId]) -> Result<DFSchemaRef> {
    let field = |id: &ColumnId| {
        let relation = &graph.relations[id.relation];
        let column = &relation.columns[id.column];
        let field = Field::new(&column.name, column.data_type.clone(), column.nullable);
        (Some(TableReference::bare(relation.name.clone())), Arc::new(field))
    };
    let fields = columns.iter().map(field).collect();
    Ok(Arc::new(DFSchema::new_with_metadata(fields, Default::default())?))
}

/// Name of the tree for EXPLAIN, with the relation's alias if it differs from the table's name.
fn access_name(graph: &Graph, stage: &Stage<'_>) -> String {
    let relation = &graph.relations[stage.relation];
    let Some(tree) = stage.tree else { return relation.name.clone() };
    let table = tree.name.split('.').next().unwrap_or_default();
    if relation.name == table { tree.name.clone() } else { format!("{} as {}", tree.name, relation.name) }
}

/// Ranges of the driver (stage 0) or key of a lookup step, for EXPLAIN.
fn condition(graph: &Graph, stage: &Stage<'_>, i: usize) -> String {
    let Some(tree) = stage.tree else { return "rows".into() };
    let columns = &graph.relations[stage.relation].columns;
    let name = |&column: &usize| match columns.get(column) {
        Some(column) => column.name.clone(),
        None => tree.place(column).map_or_else(String::new, |place| tree.view.schema().columns()[place].name.clone()),
    };
    if i == 0 {
        let ranges = &tree.ranges;
        return match (ranges.bounded, ranges.ranges.len()) {
            (0, _) => "all".into(),
            (bounded, count) => {
                let key: Vec<String> = tree.key()[..bounded].iter().map(name).collect();
                format!("{}: {count} range{}", key.join(", "), if count == 1 { "" } else { "s" })
            }
        };
    }
    let part = |(source, column): (&KeySource, &usize)| match source {
        KeySource::Column(other) if other.relation == stage.relation => name(column),
        KeySource::Column(other) => format!("{} = {}", name(column), graph.canonical(*other)),
        KeySource::Constant(value) => format!("{} = {value}", name(column)),
    };
    stage.key.iter().zip(stage.tree_key()).map(part).collect::<Vec<_>>().join(", ")
}
