//! Patterns of LIKE, SIMILAR TO and PostgreSQL's regular expressions, in the forms that DataFusion evaluates: LIKE with the
//! backslash as escape character, and regular expressions of the crate `regex`.
//!
//! The translations are exact for the syntax that both have. PostgreSQL's `.` also matches the end of a line.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field};
use crate::{Error, Result};

/// The escape character of LIKE and SIMILAR TO without ESCAPE.
pub(crate) const ESCAPE: char = '\\';

/// The escape character of a clause ESCAPE; `None` for an empty text.
///
/// # Errors
/// `Evaluation` for a longer text.
pub(crate) fn escape_of(text: &str) -> Result<Option<char>> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (first, None) => Ok(first),
        _ => Err(Error::Evaluation("invalid escape string: it must be empty or one character".into())),
    }
}

/// A pattern of LIKE whose escape character is the backslash.
///
/// # Errors
/// `InvalidEscape` for a pattern that ends with the escape character.
pub(crate) fn like(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut output = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let literal = match escape {
            Some(escape) if c == escape => chars.next().ok_or(Error::InvalidEscape("LIKE"))?,
            _ if matches!(c, '%' | '_') => {
                output.push(c);
                continue;
            }
            _ => c,
        };
        if matches!(literal, '%' | '_' | '\\') {
            output.push('\\');
        }
        output.push(literal);
    }
    Ok(output)
}

/// A pattern of SIMILAR TO as a regular expression.
///
/// # Errors
/// As [`like`].
pub(crate) fn similar(pattern: &str, escape: Option<char>) -> Result<String> {
    similar_with(pattern, escape, false)
}

/// A pattern of `substring(text FROM pattern FOR escape)` as a regular expression: its first group is the part between
/// two separators, which are the escape character and a double quote. As in PostgreSQL, the part before it is as short
/// as possible.
///
/// # Errors
/// As [`like`]; `Evaluation` for more than two separators.
pub(crate) fn similar_part(pattern: &str, escape: Option<char>) -> Result<String> {
    similar_with(pattern, escape, true)
}

fn similar_with(pattern: &str, escape: Option<char>, has_separators: bool) -> Result<String> {
    let mut output = String::from("(?s)^(?:");
    // True for repetitions that match as little as possible.
    let mut is_lazy = has_separators && escape.is_some_and(|escape| pattern.contains(&format!("{escape}\"")));
    let mut separators = 0;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let start = output.len();
        match c {
            c if Some(c) == escape => match chars.next() {
                Some('"') if has_separators => {
                    separators += 1;
                    is_lazy = false;
                    output.push_str(match separators {
                        1 => ")(",
                        2 => ")(?:",
                        _ => {
                            return Err(Error::Evaluation(
                                "SQL regular expression may not contain more than two escape-double-quote separators"
                                    .into(),
                            ));
                        }
                    });
                }
                Some(next) => push_escaped(&mut output, next),
                None => return Err(Error::InvalidEscape("SIMILAR TO")),
            },
            '%' => output.push_str(".*"),
            '_' => output.push('.'),
            '(' => output.push_str("(?:"),
            '[' => push_set(&mut output, &mut chars, escape)?,
            '|' | '*' | '+' | '?' | '{' | '}' | ')' => output.push(c),
            c => push_literal(&mut output, c),
        }
        if is_lazy && matches!(&output[start..], ".*" | "*" | "+" | "?" | "}") {
            output.push('?');
        }
    }
    output.push_str(")$");
    Ok(output)
}

/// True if a pattern of SIMILAR TO means the same for LIKE.
pub(crate) fn is_like(pattern: &str, escape: Option<char>) -> bool {
    !pattern.contains(['|', '*', '+', '?', '{', '}', '(', ')', '[', ']'])
        && !escape.is_some_and(|c| pattern.contains(c))
}

/// A regular expression of PostgreSQL as one of the crate `regex`. `dots`: a dot in it matches the end of a line.
///
/// # Errors
/// `Unsupported` for back-references and conditions on the text around a match.
pub(crate) fn posix(pattern: &str, dots: bool) -> Result<String> {
    let mut output = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    let mut has_dot = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('m') => output.push_str(r"\b{start}"),
                Some('M') => output.push_str(r"\b{end}"),
                Some('y') => output.push_str(r"\b"),
                Some('Y') => output.push_str(r"\B"),
                Some('Z') => output.push_str(r"\z"),
                Some('e') => output.push_str(r"\x1B"),
                Some(digit @ '1'..='9') => {
                    return Err(Error::Unsupported(format!("back-references in regular expressions (\\{digit})")));
                }
                Some(next) => push_escaped(&mut output, next),
                None => output.push('\\'),
            },
            '[' => push_set(&mut output, &mut chars, Some('\\'))?,
            '(' if chars.peek() == Some(&'?') => {
                let ahead: String = chars.clone().skip(1).take(2).collect();
                if ahead.starts_with(['=', '!']) || ahead == "<=" || ahead == "<!" {
                    return Err(Error::Unsupported("look-around in regular expressions ((?=…), (?!…), (?<=…))".into()));
                }
                output.push('(');
            }
            '{' if !chars.peek().is_some_and(char::is_ascii_digit) => output.push_str(r"\{"),
            c => {
                has_dot |= c == '.';
                output.push(c);
            }
        }
    }
    Ok(if has_dot && dots { format!("(?s){output}") } else { output })
}

/// As [`posix`], with options as a text.
///
/// # Errors
/// As [`posix`].
pub(crate) fn posix_with(pattern: &str, options: &str) -> Result<String> {
    posix(pattern, options.contains(DOTS))
}

/// Appends a character that means itself.
fn push_literal(output: &mut String, c: char) {
    // A comma or a digit can be a part of `{2,3}`.
    if r"\.+*?()|[]{}^$#&-~".contains(c) {
        output.push('\\');
    }
    output.push(c);
}

/// Appends an escape: of a class of characters, or of a character that means itself.
fn push_escaped(output: &mut String, c: char) {
    if c.is_ascii_alphanumeric() {
        output.push('\\');
        output.push(c);
    } else {
        push_literal(output, c);
    }
}

/// Classes of characters in sets.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Appends a set of characters in brackets, whose opening bracket has been read. The crate `regex` has nested sets and
/// operators in sets.
///
/// # Errors
/// `Evaluation` for unknown classes.
fn push_set(output: &mut String, chars: &mut Peekable<Chars<'_>>, escape: Option<char>) -> Result<()> {
    for (posix, own) in [("[:<:]]", r"\b{start}"), ("[:>:]]", r"\b{end}")] {
        if chars.clone().take(posix.len()).collect::<String>() == posix {
            chars.nth(posix.len() - 1);
            output.push_str(own);
            return Ok(());
        }
    }
    output.push('[');
    if chars.next_if_eq(&'^').is_some() {
        output.push('^');
    }
    // A minus sign between two characters is that of a range.
    let (mut can_begin_range, mut ends_range) = (false, false);
    if chars.next_if_eq(&']').is_some() {
        output.push_str(r"\]");
        can_begin_range = true;
    }
    while let Some(c) = chars.next() {
        let is_character = match c {
            ']' => {
                output.push(']');
                return Ok(());
            }
            '-' if can_begin_range && chars.peek().is_some_and(|next| *next != ']') => {
                output.push('-');
                (can_begin_range, ends_range) = (false, true);
                continue;
            }
            c if Some(c) == escape => {
                match chars.next() {
                    Some(next) => push_escaped(output, next),
                    None => output.push_str(r"\\"),
                }
                true
            }
            '[' => match chars.peek().copied() {
                Some(':') => {
                    let class: String = chars.by_ref().skip(1).take_while(|c| *c != ':').collect();
                    if !CLASSES.contains(&class.as_str()) || chars.next_if_eq(&']').is_none() {
                        let problem = "invalid regular expression: invalid character class";
                        return Err(Error::Evaluation(problem.into()));
                    }
                    output.push_str("[:");
                    output.push_str(&class);
                    output.push_str(":]");
                    false
                }
                Some(kind @ ('.' | '=')) => {
                    chars.next();
                    while let Some(c) = chars.next() {
                        if c == kind && chars.next_if_eq(&']').is_some() {
                            break;
                        }
                        push_literal(output, c);
                    }
                    true
                }
                _ => {
                    output.push_str(r"\[");
                    true
                }
            },
            '&' | '~' | '\\' | '-' => {
                push_literal(output, c);
                true
            }
            c => {
                output.push(c);
                true
            }
        };
        can_begin_range = is_character && !ends_range;
        ends_range = false;
    }
    Ok(())
}

/// Option of `posix_pattern`: dots match the ends of lines.
pub(crate) const DOTS: &str = "s";

/// The translations of patterns that are not literals, as functions of the pattern and the escape character or the options.
pub(crate) fn functions() -> [ScalarUDF; 3] {
    [Kind::Like, Kind::Similar, Kind::Posix].map(|kind| {
        let signature = Signature::exact(vec![DataType::Utf8View; 2], Volatility::Immutable);
        ScalarUDF::new_from_impl(Translate { kind, signature })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Like,
    Similar,
    Posix,
}

/// The translation of a pattern.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Translate {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for Translate {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Like => "like_pattern",
            Kind::Similar => "similar_pattern",
            Kind::Posix => "posix_pattern",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8View)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), DataType::Utf8View, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let [patterns, options] = [arrays[0].as_string_view(), arrays[1].as_string_view()];
        let translated = patterns.iter().zip(options).map(|both| match both {
            (Some(pattern), Some(option)) => match self.kind {
                Kind::Like => like(pattern, escape_of(option)?).map(Some),
                Kind::Similar => similar(pattern, escape_of(option)?).map(Some),
                Kind::Posix => posix_with(pattern, option).map(Some),
            },
            _ => Ok(None),
        });
        let translated: StringViewArray = translated.collect::<Result<_>>()?;
        result(Arc::new(translated) as ArrayRef, is_single)
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn like_patterns_have_backslashes() {
        for (pattern, escape, expected) in [
            ("a!_c%", "!", r"a\_c%"),
            ("a!!b!c", "!", "a!bc"),
            (r"a\%", "!", r"a\\%"),
            (r"a\%", "", r"a\\%"),
            (r"a\%_", "\\", r"a\%_"),
            ("a%%b", "%", r"a\%b"),
            ("é_ü", "é", r"\_ü"),
        ] {
            assert_eq!(like(pattern, escape_of(escape).unwrap()).unwrap(), expected, "{pattern}");
        }
        assert!(like("a!", Some('!')).is_err() && escape_of("ab").is_err());
    }

    #[test]
    fn similar_patterns_match_whole_texts() {
        for (text, pattern, expected) in [
            ("abc", "(a|x)b%", true),
            ("abc", "abc", true),
            ("abc", "a", false),
            ("abc", "%(b|d)%", true),
            ("abc", "(b|c)%", false),
            ("a.c", "a.c", true),
            ("abc", "a.c", false),
            ("a\nc", "a_c", true),
            ("aaa", "a{2,3}", true),
            ("x%", r"x\%", true),
            ("xy", r"x\%", false),
            ("a^$", "a^$", true),
            ("b", "[a-c]", true),
            ("[", "[[x]", true),
            ("5", "[[:digit:]]", true),
        ] {
            let regex = Regex::new(&similar(pattern, Some(ESCAPE)).unwrap()).unwrap();
            assert_eq!(regex.is_match(text), expected, "{text} {pattern}");
        }
        assert!(Regex::new(&similar("a#%b", Some('#')).unwrap()).unwrap().is_match("a%b"));
    }

    #[test]
    fn parts_between_separators_are_groups() {
        for (text, pattern, expected) in [
            ("foobar", "%#\"o_b#\"%", Some("oob")),
            ("foobar", "#\"o_b#\"%", None),
            ("abcdefg", "a#\"%#\"g", Some("bcdef")),
            ("abcdefg", "a*#\"%#\"g*", Some("abcdefg")),
            ("abcdefg", "a#\"%#\"x|g", Some("bcdef")),
            ("abcdefg", "a#\"%|ab#\"g", Some("bcdef")),
            ("abcdefg", "a#\"%g", Some("bcdefg")),
            ("abcdefg", "a%g", Some("abcdefg")),
        ] {
            let regex = Regex::new(&similar_part(pattern, Some('#')).unwrap()).unwrap();
            let captures = regex.captures(text);
            let part = captures.and_then(|captures| captures.get(usize::from(captures.len() > 1)));
            assert_eq!(part.map(|part| part.as_str()), expected, "{text} {pattern}");
        }
        assert!(similar_part("#\"a#\"b#\"", Some('#')).is_err());
    }

    #[test]
    fn regular_expressions_are_translated() {
        for (pattern, expected) in [
            (r"\mfoo\M", r"\b{start}foo\b{end}"),
            (r"\yfoo\Y", r"\bfoo\B"),
            ("[[:<:]]a[[:>:]]", r"\b{start}a\b{end}"),
            ("a.b", "(?s)a.b"),
            (r"a\.b", r"a\.b"),
            ("a{b", r"a\{b"),
            ("a{2}", "a{2}"),
            ("[]a&&[b]", r"[\]a\&\&\[b]"),
            ("[^a-z_]", "[^a-z_]"),
            ("[+--]", r"[+-\-]"),
            ("[a-]", r"[a\-]"),
            ("[-a]", r"[\-a]"),
            ("[a-c-e]", r"[a-c\-e]"),
            ("([a-z]+)(x)", "([a-z]+)(x)"),
            ("^[[:alpha:]]+$", "^[[:alpha:]]+$"),
            (r"\d+\/\w", r"\d+/\w"),
        ] {
            let translated = posix(pattern, true).unwrap();
            assert_eq!(translated, expected);
            assert!(Regex::new(&translated).is_ok(), "{translated}");
        }
        assert!(posix("[[:foo:]]", true).is_err());
        for refused in [r"(a)\1", "a(?=b)", "(?<!a)b"] {
            assert!(matches!(posix(refused, true), Err(Error::Unsupported(_))));
        }
    }
}
