//! Rows of a table in columnar form, and their encoding as keys and values of the table's trees.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::{cast, concat, filter, take};
use keyaki_store::{KeyCodec, RowCodec, RowEncoder};

use crate::catalog::{ColumnDef, Predicate, Table};
use crate::{Error, Result};

/// Rows with the columns that a change uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableRows {
    pub len: usize,
    /// One array of length `len` per table column; `None` for columns that the change does not use. Virtual columns have
    /// places too, after [`TableRows::add_virtual`].
    pub columns: Vec<Option<ArrayRef>>,
    /// The hidden rowids, for tables that have them.
    pub rowid: Option<ArrayRef>,
}

/// A column that a query has read, with the type that it has in the table: results have the time zone of the session.
///
/// # Errors
/// None is expected.
pub(crate) fn as_stored(values: &ArrayRef, column: &ColumnDef) -> Result<ArrayRef> {
    let ty = column.ty.column.arrow();
    if *values.data_type() == ty { Ok(values.clone()) } else { Ok(cast(values, &ty)?) }
}

impl TableRows {
    /// Concatenates parts that have the same columns.
    pub fn concat(parts: &[TableRows]) -> Result<TableRows> {
        if let [rows] = parts {
            return Ok(rows.clone());
        }
        let Some(first) = parts.first() else { return Ok(TableRows::default()) };
        let join = |column: &dyn Fn(&TableRows) -> Option<&ArrayRef>| -> Result<Option<ArrayRef>> {
            let arrays: Vec<&dyn Array> = parts.iter().filter_map(|p| column(p).map(AsRef::as_ref)).collect();
            if arrays.is_empty() { Ok(None) } else { concat(&arrays).map(Some).map_err(Error::from) }
        };
        let columns = (0..first.columns.len()).map(|i| join(&|rows| rows.columns[i].as_ref()));
        Ok(TableRows {
            len: parts.iter().map(|p| p.len).sum(),
            columns: columns.collect::<Result<_>>()?,
            rowid: join(&|rows| rows.rowid.as_ref())?,
        })
    }

    /// The rows at the given positions, in that order.
    pub fn select(&self, rows: &UInt32Array) -> Result<TableRows> {
        let pick = |array: &Option<ArrayRef>| -> Result<Option<ArrayRef>> {
            array.as_ref().map(|array| take(array, rows, None).map_err(Error::from)).transpose()
        };
        Ok(TableRows {
            len: rows.len(),
            columns: self.columns.iter().map(pick).collect::<Result<_>>()?,
            rowid: pick(&self.rowid)?,
        })
    }

    /// For each row, true if the index with this predicate has an entry for it.
    ///
    /// # Errors
    /// `Internal` if these rows lack a column; errors of the predicate.
    pub fn selected(&self, predicate: &Predicate) -> Result<BooleanArray> {
        predicate.select(self.of_table(&predicate.condition.columns)?, self.len)
    }

    /// Computes the virtual columns of the table, those of a partial index for its rows only: they may fail for others. Adds
    /// values of the dropped columns.
    ///
    /// # Errors
    /// `Internal` if these rows lack a column; errors of the expressions.
    pub fn add_virtual(&mut self, table: &Table) -> Result<()> {
        let (virtual_columns, dropped) = (table.virtual_columns(), table.dropped_columns());
        if (virtual_columns.is_empty() && dropped.is_empty()) || self.len == 0 {
            return Ok(());
        }
        let mut values = Vec::new();
        for column in virtual_columns.clone() {
            let value = table.virtual_value(column)?;
            let used = self.of_table(&value.value.columns)?;
            let predicate = table.predicate(table.index_of_virtual(column))?;
            values.push(Some(match predicate.map(|predicate| self.selected(predicate)).transpose()? {
                None => value.evaluate(used, self.len)?,
                Some(selected) => {
                    let used =
                        used.iter().map(|values| filter(values, &selected)).collect::<std::result::Result<_, _>>()?;
                    let values = value.evaluate(used, selected.true_count())?;
                    let mut next = 0..;
                    let places = selected.values().iter().map(|selected| if selected { next.next() } else { None });
                    take(&values, &UInt32Array::from_iter(places), None)?
                }
            }));
        }
        self.columns.resize(virtual_columns.start, None);
        self.columns.extend(values);
        self.columns.extend(dropped.map(|column| Some(table.dropped_values(column, self.len))));
        Ok(())
    }

    fn of_table(&self, columns: &[usize]) -> Result<Vec<ArrayRef>> {
        self.of_tree(&columns.iter().copied().map(Some).collect::<Vec<_>>())
    }

    /// The columns of a tree. `columns` gives the table column of each of them; `None` is the rowid.
    ///
    /// # Errors
    /// `Internal` if these rows lack one of the columns.
    pub fn of_tree(&self, columns: &[Option<usize>]) -> Result<Vec<ArrayRef>> {
        let arrays = columns.iter().map(|column| match column {
            Some(column) => self.columns.get(*column).cloned().flatten(),
            None => self.rowid.clone(),
        });
        arrays.collect::<Option<_>>().ok_or_else(|| Error::Internal("a column that a change needs was not read".into()))
    }
}

/// Encoded keys of rows in row order, with their ascending order.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    /// End of each key in `bytes`.
    ends: Vec<usize>,
    /// The row of each key.
    rows: Vec<u32>,
    /// Positions in `ends`, in ascending order of their keys; equal keys in row order.
    sorted: Vec<u32>,
}

impl Keys {
    /// Encodes the leading key columns `columns` of `rows` rows. Rows for which `skip` returns true get no key.
    pub fn encode(codec: &KeyCodec, columns: &[ArrayRef], rows: usize, skip: impl Fn(usize) -> bool) -> Keys {
        let encoder = codec.encoder(columns);
        let mut keys = Keys { ends: Vec::with_capacity(rows), rows: Vec::with_capacity(rows), ..Keys::default() };
        for row in 0..rows {
            if !skip(row) {
                encoder.encode(row, &mut keys.bytes);
                keys.ends.push(keys.bytes.len());
                keys.rows.push(row as u32);
            }
        }
        keys.sort();
        keys
    }

    /// Computes `sorted`.
    fn sort(&mut self) {
        let count = self.ends.len() as u32;
        if (1..count as usize).all(|i| self.get(i - 1) <= self.get(i)) {
            self.sorted = (0..count).collect();
            return;
        }
        // Most comparisons need only the eight bytes behind the bytes that all keys share.
        let first = self.get(0);
        let shared_with = |i: usize| first.iter().zip(self.get(i)).take_while(|(a, b)| a == b).count();
        let shared = (1..count as usize).fold(first.len(), |shared, i| shared.min(shared_with(i)));
        let head = |key: &[u8]| {
            let (mut bytes, rest) = ([0; 8], &key[shared..]);
            let len = rest.len().min(8);
            bytes[..len].copy_from_slice(&rest[..len]);
            u64::from_be_bytes(bytes)
        };
        let mut records: Vec<(u64, u32)> = (0..count).map(|i| (head(self.get(i as usize)), i)).collect();
        // Equal keys stay in row order.
        records.sort_unstable_by(|(a, i), (b, j)| {
            a.cmp(b).then_with(|| self.get(*i as usize).cmp(self.get(*j as usize))).then(i.cmp(j))
        });
        self.sorted = records.into_iter().map(|(_, i)| i).collect();
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Key `i` in row order.
    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    /// The row of key `i`.
    pub fn row(&self, i: usize) -> usize {
        self.rows[i] as usize
    }

    /// Positions of the keys, in ascending order of the keys.
    pub fn sorted(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.sorted.iter().map(|&i| i as usize)
    }

    /// The `n`th key in ascending order.
    pub fn nth(&self, n: usize) -> &[u8] {
        self.get(self.sorted[n] as usize)
    }

    /// Tests the membership of several keys in ascending order.
    pub fn members(&self) -> Members<'_> {
        Members { keys: self, next: 0 }
    }

    /// The first row of each group of equal keys, ascending.
    pub fn distinct_rows(&self) -> Vec<u32> {
        self.distinct_rows_except(&Keys::default())
    }

    /// As [`distinct_rows`](Self::distinct_rows), without the keys of `others`.
    pub fn distinct_rows_except(&self, others: &Keys) -> Vec<u32> {
        let mut rows: Vec<u32> = Vec::with_capacity(self.len());
        let (mut others, mut last) = (others.members(), None);
        for i in self.sorted() {
            let key = self.get(i);
            if last != Some(key) && !others.contains(key) {
                rows.push(self.rows[i]);
            }
            last = Some(key);
        }
        rows.sort_unstable();
        rows
    }
}

/// A merge of keys with others in ascending order, one at a time; made by [`Keys::members`].
#[derive(Debug)]
pub(crate) struct Members<'a> {
    keys: &'a Keys,
    /// Position in ascending order. All keys before it are below the last key that was tested.
    next: usize,
}

impl Members<'_> {
    /// True if `key`, which is not smaller than the one before, is among the keys.
    pub fn contains(&mut self, key: &[u8]) -> bool {
        while self.next < self.keys.len() {
            match self.keys.nth(self.next).cmp(key) {
                Ordering::Less => self.next += 1,
                Ordering::Equal => return true,
                Ordering::Greater => return false,
            }
        }
        false
    }
}

/// Encodes the value bytes of rows.
pub(crate) struct Values<'a> {
    encoder: RowEncoder<'a>,
    buffer: Vec<u8>,
}

impl<'a> Values<'a> {
    /// `columns` are all columns of the tree, in tree order.
    pub fn new(codec: &'a RowCodec, columns: &'a [ArrayRef]) -> Self {
        Values { encoder: codec.encoder(columns), buffer: Vec::new() }
    }

    pub fn of(&mut self, row: usize) -> &[u8] {
        self.buffer.clear();
        self.encoder.encode(row, &mut self.buffer);
        &self.buffer
    }
}
