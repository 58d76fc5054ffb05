//! Line mode (a `column = value` line per value, a blank line between rows), and tables in Markdown, HTML and LaTeX.

use std::io::{self, Write};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::{Format, Screen, clean, formatters};

pub struct Line {
    schema: SchemaRef,
    null: String,
    screen: Option<Screen>,
    /// Length in characters of the longest column name. Names are right-aligned.
    name_width: usize,
    started: bool,
}

impl Line {
    pub fn new(schema: SchemaRef, null: String, screen: Option<Screen>) -> Self {
        let name_width = schema.fields().iter().map(|field| field.name().chars().count()).max().unwrap_or(0);
        Line { schema, null, screen, name_width, started: false }
    }

    /// A text that does not control the terminal.
    fn safe(&self, text: String) -> String {
        if self.screen.is_some() { clean(text) } else { text }
    }
}

impl Format for Line {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let formatters = formatters(batch.columns(), &self.null)?;
        let nulls: Vec<_> = batch.columns().iter().map(|column| column.logical_nulls()).collect();
        let dims = self.screen.is_some_and(|screen| screen.colours);
        for row in 0..batch.num_rows() {
            if std::mem::replace(&mut self.started, true) {
                writeln!(out)?;
            }
            for ((field, formatter), nulls) in self.schema.fields().iter().zip(&formatters).zip(&nulls) {
                let value = self.safe(formatter.value(row).to_string());
                let is_dim = dims && nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                let (dim, plain) = if is_dim { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
                let (name, width) = (self.safe(field.name().clone()), self.name_width);
                writeln!(out, "{name:>width$} = {dim}{value}{plain}")?;
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
    null: String,
    started: bool,
}

impl Markdown {
    pub fn new(schema: SchemaRef, null: String) -> Self {
        Markdown { schema, null, started: false }
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
        let formatters = formatters(batch.columns(), &self.null)?;
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

pub struct Html {
    schema: SchemaRef,
    headers: bool,
    null: String,
    started: bool,
}

impl Html {
    pub fn new(schema: SchemaRef, headers: bool, null: String) -> Self {
        Html { schema, headers, null, started: false }
    }

    fn header(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        writeln!(out, "<table>")?;
        if self.headers {
            let names: String =
                self.schema.fields().iter().map(|field| format!("<th>{}</th>", escape_html(field.name()))).collect();
            writeln!(out, "<thead>\n<tr>{names}</tr>\n</thead>")?;
        }
        writeln!(out, "<tbody>")
    }
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

impl Format for Html {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)?;
        let formatters = formatters(batch.columns(), &self.null)?;
        for row in 0..batch.num_rows() {
            write!(out, "<tr>")?;
            for (formatter, column) in formatters.iter().zip(batch.columns()) {
                let alignment = if column.data_type().is_numeric() { " style=\"text-align: right\"" } else { "" };
                write!(out, "<td{alignment}>{}</td>", escape_html(&formatter.value(row).to_string()))?;
            }
            writeln!(out, "</tr>")?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)?;
        writeln!(out, "</tbody>\n</table>")
    }
}

pub struct Latex {
    schema: SchemaRef,
    headers: bool,
    null: String,
    started: bool,
}

impl Latex {
    pub fn new(schema: SchemaRef, headers: bool, null: String) -> Self {
        Latex { schema, headers, null, started: false }
    }

    fn header(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        let fields = self.schema.fields();
        let columns: String =
            fields.iter().map(|field| if field.data_type().is_numeric() { 'r' } else { 'l' }).collect();
        writeln!(out, "\\begin{{tabular}}{{{columns}}}\n\\hline")?;
        if self.headers {
            let names: Vec<String> = fields.iter().map(|field| escape_latex(field.name())).collect();
            writeln!(out, "{} \\\\\n\\hline", names.join(" & "))?;
        }
        Ok(())
    }
}

fn escape_latex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\textbackslash{}"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '<' => escaped.push_str("\\textless{}"),
            '>' => escaped.push_str("\\textgreater{}"),
            '|' => escaped.push_str("\\textbar{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', c]),
            '\n' | '\r' | '\t' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

impl Format for Latex {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)?;
        let formatters = formatters(batch.columns(), &self.null)?;
        for row in 0..batch.num_rows() {
            let values: Vec<String> =
                formatters.iter().map(|formatter| escape_latex(&formatter.value(row).to_string())).collect();
            writeln!(out, "{} \\\\", values.join(" & "))?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.header(out)?;
        writeln!(out, "\\hline\n\\end{{tabular}}")
    }
}

#[cfg(test)]
mod tests {
    use crate::output::tests::{batch, styled, written};
    use crate::output::{Mode, Screen, Style};

    #[test]
    fn line_mode() {
        let rows = [batch(&[Some(1), None], &[Some("a"), None])];
        let text = written(Mode::Line, None, &rows);
        assert_eq!(text, "   id = 1\n name = a\ntotal = 1.50\n\n   id = NULL\n name = NULL\ntotal = NULL\n");
        let screen = Some(Screen { width: 80, colours: true });
        let text = styled(Mode::Line, &Style::default(), screen, &[batch(&[Some(1)], &[None])]);
        assert_eq!(text, "   id = 1\n name = \x1b[2mNULL\x1b[0m\ntotal = 1.50\n");
        let text = styled(Mode::Line, &Style::default(), screen, &[batch(&[Some(1)], &[Some("\x1b[31mred\nx")])]);
        assert!(text.contains(" name = \u{fffd}[31mred\nx\n"), "{text}");
    }

    #[test]
    fn markdown_escapes() {
        let text = written(Mode::Markdown, None, &[batch(&[Some(1)], &[Some("a|b\nc")])]);
        assert_eq!(text, "| id | name | total |\n|---:|---|---:|\n| 1 | a\\|b<br>c | 1.50 |\n");
    }

    #[test]
    fn html_escapes() {
        let text = written(Mode::Html, None, &[batch(&[Some(1)], &[Some("<a href=\"x\">&'")])]);
        let right = " style=\"text-align: right\"";
        let expected = format!(
            "<table>\n<thead>\n<tr><th>id</th><th>name</th><th>total</th></tr>\n</thead>\n<tbody>\n\
             <tr><td{right}>1</td><td>&lt;a href=&quot;x&quot;&gt;&amp;&#39;</td><td{right}>1.50</td></tr>\n\
             </tbody>\n</table>\n"
        );
        assert_eq!(text, expected);
        let style = Style { headers: false, ..Style::default() };
        assert!(!styled(Mode::Html, &style, None, &[batch(&[], &[])]).contains("<th"));
    }

    #[test]
    fn latex_escapes() {
        let text = written(Mode::Latex, None, &[batch(&[Some(1)], &[Some("50% a_b \\ {x}")])]);
        let expected = "\\begin{tabular}{rlr}\n\\hline\nid & name & total \\\\\n\\hline\n\
                        1 & 50\\% a\\_b \\textbackslash{} \\{x\\} & 1.50 \\\\\n\\hline\n\\end{tabular}\n";
        assert_eq!(text, expected);
    }
}
