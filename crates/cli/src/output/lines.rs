//! Line mode (a `column = value` line per value, a blank line between rows) and Markdown tables.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{Format, formatters};

pub struct Line {
    schema: SchemaRef,
    /// Length in characters of the longest column name. Names are right-aligned.
    name_width: usize,
    started: bool,
}

impl Line {
    pub fn new(schema: SchemaRef) -> Self {
        let name_width = schema.fields().iter().map(|field| field.name().chars().count()).max().unwrap_or(0);
        Line { schema, name_width, started: false }
    }
}

impl Format for Line {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let formatters = formatters(batch.columns(), "NULL")?;
        for row in 0..batch.num_rows() {
            if std::mem::replace(&mut self.started, true) {
                writeln!(out)?;
            }
            for (field, formatter) in self.schema.fields().iter().zip(&formatters) {
                writeln!(out, "{:>width$} = {}", field.name(), formatter.value(row), width = self.name_width)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

pub struct Markdown {
    schema: SchemaRef,
    started: bool,
}

impl Markdown {
    pub fn new(schema: SchemaRef) -> Self {
        Markdown { schema, started: false }
    }

    fn header(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        for field in self.schema.fields() {
            write!(out, "| {} ", escape(field.name()))?;
        }
        writeln!(out, "|")?;
        for field in self.schema.fields() {
            write!(out, "|{}", if field.data_type().is_numeric() { "---:" } else { "---" })?;
        }
        writeln!(out, "|")
    }
}

/// Escapes the characters that would end a cell or a row.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace("\r\n", "<br>").replace(['\n', '\r'], "<br>")
}

impl Format for Markdown {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)?;
        let formatters = formatters(batch.columns(), "NULL")?;
        for row in 0..batch.num_rows() {
            for formatter in &formatters {
                write!(out, "| {} ", escape(&formatter.value(row).to_string()))?;
            }
            writeln!(out, "|")?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)
    }
}

#[cfg(test)]
mod tests {
    use crate::output::Mode;
    use crate::output::tests::{batch, written};

    #[test]
    fn line_mode() {
        let text = written(Mode::Line, None, &[batch(&[Some(1), None], &[Some("a"), None])]);
        assert_eq!(text, "   id = 1\n name = a\ntotal = 1.50\n\n   id = NULL\n name = NULL\ntotal = NULL\n");
    }

    #[test]
    fn markdown_escapes() {
        let text = written(Mode::Markdown, None, &[batch(&[Some(1)], &[Some("a|b\nc")])]);
        assert_eq!(text, "| id | name | total |\n|---:|---|---:|\n| 1 | a\\|b<br>c | 1.50 |\n");
    }
}
