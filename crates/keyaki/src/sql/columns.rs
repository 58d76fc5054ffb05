//! Names of result columns.
//!
//! DataFusion names an expression by its own representation (`sum(orders.price)`, `Utf8("x")`) and refuses a select list
//! in which a name occurs twice. [`name`] gives each expression without an alias the name that DuckDB gives it: its SQL
//! text, with function names in lower case and operators in parentheses. Zero-width spaces at the end make repeated names
//! distinct within DataFusion. [`shown`] removes them from the columns of the result.
//!
//! A repeated name cannot be used by outer queries, because none of its columns has exactly this name. Beside a wildcard,
//! whose names are not known here, only plain columns of the outermost query are renamed.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, Ident, ObjectNamePart, OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, Statement,
    VisitorMut,
};
use futures::StreamExt;

use super::names::plain_ident;
use crate::Error;
use crate::base::arrays::element_type;
use crate::base::identifiers::REPEATED;
use crate::sql::visit::walk_mut;
use crate::values::zone::{Zone, labelled, labelled_type};

/// Names the columns of all select lists of a query.
pub(crate) fn name(statement: &mut Statement) {
    match statement {
        Statement::Query(query) => name_beside_wildcard(&mut query.body),
        Statement::Explain { statement, .. } => return name(statement),
        _ => {}
    }
    let _ = walk_mut(statement, &mut Namer);
}

/// An error about a repeated name, whose columns cannot be told apart. Other errors name columns without marks.
pub(crate) fn ambiguous(error: Error) -> Error {
    match error {
        Error::UndefinedColumn { column, relation, mut similar } => {
            let name = |column: &str| column.rsplit('.').next().unwrap_or(column).to_string();
            let repeated = similar.iter().filter(|other| other.ends_with(REPEATED));
            if repeated.map(|other| name(shown(other))).any(|other| other == name(&column)) {
                return Error::AmbiguousColumn(name(&column));
            }
            similar.iter_mut().for_each(|other| *other = shown(other).into());
            similar.dedup();
            Error::UndefinedColumn { column, relation, similar }
        }
        other => other,
    }
}

/// Rows of a plan with the names and types of its result.
pub(crate) fn rows_of(rows: SendableRecordBatchStream, plan: &LogicalPlan, zone: Zone) -> SendableRecordBatchStream {
    let schema = super::documents::typed(shown_schema(&rows.schema()), plan);
    let schema = in_zone(&schema, zone);
    if Arc::ptr_eq(&schema, &rows.schema()) {
        return rows;
    }
    let named = schema.clone();
    let rows = rows.map(move |batch| renamed(&batch?, &named));
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// A column's name without the mark of repeated names.
pub(crate) fn shown(name: &str) -> &str {
    name.trim_end_matches(REPEATED)
}

/// A schema with the names of the result.
pub(crate) fn shown_schema(schema: &SchemaRef) -> SchemaRef {
    if schema.fields().iter().all(|field| shown(field.name()).len() == field.name().len()) {
        return schema.clone();
    }
    let renamed = |field: &Arc<Field>| match shown(field.name()) {
        name if name.len() == field.name().len() => field.clone(),
        name => Arc::new(field.as_ref().clone().with_name(name)),
    };
    Arc::new(Schema::new_with_metadata(
        schema.fields().iter().map(renamed).collect::<Vec<_>>(),
        schema.metadata().clone(),
    ))
}

/// A schema with the time zone of the session for TIMESTAMPTZ.
pub(crate) fn in_zone(schema: &SchemaRef, zone: Zone) -> SchemaRef {
    if zone.is_utc() || !schema.fields().iter().any(|field| is_labelled(field.data_type())) {
        return schema.clone();
    }
    let zone = zone.to_string();
    let labelled = |field: &Arc<Field>| match is_labelled(field.data_type()) {
        true => Arc::new(field.as_ref().clone().with_data_type(labelled_type(field.data_type(), &zone))),
        false => field.clone(),
    };
    Arc::new(Schema::new_with_metadata(
        schema.fields().iter().map(labelled).collect::<Vec<_>>(),
        schema.metadata().clone(),
    ))
}

/// Columns with the time zones of `schema`.
pub(crate) fn labelled_columns(columns: Vec<ArrayRef>, schema: &SchemaRef) -> Vec<ArrayRef> {
    let both = columns.into_iter().zip(schema.fields());
    both.map(|(column, field)| match zone_of(field.data_type()) {
        Some(zone) if column.data_type() != field.data_type() => labelled(&column, zone),
        _ => column,
    })
    .collect()
}

/// The time zone of TIMESTAMPTZ, or of arrays of it.
fn zone_of(ty: &DataType) -> Option<&str> {
    match (ty, element_type(ty)) {
        (DataType::Timestamp(_, zone), _) => zone.as_deref(),
        (_, element) => zone_of(element?),
    }
}

/// True for types that [`labelled`] changes.
fn is_labelled(ty: &DataType) -> bool {
    zone_of(ty).is_some()
}

/// A batch with the names and time zones of `schema`.
///
/// # Errors
/// Errors of Arrow if the schema does not fit.
pub(crate) fn renamed(batch: &RecordBatch, schema: &SchemaRef) -> datafusion::error::Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema.clone(), labelled_columns(batch.columns().to_vec(), schema), &options)?)
}

struct Namer;

impl VisitorMut for Namer {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_mut()
            && matches!(select.distinct, Some(Distinct::Distinct))
            && let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by
        {
            self.pre_visit_select(select)?;
            keys.iter_mut().for_each(|key| order_by_name(&mut key.expr, &select.projection));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.projection.iter_mut().for_each(name_expression);
        let names: Vec<Option<String>> = select.projection.iter().map(column_name).collect();
        let mut uses: HashMap<&str, usize> = HashMap::new();
        names.iter().flatten().for_each(|name| *uses.entry(name).or_default() += 1);
        let mut marks: HashMap<&str, usize> = HashMap::new();
        for (item, name) in select.projection.iter_mut().zip(&names) {
            if let Some(name) = name.as_deref().filter(|name| uses[name] > 1) {
                let mark = marks.entry(name).or_default();
                *mark += 1;
                rename(item, name, *mark);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Replaces a sort key of SELECT DISTINCT that is in the select list by its name: DataFusion does not find the expression
/// under its alias.
fn order_by_name(key: &mut Expr, items: &[SelectItem]) {
    // A number is a position in the select list.
    if matches!(key, Expr::Value(_)) {
        return;
    }
    let text = text(key.clone());
    let named = items.iter().find_map(|item| match item {
        SelectItem::ExprWithAlias { expr, alias } if !is_column(expr) && self::text(expr.clone()) == text => {
            Some(alias)
        }
        _ => None,
    });
    if let Some(alias) = named {
        *key = Expr::Identifier(alias.clone());
    }
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
}

/// Names an expression that is not a plain column.
fn name_expression(item: &mut SelectItem) {
    let SelectItem::UnnamedExpr(expr) = item else { return };
    if !is_column(expr) {
        let alias = Ident::with_quote('"', text(expr.clone()));
        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
    }
}

/// The name of a column of the result; `None` for wildcards and lists of aliases.
fn column_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(ident)) => Some(plain_ident(ident)),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(plain_ident),
        SelectItem::ExprWithAlias { alias, .. } => Some(plain_ident(alias)),
        _ => None,
    }
}

/// A repeated name with `marks` zero-width spaces.
pub(super) fn repeated(name: &str, marks: usize) -> Ident {
    Ident::with_quote('"', name.chars().chain(std::iter::repeat_n(REPEATED, marks)).collect::<String>())
}

/// Appends `marks` zero-width spaces to the name of a column.
fn rename(item: &mut SelectItem, name: &str, marks: usize) {
    let marked = repeated(name, marks);
    match item {
        SelectItem::UnnamedExpr(expr) => *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: marked },
        SelectItem::ExprWithAlias { alias, .. } => *alias = marked,
        _ => {}
    }
}

/// Renames the plain columns beside a wildcard in the outermost select list: the wildcard may contain them.
fn name_beside_wildcard(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => {
            let is_wildcard =
                |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
            if !select.projection.iter().any(is_wildcard) {
                return;
            }
            for item in &mut select.projection {
                if let (SelectItem::UnnamedExpr(_), Some(name)) = (&*item, column_name(item)) {
                    rename(item, &name, 1);
                }
            }
        }
        SetExpr::Query(query) => name_beside_wildcard(&mut query.body),
        SetExpr::SetOperation { left, .. } => name_beside_wildcard(left),
        _ => {}
    }
}

/// The name of an expression without an alias.
fn text(mut expr: Expr) -> String {
    let _ = walk_mut(&mut expr, &mut Text);
    match expr {
        Expr::Value(value) if matches!(value.value, datafusion::sql::sqlparser::ast::Value::Null) => "NULL".into(),
        expr => expr.to_string(),
    }
}

/// Brings an expression into the form of its name.
struct Text;

impl VisitorMut for Text {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(function) => {
                for part in &mut function.name.0 {
                    if let ObjectNamePart::Identifier(ident) = part {
                        *ident = Ident { value: plain_ident(ident), ..ident.clone() };
                    }
                }
            }
            Expr::BinaryOp { .. } => *expr = Expr::Nested(Box::new(expr.clone())),
            Expr::Nested(inner) if matches!(**inner, Expr::Nested(_)) => *expr = (**inner).clone(),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    fn named(sql: &str) -> String {
        let mut statement = single(sql).unwrap().parser().parse_statement().unwrap();
        name(&mut statement);
        statement.to_string().replace(REPEATED, "*")
    }

    #[test]
    fn expressions_have_their_text_as_name() {
        let names = |list: &str| named(&format!("SELECT {list} FROM t"));
        assert_eq!(names("a, t.b, c AS x"), "SELECT a, t.b, c AS x FROM t");
        assert_eq!(names("SUM(a)"), "SELECT SUM(a) AS \"sum(a)\" FROM t");
        assert_eq!(names("'x'"), "SELECT 'x' AS \"'x'\" FROM t");
        assert_eq!(names("a + b * 2"), "SELECT a + b * 2 AS \"(a + (b * 2))\" FROM t");
        assert_eq!(names("(a + b) * 2"), "SELECT (a + b) * 2 AS \"((a + b) * 2)\" FROM t");
        assert_eq!(named("SELECT 1 WHERE (SELECT MAX(a) FROM t) > 1").matches("\"max(a)\"").count(), 1);
    }

    #[test]
    fn repeated_names_are_marked() {
        assert_eq!(named("SELECT a, t.a, b FROM t"), "SELECT a AS \"a*\", t.a AS \"a**\", b FROM t");
        assert_eq!(named("SELECT 1, 1"), "SELECT 1 AS \"1*\", 1 AS \"1**\"");
        assert_eq!(named("SELECT *, a FROM t"), "SELECT *, a AS \"a*\" FROM t");
        assert_eq!(named("SELECT b FROM (SELECT t.*, u.b FROM t, u) q"), "SELECT b FROM (SELECT t.*, u.b FROM t, u) q");
        assert_eq!((shown("a\u{200b}\u{200b}"), shown("a"), shown("")), ("a", "a", ""));
    }
}
