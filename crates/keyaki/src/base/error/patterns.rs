//! Errors for which DataFusion and Arrow provide only text.
//!
//! Only [`PATTERNS`] inspects these texts. A pattern is literal text with `{}` for any text. The first pattern that
//! matches determines the error. A text without a pattern keeps its wording, without prefixes, line breaks and
//! backtrace, in a variant chosen by the kind of the error.

use ::datafusion::arrow::datatypes::DataType;
use ::datafusion::common::utils::datafusion_strsim::levenshtein;
use ::datafusion::error::DataFusionError;

use super::parser::decapitalized;
use super::{Error, ObjectKind};
use crate::base::type_name;

/// A pattern of a library's text and the error it maps to.
struct Pattern {
    text: &'static str,
    /// Constructs the error from the captures, in order.
    error: fn(&[&str]) -> Error,
}

const fn pattern(text: &'static str, error: fn(&[&str]) -> Error) -> Pattern {
    Pattern { text, error }
}

/// Prefixes of libraries' texts, also inside other texts.
const PREFIXES: [&str; 22] = [
    "Arrow error: ",
    "Cast error: ",
    "Compute error: ",
    "Error during planning: ",
    "Execution error: ",
    "ExecutionJoin error: ",
    "External error: ",
    "External: ",
    "IO error: ",
    "Internal error: ",
    "Invalid argument error: ",
    "Invalid or Unsupported Configuration: ",
    "Not yet implemented: ",
    "Object Store error: ",
    "Parquet error: ",
    "Parser error: ",
    "Resources exhausted: ",
    "SQL error: ",
    "Schema error: ",
    "This feature is not implemented: ",
    "Arithmetic overflow: ",
    "sql parser error: ",
];

const QUERY_MEMORY_REMEDY: &str = "raise the memory of the database";

static PATTERNS: &[Pattern] = &[
    // Names.
    pattern("table '{}' not found", |c| Error::NotFound { kind: ObjectKind::Relation, name: relation(c[0]).into() }),
    pattern("failed to resolve schema: {}", |c| Error::NotFound { kind: ObjectKind::Schema, name: c[0].into() }),
    pattern("failed to resolve catalog: {}", |c| Error::NotFound { kind: ObjectKind::Database, name: c[0].into() }),
    pattern("table function '{}' not found", |c| undefined_function(c[0], None)),
    pattern("Invalid function '{}'.\nDid you mean '{}'?", |c| {
        undefined_function(c[0], is_similar(c[0], c[1]).then_some(c[1]))
    }),
    pattern("Invalid function '{}'{}", |c| undefined_function(c[0], None)),
    pattern("{}No function matches the given name and argument types '{}'.{}", |c| call(c[1])),
    pattern("'{}' does not support zero arguments{}", |c| call(&format!("{}()", c[0]))),
    pattern("Function '{}' expected at least one argument but received 0", |c| call(&format!("{}()", c[0]))),
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
        suggestion: None,
    }),
    // Types.
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
    pattern("Expected {} to be an integer or null, but got {}", |c| argument_type(c[0], "bigint", c[1])),
    pattern("Cannot create filter with non-boolean predicate '{}' returning {}", |c| {
        argument_type("WHERE", "boolean", c[1])
    }),
    pattern("Cannot automatically convert {} to {}", |c| cannot_cast(c[0], c[1])),
    pattern("Unsupported CAST from {} to {}", |c| cannot_cast(c[0], c[1])),
    pattern("Casting from {} to {} not supported", |c| cannot_cast(c[0], c[1])),
    // Clauses.
    pattern("{}While expanding wildcard, column \"{}\" must appear in the GROUP BY clause or {}", |c| grouping(c[1])),
    pattern("HAVING clause references: {} must appear in the GROUP BY clause or {}", |c| grouping(c[0])),
    pattern("Aggregate functions are not allowed in the WHERE clause{}", |_| {
        Error::Grouping("aggregate functions are not allowed in WHERE (use HAVING)".into())
    }),
    pattern("Aggregate function calls cannot be nested: {}", |_| {
        Error::Grouping("aggregate function calls cannot be nested".into())
    }),
    pattern("INTERSECT/EXCEPT query must have the same number of columns{}", |_| {
        Error::syntax("each INTERSECT or EXCEPT query must have the same number of columns")
    }),
    pattern("{} queries have different number of columns{}", |c| {
        Error::syntax(format!("each {} query must have the same number of columns", c[0]))
    }),
    pattern("Inconsistent data length across values list: {}", |_| {
        Error::syntax("VALUES lists must all be the same length")
    }),
    pattern("SELECT * with no tables specified is not valid", |_| {
        Error::syntax("SELECT * with no tables specified is not valid")
    }),
    pattern("{} should only return one column, but found {}", |_| {
        Error::syntax("subquery must return only one column")
    }),
    pattern("Too many columns! The subquery should only return one column{}", |_| {
        Error::syntax("subquery must return only one column")
    }),
    pattern("Order by column out of bounds, specified: {}, max: {}", |c| {
        Error::InvalidColumnReference(format!("ORDER BY position {} is not in select list", c[0]))
    }),
    pattern("Cannot find column with position {} in SELECT clause. {}", |c| {
        Error::InvalidColumnReference(format!("ORDER BY or GROUP BY position {} is not in select list", c[0]))
    }),
    pattern("For SELECT DISTINCT, ORDER BY expressions {} must appear in select list", |c| {
        Error::InvalidColumnReference(format!(
            "for SELECT DISTINCT, ORDER BY expressions must appear in select list: {}",
            c[0]
        ))
    }),
    pattern("SELECT DISTINCT ON expressions must match initial ORDER BY expressions", |_| {
        Error::InvalidColumnReference("SELECT DISTINCT ON expressions must match initial ORDER BY expressions".into())
    }),
    pattern("Source table contains {} columns but only {} names given as column alias", |c| {
        Error::InvalidColumnReference(format!("table has {} columns available but {} columns specified", c[0], c[1]))
    }),
    pattern("Placeholder '{}' was not provided a value for execution{}", |c| {
        Error::Unsupported(format!("parameter {} without a value", c[0]))
    }),
    pattern("LIMIT must be >= 0, '{}' was provided", |c| not_negative("LIMIT", c[0])),
    pattern("OFFSET must be >=0, '{}' was provided", |c| not_negative("OFFSET", c[0])),
    pattern("Correlated scalar subquery must be aggregated to return at most one row", |_| {
        Error::Unsupported("correlated scalar subqueries without an aggregate function".into())
    }),
    // Values.
    pattern("Scalar subquery returned more than one row", |_| Error::Cardinality),
    pattern("{}ivide by zero{}", |_| Error::DivisionByZero),
    pattern("Cannot cast string '{}' to value of {} type", |c| invalid_text(c[1], c[0])),
    pattern("Cannot cast value '{}' to value of Boolean type", |c| Error::invalid_text("boolean", c[0], None)),
    pattern("Can't cast value {} to type {}", |c| Error::out_of_range(sql_type(c[1]), c[0], None)),
    pattern("Error parsing timestamp from '{}': {}", |c| Error::invalid_text("timestamp", c[0], None)),
    pattern("Cannot cast to {}. Overflowing on {}", |c| Error::out_of_range(sql_type(c[0]), c[1], None)),
    pattern("Cannot cast to {}. Value overflows for output scale", |c| Error::OutOfRange {
        ty: sql_type(c[0]),
        value: None,
        column: None,
    }),
    pattern("{} is too large to store in a {} of precision {}. Max is {}", |c| {
        Error::out_of_range("numeric", c[0], None)
    }),
    pattern("{} is too small to store in a {} of precision {}. Min is {}", |c| {
        Error::out_of_range("numeric", c[0], None)
    }),
    pattern("parse decimal overflow ({})", |c| Error::out_of_range("numeric", c[0], None)),
    pattern("can't parse the string value {} to decimal", |c| Error::invalid_text("numeric", c[0], None)),
    pattern("Invalid input syntax for type {}: \"{}\"", |c| Error::invalid_text(c[0].to_lowercase(), c[1], None)),
    pattern("regex parse error:{}", |c| {
        let reason = c[0].rsplit_once("error: ").map_or(c[0], |(_, reason)| reason);
        Error::Evaluation(format!("invalid regular expression: {}", reason.trim()))
    }),
    pattern("Overflow happened on: {}", |c| Error::out_of_range(super::ANY_NUMBER, c[0], None)),
    pattern("Encountered non UTF-8 data{}", |_| Error::InvalidEncoding { column: None }),
    pattern("invalid UTF-8{}", |_| Error::InvalidEncoding { column: None }),
    // Resources.
    pattern(
        "{}Failed to allocate additional {} for {} with {} already allocated for this reservation - {} remain available \
         for the total memory pool: {}",
        |c| Error::OutOfMemory {
            consumer: consumer(c[2]),
            requested: size(c[1]),
            available: size(c[4]),
            budget: c[5].split_once("pool_size: ").and_then(|(_, rest)| size(rest.split(')').next().unwrap_or(rest))),
            remedy: QUERY_MEMORY_REMEDY,
        },
    ),
    pattern("Not enough memory to continue external sort{}", |_| query_memory("the sort")),
    pattern("The used disk space during the spilling process has exceeded the allowable limit of {}. {}", |c| {
        Error::SpillLimit { limit: c[0].into() }
    }),
];

/// An error of planning.
pub(super) fn plan(message: &str) -> Error {
    find(message).unwrap_or_else(|| Error::InvalidStatement(plain(message)))
}

/// An error of evaluating an expression.
pub(super) fn evaluation(message: &str) -> Error {
    find(message).unwrap_or_else(|| Error::Evaluation(plain(message)))
}

/// An arithmetic overflow.
pub(super) fn overflow(message: &str) -> Error {
    find(message).unwrap_or_else(|| Error::out_of_range(super::ANY_NUMBER, &plain(message), None))
}

/// Memory or disk space is exhausted.
pub(super) fn resources(message: &str) -> Error {
    find(message).unwrap_or_else(|| query_memory("the query"))
}

/// A violated invariant, or a case that a library does not handle.
pub(super) fn internal(message: &str) -> Error {
    find(message).unwrap_or_else(|| Error::Internal(plain(message)))
}

/// A feature that a library does not support.
pub(super) fn not_implemented(message: &str) -> Error {
    find(message).unwrap_or_else(|| Error::Unsupported(feature(message)))
}

/// The name of the feature in a message about missing support.
fn feature(message: &str) -> String {
    let text = plain(message);
    let text = text.strip_prefix("unsupported ").unwrap_or(&text);
    let text = text.strip_prefix("SQL ").unwrap_or(text).trim_end_matches(" yet");
    let ends = [" is not supported", " are not supported", " not supported", " is not implemented", " not implemented"];
    ends.iter().find_map(|end| text.strip_suffix(end)).unwrap_or(text).into()
}

/// A relation's name without the names of the database and its only schema.
pub(super) fn relation(name: &str) -> &str {
    let name = name.strip_prefix("keyaki.").unwrap_or(name);
    name.strip_prefix("public.").unwrap_or(name)
}

fn find(message: &str) -> Option<Error> {
    let message = strip(message);
    PATTERNS.iter().find_map(|pattern| captures(pattern.text, message).map(|captures| (pattern.error)(&captures)))
}

/// Removes the backtrace and leading prefixes.
fn strip(message: &str) -> &str {
    let mut message = message.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or(message).trim();
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| message.strip_prefix(prefix)) {
        message = rest;
    }
    message
}

/// A text of a library in Keyaki's style: one line, without prefixes.
fn plain(message: &str) -> String {
    let mut text = strip(message).split_whitespace().collect::<Vec<_>>().join(" ");
    for prefix in PREFIXES {
        text = text.replace(prefix, "");
    }
    decapitalized(&literals_as_sql(&text))
}

/// Writes the literals of DataFusion's expressions, `Int64(1)` and `Utf8("x")`, as SQL: `1` and `'x'`.
fn literals_as_sql(text: &str) -> String {
    const TYPES: [&str; 7] = ["Int64(", "Int32(", "UInt64(", "Float64(", "Boolean(", "Utf8(\"", "Utf8View(\""];
    let mut out = String::new();
    let mut rest = text;
    while let Some((start, ty)) = TYPES.iter().filter_map(|ty| Some((rest.find(ty)?, *ty))).min() {
        let is_text = ty.ends_with('"');
        let value = &rest[start + ty.len()..];
        let Some(end) = value.find(if is_text { "\")" } else { ")" }) else { break };
        let quote = if is_text { "'" } else { "" };
        out.push_str(&format!("{}{quote}{}{quote}", &rest[..start], &value[..end]));
        rest = &value[end + if is_text { 2 } else { 1 }..];
    }
    out + rest
}

/// The texts that the `{}` of a pattern match in `text`. Each matches as little as possible, the last one the
/// remainder.
fn captures<'a>(pattern: &str, text: &'a str) -> Option<Vec<&'a str>> {
    let mut literals = pattern.split("{}");
    let mut rest = text.strip_prefix(literals.next()?)?;
    let mut captures = Vec::new();
    let mut literals = literals.peekable();
    while let Some(literal) = literals.next() {
        let is_last = literals.peek().is_none();
        let end = match (is_last, literal) {
            (true, "") => rest.len(),
            (true, literal) => rest.strip_suffix(literal)?.len(),
            (false, literal) => rest.find(literal)?,
        };
        captures.push(&rest[..end]);
        rest = &rest[end + literal.len()..];
    }
    rest.is_empty().then_some(captures)
}

/// DataFusion suggests the most similar function, however different it is. Ties are broken at random.
fn is_similar(name: &str, suggestion: &str) -> bool {
    levenshtein(name, suggestion) * 2 <= name.chars().count()
}

fn undefined_function(name: &str, suggestion: Option<&str>) -> Error {
    Error::UndefinedFunction { signature: format!("function {name}(...)"), suggestion: suggestion.map(Into::into) }
}

/// The error for a call such as `abs(Utf8)` that matches no signature.
fn call(call: &str) -> Error {
    let (name, types) = call.split_once('(').unwrap_or((call, ""));
    let types: Vec<String> =
        arguments(types.strip_suffix(')').unwrap_or(types)).iter().map(|ty| sql_type(ty)).collect();
    Error::UndefinedFunction { signature: format!("function {name}({})", types.join(", ")), suggestion: None }
}

/// Splits at commas outside parentheses and brackets.
fn arguments(list: &str) -> Vec<&str> {
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

fn operator_text(text: String) -> Error {
    Error::UndefinedFunction { signature: format!("operator {text}"), suggestion: None }
}

fn argument_type(clause: &str, expected: &str, found: &str) -> Error {
    Error::DatatypeMismatch(format!("argument of {clause} must be type {expected}, not type {}", sql_type(found)))
}

fn grouping(column: &str) -> Error {
    let column = literals_as_sql(column);
    Error::Grouping(format!(
        "column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function"
    ))
}

fn unknown_setting(name: &str) -> Error {
    Error::NotFound { kind: ObjectKind::Setting, name: name.into() }
}

fn not_negative(clause: &str, value: &str) -> Error {
    Error::InvalidParameter { name: clause.into(), value: value.into(), expected: "a number of rows from 0".into() }
}

fn cannot_cast(from: &str, to: &str) -> Error {
    Error::CannotCast { from: sql_type(from), to: sql_type(to) }
}

fn invalid_text(ty: &str, value: &str) -> Error {
    Error::unfit_text(sql_type(ty), value, None)
}

fn query_memory(consumer: &str) -> Error {
    Error::OutOfMemory {
        consumer: consumer.into(),
        requested: None,
        available: None,
        budget: None,
        remedy: QUERY_MEMORY_REMEDY,
    }
}

/// A description of DataFusion's memory consumer, for example of `ExternalSorter[3]`.
fn consumer(name: &str) -> String {
    let name = name.split(['[', '#']).next().unwrap_or(name);
    let words: [(&str, &str); 7] = [
        ("Sort", "the sort"),
        ("HashJoin", "the hash join"),
        ("NestedLoopJoin", "the nested loop join"),
        ("SMJ", "the merge join"),
        ("Aggregate", "the aggregation"),
        ("Grouped", "the aggregation"),
        ("Repartition", "the repartitioning"),
    ];
    let known = words.iter().find(|(part, _)| name.contains(part));
    known.map_or_else(|| name.to_string(), |(_, words)| (*words).to_string())
}

/// Parses a size such as `896.0 MB` to bytes. DataFusion's units are powers of 1024.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let shift = ["B", "KB", "MB", "GB", "TB"].iter().position(|known| *known == unit)? * 10;
    Some((number.parse::<f64>().ok()? * (1u64 << shift) as f64) as u64)
}

/// PostgreSQL's name of an Arrow type given as text.
fn sql_type(text: &str) -> String {
    let text = text.trim().trim_matches('"');
    text.parse::<DataType>().map_or_else(|_| text.to_lowercase(), |ty| type_name(&ty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_take_little_and_the_last_one_the_rest() {
        assert_eq!(captures("a {} b {}", "a 1 b 2 b 3"), Some(vec!["1", "2 b 3"]));
        assert_eq!(captures("{}x{} end", "1x2 end end"), Some(vec!["1", "2 end"]));
        assert_eq!(captures("a {} b", "a 1 c"), None);
        assert_eq!(captures("same", "same"), Some(vec![]));
        assert_eq!(captures("same", "same thing"), None);
    }

    #[test]
    fn texts_without_a_pattern_become_plain() {
        let text = "Error during planning: Some feature.\n  Arrow error: more\n\nbacktrace: 0: main";
        assert_eq!(plan(text).to_string(), "some feature. more");
        assert_eq!(literals_as_sql("a > Int64(1) AND b = Utf8(\"x\")"), "a > 1 AND b = 'x'");
        assert_eq!(feature("Unsupported SQL type X"), "type X");
        assert_eq!(feature("GROUP BY ALL is not supported yet."), "GROUP BY ALL");
        assert_eq!(feature("UPDATE not implemented"), "UPDATE");
    }

    #[test]
    fn sizes() {
        assert_eq!(size("1.5 KB"), Some(1536));
        assert_eq!(size("2.0 GB"), Some(2 << 30));
        assert_eq!(size("many"), None);
    }

    /// Text, SQLSTATE, message: at least one text for each pattern.
    const EXAMPLES: &[(&str, &str, &str)] = &[
        ("table 'keyaki.public.t' not found", "42P01", "relation \"t\" does not exist"),
        ("failed to resolve schema: s", "3F000", "schema \"s\" does not exist"),
        ("failed to resolve catalog: c", "3D000", "database \"c\" does not exist"),
        ("table function 'f' not found", "42883", "function f(...) does not exist"),
        (
            "Invalid function 'uper'.\nDid you mean 'upper'?",
            "42883",
            "function uper(...) does not exist (perhaps you meant \"upper\")",
        ),
        ("Invalid function 'nix'.\nDid you mean 'pi'?", "42883", "function nix(...) does not exist"),
        ("Invalid function 'f'.", "42883", "function f(...) does not exist"),
        (
            "Failed to coerce. No function matches the given name and argument types 'round(Utf8, Decimal128(4, 2))'. You \
             might need to add explicit type casts.\n\tCandidate functions:\n\tround(Float64)",
            "42883",
            "function round(text, numeric(4,2)) does not exist",
        ),
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
        (
            "Cannot infer common type for bitwise operation Utf8 & Int64",
            "42883",
            "operator does not exist: text & bigint",
        ),
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
        ("Cannot automatically convert Utf8 to Int32", "42846", "cannot cast type text to integer"),
        ("Unsupported CAST from Boolean to Date32", "42846", "cannot cast type boolean to date"),
        ("Casting from Boolean to Date32 not supported", "42846", "cannot cast type boolean to date"),
        (
            "Column in SELECT must be in GROUP BY or an aggregate function: While expanding wildcard, column \"t.id\" must \
             appear in the GROUP BY clause or must be part of an aggregate function, currently only \"t.name\" appears",
            "42803",
            "column \"t.id\" must appear in the GROUP BY clause or be used in an aggregate function",
        ),
        (
            "HAVING clause references: t.id must appear in the GROUP BY clause or be used in an aggregate function",
            "42803",
            "column \"t.id\" must appear in the GROUP BY clause or be used in an aggregate function",
        ),
        (
            "Aggregate functions are not allowed in the WHERE clause. Consider using HAVING instead",
            "42803",
            "aggregate functions are not allowed in WHERE (use HAVING)",
        ),
        (
            "Aggregate function calls cannot be nested: 'count(Int64(1))' is nested inside 'sum(count(*))'",
            "42803",
            "aggregate function calls cannot be nested",
        ),
        (
            "INTERSECT/EXCEPT query must have the same number of columns. Left is 1 and right is 2.",
            "42601",
            "each INTERSECT or EXCEPT query must have the same number of columns",
        ),
        (
            "UNION queries have different number of columns: left has 1 columns whereas right has 2 columns",
            "42601",
            "each UNION query must have the same number of columns",
        ),
        (
            "Inconsistent data length across values list: got 1 values in row 1 but expected 2",
            "42601",
            "VALUES lists must all be the same length",
        ),
        ("SELECT * with no tables specified is not valid", "42601", "SELECT * with no tables specified is not valid"),
        (
            "Scalar subquery should only return one column, but found 2: a, b",
            "42601",
            "subquery must return only one column",
        ),
        (
            "Too many columns! The subquery should only return one column: a, b",
            "42601",
            "subquery must return only one column",
        ),
        ("Order by column out of bounds, specified: 5, max: 1", "42P10", "ORDER BY position 5 is not in select list"),
        (
            "Cannot find column with position 5 in SELECT clause. Valid columns: 1 to 2",
            "42P10",
            "ORDER BY or GROUP BY position 5 is not in select list",
        ),
        (
            "For SELECT DISTINCT, ORDER BY expressions t.b must appear in select list",
            "42P10",
            "for SELECT DISTINCT, ORDER BY expressions must appear in select list: t.b",
        ),
        (
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            "42P10",
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
        ),
        (
            "Source table contains 2 columns but only 3 names given as column alias",
            "42P10",
            "table has 2 columns available but 3 columns specified",
        ),
        (
            "Placeholder '$1' was not provided a value for execution.",
            "0A000",
            "not supported: parameter $1 without a value",
        ),
        (
            "LIMIT must be >= 0, '-1' was provided",
            "22023",
            "invalid value for parameter \"LIMIT\": \"-1\" (expected a number of rows from 0)",
        ),
        (
            "OFFSET must be >=0, '-1' was provided",
            "22023",
            "invalid value for parameter \"OFFSET\": \"-1\" (expected a number of rows from 0)",
        ),
        (
            "Correlated scalar subquery must be aggregated to return at most one row",
            "0A000",
            "not supported: correlated scalar subqueries without an aggregate function",
        ),
        (
            "Scalar subquery returned more than one row",
            "21000",
            "more than one row returned by a subquery used as an expression",
        ),
        ("Divide by zero error", "22012", "division by zero"),
        (
            "Cast error: Cannot cast string 'abc' to value of Int32 type",
            "22P02",
            "invalid input syntax for type integer: \"abc\"",
        ),
        (
            "Cannot cast string '99999999999' to value of Int32 type",
            "22003",
            "value \"99999999999\" is out of range for type integer",
        ),
        (
            "Cannot cast value 'maybe' to value of Boolean type",
            "22P02",
            "invalid input syntax for type boolean: \"maybe\"",
        ),
        ("Can't cast value 99999 to type Int16", "22003", "value \"99999\" is out of range for type smallint"),
        (
            "Parser error: Error parsing timestamp from 'soon': error parsing date",
            "22007",
            "invalid input syntax for type timestamp: \"soon\"",
        ),
        (
            "Cannot cast to Decimal128(4, 2). Overflowing on 12345",
            "22003",
            "value \"12345\" is out of range for type numeric(4,2)",
        ),
        ("Cannot cast to Decimal128(4, 2). Value overflows for output scale", "22003", "numeric(4,2) out of range"),
        (
            "123.45 is too large to store in a Decimal128 of precision 4. Max is 99.99",
            "22003",
            "value \"123.45\" is out of range for type numeric",
        ),
        (
            "-123.45 is too small to store in a Decimal128 of precision 4. Min is -99.99",
            "22003",
            "value \"-123.45\" is out of range for type numeric",
        ),
        ("parse decimal overflow (1e99)", "22003", "value \"1e99\" is out of range for type numeric"),
        ("can't parse the string value abc to decimal", "22P02", "invalid input syntax for type numeric: \"abc\""),
        (
            "Invalid input syntax for type INTERVAL: \"soon\"",
            "22007",
            "invalid input syntax for type interval: \"soon\"",
        ),
        (
            "regex parse error:\n    (\n    ^\nerror: unclosed group",
            "22000",
            "invalid regular expression: unclosed group",
        ),
        ("Overflow happened on: 9 * 9", "22003", "numeric value out of range: \"9 * 9\""),
        ("Encountered non UTF-8 data: text", "22021", "invalid byte sequence for encoding \"UTF8\""),
        ("invalid UTF-8 in binary literal", "22021", "invalid byte sequence for encoding \"UTF8\""),
        (
            "Additional allocation failed for ExternalSorter[0] with top memory consumers (across reservations) as:\n  \
             ExternalSorter[0]#1(can spill: true) consumed 1.0 MB\nError: Failed to allocate additional 2.0 MB for \
             ExternalSorter[0] with 1.0 MB already allocated for this reservation - 512.0 KB remain available for the total \
             memory pool: fair(pool_size: 8.0 MB)",
            "53200",
            "out of memory: the sort needs 2.0 MiB, 512.0 KiB of the budget of 8.0 MiB are left (raise the memory of the \
             database)",
        ),
        (
            "Not enough memory to continue external sort. Consider more",
            "53200",
            "out of memory: the sort needs more memory, which exceeds the budget (raise the memory of the database)",
        ),
        (
            "The used disk space during the spilling process has exceeded the allowable limit of 100.0 GB. Try increasing x",
            "53100",
            "temporary files of the query exceed 100.0 GB",
        ),
    ];

    #[test]
    fn every_pattern_has_an_example() {
        let mut seen = vec![false; PATTERNS.len()];
        for (text, state, message) in EXAMPLES {
            let stripped = strip(text);
            let pattern = PATTERNS.iter().position(|pattern| captures(pattern.text, stripped).is_some());
            seen[pattern.unwrap_or_else(|| panic!("no pattern for {text:?}"))] = true;
            let error = plan(text);
            assert_eq!((error.sqlstate().code(), error.to_string().as_str()), (*state, *message), "{text}");
        }
        for (pattern, seen) in PATTERNS.iter().zip(seen) {
            assert!(seen, "no example of {:?}", pattern.text);
        }
    }
}
