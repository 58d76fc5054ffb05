//! `regexp_replace`, as in PostgreSQL.
//!
//! In the replacement, `\1` … `\9` are the groups, `\&` is the whole match, and `\\` a backslash. All other characters mean
//! themselves, also `$`, which DataFusion takes for a reference.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use regex::Regex;

use super::functions::{arrays, result, strict_field, undefined};
use super::regexps::{at_least, compiled, matches, offset};
use crate::Result;

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
        let is_number = |ty: &DataType| ty.is_integer() || ty.is_null();
        let (text, number) = (DataType::Utf8View, DataType::Int64);
        let texts = |count: usize| vec![text.clone(); count];
        match types {
            [_, _, _] if types.iter().all(is_text) => Ok(texts(3)),
            [_, _, _, _] if types.iter().all(is_text) => Ok(texts(4)),
            [first @ .., start] if first.len() == 3 && first.iter().all(is_text) && start.is_integer() => {
                Ok([texts(3), vec![number]].concat())
            }
            [a, b, c, numbers @ .., flags]
                if numbers.len() == 2 && [a, b, c, flags].into_iter().all(is_text) && numbers.iter().all(is_number) =>
            {
                Ok([texts(3), vec![number.clone(), number, text]].concat())
            }
            [a, b, c, numbers @ ..]
                if numbers.len() == 2 && [a, b, c].into_iter().all(is_text) && numbers.iter().all(is_number) =>
            {
                Ok([texts(3), vec![number.clone(), number]].concat())
            }
            types => Err(undefined("regexp_replace", types)),
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
        let is_constant = args.args[1..].iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let mut known = HashMap::new();
        let replaced = (0..arrays[0].len()).map(|row| {
            if arrays.iter().any(|array| array.is_null(row)) {
                return Ok(None);
            }
            let text =
                |i: usize| arrays.get(i).and_then(|array| array.as_string_view_opt()).map(|texts| texts.value(row));
            let number = |i: usize| {
                let numbers = arrays.get(i).and_then(|array| array.as_primitive_opt::<Int64Type>());
                numbers.map(|numbers| numbers.value(row))
            };
            let value = |i: usize| text(i).unwrap_or_default();
            let flags = text(3).or_else(|| text(5)).unwrap_or_default();
            // All rows have the same key if the other arguments are constants.
            let key = if is_constant { String::new() } else { [flags, value(1), value(2)].join("\0") };
            let replacement = match known.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(Replacement::new(value(1), value(2), flags)?),
            };
            replacement.apply(value(0), number(3).unwrap_or(1), number(4)).map(Some)
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
        let (regex, all) = compiled(pattern, flags)?;
        Ok(Replacement { regex, parts: parts(with), all })
    }

    /// Replaces matches behind the character `start`: the one with this number, or all for 0. Without a number, the flags
    /// decide.
    ///
    /// # Errors
    /// `Evaluation` for numbers that are too small.
    fn apply<'a>(&self, text: &'a str, start: i64, number: Option<i64>) -> Result<Cow<'a, str>> {
        let number = number.map(|number| at_least(number, 0, "n", "regexp_replace")).transpose()?;
        let number = number.unwrap_or(if self.all { 0 } else { 1 });
        let Some(start) = offset(text, start, "regexp_replace")? else { return Ok(Cow::Borrowed(text)) };
        let mut output = String::new();
        let mut copied = 0;
        let has_groups = self.parts.iter().any(|part| matches!(part, Part::Group(_)));
        for (i, found) in matches(&self.regex, text, start).enumerate() {
            if number > 0 && i + 1 < number {
                continue;
            }
            output.push_str(&text[copied..found.start()]);
            let captures = if has_groups { self.regex.captures_at(text, found.start()) } else { None };
            for part in &self.parts {
                output.push_str(match part {
                    Part::Text(text) => text,
                    Part::Group(group) => {
                        let group = captures.as_ref().and_then(|captures| captures.get(*group));
                        group.map_or("", |group| group.as_str())
                    }
                });
            }
            copied = found.end();
            if number > 0 {
                break;
            }
        }
        if copied == 0 && output.is_empty() {
            return Ok(Cow::Borrowed(text));
        }
        output.push_str(&text[copied..]);
        Ok(Cow::Owned(output))
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
            ("abc", ".*", "X", "g", "XX"),
            ("xabx", "x*", "-", "g", "--a-b--"),
            ("abc", "a", "", "", "bc"),
        ] {
            let replacement = Replacement::new(pattern, with, flags).unwrap();
            assert_eq!(replacement.apply(text, 1, None).unwrap(), expected, "{pattern} {with}");
        }
        let letters = Replacement::new("[a-z]", "#", "").unwrap();
        for (start, number, expected) in [
            (3, None, "fo#bar"),
            (3, Some(2), "foo#ar"),
            (1, Some(0), "######"),
            (9, Some(0), "foobar"),
            (1, Some(9), "foobar"),
        ] {
            assert_eq!(letters.apply("foobar", start, number).unwrap(), expected);
        }
        assert!(letters.apply("a", 0, None).is_err() && letters.apply("a", 1, Some(-1)).is_err());
        let error = Replacement::new("a", "b", "z").unwrap_err();
        assert_eq!(error.to_string(), "invalid regular expression option: \"z\"");
        let error = Replacement::new("(", "b", "").unwrap_err();
        assert_eq!(error.to_string(), "invalid regular expression: unclosed group");
    }
}
