//! Join graphs: a tree of joins, filters and projections, flattened to a form without a join order.
//!
//! The graph absorbs inner, left, right, semi and anti joins, filters and projections. Leaves
//! become *relations*: Keyaki tables, and any other subtree as an opaque plan. Every relation gets a unique name, which
//! separates two occurrences of one table. Expressions are rewritten to these *canonical* columns, and projections
//! between the joins are inlined. The result is a list of relations, a list of conjuncts, and the output columns as
//! expressions.
//!
//! `(A ⟕ B) ⋈ C` equals `(A ⋈ C) ⟕ B` if the condition of the inner join does not use B. The null-supplied side of a
//! left join therefore becomes an *outer* relation with the conditions of its ON. Filters above the join that use an
//! outer relation are *late*: they are evaluated after all joins. If the condition of an inner join uses an outer
//! relation, or an ON contains a subquery, left joins stay opaque. The right side of a semi or anti join becomes an outer
//! relation, too, whose columns are not used elsewhere. A semi join with a unique key is an inner join.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Dependency, JoinType, NullEquality, TableReference};
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Operator, TableScan, TableScanBuilder};

use arrow::datatypes::DataType;

use crate::base::tree::Tree;
use crate::catalog::HIDDEN_ROWID;
use crate::table::KeyakiTable;

/// A set of relations: bit `r` stands for relation `r`.
pub(super) type RelationSet = u64;

/// Maximum number of relations. DataFusion plans larger join trees without index pipelines.
pub(super) const RELATIONS_MAX: usize = 48;

/// The set of one relation.
pub(super) fn bit(relation: usize) -> RelationSet {
    1 << relation
}

/// Relations of a set in ascending order.
pub(super) fn members(set: RelationSet) -> impl Iterator<Item = usize> {
    (0..RELATIONS_MAX).filter(move |&relation| set & bit(relation) != 0)
}

/// A column of a relation, both as indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ColumnId {
    pub relation: usize,
    pub column: usize,
}

/// Input of a relation.
#[derive(Debug, Clone)]
pub(super) enum RelationSource {
    /// A table. Its columns are the provider's schema and the hidden rowid, if the table has one. The scan has no
    /// filters and no projection.
    Table { scan: TableScan, provider: Arc<dyn TableProvider> },
    /// An opaque plan.
    Plan(LogicalPlan),
}

/// Definition of a relation's column. Names are unique within a relation.
#[derive(Debug, Clone)]
pub(super) struct RelationColumn {
    pub name: String,
    pub data_type: DataType,
    pub nullable: bool,
}

/// A leaf of the join tree.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// Qualifier of the canonical columns; unique within the graph.
    pub name: String,
    pub source: RelationSource,
    pub columns: Vec<RelationColumn>,
    /// For an outer relation: its join.
    pub outer: Option<OuterJoin>,
}

/// The join of an outer relation with other relations.
#[derive(Debug, Clone)]
pub(super) struct OuterJoin {
    /// `Left`, `LeftSemi` or `LeftAnti`, with the outer relation on the right.
    pub kind: JoinType,
    /// The conjuncts of ON and the filters below the join.
    pub on: Vec<Expr>,
}

impl Relation {
    /// The Keyaki table, if the relation is one.
    pub fn table(&self) -> Option<&KeyakiTable> {
        match &self.source {
            RelationSource::Table { provider, .. } => provider.downcast_ref::<KeyakiTable>(),
            RelationSource::Plan(_) => None,
        }
    }

    /// The conditions of the join of an outer relation; empty for others.
    pub fn on(&self) -> &[Expr] {
        self.outer.as_ref().map_or(&[], |outer| &outer.on)
    }

    /// The kind of join with the relations before: `Inner`, unless the relation is an outer one.
    pub fn join_type(&self) -> JoinType {
        self.outer.as_ref().map_or(JoinType::Inner, |outer| outer.kind)
    }

    /// True for the right side of a semi or anti join.
    pub fn is_existence(&self) -> bool {
        matches!(self.join_type(), JoinType::LeftSemi | JoinType::LeftAnti)
    }

    /// Canonical name of a column.
    pub fn canonical(&self, column: usize) -> Column {
        Column::new(Some(TableReference::bare(self.name.clone())), self.columns[column].name.clone())
    }
}

/// A conjunct of the filters and inner joins.
#[derive(Debug, Clone)]
pub(super) struct Predicate {
    pub expr: Expr,
    /// Relations that `expr` uses.
    pub relations: RelationSet,
    /// `a = b` between columns of two relations.
    pub equality: Option<(ColumnId, ColumnId)>,
    /// `x = y` between expressions over disjoint sets of relations: the two sets.
    pub sides: Option<(RelationSet, RelationSet)>,
    /// Evaluated after all joins: `expr` uses an outer relation, contains a subquery, or uses no relation.
    pub late: bool,
}

/// A flattened join tree.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub relations: Vec<Relation>,
    pub predicates: Vec<Predicate>,
    /// Expression over canonical columns for each output column of the flattened plan.
    pub output: Vec<Expr>,
    /// Row limit of the first scan that has one. Meaningful only for a graph of one relation.
    pub fetch: Option<usize>,
    /// Identities of the canonical columns.
    columns: HashMap<Column, ColumnId>,
    /// Treat left joins as opaque relations.
    inner_only: bool,
}

impl Graph {
    /// Flattens a plan. Returns `None` if it has no Keyaki table or more than [`RELATIONS_MAX`] relations.
    pub fn of(plan: &LogicalPlan) -> Result<Option<Graph>> {
        for inner_only in [false, true] {
            let mut graph = Graph { inner_only, ..Graph::default() };
            let mut conjuncts = Vec::new();
            let output = graph.flatten(plan, None, &mut conjuncts)?;
            if graph.relations.len() > RELATIONS_MAX || graph.relations.iter().all(|r| r.table().is_none()) {
                return Ok(None);
            }
            graph.output = output;
            if graph.classify(conjuncts)? {
                return Ok(Some(graph));
            }
        }
        Ok(None)
    }

    /// Identity of a canonical column.
    pub fn column(&self, column: &Column) -> Option<ColumnId> {
        self.columns.get(column).copied()
    }

    /// Columns that an expression uses, in ascending order.
    pub fn columns_of(&self, expr: &Expr) -> Vec<ColumnId> {
        let mut columns: Vec<ColumnId> = expr.column_refs().into_iter().filter_map(|c| self.column(c)).collect();
        columns.sort_unstable();
        columns
    }

    /// Relations that an expression uses.
    pub fn relations_of(&self, expr: &Expr) -> RelationSet {
        self.columns_of(expr).into_iter().fold(0, |set, column| set | bit(column.relation))
    }

    /// Canonical name of a column.
    pub fn canonical(&self, id: ColumnId) -> Column {
        self.relations[id.relation].canonical(id.column)
    }

    /// Arrow type of a column.
    pub fn data_type(&self, id: ColumnId) -> &DataType {
        &self.relations[id.relation].columns[id.column].data_type
    }

    /// All relations.
    pub fn all(&self) -> RelationSet {
        (0..self.relations.len()).fold(0, |set, relation| set | bit(relation))
    }

    /// Outer relations: the null-supplied sides of left joins, and the right sides of semi and anti joins.
    pub fn outers(&self) -> RelationSet {
        members(self.all()).filter(|&r| self.relations[r].outer.is_some()).fold(0, |set, r| set | bit(r))
    }

    /// Relations that the ON of an outer relation uses, except the relation itself.
    pub fn needs(&self, outer: usize) -> RelationSet {
        let on = self.relations[outer].on().iter();
        on.fold(0, |set, expr| set | self.relations_of(expr)) & !bit(outer)
    }

    /// `a = b` between columns of two relations.
    pub fn equality(&self, expr: &Expr) -> Option<(ColumnId, ColumnId)> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
        let (Expr::Column(left), Expr::Column(right)) = (left.as_ref(), right.as_ref()) else { return None };
        let (left, right) = (self.column(left)?, self.column(right)?);
        (left.relation != right.relation).then_some((left, right))
    }

    /// Relations of the left and right side of an equality, if the sides can be keys of a hash join: both use
    /// relations, and none in common.
    pub fn sides(&self, expr: &Expr) -> Option<(RelationSet, RelationSet)> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
        let (left, right) = (self.relations_of(left), self.relations_of(right));
        (left != 0 && right != 0 && left & right == 0).then_some((left, right))
    }

    /// Adds the relations of `plan` to the graph and its filters to `conjuncts`. Returns the output columns as
    /// expressions over canonical columns. `name` is the alias for a relation directly below.
    fn flatten(&mut self, plan: &LogicalPlan, name: Option<&str>, conjuncts: &mut Vec<Conjunct>) -> Result<Vec<Expr>> {
        match plan {
            _ if !is_member(plan) => self.opaque(plan, name),
            LogicalPlan::TableScan(scan) => self.table(scan, name, conjuncts),
            LogicalPlan::SubqueryAlias(alias) => self.flatten(&alias.input, Some(alias.alias.table()), conjuncts),
            LogicalPlan::Projection(projection) => {
                let input = self.flatten(&projection.input, name, conjuncts)?;
                let schema = projection.input.schema();
                projection.expr.iter().map(|expr| substitute(expr, schema, &input).map(unalias)).collect()
            }
            LogicalPlan::Filter(filter) => {
                let input = self.flatten(&filter.input, name, conjuncts)?;
                for conjunct in split_conjunction(&filter.predicate) {
                    conjuncts.push(Conjunct::filter(substitute(conjunct, filter.input.schema(), &input)?));
                }
                Ok(input)
            }
            LogicalPlan::Join(join) => match join.join_type {
                JoinType::Left | JoinType::Right if self.inner_only => self.opaque(plan, name),
                JoinType::Left | JoinType::Right => self.outer_join(join, conjuncts),
                JoinType::LeftAnti | JoinType::RightAnti => self.outer_join(join, conjuncts),
                JoinType::LeftSemi | JoinType::RightSemi if !finds_one(join) => self.outer_join(join, conjuncts),
                _ => self.inner_join(join, conjuncts),
            },
            _ => self.opaque(plan, name),
        }
    }

    /// Flattens an inner join, or a semi join on a unique key, which finds at most one match.
    fn inner_join(&mut self, join: &Join, conjuncts: &mut Vec<Conjunct>) -> Result<Vec<Expr>> {
        let mut output = self.flatten(&join.left, None, conjuncts)?;
        let left = output.len();
        output.extend(self.flatten(&join.right, None, conjuncts)?);
        let schema = join.left.schema().join(join.right.schema())?;
        for expr in conditions(join) {
            let expr = substitute(&expr, &schema, &output)?;
            conjuncts.push(Conjunct { expr, of_join: true });
        }
        match join.join_type {
            JoinType::LeftSemi => output.truncate(left),
            JoinType::RightSemi => drop(output.drain(..left)),
            _ => {}
        }
        Ok(output)
    }

    /// Flattens a left, semi or anti join, or one of the right side as one of the left side with its inputs swapped. The
    /// other side becomes one outer relation.
    fn outer_join(&mut self, join: &Join, conjuncts: &mut Vec<Conjunct>) -> Result<Vec<Expr>> {
        let left = matches!(join.join_type, JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti);
        let kind = if left { join.join_type } else { join.join_type.swap() };
        let (kept, supplied) = if left { (&join.left, &join.right) } else { (&join.right, &join.left) };
        let mut kept = self.flatten(kept, None, conjuncts)?;
        let mut own = Vec::new();
        let outer = self.relations.len();
        let mut supplied = match is_simple(supplied) {
            true => self.flatten(supplied, None, &mut own)?,
            false => self.opaque(supplied, None)?,
        };
        let result = kept.clone();
        let both = if left {
            kept.append(&mut supplied);
            kept
        } else {
            supplied.append(&mut kept);
            supplied
        };
        let mut on: Vec<Expr> = own.into_iter().map(|conjunct| conjunct.expr).collect();
        let schema = join.left.schema().join(join.right.schema())?;
        for expr in conditions(join) {
            on.push(substitute(&expr, &schema, &both)?);
        }
        let relation = &mut self.relations[outer];
        relation.outer = Some(OuterJoin { kind, on });
        if relation.is_existence() {
            return Ok(result);
        }
        for column in &mut relation.columns {
            column.nullable = true;
        }
        Ok(both)
    }

    /// Adds a table scan as a relation. Its filters become conjuncts.
    fn table(&mut self, scan: &TableScan, name: Option<&str>, conjuncts: &mut Vec<Conjunct>) -> Result<Vec<Expr>> {
        let provider = source_as_provider(&scan.source)?;
        let schema = scan.source.schema();
        let columns = schema.fields().iter().map(|field| RelationColumn {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
        });
        let mut columns: Vec<RelationColumn> = columns.collect();
        let visible = columns.len();
        let table = provider.downcast_ref::<KeyakiTable>();
        if table.is_some_and(|table| table.table.def.hidden_rowid && visible == table.table.def.columns.len()) {
            columns.push(RelationColumn { name: HIDDEN_ROWID.into(), data_type: DataType::Int64, nullable: false });
        }
        self.fetch = self.fetch.or(scan.fetch);
        let bare = TableScanBuilder::new(scan.table_name.clone(), scan.source.clone()).build()?;
        let all = bare.projected_schema.clone();
        let source = RelationSource::Table { scan: bare, provider };
        let mut whole = self.relation(name.unwrap_or(scan.table_name.table()), source, columns);
        whole.truncate(visible);
        for filter in scan.filters.iter().flat_map(split_conjunction) {
            conjuncts.push(Conjunct::filter(substitute(filter, &all, &whole)?));
        }
        Ok(match &scan.projection {
            Some(projection) => projection.iter().map(|&column| whole[column].clone()).collect(),
            None => whole,
        })
    }

    /// Adds a plan as an opaque relation.
    fn opaque(&mut self, plan: &LogicalPlan, name: Option<&str>) -> Result<Vec<Expr>> {
        let mut columns: Vec<RelationColumn> = Vec::new();
        for field in plan.schema().fields() {
            let mut name = field.name().clone();
            while columns.iter().any(|column| column.name == name) {
                name.push('\'');
            }
            columns.push(RelationColumn { name, data_type: field.data_type().clone(), nullable: field.is_nullable() });
        }
        let name = name.unwrap_or("input");
        Ok(self.relation(name, RelationSource::Plan(plan.clone()), columns))
    }

    /// Adds a relation under a unique name and returns its canonical columns.
    fn relation(&mut self, name: &str, source: RelationSource, columns: Vec<RelationColumn>) -> Vec<Expr> {
        let mut unique = name.to_owned();
        let mut number = 1;
        while self.relations.iter().any(|relation| relation.name == unique) {
            number += 1;
            unique = format!("{name}_{number}");
        }
        let relation = self.relations.len();
        self.relations.push(Relation { name: unique, source, columns, outer: None });
        let names = (0..self.relations[relation].columns.len()).map(|c| self.relations[relation].canonical(c));
        let names: Vec<Column> = names.collect();
        for (column, name) in names.iter().enumerate() {
            self.columns.insert(name.clone(), ColumnId { relation, column });
        }
        names.into_iter().map(Expr::Column).collect()
    }

    /// Turns the conjuncts into predicates, without duplicates. Returns false if left joins have to stay opaque: the
    /// condition of an inner join uses an outer relation, or an ON contains a subquery.
    fn classify(&mut self, conjuncts: Vec<Conjunct>) -> Result<bool> {
        let outers = self.outers();
        for Conjunct { expr, of_join } in conjuncts {
            let relations = self.relations_of(&expr);
            if of_join && relations & outers != 0 {
                return Ok(false);
            }
            let late = relations & outers != 0 || relations == 0 || has_subquery(&expr);
            let equality = if late { None } else { self.equality(&expr) };
            let sides = if late { None } else { self.sides(&expr) };
            let predicate = Predicate { expr, relations, equality, sides, late };
            if !self.predicates.iter().any(|known| known.expr == predicate.expr) {
                self.predicates.push(predicate);
            }
        }
        let simple = |r: &Relation| r.on().iter().all(|on| !has_subquery(on));
        Ok(self.relations.iter().all(simple))
    }
}

/// A condition found while flattening.
struct Conjunct {
    expr: Expr,
    /// From the condition of an inner join; false for a filter.
    of_join: bool,
}

impl Conjunct {
    fn filter(expr: Expr) -> Self {
        Conjunct { expr, of_join: false }
    }
}

/// True if the graph absorbs this node, false if the node becomes an opaque relation. Keyaki tables count as absorbed;
/// volatile expressions and projected subqueries make a node opaque.
pub(super) fn is_member(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let is_keyaki = |provider: Arc<dyn TableProvider>| provider.downcast_ref::<KeyakiTable>().is_some();
            source_as_provider(&scan.source).is_ok_and(is_keyaki)
        }
        LogicalPlan::SubqueryAlias(_) => true,
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().all(|expr| !expr.is_volatile() && !has_subquery(expr))
        }
        LogicalPlan::Filter(filter) => !filter.predicate.is_volatile(),
        LogicalPlan::Join(join) => {
            let kind = match join.join_type {
                JoinType::Inner | JoinType::Left | JoinType::Right => true,
                JoinType::LeftSemi if !finds_one(join) => !conditions_have_subqueries(join, &join.right),
                JoinType::RightSemi if !finds_one(join) => !conditions_have_subqueries(join, &join.left),
                JoinType::LeftSemi | JoinType::RightSemi => true,
                JoinType::LeftAnti => !join.null_aware && !conditions_have_subqueries(join, &join.right),
                JoinType::RightAnti => !join.null_aware && !conditions_have_subqueries(join, &join.left),
                _ => false,
            };
            kind && join.null_equality == NullEquality::NullEqualsNothing
                && conditions(join).all(|expr| !expr.is_volatile())
        }
        _ => false,
    }
}

/// True if the conditions of a join, or the filters of its other side, contain subqueries.
fn conditions_have_subqueries(join: &Join, other: &LogicalPlan) -> bool {
    let mut found = conditions(join).any(|expr| has_subquery(&expr));
    let mut plan = other;
    loop {
        plan = match plan {
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Filter(filter) => {
                found |= has_subquery(&filter.predicate);
                &filter.input
            }
            LogicalPlan::TableScan(scan) => return found || scan.filters.iter().any(has_subquery),
            _ => return found,
        }
    }
}

/// True for a semi join that finds at most one match for each row.
pub(super) fn finds_one(join: &Join) -> bool {
    match join.join_type {
        JoinType::LeftSemi => is_unique(join.right.schema(), join.on.iter().map(|(_, right)| right)),
        JoinType::RightSemi => is_unique(join.left.schema(), join.on.iter().map(|(left, _)| left)),
        _ => false,
    }
}

/// True if DataFusion's functional dependencies prove that `key` identifies a row of `schema`. A semi join with such a
/// key equals an inner join without the columns of that side.
fn is_unique<'a>(schema: &DFSchema, key: impl Iterator<Item = &'a Expr>) -> bool {
    let columns = key.filter_map(|expr| match expr {
        Expr::Column(column) => schema.maybe_index_of_column(column),
        _ => None,
    });
    let columns: Vec<usize> = columns.collect();
    let within = |indices: &[usize]| indices.iter().all(|index| columns.contains(index));
    let dependencies = schema.functional_dependencies().iter();
    dependencies.into_iter().any(|d| d.mode == Dependency::Single && within(&d.source_indices))
}

/// True for a table with filters and renamed columns but no computed columns and no limit. Only such a plan can become
/// an outer relation with indexes; other null-supplied sides are opaque.
pub(super) fn is_simple(plan: &LogicalPlan) -> bool {
    let column = |expr: &Expr| matches!(unalias(expr.clone()), Expr::Column(_));
    is_member(plan)
        && match plan {
            LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
            LogicalPlan::SubqueryAlias(alias) => is_simple(&alias.input),
            LogicalPlan::Projection(projection) => projection.expr.iter().all(column) && is_simple(&projection.input),
            LogicalPlan::Filter(filter) => is_simple(&filter.input),
            _ => false,
        }
}

/// Conjuncts of a join's condition, over the columns of both inputs.
fn conditions(join: &Join) -> impl Iterator<Item = Expr> + '_ {
    let on = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
    on.chain(join.filter.iter().flat_map(split_conjunction).cloned())
}

/// True if an expression contains a subquery or refers to a column of an outer query.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    let mut subquery = |expr: &Expr| {
        Ok::<_, DataFusionError>(matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    };
    // The closure never fails.
    expr.exists_dyn(&mut subquery).unwrap_or(true)
}

fn unalias(expr: Expr) -> Expr {
    match expr {
        Expr::Alias(alias) => unalias(*alias.expr),
        other => other,
    }
}

/// Replaces each column of `expr`, which is over `schema`, by the expression at its position in `columns`.
fn substitute(expr: &Expr, schema: &DFSchema, columns: &[Expr]) -> Result<Expr> {
    let replaced = expr.clone().transform_up_dyn(&mut |node| {
        Ok(match &node {
            Expr::Column(column) => Transformed::yes(columns[schema.index_of_column(column)?].clone()),
            _ => Transformed::no(node),
        })
    })?;
    Ok(replaced.data)
}
