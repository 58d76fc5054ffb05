//! Matching and rewriting of libraries' texts.

use ::datafusion::arrow::datatypes::DataType;
use ::datafusion::error::DataFusionError;

use crate::base::error::parser::decapitalized;
use crate::base::type_name;

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

/// The texts that the `{}` of a pattern match in `text`. Each matches as little as possible, the last one the
/// remainder.
pub(super) fn captures<'a>(pattern: &str, text: &'a str) -> Option<Vec<&'a str>> {
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

/// Removes the backtrace and leading prefixes.
pub(super) fn strip(message: &str) -> &str {
    let mut message = message.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or(message).trim();
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| message.strip_prefix(prefix)) {
        message = rest;
    }
    message
}

/// A text of a library in Keyaki's style: one line, without prefixes.
pub(super) fn plain(message: &str) -> String {
    let mut text = strip(message).split_whitespace().collect::<Vec<_>>().join(" ");
    for prefix in PREFIXES {
        text = text.replace(prefix, "");
    }
    decapitalized(&literals_as_sql(&text))
}

/// The name of the feature in a message about missing support.
pub(super) fn feature(message: &str) -> String {
    let text = plain(message);
    let text = text.strip_prefix("unsupported ").unwrap_or(&text);
    let text = text.strip_prefix("SQL ").unwrap_or(text).trim_end_matches(" yet");
    let ends = [" is not supported", " are not supported", " not supported", " is not implemented", " not implemented"];
    ends.iter().find_map(|end| text.strip_suffix(end)).unwrap_or(text).into()
}

/// Writes the literals of DataFusion's expressions, `Int64(1)` and `Utf8("x")`, as SQL: `1` and `'x'`.
pub(super) fn literals_as_sql(text: &str) -> String {
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

/// PostgreSQL's name of an Arrow type given as text.
pub(super) fn sql_type(text: &str) -> String {
    let text = text.trim().trim_matches('"');
    if text.starts_with("Struct(") {
        return "record".into();
    }
    let name = text.parse::<DataType>().map_or_else(|_| text.to_lowercase(), |ty| type_name(&ty));
    // SQL has no such types. Ranks are unsigned.
    name.strip_prefix("unsigned ").map(Into::into).unwrap_or(name)
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
}
