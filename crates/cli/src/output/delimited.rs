//! Formats for other programs. CSV follows RFC 4180 with a header; NULL and the empty text are both an empty field. TSV escapes tabs,
//! line breaks and backslashes with backslashes. Lists and ASCII separate values without escapes. JSON is an array of objects, one
//! per line, or only the objects, with NULL as `null` and exact decimals.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::{JsonFormat, LineDelimited};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{Format, formatters, to_io};

/// ASCII's separator of values.
pub const UNIT: &str = "\x1f";
/// ASCII's separator of rows.
pub const RECORD: &str = "\x1e";

pub struct Csv {
    schema: SchemaRef,
    /// The header has yet to be written.
    header: bool,
    delimiter: u8,
    null: String,
}

impl Csv {
    pub fn new(schema: SchemaRef, headers: bool, delimiter: u8, null: String) -> Self {
        Csv { schema, header: headers, delimiter, null }
    }
}

impl Format for Csv {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let builder = csv::WriterBuilder::new().with_header(std::mem::take(&mut self.header));
        let builder = builder.with_delimiter(self.delimiter).with_null(self.null.clone());
        let mut out = KeepsError { out, error: None };
        let written = builder.build(&mut out).write(&flat(batch)?);
        written.map_err(|error| out.error.unwrap_or_else(|| to_io(error)))
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.header { self.batch(&RecordBatch::new_empty(self.schema.clone()), out) } else { Ok(()) }
    }
}

/// Keeps the error of a writer, of which Arrow's errors have the text only.
struct KeepsError<'a> {
    out: &'a mut dyn Write,
    error: Option<io::Error>,
}

impl KeepsError<'_> {
    fn checked<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            self.error.get_or_insert(error);
            kind.into()
        })
    }
}

impl Write for KeepsError<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.checked(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.checked(flushed)
    }
}

/// Values with separators between them.
pub struct Separated {
    schema: SchemaRef,
    /// The header has yet to be written.
    header: bool,
    between_values: String,
    after_row: String,
    /// Values escape the separators, as in PostgreSQL's COPY.
    escapes: bool,
    null: String,
}

impl Separated {
    pub fn tsv(schema: SchemaRef, headers: bool, separator: String, null: String) -> Self {
        let after_row = "\n".into();
        Separated { schema, header: headers, between_values: separator, after_row, escapes: true, null }
    }

    /// `separators`: between values, and after a row.
    pub fn plain(schema: SchemaRef, headers: bool, separators: [&str; 2], null: String) -> Self {
        let [between_values, after_row] = separators.map(String::from);
        Separated { schema, header: headers, between_values, after_row, escapes: false, null }
    }

    fn escaped(&self, text: String) -> String {
        let special = |c: char| matches!(c, '\\' | '\t' | '\n' | '\r') || self.between_values.starts_with(c);
        if !self.escapes || !text.contains(special) {
            return text;
        }
        let mut escaped = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            match c {
                '\t' => escaped.push_str("\\t"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                c if special(c) => escaped.extend(['\\', c]),
                c => escaped.push(c),
            }
        }
        escaped
    }

    fn row(&self, values: impl Iterator<Item = String>, out: &mut dyn Write) -> io::Result<()> {
        for (index, value) in values.enumerate() {
            if index > 0 {
                out.write_all(self.between_values.as_bytes())?;
            }
            out.write_all(value.as_bytes())?;
        }
        out.write_all(self.after_row.as_bytes())
    }
}

impl Format for Separated {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::take(&mut self.header) {
            self.row(self.schema.fields().iter().map(|field| self.escaped(field.name().clone())), out)?;
        }
        let formatters = formatters(batch.columns(), &self.null)?;
        let nulls: Vec<_> = batch.columns().iter().map(|column| column.logical_nulls()).collect();
        for row in 0..batch.num_rows() {
            let values = formatters.iter().zip(&nulls).map(|(formatter, nulls)| {
                let value = formatter.value(row).to_string();
                // The user may have chosen the text of COPY for NULL, which has a backslash.
                if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) { value } else { self.escaped(value) }
            });
            self.row(values, out)?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.header { self.batch(&RecordBatch::new_empty(self.schema.clone()), out) } else { Ok(()) }
    }
}

/// The rows with texts in place of lists and other nested values, which have no form in CSV.
fn flat(batch: &RecordBatch) -> io::Result<RecordBatch> {
    if !batch.columns().iter().any(|column| column.data_type().is_nested()) {
        return Ok(batch.clone());
    }
    let options = FormatOptions::default();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !column.data_type().is_nested() {
            fields.push(field.clone());
            columns.push(column.clone());
            continue;
        }
        let formatter = ArrayFormatter::try_new(column, &options).map_err(to_io)?;
        let text = |row| column.is_valid(row).then(|| formatter.value(row).to_string());
        let texts: StringArray = (0..column.len()).map(text).collect();
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
        columns.push(Arc::new(texts) as ArrayRef);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(to_io)
}

/// Each batch has a writer of its own, which continues the array of the batches before.
#[derive(Default)]
pub struct Json {
    started: bool,
}

impl Json {
    pub fn new() -> Self {
        Json::default()
    }
}

/// Rows of a JSON array. `CONTINUED`: rows of an earlier batch precede them.
#[derive(Debug, Default)]
struct Rows<const CONTINUED: bool>;

impl<const CONTINUED: bool> JsonFormat for Rows<CONTINUED> {
    fn start_row<W: Write>(&self, writer: &mut W, first: bool) -> Result<(), ArrowError> {
        writer.write_all(if first && !CONTINUED { b"[" } else { b",\n " })?;
        Ok(())
    }
}

fn write<const CONTINUED: bool>(batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    builder.build::<_, Rows<CONTINUED>>(out).write(batch).map_err(to_io)
}

impl Format for Json {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        if batch.num_rows() == 0 {
            Ok(())
        } else if std::mem::replace(&mut self.started, true) {
            write::<true>(batch, out)
        } else {
            write::<false>(batch, out)
        }
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(if self.started { b"]\n" } else { b"[]\n" })
    }
}

/// JSON objects, one per line.
pub struct JsonLines;

impl Format for JsonLines {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let builder = WriterBuilder::new().with_explicit_nulls(true);
        builder.build::<_, LineDelimited>(out).write(batch).map_err(to_io)
    }

    fn end(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, ListBuilder, RecordBatch, StringBuilder};

    use crate::output::tests::{batch, styled, written};
    use crate::output::{Mode, Style};

    #[test]
    fn csv_quotes_and_continues() {
        let batches = [batch(&[Some(1), None], &[Some("a,\"b\""), None]), batch(&[Some(2)], &[Some("")])];
        assert_eq!(written(Mode::Csv, None, &batches), "id,name,total\n1,\"a,\"\"b\"\"\",1.50\n,,\n2,,3.00\n");
    }

    #[test]
    fn arrays_are_texts_in_csv_and_arrays_in_json() {
        let mut builder = ListBuilder::new(StringBuilder::new());
        builder.append_value([Some("a b"), None, Some("c")]);
        builder.append_null();
        let column: ArrayRef = Arc::new(builder.finish());
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let rows = RecordBatch::try_from_iter([("x", column), ("n", numbers)]).unwrap();
        let rows = std::slice::from_ref(&rows);
        assert_eq!(written(Mode::Csv, None, rows), "x,n\n\"{\"\"a b\"\",NULL,c}\",1\n,2\n");
        assert_eq!(written(Mode::Json, None, rows), "[{\"x\":[\"a b\",null,\"c\"],\"n\":1},\n {\"x\":null,\"n\":2}]\n");
    }

    #[test]
    fn json_is_one_array() {
        let batches = [batch(&[], &[]), batch(&[Some(1), None], &[Some("é\n"), None]), batch(&[Some(2)], &[Some("x")])];
        let text = written(Mode::Json, None, &batches);
        assert_eq!(
            text,
            "[{\"id\":1,\"name\":\"é\\n\",\"total\":1.50},\n {\"id\":null,\"name\":null,\"total\":null},\n \
             {\"id\":2,\"name\":\"x\",\"total\":3.00}]\n"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("valid JSON")[2]["id"], 2);
    }

    #[test]
    fn json_lines_are_objects() {
        let batches = [batch(&[], &[]), batch(&[Some(1), None], &[Some("é\n"), None]), batch(&[Some(2)], &[Some("x")])];
        let expected = "{\"id\":1,\"name\":\"é\\n\",\"total\":1.50}\n{\"id\":null,\"name\":null,\"total\":null}\n\
                        {\"id\":2,\"name\":\"x\",\"total\":3.00}\n";
        assert_eq!(written(Mode::Jsonlines, None, &batches), expected);
    }

    #[test]
    fn separated_values() {
        let rows = [batch(&[Some(1), None], &[Some("a\tb\\\n|"), None])];
        assert_eq!(written(Mode::Tsv, None, &rows), "id\tname\ttotal\n1\ta\\tb\\\\\\n|\t1.50\n\t\t\n");
        assert_eq!(written(Mode::List, None, &rows), "id|name|total\n1|a\tb\\\n||1.50\n||\n");
        let ascii = "id\x1fname\x1ftotal\x1e1\x1fa\tb\\\n|\x1f1.50\x1e\x1f\x1f\x1e";
        assert_eq!(written(Mode::Ascii, None, &rows), ascii);
        let style = Style { headers: false, separator: Some(";".into()), null: Some("\\N".into()), ..Style::default() };
        let rows = [batch(&[Some(1), None], &[Some("a;b"), None])];
        assert_eq!(styled(Mode::Csv, &style, None, &rows), "1;\"a;b\";1.50\n\\N;\\N;\\N\n");
        assert_eq!(styled(Mode::Tsv, &style, None, &rows), "1;a\\;b;1.50\n\\N;\\N;\\N\n");
        assert_eq!(styled(Mode::List, &style, None, &rows), "1;a;b;1.50\n\\N;\\N;\\N\n");
    }
}
