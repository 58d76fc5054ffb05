//! Forms of PostgreSQL's tools that refer to the catalog, for DataFusion.
//!
//! | form | becomes |
//! |---|---|
//! | `pg_catalog.f(a)`, `a::pg_catalog.text`, `a OPERATOR(pg_catalog.~) b` | `f(a)`, `a::text`, `a ~ b` |
//! | functions of the catalog | calls of one function; see [`super::functions`] |
//! | `'t'::regclass`, `$1::regclass` | the OID |
//! | `a::regclass` | the OID of a text, the name of a number |
//! | `a::regclass::oid`, `a::regclass::text` | the OID, the name |
//! | `a::oid` | the number |
//! | `a::name`, `a::"char"`, `a::regproc` | `a::text` |
//! | `nextval('s'::regclass)` | `nextval('s')` |
//! | `a COLLATE pg_catalog.default` | `a` |
//! | `information_schema._pg_expandarray(a)` and its fields `x`, `n` | `unnest(a)`, and the numbers of the elements |
//! | `pg_partition_ancestors(a)` | no rows: there are no partitions |
//! | `pg_catalog.unnest(a.reloptions)` in FROM | no rows: there are no options of relations |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    ObjectName, ObjectNamePart, Query, SelectItem, SetExpr, TableFactor, Value, VisitMut, VisitorMut,
};

use super::functions::{NAME, OID_TYPES, implementation, is_function};
use crate::sql::information_schema;
use crate::sql::names::plain_ident;
use crate::sql::parameters::call;
use crate::sql::sequences::is_sequence_function;
use crate::sql::split;
use crate::sql::visit::walk_mut;
use crate::{Error, Result};

/// A function that returns no rows.
const ANCESTORS: &str = "pg_partition_ancestors";
const UNNEST: &str = "unnest";
/// A function that returns the channels of the session.
pub(super) const LISTENING: &str = "pg_listening_channels";
/// A function of the information schema that returns the elements of an array with their numbers.
const EXPANDED: &str = "_pg_expandarray";
/// Types whose values are texts here.
const TEXTS: [&str; 7] = ["name", "char", "regproc", "regprocedure", "regoper", "cstring", "pg_node_tree"];

/// Replaces the forms in a statement. True if it calls functions of [`ACTIONS`].
///
/// # Errors
/// Errors of the parser; `Unsupported` for [`ACTIONS`] in conditions: an operand of AND may be evaluated for rows that
/// another operand excludes.
pub(in crate::sql) fn replace(node: &mut impl VisitMut) -> Result<bool> {
    let mut replace = Replace::default();
    match walk_mut(node, &mut replace) {
        ControlFlow::Continue(()) if replace.actions > replace.selected => {
            let what = format!("calls of {} other than as a column of SELECT", ACTIONS.join(", "));
            Err(Error::Unsupported(what))
        }
        ControlFlow::Continue(()) => Ok(replace.actions > 0),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Functions that signal sessions or send notifications.
const ACTIONS: [&str; 3] = ["pg_cancel_backend", "pg_terminate_backend", "pg_notify"];

#[derive(Default)]
struct Replace {
    /// Number of calls of [`ACTIONS`].
    actions: usize,
    /// Number of calls of [`ACTIONS`] that are columns of a select list.
    selected: usize,
    /// The statement uses [`EXPANDED`]: fields of columns are those of its results.
    expands: bool,
}

fn is_action(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else { return false };
    let name = match function.name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] => name,
        [ObjectNamePart::Identifier(schema), ObjectNamePart::Identifier(name)]
            if plain_ident(schema) == super::NAME =>
        {
            name
        }
        _ => return false,
    };
    ACTIONS.contains(&plain_ident(name).as_str())
}

/// Number of actions that are columns of select lists.
fn selected_actions(body: &SetExpr) -> usize {
    match body {
        SetExpr::Select(select) => {
            let is_selected = |item: &&SelectItem| match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => is_action(expr),
                _ => false,
            };
            select.projection.iter().filter(is_selected).count()
        }
        SetExpr::SetOperation { left, right, .. } => selected_actions(left) + selected_actions(right),
        _ => 0,
    }
}

impl Replace {
    fn of_expr(&mut self, expr: &mut Expr) -> Result<()> {
        match expr {
            Expr::Function(function) if is_expanded(function) => {
                self.expands = true;
                function.name = ObjectName::from(vec![Ident::new(UNNEST)]);
                Ok(())
            }
            Expr::CompoundFieldAccess { root, access_chain } if self.expands => {
                if let [AccessExpr::Dot(Expr::Identifier(field))] = &access_chain[..]
                    && let Some(replaced) = of_field(nested(root), &plain_ident(field))?
                {
                    *expr = replaced;
                }
                Ok(())
            }
            _ => of_expr(expr),
        }
    }
}

fn is_expanded(function: &Function) -> bool {
    match function.name.0.as_slice() {
        [ObjectNamePart::Identifier(schema), ObjectNamePart::Identifier(name)] => {
            plain_ident(schema) == information_schema::NAME && plain_ident(name) == EXPANDED
        }
        _ => false,
    }
}

/// A field of the results of [`EXPANDED`], or of a column with them.
fn of_field(expanded: &Expr, field: &str) -> Result<Option<Expr>> {
    match (expanded, field) {
        (Expr::Function(_) | Expr::Identifier(_) | Expr::CompoundIdentifier(_), "x") => Ok(Some(expanded.clone())),
        (Expr::Function(function), "n") => match &function.args {
            FunctionArguments::List(list) => match &list.args[..] {
                [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] => {
                    call("generate_subscripts(NULL, 1)", [array.clone()]).map(Some)
                }
                _ => Ok(None),
            },
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Removes `pg_catalog` before a name.
fn unqualify(name: &mut ObjectName) {
    if name.0.len() == 2 && name.0[0].as_ident().is_some_and(|schema| plain_ident(schema) == super::NAME) {
        name.0.remove(0);
    }
}

/// The only part of a name.
fn single(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] => Some(plain_ident(ident)),
        _ => None,
    }
}

/// A type without `pg_catalog`.
///
/// # Errors
/// Errors of the parser.
fn plain_type(ty: &mut DataType) -> Result<()> {
    use datafusion::sql::sqlparser::ast::ArrayElemTypeDef as Element;
    match ty {
        DataType::Custom(name, modifiers) => {
            let qualified = name.0.len() == 2;
            unqualify(name);
            if let Some(plain) = single(name).filter(|_| qualified && name.0.len() == 1) {
                let arguments =
                    if modifiers.is_empty() { String::new() } else { format!("({})", modifiers.join(", ")) };
                // "char" is another type than char.
                let is_quoted = plain == "char";
                if !is_quoted {
                    let text = format!("{plain}{arguments}");
                    *ty = split::single(&text)?.parser().parse_data_type().map_err(crate::base::syntax)?;
                }
            }
            Ok(())
        }
        DataType::Array(Element::SquareBracket(element, _) | Element::AngleBracket(element)) => plain_type(element),
        _ => Ok(()),
    }
}

/// The name of a type that [`Replace`] replaces.
fn special(ty: &DataType) -> Option<String> {
    match ty {
        DataType::Custom(name, modifiers) if modifiers.is_empty() => single(name),
        DataType::Regclass => Some("regclass".into()),
        _ => None,
    }
}

/// A call of a function of the catalog.
fn catalog_call(name: &str, argument: Expr) -> Result<Expr> {
    call(&format!("{NAME}('{name}', NULL)"), [argument])
}

/// Name and argument of a call that [`catalog_call`] has made.
fn called(expr: &Expr) -> Option<(&str, &Expr)> {
    let Expr::Function(function) = expr else { return None };
    let FunctionArguments::List(list) = &function.args else { return None };
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(name))), argument] = &list.args[..] else {
        return None;
    };
    let (Value::SingleQuotedString(name), FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))) =
        (&name.value, argument)
    else {
        return None;
    };
    (single(&function.name)? == NAME).then_some((name.as_str(), argument))
}

fn nested(expr: &Expr) -> &Expr {
    if let Expr::Nested(inner) = expr { nested(inner) } else { expr }
}

/// The expression in place of a cast.
fn of_cast(operand: &Expr, ty: &DataType) -> Result<Option<Expr>> {
    let inner = nested(operand);
    let Some(name) = special(ty) else {
        // The text of an OID is a name.
        return match called(inner) {
            Some((function, argument)) if is_text(ty) && OID_TYPES.contains(&function) => {
                catalog_call(&format!("{function}_out"), argument.clone()).map(Some)
            }
            Some((function, _)) if is_text(ty) && function.ends_with("_in") && function != "oid_in" => {
                let name = function.trim_end_matches("_in");
                catalog_call(&format!("{name}_out"), inner.clone()).map(Some)
            }
            _ => Ok(None),
        };
    };
    if OID_TYPES.contains(&name.as_str()) {
        let is_text = match inner {
            Expr::Value(value) => {
                matches!(value.value, Value::Placeholder(_)) || value.value.clone().into_string().is_some()
            }
            _ => false,
        };
        let function = if is_text { format!("{name}_in") } else { name };
        return catalog_call(&function, inner.clone()).map(Some);
    }
    match name.as_str() {
        "oid" | "xid" | "cid" => match called(inner) {
            Some((function, argument)) if OID_TYPES.contains(&function) => {
                catalog_call(&format!("{function}_in"), argument.clone()).map(Some)
            }
            Some((function, _)) if function.ends_with("_in") => Ok(Some(inner.clone())),
            _ => catalog_call("oid_in", inner.clone()).map(Some),
        },
        name if TEXTS.contains(&name) => {
            let mut text = call("CAST(NULL AS TEXT)", [inner.clone()])?;
            if let Expr::Value(value) = inner
                && let Some(literal) = value.value.clone().into_string()
            {
                // A function is compared by its name.
                let plain = literal.strip_prefix("pg_catalog.").filter(|_| name.starts_with("reg"));
                text = Expr::value(Value::SingleQuotedString(plain.unwrap_or(&literal).into()));
            }
            Ok(Some(text))
        }
        "int2vector" => call("CAST(NULL AS SMALLINT[])", [inner.clone()]).map(Some),
        "oidvector" => call("CAST(NULL AS BIGINT[])", [inner.clone()]).map(Some),
        _ => Ok(None),
    }
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Text | DataType::Varchar(None) | DataType::String(None))
}

/// The operator that `OPERATOR(pg_catalog.x)` names.
fn operator(parts: &[String]) -> Option<BinaryOperator> {
    let name = match parts {
        [schema, name] if schema == super::NAME => name,
        [name] => name,
        _ => return None,
    };
    Some(match name.as_str() {
        "=" => BinaryOperator::Eq,
        "<>" => BinaryOperator::NotEq,
        "<" => BinaryOperator::Lt,
        "<=" => BinaryOperator::LtEq,
        ">" => BinaryOperator::Gt,
        ">=" => BinaryOperator::GtEq,
        "~" => BinaryOperator::PGRegexMatch,
        "~*" => BinaryOperator::PGRegexIMatch,
        "!~" => BinaryOperator::PGRegexNotMatch,
        "!~*" => BinaryOperator::PGRegexNotIMatch,
        "~~" => BinaryOperator::PGLikeMatch,
        "~~*" => BinaryOperator::PGILikeMatch,
        "!~~" => BinaryOperator::PGNotLikeMatch,
        "!~~*" => BinaryOperator::PGNotILikeMatch,
        "||" => BinaryOperator::StringConcat,
        "+" => BinaryOperator::Plus,
        "-" => BinaryOperator::Minus,
        "*" => BinaryOperator::Multiply,
        "/" => BinaryOperator::Divide,
        _ => return None,
    })
}

/// The expression in place of a call.
fn of_function(function: &mut Function) -> Result<Option<Expr>> {
    unqualify(&mut function.name);
    let Some(name) = single(&function.name) else { return Ok(None) };
    if name == ANCESTORS {
        return crate::sql::parse_expr("unnest(CAST([] AS BIGINT[]))").map(Some);
    }
    if name == LISTENING {
        return crate::sql::parse_expr(&format!("{UNNEST}({NAME}('{LISTENING}'))")).map(Some);
    }
    if is_sequence_function(&function.name)
        && let FunctionArguments::List(list) = &mut function.args
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(sequence))) = list.args.first_mut()
        && let Some(("regclass_in", name)) = called(sequence)
    {
        // These functions find the sequence by its name.
        *sequence = name.clone();
        return Ok(None);
    }
    if !is_function(&name) || name.ends_with("_in") || name.ends_with("_out") {
        return Ok(None);
    }
    let implementation = implementation(&name);
    let name = Expr::value(Value::SingleQuotedString(name));
    match &mut function.args {
        FunctionArguments::List(list) => {
            list.args.insert(0, FunctionArg::Unnamed(FunctionArgExpr::Expr(name)));
            function.name = ObjectName::from(vec![Ident::new(implementation)]);
            Ok(None)
        }
        FunctionArguments::None => call(&format!("{implementation}(NULL)"), [name]).map(Some),
        FunctionArguments::Subquery(_) => Ok(None),
    }
}

fn flow(result: Result<()>) -> ControlFlow<Error> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

fn of_expr(expr: &mut Expr) -> Result<()> {
    let replaced = match expr {
        Expr::Cast { expr: operand, data_type, .. } => {
            plain_type(data_type)?;
            of_cast(operand, data_type)?
        }
        Expr::TypedString(typed) => {
            plain_type(&mut typed.data_type)?;
            None
        }
        Expr::BinaryOp { op, .. } => {
            if let BinaryOperator::PGCustomBinaryOperator(parts) = op
                && let Some(plain) = operator(parts)
            {
                *op = plain;
            }
            None
        }
        Expr::Collate { expr: operand, collation } => {
            unqualify(collation);
            single(collation).filter(|name| name == "default").map(|_| (**operand).clone())
        }
        Expr::Function(function) => of_function(function)?,
        _ => None,
    };
    if let Some(replaced) = replaced {
        *expr = replaced;
    }
    Ok(())
}

/// True for the column `reloptions` of a table as the only argument.
fn of_options(arguments: &[FunctionArg]) -> bool {
    match arguments {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::CompoundIdentifier(parts)))] => {
            parts.last().is_some_and(|column| plain_ident(column) == "reloptions")
        }
        _ => false,
    }
}

/// A function in FROM.
fn of_factor(factor: &mut TableFactor) -> Result<()> {
    let (name, arguments, alias) = match factor {
        TableFactor::Table { name, args: Some(args), alias, .. } => (name, &args.args, alias),
        TableFactor::Function { name, args, alias, .. } => (name, &*args, alias),
        _ => return Ok(()),
    };
    let is_qualified = name.0.len() == 2;
    unqualify(name);
    let query = match single(name).as_deref() {
        Some(LISTENING) => "SELECT pg_listening_channels() AS pg_listening_channels",
        Some(ANCESTORS) => "SELECT CAST(NULL AS BIGINT) AS relid, CAST(NULL AS BIGINT) AS ordinality WHERE false",
        Some(UNNEST) if is_qualified && of_options(arguments) => "SELECT CAST(NULL AS TEXT) AS x WHERE false",
        _ => return Ok(()),
    };
    let (subquery, alias) = (crate::sql::parse_query(query)?, alias.take());
    *factor = TableFactor::Derived { lateral: false, subquery, alias, sample: None };
    Ok(())
}

impl VisitorMut for Replace {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        flow(of_factor(factor))
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.selected += selected_actions(&query.body);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.actions += usize::from(is_action(expr));
        flow(self.of_expr(expr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(sql: &str) -> String {
        let mut expr = crate::sql::parse_expr(sql).unwrap();
        replace(&mut expr).unwrap();
        expr.to_string()
    }

    #[test]
    fn casts_to_types_of_oids() {
        for (sql, expected) in [
            ("'t'::regclass", "keyaki_pg_catalog('regclass_in', 't')"),
            ("$1::pg_catalog.regclass", "keyaki_pg_catalog('regclass_in', $1)"),
            ("a::regclass", "keyaki_pg_catalog('regclass', a)"),
            ("'t'::regclass::oid", "keyaki_pg_catalog('regclass_in', 't')"),
            ("a::regclass::oid", "keyaki_pg_catalog('regclass_in', a)"),
            ("a::regtype::pg_catalog.text", "keyaki_pg_catalog('regtype_out', a)"),
            ("'t'::regclass::text", "keyaki_pg_catalog('regclass_out', keyaki_pg_catalog('regclass_in', 't'))"),
            ("a::oid", "keyaki_pg_catalog('oid_in', a)"),
            ("'pg_catalog.array_in'::regproc", "'array_in'"),
        ] {
            assert_eq!(replaced(sql), expected, "{sql}");
        }
    }

    #[test]
    fn actions_are_columns_of_select_lists() {
        for (sql, is_valid) in [
            ("SELECT pg_terminate_backend(pid), pg_cancel_backend(1) AS c FROM pg_stat_activity WHERE pid > 1", true),
            ("SELECT * FROM (SELECT pg_catalog.pg_terminate_backend(pid) FROM a UNION SELECT false) t", true),
            ("SELECT pid FROM pg_stat_activity WHERE pid > 1 AND pg_terminate_backend(pid)", false),
            ("SELECT pg_notify('c', a), b FROM t", true),
            ("SELECT a FROM t WHERE pg_notify('c', a) = ''", false),
            ("SELECT pid > 1 AND pg_terminate_backend(pid) FROM pg_stat_activity", false),
            ("SELECT pg_terminate_backend(pid) FROM a ORDER BY Pg_Cancel_Backend(pid)", false),
            ("SELECT CASE WHEN pid > 1 THEN pg_cancel_backend(pid) END FROM pg_stat_activity", false),
        ] {
            let mut query = crate::sql::parse_query(sql).unwrap();
            assert_eq!(replace(&mut query).is_ok(), is_valid, "{sql}");
        }
    }

    #[test]
    fn names_lose_their_schema() {
        assert_eq!(replaced("pg_catalog.abs(a)"), "abs(a)");
        assert_eq!(replaced("other.abs(a)"), "other.abs(a)");
        assert_eq!(replaced("pg_catalog.version()"), "keyaki_pg_catalog('version')");
        assert_eq!(replaced("a OPERATOR(pg_catalog.~) 'x' COLLATE pg_catalog.default"), "a ~ 'x'");
        assert_eq!(replaced("a::pg_catalog.int2[]").to_lowercase(), "a::int2[]");
    }
}
