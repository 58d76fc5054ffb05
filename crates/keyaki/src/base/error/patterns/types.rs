//! Types of operands and arguments; casts between types.

use super::names::arguments;
use super::text::sql_type;
use super::{Pattern, pattern};
use crate::base::error::Error;

pub(super) const PATTERNS: &[Pattern] = &[
    pattern("Cannot coerce arithmetic expression {} to valid types", |c| operator(c[0])),
    pattern("Cannot infer common argument type for {} operation {}", |c| operator(c[1])),
    pattern("Cannot infer common argument type for operation {}", |c| operator(c[0])),
    pattern("Cannot infer common type for bitwise operation {}", |c| operator(c[0])),
    pattern("Cannot infer common string type for string concat operation {}", |c| operator(c[0])),
    pattern("Cannot get result type for {} operation {}: {}", |c| operator(c[1])),
    pattern("There isn't a common type to coerce {} and {} in {} expression", |c| {
        operator(&format!("{} {} {}", c[0], c[2], c[1]))
    }),
    pattern("Unary operator '-' only supports {}", |_| operator_text("- text".into())),
    pattern("Unary operator '+' only supports {}", |_| operator_text("+ text".into())),
    pattern("Unary operator 'NOT' requires a boolean expression, got {}", |c| argument_type("NOT", "boolean", c[0])),
    pattern("Unsupported SQL unary operator {}", |c| operator_text(unary(c[0]).into())),
    pattern("Can not find compatible types to compare {} with [{}]", |c| {
        operator_text(format!("{} = {}", sql_type(c[0]), sql_type(arguments(c[1]).first().copied().unwrap_or(c[1]))))
    }),
    pattern("Cannot access field at argument {}: type {} is not Struct, Map, or Null", |c| {
        Error::DatatypeMismatch(format!("type {} has no fields", sql_type(c[1])))
    }),
    pattern("unnest() can only be applied to array, struct and null", |_| {
        Error::DatatypeMismatch("argument of unnest must be an array".into())
    }),
    pattern("Join condition must be boolean type, but got {}", |c| argument_type("JOIN/ON", "boolean", c[0])),
    pattern("Expected {} to be an integer or null, but got {}", |c| argument_type(c[0], "bigint", c[1])),
    pattern("Cannot create filter with non-boolean predicate '{}' returning {}", |c| {
        argument_type("WHERE", "boolean", c[1])
    }),
    pattern("Inconsistent data type across values list at row {} column {}. Was {} but found {}", |c| {
        Error::DatatypeMismatch(format!("VALUES types {} and {} cannot be matched", sql_type(c[2]), sql_type(c[3])))
    }),
    pattern("Cannot automatically convert {} to {}", |c| cannot_cast(c[0], c[1])),
    pattern("Unsupported CAST from {} to {}", |c| cannot_cast(c[0], c[1])),
    pattern("Casting from {} to {} not supported", |c| cannot_cast(c[0], c[1])),
];

/// `Utf8 + Int64`: an operator without an implementation for these types.
fn operator(expression: &str) -> Error {
    let words: Vec<&str> = expression.split(' ').collect();
    let is_operator = |word: &str| {
        !word.is_empty() && word.chars().all(|c| "+-*/%=<>!~|&^#@".contains(c))
            || ["AND", "OR", "LIKE", "ILIKE", "IS"].contains(&word)
    };
    let text = match words.iter().position(|word| is_operator(word)) {
        Some(at) => {
            let end =
                words[at..].iter().position(|word| word.chars().any(char::is_lowercase)).map_or(at + 1, |n| at + n);
            let side = |words: &[&str]| sql_type(&words.join(" "));
            format!("{} {} {}", side(&words[..at]), words[at..end].join(" "), side(&words[end..]))
        }
        None => expression.to_string(),
    };
    operator_text(text)
}

/// A unary operator of sqlparser as SQL.
fn unary(name: &str) -> &str {
    match name {
        "PGAbs" => "@",
        "PGBitwiseNot" | "BitwiseNot" | "Tilde" => "~",
        "PGSquareRoot" => "|/",
        "PGCubeRoot" => "||/",
        "PGPostfixFactorial" | "BangNot" => "!",
        "PGPrefixFactorial" => "!!",
        "Hash" => "#",
        other => other,
    }
}

fn operator_text(text: String) -> Error {
    Error::UndefinedFunction { signature: format!("operator {text}") }
}

fn argument_type(clause: &str, expected: &str, found: &str) -> Error {
    Error::DatatypeMismatch(format!("argument of {clause} must be type {expected}, not type {}", sql_type(found)))
}

fn cannot_cast(from: &str, to: &str) -> Error {
    Error::CannotCast { from: sql_type(from), to: sql_type(to) }
}

/// At least one text for each pattern.
#[cfg(test)]
pub(super) const EXAMPLES: &[super::Example] = &[
    (
        "Inconsistent data type across values list at row 1 column 0. Was FixedSizeBinary(16) but found Utf8",
        "42804",
        "VALUES types uuid and text cannot be matched",
    ),
    (
        "Cannot coerce arithmetic expression Utf8 + Decimal128(4, 2) to valid types",
        "42883",
        "operator does not exist: text + numeric(4,2)",
    ),
    (
        "Cannot infer common argument type for comparison operation Date32 = Int64",
        "42883",
        "operator does not exist: date = bigint",
    ),
    (
        "Cannot infer common argument type for operation Date32 -> Int64",
        "42883",
        "operator does not exist: date -> bigint",
    ),
    ("Cannot infer common type for bitwise operation Utf8 & Int64", "42883", "operator does not exist: text & bigint"),
    (
        "Cannot infer common string type for string concat operation Int64 || Int64",
        "42883",
        "operator does not exist: bigint || bigint",
    ),
    (
        "Cannot get result type for temporal operation Date32 + Boolean: Invalid argument error: more",
        "42883",
        "operator does not exist: date + boolean",
    ),
    (
        "There isn't a common type to coerce Int64 and Utf8 in LIKE expression",
        "42883",
        "operator does not exist: bigint LIKE text",
    ),
    ("Unary operator '-' only supports signed numeric", "42883", "operator does not exist: - text"),
    ("Unary operator '+' only supports numeric", "42883", "operator does not exist: + text"),
    (
        "Unary operator 'NOT' requires a boolean expression, got Int32",
        "42804",
        "argument of NOT must be type boolean, not type integer",
    ),
    (
        "Expected LIMIT to be an integer or null, but got Utf8",
        "42804",
        "argument of LIMIT must be type bigint, not type text",
    ),
    (
        "Cannot create filter with non-boolean predicate 't.id' returning Int32",
        "42804",
        "argument of WHERE must be type boolean, not type integer",
    ),
    ("Unsupported SQL unary operator PGAbs", "42883", "operator does not exist: @"),
    (
        "Can not find compatible types to compare Struct(\"c0\": Int64, \"c1\": Int64) with [Int64, Int64]",
        "42883",
        "operator does not exist: record = bigint",
    ),
    (
        "Cannot access field at argument 1: type Int32 is not Struct, Map, or Null",
        "42804",
        "type integer has no fields",
    ),
    ("unnest() can only be applied to array, struct and null", "42804", "argument of unnest must be an array"),
    (
        "Join condition must be boolean type, but got Utf8View",
        "42804",
        "argument of JOIN/ON must be type boolean, not type text",
    ),
    ("Cannot automatically convert Utf8 to Int32", "42846", "cannot cast type text to integer"),
    ("Unsupported CAST from Boolean to Date32", "42846", "cannot cast type boolean to date"),
    ("Casting from Boolean to Date32 not supported", "42846", "cannot cast type boolean to date"),
];
