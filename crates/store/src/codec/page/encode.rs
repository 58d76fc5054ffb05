//! Writing of pages.
//!
//! The writer finds the number of rows that fill a page by planning: a plan chooses encodings and computes their exact
//! length without writing. The first plan takes as many rows as the page before. Further plans correct this number by
//! the length found. Only the plan that fits is written.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};

use super::open::ROWS_MAX;
use super::{BLOCK, HEADER_LEN, KINDS, MAGIC, MessageKind, PAGE_BYTES_MAX, PAGE_FORMAT, RunColumns};
use crate::base::{Compression, Error, Result, Schema};
use crate::codec::column::{BytesEncoder, BytesOptions, ColumnEncoder, IntsEncoder};
use crate::codec::dictionary::{self, Training, TreeDictionaries};

/// The ratio by which values are assumed to be compressed when the length of a heap is estimated.
const TYPICAL_RATIO: usize = 3;
/// Minimum estimate of the length of a heap, in bytes.
const HEAP_BYTES_MIN: usize = 256;
/// Number of rows in the first plan of the first page.
const FIRST_GUESS: usize = 64;
/// Number of plans after which the best one so far is written.
const PLANS_MAX: usize = 5;
/// Fill level in percent at which planning stops.
const FILL_PERCENT: usize = 95;

/// Encodes rows into pages.
#[derive(Debug)]
pub struct PageWriter {
    schema: Arc<Schema>,
    page_bytes: usize,
    columns: Vec<ColumnEncoder>,
    /// The columns that may get a dictionary.
    untrained: Vec<usize>,
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
        let of_values = schema.compression();
        let column = |(i, column): (usize, &crate::Column)| {
            ColumnEncoder::new(column.ty, if i < schema.key_columns() { Compression::None } else { of_values })
        };
        let columns = schema.columns().iter().enumerate().map(column).collect();
        let may_get_dictionary = |&column: &usize| of_values == Compression::Zstd && schema.may_have_dictionary(column);
        let untrained = (0..schema.columns().len()).filter(may_get_dictionary).collect();
        PageWriter {
            schema,
            page_bytes,
            columns,
            untrained,
            kinds: IntsEncoder::default(),
            operands: BytesEncoder::default(),
            guess: FIRST_GUESS,
        }
    }

    /// Sets the dictionaries of the tree. Trains missing ones on the next rows: `arrays` has all columns of the schema.
    pub(crate) fn train(&mut self, arrays: &[ArrayRef], dictionaries: &TreeDictionaries) {
        if self.untrained.is_empty() || arrays.len() != self.columns.len() {
            return;
        }
        let bytes: Vec<usize> = arrays.iter().map(value_bytes).collect();
        let total = bytes.iter().sum::<usize>().max(1);
        self.untrained.retain(|&column| {
            let decision = dictionaries.decision(column).or_else(|| {
                // The part of a page that a column takes, and what it was before the compression.
                let heap_bytes = (self.page_bytes * TYPICAL_RATIO * bytes[column] / total).max(HEAP_BYTES_MIN);
                let training = match arrays[column].as_string_view_opt() {
                    Some(texts) => dictionary::train(texts.iter().flatten().map(str::as_bytes), heap_bytes),
                    None => dictionary::train(arrays[column].as_binary_view().iter().flatten(), heap_bytes),
                };
                match training {
                    Training::TooFew => None,
                    Training::Useless => Some(dictionaries.decide(column, None)),
                    Training::Trained(dictionary) => Some(dictionaries.decide(column, Some(dictionary))),
                }
            });
            let is_decided = decision.is_some();
            if let Some(dictionary) = decision.flatten() {
                self.columns[column].set_dictionary(dictionary);
            }
            !is_decided
        });
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
        let mut plans = 0;
        let mut settled = false;
        loop {
            let len = self.plan(columns, messages, from, rows);
            plans += 1;
            if len <= self.page_bytes {
                if settled || rows + 1 >= too_many || len * 100 >= self.page_bytes * FILL_PERCENT {
                    break;
                }
                fit = rows;
            } else if rows == 1 {
                return self.write(len.next_multiple_of(BLOCK), messages.is_some(), 1);
            } else {
                too_many = rows;
                if fit >= rows {
                    // This number of rows fitted in an earlier plan: a plan depends slightly on the plans before it.
                    fit = 0;
                }
            }
            settled = plans >= PLANS_MAX || fit + 1 >= too_many;
            rows = match (settled, fit) {
                (false, _) => self.corrected(rows, len).clamp(fit + 1, too_many - 1),
                (true, 0) => rows / 2,
                (true, _) => fit,
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
            let options = BytesOptions { text: false, compression: self.schema.compression(), share: false };
            let operands = &messages.operands[range];
            len += self.operands.plan(rows, options, None, |i| Some(&operands[i]));
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

/// Bytes of the values of an array.
fn value_bytes(array: &ArrayRef) -> usize {
    if let Some(texts) = array.as_string_view_opt() {
        texts.lengths().map(|len| len as usize).sum()
    } else if let Some(bytes) = array.as_binary_view_opt() {
        bytes.lengths().map(|len| len as usize).sum()
    } else {
        array.len() * array.data_type().primitive_width().unwrap_or(size_of::<u64>())
    }
}
