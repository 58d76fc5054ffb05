//! Indexes that a query could use.
//!
//! For each table of each join tree, the keys follow from the conditions of the query:
//!
//! | key | serves |
//! |---|---|
//! | columns equal to constants, then one with a range | filters |
//! | columns equal to those of one other table, also behind those equal to constants | joins |
//! | columns of ORDER BY or GROUP BY, also behind those equal to constants | orders, groups |
//!
//! Each key occurs alone and with the other columns that the query uses (INCLUDE). The planner decides which of them lower the
//! cost; here, only indexes are left out that the table has.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use keyaki_store::ColumnType;

use super::facts::local_filters;
use super::graph::{ColumnId, Graph, is_member};
use super::search::needed;
use crate::base::tree::PlanTree;
use crate::catalog::{IndexDef, Table};
use crate::table::ranges::value_intervals;

/// Maximum number of key columns.
const KEYS_MAX: usize = 5;
/// Maximum number of included columns.
const INCLUDED_MAX: usize = 12;

/// An index that a query could use.
#[derive(Debug, Clone)]
pub(crate) struct IndexCandidate {
    pub table: Arc<Table>,
    /// Columns of the table.
    pub keys: Vec<usize>,
    pub include: Vec<usize>,
}

impl IndexCandidate {
    fn is_same(&self, other: &IndexCandidate) -> bool {
        self.table.def.name == other.table.def.name && self.keys == other.keys && self.include == other.include
    }
}

/// The indexes that an optimized plan could use, each once.
///
/// # Errors
/// Errors of plans.
pub(crate) fn candidates(plan: &LogicalPlan) -> Result<Vec<IndexCandidate>> {
    let mut found: Vec<IndexCandidate> = Vec::new();
    plan.apply_with_subqueries_dyn(&mut |node| {
        let none = (Vec::new(), Vec::new());
        let (input, (orders, groups)) = match node {
            LogicalPlan::Sort(sort) => {
                let is_ascending = sort.expr.first().is_some_and(|first| first.asc);
                let same = sort.expr.iter().take_while(|key| key.asc == is_ascending);
                (&*sort.input, (columns(same.map(|key| &key.expr)), Vec::new()))
            }
            LogicalPlan::Aggregate(aggregate) => {
                (&*aggregate.input, (Vec::new(), columns(aggregate.group_expr.iter())))
            }
            node => (node, none),
        };
        if is_member(input)
            && let Some(graph) = Graph::of(input)?
        {
            let of_graph = |columns: &[Column]| -> Vec<ColumnId> {
                let place = |column: &Column| input.schema().maybe_index_of_column(column);
                let id = |place: usize| match graph.output.get(place) {
                    Some(Expr::Column(column)) => graph.column(column),
                    _ => None,
                };
                columns.iter().map_while(|column| place(column).and_then(id)).collect()
            };
            let wanted = [of_graph(&orders), of_graph(&groups)];
            for candidate in of_graph_with(&graph, &wanted) {
                if !found.iter().any(|known| known.is_same(&candidate)) {
                    found.push(candidate);
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The columns at the beginning of a list of expressions.
fn columns<'a>(exprs: impl Iterator<Item = &'a Expr>) -> Vec<Column> {
    exprs.map_while(|expr| if let Expr::Column(column) = expr { Some(column.clone()) } else { None }).collect()
}

/// The candidates for the tables of a join tree. `wanted` has the lists of columns whose order would help.
fn of_graph_with(graph: &Graph, wanted: &[Vec<ColumnId>]) -> Vec<IndexCandidate> {
    let used = needed(graph, |_| true);
    let mut found = Vec::new();
    for (relation, definition) in graph.relations.iter().enumerate() {
        let Some(table) = definition.table().map(|table| &table.table) else { continue };
        let used: Vec<usize> =
            used[relation].iter().copied().filter(|&column| column < table.def.columns.len()).collect();
        for keys in keys(graph, relation, table, wanted) {
            let key = &table.def.primary_key;
            let is_included = |column: &usize| !keys.contains(column) && !key.contains(column);
            let include: Vec<usize> = used.iter().copied().filter(is_included).collect();
            let plain = IndexCandidate { table: table.clone(), keys: keys.clone(), include: Vec::new() };
            // An index with all columns would be a second table.
            let is_whole = keys.len() + key.iter().filter(|column| !keys.contains(column)).count() + include.len()
                >= table.def.columns.len();
            if !include.is_empty() && include.len() <= INCLUDED_MAX && !is_whole {
                found.push(IndexCandidate { include, ..plain.clone() });
            }
            found.push(plain);
        }
    }
    found.retain(|candidate| !exists(candidate));
    found
}

/// The keys for one table.
fn keys(graph: &Graph, relation: usize, table: &Table, wanted: &[Vec<ColumnId>]) -> Vec<Vec<usize>> {
    let (equal, ranges) = bounded(graph, relation, table);
    let mut keys: Vec<Vec<usize>> = vec![equal.clone()];
    keys.extend(ranges.iter().map(|range| [&equal[..], &[*range]].concat()));
    let behind_equal = |list: &[usize]| [list.to_vec(), [&equal[..], list].concat()];
    for joined in joins(graph, relation) {
        keys.extend(behind_equal(&joined));
        keys.extend(joined.iter().flat_map(|column| behind_equal(&[*column])));
    }
    for wanted in wanted {
        let own = wanted.iter().take_while(|id| id.relation == relation).map(|id| id.column);
        let own: Vec<usize> = own.collect();
        if !own.is_empty() {
            keys.extend(behind_equal(&own));
        }
    }
    keys.extend(equal.iter().chain(&ranges).map(|column| vec![*column]));
    let is_possible = |column: usize| {
        let ty = table.def.columns.get(column).map(|column| column.ty.column);
        ty.is_some_and(|ty| ty != ColumnType::Interval && !ty.is_list())
    };
    let mut distinct: Vec<Vec<usize>> = Vec::new();
    for key in keys {
        let mut columns = Vec::new();
        for column in key {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns.truncate(KEYS_MAX);
        if !columns.is_empty() && columns.iter().all(|&column| is_possible(column)) && !distinct.contains(&columns) {
            distinct.push(columns);
        }
    }
    distinct
}

/// The columns that the table's own filters make equal to constants, in descending order of their numbers of values, and the
/// columns that the filters bound.
fn bounded(graph: &Graph, relation: usize, table: &Table) -> (Vec<usize>, Vec<usize>) {
    let filters: Vec<&Expr> = local_filters(graph, relation).into_iter().map(|(_, filter)| filter).collect();
    let (mut equal, mut ranges) = (Vec::new(), Vec::new());
    for (column, definition) in table.def.columns.iter().enumerate() {
        let is_column = |name: &Column| graph.column(name) == Some(ColumnId { relation, column });
        let Some(intervals) = value_intervals(definition.ty.column, &filters, &is_column) else { continue };
        let is_point = |(low, high): &(Bound<ScalarValue>, Bound<ScalarValue>)| match (low, high) {
            (Bound::Included(low), Bound::Included(high)) => low == high,
            _ => false,
        };
        match intervals.iter().all(is_point) {
            true => equal.push(column),
            false => ranges.push(column),
        }
    }
    let values = |column: &usize| {
        let known = table.statistics.as_ref().and_then(|statistics| statistics.columns.get(*column));
        known.map_or(0.0, |column| column.distinct)
    };
    equal.sort_by(|a, b| values(b).total_cmp(&values(a)));
    (equal, ranges)
}

/// The columns that are equal to columns of another relation, for each of these.
fn joins(graph: &Graph, relation: usize) -> impl Iterator<Item = Vec<usize>> {
    let inner = graph.predicates.iter().filter_map(|predicate| predicate.equality);
    let outer = graph.relations.iter().flat_map(|relation| relation.on()).filter_map(|expr| graph.equality(expr));
    let mut joined = BTreeMap::<usize, Vec<usize>>::new();
    for (a, b) in inner.chain(outer) {
        for (own, other) in [(a, b), (b, a)] {
            if own.relation == relation {
                joined.entry(other.relation).or_default().push(own.column);
            }
        }
    }
    joined.into_values()
}

/// True if the key is the beginning of the table's own, or of that of an index with the same columns.
fn exists(candidate: &IndexCandidate) -> bool {
    let IndexCandidate { table, keys, include } = candidate;
    let of_index = |index: &IndexDef| {
        let columns: Vec<usize> = index.columns().collect();
        index.predicate.is_none()
            && index.plain_columns().is_some_and(|plain| plain.starts_with(keys))
            && include.iter().all(|column| columns.contains(column))
    };
    table.def.primary_key.starts_with(keys) || table.def.indexes.iter().any(of_index)
}
