//! The space that the messages of a buffer take as a run, as an upper bound that holds for all messages.
//!
//! On a full disk, a buffer is written as a run into reserved slots of the data file (see [`space`](super::space)). The bound
//! gives the number of slots and their length from the number, the bytes and the longest of the messages.
//!
//! *Derivation.* Let P be the page length, H and F the [`PageBound`] of the schema for a page and a message, and
//! `R = content + n * F` for n messages, so that a page with some of them takes at most H plus their share of R.
//!
//! 1. *Pages.* A page ends where the next message does not fit (its share and that of the next message exceed P - H), or at
//!    a fill level of three quarters (its share is at least 3P/4 - H), or after [`ROWS_MAX`] messages (its share is at least
//!    `ROWS_MAX * F`), or with the run. With `U = min(3P/4 - H, ROWS_MAX * F)`, the shares of all pages but the last, each
//!    with that of the message behind it, sum up to at most 2R. A run therefore has at most `m = 2R / U + 1` pages.
//! 2. *Bytes.* If every message fits into a page, a page takes P, and the run `D = m * P`. A page with one message that does
//!    not fit takes its share, H, and padding to a block. If H is at most P/4, this is at most its share and 5P/4, so that
//!    `D = m * 5P/4 + R`. If H is more than P/4, each of the at most n pages takes at most its share, P, H, and a block.
//! 3. *Extents.* All extents but the last have at least T data bytes, where T is the target length, so there are at most `D / T + 1`.
//! 4. *Slots.* An extent ends with the page that reaches T. It takes at most T, the longest page, and its index page. The index page
//!    has an entry of at most 36 bytes and a key for each of at most `T / P + 2` pages. The writer leaves out the filter if
//!    the extent does not fit into a slot with it.
//!
//! [`ExtentWriter`](super::ExtentWriter) asserts the last bound, and tests compare all of them with real runs. The bound does not
//! hold for results of the application's upsert functions, which may be of any length.

use keyaki_device::BLOCK;

use crate::codec::{FILL_PERCENT_MIN, PageBound, ROWS_MAX};
use crate::message::Messages;

/// Bytes of an entry of an index page without its fence: checksum, distance, length, rows, end.
const ENTRY_BYTES_MAX: u64 = 4 + 4 * 8;
/// Bytes of an index page without entries and filter.
const INDEX_BYTES_MAX: u64 = 32 + 4 * 16 + 32;

/// The lengths of pages and extents of runs in reserved slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLayout {
    page_bytes: u64,
    target_bytes: u64,
}

impl RunLayout {
    pub fn new(page_bytes: usize, leaf_bytes: usize) -> RunLayout {
        RunLayout { page_bytes: page_bytes as u64, target_bytes: (leaf_bytes / 4).max(page_bytes) as u64 }
    }

    /// Target length of an extent.
    pub fn target_bytes(&self) -> usize {
        self.target_bytes as usize
    }

    /// Upper bound on the length of an extent.
    pub fn slot_bytes(&self, bound: PageBound, longest: u64) -> u64 {
        let block = |bytes: u64| bytes.next_multiple_of(BLOCK as u64);
        let page = block(self.page_bytes.max((bound.page + bound.message) as u64 + longest));
        let entries = self.target_bytes / self.page_bytes + 2;
        let index = block(INDEX_BYTES_MAX + entries * (ENTRY_BYTES_MAX + longest));
        block(self.target_bytes) + page + index
    }

    /// Length of a slot for messages of ordinary length.
    pub fn ordinary_slot_bytes(&self) -> u64 {
        let bound = PageBound { page: self.page_bytes as usize / 4, message: self.page_bytes as usize / 4 };
        self.slot_bytes(bound, self.page_bytes / 4)
    }

    /// Upper bound on the number of extents of a run.
    pub fn slots(&self, bound: PageBound, messages: Messages) -> u64 {
        match messages.count {
            0 => 0,
            _ => (self.added_bytes(bound, messages) + self.page_bytes * 5 / 4) / self.target_bytes + 1,
        }
    }

    /// Upper bound on the bytes of data pages by which messages lengthen a run, except for its last page.
    pub fn added_bytes(&self, bound: PageBound, messages: Messages) -> u64 {
        let Messages { count, content, longest } = messages;
        let (page, header, message) = (self.page_bytes, bound.page as u64, bound.message as u64);
        let share = content + count * message;
        if header > page / 4 {
            return share + count * (page + header + BLOCK as u64);
        }
        let fill = (page * FILL_PERCENT_MIN as u64 / 100 - header).min(ROWS_MAX as u64 * message);
        let bytes = |page: u64| (2 * share * page).div_ceil(fill);
        if header + message + longest <= page { bytes(page) } else { bytes(page + page / 4) + share }
    }
}
