//! Fields of lines.

use arrow::array::StringViewBuilder;
use keyaki::{CopyFormat, ProgramCopy};

use crate::failure::{Failure, Result};

/// The end of a text of rows, alone in a line.
const END: &[u8] = b"\\.";

/// A line of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// The line is complete; the next one begins at this position.
    Complete(usize),
    /// The text ends within the line.
    Incomplete,
    /// The line is the end of all rows.
    End,
}

/// Reads the fields of the line at `start` into `fields`. The last line of a text needs no line end.
///
/// # Errors
/// 22P04 for malformed lines.
pub fn read(copy: &ProgramCopy, text: &[u8], start: usize, is_last: bool, fields: &mut Fields) -> Result<Line> {
    fields.ends.clear();
    fields.bytes.clear();
    match copy.format {
        CopyFormat::Csv => quoted(copy, text, start, is_last, fields),
        _ => escaped(copy, text, start, is_last, fields),
    }
}

/// The fields of a line.
#[derive(Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    /// The end of each field in `bytes`, and whether it is NULL.
    ends: Vec<(usize, bool)>,
}

impl Fields {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Appends the fields to columns of the same number.
    ///
    /// # Errors
    /// 22021 for text that is not UTF-8.
    pub fn append(&self, columns: &mut [StringViewBuilder]) -> Result<()> {
        let mut start = 0;
        for (column, &(end, is_null)) in columns.iter_mut().zip(&self.ends) {
            match is_null {
                true => column.append_null(),
                false => {
                    let text = str::from_utf8(&self.bytes[start..end]);
                    let invalid = |_| Failure::sql("22021", "invalid byte sequence for encoding \"UTF8\"");
                    column.append_value(text.map_err(invalid)?);
                }
            }
            start = end;
        }
        Ok(())
    }

    fn end(&mut self, is_null: bool) {
        self.ends.push((self.bytes.len(), is_null));
    }
}

/// A line whose escapes are backslashes.
fn escaped(copy: &ProgramCopy, text: &[u8], start: usize, is_last: bool, fields: &mut Fields) -> Result<Line> {
    let (mut at, mut field) = (start, start);
    let end_field = |fields: &mut Fields, field: usize, end: usize| {
        let is_null = &text[field..end] == copy.null.as_bytes();
        fields.end(is_null);
    };
    loop {
        let Some(&byte) = text.get(at) else {
            if !is_last || start == text.len() {
                return Ok(Line::Incomplete);
            }
            end_field(fields, field, at);
            return Ok(ended(&text[start..at], at));
        };
        match byte {
            b'\n' => {
                let end = if at > start && text[at - 1] == b'\r' && fields.bytes.last() == Some(&b'\r') {
                    fields.bytes.pop();
                    at - 1
                } else {
                    at
                };
                end_field(fields, field, end);
                return Ok(ended(&text[start..end], at + 1));
            }
            byte if byte == copy.delimiter => {
                end_field(fields, field, at);
                at += 1;
                field = at;
            }
            b'\\' => match escape(&text[at + 1..], is_last)? {
                Some((byte, len)) => {
                    fields.bytes.push(byte);
                    at += 1 + len;
                }
                None => return Ok(Line::Incomplete),
            },
            byte => {
                fields.bytes.push(byte);
                at += 1;
            }
        }
    }
}

fn ended(line: &[u8], next: usize) -> Line {
    if line == END { Line::End } else { Line::Complete(next) }
}

/// The byte of an escape, and the number of bytes after the backslash; `None` if the text may go on.
fn escape(text: &[u8], is_last: bool) -> Result<Option<(u8, usize)>> {
    /// Digits of an octal, and of a hexadecimal escape.
    const DIGITS: [usize; 2] = [3, 2];
    let digits = |text: &[u8], radix: u32, most: usize| {
        let digits = text.iter().take(most).map_while(|byte| char::from(*byte).to_digit(radix));
        digits.fold((0, 0), |(value, len), digit| ((value * radix + digit) as u8 as u32, len + 1))
    };
    let Some(&first) = text.first() else {
        return match is_last {
            true => Err(Failure::sql("22P04", "unexpected end of data after a backslash")),
            false => Ok(None),
        };
    };
    // A number may go on in the next piece.
    if !is_last && text.len() <= DIGITS[0] && (first == b'x' || first.is_ascii_digit()) {
        return Ok(None);
    }
    Ok(Some(match first {
        b'b' => (8, 1),
        b'f' => (12, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (11, 1),
        b'0'..=b'7' => {
            let (value, len) = digits(text, 8, DIGITS[0]);
            (value as u8, len)
        }
        b'x' => match digits(&text[1..], 16, DIGITS[1]) {
            (_, 0) => (b'x', 1),
            (value, len) => (value as u8, 1 + len),
        },
        byte => (byte, 1),
    }))
}

/// A line whose values may be quoted.
fn quoted(copy: &ProgramCopy, text: &[u8], start: usize, is_last: bool, fields: &mut Fields) -> Result<Line> {
    let (mut at, mut field, mut has_quotes) = (start, start, false);
    let end_field = |fields: &mut Fields, field: usize, end: usize, has_quotes: bool| {
        fields.end(!has_quotes && &text[field..end] == copy.null.as_bytes());
    };
    loop {
        let Some(&byte) = text.get(at) else {
            if !is_last || start == text.len() {
                return Ok(Line::Incomplete);
            }
            end_field(fields, field, at, has_quotes);
            return Ok(ended(&text[start..at], at));
        };
        match byte {
            byte if byte == copy.quote => {
                has_quotes = true;
                match within_quotes(copy, text, at + 1, is_last, fields)? {
                    Some(next) => at = next,
                    None => return Ok(Line::Incomplete),
                }
            }
            byte if byte == copy.delimiter => {
                end_field(fields, field, at, has_quotes);
                at += 1;
                (field, has_quotes) = (at, false);
            }
            b'\r' if at + 1 == text.len() && !is_last => return Ok(Line::Incomplete),
            b'\r' if text.get(at + 1) == Some(&b'\n') => {
                end_field(fields, field, at, has_quotes);
                return Ok(ended(&text[start..at], at + 2));
            }
            b'\n' => {
                end_field(fields, field, at, has_quotes);
                return Ok(ended(&text[start..at], at + 1));
            }
            byte => {
                fields.bytes.push(byte);
                at += 1;
            }
        }
    }
}

/// Reads a value up to the closing quote. Returns the position after it; `None` if the text may go on.
fn within_quotes(
    copy: &ProgramCopy,
    text: &[u8],
    mut at: usize,
    is_last: bool,
    fields: &mut Fields,
) -> Result<Option<usize>> {
    loop {
        let Some(&byte) = text.get(at) else {
            return match is_last {
                true => Err(Failure::sql("22P04", "unterminated CSV quoted field")),
                false => Ok(None),
            };
        };
        let next = text.get(at + 1);
        if byte == copy.escape {
            match next {
                Some(&next) if next == copy.quote || next == copy.escape => {
                    fields.bytes.push(next);
                    at += 2;
                    continue;
                }
                None if !is_last => return Ok(None),
                _ => {}
            }
        }
        if byte == copy.quote {
            return Ok(Some(at + 1));
        }
        fields.bytes.push(byte);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn copy(format: CopyFormat) -> ProgramCopy {
        let is_csv = format == CopyFormat::Csv;
        ProgramCopy {
            to_program: false,
            table: None,
            query: String::new(),
            columns: None,
            format,
            header: false,
            delimiter: if is_csv { b',' } else { b'\t' },
            null: if is_csv { String::new() } else { "\\N".into() },
            quote: b'"',
            escape: b'"',
        }
    }

    fn fields(copy: &ProgramCopy, line: &str) -> Vec<Option<String>> {
        let mut fields = Fields::default();
        assert_eq!(read(copy, line.as_bytes(), 0, true, &mut fields).unwrap(), Line::Complete(line.len()), "{line:?}");
        let mut columns: Vec<_> = (0..fields.len()).map(|_| StringViewBuilder::new()).collect();
        fields.append(&mut columns).unwrap();
        let value = |mut column: StringViewBuilder| column.finish().iter().next().flatten().map(String::from);
        columns.into_iter().map(value).collect()
    }

    fn texts(values: &[&str]) -> Vec<Option<String>> {
        values.iter().map(|value| (*value != "NULL").then(|| value.to_string())).collect()
    }

    #[test]
    fn text_format() {
        let copy = copy(CopyFormat::Text);
        for (line, expected) in [
            ("a\tb\n", vec!["a", "b"]),
            ("a\t\\N", vec!["a", "NULL"]),
            ("\t\n", vec!["", ""]),
            ("\n", vec![""]),
            ("a\\tb\\\\N\\n\r\n", vec!["a\tb\\N\n"]),
            ("\\101\\x41\\x4g\\q\n", vec!["AA\u{4}gq"]),
            ("line\\\nbreak\n", vec!["line\nbreak"]),
            ("ends with \\r\n", vec!["ends with \r"]),
        ] {
            assert_eq!(fields(&copy, line), texts(&expected), "{line:?}");
        }
        let mut fields = Fields::default();
        assert_eq!(read(&copy, b"\\.\n", 0, false, &mut fields).unwrap(), Line::End);
        assert_eq!(read(&copy, b"", 0, true, &mut fields).unwrap(), Line::Incomplete);
        assert!(read(&copy, b"a\\", 0, true, &mut fields).is_err());
    }

    #[test]
    fn csv() {
        let copy = copy(CopyFormat::Csv);
        for (line, expected) in [
            ("a,b\n", vec!["a", "b"]),
            ("a,,\"\"\r\n", vec!["a", "NULL", ""]),
            ("\"a,\"\"b\"\"\n\",c", vec!["a,\"b\"\n", "c"]),
            ("x\"y z\"\n", vec!["xy z"]),
            ("\\N,\\t\n", vec!["\\N", "\\t"]),
        ] {
            assert_eq!(fields(&copy, line), texts(&expected), "{line:?}");
        }
        let mut fields = Fields::default();
        assert!(read(&copy, b"\"a", 0, true, &mut fields).is_err());
        let own = ProgramCopy { quote: b'\'', escape: b'\\', null: "NULL".into(), delimiter: b';', ..copy };
        assert_eq!(self::fields(&own, "'it\\'s';NULL;'NULL'\n"), [Some("it's".into()), None, Some("NULL".into())]);
    }

    /// Every prefix of a line is incomplete.
    #[test]
    fn lines_in_pieces() {
        for (format, line) in
            [(CopyFormat::Text, "a\\tb\\101\\x41\t\\N\\\\\n"), (CopyFormat::Csv, "a,\"b\"\"c\nd\",e\r\n")]
        {
            let (copy, mut fields) = (copy(format), Fields::default());
            for len in 0..line.len() {
                let line = &line.as_bytes()[..len];
                assert_eq!(read(&copy, line, 0, false, &mut fields).unwrap(), Line::Incomplete, "{len} bytes");
            }
        }
    }
}
