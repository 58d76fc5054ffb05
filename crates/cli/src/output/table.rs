//! Boxed tables in bounded memory. The first [`SAMPLE_ROWS`] rows determine the widths of the columns. Later rows are written
//! immediately with these widths.
//!
//! On a terminal the widest columns are narrowed until a line fits, and longer values are truncated (`…`). Numbers are never
//! truncated: a number wider than its column widens the column from there on. Rows with values of several lines, such as plans,
//! are shown in full. If the output is not a terminal, nothing is truncated.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table as Boxes, Width};

use super::{Format, formatters};

/// Number of rows that determine the widths.
const SAMPLE_ROWS: usize = 1000;
/// Bytes of text that end the sample early.
const SAMPLE_BYTES: usize = 4 << 20;
/// Upper bound of a column's width in characters.
const WIDTH_MAX: u16 = 10_000;
/// Lower bound of a narrowed column's width in characters.
const WIDTH_MIN: u16 = 8;
/// Left and right borders, header separated, no lines between rows.
const PRESET: &str = "││──├─┼┤│    ┬┴┌┐└┘";

pub struct Table {
    schema: SchemaRef,
    terminal_width: Option<usize>,
    sample: Vec<Vec<String>>,
    sample_bytes: usize,
    /// Widths of the columns in characters; set when the header is written.
    widths: Option<Vec<u16>>,
}

impl Table {
    pub fn new(schema: SchemaRef, terminal_width: Option<usize>) -> Self {
        Table { schema, terminal_width, sample: Vec::new(), sample_bytes: 0, widths: None }
    }

    fn boxes(&self, rows: impl Iterator<Item = Vec<String>>) -> Boxes {
        let mut boxes = Boxes::new();
        boxes.load_preset(PRESET).force_no_tty().set_content_arrangement(ContentArrangement::Disabled);
        boxes.set_truncation_indicator("…");
        boxes.set_header(self.row(self.schema.fields().iter().map(|field| clean(field.name().clone()))));
        for row in rows {
            boxes.add_row(self.row(row));
        }
        for (index, field) in self.schema.fields().iter().enumerate() {
            if let Some(column) = boxes.column_mut(index).filter(|_| field.data_type().is_numeric()) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        boxes
    }

    fn row(&self, values: impl IntoIterator<Item = String>) -> Row {
        let values: Vec<String> = values.into_iter().collect();
        let one_line = !values.iter().any(|value| value.contains('\n'));
        let mut row = Row::from(values.into_iter().map(Cell::new_owned).collect::<Vec<_>>());
        if self.terminal_width.is_some() && one_line {
            row.max_height(1);
        }
        row
    }

    /// Writes rows, after the header at the first call.
    fn write(&mut self, rows: Vec<Vec<String>>, out: &mut dyn Write) -> io::Result<()> {
        let first = self.widths.is_none();
        if rows.is_empty() && !first {
            return Ok(());
        }
        let mut boxes = self.boxes(rows.into_iter());
        let content = boxes.column_max_content_widths();
        let widths = match self.widths.take() {
            None => fit(content, &self.rigid(), self.terminal_width),
            Some(mut widths) => {
                for ((width, content), rigid) in widths.iter_mut().zip(content).zip(self.rigid()) {
                    *width = if rigid { content.max(*width) } else { *width };
                }
                widths
            }
        };
        boxes.set_content_arrangement(ContentArrangement::Dynamic);
        let constraint = |&width: &u16| match self.terminal_width {
            // Two characters of padding.
            Some(_) => ColumnConstraint::Absolute(Width::Fixed(width.saturating_add(2))),
            None => ColumnConstraint::LowerBoundary(Width::Fixed(width.saturating_add(2))),
        };
        boxes.set_constraints(widths.iter().map(constraint).collect::<Vec<_>>());
        self.widths = Some(widths);
        // Lines: top border, header, separator, rows, bottom border.
        let skip = if first { 0 } else { 3 };
        let lines: Vec<String> = boxes.lines().collect();
        for line in &lines[skip..lines.len() - 1] {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// For each column, true if its values must not be truncated.
    fn rigid(&self) -> Vec<bool> {
        self.schema
            .fields()
            .iter()
            .map(|field| self.terminal_width.is_none() || field.data_type().is_numeric())
            .collect()
    }

    fn bottom(&self) -> String {
        let bars = self.widths.iter().flatten().map(|&width| "─".repeat(usize::from(width) + 2));
        format!("└{}┘", bars.collect::<Vec<_>>().join("┴"))
    }
}

/// Replaces control characters other than line breaks, which would break the box.
fn clean(text: String) -> String {
    if text.chars().any(|c| c.is_control() && c != '\n') {
        text.chars()
            .map(|c| match c {
                '\n' => '\n',
                '\t' => ' ',
                c if c.is_control() => '\u{fffd}',
                c => c,
            })
            .collect()
    } else {
        text
    }
}

/// Narrows the widest columns that are not rigid until a line fits. A line has `width + 3` characters per column and one more.
fn fit(mut widths: Vec<u16>, rigid: &[bool], terminal_width: Option<usize>) -> Vec<u16> {
    for width in &mut widths {
        *width = (*width).clamp(1, WIDTH_MAX);
    }
    let Some(terminal_width) = terminal_width else { return widths };
    let available = terminal_width.saturating_sub(3 * widths.len() + 1);
    let narrowed = |limit: u16| -> Vec<u16> {
        widths.iter().zip(rigid).map(|(&width, &rigid)| if rigid { width } else { width.min(limit) }).collect()
    };
    let total = |widths: &[u16]| widths.iter().map(|&width| usize::from(width)).sum::<usize>();
    // Binary search for the greatest common limit with which a line fits.
    let (mut low, mut high) = (WIDTH_MIN, WIDTH_MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if total(&narrowed(middle)) <= available {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut fitted = narrowed(low);
    // The remaining characters go to the first truncated columns.
    let mut spare = available.saturating_sub(total(&fitted));
    for (width, wanted) in fitted.iter_mut().zip(&widths) {
        let more = spare.min(usize::from(wanted - *width));
        *width += more as u16;
        spare -= more;
    }
    fitted
}

impl Format for Table {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        if batch.num_columns() == 0 {
            return Ok(());
        }
        let formatters = formatters(batch.columns(), "NULL")?;
        for row in 0..batch.num_rows() {
            let values: Vec<String> = formatters.iter().map(|f| clean(f.value(row).to_string())).collect();
            self.sample_bytes += values.iter().map(String::len).sum::<usize>();
            self.sample.push(values);
            if self.sample.len() >= SAMPLE_ROWS || self.sample_bytes >= SAMPLE_BYTES {
                self.sample_bytes = 0;
                let rows = std::mem::take(&mut self.sample);
                self.write(rows, out)?;
            }
        }
        if self.widths.is_some() {
            let rows = std::mem::take(&mut self.sample);
            self.write(rows, out)?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.schema.fields().is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.sample);
        self.write(rows, out)?;
        writeln!(out, "{}", self.bottom())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Mode;
    use crate::output::tests::{batch, written};

    #[test]
    fn numbers_are_right_aligned_and_null_is_shown() {
        let text = written(Mode::Table, Some(80), &[batch(&[Some(1), None], &[Some("ab"), None])]);
        let expected = "\
┌──────┬──────┬───────┐
│   id │ name │ total │
├──────┼──────┼───────┤
│    1 │ ab   │  1.50 │
│ NULL │ NULL │  NULL │
└──────┴──────┴───────┘
";
        assert_eq!(text, expected);
    }

    #[test]
    fn wide_values_are_cut_to_the_terminal() {
        let long = "x".repeat(200);
        let text = written(Mode::Table, Some(40), &[batch(&[Some(1)], &[Some(&long)])]);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains('…'));
        let whole = written(Mode::Table, None, &[batch(&[Some(1)], &[Some(&long)])]);
        assert!(whole.contains(&long));
    }

    #[test]
    fn values_of_several_lines_are_whole() {
        for width in [None, Some(40)] {
            let text = written(Mode::Table, width, &[batch(&[Some(1)], &[Some("first\n  second\tline")])]);
            assert!(text.contains("│ first ") && text.contains("│   second line │"), "{text}");
            assert_eq!(text.lines().count(), 6);
        }
    }

    #[test]
    fn later_rows_keep_the_widths_and_numbers_stay_whole() {
        let ids: Vec<Option<i64>> = (0..2500).map(Some).collect();
        let names = vec![Some("n"); 2500];
        for width in [None, Some(60)] {
            let late = batch(&[Some(1_000_000_007)], &[Some("late, and wider")]);
            let text = written(Mode::Table, width, &[batch(&ids, &names), late]);
            assert_eq!(text.lines().count(), 2501 + 4);
            assert_eq!(text.lines().filter(|line| line.contains("name")).count(), 1);
            let widths: Vec<usize> = text.lines().take(1003).map(|line| line.chars().count()).collect();
            assert!(widths.iter().all(|&width| width == widths[0]), "{widths:?}");
            assert!(text.contains("│ 2499 │"));
            assert!(text.contains("│ 1000000007 │"));
            assert_eq!(text.contains("late, and wider"), width.is_none());
        }
    }

    #[test]
    fn fitting() {
        let soft = [false; 4];
        assert_eq!(fit(vec![3, 5], &soft, None), [3, 5]);
        assert_eq!(fit(vec![3, 100], &soft, Some(40)), [3, 30]);
        assert_eq!(fit(vec![100, 100], &soft, Some(40)), [17, 16]);
        assert_eq!(fit(vec![20, 100], &[true, false], Some(40)), [20, 13]);
        // A terminal too narrow for the minimum widths: lines are longer than the terminal.
        assert_eq!(fit(vec![100; 4], &soft, Some(20)), [8; 4]);
    }
}
