//! INSERT statements with the rows of a result. Names are quoted, because a result does not say which of them are keywords.

use std::io::{self, Write};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Schema};

use super::{Format, formatters};

/// Writes rows as INSERT statements.
pub struct Insert {
    /// The text before the rows.
    start: String,
    rows_per_statement: usize,
    /// Rows of the open statement.
    open: usize,
}

impl Insert {
    /// `table` is a name, with or without a schema. `is_overriding`: identity columns get the values of the rows.
    pub fn new(schema: &Schema, table: &str, rows_per_statement: usize, is_overriding: bool) -> Insert {
        let columns: Vec<String> = schema.fields().iter().map(|field| identifier(field.name())).collect();
        let table: Vec<String> = table.splitn(2, '.').map(identifier).collect();
        let overriding = if is_overriding { " OVERRIDING SYSTEM VALUE" } else { "" };
        let start = format!("INSERT INTO {} ({}){overriding} VALUES", table.join("."), columns.join(", "));
        Insert { start, rows_per_statement, open: 0 }
    }
}

impl Format for Insert {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let formatters = formatters(batch.columns(), "NULL")?;
        let nulls: Vec<_> = batch.columns().iter().map(|column| column.logical_nulls()).collect();
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().zip(&formatters).zip(&nulls).map(|((column, formatter), nulls)| {
                match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                    true => "NULL".into(),
                    false => literal(column.data_type(), formatter.value(row).to_string()),
                }
            });
            let values = values.collect::<Vec<String>>().join(", ");
            let before = match (self.open, self.rows_per_statement) {
                (0, 1) => format!("{} ", self.start),
                (0, _) => format!("{}\n  ", self.start),
                _ => ",\n  ".into(),
            };
            write!(out, "{before}({values})")?;
            self.open += 1;
            if self.open == self.rows_per_statement {
                self.end(out)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::take(&mut self.open) > 0 { out.write_all(b";\n") } else { Ok(()) }
    }
}

/// A name in quotes.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a literal.
pub fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The literal of a value that Arrow has formatted.
fn literal(ty: &DataType, text: String) -> String {
    match ty {
        DataType::Null | DataType::Boolean => text,
        // NaN and infinities are texts, and a negative zero is no integer.
        ty if ty.is_floating() && (text.contains(|c: char| c.is_alphabetic() && c != 'e') || text == "-0.0") => {
            text_literal(&text)
        }
        ty if ty.is_numeric() => text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            format!("'\\x{text}'")
        }
        _ => text_literal(&text),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryArray, BooleanArray, Date32Array, Float64Array};

    use super::*;
    use crate::output::tests::{batch, styled, written};
    use crate::output::{Mode, Style};

    #[test]
    fn rows_are_statements() {
        let rows = [batch(&[Some(1), None], &[Some("it's"), None])];
        let text = written(Mode::Insert, None, &rows);
        let expected = "INSERT INTO \"t\" (\"id\", \"name\", \"total\") VALUES (1, 'it''s', 1.50);\n\
                        INSERT INTO \"t\" (\"id\", \"name\", \"total\") VALUES (NULL, NULL, NULL);\n";
        assert_eq!(text, expected);
        let style = Style { table: "my schema.a\"b".into(), ..Style::default() };
        assert!(styled(Mode::Insert, &style, None, &rows).starts_with("INSERT INTO \"my schema\".\"a\"\"b\" ("));
        let mut insert = Insert::new(&rows[0].schema(), "t", 3, true);
        let mut out = Vec::new();
        insert.batch(&rows[0], &mut out).unwrap();
        insert.batch(&rows[0], &mut out).unwrap();
        insert.end(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("OVERRIDING SYSTEM VALUE VALUES\n  (").count(), 2);
        assert!(text.ends_with("VALUES\n  (NULL, NULL, NULL);\n"), "{text}");
    }

    #[test]
    fn literals_of_types() {
        let columns: [(&str, ArrayRef); 4] = [
            ("b", Arc::new(BooleanArray::from(vec![true, false, true]))),
            ("f", Arc::new(Float64Array::from(vec![f64::NAN, -0.0, 1e300]))),
            ("x", Arc::new(BinaryArray::from(vec![&b"\x00\xff"[..], b"", b"a"]))),
            ("d", Arc::new(Date32Array::from(vec![0, 1, 2]))),
        ];
        let text = written(Mode::Insert, None, &[RecordBatch::try_from_iter(columns).unwrap()]);
        let values: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("VALUES ")).map(|(_, row)| row).collect();
        assert_eq!(
            values,
            [
                "(true, 'NaN', '\\x00ff', '1970-01-01');",
                "(false, '-0.0', '\\x', '1970-01-02');",
                "(true, 1e300, '\\x61', '1970-01-03');"
            ]
        );
    }
}
