//! Functions of regular expressions, as in PostgreSQL: `regexp_match`, `regexp_like`, `regexp_count`, `regexp_instr`,
//! `regexp_substr`, `regexp_split_to_array`, `substring(s FROM p)`, and the arrays that `regexp_matches` returns.
//! `regexp_replace` is in [`super::replacement`].
//!
//! A match of no characters may follow directly behind another match. Of several matches at a place, the first alternative
//! is taken; PostgreSQL takes the longest one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListBuilder, PrimitiveArray, StringBuilder, StringViewArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::Result as DfResult;
use datafusion::functions::unicode::substr;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, binary_expr,
};
use datafusion::scalar::ScalarValue;
use regex::{Captures, Match, Regex, RegexBuilder};

use super::byte_strings::{self, is_binary};
use super::functions::{arrays, result, strict_field, undefined};
use super::patterns::{escape_of, posix, similar_part};
use crate::base::arrays::list_of;
use crate::{Error, Result};

/// The array of the arrays that `regexp_matches` returns one by one.
pub(crate) const ALL_MATCHES: &str = "regexp_all_matches";

/// The functions of this module.
pub(crate) fn functions() -> impl Iterator<Item = ScalarUDF> {
    let kinds =
        [Kind::Match, Kind::Like, Kind::Count, Kind::Position, Kind::Part, Kind::Split, Kind::Matches].into_iter();
    let of_kind = |kind| RegularExpression { kind, signature: Signature::user_defined(Volatility::Immutable) };
    kinds.map(move |kind| ScalarUDF::new_from_impl(of_kind(kind))).chain([substring()])
}

/// Compiles a regular expression with PostgreSQL's flags. Returns it, and true for the flag `g`.
///
/// # Errors
/// `Evaluation` for unknown flags and patterns that are not valid.
pub(super) fn compiled(pattern: &str, flags: &str) -> Result<(Regex, bool)> {
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
    let pattern = quoted.map_or_else(|| posix(pattern, false), Ok)?;
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
    Ok((regex, all))
}

/// All matches in a text from a byte offset on, without overlaps. `captures_at` the start of a match finds its groups.
pub(super) fn matches<'t>(regex: &Regex, text: &'t str, start: usize) -> impl Iterator<Item = Match<'t>> {
    let mut next = Some(start);
    std::iter::from_fn(move || {
        let found = regex.find_at(text, next?)?;
        next = match found.is_empty() {
            false => Some(found.end()),
            // One character further.
            true => text[found.end()..].chars().next().map(|c| found.end() + c.len_utf8()),
        };
        Some(found)
    })
}

/// The byte offset of a character, counted from 1; `None` behind the end of the text.
///
/// # Errors
/// `Evaluation` for a number below 1.
pub(super) fn offset(text: &str, character: i64, function: &str) -> Result<Option<usize>> {
    let place = at_least(character, 1, "start", function)?;
    let mut offsets = text.char_indices().map(|(offset, _)| offset).chain([text.len()]);
    Ok(offsets.nth(place - 1))
}

/// An argument that must not be below `min`.
///
/// # Errors
/// `Evaluation`.
pub(super) fn at_least(value: i64, min: i64, parameter: &str, function: &str) -> Result<usize> {
    match value >= min {
        true => Ok(usize::try_from(value).unwrap_or(usize::MAX)),
        false => Err(Error::Evaluation(format!("invalid value for parameter \"{parameter}\" of {function}: {value}"))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// `(text, pattern[, flags])`: the groups of the first match, or the whole match if the pattern has no groups.
    Match,
    /// `(text, pattern[, flags])`.
    Like,
    /// `(text, pattern[, start[, flags]])`.
    Count,
    /// `(text, pattern[, start[, number[, end[, flags[, group]]]]])`: the place of a match, from 1, or 0.
    Position,
    /// `(text, pattern[, start[, number[, flags[, group]]]])`: a match.
    Part,
    /// `(text, pattern[, flags])`: the parts of a text between matches.
    Split,
    /// `(text, pattern[, flags])`: the groups of each match.
    Matches,
}

impl Kind {
    /// For each argument behind the pattern, true for a text.
    fn options(self) -> &'static [bool] {
        match self {
            Kind::Match | Kind::Like | Kind::Split | Kind::Matches => &[true],
            Kind::Count => &[false, true],
            Kind::Position => &[false, false, false, true, false],
            Kind::Part => &[false, false, true, false],
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RegularExpression {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for RegularExpression {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Match => "regexp_match",
            Kind::Like => "regexp_like",
            Kind::Count => "regexp_count",
            Kind::Position => "regexp_instr",
            Kind::Part => "regexp_substr",
            Kind::Split => "regexp_split_to_array",
            Kind::Matches => ALL_MATCHES,
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let options = self.kind.options();
        let expected: Vec<bool> = [true, true].into_iter().chain(options.iter().copied()).take(types.len()).collect();
        let fits =
            |(ty, is_text): (&DataType, &bool)| ty.is_null() || if *is_text { ty.is_string() } else { ty.is_integer() };
        match (2..=2 + options.len()).contains(&types.len()) && types.iter().zip(&expected).all(fits) {
            true => {
                let coerced = |is_text: bool| if is_text { DataType::Utf8View } else { DataType::Int64 };
                Ok(expected.into_iter().map(coerced).collect())
            }
            false => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match self.kind {
            Kind::Like => DataType::Boolean,
            Kind::Count | Kind::Position => DataType::Int64,
            Kind::Part => DataType::Utf8View,
            Kind::Match | Kind::Split => list_of(DataType::Utf8View),
            Kind::Matches => list_of(list_of(DataType::Utf8View)),
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let field = strict_field(self.name(), self.return_type(&[])?, &args);
        // There may be no match.
        Ok(match self.kind {
            Kind::Match | Kind::Part => Arc::new(field.as_ref().clone().with_nullable(true)),
            _ => field,
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    /// `regexp_like` with a literal as an operator, for which DataFusion has simpler forms.
    fn simplify(&self, mut args: Vec<Expr>, _: &SimplifyContext) -> DfResult<ExprSimplifyResult> {
        let text = |arg: &Expr| match arg {
            Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_string),
            _ => None,
        };
        let flags = args.get(2).map_or(Some(String::new()), text);
        let operator = match flags.as_deref() {
            Some("") => Operator::RegexMatch,
            Some("i") => Operator::RegexIMatch,
            _ => return Ok(ExprSimplifyResult::Original(args)),
        };
        let (Kind::Like, Some(pattern)) = (self.kind, args.get(1).and_then(text)) else {
            return Ok(ExprSimplifyResult::Original(args));
        };
        // Errors of the pattern are those of the evaluation.
        let Ok(pattern) = posix(&pattern, true) else { return Ok(ExprSimplifyResult::Original(args)) };
        let pattern = Expr::Literal(ScalarValue::Utf8View(Some(pattern)), None);
        Ok(ExprSimplifyResult::Simplified(binary_expr(args.swap_remove(0), operator, pattern)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let mut calls = Calls::new(self.name(), &arrays, self.kind.options());
        calls.accepts_global = self.kind == Kind::Matches;
        let array: ArrayRef = match self.kind {
            Kind::Like => {
                Arc::new(calls.map(|call| Ok(call.regex.is_match(call.text)))?.into_iter().collect::<BooleanArray>())
            }
            Kind::Count => {
                let counts = calls.map(|call| Ok(call.matches()?.count() as i64))?;
                Arc::new(counts.into_iter().collect::<Int64Array>())
            }
            Kind::Position => {
                let places = calls.map(|call| {
                    let is_end = match call.number(2, 0) {
                        end @ (0 | 1) => end == 1,
                        end => return Err(call.invalid("endoption", end)),
                    };
                    let found = call.chosen(4)?;
                    Ok(found.map_or(0, |(start, end)| {
                        call.text[..if is_end { end } else { start }].chars().count() as i64 + 1
                    }))
                })?;
                Arc::new(places.into_iter().collect::<Int64Array>())
            }
            Kind::Part => {
                let parts =
                    calls.map(|call| Ok(call.chosen(3)?.map(|(start, end)| call.text[start..end].to_string())))?;
                Arc::new(parts.into_iter().map(Option::flatten).collect::<StringViewArray>())
            }
            Kind::Match | Kind::Split => {
                let mut lists = ListBuilder::new(StringBuilder::new());
                let each = calls.map(|call| match self.kind {
                    Kind::Split => {
                        split(call.text, call.regex).for_each(|part| lists.values().append_value(part));
                        lists.append(true);
                        Ok(())
                    }
                    _ => {
                        match call.regex.captures(call.text) {
                            Some(captures) => append_groups(&captures, &mut lists),
                            None => lists.append_null(),
                        }
                        Ok(())
                    }
                })?;
                lists_of(each.into_iter().map(|found| found.is_some()), &(Arc::new(lists.finish()) as ArrayRef))?
            }
            Kind::Matches => {
                let mut lists = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
                let each = calls.map(|call| {
                    let count = if call.all { usize::MAX } else { 1 };
                    for found in matches(call.regex, call.text, 0).take(count) {
                        if let Some(captures) = call.regex.captures_at(call.text, found.start()) {
                            append_groups(&captures, lists.values());
                        }
                    }
                    lists.append(true);
                    Ok(())
                })?;
                lists_of(each.into_iter().map(|found| found.is_some()), &(Arc::new(lists.finish()) as ArrayRef))?
            }
        };
        result(cast(&array, &self.return_type(&[])?)?, is_single)
    }
}

/// Adds NULLs for the rows without a value. `lists` has one value for each of the others.
fn lists_of(is_value: impl Iterator<Item = bool>, lists: &ArrayRef) -> Result<ArrayRef> {
    let mut next = 0;
    let places = is_value.map(|is_value| {
        is_value.then(|| {
            next += 1;
            next - 1
        })
    });
    Ok(arrow::compute::take(lists, &places.collect::<Int64Array>(), None)?)
}

/// Appends the groups of a match, or the whole match if the pattern has no groups.
fn append_groups(captures: &Captures<'_>, lists: &mut ListBuilder<StringBuilder>) {
    for group in usize::from(captures.len() > 1)..captures.len() {
        lists.values().append_option(captures.get(group).map(|group| group.as_str()));
    }
    lists.append(true);
}

/// The calls of a function, one for each row.
struct Calls<'a> {
    name: &'a str,
    rows: usize,
    arrays: &'a [ArrayRef],
    texts: Vec<Option<&'a StringViewArray>>,
    integers: Vec<Option<&'a PrimitiveArray<Int64Type>>>,
    /// The place of the flags behind the pattern.
    flags: Option<usize>,
    /// The flag `g` has a meaning.
    accepts_global: bool,
    known: HashMap<(&'a str, &'a str), (Regex, bool)>,
}

impl<'a> Calls<'a> {
    fn new(name: &'a str, arrays: &'a [ArrayRef], options: &[bool]) -> Self {
        Calls {
            name,
            rows: arrays[0].len(),
            arrays,
            texts: arrays.iter().map(|array| array.as_string_view_opt()).collect(),
            integers: arrays.iter().map(|array| array.as_primitive_opt::<Int64Type>()).collect(),
            flags: options.iter().position(|is_text| *is_text),
            accepts_global: false,
            known: HashMap::new(),
        }
    }

    /// The values of `f` for the rows without a NULL.
    fn map<T>(&mut self, mut f: impl FnMut(&Call<'_, 'a>) -> Result<T>) -> Result<Vec<Option<T>>> {
        let mut values = Vec::with_capacity(self.rows);
        for row in 0..self.rows {
            if self.arrays.iter().any(|array| array.is_null(row)) {
                values.push(None);
                continue;
            }
            let text = |place: usize| self.texts.get(place).copied().flatten().map(|texts| texts.value(row));
            let (Some(value), Some(pattern)) = (text(0), text(1)) else {
                return Err(Error::Internal(format!("{} without a text", self.name)));
            };
            let flags = self.flags.and_then(|place| text(2 + place)).unwrap_or("");
            let (regex, all) = match self.known.entry((pattern, flags)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(compiled(pattern, flags)?),
            };
            if *all && !self.accepts_global {
                let problem = format!("{}() does not support the \"global\" option", self.name);
                return Err(Error::Evaluation(problem));
            }
            let call = Call { name: self.name, text: value, regex, all: *all, row, integers: &self.integers };
            values.push(Some(f(&call)?));
        }
        Ok(values)
    }
}

struct Call<'c, 'a> {
    name: &'a str,
    text: &'a str,
    regex: &'c Regex,
    all: bool,
    row: usize,
    integers: &'c [Option<&'a PrimitiveArray<Int64Type>>],
}

impl Call<'_, '_> {
    /// The argument at a place behind the pattern.
    fn number(&self, place: usize, default: i64) -> i64 {
        self.integers.get(2 + place).copied().flatten().map_or(default, |values| values.value(self.row))
    }

    fn invalid(&self, parameter: &str, value: i64) -> Error {
        Error::Evaluation(format!("invalid value for parameter \"{parameter}\" of {}: {value}", self.name))
    }

    /// The matches from the start that the call gives.
    fn matches(&self) -> Result<impl Iterator<Item = Match<'_>>> {
        let start = offset(self.text, self.number(0, 1), self.name)?;
        Ok(start.into_iter().flat_map(|start| matches(self.regex, self.text, start)))
    }

    /// The range of the match that the call gives by its number, or of a group of it. `group` is the place of the group.
    fn chosen(&self, group: usize) -> Result<Option<(usize, usize)>> {
        let number = at_least(self.number(1, 1), 1, "n", self.name)?;
        let group = at_least(self.number(group, 0), 0, "subexpr", self.name)?;
        let Some(found) = self.matches()?.nth(number - 1) else { return Ok(None) };
        if group == 0 {
            return Ok(Some((found.start(), found.end())));
        }
        let captures = self.regex.captures_at(self.text, found.start());
        Ok(captures.and_then(|captures| captures.get(group).map(|found| (found.start(), found.end()))))
    }
}

/// The parts of a text between matches. A match of no characters at the start or the end of the text, or directly behind
/// another one, does not split it.
fn split<'t>(text: &'t str, regex: &Regex) -> impl Iterator<Item = &'t str> {
    let mut start = 0;
    let mut parts = Vec::new();
    for found in matches(regex, text, 0) {
        if found.start() < text.len() && found.end() > start {
            parts.push(&text[start..found.start()]);
            start = found.end();
        }
    }
    parts.push(&text[start..]);
    parts.into_iter()
}

/// `substr` and `substring`: of places, or of a match of a pattern.
pub(crate) fn substring() -> ScalarUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(Substring { signature, aliases: vec!["substring".into()], places: substr() })
}

/// Plans `SUBSTRING(s FROM p FOR n)`, `POSITION(a IN b)` and OVERLAY, before DataFusion takes all operands for places
/// and texts.
#[derive(Debug)]
pub(crate) struct Substrings;

impl ExprPlanner for Substrings {
    fn plan_substring(&self, args: Vec<Expr>) -> DfResult<PlannerResult<Vec<Expr>>> {
        let call = ScalarFunction::new_udf(Arc::new(substring()), args);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(call)))
    }

    fn plan_position(&self, args: Vec<Expr>) -> DfResult<PlannerResult<Vec<Expr>>> {
        let call = ScalarFunction::new_udf(Arc::new(byte_strings::position()), args);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(call)))
    }

    fn plan_overlay(&self, args: Vec<Expr>) -> DfResult<PlannerResult<Vec<Expr>>> {
        let call = ScalarFunction::new_udf(Arc::new(byte_strings::overlay()), args);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(call)))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Substring {
    signature: Signature,
    aliases: Vec<String>,
    /// The function of places.
    places: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Substring {
    fn name(&self) -> &str {
        "substr"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let is_text = |ty: &DataType| ty.is_string() || ty.is_null();
        let is_place = |ty: &DataType| ty.is_integer() || ty.is_null();
        let text = |ty: &DataType| if ty.is_null() { DataType::Utf8View } else { ty.clone() };
        match types {
            [a, b] if is_text(a) && b.is_string() => Ok(vec![DataType::Utf8View; 2]),
            [a, b, c] if is_text(a) && is_text(b) && is_text(c) && (b.is_string() || c.is_string()) => {
                Ok(vec![DataType::Utf8View; 3])
            }
            [a, places @ ..] if is_binary(a) && (1..=2).contains(&places.len()) && places.iter().all(is_place) => {
                Ok(std::iter::once(DataType::BinaryView).chain(places.iter().map(|_| DataType::Int64)).collect())
            }
            [a, places @ ..] if is_text(a) && (1..=2).contains(&places.len()) && places.iter().all(is_place) => {
                Ok(std::iter::once(text(a)).chain(places.iter().map(|_| DataType::Int64)).collect())
            }
            types => Err(undefined("substr", types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        match types {
            [_, DataType::Utf8View, ..] => Ok(DataType::Utf8View),
            [DataType::BinaryView, ..] => Ok(DataType::BinaryView),
            types => self.places.return_type(types),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        match args.arg_fields {
            [_, pattern, ..] if *pattern.data_type() == DataType::Utf8View => {
                let field = strict_field("substr", DataType::Utf8View, &args);
                Ok(Arc::new(field.as_ref().clone().with_nullable(true)))
            }
            [bytes, ..] if is_binary(bytes.data_type()) => Ok(strict_field("substr", DataType::BinaryView, &args)),
            _ => self.places.return_field_from_args(args),
        }
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        if is_binary(&args.args[0].data_type()) {
            let (arrays, is_single) = arrays(&args)?;
            return result(byte_strings::parts(&arrays)?, is_single);
        }
        if !matches!(args.arg_fields.get(1), Some(field) if *field.data_type() == DataType::Utf8View) {
            return self.places.invoke_with_args(args);
        }
        let (arrays, is_single) = arrays(&args)?;
        if let [texts, patterns, escapes] = &arrays[..] {
            let parts = similar_parts(texts.as_string_view(), patterns.as_string_view(), escapes.as_string_view())?;
            return result(Arc::new(parts) as ArrayRef, is_single);
        }
        let parts = Calls::new("substring", &arrays, &[]).map(|call| {
            let captures = call.regex.captures(call.text);
            let part = captures.and_then(|captures| captures.get(usize::from(captures.len() > 1)));
            Ok(part.map(|part| part.as_str().to_string()))
        })?;
        let parts: StringViewArray = parts.into_iter().map(Option::flatten).collect();
        result(Arc::new(parts) as ArrayRef, is_single)
    }
}

/// `substring(text FROM pattern FOR escape)`: the part of a text that matches between two separators of a pattern of
/// SIMILAR TO.
///
/// # Errors
/// Those of [`similar_part`] and [`escape_of`].
fn similar_parts(
    texts: &StringViewArray,
    patterns: &StringViewArray,
    escapes: &StringViewArray,
) -> Result<StringViewArray> {
    let mut known: HashMap<(&str, &str), Regex> = HashMap::new();
    let part = |row: usize| {
        if texts.is_null(row) || patterns.is_null(row) || escapes.is_null(row) {
            return Ok(None);
        }
        let regex = match known.entry((patterns.value(row), escapes.value(row))) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let pattern = similar_part(patterns.value(row), escape_of(escapes.value(row))?)?;
                let regex = Regex::new(&pattern);
                let problem = |_| Error::Evaluation(format!("invalid regular expression: \"{}\"", patterns.value(row)));
                new.insert(regex.map_err(problem)?)
            }
        };
        let captures = regex.captures(texts.value(row));
        let part = captures.and_then(|captures| captures.get(usize::from(captures.len() > 1)));
        Ok(part.map(|part| part.as_str().to_string()))
    };
    (0..texts.len()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_matches() {
        for (text, pattern, expected) in [
            ("the quick  brown", r"\s+", vec!["the", "quick", "brown"]),
            ("abc", "", vec!["a", "b", "c"]),
            ("a,b,", ",", vec!["a", "b", ""]),
            (",a", ",", vec!["", "a"]),
            ("", ",", vec![""]),
            ("aXbxc", "(?i)x", vec!["a", "b", "c"]),
            ("äöü", "", vec!["ä", "ö", "ü"]),
            ("a1b22c", r"\d*", vec!["a", "b", "c"]),
        ] {
            let (regex, _) = compiled(pattern, "").unwrap();
            assert_eq!(split(text, &regex).collect::<Vec<_>>(), expected, "{text} {pattern}");
        }
    }

    #[test]
    fn matches_of_no_characters_follow_others() {
        let count = |text: &str, pattern: &str| {
            let (regex, _) = compiled(pattern, "").unwrap();
            matches(&regex, text, 0).count()
        };
        assert_eq!(count("abc", ".*"), 2);
        assert_eq!(count("foo bar", "a|"), 8);
        assert_eq!(count("äx", ""), 3);
        assert_eq!(count("", ""), 1);
        assert_eq!(count("aa", "^a"), 1);
    }

    #[test]
    fn characters_have_offsets() {
        assert_eq!(offset("äb", 2, "f").unwrap(), Some(2));
        assert_eq!(offset("äb", 3, "f").unwrap(), Some(3));
        assert_eq!(offset("äb", 4, "f").unwrap(), None);
        assert!(offset("äb", 0, "f").is_err());
    }
}
