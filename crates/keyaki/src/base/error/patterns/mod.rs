//! Errors for which DataFusion and Arrow provide only text.
//!
//! Only the patterns of this folder inspect these texts. A pattern is literal text with `{}` for any text. Each subject
//! has a file with its patterns; `text` matches texts with patterns. The first pattern that matches determines the error.
//! A text without a pattern keeps its wording, without prefixes, line breaks and backtrace, in a variant chosen by the
//! kind of the error.

mod clauses;
mod limits;
mod names;
mod text;
mod types;
mod values;

use super::{ANY_NUMBER, Error};
use limits::query_memory;
use text::{captures, feature, plain, strip};

/// A pattern of a library's text and the error it maps to.
struct Pattern {
    text: &'static str,
    /// Constructs the error from the captures, in order.
    error: fn(&[&str]) -> Error,
}

const fn pattern(text: &'static str, error: fn(&[&str]) -> Error) -> Pattern {
    Pattern { text, error }
}

/// All patterns, in the order in which they are tried.
fn patterns() -> impl Iterator<Item = &'static Pattern> {
    [names::PATTERNS, types::PATTERNS, clauses::PATTERNS, values::PATTERNS, limits::PATTERNS].into_iter().flatten()
}

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
    find(message).unwrap_or_else(|| Error::out_of_range(ANY_NUMBER, &plain(message), None))
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

/// A relation's name without the names of the database and its only schema.
pub(super) fn relation(name: &str) -> &str {
    let name = name.strip_prefix("keyaki.").unwrap_or(name);
    name.strip_prefix("public.").unwrap_or(name)
}

fn find(message: &str) -> Option<Error> {
    let message = strip(message);
    patterns().find_map(|pattern| captures(pattern.text, message).map(|captures| (pattern.error)(&captures)))
}

/// Text, SQLSTATE, message.
#[cfg(test)]
type Example = (&'static str, &'static str, &'static str);

#[cfg(test)]
mod tests {
    use super::text::literals_as_sql;
    use super::*;

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
    fn every_pattern_has_an_example() {
        let examples = [names::EXAMPLES, types::EXAMPLES, clauses::EXAMPLES, values::EXAMPLES, limits::EXAMPLES];
        let mut seen = vec![false; patterns().count()];
        for (text, state, message) in examples.into_iter().flatten() {
            let stripped = strip(text);
            let pattern = patterns().position(|pattern| captures(pattern.text, stripped).is_some());
            seen[pattern.unwrap_or_else(|| panic!("no pattern for {text:?}"))] = true;
            let error = plan(text);
            assert_eq!((error.sqlstate().code(), error.to_string().as_str()), (*state, *message), "{text}");
        }
        for (pattern, seen) in patterns().zip(seen) {
            assert!(seen, "no example of {:?}", pattern.text);
        }
    }
}
