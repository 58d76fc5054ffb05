//! Forms of SQL for which DataFusion knows others.
//!
//! | form | becomes |
//! |---|---|
//! | `FETCH FIRST n ROWS ONLY` | `LIMIT n` |
//! | `FETCH FIRST n ROWS WITH TIES` | `QUALIFY rank() OVER (ORDER BY …) <= n` |
//! | `LIMIT 1.5`, `LIMIT '1'`, also of OFFSET | `LIMIT 1.5::BIGINT` |
//! | `SELECT generate_series(1, 3)` | `unnest` of the array |
//! | `ORDER BY ALL` | `ORDER BY 1, 2, …` |
//! | `GROUP BY ()` | `HAVING count(*) >= 0`, which makes the query an aggregate of all rows |
//! | `~a` | `(a # -1)`: all bits are inverted |
//! | `a COLLATE "C"` | `a` |
//! | `ARRAY(SELECT a …)` | a scalar subquery with `array_agg`, and `[]` for no rows |
//! | `a::VARCHAR(n)` | `left(a::TEXT, n)`: an explicit cast truncates |
//! | `current_role`, `user` | `current_role()` |
//! | functions | see [`super::calls`] |
//! | parts of times, OVERLAPS | see [`super::time_calls`] |
//! | literals of texts | see [`super::untyped`] |
//! | patterns | see [`super::patterns`] |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, DataType, Expr, Fetch, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArgumentList, FunctionArguments, GroupByExpr, LimitClause, ObjectName, OrderBy, OrderByExpr, OrderByKind,
    Query, Select, SelectItem, SetExpr, TableFactor, UnaryOperator, Value, VisitMut, VisitorMut, WindowType,
};
use keyaki_store::ColumnType;

use super::json_calls::function_call;
use super::names::plain_ident;
use super::parameters::call;
use super::{calls, patterns, time_calls, untyped};
use crate::catalog::{SqlType, types};
use crate::sql::visit::{visit_expressions, walk_mut};
use crate::{Error, Result};

/// Replaces the forms in a statement or an expression.
///
/// # Errors
/// `Unsupported` for a collation that does not compare bytes, errors of [`calls::replaced`].
pub(crate) fn replace(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut Replace::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Accepts the collations that compare bytes, as Keyaki does.
///
/// # Errors
/// `Unsupported` for other collations.
pub(super) fn check_collation(collation: &ObjectName) -> Result<()> {
    const BYTES: [&str; 6] = ["c", "posix", "binary", "ucs_basic", "c.utf8", "c.utf-8"];
    let name = collation.0.last().and_then(|name| name.as_ident());
    match name.is_some_and(|name| BYTES.contains(&name.value.to_ascii_lowercase().as_str())) {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "COLLATE {collation} (texts are compared by their bytes; use lower(…) to ignore case)"
        ))),
    }
}

#[derive(Default)]
struct Replace {
    /// For each query around the expression, true if its literals get marks.
    is_plain: Vec<bool>,
}

impl VisitorMut for Replace {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.is_plain.push(match query.body.as_ref() {
            // ORDER BY has the keys, too.
            SetExpr::Select(select) => !has_sets(select),
            // The values of a column are converted to a common type when they are planned.
            SetExpr::Values(_) => false,
            _ => true,
        });
        if let Some(order) = &mut query.order_by {
            order_by_all(order, &query.body);
        }
        let Some(Fetch { with_ties, percent: false, quantity }) = &query.fetch else {
            return ControlFlow::Continue(());
        };
        let mut rows = quantity.clone().map_or_else(|| crate::sql::parse_expr("1"), Ok);
        if let Ok(rows) = &mut rows
            && let Err(error) = whole_number(rows)
        {
            return ControlFlow::Break(error);
        }
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return ControlFlow::Break(error),
        };
        if *with_ties {
            return match with_ties_as_rank(query, rows) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            };
        }
        let none = LimitClause::LimitOffset { limit: None, offset: None, limit_by: Vec::new() };
        if let LimitClause::LimitOffset { limit: limit @ None, .. } = query.limit_clause.get_or_insert(none) {
            *limit = Some(rows);
            query.fetch = None;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.is_plain.pop();
        match query.limit_clause.as_mut().map_or(Ok(()), whole_numbers) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        self.is_plain.push(!has_sets(select));
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item
                && is_series(expr)
            {
                match call("unnest(NULL)", [expr.clone()]) {
                    Ok(rows) => *expr = rows,
                    Err(error) => return ControlFlow::Break(error),
                }
            }
        }
        match group_by_nothing(select) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<Error> {
        self.is_plain.pop();
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Err(error) = untyped::check(expr) {
            return ControlFlow::Break(error);
        }
        let replaced = match expr {
            Expr::UnaryOp { op: UnaryOperator::BitwiseNot, expr } => call("(NULL # -1)", [(**expr).clone()]).map(Some),
            Expr::Collate { expr, collation } => check_collation(collation).map(|()| Some((**expr).clone())),
            Expr::Cast { .. } => truncated(expr),
            Expr::Extract { .. } | Expr::BinaryOp { op: BinaryOperator::Overlaps, .. } => time_calls::part(expr),
            // The parser has keywords for `current_user` and `session_user` only.
            Expr::Identifier(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("current_role") => {
                call("current_role()", []).map(Some)
            }
            Expr::Function(Function { name, args: FunctionArguments::None, .. })
                if name.to_string().eq_ignore_ascii_case("user") =>
            {
                call("current_role()", []).map(Some)
            }
            Expr::Function(function) => match array_of(function) {
                Ok(None) => match calls::replaced(function) {
                    Ok(None) => patterns::replaced(expr),
                    replaced => replaced,
                },
                array => array,
            },
            _ => patterns::replaced(expr),
        };
        match replaced {
            Ok(Some(replaced)) => *expr = replaced,
            // The keys of grouping sets are compared with other expressions by their names.
            Ok(None) if self.is_plain.last() == Some(&false) => {}
            Ok(None) => untyped::mark(expr),
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

fn has_sets(select: &Select) -> bool {
    match &select.group_by {
        GroupByExpr::Expressions(keys, modifiers) => {
            let is_set = |key: &Expr| matches!(key, Expr::Rollup(_) | Expr::Cube(_) | Expr::GroupingSets(_));
            !modifiers.is_empty() || keys.iter().any(is_set)
        }
        GroupByExpr::All(modifiers) => !modifiers.is_empty(),
    }
}

/// True for a series in a select list, which has a row for each value. As an argument it is an array.
fn is_series(expr: &Expr) -> bool {
    match expr {
        Expr::Function(function) => calls::is_call(function, "generate_series"),
        _ => false,
    }
}

/// `FETCH FIRST n ROWS WITH TIES`: the rows whose rank is at most `n` behind the offset.
///
/// # Errors
/// `Syntax` without ORDER BY; `Unsupported` for other queries than SELECT, and with DISTINCT.
fn with_ties_as_rank(query: &mut Query, rows: Expr) -> Result<()> {
    let unsupported = |what: &str| Err(Error::Unsupported(format!("WITH TIES {what} (use a subquery)")));
    let keys = match &query.order_by {
        Some(OrderBy { kind: OrderByKind::Expressions(keys), interpolate: None }) if !keys.is_empty() => keys.clone(),
        _ => return Err(Error::syntax("WITH TIES cannot be specified without ORDER BY clause")),
    };
    let SetExpr::Select(select) = query.body.as_mut() else { return unsupported("of set operations") };
    if select.distinct.is_some() {
        return unsupported("with DISTINCT");
    }
    let result = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
        _ => None,
    };
    let mut ranked = Vec::with_capacity(keys.len());
    for key in keys {
        let expr = match &key.expr {
            Expr::Value(value) if matches!(value.value, Value::Number(..)) => {
                let position = value.to_string().parse::<usize>().ok().and_then(|position| position.checked_sub(1));
                let is_plain = select.projection.iter().all(|item| result(item).is_some());
                match position.and_then(|position| result(select.projection.get(position)?)) {
                    Some(expr) if is_plain => expr,
                    _ => return unsupported("with this position in ORDER BY"),
                }
            }
            Expr::Identifier(name) => {
                let named = select.projection.iter().find_map(|item| match item {
                    SelectItem::ExprWithAlias { expr, alias } if plain_ident(alias) == plain_ident(name) => Some(expr),
                    _ => None,
                });
                named.cloned().unwrap_or_else(|| key.expr.clone())
            }
            expr => expr.clone(),
        };
        ranked.push(OrderByExpr { expr, ..key });
    }
    let limit = match &query.limit_clause {
        None => rows,
        Some(LimitClause::LimitOffset { limit: None, offset: Some(offset), limit_by }) if limit_by.is_empty() => {
            call("(NULL) + (NULL)", [rows, offset.value.clone()])?
        }
        Some(_) => return unsupported("with LIMIT"),
    };
    let mut is_first = call("rank() OVER (ORDER BY 1) <= (NULL)", [limit])?;
    if let Expr::BinaryOp { left, .. } = &mut is_first
        && let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = left.as_mut()
    {
        window.order_by = ranked;
    }
    select.qualify = Some(match select.qualify.take() {
        Some(qualify) => call("(NULL) AND NULL", [qualify, is_first])?,
        None => is_first,
    });
    query.fetch = None;
    Ok(())
}

/// Converts literals of LIMIT and OFFSET that are not whole numbers.
fn whole_numbers(clause: &mut LimitClause) -> Result<()> {
    let numbers = match clause {
        LimitClause::LimitOffset { limit, offset, .. } => {
            [limit.as_mut(), offset.as_mut().map(|offset| &mut offset.value)]
        }
        LimitClause::OffsetCommaLimit { offset, limit } => [Some(limit), Some(offset)],
    };
    numbers.into_iter().flatten().try_for_each(whole_number)
}

fn whole_number(number: &mut Expr) -> Result<()> {
    let is_whole = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_converted = match number {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => !is_whole(text),
            Value::SingleQuotedString(_) => true,
            _ => false,
        },
        _ => false,
    };
    if is_converted {
        *number = call("(NULL)::BIGINT", [number.clone()])?;
    }
    Ok(())
}

/// `ARRAY(SELECT a …)`: the array of a query's rows.
fn array_of(function: &Function) -> Result<Option<Expr>> {
    let FunctionArguments::Subquery(query) = &function.args else { return Ok(None) };
    if !function.name.to_string().eq_ignore_ascii_case("array") {
        return Ok(None);
    }
    if width(&query.body).is_some_and(|width| width != 1) {
        return Err(Error::Grouping("subquery must return only one column".into()));
    }
    let array = match array_of_select(query) {
        Some(array) => array,
        None => {
            let mut array = crate::sql::parse_query("SELECT array_agg(q.element) FROM (SELECT 1) AS q(element)")?;
            if let SetExpr::Select(select) = array.body.as_mut()
                && let TableFactor::Derived { subquery, .. } = &mut select.from[0].relation
            {
                *subquery = query.clone();
            }
            array
        }
    };
    call("coalesce(NULL, make_array())", [Expr::Subquery(array)]).map(Some)
}

/// The query with an aggregate of its column in place of the column; `None` for queries that are more than a selection of
/// rows. Functions may be aggregates.
fn array_of_select(query: &Query) -> Option<Box<Query>> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let keys = match &query.order_by {
        None => Vec::new(),
        Some(OrderBy { kind: OrderByKind::Expressions(keys), interpolate: None }) => keys.clone(),
        Some(_) => return None,
    };
    let has_groups = match &select.group_by {
        GroupByExpr::Expressions(keys, modifiers) => !keys.is_empty() || !modifiers.is_empty(),
        GroupByExpr::All(_) => true,
    };
    if query.limit_clause.is_some()
        || query.fetch.is_some()
        || select.distinct.is_some()
        || select.having.is_some()
        || select.qualify.is_some()
        || has_groups
    {
        return None;
    }
    let (element, alias) = match &select.projection[..] {
        [SelectItem::UnnamedExpr(expr)] => (expr.clone(), None),
        [SelectItem::ExprWithAlias { expr, alias }] => (expr.clone(), Some(alias)),
        _ => return None,
    };
    let has_function = |expr: &Expr| {
        visit_expressions(expr, |expr| match expr {
            Expr::Function(_) | Expr::Subquery(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .is_break()
    };
    if has_function(&element) || keys.iter().any(|key| has_function(&key.expr)) {
        return None;
    }
    let keys = keys.into_iter().map(|key| match &key.expr {
        Expr::Value(value) if matches!(value.value, Value::Number(..)) => OrderByExpr { expr: element.clone(), ..key },
        Expr::Identifier(name) if alias.is_some_and(|alias| plain_ident(alias) == plain_ident(name)) => {
            OrderByExpr { expr: element.clone(), ..key }
        }
        _ => key,
    });
    let keys: Vec<OrderByExpr> = keys.collect();
    let mut array = query.clone();
    array.order_by = None;
    let SetExpr::Select(select) = array.body.as_mut() else { return None };
    let clauses = if keys.is_empty() { Vec::new() } else { vec![FunctionArgumentClause::OrderBy(keys)] };
    let args = FunctionArgumentList {
        duplicate_treatment: None,
        args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(element))],
        clauses,
    };
    let Expr::Function(mut aggregate) = function_call("array_agg", Vec::new()) else { return None };
    aggregate.args = FunctionArguments::List(args);
    select.projection = vec![SelectItem::UnnamedExpr(Expr::Function(aggregate))];
    Some(Box::new(array))
}

/// The first characters in place of a cast to a text of limited length.
fn truncated(cast: &Expr) -> Result<Option<Expr>> {
    let Expr::Cast { kind, expr, data_type, array, format } = cast else { return Ok(None) };
    // Errors of types are those of the cast.
    let Ok(SqlType { column: ColumnType::Text, max_chars: Some(chars), .. }) = types::from_sql(data_type) else {
        return Ok(None);
    };
    let text = Expr::Cast {
        kind: kind.clone(),
        expr: expr.clone(),
        data_type: DataType::Text,
        array: *array,
        format: format.clone(),
    };
    call(&format!("left(NULL, {chars})"), [text]).map(Some)
}

/// Replaces ORDER BY ALL by the positions of all columns. Beside a wildcard, DataFusion finds the columns.
fn order_by_all(order: &mut OrderBy, body: &SetExpr) {
    let OrderByKind::Expressions(keys) = &order.kind else { return };
    let [OrderByExpr { expr: Expr::Identifier(name), options, with_fill: None }] = &keys[..] else { return };
    if name.quote_style.is_some() || !name.value.eq_ignore_ascii_case("all") {
        return;
    }
    order.kind = match width(body) {
        Some(width) => {
            let key = |position: usize| OrderByExpr {
                expr: Expr::Value(Value::Number(position.to_string(), false).into()),
                options: *options,
                with_fill: None,
            };
            OrderByKind::Expressions((1..=width).map(key).collect())
        }
        None => OrderByKind::All(*options),
    };
}

/// The number of columns of a query; `None` if it has a wildcard.
pub(super) fn width(body: &SetExpr) -> Option<usize> {
    match body {
        SetExpr::Select(select) => {
            let is_one =
                |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
            select.projection.iter().all(is_one).then_some(select.projection.len())
        }
        SetExpr::Query(query) => width(&query.body),
        SetExpr::SetOperation { left, .. } => width(left),
        SetExpr::Values(values) => values.rows.first().map(|row| row.len()),
        _ => None,
    }
}

/// Removes the empty set from GROUP BY. A query that groups by nothing else becomes an aggregate.
fn group_by_nothing(select: &mut Select) -> Result<()> {
    let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by else { return Ok(()) };
    let count = keys.len();
    keys.retain(|key| !matches!(key, Expr::Tuple(values) if values.is_empty()));
    if keys.len() == count || !keys.is_empty() || !modifiers.is_empty() {
        return Ok(());
    }
    let is_group = crate::sql::parse_expr("count(*) >= 0")?;
    select.having = Some(match select.having.take() {
        Some(having) => Expr::BinaryOp {
            left: Box::new(Expr::Nested(Box::new(having))),
            op: BinaryOperator::And,
            right: Box::new(is_group),
        },
        None => is_group,
    });
    Ok(())
}
