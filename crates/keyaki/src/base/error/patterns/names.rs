//! Names of relations, columns, functions and settings; calls that match no signature.

use super::text::sql_type;
use super::{Pattern, pattern, relation};
use crate::base::error::{Error, ObjectKind};

pub(super) const PATTERNS: &[Pattern] = &[
    pattern("table '{}' not found", |c| Error::NotFound { kind: ObjectKind::Relation, name: relation(c[0]).into() }),
    pattern("failed to resolve schema: {}", |c| Error::NotFound { kind: ObjectKind::Schema, name: c[0].into() }),
    pattern("failed to resolve catalog: {}", |c| Error::NotFound { kind: ObjectKind::Database, name: c[0].into() }),
    pattern("table function '{}' not found", |c| undefined_function(c[0])),
    pattern("Invalid function '{}'{}", |c| undefined_function(c[0])),
    pattern("{}No function matches the given name and argument types '{}'.{}", |c| call(c[1])),
    pattern("'{}' does not support zero arguments{}", |c| call(&format!("{}()", c[0]))),
    pattern("Function '{}' expected at least one argument but received 0", |c| call(&format!("{}()", c[0]))),
    pattern("[return_type] SUM not supported for {}", |c| call(&format!("sum({})", c[0]))),
    pattern("Invalid qualifier {}", |c| Error::MissingFromEntry(relation(c[0]).into())),
    pattern("WITH query name \"{}\" specified more than once", |c| Error::DuplicateAlias(c[0].into())),
    pattern("Projections require unique expression names but the expression \"{}\" at position {}", |c| {
        let name = c[0].rsplit_once(" AS ").map_or(c[0], |(_, alias)| alias);
        Error::DuplicateColumn(name.rsplit('.').next().unwrap_or(name).into())
    }),
    pattern("The window {} is not defined!", |c| {
        Error::InvalidStatement(format!("window \"{}\" does not exist", c[0]))
    }),
    pattern("Could not find config namespace \"{}\"", |c| unknown_setting(c[0])),
    pattern("Config value \"{}\" not found on {}", |c| unknown_setting(c[0])),
    pattern("Column '{}' not found in schema{}", |c| Error::UndefinedColumn {
        column: c[0].into(),
        relation: None,
        similar: Vec::new(),
    }),
];

fn undefined_function(name: &str) -> Error {
    Error::UndefinedFunction { signature: format!("function {name}(...)") }
}

/// The error for a call such as `abs(Utf8)` that matches no signature.
fn call(call: &str) -> Error {
    let (name, types) = call.split_once('(').unwrap_or((call, ""));
    let types: Vec<String> =
        arguments(types.strip_suffix(')').unwrap_or(types)).iter().map(|ty| sql_type(ty)).collect();
    match (name, types.as_slice()) {
        ("array_element", [array, _]) if array.ends_with("[]") => {
            Error::DatatypeMismatch("array subscript must have type integer".into())
        }
        ("array_element", [array, _]) => {
            Error::DatatypeMismatch(format!("cannot subscript type {array} because it does not support subscripting"))
        }
        ("make_array" | "coalesce" | "nvl" | "ifnull" | "greatest" | "least", [first, second, others @ ..]) => {
            let name = if name == "make_array" { "ARRAY".into() } else { name.to_ascii_uppercase() };
            let other = [second].into_iter().chain(others).find(|other| *other != first).unwrap_or(second);
            Error::DatatypeMismatch(format!("{name} types {first} and {other} cannot be matched"))
        }
        _ if name.ends_with(" ANY") || name.ends_with(" ALL") => {
            Error::DatatypeMismatch("op ANY/ALL (array) requires array on right side".into())
        }
        _ => Error::UndefinedFunction { signature: format!("function {name}({})", types.join(", ")) },
    }
}

/// Splits at commas outside parentheses and brackets.
pub(super) fn arguments(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = list.split(|c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn unknown_setting(name: &str) -> Error {
    Error::NotFound { kind: ObjectKind::Setting, name: name.into() }
}

/// At least one text for each pattern.
#[cfg(test)]
pub(super) const EXAMPLES: &[super::Example] = &[
    ("table 'keyaki.public.t' not found", "42P01", "relation \"t\" does not exist"),
    ("failed to resolve schema: s", "3F000", "schema \"s\" does not exist"),
    ("failed to resolve catalog: c", "3D000", "database \"c\" does not exist"),
    ("table function 'f' not found", "42883", "function f(...) does not exist"),
    ("Invalid function 'uper'.\nDid you mean 'upper'?", "42883", "function uper(...) does not exist"),
    ("Invalid function 'f'.", "42883", "function f(...) does not exist"),
    (
        "Failed to coerce. No function matches the given name and argument types 'round(Utf8, Decimal128(4, 2))'. You \
         might need to add explicit type casts.\n\tCandidate functions:\n\tround(Float64)",
        "42883",
        "function round(text, numeric(4,2)) does not exist",
    ),
    (
        "No function matches the given name and argument types 'array_element(Utf8, Int64)'. You might need",
        "42804",
        "cannot subscript type text because it does not support subscripting",
    ),
    (
        "No function matches the given name and argument types 'make_array(Int64, Int64, Date32)'. You might need",
        "42804",
        "ARRAY types bigint and date cannot be matched",
    ),
    (
        "No function matches the given name and argument types '= ANY(Int32, Int64)'. You might need",
        "42804",
        "op ANY/ALL (array) requires array on right side",
    ),
    ("[return_type] SUM not supported for Null", "42883", "function sum(unknown) does not exist"),
    ("Invalid qualifier x", "42P01", "missing FROM-clause entry for table \"x\""),
    ("'abs' does not support zero arguments. Use more", "42883", "function abs() does not exist"),
    ("Function 'abs' expected at least one argument but received 0", "42883", "function abs() does not exist"),
    ("WITH query name \"a\" specified more than once", "42712", "table name \"a\" specified more than once"),
    (
        "Projections require unique expression names but the expression \"t.id\" at position 0 and \"t.id\" at position \
         1 have the same name. Consider aliasing (\"AS\") one of them.",
        "42701",
        "column \"id\" specified more than once",
    ),
    ("The window w is not defined!", "42000", "window \"w\" does not exist"),
    ("Could not find config namespace \"x\"", "42704", "unrecognized configuration parameter \"x\""),
    ("Config value \"x\" not found on ConfigOptions", "42704", "unrecognized configuration parameter \"x\""),
    ("Column 'x' not found in schema s", "42703", "column \"x\" does not exist"),
];
