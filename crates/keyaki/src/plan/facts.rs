//! Cardinality estimates for the relations of a join graph and for joins of any subset of them.
//!
//! For each relation, [`Facts`] holds its rows, its trees (table and indexes), the key ranges that its own filters
//! imply in each tree, and the distinct values of its columns. The cardinality of a join is the product of the filtered
//! relations, divided by the distinct values of each class of equal columns for every relation of the class but the one
//! with the fewest. Composite keys, other join conditions and left joins add correction factors.
//!
//! A tree's estimate of a range replaces the estimate from statistics if the range spans more than [`TRUSTED_PAGES`]
//! pages, and for trees without pages; it includes pending messages.

use std::collections::BTreeMap;

use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::stats::Precision;
use datafusion::common::{Column, JoinType};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_binary, split_conjunction};
use datafusion::logical_expr::{Distinct, Expr, FetchType, LogicalPlan, Operator, Sort};
use keyaki_store::{CachedShare, KeyRange, RangeEstimate, TreeId};

use super::first_rows::FirstRowsNode;
use super::graph::{ColumnId, Graph, Relation, RelationSet, RelationSource, bit, is_member, members};
use super::materialize::MaterializedScan;
use super::node::PipelineNode;
use super::selectivity;
use crate::table::cost::Readable;
use crate::table::ranges::{Ranges, key_ranges};
use crate::table::{KeyakiTable, PlannedTree, over_index, virtual_number};

/// A tree's own estimate of a range is used if it exceeds the rows of this many pages. Below that, column statistics are
/// more precise.
const TRUSTED_PAGES: f64 = 4.0;
/// Longer lists of ranges are estimated from a sample of at most this many.
const RANGES_ESTIMATED: usize = 64;
/// Fraction of rows that an anti join is assumed to return at least.
const ANTI_JOIN_MIN: f64 = 0.1;
/// Assumed rows of a file.
const FILE_ROWS: f64 = 1e6;
/// Assumed rows that an iteration of a recursive query adds. The next iteration would scan the tables again.
const RECURSION_ROWS: f64 = 100.0;
/// Assumed rows of other tables without statistics, such as system views.
const OPAQUE_ROWS: f64 = 1000.0;

/// Estimates for all relations of a graph.
#[derive(Debug)]
pub(super) struct Facts {
    /// One for each relation of the graph, in the same order.
    pub relations: Vec<RelationFacts>,
    /// Equivalence classes of two or more columns that predicates make equal.
    pub classes: Vec<Vec<ColumnId>>,
}

/// Estimates for one relation.
#[derive(Debug)]
pub(super) struct RelationFacts {
    /// Rows before filters; at least 1.
    pub rows: f64,
    /// Rows that pass the relation's own filters; more than 0.
    pub filtered: f64,
    /// The table, then its usable indexes. Empty for an opaque plan.
    pub trees: Vec<TreeFacts>,
    /// The relation's own filters: indices into [`Graph::predicates`] or, for an outer relation, into its ON.
    pub locals: Vec<usize>,
    /// Distinct values of each column, before filters.
    distinct: Vec<f64>,
    /// Distinct values of each column that pass the filters on this column alone; at least 1.
    distinct_filtered: Vec<f64>,
}

/// Estimates for the tree of a table or of one of its indexes.
#[derive(Debug)]
pub(super) struct TreeFacts {
    /// `orders` or `orders.orders_custkey`.
    pub name: String,
    pub view: PlannedTree,
    /// The tree is an in-memory index.
    pub in_memory: bool,
    /// For each column of the tree, its column in the relation.
    pub columns: Vec<usize>,
    /// Number of leading columns that form the key.
    pub key_columns: usize,
    /// Number of leading key columns that identify a row.
    pub unique: usize,
    /// The tree is a partial index, whose predicate the relation's own filters imply.
    pub partial: bool,
    /// For each of the relation's own filters, true if every row of a partial index passes it.
    pub implied: Vec<bool>,
    /// Size of the whole tree.
    pub total: RangeEstimate,
    /// The tree's pages in the page cache.
    pub cached: CachedShare,
    /// Key ranges that the relation's own filters imply.
    pub ranges: Ranges,
    /// Size of `ranges`.
    pub range: RangeEstimate,
    /// Selectivity of the relation's own filters over columns of this tree, and of the predicate of a partial index:
    /// fraction of the table's rows, 0 to 1.
    pub passing: f64,
}

impl TreeFacts {
    /// Average size of a page in bytes; 8192 for a tree without pages.
    pub fn page_bytes(&self) -> f64 {
        if self.total.pages > 0.0 { self.total.bytes / self.total.pages } else { 8192.0 }
    }
    /// Input of a scan over the fraction `part` of the tree's ranges.
    pub fn readable(&self, part: f64) -> Readable {
        let (bytes, rows) = (self.range.bytes * part, self.range.rows * part);
        Readable { bytes, cached: self.cached.any, rows, in_memory: self.in_memory }
    }
    /// Rows of a table of `rows` rows that have an entry in the tree; at least 1.
    pub fn rows_of(&self, rows: f64) -> f64 {
        if self.partial { self.total.rows.clamp(1.0, rows.max(1.0)) } else { rows }
    }
    /// True if the tree contains a column of the relation.
    pub fn has(&self, column: usize) -> bool {
        self.columns.contains(&column)
    }
    /// Position of a column of the relation in the tree.
    pub fn place(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|&c| c == column)
    }
    /// Columns of the relation that form the tree's key.
    pub fn key(&self) -> &[usize] {
        &self.columns[..self.key_columns]
    }
}

/// Filters that use no relation but `relation`, with their indices into [`Graph::predicates`] or, for an outer
/// relation, into its ON.
pub(super) fn local_filters(graph: &Graph, relation: usize) -> Vec<(usize, &Expr)> {
    let own = bit(relation);
    match &graph.relations[relation].outer {
        None => {
            let predicates = graph.predicates.iter().enumerate();
            predicates.filter(|(_, p)| !p.late && p.relations == own).map(|(i, p)| (i, &p.expr)).collect()
        }
        Some(outer) => outer.on.iter().enumerate().filter(|(_, expr)| graph.relations_of(expr) == own).collect(),
    }
}

/// Divides the reads of a tree among the relations that are the same table: if they read all of the tree, the first one
/// fills the page cache for the others. Trees that take most of the cache are exempt.
fn share_reads(relations: &mut [RelationFacts]) {
    let mut counts = BTreeMap::<TreeId, usize>::new();
    let trees = relations.iter().flat_map(|relation| &relation.trees);
    trees.for_each(|tree| *counts.entry(tree.view.tree()).or_default() += 1);
    for tree in relations.iter_mut().flat_map(|relation| &mut relation.trees) {
        let count = counts[&tree.view.tree()];
        if count > 1 && tree.total.bytes * 2.0 <= tree.view.page_cache_budget() as f64 {
            let share = |cached: f64| cached + (1.0 - cached) * (1.0 - 1.0 / count as f64);
            tree.cached = CachedShare { whole: share(tree.cached.whole), any: share(tree.cached.any) };
        }
    }
}

impl Facts {
    /// Estimates all relations of a graph. Fails if a snapshot no longer has a table's tree.
    pub fn of(graph: &Graph) -> Result<Facts> {
        let of = |relation| RelationFacts::of(graph, relation);
        let mut relations = (0..graph.relations.len()).map(of).collect::<Result<Vec<_>>>()?;
        share_reads(&mut relations);
        Ok(Facts { relations, classes: classes(graph) })
    }

    /// Distinct values of a column, before filters.
    pub fn distinct(&self, column: ColumnId) -> f64 {
        self.relations[column.relation].distinct[column.column]
    }

    /// Expected rows that one lookup by the first `prefix` key columns finds in a tree of `relation`.
    pub fn rows_per_lookup(&self, relation: usize, tree: &TreeFacts, prefix: usize) -> f64 {
        let facts = &self.relations[relation];
        if prefix >= tree.unique {
            return 1.0;
        }
        let values: f64 = tree.key()[..prefix].iter().map(|&c| facts.distinct[c]).product();
        (tree.rows_of(facts.rows) / values).max(1.0 / facts.rows.max(1.0))
    }

    /// Cardinality of the join of a set of relations under all predicates over these relations that are not late.
    pub fn rows(&self, graph: &Graph, set: RelationSet) -> f64 {
        let inner = set & !graph.outers();
        let mut rows: f64 = members(inner).map(|r| self.relations[r].filtered).product();
        for class in &self.classes {
            let mut seen: RelationSet = 0;
            let mut values = Vec::new();
            for column in class.iter().filter(|c| inner & bit(c.relation) != 0) {
                if seen & bit(column.relation) == 0 {
                    seen |= bit(column.relation);
                    values.push(self.relations[column.relation].distinct_filtered[column.column]);
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
            let matches = self.outer_matches(graph, outer);
            let matching = matches.min(1.0) * self.outer_contained(graph, outer);
            rows *= match graph.relations[outer].join_type() {
                JoinType::LeftSemi => matching,
                JoinType::LeftAnti => (1.0 - matching).max(ANTI_JOIN_MIN),
                _ => matches.max(1.0),
            };
        }
        rows
    }

    /// Selectivity of a condition between relations other than `a = b`, as a fraction of the pairs of filtered rows. An
    /// equality of expressions is estimated like an equality of the column with the most distinct values in it.
    fn join_condition(&self, graph: &Graph, condition: &Expr) -> f64 {
        match graph.sides(condition) {
            Some(_) => {
                let columns = graph.columns_of(condition).into_iter();
                1.0 / columns.map(|column| self.distinct(column)).fold(1.0, f64::max)
            }
            None => self.alternatives(graph, condition).unwrap_or_else(|| selectivity::of_join_condition(condition)),
        }
    }

    /// Selectivity of alternatives, `(a AND b) OR (c AND d)`. Where each of them restricts a table, the optimizer
    /// derives a filter of it, `a OR c`, which the filtered rows pass. Returns `None` for other conditions.
    fn alternatives(&self, graph: &Graph, condition: &Expr) -> Option<f64> {
        let alternatives = split_binary(condition, Operator::Or);
        if alternatives.len() < 2 {
            return None;
        }
        // For each table that all alternatives so far restrict, the conditions of each.
        let mut derived: Option<BTreeMap<usize, Vec<Expr>>> = None;
        let mut selectivity = 0.0;
        for alternative in alternatives {
            let (mut own, mut share): (BTreeMap<usize, Vec<&Expr>>, f64) = (BTreeMap::new(), 1.0);
            for part in split_conjunction(alternative) {
                let relations = graph.relations_of(part);
                let relation = members(relations).next()?;
                match relations == bit(relation) {
                    true => own.entry(relation).or_default().push(part),
                    false => share *= self.join_condition(graph, part),
                }
            }
            selectivity += own.iter().map(|(&of, filters)| passing(graph, of, filters)).product::<f64>() * share;
            let mut before = derived.take();
            let tables = own.into_iter().filter(|(relation, _)| graph.relations[*relation].table().is_some());
            let joined = tables.filter_map(|(relation, filters)| {
                let mut all = match &mut before {
                    None => Vec::new(),
                    Some(before) => before.remove(&relation)?,
                };
                all.extend(conjunction(filters.into_iter().cloned()));
                Some((relation, all))
            });
            derived = Some(joined.collect());
        }
        let filter = |(relation, parts)| Some(passing(graph, relation, &[&disjunction(parts)?]));
        let derived: f64 = derived?.into_iter().filter_map(filter).product();
        Some(if derived > 0.0 { (selectivity / derived).min(1.0) } else { 0.0 })
    }

    /// Correction factor, at least 1, for joins along a composite primary key. Dividing by the distinct values of each
    /// key column divides by their product, which exceeds the number of rows; but each full key finds one row.
    fn composite_keys(&self, set: RelationSet) -> f64 {
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

    /// True if predicates make a column equal to a column of relation `other`.
    fn is_equal_to_one_of(&self, relation: usize, column: usize, other: usize) -> bool {
        let id = ColumnId { relation, column };
        self.classes.iter().any(|class| class.contains(&id) && class.iter().any(|c| c.relation == other))
    }

    /// Fraction of the values in the columns of other relations that the outer relation's columns have, too.
    fn outer_contained(&self, graph: &Graph, outer: usize) -> f64 {
        let mut contained: f64 = 1.0;
        for (a, b) in graph.relations[outer].on().iter().filter_map(|expr| graph.equality(expr)) {
            let (own, other) = if a.relation == outer { (a, b) } else { (b, a) };
            let values = self.distinct(own).min(self.relations[outer].filtered);
            contained = contained.min(values / self.distinct(other).max(1.0));
        }
        contained
    }

    /// Expected rows of an outer relation that match one row of the preserved side.
    fn outer_matches(&self, graph: &Graph, outer: usize) -> f64 {
        let mut rows = self.relations[outer].filtered;
        for expr in graph.relations[outer].on() {
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
                    distinct_filtered: distinct.clone(),
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
        let of_table = |name: &Column| resolve(name).filter(|&column| column < def.columns.len());
        for index in std::iter::once(None).chain((0..def.indexes.len()).map(Some)) {
            let Some(implied) = table.implied_over(index, &owned, &of_table) else { continue };
            let in_memory = index.is_some_and(|i| def.indexes[i].method.is_in_memory());
            let (name, id, columns, unique) = match index {
                None => (table.table.tree_name(None), def.tree, table.table.table_columns(), None),
                Some(i) => {
                    let index = &def.indexes[i];
                    let unique = index.unique.then_some(index.keys.len());
                    (table.table.tree_name(Some(i)), index.tree, table.table.index_columns(i), unique)
                }
            };
            let view = table.tree(id)?;
            let columns: Vec<usize> = columns.into_iter().map(|c| c.unwrap_or(def.columns.len())).collect();
            let place = |name: &Column| {
                let column = virtual_number(name).or_else(|| resolve(name))?;
                columns.iter().position(|&c| c == column)
            };
            let ranges = key_ranges(view.schema(), &over_index(&table.table, index, &owned, &of_table), &place);
            let (key_columns, total) = (view.schema().key_columns(), view.estimate(&KeyRange::all()));
            let unique = unique.unwrap_or(key_columns);
            let partial = index.is_some_and(|i| def.indexes[i].predicate.is_some());
            let (cached, range, passing) = (view.cached_share(), total, 1.0);
            trees.push(TreeFacts {
                name,
                view,
                in_memory,
                columns,
                key_columns,
                unique,
                partial,
                implied,
                total,
                cached,
                ranges,
                range,
                passing,
            });
        }
        let rows = trees[0].total.rows.max(1.0);
        let (distinct, distinct_filtered) = (Vec::new(), Vec::new());
        let mut facts = RelationFacts { rows, filtered: rows, trees, locals, distinct, distinct_filtered };
        facts.distinct = facts.distinct_of(table);
        facts.distinct_filtered = facts.distinct_filtered_of(table, &filters, &resolve);
        facts.estimate(table, &filters, &resolve);
        Ok(facts)
    }

    /// Distinct values of each column: all rows for a unique column, else from statistics, else a tenth of the rows.
    /// The hidden rowid and virtual columns follow the table's.
    fn distinct_of(&self, table: &KeyakiTable) -> Vec<f64> {
        let columns = table.table.def.columns.len();
        let statistics = table.table.statistics.as_deref();
        let known = |column: usize| statistics.filter(|_| column < columns).map(|s| s.distinct_of(column, self.rows));
        let is_key = |tree: &TreeFacts, column: usize| tree.unique == 1 && !tree.partial && tree.columns[0] == column;
        let is_key = |column: usize| self.trees.iter().any(|tree| is_key(tree, column));
        let distinct = |column: usize| match known(column) {
            _ if is_key(column) => self.rows,
            Some(values) => values.min(self.rows).max(1.0),
            None => (self.rows / 10.0).max(1.0),
        };
        (0..table.table.virtual_columns().end).map(distinct).collect()
    }

    /// Distinct values of each column after the filters on this column alone. DataFusion copies a filter on a join
    /// column to the column on the other side, so both sides of the join contain only these values, and join
    /// selectivity depends on their number.
    fn distinct_filtered_of(
        &self,
        table: &KeyakiTable,
        filters: &[&Expr],
        resolve: &dyn Fn(&Column) -> Option<usize>,
    ) -> Vec<f64> {
        let passing = |(column, &distinct): (usize, &f64)| {
            let is_own = |filter: &&Expr| {
                let names = filter.column_refs();
                !names.is_empty() && names.into_iter().all(|name| resolve(name) == Some(column))
            };
            let own: Vec<&Expr> = filters.iter().copied().filter(is_own).collect();
            (distinct * selectivity::of_conjunction(&table.table, &own, resolve)).max(1.0)
        };
        self.distinct.iter().enumerate().map(passing).collect()
    }

    /// Estimates the range of every tree and the relation's filtered rows. The trusted range bounded on the most key
    /// columns replaces statistics for the filters on these columns.
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
            let known = tree.implied.iter().zip(&tree.ranges.answered).map(|(implied, answered)| *implied || *answered);
            // The filters that hold for all rows of the tree or its ranges or use the given columns only, and the others.
            let parts = |columns: &[usize]| {
                let mut parts = (Vec::new(), Vec::new());
                for (&filter, known) in filters.iter().zip(known.clone()) {
                    let part = if known || within(filter, columns) { &mut parts.0 } else { &mut parts.1 };
                    part.push(filter);
                }
                parts
            };
            tree.passing = share(&parts(&tree.columns).0).min(tree.rows_of(rows) / rows);
            if bounded == 0 {
                continue;
            }
            let (inside, outside) = parts(&tree.columns[..bounded]);
            // There are no statistics of virtual columns.
            let first_virtual = table.table.virtual_columns().start;
            let is_known = tree.columns[..bounded].iter().all(|&column| column < first_virtual);
            let (found, trusted) = range_rows(tree, is_known.then(|| rows * share(&inside)));
            if trusted && bounded > most_bounded {
                most_bounded = bounded;
                self.filtered = (found * share(&outside)).min(rows);
            }
            let fraction = found / rows;
            let pages = (tree.total.pages * found / tree.rows_of(rows)
                + tree.ranges.ranges.len().min(found as usize + 1) as f64)
                .min(tree.total.pages);
            tree.range = RangeEstimate { rows: found, pages, bytes: pages * tree.page_bytes() };
            tree.passing = tree.passing.min(fraction);
        }
        let least = self.trees.iter().map(|tree| tree.range.rows).fold(rows, f64::min);
        // Assume at least one row unless a tree's estimate of its range is lower.
        self.filtered = self.filtered.max(1.0).min(least.max(1e-3));
    }
}

/// Estimates the rows in a tree's ranges, given the estimate from statistics, if there is one. The second value is true if the result is
/// the tree's own estimate.
fn range_rows(tree: &TreeFacts, by_statistics: Option<f64>) -> (f64, bool) {
    let ranges = &tree.ranges.ranges;
    if ranges.is_empty() {
        return (0.0, true);
    }
    if tree.ranges.points >= tree.unique {
        return (by_statistics.unwrap_or(f64::INFINITY).min(ranges.len() as f64), false);
    }
    let step = ranges.len().div_ceil(RANGES_ESTIMATED);
    let sampled: f64 = ranges.iter().step_by(step).map(|range| tree.view.estimate(range).rows).sum();
    let by_tree = (sampled * step as f64).min(tree.total.rows);
    // Buffers count their keys exactly. The pages at the ends of a range are estimated.
    let page_rows = if tree.total.pages > 0.0 { tree.total.rows / tree.total.pages.max(1.0) } else { 0.0 };
    if by_tree > TRUSTED_PAGES * page_rows.max(tree.view.sampling_rows()) {
        return (by_tree, true);
    }
    let most = by_tree + ranges.len() as f64 * page_rows;
    match by_statistics {
        Some(by_statistics) => (by_statistics.min(most), false),
        // The mean ratio to both bounds is smallest.
        None => ((by_tree.max(1.0) * most.max(1.0)).sqrt(), true),
    }
}

/// Equivalence classes of columns under the equality predicates. Only columns of one type are in a class, so that equal
/// values have equal key encodings.
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

/// Selectivity of filters that use no relation but `relation`.
fn passing(graph: &Graph, relation: usize, filters: &[&Expr]) -> f64 {
    match graph.relations[relation].table() {
        Some(table) => {
            let resolve = |name: &Column| graph.column(name).filter(|id| id.relation == relation).map(|id| id.column);
            selectivity::of_conjunction(&table.table, filters, &resolve)
        }
        None => filters.iter().map(|filter| selectivity::of_join_condition(filter)).product(),
    }
}

/// Cardinality of an opaque relation.
fn rows_of(relation: &Relation) -> f64 {
    match &relation.source {
        RelationSource::Plan(plan) => plan_rows(plan),
        RelationSource::Table { .. } => OPAQUE_ROWS,
    }
}

/// Cardinality of a plan. Join trees over Keyaki tables are estimated like the relations of a graph, other operators by
/// fixed factors: 0.3 per filter condition, 1/2 for a semi or anti join.
pub(super) fn plan_rows(plan: &LogicalPlan) -> f64 {
    if let Some((graph, facts)) = join_tree(plan) {
        return facts.rows(&graph, graph.all());
    }
    let input = || plan.inputs().into_iter().map(plan_rows).fold(1.0, f64::max);
    match plan {
        LogicalPlan::EmptyRelation(_) => 1.0,
        LogicalPlan::Values(values) => values.values.len() as f64,
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            if let Some(pipeline) = node.downcast_ref::<PipelineNode>() {
                pipeline.rows()
            } else if let Some(scan) = node.downcast_ref::<MaterializedScan>() {
                scan.rows as f64
            } else if let Some(first) = node.downcast_ref::<FirstRowsNode>() {
                first.spec.rows as f64
            } else {
                input()
            }
        }
        LogicalPlan::TableScan(scan) => {
            let rows = match source_as_provider(&scan.source) {
                Ok(table) if table.is::<ListingTable>() => FILE_ROWS,
                Ok(table) if table.is::<CteWorkTable>() => RECURSION_ROWS,
                // Text files.
                Ok(table) => match table.statistics().map(|statistics| statistics.num_rows) {
                    Some(Precision::Inexact(rows)) => rows as f64,
                    _ => OPAQUE_ROWS,
                },
                Err(_) => OPAQUE_ROWS,
            };
            rows * 0.3f64.powi(scan.filters.len() as i32)
        }
        LogicalPlan::Filter(filter) => input() * 0.3f64.powi(split_conjunction(&filter.predicate).len() as i32),
        LogicalPlan::Aggregate(aggregate) => group_rows(&aggregate.input, &aggregate.group_expr),
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
            group_rows(input, &columns)
        }
        LogicalPlan::Distinct(Distinct::On(distinct)) => group_rows(&distinct.input, &distinct.on_expr),
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(FetchType::Literal(Some(fetch))) => input().min(fetch as f64),
            _ => input(),
        },
        LogicalPlan::Sort(Sort { fetch: Some(fetch), .. }) => input().min(*fetch as f64),
        LogicalPlan::Union(union) => union.inputs.iter().map(|input| plan_rows(input)).sum(),
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) => {
            plan_rows(&join.left) / 2.0
        }
        _ => input(),
    }
}

/// The graph of a join tree over Keyaki tables, with its estimates; `None` for other plans, and if estimates fail.
fn join_tree(plan: &LogicalPlan) -> Option<(Graph, Facts)> {
    if !is_member(plan) {
        return None;
    }
    let graph = Graph::of(plan).ok()??;
    let facts = Facts::of(&graph).ok()?;
    Some((graph, facts))
}

/// Number of groups of the rows of `input`: see [`rows_and_groups`].
fn group_rows(input: &LogicalPlan, keys: &[Expr]) -> f64 {
    rows_and_groups(input, keys).1
}

/// Number of rows of `input`, and of their groups: the product of the distinct values of columns of tables, at most the
/// rows. Other keys are assumed to have a fifth as many values as there are rows.
pub(super) fn rows_and_groups(input: &LogicalPlan, keys: &[Expr]) -> (f64, f64) {
    let (rows, tree) = match join_tree(input) {
        Some((graph, facts)) => (facts.rows(&graph, graph.all()), Some((graph, facts))),
        None => (plan_rows(input), None),
    };
    let distinct = |key: &Expr| {
        let (Some((graph, facts)), Expr::Column(column)) = (&tree, key) else { return rows / 5.0 };
        let output = input.schema().maybe_index_of_column(column).and_then(|place| graph.output.get(place));
        match output {
            Some(Expr::Column(column)) => graph.column(column).map_or(rows, |column| facts.distinct(column)),
            _ => rows / 5.0,
        }
    };
    let values: f64 = keys.iter().map(|key| distinct(key).max(1.0)).product();
    (rows, values.min(rows).max(1.0))
}
