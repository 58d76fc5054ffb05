//! Result rows as text: [`Mode`] names an output format, and its [`Format`] writes batch after batch in bounded memory.
//!
//! | module | formats |
//! |---|---|
//! | [`layout`] | widths of columns, and texts that fit them |
//! | [`table`] | boxed tables |
//! | [`plan`] | plans of EXPLAIN, in place of boxed tables |
//! | [`lines`] | lines of values, Markdown, HTML, LaTeX |
//! | [`statements`] | INSERT statements |
//! | [`delimited`] | CSV, TSV and other separated values, JSON |

mod delimited;
mod layout;
mod lines;
mod plan;
pub mod statements;
mod table;
#[cfg(test)]
mod table_tests;

use std::io::{self, Write};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A boxed table; on a terminal, wide values are cut
    #[default]
    #[value(alias = "box")]
    Table,
    /// A boxed table with the types of the columns, and at most 40 rows
    Duckbox,
    /// One "column = value" line per value
    #[value(alias = "vertical")]
    Line,
    /// Comma-separated values with a header
    Csv,
    /// Tab-separated values with a header
    #[value(alias = "tabs")]
    Tsv,
    /// Values separated by "|"
    List,
    /// Values separated by the control characters 1F and 1E
    Ascii,
    /// An array of JSON objects
    Json,
    /// A JSON object per line
    #[value(alias = "ndjson")]
    Jsonlines,
    /// An INSERT statement per row
    Insert,
    /// A Markdown table
    Markdown,
    /// An HTML table
    Html,
    /// A LaTeX table
    Latex,
}

/// Rows of [`Mode::Duckbox`], as in DuckDB.
const DUCKBOX_ROWS: usize = 40;

/// The user's settings of output formats.
#[derive(Debug, Clone)]
pub struct Style {
    /// The text of NULL; none means that of the format.
    pub null: Option<String>,
    /// Names of columns are written.
    pub headers: bool,
    /// The separator of values; none means that of the format.
    pub separator: Option<String>,
    /// Maximum number of rows of a boxed table; 0 means no limit, none that of the format.
    pub max_rows: Option<usize>,
    /// Cells of a line of a boxed table; none means those of the terminal.
    pub max_width: Option<usize>,
    /// Widths of the first columns of a boxed table; 0 means automatic.
    pub widths: Vec<usize>,
    /// The table of INSERT statements.
    pub table: String,
    /// The result is one of EXPLAIN, which boxed formats draw.
    pub draws_plans: bool,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            null: None,
            headers: true,
            separator: None,
            max_rows: None,
            max_width: None,
            widths: Vec::new(),
            table: "t".into(),
            draws_plans: false,
        }
    }
}

/// The terminal that shows a result.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// Number of cells in a line.
    pub width: usize,
    pub colours: bool,
}

impl Mode {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// A writer of results with this schema. Without a screen, nothing is cut.
    pub fn format(self, schema: SchemaRef, style: &Style, screen: Option<Screen>) -> Box<dyn Format> {
        let printable = match self {
            Mode::Json | Mode::Jsonlines => keyaki::printable_as_json,
            _ => keyaki::printable,
        };
        let null = |default: &str| style.null.clone().unwrap_or_else(|| default.into());
        let separator = |default: &str| style.separator.clone().unwrap_or_else(|| default.into());
        let format: Box<dyn Format> = match self {
            mode if mode.is_boxed() && style.draws_plans && plan::is_plan(&schema) => {
                Box::new(plan::Plans::new(screen, style.max_width.or(screen.map(|screen| screen.width))))
            }
            Mode::Table | Mode::Duckbox => {
                let is_duckbox = self == Mode::Duckbox;
                let look = table::Look {
                    line: style.max_width.or(screen.map(|screen| screen.width)),
                    null: null("NULL"),
                    dims: screen.is_some_and(|screen| screen.colours),
                    headers: style.headers,
                    types: is_duckbox,
                    max_rows: style.max_rows.unwrap_or(if is_duckbox { DUCKBOX_ROWS } else { 0 }),
                    widths: style.widths.clone(),
                };
                Box::new(table::Table::new(schema, look))
            }
            Mode::Line => Box::new(lines::Line::new(schema, null("NULL"), screen)),
            Mode::Csv => {
                let delimiter = separator(",").bytes().next().unwrap_or(b',');
                Box::new(delimited::Csv::new(schema, style.headers, delimiter, null("")))
            }
            Mode::Tsv => Box::new(delimited::Separated::tsv(schema, style.headers, separator("\t"), null(""))),
            Mode::List => {
                Box::new(delimited::Separated::plain(schema, style.headers, [&separator("|"), "\n"], null("")))
            }
            Mode::Ascii => {
                let separators = [separator(delimited::UNIT), delimited::RECORD.to_string()];
                let separators = separators.each_ref().map(String::as_str);
                Box::new(delimited::Separated::plain(schema, style.headers, separators, null("")))
            }
            Mode::Json => Box::new(delimited::Json::new()),
            Mode::Jsonlines => Box::new(delimited::JsonLines),
            Mode::Insert => Box::new(statements::Insert::new(&schema, &style.table, 1, false)),
            Mode::Markdown => Box::new(lines::Markdown::new(schema, null("NULL"))),
            Mode::Html => Box::new(lines::Html::new(schema, style.headers, null("NULL"))),
            Mode::Latex => Box::new(lines::Latex::new(schema, style.headers, null("NULL"))),
        };
        Box::new(Printable { format, printable })
    }

    /// True for boxed tables, in which plans are trees.
    pub fn is_boxed(self) -> bool {
        matches!(self, Mode::Table | Mode::Duckbox)
    }

    /// True if a footer such as "(3 rows, 0.01 s)" may follow the result.
    pub fn has_footer(self) -> bool {
        matches!(self, Mode::Table | Mode::Duckbox | Mode::Line | Mode::Markdown)
    }

    /// True if the format itself removes characters that control a terminal, and uses some.
    pub fn is_safe(self) -> bool {
        matches!(self, Mode::Table | Mode::Duckbox | Mode::Line)
    }

    /// Checks a separator of values.
    ///
    /// # Errors
    /// If the format has no separators, or others.
    pub fn check_separator(self, separator: &str) -> Result<()> {
        match self {
            Mode::List | Mode::Ascii if !separator.is_empty() => Ok(()),
            Mode::Tsv | Mode::Csv if separator.len() == 1 && !"\"\n\r\\".contains(separator) => Ok(()),
            Mode::List | Mode::Ascii => Err(Failure::message("the separator is empty")),
            Mode::Tsv | Mode::Csv => {
                let name = self.name();
                Err(Failure::message(format!(
                    "the separator of {name} is one ASCII character, and no quote or line break"
                )))
            }
            _ => Err(Failure::message(format!("mode {} has no separator (csv, tsv, list and ascii do)", self.name()))),
        }
    }
}

/// Batches as a boxed table; an empty text for no batches.
///
/// # Errors
/// [`Failure::Output`] if a value cannot be formatted.
pub fn table_of(batches: &[RecordBatch]) -> Result<String> {
    table_on(batches, None)
}

/// As [`table_of`], for a screen.
///
/// # Errors
/// As [`table_of`].
pub fn table_on(batches: &[RecordBatch], screen: Option<Screen>) -> Result<String> {
    let Some(first) = batches.first() else { return Ok(String::new()) };
    let (mut format, mut text) = (Mode::Table.format(first.schema(), &Style::default(), screen), Vec::new());
    let written = batches.iter().try_for_each(|batch| format.batch(batch, &mut text));
    written.and_then(|()| format.end(&mut text)).map_err(Failure::Output)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes one result: any number of batches, then the end.
pub trait Format {
    /// Writes the rows of a batch, or keeps them for later.
    ///
    /// # Errors
    /// Errors of `out`, and [`io::ErrorKind::InvalidData`] if a value cannot be formatted.
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()>;
    /// Writes the remaining rows and the end of the result.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// A format of rows whose values Arrow prints as SQL.
struct Printable {
    format: Box<dyn Format>,
    printable: fn(&RecordBatch) -> RecordBatch,
}

impl Format for Printable {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        self.format.batch(&(self.printable)(batch), out)
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.format.end(out)
    }
}

/// Formatters for the columns of a batch. They write NULL as the text `null`.
fn formatters<'a>(columns: &'a [ArrayRef], null: &'a str) -> io::Result<Vec<ArrayFormatter<'a>>> {
    let options = FormatOptions::default().with_null(null).with_display_error(true);
    columns.iter().map(|column| ArrayFormatter::try_new(column, &options).map_err(to_io)).collect()
}

/// A text without control characters other than line breaks, which would break a box or control the terminal.
fn clean(text: String) -> String {
    let replaced = |c| match c {
        '\t' => ' ',
        c if c != '\n' && char::is_control(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    if text.chars().any(|c| c.is_control() && c != '\n') { text.chars().map(replaced).collect() } else { text }
}

/// The I/O error inside an Arrow error; other errors become [`io::ErrorKind::InvalidData`].
fn to_io(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    pub fn batch(ids: &[Option<i64>], names: &[Option<&str>]) -> RecordBatch {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("name", DataType::Utf8, true),
            Field::new("total", DataType::Decimal128(12, 2), true),
        ]);
        let totals = Decimal128Array::from_iter(ids.iter().map(|id| id.map(|id| i128::from(id) * 150)))
            .with_precision_and_scale(12, 2)
            .expect("12,2 is valid");
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(ids.to_vec())),
            Arc::new(StringArray::from(names.to_vec())),
            Arc::new(totals),
        ];
        RecordBatch::try_new(Arc::new(schema), columns).expect("columns match the schema")
    }

    pub fn written(mode: Mode, width: Option<usize>, batches: &[RecordBatch]) -> String {
        styled(mode, &Style::default(), width.map(|width| Screen { width, colours: false }), batches)
    }

    pub fn styled(mode: Mode, style: &Style, screen: Option<Screen>, batches: &[RecordBatch]) -> String {
        let mut out = Vec::new();
        let mut format = mode.format(batches[0].schema(), style, screen);
        for batch in batches {
            format.batch(batch, &mut out).expect("writes to memory");
        }
        format.end(&mut out).expect("writes to memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_mode_shows_an_empty_result() {
        let empty = batch(&[], &[]);
        let shown = |mode| written(mode, None, std::slice::from_ref(&empty));
        assert_eq!(shown(Mode::Csv), "id,name,total\n");
        assert_eq!(shown(Mode::Tsv), "id\tname\ttotal\n");
        assert_eq!(shown(Mode::List), "id|name|total\n");
        assert_eq!(shown(Mode::Json), "[]\n");
        for mode in [Mode::Jsonlines, Mode::Insert, Mode::Line] {
            assert_eq!(shown(mode), "");
        }
        assert!(shown(Mode::Table).contains("total") && shown(Mode::Duckbox).contains("numeric(12,2)"));
        assert!(shown(Mode::Markdown).starts_with("| id | name | total |\n"));
        assert!(shown(Mode::Html).contains("<th>id</th>") && shown(Mode::Latex).contains("id & name & total"));
    }

    #[test]
    fn separators_fit_the_mode() {
        for (mode, separator) in [(Mode::Csv, ";"), (Mode::Tsv, "|"), (Mode::List, " | "), (Mode::Ascii, ",")] {
            assert!(mode.check_separator(separator).is_ok(), "{separator}");
        }
        for (mode, separator) in
            [(Mode::Csv, ";;"), (Mode::Csv, "\""), (Mode::Tsv, "é"), (Mode::List, ""), (Mode::Json, ",")]
        {
            assert!(mode.check_separator(separator).is_err(), "{separator}");
        }
    }
}
