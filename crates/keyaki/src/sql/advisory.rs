//! Advisory locks in a select list: `pg_advisory_lock(key)` and its relatives.
//!
//! The functions wait, and change what the session holds. They are executed before their query is planned and before it has a
//! snapshot, so they are supported in the select list of a query without FROM only. Elsewhere they are an error
//! ([`super::pg_catalog`]).

use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType as ArrowType, Int64Type};
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, SelectItem, SetExpr,
    Statement, UnaryOperator, Value,
};

use super::names::plain_ident;
use super::prepared::lone_parameter;
use super::{SqlSession, columns, constants};
use crate::base::advisory_locks::{LockKey, LockLevel, LockMode, LockRequest};
use crate::{Error, Result};

/// The timer of a wait that has ended is freed after at most this time.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Lock(LockMode, LockLevel),
    Try(LockMode, LockLevel),
    Unlock(LockMode),
    UnlockAll,
}

impl Action {
    fn named(name: &str) -> Option<Action> {
        let (plain, mode) = match name.strip_suffix("_shared") {
            Some(plain) => (plain, LockMode::Shared),
            None => (name, LockMode::Exclusive),
        };
        Some(match plain {
            "pg_advisory_lock" => Action::Lock(mode, LockLevel::Session),
            "pg_advisory_xact_lock" => Action::Lock(mode, LockLevel::Transaction),
            "pg_try_advisory_lock" => Action::Try(mode, LockLevel::Session),
            "pg_try_advisory_xact_lock" => Action::Try(mode, LockLevel::Transaction),
            "pg_advisory_unlock" => Action::Unlock(mode),
            "pg_advisory_unlock_all" => Action::UnlockAll,
            _ => return None,
        })
    }
}

/// True for the names of functions of advisory locks.
pub(super) fn is_advisory(name: &str) -> bool {
    Action::named(name).is_some()
}

/// The select list of a query in which the functions are executed.
fn select_list(statement: &mut Statement) -> Option<&mut Vec<SelectItem>> {
    let Statement::Query(query) = statement else { return None };
    match query.body.as_mut() {
        SetExpr::Select(select) if select.from.is_empty() && select.selection.is_none() => Some(&mut select.projection),
        _ => None,
    }
}

/// The call that is a column of a select list, and its arguments.
fn call(item: &mut SelectItem) -> Option<(Action, Vec<&mut Expr>)> {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else { return None };
    let Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) = expr else { return None };
    let name = name.0.iter().map(|part| part.as_ident().map(plain_ident)).collect::<Option<Vec<_>>>()?;
    let name: Vec<&str> = name.iter().map(String::as_str).collect();
    let (["pg_catalog", name] | [name]) = name.as_slice() else { return None };
    let action = Action::named(name)?;
    let arguments = list.args.iter_mut().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    let arguments = arguments.collect::<Option<Vec<_>>>()?;
    let is_valid = match action {
        Action::UnlockAll => arguments.is_empty(),
        _ => matches!(arguments.len(), 1 | 2),
    };
    is_valid.then_some((action, arguments))
}

/// Gives the parameters that are keys their types: BIGINT for one, INTEGER for each of two.
pub(super) fn type_parameters(statement: &mut Statement) {
    for item in select_list(statement).into_iter().flatten() {
        let Some((_, arguments)) = call(item) else { continue };
        let ty = if arguments.len() == 1 { DataType::BigInt(None) } else { DataType::Integer(None) };
        for argument in arguments {
            if lone_parameter(argument).is_some() {
                let expr = Box::new(argument.clone());
                *argument =
                    Expr::Cast { kind: CastKind::Cast, expr, data_type: ty.clone(), array: false, format: None };
            }
        }
    }
}

/// Executes the calls in the select list of a statement, and replaces them by their results.
///
/// # Errors
/// `Deadlock`, `LockTimeout`; errors of the arguments.
pub(super) async fn apply(session: &SqlSession, statement: &mut Statement) -> Result<()> {
    let has_calls = |items: &mut Vec<SelectItem>| items.iter_mut().any(|item| call(item).is_some());
    if !select_list(statement).is_some_and(has_calls) {
        return Ok(());
    }
    columns::name(statement);
    for item in select_list(statement).into_iter().flatten() {
        let Some((action, arguments)) = call(item) else { continue };
        let arguments = arguments.into_iter().map(|expr| expr.clone()).collect();
        let mut result = Expr::value(execute(session, action, arguments).await?);
        if matches!(action, Action::Try(..) | Action::Unlock(_)) {
            // Also of NULL.
            result = Expr::Cast {
                kind: CastKind::Cast,
                expr: Box::new(result),
                data_type: DataType::Boolean,
                array: false,
                format: None,
            };
        }
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            *expr = result;
        }
    }
    Ok(())
}

/// The result of a call: an empty text in place of PostgreSQL's void, NULL if an argument is NULL.
async fn execute(session: &SqlSession, action: Action, arguments: Vec<Expr>) -> Result<Value> {
    let locks = &session.advisory_locks;
    let void = || Value::SingleQuotedString(String::new());
    if action == Action::UnlockAll {
        locks.unlock_all();
        return Ok(void());
    }
    let Some(key) = key(session, arguments).await? else { return Ok(Value::Null) };
    Ok(match action {
        Action::Lock(mode, level) => {
            lock(session, LockRequest { key, mode, level }).await?;
            void()
        }
        Action::Try(mode, level) => Value::Boolean(locks.try_lock(LockRequest { key, mode, level })?),
        Action::Unlock(mode) => Value::Boolean(locks.unlock(key, mode)),
        Action::UnlockAll => void(),
    })
}

async fn lock(session: &SqlSession, request: LockRequest) -> Result<()> {
    let Some(wait) = session.advisory_locks.lock(request)? else { return Ok(()) };
    if let Some(timeout) = session.options().lock_timeout {
        let (deadline, waiting) = (Instant::now() + timeout, wait.timeout());
        session.engine.timers.schedule(Instant::now() + timeout.min(TIMER_INTERVAL), move || {
            let left = deadline.saturating_duration_since(Instant::now());
            waiting.expire(left.is_zero()).then(|| left.min(TIMER_INTERVAL))
        });
    }
    wait.granted().await
}

/// The key of constant expressions; `None` if one is NULL.
async fn key(session: &SqlSession, arguments: Vec<Expr>) -> Result<Option<LockKey>> {
    let numbers = match arguments.iter().map(literal).collect::<Option<Vec<_>>>() {
        // Without a snapshot, which a transaction may keep.
        Some(numbers) => numbers.into_iter().map(Some).collect(),
        None => {
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            let values = Box::pin(constants(session, arguments)).await?;
            let number = |value: &arrow::array::ArrayRef| -> Result<Option<i64>> {
                let number = cast_with_options(value, &ArrowType::Int64, &strict)?;
                let number = number.as_primitive::<Int64Type>();
                Ok(number.is_valid(0).then(|| number.value(0)))
            };
            values.iter().map(number).collect::<Result<Vec<_>>>()?
        }
    };
    let half = |number: i64| {
        i32::try_from(number).map_err(|_| Error::OutOfRange {
            ty: "integer".into(),
            value: Some(number.to_string()),
            column: None,
        })
    };
    Ok(match numbers.as_slice() {
        [Some(key)] => Some(LockKey::One(*key)),
        [Some(class), Some(object)] => Some(LockKey::Two(half(*class)?, half(*object)?)),
        _ => None,
    })
}

/// The number of a literal, or of the value of a parameter; `None` for other expressions.
fn literal(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Nested(expr) => literal(expr),
        Expr::Cast { expr, data_type: DataType::BigInt(_) | DataType::Int8(_), .. } => literal(expr),
        Expr::Cast { expr, data_type: DataType::Integer(_) | DataType::Int(_) | DataType::Int4(_), .. } => {
            literal(expr).filter(|number| i32::try_from(*number).is_ok())
        }
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => literal(expr)?.checked_neg(),
        Expr::Function(function) if function.name.to_string() == "arrow_cast" => match &function.args {
            FunctionArguments::List(list) => match list.args.first() {
                Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))) => literal(expr),
                _ => None,
            },
            _ => None,
        },
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) | Value::SingleQuotedString(text) => text.trim().parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Releases the locks of a transaction that has ended.
pub(crate) fn end(session: &SqlSession) {
    if session.advisory_locks.has_locks() && !session.transaction.is_open() {
        session.advisory_locks.end_transaction();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_name() {
        assert_eq!(Action::named("pg_advisory_lock"), Some(Action::Lock(LockMode::Exclusive, LockLevel::Session)));
        let shared = Action::Try(LockMode::Shared, LockLevel::Transaction);
        assert_eq!(Action::named("pg_try_advisory_xact_lock_shared"), Some(shared));
        assert_eq!(Action::named("pg_advisory_unlock_all"), Some(Action::UnlockAll));
        assert!(!is_advisory("pg_advisory") && !is_advisory("abs"));
    }

    #[test]
    fn literals_are_keys() {
        let of = |sql: &str| literal(&crate::sql::parse_expr(sql).unwrap());
        assert_eq!((of("7"), of("-7"), of("(1::bigint)")), (Some(7), Some(-7), Some(1)));
        assert_eq!(of("CAST(arrow_cast('-5', 'Int64') AS BIGINT)"), Some(-5));
        assert_eq!((of("3000000000::int"), of("1 + 1"), of("1.5"), of("NULL")), (None, None, None, None));
    }
}
