//! Boxed tables in bounded memory. The first [`SAMPLE_ROWS`] rows determine the widths of the columns. Later rows are written
//! immediately with these widths.
//!
//! On a terminal the columns are narrowed or hidden until a line fits ([`super::layout`]), and longer values are cut (`…`).
//! Numbers, dates and times are never cut: a value wider than its column widens the column from there on. Rows with values of
//! several lines, such as plans, are shown in full. If the output is not a terminal, nothing is cut.
//!
//! A table of at most N rows has the first and the last rows of the result. Of the rows between, only the batches that can
//! contain last rows are kept.

use std::collections::VecDeque;
use std::io::{self, Write};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};

use super::layout::{Bounds, clip, fit, width, wrap};
use super::{Format, clean, formatters};
use crate::terminal;

/// Number of rows that determine the widths.
const SAMPLE_ROWS: usize = 1000;
/// Bytes of text that end the sample early.
const SAMPLE_BYTES: usize = 4 << 20;
/// Lower bound of the width of a column that is narrowed.
const WIDTH_MIN: usize = 8;
/// Stands for rows that are not shown.
const SKIPPED: &str = "⋮";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The settings of a table.
#[derive(Debug, Default)]
pub struct Look {
    /// Cells of a line; none means no limit.
    pub line: Option<usize>,
    pub null: String,
    /// NULL is dimmed.
    pub dims: bool,
    pub headers: bool,
    /// The types of the columns are below their names.
    pub types: bool,
    /// Maximum number of rows; 0 means no limit.
    pub max_rows: usize,
    /// Widths of the first columns that the user has chosen; 0 means automatic.
    pub widths: Vec<usize>,
}

pub struct Table {
    schema: SchemaRef,
    look: Look,
    /// For each column, true if its values must not be cut.
    rigid: Vec<bool>,
    sample: Vec<Vec<Cell>>,
    sample_bytes: usize,
    /// The width of each column, none for hidden ones; set when the header is written.
    layout: Option<Vec<Option<usize>>>,
    rows: usize,
    /// The last batches, if the number of rows is limited.
    tail: VecDeque<RecordBatch>,
    tail_rows: usize,
}

#[derive(Debug, Clone, Default)]
struct Cell {
    text: String,
    is_null: bool,
}

impl Cell {
    fn new(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), is_null: false }
    }

    fn width(&self) -> usize {
        self.text.split('\n').map(width).max().unwrap_or(0)
    }
}

impl Table {
    pub fn new(schema: SchemaRef, look: Look) -> Self {
        let rigid = schema.fields().iter().map(|field| is_rigid(field.data_type())).collect();
        Table {
            schema,
            look,
            rigid,
            sample: Vec::new(),
            sample_bytes: 0,
            layout: None,
            rows: 0,
            tail: VecDeque::new(),
            tail_rows: 0,
        }
    }

    /// The cells of a batch.
    fn cells(&self, batch: &RecordBatch) -> io::Result<Vec<Vec<Cell>>> {
        let formatters = formatters(batch.columns(), &self.look.null)?;
        let nulls: Vec<_> = batch.columns().iter().map(|column| column.logical_nulls()).collect();
        let is_hidden = |column: usize| self.layout.as_ref().is_some_and(|layout| layout[column].is_none());
        let cell = |row: usize, column: usize| {
            if is_hidden(column) {
                return Cell::default();
            }
            let is_null = nulls[column].as_ref().is_some_and(|nulls| nulls.is_null(row));
            let mut text = clean(formatters[column].value(row).to_string());
            // The rest cannot be shown. A cell has at least a character, as far as it is not combined.
            if let Some(line) = self.look.line.filter(|_| !self.rigid[column] && !text.contains('\n'))
                && let Some((end, _)) = text.char_indices().nth(line * 4)
            {
                text.truncate(end);
                text.shrink_to_fit();
            }
            Cell { text, is_null }
        };
        Ok((0..batch.num_rows()).map(|row| (0..formatters.len()).map(|column| cell(row, column)).collect()).collect())
    }

    /// Names, and types if they are shown.
    fn headers(&self) -> Vec<Vec<Cell>> {
        let fields = self.schema.fields();
        let mut lines = Vec::new();
        if self.look.headers {
            lines.push(fields.iter().map(|field| Cell::new(clean(field.name().replace('\n', " ")))).collect());
        }
        if self.look.types {
            let types = fields.iter().map(|field| Cell { text: keyaki::field_type_name(field), is_null: true });
            lines.push(types.collect());
        }
        lines
    }

    /// Chooses the widths for rows, and writes the lines above the first of them.
    fn begin(&mut self, rows: &[Vec<Cell>], out: &mut dyn Write) -> io::Result<()> {
        let headers = self.headers();
        let bounds: Vec<Bounds> = (0..self.rigid.len())
            .map(|column| {
                let header = headers.iter().map(|line| line[column].width()).max().unwrap_or(0);
                let content = rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
                let chosen = self.look.widths.get(column).copied().filter(|&chosen| chosen > 0);
                let rigid = if self.rigid[column] { content } else { 0 };
                match chosen {
                    Some(chosen) => Bounds { wanted: chosen.max(rigid), least: chosen.max(rigid) },
                    None => {
                        let wanted = header.max(content);
                        Bounds { wanted, least: rigid.max(wanted.min(WIDTH_MIN)) }
                    }
                }
            })
            .collect();
        let layout = self.layout.insert(fit(&bounds, self.look.line));
        let top = border(layout, ['┌', '┬', '┐']);
        let separator = border(layout, ['├', '┼', '┤']);
        writeln!(out, "{top}")?;
        for line in &headers {
            self.write_row(line, true, out)?;
        }
        if headers.is_empty() { Ok(()) } else { writeln!(out, "{separator}") }
    }

    /// Writes a row. Names of columns and types are cut also if the values are not.
    fn write_row(&mut self, row: &[Cell], is_header: bool, out: &mut dyn Write) -> io::Result<()> {
        let Some(layout) = &mut self.layout else { return Ok(()) };
        let one_line = !row.iter().any(|cell| cell.text.contains('\n'));
        let mut columns = Vec::with_capacity(row.len());
        for (column, (cell, space)) in row.iter().zip(layout.iter_mut()).enumerate() {
            let Some(space) = space else { continue };
            let (rigid, chosen) = (self.rigid[column], self.look.widths.get(column).is_some_and(|&chosen| chosen > 0));
            if rigid && !is_header {
                *space = cell.width().max(*space);
            }
            let is_cut = self.look.line.is_some() || chosen || (is_header && rigid);
            let lines: Vec<String> = match (is_cut, one_line) {
                (false, true) => vec![cell.text.clone()],
                (false, false) => cell.text.split('\n').map(String::from).collect(),
                (true, true) => vec![clip(&cell.text, *space)],
                (true, false) => cell.text.split('\n').flat_map(|line| wrap(line, *space)).collect(),
            };
            columns.push((column, *space, lines));
        }
        let hidden = layout.iter().position(Option::is_none);
        let height = columns.iter().map(|(_, _, lines)| lines.len()).max().unwrap_or(1);
        let mut line = String::new();
        for number in 0..height {
            line.clear();
            let mut next_hidden = hidden;
            for (column, space, lines) in &columns {
                if next_hidden.take_if(|hidden| *column > *hidden).is_some() {
                    line.push_str(HIDDEN_CELL);
                }
                let text = lines.get(number).map_or("", String::as_str);
                self.push_cell(&mut line, *column, &row[*column], text, *space);
            }
            if next_hidden.is_some() {
                line.push_str(HIDDEN_CELL);
            }
            writeln!(out, "{line}│")?;
        }
        Ok(())
    }

    /// Adds a border, and a text with spaces beside it.
    fn push_cell(&self, line: &mut String, column: usize, cell: &Cell, text: &str, space: usize) {
        let padding = " ".repeat(space.saturating_sub(width(text)));
        let (before, after) = match self.schema.field(column).data_type().is_numeric() {
            true => (padding.as_str(), ""),
            false => ("", padding.as_str()),
        };
        let (dim, plain) = if cell.is_null && self.look.dims { (DIM, PLAIN) } else { ("", "") };
        for part in ["│ ", before, dim, text, plain, after, " "] {
            line.push_str(part);
        }
    }

    fn write_sample(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let rows = std::mem::take(&mut self.sample);
        self.sample_bytes = 0;
        if self.layout.is_none() {
            self.begin(&rows, out)?;
        }
        rows.iter().try_for_each(|row| self.write_row(row, false, out))
    }

    /// Keeps the first rows, and the batches with the last ones.
    fn keep(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let first = self.look.max_rows.div_ceil(2).saturating_sub(self.sample.len()).min(batch.num_rows());
        let cells = self.cells(&batch.slice(0, first))?;
        self.sample.extend(cells);
        if first < batch.num_rows() {
            let rest = batch.slice(first, batch.num_rows() - first);
            self.tail_rows += rest.num_rows();
            self.tail.push_back(rest);
            while let Some(front) = self.tail.front()
                && self.tail_rows - front.num_rows() >= self.look.max_rows / 2
            {
                self.tail_rows -= front.num_rows();
                self.tail.pop_front();
            }
        }
        Ok(())
    }

    /// Writes the first and the last rows. Returns their number.
    fn write_limited(&mut self, out: &mut dyn Write) -> io::Result<usize> {
        let mut first = std::mem::take(&mut self.sample);
        let surplus = self.tail_rows.saturating_sub(self.look.max_rows / 2);
        let mut last = Vec::new();
        for (index, batch) in std::mem::take(&mut self.tail).into_iter().enumerate() {
            let skipped = if index == 0 { surplus } else { 0 };
            last.extend(self.cells(&batch.slice(skipped, batch.num_rows() - skipped))?);
        }
        let (split, shown) = (first.len(), first.len() + last.len());
        first.append(&mut last);
        self.begin(&first, out)?;
        for (index, row) in first.iter().enumerate() {
            if index == split && shown < self.rows {
                self.write_skipped(out)?;
            }
            self.write_row(row, false, out)?;
        }
        if split == shown && shown < self.rows {
            self.write_skipped(out)?;
        }
        Ok(shown)
    }

    fn write_skipped(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let row = vec![Cell { text: SKIPPED.into(), is_null: true }; self.rigid.len()];
        self.write_row(&row, true, out)
    }

    /// The numbers of rows and columns, if some are not shown.
    fn note(&self, rows_shown: usize) -> Option<String> {
        let columns_shown = self.layout.iter().flatten().flatten().count();
        let of = |shown: usize, all: usize, what: &str| {
            (shown < all)
                .then(|| format!("{} of {} {what}", terminal::thousands(shown as u64), terminal::thousands(all as u64)))
        };
        let columns = of(columns_shown, self.rigid.len(), "columns");
        let parts: Vec<String> = of(rows_shown, self.rows, "rows").into_iter().chain(columns).collect();
        (!parts.is_empty()).then(|| format!("({} shown)", parts.join(", ")))
    }
}

/// The cell that stands for hidden columns.
const HIDDEN_CELL: &str = "│ … ";

/// True for types whose values are not cut: a part of a number or a date is another one.
fn is_rigid(ty: &DataType) -> bool {
    ty.is_numeric() || ty.is_temporal() || *ty == DataType::Boolean
}

/// A horizontal line, with characters for its left end, crossings and its right end.
fn border(layout: &[Option<usize>], [left, crossing, right]: [char; 3]) -> String {
    let mut line = String::from(left);
    let mut was_hidden = false;
    for space in layout {
        let is_hidden = space.is_none();
        if is_hidden && was_hidden {
            continue;
        }
        was_hidden = is_hidden;
        line.push_str(&"─".repeat(space.unwrap_or(1) + 2));
        line.push(crossing);
    }
    line.pop();
    line.push(right);
    line
}

impl Format for Table {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        if batch.num_columns() == 0 {
            return Ok(());
        }
        self.rows += batch.num_rows();
        if self.look.max_rows > 0 {
            return self.keep(batch);
        }
        let mut start = 0;
        while start < batch.num_rows() {
            let wanted = if self.layout.is_some() { SAMPLE_ROWS } else { SAMPLE_ROWS - self.sample.len() };
            // A row at a time if the rows are wide.
            let bytes_per_row = batch.get_array_memory_size() / batch.num_rows();
            let fitting = (SAMPLE_BYTES / bytes_per_row.max(1)).max(1);
            let rows = wanted.min(fitting).min(batch.num_rows() - start);
            let cells = self.cells(&batch.slice(start, rows))?;
            self.sample_bytes += cells.iter().flatten().map(|cell| cell.text.len()).sum::<usize>();
            self.sample.extend(cells);
            start += rows;
            if self.layout.is_some() || self.sample.len() >= SAMPLE_ROWS || self.sample_bytes >= SAMPLE_BYTES {
                self.write_sample(out)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.schema.fields().is_empty() {
            return Ok(());
        }
        let shown = if self.look.max_rows > 0 {
            self.write_limited(out)?
        } else {
            self.write_sample(out)?;
            self.rows
        };
        let layout = self.layout.as_deref().unwrap_or_default();
        writeln!(out, "{}", border(layout, ['└', '┴', '┘']))?;
        match self.note(shown) {
            Some(note) => writeln!(out, "{note}"),
            None => Ok(()),
        }
    }
}
