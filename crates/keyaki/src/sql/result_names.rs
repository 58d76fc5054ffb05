//! PostgreSQL's names of result columns.
//!
//! Statements have the names of [`super::columns`]: an expression without an alias is named by its text. PostgreSQL names it by
//! its function, its column or its type, and other expressions `?column?`. Servers describe results with these names. Names
//! within a statement, and those of views and tables, are not affected.
//!
//! | expression | name |
//! |---|---|
//! | `count(*)`, `COALESCE(a, 1)`, `EXISTS (…)`, `ARRAY[…]` | `count`, `coalesce`, `exists`, `array` |
//! | `a::int`, `1::int`, `DATE '…'`, `true` | `a`, `int4`, `date`, `bool` |
//! | `(SELECT max(a) FROM t)` | the name of its column |
//! | `CASE … ELSE a END`, `CASE … ELSE 1 END` | `a`, `case` |
//! | all others | `?column?` |

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::sql::sqlparser::ast::{
    AccessExpr, DataType, Expr, Query, SelectItem, SetExpr, Statement, TrimWhereField, Value,
};

use super::names::plain_ident;
use super::{Parsed, parse, pg_catalog, split};
use crate::Result;
use crate::catalog::types;

/// The name of an expression without another one.
const UNNAMED: &str = "?column?";

/// PostgreSQL's names of the columns of a statement's result, for servers.
///
/// ```
/// # use std::sync::Arc;
/// # use arrow::datatypes::{DataType, Field, Schema};
/// let own = Arc::new(Schema::new(vec![Field::new("count(*)", DataType::Int64, false)]));
/// assert!(keyaki::ResultNames::are_needed(&own));
/// let shown = keyaki::ResultNames::of("SELECT count(*) FROM t").apply(&own);
/// assert_eq!(shown.field(0).name(), "count");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResultNames(Vec<Item>);

/// An item of a select list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// Any number of columns.
    Columns,
    /// A column with a name of its own.
    Column,
    /// An expression with this name.
    Expression(String),
}

impl ResultNames {
    /// The names for the results of a statement; none for statements that cannot be parsed.
    pub fn of(sql: &str) -> ResultNames {
        ResultNames(items(sql).unwrap_or_default())
    }

    /// True if a column may be named by the text of an expression.
    pub fn are_needed(schema: &Schema) -> bool {
        let is_plain = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii())
                && !["NULL", "true", "false"].contains(&name)
        };
        !schema.fields().iter().all(|field| is_plain(field.name()))
    }

    /// The schema of a result of the statement with these names.
    pub fn apply(&self, schema: &SchemaRef) -> SchemaRef {
        let count = schema.fields().len();
        let names = |items: &mut dyn Iterator<Item = &Item>| -> Vec<Option<String>> {
            let known = items.take_while(|item| **item != Item::Columns);
            known.map(|item| if let Item::Expression(name) = item { Some(name.clone()) } else { None }).collect()
        };
        let first = names(&mut self.0.iter());
        // The columns that a wildcard stands for are between these.
        let last = if first.len() < self.0.len() { names(&mut self.0.iter().rev()) } else { Vec::new() };
        let has_all = first.len() == self.0.len();
        if first.len() + last.len() > count || (has_all && first.len() != count) {
            return schema.clone();
        }
        let name = |place: usize| {
            let from_end = last.get(count - 1 - place);
            first.get(place).or(from_end).and_then(Option::as_ref)
        };
        let fields = schema.fields().iter().enumerate().map(|(place, field)| match name(place) {
            Some(name) => Arc::new(Field::clone(field).with_name(name)),
            None => field.clone(),
        });
        Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
    }
}

fn items(sql: &str) -> Result<Vec<Item>> {
    match parse(&split::single(sql)?)? {
        Parsed::Sql(statement) => Ok(of_statement(&statement)),
        _ => Ok(Vec::new()),
    }
}

fn of_statement(statement: &Statement) -> Vec<Item> {
    let returning = match statement {
        Statement::Query(query) => return of_body(&query.body),
        Statement::Insert(insert) => &insert.returning,
        Statement::Update(update) => &update.returning,
        Statement::Delete(delete) => &delete.returning,
        _ => &None,
    };
    returning.iter().flatten().map(of_item).collect()
}

fn of_body(body: &SetExpr) -> Vec<Item> {
    match body {
        SetExpr::Select(select) => select.projection.iter().map(of_item).collect(),
        SetExpr::Query(query) => of_body(&query.body),
        SetExpr::SetOperation { left, .. } => of_body(left),
        SetExpr::Insert(statement) | SetExpr::Update(statement) | SetExpr::Delete(statement) => of_statement(statement),
        _ => Vec::new(),
    }
}

fn of_item(item: &SelectItem) -> Item {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(_) | Expr::CompoundIdentifier(_)) => Item::Column,
        SelectItem::UnnamedExpr(expr) => Item::Expression(named(expr).map_or_else(|| UNNAMED.into(), |(name, _)| name)),
        SelectItem::ExprWithAlias { .. } => Item::Column,
        _ => Item::Columns,
    }
}

/// How good a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    /// A cast of the expression, or CASE around it, has this name, too.
    Strong,
    Weak,
}

/// The name of an expression; `None` if it has none.
fn named(expr: &Expr) -> Option<(String, Strength)> {
    let strong = |name: &str| Some((name.to_string(), Strength::Strong));
    match expr {
        Expr::Identifier(column) => strong(&plain_ident(column)),
        Expr::CompoundIdentifier(parts) => strong(&plain_ident(parts.last()?)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|access| match access {
                AccessExpr::Dot(Expr::Identifier(field)) => Some(plain_ident(field)),
                _ => None,
            });
            field.map_or_else(|| named(root), |field| strong(&field))
        }
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => named(inner),
        Expr::Function(function) => strong(&plain_ident(function.name.0.last()?.as_ident()?)),
        Expr::Cast { expr, data_type, .. } => match named(expr) {
            Some((name, Strength::Strong)) => strong(&name),
            _ => Some((type_name(data_type), Strength::Weak)),
        },
        Expr::TypedString(typed) => Some((type_name(&typed.data_type), Strength::Weak)),
        Expr::Interval(_) => Some(("interval".into(), Strength::Weak)),
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => Some(("bool".into(), Strength::Weak)),
        Expr::Case { else_result, .. } => match else_result.as_deref().and_then(named) {
            Some((name, Strength::Strong)) => strong(&name),
            _ => Some(("case".into(), Strength::Weak)),
        },
        Expr::Exists { negated: false, .. } => strong("exists"),
        Expr::Subquery(query) => of_subquery(query),
        Expr::Array(_) => strong("array"),
        Expr::Tuple(_) => strong("row"),
        Expr::Extract { .. } => strong("extract"),
        Expr::Ceil { .. } => strong("ceil"),
        Expr::Floor { .. } => strong("floor"),
        Expr::Position { .. } => strong("position"),
        Expr::Substring { shorthand: true, .. } => strong("substr"),
        Expr::Substring { .. } => strong("substring"),
        Expr::Trim { trim_where, .. } => strong(match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            Some(TrimWhereField::Both) | None => "btrim",
        }),
        Expr::Overlay { .. } => strong("overlay"),
        Expr::AtTimeZone { .. } => strong("timezone"),
        _ => None,
    }
}

/// The name of the column of a subquery.
fn of_subquery(query: &Query) -> Option<(String, Strength)> {
    let mut body = query.body.as_ref();
    let item = loop {
        match body {
            SetExpr::Select(select) => break select.projection.first()?,
            SetExpr::Query(query) => body = query.body.as_ref(),
            SetExpr::SetOperation { left, .. } => body = left.as_ref(),
            _ => return None,
        }
    };
    let name = match item {
        SelectItem::UnnamedExpr(expr) => named(expr).map_or_else(|| UNNAMED.into(), |(name, _)| name),
        SelectItem::ExprWithAlias { alias, .. } => plain_ident(alias),
        _ => return None,
    };
    Some((name, Strength::Strong))
}

/// The name of a type in `pg_type`, for an array that of its elements.
fn type_name(ty: &DataType) -> String {
    match (ty, types::from_sql(ty)) {
        (DataType::Char(_) | DataType::Character(_), _) => "bpchar".into(),
        (DataType::Varchar(_) | DataType::CharacterVarying(_) | DataType::CharVarying(_), _) => "varchar".into(),
        (_, Ok(ty)) => pg_catalog::element_type_name(ty).into(),
        (DataType::Custom(name, _), _) => match name.0.last().and_then(|part| part.as_ident()) {
            Some(ident) => plain_ident(ident),
            None => ty.to_string().to_ascii_lowercase(),
        },
        _ => ty.to_string().to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType as ArrowType;

    use super::*;

    fn name_of(expr: &str) -> String {
        match &ResultNames::of(&format!("SELECT {expr}")).0[..] {
            [Item::Expression(name)] => name.clone(),
            other => format!("{other:?}"),
        }
    }

    /// The names in PostgreSQL 15.
    #[test]
    fn expressions_are_named_as_in_postgresql() {
        for (expr, name) in [
            ("count(*)", "count"),
            ("pg_catalog.now()", "now"),
            ("row_number() OVER (ORDER BY a)", "row_number"),
            ("1", "?column?"),
            ("'x'", "?column?"),
            ("NULL", "?column?"),
            ("$1", "?column?"),
            ("a + 1", "?column?"),
            ("-a", "?column?"),
            ("a IS NULL", "?column?"),
            ("NOT EXISTS (SELECT 1)", "?column?"),
            ("a IN (SELECT 1)", "?column?"),
            ("true", "bool"),
            ("$1::int", "int4"),
            ("a::text", "a"),
            ("(a + 1)::bigint", "int8"),
            ("'{1}'::int[]", "int4"),
            ("1::decimal(5, 2)", "numeric"),
            ("'{}'::jsonb", "jsonb"),
            ("'x'::varchar(3)", "varchar"),
            ("'x'::char(3)", "bpchar"),
            ("'t'::regclass", "regclass"),
            ("count(*)::int", "count"),
            ("CAST(max(b) AS text)", "max"),
            ("DATE '2026-01-01'", "date"),
            ("INTERVAL '1 day'", "interval"),
            ("COALESCE(a, 1)", "coalesce"),
            ("NULLIF(a, 1)", "nullif"),
            ("CASE WHEN a THEN b END", "case"),
            ("CASE WHEN a THEN 1 ELSE b END", "b"),
            ("EXISTS (SELECT 1)", "exists"),
            ("ARRAY[1, 2]", "array"),
            ("ARRAY(SELECT 1)", "array"),
            ("(SELECT max(a) FROM t)", "max"),
            ("(SELECT 1 AS x)", "x"),
            ("(SELECT 1)", "?column?"),
            ("(a)", "a"),
            ("b[1]", "b"),
            ("trim(a)", "btrim"),
            ("extract(year FROM a)", "extract"),
            ("a AT TIME ZONE 'UTC'", "timezone"),
            ("current_date", "current_date"),
        ] {
            assert_eq!(name_of(expr), name, "{expr}");
        }
    }

    #[test]
    fn names_of_results() {
        let schema = |names: &[&str]| {
            let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, ArrowType::Int64, true)).collect();
            Arc::new(Schema::new(fields))
        };
        let shown = |sql: &str, names: &[&str]| {
            let shown = ResultNames::of(sql).apply(&schema(names));
            shown.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown("SELECT a, min(a), b AS x FROM t", &["a", "min(a)", "x"]), ["a", "min", "x"]);
        assert_eq!(
            shown("SELECT 1, *, max(a), 2 FROM t", &["1", "a", "b", "max(a)", "2"]),
            ["?column?", "a", "b", "max", "?column?"]
        );
        assert_eq!(
            shown("SELECT 1, t.*, 2, u.*, 3 FROM t", &["1", "a", "2", "b", "3"]),
            ["?column?", "a", "2", "b", "?column?"]
        );
        assert_eq!(shown("SELECT 1 UNION SELECT 2", &["1"]), ["?column?"]);
        assert_eq!(shown("INSERT INTO t VALUES (1) RETURNING a + 1", &["(a + 1)"]), ["?column?"]);
        // The names do not fit.
        assert_eq!(shown("SELECT count(*)", &["x", "y"]), ["x", "y"]);
        assert_eq!(shown("VALUES (1)", &["column1"]), ["column1"]);
        assert_eq!(shown("SELECT (", &["x"]), ["x"]);
        assert!(!ResultNames::are_needed(&schema(&["a", "Größe", "x_1"])));
        for name in ["1", "NULL", "a.b", "f(x)"] {
            assert!(ResultNames::are_needed(&schema(&["a", name])), "{name}");
        }
    }
}
