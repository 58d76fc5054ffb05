//! Pages of leaves with only some of their columns in memory.
//!
//! A scan that reads a page from the device keeps the columns that it decodes, and those of the key. Memory of the page
//! cache, and the time in which the kernel clears it, follow from the columns that queries use and not from the width of
//! tables.

use std::sync::Arc;

use super::Column;
use crate::base::Schema;

/// The columns of a tree that a reader needs: those of the key, and others.
#[derive(Debug, PartialEq, Eq)]
pub struct Projection {
    /// Ascending.
    columns: Box<[u16]>,
}

impl Projection {
    /// The columns of the key, and `columns` (indices into the schema, in any order; others are ignored).
    pub fn new(schema: &Schema, columns: impl IntoIterator<Item = usize>) -> Projection {
        let columns = columns.into_iter().filter(|&column| column < schema.columns().len());
        // A schema has fewer than 2^16 columns.
        let mut all: Vec<u16> = (0..schema.key_columns()).chain(columns).map(|column| column as u16).collect();
        all.sort_unstable();
        all.dedup();
        Projection { columns: all.into() }
    }

    /// As [`Projection::new`]; `None` if these are all columns.
    pub fn partial(schema: &Schema, columns: impl IntoIterator<Item = usize>) -> Option<Arc<Projection>> {
        let projection = Projection::new(schema, columns);
        (projection.columns.len() < schema.columns().len()).then(|| Arc::new(projection))
    }

    /// True if those of the first `written` columns that are in `other` are among these.
    pub(crate) fn covers(&self, other: &Projection, written: usize) -> bool {
        let mut columns = self.below(written);
        other.below(written).all(|wanted| columns.any(|column| column == wanted))
    }

    /// The columns below `written`, ascending.
    pub(super) fn below(&self, written: usize) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|&column| usize::from(column)).take_while(move |&column| column < written)
    }

    /// The place of a column among these.
    fn place(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|&other| usize::from(other) == column)
    }
}

/// The layouts of the columns of a page.
#[derive(Debug)]
pub(super) struct Columns {
    /// All columns, or those of the projection that the page has.
    layouts: Box<[Column]>,
    /// Number of columns that the page had when it was written.
    written: usize,
    /// `None` if all columns are in memory.
    projection: Option<Arc<Projection>>,
}

impl Columns {
    /// # Panics
    /// If the number of layouts is not that of the columns.
    pub fn new(layouts: Vec<Column>, written: usize, projection: Option<Arc<Projection>>) -> Columns {
        let kept = projection.as_ref().map_or(written, |kept| kept.below(written).count());
        assert_eq!(layouts.len(), kept, "one layout for each column of {written}");
        Columns { layouts: layouts.into(), written, projection }
    }

    /// Number of columns that the page had when it was written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// The columns in memory; `None` if these are all.
    pub fn projection(&self) -> Option<&Arc<Projection>> {
        self.projection.as_ref()
    }

    /// The layouts of the columns in memory. Those of the key are the first ones.
    pub fn layouts(&self) -> &[Column] {
        &self.layouts
    }

    pub fn layouts_mut(&mut self) -> &mut [Column] {
        &mut self.layouts
    }

    /// The place of a column among those in memory; `None` if it is not in memory, or not in the page.
    #[inline]
    pub fn place(&self, column: usize) -> Option<usize> {
        match &self.projection {
            _ if column >= self.written => None,
            None => Some(column),
            Some(projection) => projection.place(column),
        }
    }

    /// True unless the page has the column, but not in memory.
    pub fn is_known(&self, column: usize) -> bool {
        column >= self.written || self.place(column).is_some()
    }

    /// The layout of a column; `None` if the page was written before the tree got it.
    ///
    /// # Panics
    /// If the column is not in memory.
    #[inline]
    pub fn get(&self, column: usize) -> Option<&Column> {
        if column >= self.written {
            return None;
        }
        let place = self.place(column);
        assert!(place.is_some(), "column {column} was not read");
        self.layouts.get(place?)
    }
}
