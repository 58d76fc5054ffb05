//! Upsert functions: updates that are written without reading what they update (Bε-tree paper, section 1.4).

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// Adds a function under an id that no other one has; one that has it is replaced.
    pub fn with(
        mut self,
        id: u32,
        function: impl Fn(Option<&[u8]>, &[u8]) -> Result<Option<Vec<u8>>, String> + Send + Sync + 'static,
    ) -> Self {
        self.functions.insert(id, Arc::new(function));
        self
    }

    /// Whether there is a function with this id.
    pub fn contains(&self, id: u32) -> bool {
        self.functions.contains_key(&id)
    }

    /// Applies function `id`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownUpsert`], or [`crate::Error::Upsert`] with the function's own message (or that of its panic:
    /// whoever flushes or reads must go on, and others wait for them).
    pub fn apply(&self, id: u32, old: Option<&[u8]>, operand: &[u8]) -> crate::Result<Option<Vec<u8>>> {
        let function = self.functions.get(&id).ok_or(crate::Error::UnknownUpsert(id))?;
        // A function sees nothing but its arguments and what it has captured itself.
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
