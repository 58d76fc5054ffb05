//! Expressions in definitions: CHECK conditions, generated columns, expressions and predicates of indexes, DEFAULT values.
//!
//! The catalog stores their text. [`compile`] makes conditions, generated columns and constant defaults executable, once
//! for each version of a table's definition: before a statement writes, before a query plans a table that has generated
//! columns, partial indexes or indexes of expressions, and before such indexes in memory are built. Other defaults are planned for each statement ([`super::dml::defaults`]).
//!
//! *Invariant.* A condition or generated column always has the same value for the same row. It contains no functions that are not
//! immutable, and its meaning does not depend on the time zone of a session: it is compiled for two time zones, and both
//! results must be equal.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_empty_array};
use arrow::datatypes::{DataType, Schema, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    EmptyRelation, Expr as Logical, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, Volatility,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{Expr, ExprWithAlias, Query, Visitor};

use super::SqlSession;
use super::state::state_of_definitions;
use crate::base::tree::Tree;
use crate::base::type_name;
use crate::catalog::types::from_arrow;
use crate::catalog::{
    Check, CheckDef, ColumnDef, Compiled, Generated, Generation, IndexDef, IndexExpression, Predicate, RowExpression,
    SqlType, Table, VirtualValue,
};
use crate::engine::Engine;
use crate::sql::visit::walk;
use crate::table::compact;
use crate::values::zone::Zone;
use crate::write::assign::assign;
use crate::write::evaluate;
use crate::{Error, ObjectKind, Result};

/// A time zone other than UTC, to find expressions that depend on the zone.
const OTHER_ZONE: &str = "Asia/Kolkata";

/// The compiled expressions of a table.
///
/// # Errors
/// Errors of planning, for a definition that was valid when it was made: none is expected.
pub(crate) fn compiled<'a>(session: &SqlSession, table: &'a Table) -> Result<&'a Compiled> {
    match table.compiled() {
        Some(compiled) => Ok(compiled),
        None => compile(&session.engine, table),
    }
}

/// Compiles the expressions of a table.
///
/// # Errors
/// As [`compiled`].
pub(crate) fn compile<'a>(engine: &Engine, table: &'a Table) -> Result<&'a Compiled> {
    let compiler = Compiler::new(engine, table)?;
    let constants = table.def.columns.iter().map(|column| Ok(compiler.constant(column).unwrap_or(None)));
    let checks = table.def.checks.iter().map(|check| compiler.check(check));
    let compiled = Compiled {
        checks: checks.collect::<Result<_>>()?,
        constants: constants.collect::<Result<_>>()?,
        generation: compiler.generation()?,
        predicates: table.def.indexes.iter().map(|index| compiler.predicate(index)).collect::<Result<_>>()?,
        virtual_values: compiler.virtual_values()?,
    };
    Ok(table.set_compiled(compiled))
}

/// The type of the values of an index expression.
///
/// # Errors
/// `InvalidDefinition` for an expression that is not immutable, `Unsupported` for forms and types that an index cannot have,
/// errors of planning.
pub(super) fn index_type(engine: &Engine, table: &Table, sql: &str, index: &str) -> Result<SqlType> {
    let compiler = Compiler::new(engine, table)?;
    let ty = compiler.index_expression(sql, index)?.get_type(&compiler.schema)?;
    let column = from_arrow(&ty)?;
    // Filters compare the values of the expression, and ranges of keys those of the index.
    if !is_lossless(&ty, &column.arrow()) {
        let ty = type_name(&ty);
        return Err(Error::Unsupported(format!(
            "index expression {sql} of type {ty} (cast it to the type of a column)"
        )));
    }
    Ok(column.into())
}

/// True if different values of a type stay different in the type of a column.
fn is_lossless(ty: &DataType, column: &DataType) -> bool {
    match ty {
        DataType::Timestamp(unit, _) => *unit == TimeUnit::Microsecond,
        DataType::Time64(unit) => *unit == TimeUnit::Microsecond,
        DataType::Float16 | DataType::Date64 | DataType::Null | DataType::Time32(_) => false,
        _ => ty.is_integer() || ty.is_string() || ty.is_binary() || ty.is_decimal() || ty == column,
    }
}

/// The conditions of a predicate over the unqualified columns of a table, in the form of [`Predicate::conjuncts`]. `what` is
/// the clause that has the predicate.
///
/// # Errors
/// As those of an index predicate.
pub(super) fn conjuncts(engine: &Engine, table: &Table, sql: &str, what: &str) -> Result<Vec<Logical>> {
    let compiler = Compiler::new(engine, table)?;
    let condition = compiler.condition(sql, Place { what, name: &table.def.name })?;
    compiler.conjuncts(condition)
}

/// Compiles expressions of one table.
struct Compiler<'a> {
    table: &'a Table,
    /// The columns of the table.
    schema: DFSchemaRef,
    utc: SessionState,
    other: SessionState,
}

impl Compiler<'_> {
    fn new<'a>(engine: &Engine, table: &'a Table) -> Result<Compiler<'a>> {
        let schema = DFSchema::try_from(table.arrow.clone())?;
        let other = state_of_definitions(engine, Zone::named(OTHER_ZONE)?);
        let utc = state_of_definitions(engine, Zone::UTC);
        Ok(Compiler { table, schema: Arc::new(schema), utc, other })
    }

    fn check(&self, def: &CheckDef) -> Result<Check> {
        let condition = self.condition(&def.sql, Place { what: "CHECK", name: &def.name })?;
        let condition = physical(&self.utc, condition, &self.schema)?;
        Ok(Check { columns: columns_of(&condition), condition })
    }

    /// The predicate of an index; `None` for an index of all rows.
    fn predicate(&self, index: &IndexDef) -> Result<Option<Predicate>> {
        let Some(sql) = &index.predicate else { return Ok(None) };
        let condition = self.condition(sql, Place { what: "an index predicate", name: &index.name })?;
        let physical = self.row_expression(condition.clone())?;
        Ok(Some(Predicate { conjuncts: self.conjuncts(condition)?, condition: physical }))
    }

    /// The expressions of all indexes.
    fn virtual_values(&self) -> Result<Vec<VirtualValue>> {
        let indexes = self.table.def.indexes.iter();
        let expressions = indexes.flat_map(|index| index.expressions().map(|expression| (&index.name, expression)));
        let value = |(index, IndexExpression { sql, ty }): (&String, &IndexExpression)| {
            let expr = self.index_expression(sql, index)?;
            let value = self.row_expression(expr.clone())?;
            Ok(VirtualValue { expr: self.simplified(expr)?, value, ty: ty.column })
        };
        expressions.map(value).collect()
    }

    /// An expression of an index with literals in place of constant operands.
    fn index_expression(&self, sql: &str, index: &str) -> Result<Logical> {
        folded(&self.utc, self.immutable(sql, &self.schema, Place { what: "index expressions", name: index })?)
    }

    /// The executable form of an expression over the table's columns.
    fn row_expression(&self, expr: Logical) -> Result<RowExpression> {
        let (columns, value) = compact(physical(&self.utc, expr, &self.schema)?)?;
        let schema = Arc::new(self.table.arrow.project(&columns)?);
        Ok(RowExpression { columns, value, schema })
    }

    /// The parts of a condition, of which all must be true, in the form that the optimizer gives to filters.
    fn conjuncts(&self, condition: Logical) -> Result<Vec<Logical>> {
        Ok(split_conjunction_owned(self.simplified(condition)?))
    }

    /// The form that the optimizer gives to an expression.
    fn simplified(&self, expr: Logical) -> Result<Logical> {
        Ok(ExprSimplifier::new(simplification(&self.utc, &self.schema)).simplify(expr)?)
    }

    /// A condition with literals in place of constant operands.
    fn condition(&self, sql: &str, place: Place<'_>) -> Result<Logical> {
        let condition = folded(&self.utc, self.immutable(sql, &self.schema, place)?)?;
        match condition.get_type(&self.schema)? {
            DataType::Boolean => Ok(condition),
            ty => {
                let (what, ty) = (place.what, type_name(&ty));
                Err(Error::DatatypeMismatch(format!("argument of {what} must be type boolean, not type {ty}")))
            }
        }
    }

    fn generation(&self) -> Result<Option<Generation>> {
        if !self.table.has_generated() {
            return Ok(None);
        }
        let fields = self.table.arrow.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let over = Arc::new(DFSchema::try_from(schema.clone())?);
        let columns = &self.table.def.columns;
        let generated = columns.iter().enumerate().filter_map(|(position, column)| {
            let sql = column.generated.as_ref()?;
            Some(self.generated(position, sql, &over).map_err(|error| match error {
                error @ Error::InvalidDefinition { .. } => error,
                error => error.within(format!("generated column \"{}\"", column.name)),
            }))
        });
        Ok(Some(Generation { columns: generated.collect::<Result<_>>()?, schema }))
    }

    fn generated(&self, column: usize, sql: &str, schema: &DFSchemaRef) -> Result<Generated> {
        let def = &self.table.def.columns[column];
        let expr = self.immutable(sql, schema, Place { what: "a generated column", name: &def.name })?;
        let value = physical(&self.utc, folded(&self.utc, expr.clone())?, schema)?;
        let uses = columns_of(&value);
        if let Some(&other) = uses.iter().find(|&&other| self.table.def.columns[other].generated.is_some()) {
            let other = &self.table.def.columns[other].name;
            let problem = format!("generated column \"{}\" cannot use generated column \"{other}\"", def.name);
            return Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem });
        }
        let none = new_empty_array(&value.data_type(schema.as_arrow())?);
        assign(&none, &self.table.def.name, def, Zone::UTC)?;
        Ok(Generated { column, expr, value, uses })
    }

    /// An analyzed expression that always has the same value for the same row.
    ///
    /// # Errors
    /// `InvalidDefinition`, `Unsupported`, `Grouping`, errors of planning.
    fn immutable(&self, sql: &str, schema: &DFSchemaRef, place: Place<'_>) -> Result<Logical> {
        let Place { what, name } = place;
        let invalid = |problem: String| Error::InvalidDefinition { kind: ObjectKind::Table, problem };
        let expr = super::parse_expr(sql)?;
        refuse_queries(&expr, what)?;
        let logical = logical(&self.utc, expr.clone(), schema)?;
        refuse_forms(&logical, what)?;
        if let Some(function) = mutable_function(&logical)? {
            return Err(invalid(format!("functions in {what} must be immutable: {function} is not (\"{name}\")")));
        }
        let value = analyzed(&self.utc, logical, schema)?;
        let constants = folded(&self.utc, value.clone())?;
        let other = self::logical(&self.other, expr, schema);
        let other = other.and_then(|expr| folded(&self.other, analyzed(&self.other, expr, schema)?));
        if !other.is_ok_and(|other| same(&constants, &other)) {
            return Err(invalid(format!(
                "{what} must not depend on the time zone of the session (\"{name}\"; write times with an offset, or use AT \
                 TIME ZONE)"
            )));
        }
        Ok(value)
    }

    /// The value of a default that is the same for all statements; `None` for other defaults.
    fn constant(&self, column: &ColumnDef) -> Result<Option<ArrayRef>> {
        let Some(sql) = &column.default else { return Ok(None) };
        let expr = super::parse_expr(sql)?;
        let schema = Arc::new(DFSchema::empty());
        let logical = logical(&self.utc, expr.clone(), &schema)?;
        if mutable_function(&logical)?.is_some() {
            return Ok(None);
        }
        let of_zone = |state: &SessionState, zone: Zone| -> Result<ArrayRef> {
            let value = analyzed(state, self::logical(state, expr.clone(), &schema)?, &schema)?;
            let value = evaluate(&physical(state, value, &schema)?, 1)?;
            // A NOT NULL column rejects the null when a row is inserted.
            let nullable = ColumnDef { nullable: true, ..column.clone() };
            assign(&value, &self.table.def.name, &nullable, zone)
        };
        let (utc, other) = (of_zone(&self.utc, Zone::UTC)?, of_zone(&self.other, Zone::named(OTHER_ZONE)?)?);
        Ok((utc.to_data() == other.to_data()).then_some(utc))
    }
}

/// The place of an expression, for errors.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    /// CHECK, or another clause.
    what: &'a str,
    /// The constraint or column.
    name: &'a str,
}

/// The columns that an expression uses, in table order.
fn columns_of(expr: &Arc<dyn PhysicalExpr>) -> Vec<usize> {
    let mut columns: Vec<usize> = collect_columns(expr).iter().map(|column| column.index()).collect();
    columns.sort_unstable();
    columns
}

/// An analyzed expression with literals in place of constant operands. An operand that fails stays: it may not be needed.
fn folded(state: &SessionState, expr: Logical) -> Result<Logical> {
    let schema = Arc::new(DFSchema::empty());
    let value = |expr: &Logical| -> Result<ScalarValue> {
        let value = evaluate(&physical(state, expr.clone(), &schema)?, 1)?;
        Ok(ScalarValue::try_from_array(&value, 0)?)
    };
    let folded = expr.transform_down_dyn(&mut |expr| match &expr {
        Logical::Literal(..) | Logical::Column(_) => Ok(Transformed::no(expr)),
        constant if constant.column_refs().is_empty() => Ok(match value(constant) {
            Ok(value) => Transformed::new(Logical::Literal(value, None), true, TreeNodeRecursion::Jump),
            Err(_) => Transformed::no(expr),
        }),
        _ => Ok(Transformed::no(expr)),
    })?;
    Ok(folded.data)
}

/// True if two expressions are the same, including the parameters of their functions.
fn same(a: &Logical, b: &Logical) -> bool {
    a == b && format!("{a:?}") == format!("{b:?}")
}

/// Plans an expression over `schema`.
///
/// # Errors
/// Errors of planning.
pub(super) fn logical(state: &SessionState, mut expr: Expr, schema: &DFSchema) -> Result<Logical> {
    super::constants::typed(&mut expr);
    super::zones::as_calls(&mut expr)?;
    super::interval_literals::read(&mut expr)?;
    super::synonyms::replace(&mut expr)?;
    super::row_values::compare(&mut expr)?;
    super::quantified::as_calls(&mut expr)?;
    Ok(state.create_logical_expr_from_sql_expr(ExprWithAlias { expr, alias: None }, schema)?)
}

/// An expression after the analyzer's rules.
///
/// # Errors
/// `UndefinedColumn`, errors of types.
pub(super) fn analyzed(state: &SessionState, expr: Logical, schema: &DFSchemaRef) -> Result<Logical> {
    let row = LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: true, schema: schema.clone() });
    let plan = LogicalPlanBuilder::from(row).project([expr])?.build()?;
    let options = state.config_options();
    match state.analyzer().execute_and_check(plan, options, |_, _| {})? {
        LogicalPlan::Projection(Projection { mut expr, .. }) if expr.len() == 1 => Ok(expr.remove(0).unalias()),
        other => Err(Error::Internal(format!("an expression became {other}"))),
    }
}

/// The executable form of an analyzed expression. Functions that depend on the time take the start of the statement.
///
/// # Errors
/// Errors of planning.
pub(super) fn physical(state: &SessionState, expr: Logical, schema: &DFSchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let context = simplification(state, schema);
    // Some functions exist only until this rewrite, for example now() and coalesce().
    let expanded = expr.transform_up_dyn(&mut |expr| match expr {
        Logical::ScalarFunction(ScalarFunction { func, args }) => match func.simplify(args, &context)? {
            ExprSimplifyResult::Simplified(expr) => Ok(Transformed::yes(expr)),
            ExprSimplifyResult::Original(args) => {
                Ok(Transformed::no(Logical::ScalarFunction(ScalarFunction { func, args })))
            }
        },
        other => Ok(Transformed::no(other)),
    })?;
    Ok(state.create_physical_expr(expanded.data, schema)?)
}

fn simplification(state: &SessionState, schema: &DFSchemaRef) -> SimplifyContext {
    SimplifyContext::builder()
        .with_schema(schema.clone())
        .with_config_options(state.config_options().clone())
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build()
}

/// Refuses subqueries. `place` is CHECK or DEFAULT.
///
/// # Errors
/// `Unsupported`.
pub(super) fn refuse_queries(expr: &Expr, place: &str) -> Result<()> {
    struct HasQuery;
    impl Visitor for HasQuery {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    match walk(expr, &mut HasQuery) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Unsupported(format!("subqueries in {place}"))),
    }
}

/// Refuses aggregates, window functions, and functions that return several rows.
///
/// # Errors
/// `Grouping`, `Unsupported`.
pub(super) fn refuse_forms(expr: &Logical, place: &str) -> Result<()> {
    let mut refused = None;
    expr.apply_dyn(&mut |expr| {
        refused = match expr {
            Logical::AggregateFunction(_) => {
                Some(Error::Grouping(format!("aggregate functions are not allowed in {place}")))
            }
            Logical::WindowFunction(_) => Some(Error::Unsupported(format!("window functions in {place}"))),
            Logical::Unnest(_) => Some(Error::Unsupported(format!("set-returning functions in {place}"))),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    })?;
    refused.map_or(Ok(()), Err)
}

/// The name of a function that is not immutable.
fn mutable_function(expr: &Logical) -> Result<Option<String>> {
    let mut found = None;
    expr.apply_dyn(&mut |expr| match expr {
        Logical::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => {
            found = Some(call.func.name().to_string());
            Ok(TreeNodeRecursion::Stop)
        }
        _ => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(found)
}
