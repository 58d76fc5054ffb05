//! Upsert functions: updates that are written without reading what they update (Bε-tree paper, section 1.4).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Computes a row's new value bytes (the encoding of its non-key columns, see [`crate::RowCodec`]) from the old ones
/// and the operand; `None` stands for no row, on either side.
pub type UpsertFunction = dyn Fn(Option<&[u8]>, &[u8]) -> Result<Option<Vec<u8>>, String> + Send + Sync;

/// The functions a store knows, by the id that is written into messages: an id must keep its meaning for ever.
#[derive(Default, Clone)]
pub struct UpsertFunctions {
    functions: HashMap<u32, Arc<UpsertFunction>>,
}

impl UpsertFunctions {
    pub fn with(
        mut self,
        id: u32,
        function: impl Fn(Option<&[u8]>, &[u8]) -> Result<Option<Vec<u8>>, String> + Send + Sync + 'static,
    ) -> Self {
        self.functions.insert(id, Arc::new(function));
        self
    }

    /// Applies function `id`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownUpsert`], or [`crate::Error::Upsert`] with the function's own message.
    pub fn apply(&self, id: u32, old: Option<&[u8]>, operand: &[u8]) -> crate::Result<Option<Vec<u8>>> {
        let function = self.functions.get(&id).ok_or(crate::Error::UnknownUpsert(id))?;
        function(old, operand).map_err(|message| crate::Error::Upsert { function: id, message })
    }
}

impl fmt::Debug for UpsertFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}
