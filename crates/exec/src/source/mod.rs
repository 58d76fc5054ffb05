//! Page sources: where the tasks of a query get their pages.
//!
//! Out of order, [`TaskPages`] suspends the task while the runtime reads the page. In order, [`BlockingTaskPages`] reads
//! it on the calling thread. Both look into the page cache first, and both reject damaged page references before they
//! allocate a buffer. [`touch_tree`] walks over all pages of a tree.

mod blocking;
mod task_pages;
mod touch;

use keyaki_device::BLOCK;
use keyaki_store::{PageRef, Result, Store};

use crate::runtime::corrupt_reference;

pub(crate) use blocking::BlockingTaskPages;
pub(crate) use task_pages::TaskPages;
pub(crate) use touch::touch_tree;
pub use touch::{Touched, touch_page};

/// Longest page in bytes; a longer one is a damaged reference.
const PAGE_BYTES_MAX: u32 = 256 << 20;

/// Rejects references that no page can have.
///
/// # Errors
/// [`keyaki_store::Error::Corrupt`].
fn check(store: &Store, page: PageRef) -> Result<()> {
    let is_aligned = page.offset.is_multiple_of(BLOCK as u64) && (page.len as usize).is_multiple_of(BLOCK);
    if is_aligned && page.len > 0 && page.len <= PAGE_BYTES_MAX && page.offset <= i64::MAX as u64 {
        return Ok(());
    }
    let detail = format!("length {}; offset and length must be multiples of {BLOCK} within the limits", page.len);
    Err(corrupt_reference(store, page, detail))
}
