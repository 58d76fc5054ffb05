//! Writing of pages.
//!
//! The writer finds the number of rows that fill a page by planning: a plan chooses encodings and computes their exact
//! length without writing. The first plan takes as many rows as the page before. Further plans correct this number by
//! the length found. Only the plan that fits is written.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};

use super::open::ROWS_MAX;
use super::{BLOCK, HEADER_LEN, KINDS, MAGIC, MessageKind, PAGE_BYTES_MAX, PAGE_FORMAT, RunColumns};
use crate::base::{ColumnType, Error, Result, Schema};
use crate::codec::column::{BytesEncoder, BytesOptions, ColumnEncoder, IntsEncoder};
use crate::codec::scalar::fixed_len;

/// Number of rows in the first plan of the first page.
const FIRST_GUESS: usize = 64;
/// Number of plans after which a plan that fills three quarters of the page is good enough.
const PLANS_MAX: usize = 5;
/// Fill level in percent below which planning does not stop, whatever the number of plans, unless another row does not fit.
/// The bound on the space of buffered messages relies on it.
pub(crate) const FILL_PERCENT_MIN: usize = 75;
/// Fill level in percent at which planning stops.
const FILL_PERCENT: usize = 95;

/// Upper bounds on the lengths of run pages with the columns of a schema. A page with the messages M takes at most
/// `page + Σ (message + content of m)` bytes for all m in M, where the content of a message is its encoded key and its value or operand.
///
/// *Derivation.* Compression, dictionaries and lines are used only where they are shorter, so the plain encodings give the bound. Per
/// message, an integer takes its width in bits, a float eight bytes, a wide value 16, the end of a byte string four, its bytes are part of
/// the content (keys and rows contain them unchanged), and nulls a bit, here a byte. The kind takes a byte, the end of the operand four, and its
/// function and length at most 12.
/// A dictionary of byte strings is shorter than four fifths of the bytes and counts of all rows, and its ends are at most half as many. A
/// row from before its tree was extended has the missing values of the new columns. Per column, the headers take at most 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PageBound {
    /// Bytes of a page without messages.
    pub page: usize,
    /// Bytes of a message without its content.
    pub message: usize,
}

/// Bytes of the directory entry and of the headers of a column: nulls, precision, two sequences of integers, or prefix, dictionary,
/// ends and heap.
const COLUMN_BYTES_MAX: usize = 4 + 40;

/// Bytes of the function number and the length before an operand.
const OPERAND_BYTES_MAX: usize = 12;

impl PageBound {
    pub(crate) fn new(schema: &Schema) -> PageBound {
        let widths = schema.columns().iter().enumerate().map(|(i, column)| {
            let missing = schema.encoded_missing(i).map_or(0, <[u8]>::len);
            1 + missing
                + match column.ty {
                    ColumnType::Text | ColumnType::Bytes | ColumnType::List(_) => 4,
                    ColumnType::Float32 => 8,
                    ty => fixed_len(ty).map_or(16, |len| len.max(1)),
                }
        });
        let columns = schema.columns().len() + 3;
        PageBound {
            page: HEADER_LEN + columns * COLUMN_BYTES_MAX,
            message: widths.sum::<usize>() + 1 + 4 + OPERAND_BYTES_MAX,
        }
    }

    /// A bound for pages of both kinds.
    pub(crate) fn max(self, other: PageBound) -> PageBound {
        PageBound { page: self.page.max(other.page), message: self.message.max(other.message) }
    }

    /// True if `other` also is a bound for these pages.
    pub(crate) fn is_within(self, other: PageBound) -> bool {
        self.max(other) == other
    }
}

/// Encodes rows into pages.
#[derive(Debug)]
pub struct PageWriter {
    schema: Arc<Schema>,
    page_bytes: usize,
    columns: Vec<ColumnEncoder>,
    kinds: IntsEncoder,
    operands: BytesEncoder,
    /// Estimated number of rows of the next page.
    guess: usize,
}

/// An encoded page that is not yet placed in the file and not yet [`seal`](super::seal)ed.
#[derive(Debug)]
pub struct WrittenPage {
    /// The bytes of the page. Their length is `page_bytes`, or a larger multiple of 4096 if a single row needs more.
    pub bytes: Vec<u8>,
    /// Number of rows in the page.
    /// Rows in the page.
    pub rows: usize,
}

impl PageWriter {
    /// A writer of pages of `page_bytes` bytes, rounded up to a multiple of 4096.
    pub fn new(schema: Arc<Schema>, page_bytes: usize) -> Self {
        let page_bytes = page_bytes.clamp(BLOCK, PAGE_BYTES_MAX).next_multiple_of(BLOCK);
        let column = |(i, column): (usize, &crate::Column)| ColumnEncoder::new(column.ty, i < schema.key_columns());
        let columns = schema.columns().iter().enumerate().map(column).collect();
        PageWriter {
            schema,
            page_bytes,
            columns,
            kinds: IntsEncoder::default(),
            operands: BytesEncoder::default(),
            guess: FIRST_GUESS,
        }
    }

    /// Encodes as many of the rows from `from` on as fit into one page, at least one. `columns` has one array for each
    /// column of the schema. With `messages` the result is a run page.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`] if the columns are not those of the schema;
    /// [`Error::InvalidArgument`] if there is no row `from`, or columns and messages differ in length; [`Error::TooLarge`] if
    /// a single row exceeds the largest page.
    pub fn encode(&mut self, columns: &[ArrayRef], messages: Option<&RunColumns>, from: usize) -> Result<WrittenPage> {
        let available = self.check(columns, messages, from)?.min(ROWS_MAX);
        // The largest number of rows known to fit, and the smallest one known not to fit.
        let (mut fit, mut too_many) = (0, available + 1);
        let mut rows = self.guess.clamp(1, available);
        let (mut plans, mut fit_len) = (0, 0);
        let mut settled = false;
        loop {
            let len = self.plan(columns, messages, from, rows);
            plans += 1;
            if len <= self.page_bytes {
                if settled || rows + 1 >= too_many || len * 100 >= self.page_bytes * FILL_PERCENT {
                    break;
                }
                (fit, fit_len) = (rows, len);
            } else if rows == 1 {
                return self.write(len.next_multiple_of(BLOCK), messages.is_some(), 1);
            } else {
                too_many = rows;
                if fit >= rows {
                    // This number of rows fitted in an earlier plan: a plan depends slightly on the plans before it.
                    (fit, fit_len) = (0, 0);
                }
            }
            let is_filled = fit_len * 100 >= self.page_bytes * FILL_PERCENT_MIN;
            settled = fit > 0 && (fit + 1 >= too_many || plans >= PLANS_MAX && is_filled);
            rows = if settled {
                fit
            } else if plans < PLANS_MAX {
                self.corrected(rows, len).clamp(fit + 1, too_many - 1)
            } else {
                // Halves the range each time.
                (fit + (too_many - fit) / 2).clamp(fit + 1, too_many - 1)
            };
        }
        self.guess = if rows == available { self.guess.max(rows) } else { rows };
        self.write(self.page_bytes, messages.is_some(), rows)
    }

    /// Estimated number of rows that fill a page, if `rows` rows take `len` bytes.
    fn corrected(&self, rows: usize, len: usize) -> usize {
        let overhead = HEADER_LEN + (self.columns.len() + 3) * 8;
        let (room, taken) = (self.page_bytes.saturating_sub(overhead), len.saturating_sub(overhead).max(1));
        let exact = rows * room / taken;
        // One 64th less: another plan costs more than this unused space.
        exact - exact / 64
    }

    /// Checks the arguments of [`encode`](Self::encode). Returns the number of rows from `from` on.
    fn check(&self, columns: &[ArrayRef], messages: Option<&RunColumns>, from: usize) -> Result<usize> {
        let expected = self.schema.columns();
        if columns.len() != expected.len() {
            return Err(Error::ColumnCount { expected: expected.len(), found: columns.len() });
        }
        let invalid = |argument, detail| Err(Error::InvalidArgument { argument, detail });
        let all = columns[0].len();
        for (i, (array, column)) in columns.iter().zip(expected).enumerate() {
            column.check_type(array)?;
            if array.len() != all {
                let detail = format!("column \"{}\" has {} rows, the first column has {all}", column.name, array.len());
                return invalid("columns", detail);
            }
            // Deletes and upserts have nulls in the value columns.
            let nullable = column.nullable || (messages.is_some() && i >= self.schema.key_columns());
            if !nullable {
                column.check_not_null(array)?;
            }
        }
        if let Some(messages) = messages
            && (messages.kinds.len() != all || messages.operands.len() != all || messages.priors.len() != all)
        {
            let (kinds, operands, priors) = (messages.kinds.len(), messages.operands.len(), messages.priors.len());
            let detail = format!("{kinds} kinds, {operands} operands and {priors} priors for {all} rows");
            return invalid("messages", detail);
        }
        match all.checked_sub(from) {
            None | Some(0) => invalid("from", format!("row {from} does not exist, there are {all} rows")),
            Some(available) => Ok(available),
        }
    }

    /// Chooses the encodings of `rows` rows from `from` on. Returns the length of the page in bytes.
    fn plan(&mut self, columns: &[ArrayRef], messages: Option<&RunColumns>, from: usize, rows: usize) -> usize {
        let range = from..from + rows;
        let directory = (columns.len() + if messages.is_some() { 3 } else { 1 }) * 4;
        let mut len = HEADER_LEN + directory;
        for (encoder, array) in self.columns.iter_mut().zip(columns) {
            len += encoder.plan(array, range.clone());
        }
        if let Some(messages) = messages {
            self.kinds.values.clear();
            let numbers =
                messages.kinds[range.clone()].iter().zip(&messages.priors[range.clone()]).map(|(kind, prior)| {
                    let kind = match kind {
                        MessageKind::Insert => 0,
                        MessageKind::Delete => 1,
                        MessageKind::Upsert => 2,
                    };
                    kind + KINDS as i64 * i64::from(prior.to_number())
                });
            self.kinds.values.extend(numbers);
            len += self.kinds.plan();
            // No prefix: `Page::operands` returns contiguous bytes.
            let options = BytesOptions { text: false, compress: true, share: false };
            let operands = &messages.operands[range];
            len += self.operands.plan(rows, options, |i| Some(&operands[i]));
        }
        len
    }

    /// Writes the last plan, padded to `page_bytes` bytes.
    fn write(&self, page_bytes: usize, run: bool, rows: usize) -> Result<WrittenPage> {
        if page_bytes > PAGE_BYTES_MAX {
            return Err(Error::TooLarge { what: "row", bytes: page_bytes as u64, limit: PAGE_BYTES_MAX as u64 });
        }
        let columns = self.columns.len() + if run { 2 } else { 0 };
        let mut out = Vec::with_capacity(page_bytes);
        out.extend_from_slice(&MAGIC);
        out.resize(HEADER_LEN + (columns + 1) * 4, 0);
        (out[24], out[25]) = (u8::from(run), PAGE_FORMAT);
        out[26..28].copy_from_slice(&(columns as u16).to_le_bytes());
        out[28..32].copy_from_slice(&(rows as u32).to_le_bytes());
        let mut at = HEADER_LEN;
        let mut mark = |out: &mut Vec<u8>| {
            let offset = (out.len() as u32).to_le_bytes();
            out[at..at + 4].copy_from_slice(&offset);
            at += 4;
        };
        for encoder in &self.columns {
            mark(&mut out);
            encoder.write(&mut out);
        }
        if run {
            mark(&mut out);
            self.kinds.write(&mut out);
            mark(&mut out);
            self.operands.write(&mut out);
        }
        mark(&mut out);
        assert!(out.len() <= page_bytes, "a page planned for at most {page_bytes} bytes took {}", out.len());
        out.resize(page_bytes, 0);
        Ok(WrittenPage { bytes: out, rows })
    }
}
