//! Functions of JSON that become expressions of others.
//!
//! | function | becomes |
//! |---|---|
//! | `json_build_object(k, v, …)`, `json_object(k, v, …)`, `json_object(k: v, …)` | `json_build_object(k, to_json(v), …)` |
//! | `json_build_array(v, …)`, `json_array(v, …)` | `json_build_array(to_json(v), …)` |
//! | `row_to_json(v)`, `array_to_json(v)`, `to_jsonb(v)` | `to_json(v)` |
//! | `json_agg(v …)`, `json_group_array(v …)` | `json_array_of(array_agg(to_json(v) …))` |
//! | `json_agg(DISTINCT v …)` | `to_json(array_agg(DISTINCT v …))` |
//! | `json_object_agg(k, v …)`, `json_group_object(k, v …)` | the object of `array_agg(json_member(k, to_json(v)) …)` |
//! | `json_array_elements(d)`, `json_array_elements_text(d)` | `unnest(json_values(d))`, `unnest(json_texts(d))` |
//! | `json_extract(d, path)`, `json_extract_string(d, path)` | `d ->> path` |
//! | `json_extract_path(d, key, …)`, `json_extract_path_text` | `json_get_json(d, key, …)`, `json_as_text` |
//! | `jsonb_set(d, path, v)`, `json_set(d, path, v, …)` | with an array of texts as path, with `to_json(v)` |
//!
//! Names that begin with `jsonb_` mean the same, with results of the type JSONB. `to_json` of a document is the document, see
//! [`super::documents`].

use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgOperator, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, Value,
};

use super::calls::arguments;
use super::parameters::call;
use crate::values::json::AS_JSONB;
use crate::values::json::build::TO_JSON;
use crate::{Error, Result};

/// Functions in FROM that return members or elements, and the functions of the arrays that are their columns.
pub(super) const TABLES: [(&str, &[(&str, &str)]); 5] = [
    ("json_array_elements", &[("value", "json_values")]),
    ("json_array_elements_text", &[("value", "json_texts")]),
    ("json_each", &[("key", "json_keys"), ("value", "json_values")]),
    ("json_each_text", &[("key", "json_keys"), ("value", "json_texts")]),
    ("json_object_keys", &[("json_object_keys", "json_keys")]),
];

/// The columns of a function of [`TABLES`]; `None` for other functions.
pub(super) fn columns_in_from(name: &str) -> Option<&'static [(&'static str, &'static str)]> {
    let name = common_name(name);
    TABLES.iter().find(|(table, _)| *table == name).map(|(_, columns)| *columns)
}

/// The name without a difference of JSON and JSONB.
fn common_name(name: &str) -> String {
    match name.strip_prefix("jsonb_") {
        Some(rest) => format!("json_{rest}"),
        None => name.to_string(),
    }
}

/// The expression in place of a call; `None` for other functions.
///
/// # Errors
/// `Evaluation` and `Unsupported` for arguments that the function does not have.
pub(super) fn replaced(name: &str, function: &Function) -> Result<Option<Expr>> {
    let expr = of_documents(name, function)?;
    let is_jsonb = name == "to_jsonb" || name.strip_prefix("jsonb_").is_some_and(|rest| !OTHERS.contains(&rest));
    Ok(match is_jsonb {
        true => expr.map(as_jsonb),
        false => expr,
    })
}

/// Functions of JSONB whose results are no documents, or have their type already, without their prefix.
const OTHERS: [&str; 9] = [
    "array_elements_text",
    "array_length",
    "contains",
    "extract",
    "extract_path_text",
    "extract_string",
    "object_keys",
    "pretty",
    "typeof",
];

/// Documents with the type JSONB. UNNEST stays the outermost function.
fn as_jsonb(documents: Expr) -> Expr {
    let mut documents = documents;
    if let Expr::Function(function) = &mut documents
        && function.name.to_string() == "unnest"
        && let FunctionArguments::List(list) = &mut function.args
        && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] = &mut list.args[..]
    {
        *array = function_call(AS_JSONB, vec![array.clone()]);
        return documents;
    }
    function_call(AS_JSONB, vec![documents])
}

/// The array of documents that is a column of a function in FROM: with the type JSONB if the function has it.
pub(super) fn array_in_from(table: &str, function: &str, arguments: &str) -> String {
    match table.starts_with("jsonb_") && function == "json_values" {
        true => format!("{AS_JSONB}({function}({arguments}))"),
        false => format!("{function}({arguments})"),
    }
}

fn of_documents(name: &str, function: &Function) -> Result<Option<Expr>> {
    let common = common_name(name);
    match common.as_str() {
        "json_agg" | "json_arrayagg" => return aggregate(name, function, Aggregate::Array).map(Some),
        "json_group_array" => {
            return Ok(Some(or(aggregate(name, function, Aggregate::Array)?, "coalesce(NULL, json('[]'))")?));
        }
        "json_object_agg" | "json_objectagg" => return aggregate(name, function, Aggregate::Object).map(Some),
        "json_group_object" => {
            return Ok(Some(or(aggregate(name, function, Aggregate::Object)?, "coalesce(NULL, json('{}'))")?));
        }
        _ => {}
    }
    if function.over.is_some() || function.filter.is_some() || !function.within_group.is_empty() {
        return Ok(None);
    }
    if let "json_object" | "json_build_object" = common.as_str() {
        return object(name, function).map(Some);
    }
    let Some(args) = arguments(&as_row(function)) else { return Ok(None) };
    Ok(Some(match (common.as_str(), &args[..]) {
        ("json_build_array" | "json_array", _) => {
            let values = args.into_iter().map(document).collect::<Result<Vec<_>>>()?;
            function_call("json_build_array", values)
        }
        ("row_to_json" | "array_to_json" | "to_json" | "to_jsonb" | "json_quote", [value]) => document(value.clone())?,
        ("json_array_elements", [document]) => call("unnest(json_values(NULL))", [document.clone()])?,
        ("json_array_elements_text", [document]) => call("unnest(json_texts(NULL))", [document.clone()])?,
        ("json_extract" | "json_extract_string", [document, path]) => {
            if !is_path(path) {
                let what = format!("{name} with the path {path} (write it as a literal: '$.key[0]')");
                return Err(Error::Unsupported(what));
            }
            call("(NULL ->> NULL)", [document.clone(), path.clone()])?
        }
        ("json_extract" | "json_extract_string", [_, _, _, ..]) => {
            return Err(Error::Unsupported(format!("{name} with several paths (use json_array(d ->> '$.a', …))")));
        }
        ("json_extract_path", [_, _, ..]) => function_call("json_get_json", args),
        ("json_extract_path_text", [_, _, ..]) => function_call("json_as_text", args),
        ("json_set", [document, path, value]) if name == "jsonb_set" && !is_path(path) => {
            let args = [document.clone(), path.clone(), value.clone()];
            call("jsonb_set(NULL, CAST(NULL AS TEXT[]), json(NULL))", args)?
        }
        ("json_set", [document, path, value, inserts]) if name == "jsonb_set" && !is_path(path) => {
            let args = [document.clone(), path.clone(), value.clone(), inserts.clone()];
            call("jsonb_set(NULL, CAST(NULL AS TEXT[]), json(NULL), NULL)", args)?
        }
        ("json_set" | "json_insert" | "json_replace", [_, _, _, ..]) => {
            let is_value = |i: usize| i >= 2 && i.is_multiple_of(2);
            let args = args.into_iter().enumerate();
            let args = args.map(|(i, arg)| if is_value(i) { document(arg) } else { Ok(arg) });
            function_call(&common, args.collect::<Result<_>>()?)
        }
        ("json_merge_patch", [_, _]) => function_call("json_patch", args),
        ("json_typeof" | "json_array_length" | "json_object_keys" | "json_contains", [_, ..]) if common != name => {
            function_call(&common, args)
        }
        ("json_remove" | "json_patch" | "json_strip_nulls" | "json_pretty", [_, ..]) if common != name => {
            function_call(&common, args)
        }
        _ => return Ok(None),
    }))
}

/// `t.*` as argument means the row of `t`.
fn as_row(function: &Function) -> Function {
    let mut function = function.clone();
    if let FunctionArguments::List(list) = &mut function.args {
        for arg in &mut list.args {
            if let FunctionArg::Unnamed(value @ FunctionArgExpr::QualifiedWildcard(_)) = arg
                && let FunctionArgExpr::QualifiedWildcard(table) = value
                && let Some(table) = table.0.last().and_then(|name| name.as_ident())
            {
                *value = FunctionArgExpr::Expr(Expr::Identifier(table.clone()));
            }
        }
    }
    function
}

/// True for a literal path such as `$.key`.
fn is_path(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(&value.value, Value::SingleQuotedString(path) if path.starts_with('$')))
}

fn or(value: Expr, template: &str) -> Result<Expr> {
    call(template, [value])
}

/// The document of a value.
fn document(value: Expr) -> Result<Expr> {
    match &value {
        Expr::Function(function) if is_to_json(function) => Ok(value),
        _ => Ok(function_call(TO_JSON, vec![value])),
    }
}

/// True for a call of `to_json`.
pub(super) fn is_to_json(function: &Function) -> bool {
    matches!(&function.name.0[..], [name] if name.as_ident().is_some_and(|name| name.value == TO_JSON))
}

/// The plain call of a function.
pub(super) fn function_call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect();
    let args = FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// `json_object(k, v, …)` and the standard's `json_object(k: v, …)`, `json_object(k VALUE v, …)`.
fn object(name: &str, function: &Function) -> Result<Expr> {
    let unsupported = |what: &str| Error::Unsupported(format!("{name} with {what}"));
    let list = match &function.args {
        FunctionArguments::None => return Ok(function_call("json_build_object", Vec::new())),
        FunctionArguments::List(list) if list.duplicate_treatment.is_none() => list,
        _ => return Err(unsupported("these arguments")),
    };
    if let Some(clause) = list.clauses.first() {
        return Err(unsupported(&clause.to_string()));
    }
    let mut args = Vec::new();
    for arg in &list.args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => args.push(expr.clone()),
            FunctionArg::ExprNamed {
                name,
                arg: FunctionArgExpr::Expr(value),
                operator: FunctionArgOperator::Colon | FunctionArgOperator::Value,
            } => args.extend([name.clone(), value.clone()]),
            other => return Err(unsupported(&format!("the argument {other}"))),
        }
    }
    if args.len() == 1 {
        return Err(unsupported("one argument (use json_build_object(key, value, …))"));
    }
    if !args.len().is_multiple_of(2) {
        return Err(Error::Evaluation("argument list must have even number of elements".into()));
    }
    let args = args.into_iter().enumerate().map(|(i, arg)| if i % 2 == 1 { document(arg) } else { Ok(arg) });
    Ok(function_call("json_build_object", args.collect::<Result<_>>()?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Array,
    Object,
}

/// An array or object of the values of all rows.
fn aggregate(name: &str, function: &Function, kind: Aggregate) -> Result<Expr> {
    let mut function = as_row(function);
    let FunctionArguments::List(list) = &mut function.args else {
        return Err(Error::Unsupported(format!("{name} without arguments")));
    };
    let values = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    });
    if let (Aggregate::Array, Some(DuplicateTreatment::Distinct)) = (kind, list.duplicate_treatment) {
        // The keys of ORDER BY are values, too.
        function.name = ObjectName::from(vec![Ident::new("array_agg")]);
        return document(Expr::Function(function));
    }
    let (element, result) = match (kind, values.collect::<Option<Vec<_>>>().as_deref()) {
        (Aggregate::Array, Some([value])) => (document(value.clone())?, "json_array_of(NULL)"),
        (Aggregate::Object, Some([key, value])) => {
            let member = function_call("json_member", vec![key.clone(), document(value.clone())?]);
            (member, "json_object_of_members(NULL)")
        }
        _ => return Err(Error::Unsupported(format!("{name} with these arguments"))),
    };
    list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(element))];
    function.name = ObjectName::from(vec![Ident::new("array_agg")]);
    call(result, [Expr::Function(function)])
}
