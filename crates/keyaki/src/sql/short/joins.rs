//! Joins of a few lookups: each row found so far starts a lookup in the next table, by a key made from its columns.
//!
//! A join tree is flattened into tables and conditions. The first table is one whose conditions fix a key. Each next
//! table has conditions `column = column of an earlier table` on leading key columns; a table with a whole key comes
//! first. The order of inner joins has no effect on the result. A left-joined table comes after all tables of its outer
//! side, and only its ON conditions are part of its key.
//!
//! Conditions over several tables name the columns of all tables by position, see [`name`].

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, NullEquality};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Join, JoinType, LogicalPlan, Operator, TableScan};

use super::expressions::{Compiler, Expressions};
use super::keys::KeySource;
use super::lookup::Lookup;
use super::scan::{Planned, Scan, scan_below_aliases};
use super::steps::Step;

/// Maximum number of joined tables.
const TABLES_MAX: usize = 4;

/// A column of a table: the position of the table among those of the join, and of the column in its scan.
type Origin = (usize, usize);

/// A flattened join tree.
#[derive(Default)]
struct Tree<'a> {
    tables: Vec<Table<'a>>,
    conditions: Vec<Condition>,
}

struct Table<'a> {
    scan: &'a TableScan,
    /// Conditions of the operator above the scan.
    above: Vec<&'a Expr>,
    schema: DFSchemaRef,
    /// The table is left-joined to these tables.
    outer: Option<Vec<usize>>,
}

/// A condition of a join.
struct Condition {
    expr: Expr,
    /// The tables that it uses.
    uses: Vec<usize>,
    /// The condition is the equality of two columns.
    equal: Option<(Origin, Origin)>,
    /// The left-joined table of whose ON clause the condition is part.
    on: Option<usize>,
}

/// The name of a column in conditions of joins.
fn name((table, column): Origin) -> String {
    format!("{table}.{column}")
}

impl<'a> Tree<'a> {
    /// Adds the tables and conditions of a plan. Returns the origin of each of its columns; `None` if the plan has
    /// another form.
    fn add(&mut self, plan: &'a LogicalPlan) -> Option<Vec<Origin>> {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => self.add(&alias.input),
            LogicalPlan::TableScan(scan) => self.add_table(scan, Vec::new(), plan.schema()),
            LogicalPlan::Filter(filter) => {
                let scan = scan_below_aliases(&filter.input)?;
                self.add_table(scan, split_conjunction(&filter.predicate), plan.schema())
            }
            LogicalPlan::Projection(projection) => {
                let origins = self.add(&projection.input)?;
                let input = projection.input.schema();
                let origin = |expr: &Expr| Some(origins[super::order::place(expr, input)?]);
                projection.expr.iter().map(origin).collect()
            }
            LogicalPlan::Join(join) => self.add_join(join),
            _ => None,
        }
    }

    fn add_table(&mut self, scan: &'a TableScan, above: Vec<&'a Expr>, schema: &'a DFSchemaRef) -> Option<Vec<Origin>> {
        if self.tables.len() == TABLES_MAX || scan.fetch.is_some() {
            return None;
        }
        let table = self.tables.len();
        self.tables.push(Table { scan, above, schema: schema.clone(), outer: None });
        Some((0..schema.fields().len()).map(|column| (table, column)).collect())
    }

    fn add_join(&mut self, join: &'a Join) -> Option<Vec<Origin>> {
        if join.null_equality != NullEquality::NullEqualsNothing {
            return None;
        }
        let first = self.tables.len();
        let left = self.add(&join.left)?;
        let middle = self.tables.len();
        let right = self.add(&join.right)?;
        let on = match join.join_type {
            JoinType::Inner => None,
            // The outer side of a left join is complete before its inner side, a single table.
            JoinType::Left if self.tables.len() == middle + 1 => {
                self.tables[middle].outer = Some((first..middle).collect());
                Some(middle)
            }
            _ => return None,
        };
        for (a, b) in &join.on {
            let a = self.qualified(a, join.left.schema(), &left)?;
            let b = self.qualified(b, join.right.schema(), &right)?;
            self.add_condition(a.eq(b), on)?;
        }
        let origins = [left, right].concat();
        if let Some(filter) = &join.filter {
            let schema = join.left.schema().join(join.right.schema()).ok()?;
            for conjunct in split_conjunction(filter) {
                let conjunct = self.qualified(conjunct, &schema, &origins)?;
                self.add_condition(conjunct, on)?;
            }
        }
        Some(origins)
    }

    /// Replaces columns of `schema` by their names in conditions.
    fn qualified(&self, expr: &Expr, schema: &DFSchema, origins: &[Origin]) -> Option<Expr> {
        let mut known = true;
        let replaced = expr.clone().transform(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let origin = schema.maybe_index_of_column(column).and_then(|place| origins.get(place));
            known &= origin.is_some();
            let name = name(origin.copied().unwrap_or_default());
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
        });
        replaced.ok().map(|replaced| replaced.data).filter(|_| known)
    }

    fn add_condition(&mut self, expr: Expr, on: Option<usize>) -> Option<()> {
        let mut uses: Vec<usize> = Vec::new();
        for column in expr.column_refs() {
            uses.push(origin(&column.name)?.0);
        }
        let equal = match &expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match (left.as_ref(), right.as_ref()) {
                (Expr::Column(left), Expr::Column(right)) => Some((origin(&left.name)?, origin(&right.name)?)),
                _ => None,
            },
            _ => None,
        };
        self.conditions.push(Condition { expr, uses, equal, on });
        Some(())
    }

    /// The type of a column.
    fn type_of(&self, (table, column): Origin) -> &DataType {
        self.tables[table].schema.field(column).data_type()
    }
}

/// The inverse of [`name`].
fn origin(name: &str) -> Option<Origin> {
    let (table, column) = name.split_once('.')?;
    Some((table.parse().ok()?, column.parse().ok()?))
}

/// The tables in the order of their lookups.
struct Order<'t, 'a> {
    tree: &'t Tree<'a>,
    /// The tables so far.
    tables: Vec<usize>,
    /// The columns so far.
    columns: Vec<Origin>,
    /// The conditions that hold for the rows so far.
    applied: Vec<bool>,
}

impl Order<'_, '_> {
    fn new<'t, 'a>(tree: &'t Tree<'a>) -> Order<'t, 'a> {
        Order { tree, tables: Vec::new(), columns: Vec::new(), applied: vec![false; tree.conditions.len()] }
    }

    /// The scan of a table that could be the next, with the equalities that its key may use.
    fn candidate(&self, compiler: &Compiler<'_>, table: usize) -> Option<(Planned, Vec<usize>)> {
        let Table { scan, above, outer, .. } = &self.tree.tables[table];
        let is_before = |table: &usize| self.tables.contains(table);
        if is_before(&table) || !outer.iter().flatten().all(is_before) {
            return None;
        }
        let on = outer.as_ref().map(|_| table);
        let (mut equalities, mut sources) = (Vec::new(), Vec::new());
        for (i, condition) in self.tree.conditions.iter().enumerate().filter(|(_, c)| c.on == on) {
            let Some((own, other)) = condition.equal.map(|(a, b)| if a.0 == table { (a, b) } else { (b, a) }) else {
                continue;
            };
            let place = self.columns.iter().position(|column| *column == other);
            if let Some(place) = place.filter(|_| own.0 == table)
                && self.tree.type_of(own) == self.tree.type_of(other)
                // Operators and key encodings order floats differently.
                && !self.tree.type_of(own).is_floating()
            {
                equalities.push(i);
                sources.push((own.1, KeySource::Column(place)));
            }
        }
        compiler.scan(scan, above, None, &sources).map(|planned| (planned, equalities))
    }

    /// Adds a table, whose access answers some equalities. Returns the conditions that the new rows must satisfy: those
    /// of its ON clause, and others.
    fn add(&mut self, table: usize, answered: impl Iterator<Item = usize>) -> [Vec<Expr>; 2] {
        self.tables.push(table);
        let columns = self.tree.tables[table].schema.fields().len();
        self.columns.extend((0..columns).map(|column| (table, column)));
        answered.for_each(|condition| self.applied[condition] = true);
        let mut added = [Vec::new(), Vec::new()];
        for (condition, applied) in self.tree.conditions.iter().zip(&mut self.applied) {
            let is_due = match condition.on {
                Some(on) => on == table,
                None => condition.uses.iter().all(|used| self.tables.contains(used)),
            };
            if is_due && !std::mem::replace(applied, true) {
                added[usize::from(condition.on.is_none())].push(condition.expr.clone());
            }
        }
        added
    }

    /// The columns so far, as a schema for conditions. Any may be null.
    fn schema(&self) -> Option<DFSchemaRef> {
        let field = |&origin: &Origin| Field::new(name(origin), self.tree.type_of(origin).clone(), true);
        let fields: Vec<Field> = self.columns.iter().map(field).collect();
        DFSchema::try_from(Schema::new(fields)).ok().map(Arc::new)
    }
}

impl Compiler<'_> {
    /// The first table of a join, the lookups in the others, and the step that gives the columns of the join.
    pub fn join(&self, plan: &LogicalPlan) -> Option<(Scan, Vec<Lookup>, Step)> {
        let mut tree = Tree::default();
        let output = tree.add(plan)?;
        let inner = (0..tree.tables.len()).filter(|&table| tree.tables[table].outer.is_none());
        let empty = Order::new(&tree);
        let mut starts: Vec<(usize, Scan)> =
            inner.filter_map(|table| Some((table, empty.candidate(self, table)?.0.scan))).collect();
        starts.sort_by_key(|(_, scan)| !scan.access.is_one_row());
        starts.into_iter().find_map(|(start, scan)| {
            let mut order = Order::new(&tree);
            // The conditions between tables are due later.
            order.add(start, std::iter::empty());
            order.applied.fill(false);
            let mut lookups = Vec::new();
            while order.tables.len() < tree.tables.len() {
                lookups.push(self.next_lookup(&mut order)?);
            }
            let place = |origin| order.columns.iter().position(|column| column == origin);
            let places = output.iter().map(place).collect::<Option<Vec<_>>>()?;
            Some((scan, lookups, Step::Columns(places)))
        })
    }

    /// The lookup in the next table; one with a whole key, if possible.
    fn next_lookup(&self, order: &mut Order<'_, '_>) -> Option<Lookup> {
        let candidates = (0..order.tree.tables.len()).filter_map(|t| Some((t, order.candidate(self, t)?)));
        let (table, (planned, equalities)) =
            candidates.min_by_key(|(_, (planned, _))| !planned.scan.access.is_one_row())?;
        let answered = equalities.into_iter().zip(planned.joined).filter_map(|(i, answered)| answered.then_some(i));
        let added = order.add(table, answered);
        let schema = order.schema()?;
        let compiled = |conditions: Vec<Expr>| match conjunction(conditions) {
            Some(condition) => self.expressions([&condition], &schema).map(Some),
            None => Some(None),
        };
        let [on, filter]: [Option<Expressions>; 2] = match added.map(compiled) {
            [Some(on), Some(filter)] => [on, filter],
            _ => return None,
        };
        let is_outer = order.tree.tables[table].outer.is_some();
        Some(Lookup { scan: planned.scan, on, filter, is_outer })
    }
}
