//! WARM, PIN and UNPIN: load every node of an index or table into memory and the CPU cache, and keep it there.
//!
//! A pin keeps its pages in the page cache. On hardware with cache partitioning, the governor reserves a part of the
//! last-level cache for them. On other hardware, streaming scans bypass the cache while the pin exists.
//!
//! A pin covers the pages at the time of PIN. Flushes write new pages, which the pin does not cover until the next PIN.
//! A pin ends with UNPIN, with its tree, or with the database's handle.
//!
//! PIN fails if all pins together would take more than [`PINNED_EIGHTHS`] eighths of the last-level cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use keyaki_exec::{Executor, Touched, touch_page};
use keyaki_llc::software::ScanMethod;
use keyaki_llc::{Governor, Pin};
use keyaki_store::{Page, Store, TreeId, TreeView};
use parking_lot::Mutex;

use crate::base::interrupt::Decision;
use crate::{Error, Result};

/// Eighths of the last-level cache available to pins.
const PINNED_EIGHTHS: u64 = 6;
/// Maximum bytes of pages that WARM touches a second time at its end, because the last pages may have evicted the first
/// ones from the CPU cache.
const AGAIN_BYTES_MAX: u64 = 64 << 20;

/// Kind of a target in SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheTargetKind {
    Table,
    Index,
}

impl std::fmt::Display for CacheTargetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheTargetKind::Table => "table",
            CacheTargetKind::Index => "index",
        })
    }
}

/// The table or index that a statement names.
#[derive(Debug, Clone)]
pub(crate) struct CacheTarget {
    pub kind: CacheTargetKind,
    pub name: String,
    pub view: TreeView,
}

/// Result of WARM or PIN.
#[derive(Debug, Clone)]
pub struct Warmed {
    pub name: String,
    /// Rows read.
    pub rows: u64,
    /// Index pages and data pages.
    pub pages: u64,
    /// Nodes of an in-memory index.
    pub nodes: u64,
    pub bytes: u64,
    pub time: Duration,
    /// Effect of the statement, in words.
    pub note: String,
}

/// A pin, for the system view.
#[derive(Debug, Clone)]
pub struct PinInfo {
    /// Name of the table or index.
    pub name: String,
    /// Bytes of its pages or nodes.
    pub bytes: u64,
    /// Number of its pages when it was pinned; 0 for an in-memory index.
    pub pages: usize,
    /// Pages that the pin still keeps in the page cache.
    pub pages_kept: usize,
    /// True for an in-memory index.
    pub in_memory: bool,
}

/// A pin.
#[derive(Debug)]
struct Pinned {
    kind: CacheTargetKind,
    name: String,
    tree: TreeId,
    bytes: u64,
    /// Offsets of the pages kept in the page cache.
    pages: Vec<u64>,
    _pin: Pin,
}

/// All pins of a database.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    all: Mutex<Vec<Pinned>>,
}

impl Pins {
    /// All pins, oldest first.
    pub fn list(&self, store: &Store) -> Vec<PinInfo> {
        let all = self.all.lock();
        let info = |pinned: &Pinned| PinInfo {
            name: pinned.name.clone(),
            bytes: pinned.bytes,
            pages: pinned.pages.len(),
            pages_kept: pinned.pages.iter().filter(|&&page| store.cache().is_pinned(page)).count(),
            in_memory: pinned.tree.is_memory(),
        };
        all.iter().map(info).collect()
    }

    /// Pins a target, replacing an earlier pin of it. Blocks. The walk over the tree stops if the statement is cancelled.
    ///
    /// # Errors
    /// If a page cannot be read, the statement was cancelled, or the pin does not fit beside the other pins. Earlier pins
    /// stay unchanged.
    pub fn pin(
        &self,
        store: &Store,
        executor: &Executor,
        governor: &Governor,
        cache_bytes: u64,
        target: &CacheTarget,
        decision: &Decision,
    ) -> Result<Warmed> {
        let go_on = || decision.check().is_ok();
        let start = Instant::now();
        let room = (cache_bytes / 8 * PINNED_EIGHTHS).saturating_sub(self.bytes_without(target));
        let expected = match store.memory_tree_stats(target.view.tree()) {
            Some(stats) => stats.bytes,
            None => store.tree_bytes(target.view.tree()),
        };
        check_room(target, expected, room)?;
        let mut touched = block_on(executor.touch(&target.view, room, go_on))?;
        check_room(target, touched.bytes, room)?;
        let pages = std::mem::take(&mut touched.kept);
        let mut all = self.all.lock();
        decision.commit()?;
        remove_where(&mut all, store, |pinned| pinned.is(target));
        let offsets = pages.iter().map(|(offset, _)| *offset);
        let kept: Vec<u64> = offsets.filter(|&offset| store.cache().pin(offset)).collect();
        let memory: Vec<&[u8]> = pages.iter().flat_map(|(_, page)| memory_of(page)).collect();
        let pin = if target.view.tree().is_memory() {
            // Ignore errors: the first walk succeeded, and nodes missed now are only absent from the CPU cache.
            let again = || _ = block_on(executor.touch(&target.view, 0, go_on));
            governor.protect_by(&target.name, expected, again)
        } else {
            governor.protect(&target.name, &memory)
        };
        let bytes = if target.view.tree().is_memory() { expected } else { touched.bytes };
        let note = note_of_pin(governor, pages.len(), kept.len());
        let (tree, name) = (target.view.tree(), target.name.clone());
        all.push(Pinned { kind: target.kind, name, tree, bytes, pages: kept, _pin: pin });
        Ok(warmed(target, store, &touched, start, note))
    }

    /// Ends the pin of a target. Returns false if there is none.
    pub fn unpin(&self, store: &Store, kind: CacheTargetKind, name: &str) -> bool {
        remove_where(&mut self.all.lock(), store, |pinned| pinned.kind == kind && pinned.name == name)
    }

    /// Ends all pins.
    pub fn clear(&self, store: &Store) {
        remove_where(&mut self.all.lock(), store, |_| true);
    }

    /// Ends the pins of trees that no longer exist.
    pub fn retain(&self, store: &Store, exists: impl Fn(TreeId) -> bool) {
        remove_where(&mut self.all.lock(), store, |pinned| !exists(pinned.tree));
    }

    /// Bytes of all pins of other targets.
    fn bytes_without(&self, target: &CacheTarget) -> u64 {
        self.all.lock().iter().filter(|pinned| !pinned.is(target)).map(|pinned| pinned.bytes).sum()
    }
}

impl Pinned {
    fn is(&self, target: &CacheTarget) -> bool {
        self.kind == target.kind && self.name == target.name
    }
}

/// Removes the selected pins and releases their pages. Returns true if there were any.
fn remove_where(all: &mut Vec<Pinned>, store: &Store, which: impl Fn(&Pinned) -> bool) -> bool {
    let before = all.len();
    all.retain(|pinned| {
        let removed = which(pinned);
        if removed {
            pinned.pages.iter().for_each(|&page| _ = store.cache().unpin(page));
        }
        !removed
    });
    all.len() < before
}

/// Checks the size of a pin against the part of the cache that other pins leave.
///
/// # Errors
/// If `bytes` exceeds `room`.
fn check_room(target: &CacheTarget, bytes: u64, room: u64) -> Result<()> {
    if bytes <= room {
        return Ok(());
    }
    Err(Error::PinTooLarge { name: target.name.clone(), requested: bytes, available: room })
}

/// Memory ranges of a cached page: the page itself and its decoded columns.
fn memory_of(page: &Arc<Page>) -> impl Iterator<Item = &[u8]> {
    let columns = (0..page.columns()).map(|column| page.column_memory(column)[1]);
    std::iter::once(page.memory()).chain(columns.filter(|plain| !plain.is_empty()))
}

/// Describes the effect of a pin.
fn note_of_pin(governor: &Governor, pages: usize, kept: usize) -> String {
    let path = if governor.is_on_hardware() {
        "a part of the CPU's cache is reserved".to_string()
    } else {
        let tuning = governor.tuning();
        let scans = match tuning.method {
            ScanMethod::Plain => format!("scans do not bypass the cache: {}", tuning.reason),
            method => format!("scans bypass the cache by {method}"),
        };
        format!("no hardware cache partitioning; {scans}")
    };
    match pages {
        0 => path,
        _ => format!("{kept} of {pages} pages stay in the page cache; {path}"),
    }
}

/// The result of a statement from the totals of a walk.
fn warmed(target: &CacheTarget, store: &Store, touched: &Touched, start: Instant, note: String) -> Warmed {
    let stats = store.memory_tree_stats(target.view.tree());
    Warmed {
        name: target.name.clone(),
        rows: touched.rows,
        pages: touched.index_pages + touched.data_pages,
        nodes: stats.map_or(0, |stats| stats.border_nodes + stats.interior_nodes),
        bytes: stats.map_or(touched.bytes, |stats| stats.bytes),
        time: start.elapsed(),
        note,
    }
}

/// Reads every node of a target. Blocks. Stops if the statement is cancelled.
///
/// # Errors
/// If a page cannot be read or the statement was cancelled.
pub(crate) fn warm(
    store: &Store,
    executor: &Executor,
    cache_bytes: u64,
    target: &CacheTarget,
    decision: &Decision,
) -> Result<Warmed> {
    let go_on = || decision.check().is_ok();
    let start = Instant::now();
    let keep = cache_bytes.min(AGAIN_BYTES_MAX);
    let touched = block_on(executor.touch(&target.view, keep, go_on))?;
    let (_, budget) = store.cache().usage();
    let stats = store.memory_tree_stats(target.view.tree());
    let bytes = stats.map_or(touched.bytes, |stats| stats.bytes);
    let fits = |what: u64| bytes <= what;
    if fits(keep) {
        touched.kept.iter().for_each(|(_, page)| touch_page(page));
    }
    let note = if stats.is_none() && !fits(budget as u64) {
        format!("larger than the page cache ({} MiB): only a part of it is cached", budget >> 20)
    } else if !fits(cache_bytes) {
        format!("larger than the CPU's cache ({} KiB): cached in memory only", cache_bytes >> 10)
    } else {
        "in the CPU's cache now, until other data evicts it".into()
    };
    Ok(warmed(target, store, &touched, start, note))
}
