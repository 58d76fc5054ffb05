//! `set_config(name, value, is_local)`: SET and SET LOCAL in a select list.
//!
//! The function changes the session. It is executed before its query is planned, so it is supported with constants in the
//! select list of a query without FROM only. Elsewhere it is an error ([`super::pg_catalog`]).

use datafusion::sql::sqlparser::ast::{
    ContextModifier, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Reset,
    ResetStatement, SelectItem, Set, SetExpr, Statement, Value,
};

use super::names::plain_ident;
use super::{SqlSession, settings};
use crate::{Error, Result};

const NAME: &str = "set_config";

/// Executes the calls in the select list of a statement, and replaces them by their results.
///
/// # Errors
/// `Unsupported` for arguments that are not constants; errors of the settings.
pub(super) fn apply(session: &SqlSession, statement: &mut Statement) -> Result<()> {
    let Statement::Query(query) = statement else { return Ok(()) };
    let SetExpr::Select(select) = query.body.as_mut() else { return Ok(()) };
    if !select.from.is_empty() || select.selection.is_some() {
        return Ok(());
    }
    for item in &mut select.projection {
        let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = &*item else { continue };
        let Expr::Function(function) = expr else { continue };
        let Some(arguments) = arguments(function) else { continue };
        let result = call(session, arguments)?;
        let result = Expr::value(result.map_or(Value::Null, Value::SingleQuotedString));
        *item = match item {
            SelectItem::ExprWithAlias { alias, .. } => SelectItem::ExprWithAlias { expr: result, alias: alias.clone() },
            _ => SelectItem::ExprWithAlias { expr: result, alias: Ident::new(NAME) },
        };
    }
    Ok(())
}

/// The arguments of a call of the function; `None` for other calls.
fn arguments(function: &Function) -> Option<[&Expr; 3]> {
    let name = function.name.0.iter().map(|part| part.as_ident().map(plain_ident)).collect::<Option<Vec<_>>>()?;
    let name: Vec<&str> = name.iter().map(String::as_str).collect();
    let (["pg_catalog", NAME] | [NAME], FunctionArguments::List(list)) = (name.as_slice(), &function.args) else {
        return None;
    };
    let exprs = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    exprs.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// The value of a constant as text; `None` for NULL.
fn constant(expr: &Expr) -> Result<Option<String>> {
    match expr {
        Expr::Nested(expr) | Expr::Cast { expr, .. } => constant(expr),
        // A value of a parameter.
        Expr::Function(function) if function.name.to_string() == "arrow_cast" => match &function.args {
            FunctionArguments::List(list) => match list.args.first() {
                Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))) => constant(expr),
                _ => Err(not_constant()),
            },
            _ => Err(not_constant()),
        },
        Expr::TypedString(typed) => Ok(typed.value.value.clone().into_string()),
        Expr::Value(value) => match &value.value {
            Value::Null => Ok(None),
            Value::Boolean(value) => Ok(Some(value.to_string())),
            Value::Number(number, _) => Ok(Some(number.to_string())),
            value => value.clone().into_string().map(Some).ok_or_else(not_constant),
        },
        _ => Err(not_constant()),
    }
}

fn not_constant() -> Error {
    Error::Unsupported("set_config with arguments that are not constants".into())
}

/// Changes a setting and returns its new value.
fn call(session: &SqlSession, [name, value, is_local]: [&Expr; 3]) -> Result<Option<String>> {
    let name = constant(name)?.ok_or_else(|| Error::Evaluation("SET requires parameter name".into()))?;
    let name = name.to_ascii_lowercase();
    let is_local = match constant(is_local)?.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("f" | "false" | "off" | "no" | "0") => false,
        Some("t" | "true" | "on" | "yes" | "1") => true,
        Some(other) => return Err(Error::invalid_text("boolean", other, None)),
    };
    let given = constant(value)?;
    let value = match &given {
        Some(text) => Expr::value(Value::SingleQuotedString(text.clone())),
        None => Expr::Identifier(Ident::new("default")),
    };
    let parts = name.split('.').map(|part| Ident::with_quote('"', part)).collect::<Vec<_>>();
    let variable = ObjectName::from(parts);
    let set = Set::SingleAssignment {
        scope: is_local.then_some(ContextModifier::Local),
        hivevar: false,
        variable: variable.clone(),
        values: vec![value],
    };
    match (&given, is_local) {
        (None, false) => settings::reset(session, &ResetStatement { reset: Reset::ConfigurationParameter(variable) })?,
        _ => settings::set(session, set)?,
    };
    match is_local && !session.transaction.is_open() {
        // The value of a transaction that ends with the statement.
        true => Ok(given),
        false => settings::value(session, &name),
    }
}
