//! What has been taken out of a map waits here until no reader can still see it.
//!
//! Retired blocks and values are collected per stripe and handed to the epoch collector in batches of at most
//! [`BATCH`] things or [`BATCH_BYTES`] bytes, so that what waits for a batch to fill is bounded, and a batch costs one closure.
//! A batch frees its blocks into the arena if the map still exists; otherwise they went with it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::Weak;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::arena::Arena;
use crate::guard::Guard;
use crate::sync::{STRIPES, stripe};

const BATCH: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// Drops a value word.
pub(crate) type DropWord = unsafe fn(u64);

#[derive(Default)]
struct Batch {
    blocks: Vec<(NonNull<u8>, usize)>,
    bytes: usize,
    words: Vec<u64>,
}

// SAFETY: blocks are memory that only the batch still refers to, and words are of values that are Send.
unsafe impl Send for Batch {}

pub(crate) struct Retired {
    stripes: [CachePadded<Mutex<Batch>>; STRIPES],
    arena: Weak<Arena>,
    drop_word: Option<DropWord>,
}

impl Retired {
    pub fn new(arena: &Arc<Arena>, drop_word: Option<DropWord>) -> Self {
        let stripes = std::array::from_fn(|_| CachePadded::default());
        Retired { stripes, arena: Arc::downgrade(arena), drop_word }
    }

    /// Retires a block of the arena.
    ///
    /// # Safety
    /// Nothing in the map refers to the block any more, and it is retired once.
    pub unsafe fn block(&self, block: NonNull<u8>, bytes: usize, guard: &Guard) {
        self.add(guard, |batch| {
            batch.blocks.push((block, bytes));
            batch.bytes += bytes;
        });
    }

    /// Retires a value.
    ///
    /// # Safety
    /// Nothing in the map refers to the value any more, and it is retired once.
    pub unsafe fn word(&self, word: u64, guard: &Guard) {
        if self.drop_word.is_some() {
            self.add(guard, |batch| batch.words.push(word));
        }
    }

    fn add(&self, guard: &Guard, push: impl FnOnce(&mut Batch)) {
        let mut batch = self.stripes[stripe()].lock();
        push(&mut batch);
        if batch.blocks.len() + batch.words.len() >= BATCH || batch.bytes >= BATCH_BYTES {
            let full = std::mem::take(&mut *batch);
            drop(batch);
            self.defer(full, guard);
        }
    }

    fn defer(&self, batch: Batch, guard: &Guard) {
        let (arena, drop_word) = (self.arena.clone(), self.drop_word);
        // SAFETY: everything in the batch was unlinked before; whoever could still see it is pinned, and the closure runs
        // only after they are not. What it needs is its own.
        unsafe { guard.defer(move || batch.release(&arena, drop_word)) };
    }

    /// Hands over what still waits.
    pub fn flush(&self, guard: &Guard) {
        for stripe in &self.stripes {
            let batch = std::mem::take(&mut *stripe.lock());
            if !batch.blocks.is_empty() || !batch.words.is_empty() {
                self.defer(batch, guard);
            }
        }
    }
}

impl Batch {
    fn release(self, arena: &Weak<Arena>, drop_word: Option<DropWord>) {
        if let Some(drop_word) = drop_word {
            for word in self.words {
                // SAFETY: the value was retired once and nobody sees it any more.
                unsafe { drop_word(word) };
            }
        }
        if let Some(arena) = arena.upgrade() {
            for (block, bytes) in self.blocks {
                // SAFETY: the block was retired once and nobody sees it any more.
                unsafe { arena.free(block, bytes) };
            }
        }
    }
}

impl Drop for Retired {
    /// The map is dropped: nobody reads it, so that what waits can go at once. (Its blocks go with the arena.)
    fn drop(&mut self) {
        for stripe in &mut self.stripes {
            std::mem::take(stripe.get_mut()).release(&Weak::new(), self.drop_word);
        }
    }
}
