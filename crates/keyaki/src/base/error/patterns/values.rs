//! Values that an evaluation rejects: text that is not a value of a type, numbers out of range.

use super::text::sql_type;
use super::{Pattern, pattern};
use crate::base::error::{ANY_NUMBER, Error, shown};

pub(super) const PATTERNS: &[Pattern] = &[
    pattern("Scalar subquery returned more than one row", |_| Error::Cardinality),
    pattern("{}ivide by zero{}", |_| Error::DivisionByZero),
    pattern("Cannot cast string '{}' to value of {} type", |c| invalid_text(c[1], c[0])),
    pattern("Cannot cast value '{}' to value of Boolean type", |c| Error::invalid_text("boolean", c[0], None)),
    pattern("Can't cast value {} to type {}", |c| Error::out_of_range(sql_type(c[1]), c[0], None)),
    pattern("Error while parsing value '{}' as type '{}' for column {} at line {}. Row data: {}", |c| {
        // Columns are counted from 0.
        let column = c[2].parse::<usize>().map_or_else(|_| c[2].to_string(), |column| (column + 1).to_string());
        invalid_text(c[1], c[0]).within(format!("line {}, field {column} of a CSV file", c[3]))
    }),
    pattern("Error parsing timestamp from '{}' using format '{}': {}", |c| {
        Error::invalid_text("timestamp", c[0], None)
    }),
    pattern("Date part '{}' not supported", |c| Error::InvalidParameter {
        name: "field".into(),
        value: c[0].into(),
        expected: "a field of the type, such as year, month, day, hour or epoch".into(),
    }),
    pattern("Invalid HexStringLiteral '{}'", |c| {
        Error::syntax(format!("invalid hexadecimal literal: \"{}\" (each byte has two digits)", shown(c[0])))
    }),
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
    pattern("Overflow happened on: {}", |c| Error::out_of_range(ANY_NUMBER, c[0], None)),
    pattern("{}Array overflow on abs({})", |c| Error::OutOfRange { ty: sql_type(c[0]), value: None, column: None }),
    pattern("Encountered non UTF-8 data{}", |_| Error::InvalidEncoding { column: None }),
    pattern("invalid UTF-8{}", |_| Error::InvalidEncoding { column: None }),
];

fn invalid_text(ty: &str, value: &str) -> Error {
    Error::unfit_text(sql_type(ty), value, None)
}

/// At least one text for each pattern.
#[cfg(test)]
pub(super) const EXAMPLES: &[super::Example] = &[
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
        "Parser error: Error while parsing value 'x' as type 'Int64' for column 1 at line 4. Row data: '[4,x]'",
        "22P02",
        "line 4, field 2 of a CSV file: invalid input syntax for type bigint: \"x\"",
    ),
    ("Cannot cast value 'maybe' to value of Boolean type", "22P02", "invalid input syntax for type boolean: \"maybe\""),
    ("Can't cast value 99999 to type Int16", "22003", "value \"99999\" is out of range for type smallint"),
    (
        "Parser error: Error parsing timestamp from 'soon': error parsing date",
        "22007",
        "invalid input syntax for type timestamp: \"soon\"",
    ),
    (
        "Execution error: Error parsing timestamp from 'x' using format '%Y': input is not enough",
        "22007",
        "invalid input syntax for type timestamp: \"x\"",
    ),
    (
        "Date part 'foo' not supported",
        "22023",
        "invalid value for parameter \"field\": \"foo\" (expected a field of the type, such as year, month, day, hour or \
         epoch)",
    ),
    ("Invalid HexStringLiteral 'zz'", "42601", "invalid hexadecimal literal: \"zz\" (each byte has two digits)"),
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
    ("Invalid input syntax for type INTERVAL: \"soon\"", "22007", "invalid input syntax for type interval: \"soon\""),
    ("regex parse error:\n    (\n    ^\nerror: unclosed group", "22000", "invalid regular expression: unclosed group"),
    ("Overflow happened on: 9 * 9", "22003", "numeric value out of range: \"9 * 9\""),
    ("Int64Array overflow on abs(-9223372036854775808)", "22003", "bigint out of range"),
    ("Encountered non UTF-8 data: text", "22021", "invalid byte sequence for encoding \"UTF8\""),
    ("invalid UTF-8 in binary literal", "22021", "invalid byte sequence for encoding \"UTF8\""),
];
