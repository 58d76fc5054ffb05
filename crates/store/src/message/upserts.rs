//! The functions that resolve the upserts of a tree.

use std::sync::Arc;

use crate::base::{Error, Result, UpsertFunctions};
use crate::codec::{Codecs, ROW_UPSERT, RowCodec, RowUpsert};

/// Row upserts, and the functions of the store's options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upserts<'a> {
    functions: &'a UpsertFunctions,
    rows: &'a RowCodec,
}

impl<'a> Upserts<'a> {
    pub fn new(functions: &'a UpsertFunctions, codecs: &'a Codecs) -> Self {
        Upserts { functions, rows: &codecs.row }
    }

    /// Applies function `id` to a value.
    ///
    /// # Errors
    /// [`Error::UnknownUpsert`], [`Error::Upsert`].
    pub fn apply(&self, id: u32, old: Option<&[u8]>, operand: &[u8]) -> Result<Option<Vec<u8>>> {
        if id != ROW_UPSERT {
            return self.functions.apply(id, old, operand);
        }
        let new = RowUpsert::decode(self.rows, operand).and_then(|upsert| upsert.apply(old));
        new.map(Some).ok_or_else(|| Error::Upsert { function: id, message: "a row or an operand is invalid".into() })
    }

    /// The codec of the tree's rows.
    pub fn rows(&self) -> &'a RowCodec {
        self.rows
    }

    /// The upserts of a key, oldest first, with neighbours combined where possible.
    pub fn combined(&self, upserts: Vec<(u32, Arc<[u8]>)>) -> Vec<(u32, Arc<[u8]>)> {
        let mut combined: Vec<(u32, Arc<[u8]>)> = Vec::with_capacity(1);
        for (id, operand) in upserts {
            if let Some((ROW_UPSERT, older)) = combined.last_mut()
                && id == ROW_UPSERT
                && let Some(both) = self.combine(older, &operand)
            {
                *older = both.into();
                continue;
            }
            combined.push((id, operand));
        }
        combined
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        RowUpsert::decode(self.rows, older)?.then(&RowUpsert::decode(self.rows, newer)?)
    }
}
