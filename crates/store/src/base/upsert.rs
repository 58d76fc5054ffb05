//! Upsert functions: updates that are written without reading the row they change (Bε-tree paper, section 1.4).
//!
//! A message stores the id of the function and its operand. The function runs when a read or a flush resolves the
//! messages of the key.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Computes the new value bytes of a row (the encoding of its non-key columns, see [`crate::RowCodec`]) from the old
/// value bytes and the operand. `None` means that the row does not exist, as argument and as result. An error or a
/// panic becomes [`crate::Error::Upsert`].
pub type UpsertFunction = dyn Fn(Option<&[u8]>, &[u8]) -> Result<Option<Vec<u8>>, String> + Send + Sync;

/// The upsert functions of a store by id. Messages in files contain the ids, so an id must denote the same function for
/// as long as the database exists.
#[derive(Default, Clone)]
pub struct UpsertFunctions {
    functions: HashMap<u32, Arc<UpsertFunction>>,
}

impl UpsertFunctions {
    /// Adds a function under `id`. A function with the same id is replaced.
    ///
    /// # Panics
    /// If `id` is [`u32::MAX`], which stands for row upserts ([`crate::WriteBatch::upsert_rows`]).
    pub fn with(
        mut self,
        id: u32,
        function: impl Fn(Option<&[u8]>, &[u8]) -> Result<Option<Vec<u8>>, String> + Send + Sync + 'static,
    ) -> Self {
        assert!(id != u32::MAX, "the id {id} is reserved for row upserts");
        self.functions.insert(id, Arc::new(function));
        self
    }

    /// Returns true if a function with this id is registered.
    pub fn contains(&self, id: u32) -> bool {
        self.functions.contains_key(&id)
    }

    /// Applies function `id`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownUpsert`] if no function has this id. [`crate::Error::Upsert`] with the message of the
    /// function's error or panic. A panic becomes an error because the thread may be a flush or a read that other
    /// threads wait for.
    pub fn apply(&self, id: u32, old: Option<&[u8]>, operand: &[u8]) -> crate::Result<Option<Vec<u8>>> {
        let function = self.functions.get(&id).ok_or(crate::Error::UnknownUpsert(id))?;
        // Unwind-safe: a function reaches only its arguments and its own captured values, no state of the store.
        let outcome = catch_unwind(AssertUnwindSafe(|| function(old, operand)));
        outcome
            .unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(&*panic))))
            .map_err(|message| crate::Error::Upsert { function: id, message })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl fmt::Debug for UpsertFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}
