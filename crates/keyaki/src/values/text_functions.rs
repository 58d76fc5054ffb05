//! `quote_literal`, `quote_ident`, `quote_nullable` and `format`, as in PostgreSQL.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field, undefined};
use crate::base::identifiers::quoted;
use crate::{Error, Result};

/// Maximum width of a part of `format`, in characters.
const WIDTH_MAX: usize = 1 << 20;

/// The functions of this module.
pub(crate) fn functions() -> [ScalarUDF; 4] {
    [Kind::Literal, Kind::Identifier, Kind::Nullable, Kind::Format].map(|kind| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(TextFunction { kind, signature })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Literal,
    Identifier,
    Nullable,
    Format,
}

/// A function whose arguments are converted to texts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TextFunction {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Literal => "quote_literal",
            Kind::Identifier => "quote_ident",
            Kind::Nullable => "quote_nullable",
            Kind::Format => "format",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match (self.kind, types.len()) {
            (Kind::Format, 1..) | (_, 1) => Ok(vec![DataType::Utf8View; types.len()]),
            _ => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8View)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let field = strict_field(self.name(), DataType::Utf8View, &args);
        // NULL is an argument like others of these functions, except for the format itself.
        Ok(match self.kind {
            Kind::Nullable => Arc::new(field.as_ref().clone().with_nullable(false)),
            Kind::Format => Arc::new(field.as_ref().clone().with_nullable(args.arg_fields[0].is_nullable())),
            _ => field,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let texts: Vec<&StringViewArray> = arrays.iter().map(|array| array.as_string_view()).collect();
        let first = texts[0].iter();
        let values: StringViewArray = match self.kind {
            Kind::Literal => first.map(|text| text.map(literal)).collect(),
            Kind::Identifier => first.map(|text| text.map(quoted)).collect(),
            Kind::Nullable => first.map(|text| Some(nullable(text))).collect(),
            Kind::Format => {
                let args = |row: usize| {
                    let value = move |text: &&StringViewArray| text.is_valid(row).then(|| text.value(row).to_string());
                    texts[1..].iter().map(value).collect::<Vec<_>>()
                };
                let formatted =
                    first.enumerate().map(|(row, text)| text.map(|text| format(text, &args(row))).transpose());
                formatted.collect::<Result<_>>()?
            }
        };
        result(Arc::new(values) as ArrayRef, is_single)
    }
}

/// A text as a literal of SQL.
fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    match doubled.contains('\\') {
        true => format!("E'{}'", doubled.replace('\\', "\\\\")),
        false => format!("'{doubled}'"),
    }
}

fn nullable(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".into(), literal)
}

/// The text with arguments in place of `%s`, `%I`, `%L`, which have the form `%[position$][-][width]type`. The width may
/// be an argument: `*` or `*position$`.
fn format(text: &str, args: &[Option<String>]) -> Result<String> {
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    let mut next = 0;
    while let Some((before, after)) = rest.split_once('%') {
        output.push_str(before);
        rest = match after.strip_prefix('%') {
            Some(after) => {
                output.push('%');
                after
            }
            None => part(after, args, &mut next, &mut output)?,
        };
    }
    output.push_str(rest);
    Ok(output)
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::Evaluation(problem.into())
}

/// Appends one argument. Returns the text behind its specifier.
fn part<'a>(text: &'a str, args: &[Option<String>], next: &mut usize, output: &mut String) -> Result<&'a str> {
    let argument = |place: usize| args.get(place).ok_or_else(|| invalid("too few arguments for format()"));
    let (position, mut rest) = position(text)?;
    let mut is_left = false;
    while let Some(after) = rest.strip_prefix('-') {
        (is_left, rest) = (true, after);
    }
    let mut width = 0;
    if let Some(after) = rest.strip_prefix('*') {
        let (position, after) = self::position(after)?;
        let given = argument(take(position, next))?;
        let given = given.as_deref().map_or(Ok(0), |text| text.trim().parse::<i64>());
        let given = given.map_err(|_| invalid("the width of a part of format() is not an integer"))?;
        is_left |= given < 0;
        width = usize::try_from(given.unsigned_abs()).unwrap_or(usize::MAX);
        rest = after;
    } else {
        let (digits, after) = number(rest);
        if !digits.is_empty() {
            width = digits.parse().unwrap_or(usize::MAX);
        }
        rest = after;
    }
    if width > WIDTH_MAX {
        return Err(invalid(format!("the width of a part of format() is greater than {WIDTH_MAX}")));
    }
    let mut chars = rest.chars();
    let kind = chars.next().ok_or_else(|| invalid("unterminated format() type specifier"))?;
    if !matches!(kind, 's' | 'I' | 'L') {
        return Err(invalid(format!("unrecognized format() type specifier \"{kind}\" (use %s, %I, %L or %%)")));
    }
    let value = argument(take(position, next))?.as_deref();
    let value = match (kind, value) {
        ('L', value) => nullable(value),
        ('I', Some(value)) => quoted(value),
        ('I', None) => return Err(invalid("null values cannot be formatted as an SQL identifier")),
        (_, value) => value.unwrap_or_default().to_string(),
    };
    // Writing to a text never fails.
    let _ = if is_left { write!(output, "{value:<width$}") } else { write!(output, "{value:>width$}") };
    Ok(chars.as_str())
}

/// The place of an argument: the given one, or the next.
fn take(position: Option<usize>, next: &mut usize) -> usize {
    let place = position.unwrap_or(*next);
    *next = place + 1;
    place
}

/// Leading digits.
fn number(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// `position$` as a place from 0.
fn position(text: &str) -> Result<(Option<usize>, &str)> {
    let (digits, rest) = number(text);
    match rest.strip_prefix('$').filter(|_| !digits.is_empty()) {
        Some(rest) => match digits.parse::<usize>().unwrap_or(usize::MAX - 1) {
            0 => Err(invalid("format specifies argument 0, but arguments are numbered from 1")),
            position => Ok((Some(position - 1), rest)),
        },
        None => Ok((None, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_formatted() {
        let args = ["one", "two words", "it's"].map(|text| Some(text.to_string()));
        let formatted = |text: &str| format(text, &args);
        for (text, expected) in [
            ("%s, %I, %L, 100%%", "one, \"two words\", 'it''s', 100%"),
            ("%3$L %1$s %s", "'it''s' one two words"),
            ("|%10s|%-10s|", "|       one|two words |"),
            ("|%2$-12s|", "|two words   |"),
            ("", ""),
        ] {
            assert_eq!(formatted(text).unwrap(), expected);
        }
        assert_eq!(format("|%*s|%s", &[Some("-5".into()), Some("é".into()), None]).unwrap(), "|é    |");
        assert_eq!(format("|%1$*2$s|", &[Some("x".into()), Some("3".into())]).unwrap(), "|  x|");
        assert_eq!(format("%L", &[None]).unwrap(), "NULL");
        for wrong in ["%", "%s %s %s %s", "%d", "%0$s", "%5$s", "%99999999999s", "%1$"] {
            assert!(formatted(wrong).is_err(), "{wrong}");
        }
        assert_eq!(literal(r"a\b'c"), r"E'a\\b''c'");
    }
}
