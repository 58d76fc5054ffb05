//! Literals of texts beside values of other types, as `coalesce(day, '2024-01-01')`.
//!
//! In PostgreSQL, such a literal has the type of the others. In DataFusion it is a text, and has no common type with them,
//! or they become texts. [`mark`] puts literals into calls of [`UNTYPED`] if they are results of CASE, elements of
//! ARRAY or arguments of functions that return one of their arguments.

use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Value};

use super::calls::is_call;
use super::constants::is_text;
use super::json_calls::function_call;
use super::names::plain_ident;
use crate::values::untyped::UNTYPED;
use crate::{Error, Result};

/// Functions that return one of their arguments.
const SELECTING: [&str; 5] = ["coalesce", "nvl", "ifnull", "greatest", "least"];

/// Refuses calls of [`UNTYPED`] in a statement.
///
/// # Errors
/// `UndefinedFunction`.
pub(super) fn check(expr: &Expr) -> Result<()> {
    match expr {
        Expr::Function(function) if is_call(function, UNTYPED) => {
            Err(Error::UndefinedFunction { signature: format!("function {UNTYPED}") })
        }
        _ => Ok(()),
    }
}

/// Marks the literals of an expression, but not those of its operands.
pub(super) fn mark(expr: &mut Expr) {
    match expr {
        Expr::Case { conditions, else_result, .. } => {
            let results = conditions.iter_mut().map(|branch| &mut branch.result);
            mark_all(results.chain(else_result.as_deref_mut()).collect());
        }
        Expr::Array(array) => mark_all(array.elem.iter_mut().collect()),
        Expr::Function(function) if function.over.is_none() => {
            let [name] = &function.name.0[..] else { return };
            let Some(name) = name.as_ident().map(plain_ident) else { return };
            let FunctionArguments::List(list) = &mut function.args else { return };
            let args = list.args.iter_mut().filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            });
            let args: Vec<&mut Expr> = args.collect();
            match name.as_str() {
                name if SELECTING.contains(&name) => mark_all(args),
                // The result has the type of the first argument.
                "nullif" if args.first().is_some_and(|first| !is_open(first)) => {
                    args.into_iter().skip(1).for_each(mark_one);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// Marks literals beside values that have a type.
fn mark_all(values: Vec<&mut Expr>) {
    if values.iter().any(|value| !is_open(value)) {
        values.into_iter().for_each(mark_one);
    }
}

fn mark_one(value: &mut Expr) {
    if is_text(value) {
        let literal = std::mem::replace(value, Expr::Value(Value::Null.into()));
        *value = function_call(UNTYPED, vec![literal]);
    }
}

/// True for values that do not determine a type.
fn is_open(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_open(inner),
        Expr::Value(value) => {
            matches!(value.value, Value::SingleQuotedString(_) | Value::Null | Value::Placeholder(_))
        }
        _ => false,
    }
}
