//! `regexp_replace`, as in PostgreSQL.
//!
//! In the replacement, `\1` … `\9` are the groups, `\&` is the whole match, and `\\` a backslash. All other characters mean
//! themselves, also `$`, which DataFusion takes for a reference.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use regex::{Captures, NoExpand, Regex, RegexBuilder};

use super::functions::{arrays, result, strict_field, undefined};
use super::patterns::{Groups, posix};
use crate::{Error, Result};

/// The function.
pub(crate) fn regexp_replace() -> ScalarUDF {
    ScalarUDF::new_from_impl(RegexpReplace { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RegexpReplace {
    signature: Signature,
}

impl ScalarUDFImpl for RegexpReplace {
    fn name(&self) -> &str {
        "regexp_replace"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let is_text = |ty: &DataType| ty.is_string() || ty.is_null();
        match types.len() {
            3 | 4 if types.iter().all(is_text) => Ok(vec![DataType::Utf8View; types.len()]),
            _ => Err(undefined("regexp_replace", types)),
        }
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
        let texts: Vec<&StringViewArray> = arrays.iter().map(|array| array.as_string_view()).collect();
        let is_constant = args.args[1..].iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let mut known = HashMap::new();
        let replaced = (0..arrays[0].len()).map(|row| {
            let value = |i: usize| texts[i].is_valid(row).then(|| texts[i].value(row));
            let (Some(text), Some(pattern), Some(with)) = (value(0), value(1), value(2)) else { return Ok(None) };
            let Some(flags) = (if texts.len() > 3 { value(3) } else { Some("") }) else { return Ok(None) };
            // All rows have the same key if the other arguments are constants.
            let key = if is_constant { String::new() } else { [flags, pattern, with].join("\0") };
            let replacement = match known.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(Replacement::new(pattern, with, flags)?),
            };
            Ok(Some(replacement.apply(text)))
        });
        let replaced: StringViewArray = replaced.collect::<Result<_>>()?;
        result(Arc::new(replaced) as ArrayRef, is_single)
    }
}

/// A compiled call.
#[derive(Debug)]
struct Replacement {
    regex: Regex,
    parts: Vec<Part>,
    /// Replaces all matches, not only the first one.
    all: bool,
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    /// Group 0 is the whole match.
    Group(usize),
}

impl Replacement {
    fn new(pattern: &str, with: &str, flags: &str) -> Result<Replacement> {
        let (mut all, mut ignores_case, mut extended, mut lines, mut dots) = (false, false, false, false, true);
        let mut quoted = None;
        for flag in flags.chars() {
            match flag {
                'g' => all = true,
                'i' => ignores_case = true,
                'c' => ignores_case = false,
                'x' => extended = true,
                't' => extended = false,
                's' => (lines, dots) = (false, true),
                'm' | 'n' => (lines, dots) = (true, false),
                'p' => (lines, dots) = (false, false),
                'w' => (lines, dots) = (true, true),
                'e' | 'b' => {}
                'q' => quoted = Some(regex::escape(pattern)),
                other => {
                    return Err(Error::Evaluation(format!("invalid regular expression option: \"{other}\"")));
                }
            }
        }
        let pattern = quoted.map_or_else(|| posix(pattern, Groups::All, false), Ok)?;
        let regex = RegexBuilder::new(&pattern)
            .case_insensitive(ignores_case)
            .ignore_whitespace(extended)
            .multi_line(lines)
            .dot_matches_new_line(dots)
            .build()
            .map_err(|error| {
                let text = error.to_string();
                let reason = text.rsplit_once("error: ").map_or(text.as_str(), |(_, reason)| reason);
                Error::Evaluation(format!("invalid regular expression: {}", reason.trim()))
            })?;
        Ok(Replacement { regex, parts: parts(with), all })
    }

    fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let limit = if self.all { 0 } else { 1 };
        match &self.parts[..] {
            [] => self.regex.replacen(text, limit, NoExpand("")),
            [Part::Text(with)] => self.regex.replacen(text, limit, NoExpand(with)),
            parts => self.regex.replacen(text, limit, |captures: &Captures<'_>| {
                let mut output = String::new();
                for part in parts {
                    output.push_str(match part {
                        Part::Text(text) => text,
                        Part::Group(group) => captures.get(*group).map_or("", |group| group.as_str()),
                    });
                }
                output
            }),
        }
    }
}

/// The parts of a replacement.
fn parts(with: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut chars = with.chars().peekable();
    while let Some(c) = chars.next() {
        let group = match (c, chars.peek()) {
            ('\\', Some('&')) => 0,
            ('\\', Some(digit @ '1'..='9')) => *digit as usize - '0' as usize,
            ('\\', Some('\\')) => {
                chars.next();
                text.push('\\');
                continue;
            }
            _ => {
                text.push(c);
                continue;
            }
        };
        chars.next();
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(Part::Group(group));
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_replaced() {
        for (text, pattern, with, flags, expected) in [
            ("abc", "b", "$5", "", "a$5c"),
            ("abcb", "b", "[\\&]", "g", "a[b]c[b]"),
            ("abc", "(a)(b)", r"\2\1", "", "bac"),
            ("abc", "(a)(b)", r"\22", "", "b2c"),
            ("abc", "(a)|(x)", r"<\1\2>", "", "<a>bc"),
            ("abc", "b", r"\\1", "", r"a\1c"),
            ("abc", "b", r"\x\", "", r"a\x\c"),
            ("aBb", "b", "", "gi", "a"),
            ("a.b", ".", "-", "q", "a-b"),
            ("a\nb", "a.b", "x", "", "x"),
            ("a\nb", "a.b", "x", "n", "a\nb"),
            ("foo bar", r"\m", ">", "g", ">foo >bar"),
        ] {
            assert_eq!(Replacement::new(pattern, with, flags).unwrap().apply(text), expected, "{pattern} {with}");
        }
        let error = Replacement::new("a", "b", "z").unwrap_err();
        assert_eq!(error.to_string(), "invalid regular expression option: \"z\"");
        let error = Replacement::new("(", "b", "").unwrap_err();
        assert_eq!(error.to_string(), "invalid regular expression: unclosed group");
    }
}
