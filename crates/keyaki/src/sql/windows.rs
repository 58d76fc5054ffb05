//! Names of windows, and defaults of `lag` and `lead`.
//!
//! DataFusion looks up a name in the WINDOW clause of the outermost query whose select list contains the function, also
//! if the function is in a subquery. The definition takes the place of the name here, in the query that has the clause.
//! DataFusion also converts the default of `lag` and `lead` to the type of the column, and takes literals only:
//!
//! | form | becomes |
//! |---|---|
//! | `lag(a, n, d) OVER w` | `CASE WHEN lag(1, n) OVER w IS NULL THEN d ELSE lag(a, n) OVER w END` |
//!
//! Defaults that have the same value in all types stay: NULL, texts and numbers of one digit. An offset that is NULL makes the
//! result NULL.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Ident,
    NamedWindowDefinition, NamedWindowExpr, NullTreatment, Query, Select, Value, VisitMut, VisitorMut, WindowSpec,
    WindowType,
};

use super::names::plain_ident;
use super::parameters::call;
use crate::sql::visit::walk_mut;
use crate::{Error, Result};

/// Replaces the names and the defaults in a statement.
///
/// # Errors
/// `InvalidStatement` for unknown names, and for windows that change what the named one defines.
pub(super) fn inline(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut Inline::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

#[derive(Default)]
struct Inline {
    /// The WINDOW clause of each enclosing query, the innermost last.
    clauses: Vec<Vec<NamedWindowDefinition>>,
}

impl Inline {
    /// The definition of a name.
    fn named(&self, name: &Ident, depth: usize) -> Result<WindowSpec> {
        let unknown = || Error::InvalidStatement(format!("window \"{}\" does not exist", name.value));
        let clause = self.clauses.last().ok_or_else(unknown)?;
        let wanted = plain_ident(name);
        let place = clause.iter().position(|definition| plain_ident(&definition.0) == wanted).ok_or_else(unknown)?;
        // A definition may use earlier ones only; this also ends cycles.
        if place >= depth {
            return Err(unknown());
        }
        match &clause[place].1 {
            NamedWindowExpr::NamedWindow(other) => self.named(other, place),
            NamedWindowExpr::WindowSpec(spec) => self.resolved(spec.clone(), place),
        }
    }

    /// A window with the parts of the one that it names.
    fn resolved(&self, mut spec: WindowSpec, depth: usize) -> Result<WindowSpec> {
        let Some(name) = spec.window_name.take() else { return Ok(spec) };
        let base = self.named(&name, depth)?;
        let refused = |what: &str| Error::InvalidStatement(format!("cannot {what} of window \"{}\"", name.value));
        if !spec.partition_by.is_empty() {
            return Err(refused("override PARTITION BY clause"));
        }
        if !spec.order_by.is_empty() && !base.order_by.is_empty() {
            return Err(refused("override ORDER BY clause"));
        }
        if base.window_frame.is_some() {
            return Err(refused("copy the frame clause"));
        }
        spec.partition_by = base.partition_by;
        if spec.order_by.is_empty() {
            spec.order_by = base.order_by;
        }
        Ok(spec)
    }

    fn function(&self, function: &mut Function) -> Result<Option<Expr>> {
        let spec = match function.over.take() {
            None => return Ok(None),
            Some(WindowType::NamedWindow(name)) => self.named(&name, usize::MAX)?,
            Some(WindowType::WindowSpec(spec)) => self.resolved(spec, usize::MAX)?,
        };
        function.over = Some(WindowType::WindowSpec(spec));
        with_default(function)
    }
}

impl VisitorMut for Inline {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.clauses.push(Vec::new());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.clauses.pop();
        ControlFlow::Continue(())
    }

    /// The clause of the query, until its end: ORDER BY is not a part of the SELECT.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        if let Some(clause) = self.clauses.last_mut() {
            *clause = std::mem::take(&mut select.named_window);
            let mut names = HashSet::new();
            if let Some(again) = clause.iter().find(|definition| !names.insert(plain_ident(&definition.0))) {
                let problem = format!("window \"{}\" is already defined", again.0.value);
                return ControlFlow::Break(Error::InvalidStatement(problem));
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        match self.function(function) {
            Ok(Some(replaced)) => *expr = replaced,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// A CASE in place of a default; `None` if there is no default, or if it stays. With an offset that is NULL, the result
/// is NULL.
fn with_default(function: &Function) -> Result<Option<Expr>> {
    let [name] = &function.name.0[..] else { return Ok(None) };
    let is_known = name.as_ident().is_some_and(|name| matches!(plain_ident(name).as_str(), "lag" | "lead"));
    let FunctionArguments::List(list) = &function.args else { return Ok(None) };
    if let [_, FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(offset))), ..] = &list.args[..]
        && offset.value == Value::Null
        && is_known
    {
        let mut without = function.clone();
        if let FunctionArguments::List(arguments) = &mut without.args {
            arguments.args.truncate(1);
        }
        return call("CASE WHEN false THEN NULL END", [Expr::Function(without)]).map(Some);
    }
    let [FunctionArg::Unnamed(_), _, FunctionArg::Unnamed(FunctionArgExpr::Expr(default))] = &list.args[..] else {
        return Ok(None);
    };
    if !is_known || stays(default) {
        return Ok(None);
    }
    let mut without = function.clone();
    let FunctionArguments::List(arguments) = &mut without.args else { return Ok(None) };
    arguments.args.truncate(2);
    let ignores_nulls = function.null_treatment == Some(NullTreatment::IgnoreNulls)
        || list.clauses.contains(&FunctionArgumentClause::IgnoreOrRespectNulls(NullTreatment::IgnoreNulls));
    let mut found = without.clone();
    if let FunctionArguments::List(arguments) = &mut found.args
        && !ignores_nulls
    {
        arguments.args[0] = FunctionArg::Unnamed(FunctionArgExpr::Expr(super::parse_expr("1")?));
    }
    let parts = [Expr::Function(found), default.clone(), Expr::Function(without)];
    call("CASE WHEN NULL IS NULL THEN NULL ELSE NULL END", parts).map(Some)
}

/// True for a default that is the same in each type that the column may have.
fn stays(default: &Expr) -> bool {
    let Expr::Value(value) = default else { return false };
    match &value.value {
        Value::Number(digits, _) => digits.len() == 1,
        Value::Null | Value::SingleQuotedString(_) | Value::Boolean(_) | Value::Placeholder(_) => true,
        _ => false,
    }
}
