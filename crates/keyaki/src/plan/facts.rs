//! What is known of the relations of a join graph: rows, trees, ranges that their own filters leave, distinct values; and
//! from these, how many rows any set of them has when joined.

use datafusion::common::{Column, JoinType};
use datafusion::error::Result;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use keyaki_store::{KeyRange, RangeEstimate, TreeView};

use super::graph::{ColumnId, Graph, Relation, Set, bit, members};
use super::node::PipelineNode;
use super::selectivity;
use crate::table::KeyakiTable;
use crate::table::cost::Readable;
use crate::table::ranges::{Ranges, key_ranges};

/// A tree's own estimate of a range is trusted if it spans so many leaves; else statistics are better.
const TRUSTED_LEAVES: f64 = 4.0;
const LEAF_BYTES: f64 = 1048576.0;
/// More ranges than that are estimated from a sample of them.
const RANGES_ESTIMATED: usize = 64;
const OPAQUE_ROWS: f64 = 1000.0;

#[derive(Debug)]
pub(super) struct Facts {
    pub relations: Vec<RelationFacts>,
    /// Columns made equal by predicates, as classes of at least two.
    pub classes: Vec<Vec<ColumnId>>,
}

#[derive(Debug)]
pub(super) struct RelationFacts {
    /// Without filters.
    pub rows: f64,
    /// With its own filters.
    pub filtered: f64,
    /// The first is the table itself; none for other plans.
    pub trees: Vec<TreeFacts>,
    /// Its own filters, as indices into [`Graph::predicates`] (or, for an outer relation, into its ON).
    pub locals: Vec<usize>,
    distinct: Vec<f64>,
    /// Of each column: the distinct values that its own filters leave.
    left: Vec<f64>,
}

/// A table's tree or that of one of its indexes.
#[derive(Debug)]
pub(super) struct TreeFacts {
    /// `orders`, `orders.orders_custkey`.
    pub name: String,
    pub view: TreeView,
    pub in_memory: bool,
    /// Which column of the relation each column of the tree is.
    pub columns: Vec<usize>,
    pub key_columns: usize,
    /// So many leading key columns identify a row.
    pub unique: usize,
    pub total: RangeEstimate,
    /// Share of its pages that are in the cache.
    pub cached: f64,
    /// By the relation's own filters.
    pub ranges: Ranges,
    pub range: RangeEstimate,
    /// Share of the table's rows that pass those of the relation's own filters that this tree's columns can answer.
    pub passing: f64,
}

impl TreeFacts {
    pub fn page_bytes(&self) -> f64 {
        if self.total.pages > 0.0 { self.total.bytes / self.total.pages } else { 8192.0 }
    }
    /// A part of what its ranges have.
    pub fn readable(&self, part: f64) -> Readable {
        let (bytes, rows) = (self.range.bytes * part, self.range.rows * part);
        Readable { bytes, cached: self.cached, rows, in_memory: self.in_memory }
    }
    pub fn has(&self, column: usize) -> bool {
        self.columns.contains(&column)
    }
    pub fn place(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|&c| c == column)
    }
    /// The relation's columns that form the key.
    pub fn key(&self) -> &[usize] {
        &self.columns[..self.key_columns]
    }
}

/// The relation's own filters.
pub(super) fn local_filters(graph: &Graph, relation: usize) -> Vec<(usize, &Expr)> {
    let own = bit(relation);
    match &graph.relations[relation].outer {
        None => {
            let predicates = graph.predicates.iter().enumerate();
            predicates.filter(|(_, p)| !p.late && p.relations == own).map(|(i, p)| (i, &p.expr)).collect()
        }
        Some(on) => on.iter().enumerate().filter(|(_, expr)| graph.relations_of(expr) == own).collect(),
    }
}

impl Facts {
    pub fn of(graph: &Graph) -> Result<Facts> {
        let relations = (0..graph.relations.len()).map(|r| RelationFacts::of(graph, r)).collect::<Result<Vec<_>>>()?;
        Ok(Facts { relations, classes: classes(graph) })
    }

    pub fn distinct(&self, column: ColumnId) -> f64 {
        self.relations[column.relation].distinct[column.column]
    }

    /// The rows of a tree of `relation` that one lookup by these leading key columns finds.
    pub fn matches(&self, relation: usize, tree: &TreeFacts, prefix: usize) -> f64 {
        let facts = &self.relations[relation];
        if prefix >= tree.unique {
            return 1.0;
        }
        let values: f64 = tree.key()[..prefix].iter().map(|&c| facts.distinct[c]).product();
        (facts.rows / values).max(1.0 / facts.rows.max(1.0))
    }

    /// Estimated rows of the join of a set of relations, with every predicate that can be evaluated on it.
    pub fn rows(&self, graph: &Graph, set: Set) -> f64 {
        let inner = set & !graph.outers();
        let mut rows: f64 = members(inner).map(|r| self.relations[r].filtered).product();
        for class in &self.classes {
            let mut seen: Set = 0;
            let mut values = Vec::new();
            for column in class.iter().filter(|c| inner & bit(c.relation) != 0) {
                if seen & bit(column.relation) == 0 {
                    seen |= bit(column.relation);
                    values.push(self.relations[column.relation].left[column.column]);
                }
            }
            values.sort_by(f64::total_cmp);
            rows /= values.iter().skip(1).product::<f64>();
        }
        rows *= self.composite_keys(inner);
        for predicate in graph.predicates.iter().filter(|p| !p.late && p.relations & !inner == 0) {
            if predicate.relations.count_ones() > 1 && predicate.equality.is_none() {
                rows *= self.join_condition(graph, &predicate.expr);
            }
        }
        for outer in members(set & graph.outers()) {
            rows *= self.outer_matches(graph, outer).max(1.0);
        }
        rows
    }

    /// The share of combinations of rows that pass a condition between relations, other than `a = b`: an equality with
    /// casts or computations is taken for one of the columns in it.
    fn join_condition(&self, graph: &Graph, condition: &Expr) -> f64 {
        match graph.sides(condition) {
            Some(_) => {
                let columns = graph.columns_of(condition).into_iter();
                1.0 / columns.map(|column| self.distinct(column)).fold(1.0, f64::max)
            }
            None => selectivity::of_join_condition(condition),
        }
    }

    /// The product of the columns' distinct values makes a join along a key of several columns look too selective: it finds
    /// one row.
    fn composite_keys(&self, set: Set) -> f64 {
        let mut factor = 1.0;
        for to in members(set) {
            let Some(tree) = self.relations[to].trees.first().filter(|tree| tree.unique > 1) else { continue };
            let key = &tree.columns[..tree.unique];
            let from = members(set & !bit(to)).find(|&from| key.iter().all(|&c| self.is_equal_to_one_of(to, c, from)));
            if from.is_some() {
                let values: f64 = key.iter().map(|&c| self.relations[to].distinct[c]).product();
                factor *= (values / self.relations[to].rows.max(1.0)).max(1.0);
            }
        }
        factor
    }

    fn is_equal_to_one_of(&self, relation: usize, column: usize, other: usize) -> bool {
        let id = ColumnId { relation, column };
        self.classes.iter().any(|class| class.contains(&id) && class.iter().any(|c| c.relation == other))
    }

    /// Rows of an outer relation for one row of the other side.
    fn outer_matches(&self, graph: &Graph, outer: usize) -> f64 {
        let mut rows = self.relations[outer].filtered;
        for expr in graph.relations[outer].outer.iter().flatten() {
            if let Some((a, b)) = graph.equality(expr) {
                rows /= self.distinct(if a.relation == outer { a } else { b });
            }
        }
        rows
    }
}

impl RelationFacts {
    fn of(graph: &Graph, relation: usize) -> Result<RelationFacts> {
        let definition = &graph.relations[relation];
        let columns = definition.columns.len();
        match definition.table() {
            Some(table) => RelationFacts::of_table(graph, relation, table),
            None => {
                let rows = rows_of(definition).max(1.0);
                let distinct = vec![rows; columns];
                Ok(RelationFacts {
                    rows,
                    filtered: rows,
                    trees: vec![],
                    locals: vec![],
                    left: distinct.clone(),
                    distinct,
                })
            }
        }
    }

    fn of_table(graph: &Graph, relation: usize, table: &KeyakiTable) -> Result<RelationFacts> {
        let def = &table.table.def;
        let resolve = |name: &Column| graph.column(name).filter(|id| id.relation == relation).map(|id| id.column);
        let (locals, filters): (Vec<usize>, Vec<&Expr>) = local_filters(graph, relation).into_iter().unzip();
        let owned: Vec<Expr> = filters.iter().map(|&filter| filter.clone()).collect();
        let mut trees = Vec::new();
        let usable = (0..def.indexes.len()).filter(|&i| !table.context.unusable.contains_key(&def.indexes[i].tree));
        for index in std::iter::once(None).chain(usable.map(Some)) {
            let in_memory = index.is_some_and(|i| def.indexes[i].method.is_in_memory());
            let (name, id, columns, unique) = match index {
                None => (table.table.tree_name(None), def.tree, table.table.table_columns(), None),
                Some(i) => {
                    let index = &def.indexes[i];
                    let unique = index.unique.then_some(index.columns.len());
                    (table.table.tree_name(Some(i)), index.tree, table.table.index_columns(i), unique)
                }
            };
            let view = table.snapshot.tree(id).map_err(crate::Error::from)?;
            let columns: Vec<usize> = columns.into_iter().map(|c| c.unwrap_or(def.columns.len())).collect();
            let place = |name: &Column| {
                let column = resolve(name)?;
                columns.iter().position(|&c| c == column)
            };
            let ranges = key_ranges(view.schema(), &owned, &place);
            let (key_columns, total) = (view.schema().key_columns(), view.estimate(&KeyRange::all()));
            let unique = unique.unwrap_or(key_columns);
            let (cached, range, passing) = (view.cached_share(), total, 1.0);
            trees.push(TreeFacts {
                name,
                view,
                in_memory,
                columns,
                key_columns,
                unique,
                total,
                cached,
                ranges,
                range,
                passing,
            });
        }
        let rows = trees[0].total.rows.max(1.0);
        let (distinct, left) = (Vec::new(), Vec::new());
        let mut facts = RelationFacts { rows, filtered: rows, trees, locals, distinct, left };
        facts.distinct = facts.distinct_of(table);
        facts.left = facts.left_of(table, &filters, &resolve);
        facts.estimate(table, &filters, &resolve);
        Ok(facts)
    }

    fn distinct_of(&self, table: &KeyakiTable) -> Vec<f64> {
        let columns = table.table.def.columns.len();
        let statistics = table.table.statistics.as_deref();
        let known = |column: usize| statistics.filter(|_| column < columns).map(|s| s.distinct_of(column, self.rows));
        let is_key = |column: usize| self.trees.iter().any(|tree| tree.unique == 1 && tree.columns[0] == column);
        let distinct = |column: usize| match known(column) {
            _ if is_key(column) => self.rows,
            Some(values) => values.min(self.rows).max(1.0),
            None => (self.rows / 10.0).max(1.0),
        };
        (0..=columns).map(distinct).collect()
    }

    /// A condition on a column that is carried over to the one that it is equal to holds on both sides: what it leaves of
    /// the values is what the rows are spread over when they are joined.
    fn left_of(&self, table: &KeyakiTable, filters: &[&Expr], resolve: &dyn Fn(&Column) -> Option<usize>) -> Vec<f64> {
        let left = |(column, &distinct): (usize, &f64)| {
            let is_own = |filter: &&Expr| {
                let names = filter.column_refs();
                !names.is_empty() && names.into_iter().all(|name| resolve(name) == Some(column))
            };
            let own: Vec<&Expr> = filters.iter().copied().filter(is_own).collect();
            (distinct * selectivity::of_conjunction(&table.table, &own, resolve)).max(1.0)
        };
        self.distinct.iter().enumerate().map(left).collect()
    }

    /// Estimates every tree's range and the rows that pass all filters.
    fn estimate(&mut self, table: &KeyakiTable, filters: &[&Expr], resolve: &dyn Fn(&Column) -> Option<usize>) {
        let share = |filters: &[&Expr]| selectivity::of_conjunction(&table.table, filters, resolve);
        let rows = self.rows;
        self.filtered = rows * share(filters);
        let mut most_bounded = 0;
        for tree in &mut self.trees {
            let bounded = tree.ranges.bounded;
            let within = |filter: &Expr, columns: &[usize]| {
                let names = filter.column_refs();
                names.into_iter().all(|name| resolve(name).is_some_and(|column| columns.contains(&column)))
            };
            let own: Vec<&Expr> = filters.iter().copied().filter(|filter| within(filter, &tree.columns)).collect();
            tree.passing = share(&own);
            if bounded == 0 {
                continue;
            }
            let key = &tree.columns[..bounded];
            let (inside, outside): (Vec<&Expr>, Vec<&Expr>) = filters.iter().partition(|filter| within(filter, key));
            let (found, trusted) = range_rows(tree, rows * share(&inside));
            if trusted && bounded > most_bounded {
                most_bounded = bounded;
                self.filtered = (found * share(&outside)).min(rows);
            }
            let fraction = found / rows;
            let pages = (tree.total.pages * fraction + tree.ranges.ranges.len().min(found as usize + 1) as f64)
                .min(tree.total.pages);
            tree.range = RangeEstimate { rows: found, pages, bytes: pages * tree.page_bytes() };
            tree.passing = tree.passing.min(fraction);
        }
        let least = self.trees.iter().map(|tree| tree.range.rows).fold(rows, f64::min);
        // What is asked for is expected to exist, unless a tree knows better.
        self.filtered = self.filtered.max(1.0).min(least.max(1e-3));
    }
}

/// Rows in a tree's ranges, given what statistics say; and whether the tree itself told it.
fn range_rows(tree: &TreeFacts, by_statistics: f64) -> (f64, bool) {
    let ranges = &tree.ranges.ranges;
    if ranges.is_empty() {
        return (0.0, true);
    }
    if tree.ranges.points >= tree.unique {
        return (by_statistics.min(ranges.len() as f64), false);
    }
    let step = ranges.len().div_ceil(RANGES_ESTIMATED);
    let sampled: f64 = ranges.iter().step_by(step).map(|range| tree.view.estimate(range).rows).sum();
    let told = (sampled * step as f64).min(tree.total.rows);
    let leaf_rows = tree.total.rows * (LEAF_BYTES / tree.total.bytes.max(LEAF_BYTES));
    if tree.total.bytes > 0.0 && told > TRUSTED_LEAVES * leaf_rows {
        (told, true)
    } else {
        (by_statistics.min(told + ranges.len() as f64 * leaf_rows), false)
    }
}

/// Columns that predicates make equal, transitively; only where types agree, so that equal values have equal encodings.
fn classes(graph: &Graph) -> Vec<Vec<ColumnId>> {
    let mut classes: Vec<Vec<ColumnId>> = Vec::new();
    for (a, b) in graph.predicates.iter().filter_map(|predicate| predicate.equality) {
        if graph.data_type(a) != graph.data_type(b) {
            continue;
        }
        let mut merged = vec![a, b];
        classes.retain_mut(|class| {
            let touches = class.contains(&a) || class.contains(&b);
            if touches {
                merged.append(class);
            }
            !touches
        });
        merged.sort_unstable();
        merged.dedup();
        classes.push(merged);
    }
    classes
}

/// A rough idea of how many rows an opaque relation has.
fn rows_of(relation: &Relation) -> f64 {
    match &relation.source {
        super::graph::RelationSource::Plan(plan) => plan_rows(plan),
        super::graph::RelationSource::Table { .. } => OPAQUE_ROWS,
    }
}

fn plan_rows(plan: &LogicalPlan) -> f64 {
    let input = || plan.inputs().into_iter().map(plan_rows).fold(1.0, f64::max);
    match plan {
        LogicalPlan::EmptyRelation(_) => 1.0,
        LogicalPlan::Values(values) => values.values.len() as f64,
        LogicalPlan::Extension(extension) => match extension.node.as_any().downcast_ref::<PipelineNode>() {
            Some(node) => node.rows(),
            None => input(),
        },
        LogicalPlan::TableScan(scan) => {
            let source = datafusion::datasource::source_as_provider(&scan.source).ok();
            let known = source.as_ref().and_then(|p| p.downcast_ref::<KeyakiTable>()).and_then(|table| {
                let view = table.snapshot.tree(table.table.def.tree).ok()?;
                Some(view.estimate(&KeyRange::all()).rows)
            });
            known.unwrap_or(OPAQUE_ROWS) * 0.3f64.powi(scan.filters.len() as i32)
        }
        LogicalPlan::Filter(filter) => input() * 0.3f64.powi(split_conjunction(&filter.predicate).len() as i32),
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => 1.0,
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => input() / 5.0,
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(datafusion::logical_expr::FetchType::Literal(Some(fetch))) => input().min(fetch as f64),
            _ => input(),
        },
        LogicalPlan::Union(union) => union.inputs.iter().map(|input| plan_rows(input)).sum(),
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) => {
            plan_rows(&join.left) / 2.0
        }
        _ => input(),
    }
}
