//! The allocator of the program, and how soon it returns memory.
//!
//! mimalloc keeps freed memory for a second and asks for huge pages, of which it uses parts for each thread and size of
//! block. That is faster, and takes up to 150 MiB more than is allocated. A budget below [`SMALL_BUDGET_BYTES`] has no room
//! for this.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Memory budgets below it make the allocator return freed memory after [`SMALL_PURGE_DELAY_MS`], in bytes.
const SMALL_BUDGET_BYTES: usize = 1 << 30;
/// `mi_option_purge_delay` of mimalloc 3, which `libmimalloc-sys` does not name: the milliseconds until freed memory is
/// returned to the operating system.
const PURGE_DELAY: mi_option_t = 15;
const SMALL_PURGE_DELAY_MS: c_long = 10;

/// Fits the allocator to the memory budget of the program in bytes. If the kernel refuses, huge pages stay enabled.
pub fn fit(budget_bytes: usize) {
    if budget_bytes >= SMALL_BUDGET_BYTES {
        return;
    }
    // SAFETY: a known option. The allocator reads it atomically whenever it frees pages.
    unsafe { mi_option_set(PURGE_DELAY, SMALL_PURGE_DELAY_MS) };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!("huge pages stay enabled: {error}");
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    #[test]
    fn the_option_is_the_delay_of_purges() {
        // SAFETY: reads an option, if the number is one. The default of the delay is a second.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 1000);
        // SAFETY: the option after it takes no delay.
        assert_ne!(unsafe { mi_option_get(PURGE_DELAY + 1) }, 1000);
        fit(SMALL_BUDGET_BYTES);
        // SAFETY: as above.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 1000);
        fit(SMALL_BUDGET_BYTES - 1);
        // SAFETY: as above.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, SMALL_PURGE_DELAY_MS);
    }
}
