//! Formats for other programs. CSV follows RFC 4180 with a header; NULL and the empty text are both an empty field. JSON is an array
//! of objects, one per line, with NULL as `null` and exact decimals.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::JsonFormat;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{Format, to_io};

pub struct Csv {
    schema: SchemaRef,
    header_written: bool,
}

impl Csv {
    pub fn new(schema: SchemaRef) -> Self {
        Csv { schema, header_written: false }
    }
}

impl Format for Csv {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let header = !std::mem::replace(&mut self.header_written, true);
        csv::WriterBuilder::new().with_header(header).build(out).write(&flat(batch)?).map_err(to_io)
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.header_written { Ok(()) } else { self.batch(&RecordBatch::new_empty(self.schema.clone()), out) }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, ListBuilder, RecordBatch, StringBuilder};

    use crate::output::Mode;
    use crate::output::tests::{batch, written};

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
}
