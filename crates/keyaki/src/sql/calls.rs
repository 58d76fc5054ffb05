//! Functions that become expressions of other functions.
//!
//! | function | becomes |
//! |---|---|
//! | `mod(a, b)` | `(a % b)` |
//! | `LOCALTIMESTAMP`, `LOCALTIME` | casts of `now()`, with the time zone of the session |
//! | `age(a, b)` | the function of two timestamps; those with time zone are converted to local time |
//! | `age(a)` | `age(current_date, a)` |
//! | `num_nulls(a, …)`, `num_nonnulls(a, …)` | sums of `a IS [NOT] NULL` |
//! | `array_upper(a, n)`, `array_lower(a, n)` | `array_length(a, n)`, 1; NULL for an empty array |
//! | `generate_subscripts(a, n)` | `generate_series(1, array_length(a, n))` |
//! | `array_remove(a, x)`, `array_replace(a, x, y)` | the functions that change all occurrences |
//! | `strftime(t, format)`, `strftime(format, t)` | `to_char(t, format)` |
//! | `encode(b, 'base64')` | with padding, as in PostgreSQL |
//! | `iif(c, a, b)`, `if(c, a, b)` | CASE |
//! | `hex(b)`, `unhex(s)` | `encode`, `decode` |
//! | `every(c)`, `total(a)`, `group_concat(a, s)` | `bool_and`, `sum`, `string_agg` |
//! | `regexp_matches(s, p)`, `regexp_split_to_table(s, p)`, `string_to_table(s, d)` | `unnest` of arrays |
//! | `make_timestamptz(…)` | a cast of `make_timestamp(…)`, with the time zone of the session |
//! | parts of times | see [`super::time_calls`] |
//! | `mode() WITHIN GROUP (ORDER BY a)` | `mode(a)`, with DESC `mode_desc(a)` |
//! | `string_agg(a, d)` with a delimiter that may differ from row to row | `string_agg_by_row(a, d)` |
//! | functions of JSON | see [`super::json_calls`] |
//! | `percentile_disc(p) WITHIN GROUP (ORDER BY a)`, `quantile_disc(a, p)` | an element of `array_agg(a ORDER BY a)` |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArgumentList, FunctionArguments,
    Ident, ObjectName, OrderByExpr, UnaryOperator, Value,
};

use super::names::plain_ident;
use super::parameters::call;
use super::visit::visit_expressions;
use crate::values::fractions::PLACE;
use crate::values::mode::GREATEST_MODE;
use crate::values::regexps::ALL_MATCHES;
use crate::values::string_agg::BY_ROW;
use crate::{Error, Result};

/// The expression in place of a call; `None` for other functions.
///
/// # Errors
/// `Unsupported` for forms that the other expression does not have.
pub(super) fn replaced(function: &Function) -> Result<Option<Expr>> {
    let [name] = &function.name.0[..] else { return Ok(None) };
    let Some(name) = name.as_ident().map(plain_ident) else { return Ok(None) };
    if let Some(expr) = super::json_calls::replaced(&name, function)? {
        return Ok(Some(expr));
    }
    if let "mode" | "percentile_disc" | "quantile_disc" = name.as_str() {
        return ordered(&name, function);
    }
    if let "every" | "total" | "group_concat" | "string_agg" = name.as_str() {
        return aggregate(&name, function);
    }
    if function.over.is_some() || function.filter.is_some() || !function.within_group.is_empty() {
        return Ok(None);
    }
    let Some(args) = arguments(function) else { return Ok(None) };
    Ok(Some(match (name.as_str(), &args[..]) {
        ("mod", [a, b]) => call("(NULL % NULL)", [a.clone(), b.clone()])?,
        ("localtimestamp", []) => crate::sql::parse_expr("CAST(now() AS TIMESTAMP)")?,
        ("localtime", []) => crate::sql::parse_expr("CAST(CAST(now() AS TIMESTAMP) AS TIME)")?,
        ("localtimestamp" | "localtime", [_]) => {
            let name = name.to_ascii_uppercase();
            return Err(Error::Unsupported(format!(
                "{name} with a precision (use date_trunc('second', LOCALTIMESTAMP))"
            )));
        }
        ("age", [a, b]) => call("age(CAST(NULL AS TIMESTAMP), CAST(NULL AS TIMESTAMP))", [a.clone(), b.clone()])?,
        ("age", [a]) => call("age(CAST(current_date AS TIMESTAMP), CAST(NULL AS TIMESTAMP))", [a.clone()])?,
        ("num_nulls" | "num_nonnulls", [first, others @ ..]) => {
            let test = match name.as_str() {
                "num_nulls" => "CAST(NULL IS NULL AS INTEGER)",
                _ => "CAST(NULL IS NOT NULL AS INTEGER)",
            };
            let first = call(test, [first.clone()])?;
            let sum =
                others.iter().try_fold(first, |sum, arg| call("NULL + NULL", [sum, call(test, [arg.clone()])?]))?;
            Expr::Nested(Box::new(sum))
        }
        ("array_remove", [array, element]) => call("array_remove_all(NULL, NULL)", [array.clone(), element.clone()])?,
        ("array_replace", [array, from, to]) => {
            call("array_replace_all(NULL, NULL, NULL)", [array.clone(), from.clone(), to.clone()])?
        }
        ("array_upper", [array, dimension]) => {
            call("nullif(CAST(array_length(NULL, NULL) AS INTEGER), 0)", [array.clone(), dimension.clone()])?
        }
        ("array_lower", [array, dimension]) => {
            call("CASE WHEN array_length(NULL, NULL) > 0 THEN 1 END", [array.clone(), dimension.clone()])?
        }
        ("generate_subscripts", [array, dimension]) => call(
            "unnest(generate_series(1, coalesce(CAST(array_length(NULL, NULL) AS INTEGER), 0)))",
            [array.clone(), dimension.clone()],
        )?,
        ("iif" | "if", [condition, value]) => call("CASE WHEN NULL THEN NULL END", [condition.clone(), value.clone()])?,
        ("iif" | "if", [condition, value, other]) => {
            call("CASE WHEN NULL THEN NULL ELSE NULL END", [condition.clone(), value.clone(), other.clone()])?
        }
        ("date", [value]) => call("CAST(NULL AS DATE)", [value.clone()])?,
        ("hex", [bytes]) => call("upper(encode(NULL, 'hex'))", [bytes.clone()])?,
        ("unhex", [text]) => call("decode(NULL, 'hex')", [text.clone()])?,
        ("make_timestamptz", [_, _, _, _, _, _]) => {
            let timestamp = Function { name: ObjectName::from(vec![Ident::new("make_timestamp")]), ..function.clone() };
            call("CAST(NULL AS TIMESTAMP WITH TIME ZONE)", [Expr::Function(timestamp)])?
        }
        ("regexp_matches", [text, pattern]) => {
            call(&format!("unnest({ALL_MATCHES}(NULL, NULL))"), [text.clone(), pattern.clone()])?
        }
        ("regexp_matches", [text, pattern, flags]) => {
            call(&format!("unnest({ALL_MATCHES}(NULL, NULL, NULL))"), [text.clone(), pattern.clone(), flags.clone()])?
        }
        ("regexp_split_to_table" | "string_to_table", [_, _] | [_, _, _]) => {
            let array = if name == "string_to_table" { "string_to_array" } else { "regexp_split_to_array" };
            let array = Function { name: ObjectName::from(vec![Ident::new(array)]), ..function.clone() };
            call("unnest(NULL)", [Expr::Function(array)])?
        }
        ("encode", [bytes, Expr::Value(form)]) if is_base64(&form.value) => {
            call("encode(NULL, 'base64pad')", [bytes.clone()])?
        }
        ("strftime", [a, b]) => {
            // SQLite's order of the arguments, or DuckDB's.
            let (format, time) = if is_format(a) { (a, b) } else { (b, a) };
            call("to_char(NULL, NULL)", [time.clone(), format.clone()])?
        }
        (name, args) => return super::time_calls::replaced(name, args),
    }))
}

/// Aggregates with the names of other systems.
fn aggregate(name: &str, function: &Function) -> Result<Option<Expr>> {
    let mut function = function.clone();
    let renamed = |name: &str| ObjectName::from(vec![Ident::new(name)]);
    let FunctionArguments::List(list) = &mut function.args else { return Ok(None) };
    match (name, list.args.len()) {
        ("every", 1) => {
            function.name = renamed("bool_and");
            Ok(Some(Expr::Function(function)))
        }
        ("total", 1) => {
            function.name = renamed("sum");
            call("coalesce(CAST(NULL AS DOUBLE PRECISION), CAST(0 AS DOUBLE PRECISION))", [Expr::Function(function)])
                .map(Some)
        }
        ("group_concat", 1 | 2) => {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = &mut list.args[0] else { return Ok(None) };
            *value = call("CAST(NULL AS TEXT)", [value.clone()])?;
            if list.args.len() == 1 {
                list.args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(crate::sql::parse_expr("','")?)));
            }
            function.name = renamed(if has_one_delimiter(list)? { "string_agg" } else { BY_ROW });
            Ok(Some(Expr::Function(function)))
        }
        ("string_agg", 2) => {
            let name = if has_one_delimiter(list)? { "string_agg" } else { BY_ROW };
            function.name = renamed(name);
            Ok(Some(Expr::Function(function)))
        }
        _ => Ok(None),
    }
}

/// True if the second argument is the same for all rows. A parameter gets the type TEXT.
fn has_one_delimiter(list: &mut FunctionArgumentList) -> Result<bool> {
    let [_, FunctionArg::Unnamed(FunctionArgExpr::Expr(delimiter))] = &mut list.args[..] else { return Ok(true) };
    if matches!(delimiter, Expr::Value(value) if matches!(value.value, Value::Placeholder(_))) {
        *delimiter = call("CAST(NULL AS TEXT)", [delimiter.clone()])?;
    }
    Ok(is_constant(delimiter))
}

/// True for an expression without columns, subqueries and functions, which may be volatile.
fn is_constant(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Identifier(_)
        | Expr::CompoundIdentifier(_)
        | Expr::Function(_)
        | Expr::Subquery(_)
        | Expr::Exists { .. }
        | Expr::InSubquery { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_continue()
}

/// True for a call of a function without a schema, in any case.
pub(super) fn is_call(function: &Function, name: &str) -> bool {
    match &function.name.0[..] {
        [part] => part.as_ident().is_some_and(|ident| ident.value.eq_ignore_ascii_case(name)),
        _ => false,
    }
}

/// The arguments of a plain call.
pub(super) fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let list = match &function.args {
        FunctionArguments::None => return Some(Vec::new()),
        FunctionArguments::List(list) if list.clauses.is_empty() && list.duplicate_treatment.is_none() => list,
        _ => return None,
    };
    let argument = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(argument).collect()
}

fn is_base64(form: &Value) -> bool {
    matches!(form, Value::SingleQuotedString(form) if form.eq_ignore_ascii_case("base64"))
}

fn is_format(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(&value.value, Value::SingleQuotedString(text) if text.contains('%')))
}

/// Aggregates that depend on the order of the values.
fn ordered(name: &str, function: &Function) -> Result<Option<Expr>> {
    let Some(args) = arguments(function) else { return Ok(None) };
    let key = |value: &Expr| OrderByExpr { expr: value.clone(), options: Default::default(), with_fill: None };
    match (name, &args[..], &function.within_group[..]) {
        ("mode", [], [OrderByExpr { expr, options, .. }]) => {
            let args = FunctionArguments::List(list(expr.clone(), Vec::new()));
            let mut mode = Function { args, within_group: Vec::new(), ..function.clone() };
            if options.asc == Some(false) {
                mode.name = ObjectName::from(vec![Ident::new(GREATEST_MODE)]);
            }
            Ok(Some(Expr::Function(mode)))
        }
        ("percentile_disc", [fraction], [key]) => percentile(function, fraction, key).map(Some),
        ("quantile_disc", [value, fraction], []) => percentile(function, fraction, &key(value)).map(Some),
        _ => Ok(None),
    }
}

fn list(arg: Expr, clauses: Vec<FunctionArgumentClause>) -> FunctionArgumentList {
    let args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))];
    FunctionArgumentList { duplicate_treatment: None, args, clauses }
}

/// The first value in the order of `key` whose position is at least this fraction of the number of values.
fn percentile(function: &Function, fraction: &Expr, key: &OrderByExpr) -> Result<Expr> {
    if function.over.is_some() {
        return Err(Error::Unsupported(format!("OVER for {}", function.name)));
    }
    if is_out_of_range(fraction) {
        return Err(Error::Evaluation(format!("percentile value {fraction} is not between 0 and 1")));
    }
    let aggregate = |name: &str, clauses| {
        Expr::Function(Function {
            name: ObjectName::from(vec![Ident::new(name)]),
            args: FunctionArguments::List(list(key.expr.clone(), clauses)),
            within_group: Vec::new(),
            ..function.clone()
        })
    };
    let mut values = aggregate("array_agg", vec![FunctionArgumentClause::OrderBy(vec![key.clone()])]);
    if let Expr::Function(Function { filter, .. }) = &mut values {
        let is_value = Expr::IsNotNull(Box::new(Expr::Nested(Box::new(key.expr.clone()))));
        *filter = Some(Box::new(match filter.take() {
            Some(filter) => call("(NULL) AND NULL", [*filter, is_value])?,
            None => is_value,
        }));
    }
    let place = format!("{PLACE}(CAST(NULL AS DOUBLE PRECISION), NULL)");
    let position = call(&place, [fraction.clone(), aggregate("count", Vec::new())])?;
    call("array_element(NULL, NULL)", [values, position])
}

/// True for a number that is not between 0 and 1.
fn is_out_of_range(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_out_of_range(inner),
        Expr::UnaryOp { op: UnaryOperator::Minus, .. } => true,
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.parse().is_ok_and(|number: f64| !(0.0..=1.0).contains(&number)),
            _ => false,
        },
        _ => false,
    }
}
