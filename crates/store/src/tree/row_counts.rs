//! The number of rows of a tree, without reading pages: each commit adds the changes that its messages claim.
//!
//! ```text
//! checkpoint          commits                                   settled
//! sequence 10, 500 ── 11, 501 ── 14, 499 ── 15, ? (blind) ── 16, ? ── ...
//! ```
//!
//! A *blind* message, about whose key the writer knew nothing, makes the number unknown. Later entries continue from an
//! arbitrary origin. Once the rows as of one of them have been counted, the whole sequence since the last blind message
//! becomes known ([`RowCounts::settle`]).
//!
//! *Invariants.* Entries ascend by sequence number, one for each commit that changes the tree. A known number is never
//! negative. A commit adds its changes under the commit lock, before any reader can see its sequence number.

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_primitives::sync::Mutex;

/// Maximum number of entries. Snapshots older than the oldest entry have no count.
const ENTRIES_MAX: usize = 1024;

/// The recent numbers of rows of a tree. Shared by the versions of the tree.
#[derive(Debug)]
pub(crate) struct RowCounts(Mutex<History>);

#[derive(Debug)]
struct History {
    /// At least one.
    entries: VecDeque<Entry>,
    /// Sequence number of the newest commit with a blind message; 0 if there is none.
    blind: u64,
}

/// The number of rows from a commit to the next entry.
#[derive(Debug, Clone, Copy)]
struct Entry {
    sequence: u64,
    /// If not known, relative to the same origin for all entries since the last blind commit.
    rows: i64,
    is_known: bool,
}

/// The change of the number of rows by some messages; `None` if it is unknown.
pub(crate) type Delta = Option<i64>;

impl RowCounts {
    /// The counts of a tree with `rows` rows since commit `sequence`; `None`: unknown.
    pub fn new(sequence: u64, rows: Option<u64>) -> Arc<RowCounts> {
        let known = rows.and_then(|rows| i64::try_from(rows).ok());
        let entry = Entry { sequence, rows: known.unwrap_or(0), is_known: known.is_some() };
        let blind = if known.is_some() { 0 } else { sequence };
        Arc::new(RowCounts(Mutex::new(History { entries: VecDeque::from([entry]), blind })))
    }

    /// Adds the change of commit `sequence`, which is the newest commit or the one of the newest entry.
    pub fn add(&self, sequence: u64, delta: Delta) {
        let mut history = self.0.lock();
        let history = &mut *history;
        let Some(newest) = history.entries.back_mut() else { unreachable!("a history has at least one entry") };
        assert!(newest.sequence <= sequence, "a change by commit {sequence} follows commit {}", newest.sequence);
        let rows = newest.rows.wrapping_add(delta.unwrap_or(0));
        // A false claim, by a defective writer or in a hostile log, must not lead to a false number.
        let is_false = newest.is_known && delta.is_some() && rows < 0;
        if is_false {
            tracing::error!(
                sequence,
                rows,
                "a commit deletes more rows than the tree has; the number of rows is unknown"
            );
        }
        let is_known = newest.is_known && delta.is_some() && !is_false;
        if delta.is_none() || is_false {
            history.blind = sequence;
        }
        let entry = Entry { sequence, rows, is_known };
        if newest.sequence == sequence {
            *newest = entry;
            return;
        }
        if history.entries.len() == ENTRIES_MAX {
            history.entries.pop_front();
        }
        history.entries.push_back(entry);
    }

    /// The number of rows as of `sequence`.
    pub fn at(&self, sequence: u64) -> Option<u64> {
        let history = self.0.lock();
        history.entry(sequence).and_then(|at| history.entries[at].known())
    }

    /// The number of rows as of the newest commit.
    pub fn newest(&self) -> Option<u64> {
        self.0.lock().entries.back().and_then(Entry::known)
    }

    /// Stores the counted number of rows as of `sequence`. Returns true if the number is known from then on, false if it
    /// was before, if a later commit had a blind message, or if `sequence` is too old.
    pub fn settle(&self, sequence: u64, rows: u64) -> bool {
        let mut history = self.0.lock();
        let (Some(at), Ok(rows)) = (history.entry(sequence), i64::try_from(rows)) else { return false };
        if history.entries[at].is_known || sequence < history.blind {
            return false;
        }
        let blind = history.blind;
        let first = history.entries.partition_point(|entry| entry.sequence < blind);
        let more = rows.wrapping_sub(history.entries[at].rows);
        let is_sound =
            history.entries.range(first..).all(|entry| entry.rows.checked_add(more).is_some_and(|sum| sum >= 0));
        if is_sound {
            for entry in history.entries.range_mut(first..) {
                (entry.rows, entry.is_known) = (entry.rows + more, true);
            }
        }
        is_sound
    }
}

impl History {
    /// The position of the newest entry up to `sequence`.
    fn entry(&self, sequence: u64) -> Option<usize> {
        self.entries.partition_point(|entry| entry.sequence <= sequence).checked_sub(1)
    }
}

impl Entry {
    fn known(&self) -> Option<u64> {
        self.is_known.then_some(self.rows as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_kept_commits() {
        let counts = RowCounts::new(10, Some(5));
        counts.add(11, Some(2));
        counts.add(11, Some(1));
        counts.add(13, Some(-4));
        let found: Vec<_> = [9, 10, 11, 12, 13, 99].map(|sequence| counts.at(sequence)).into();
        assert_eq!(found, [None, Some(5), Some(8), Some(8), Some(4), Some(4)]);
        (14..14 + ENTRIES_MAX as u64).for_each(|sequence| counts.add(sequence, Some(1)));
        assert_eq!((counts.at(13), counts.at(14), counts.newest()), (None, Some(5), Some(4 + ENTRIES_MAX as u64)));
    }

    #[test]
    fn a_count_settles_the_commits_since_the_last_blind_one() {
        let counts = RowCounts::new(0, Some(5));
        counts.add(1, Some(1));
        counts.add(2, None);
        counts.add(3, Some(1));
        counts.add(4, None);
        counts.add(5, Some(-1));
        counts.add(6, Some(2));
        assert_eq!((counts.at(1), counts.at(2), counts.newest()), (Some(6), None, None));
        assert!(!counts.settle(3, 7) && !counts.settle(1, 6), "a later commit is blind");
        assert!(!counts.settle(4, 0), "commit 5 would leave a negative number");
        assert!(counts.settle(5, 7));
        let found: Vec<_> = (1..=7).map(|sequence| counts.at(sequence)).collect();
        assert_eq!(found, [Some(6), None, None, Some(8), Some(7), Some(9), Some(9)]);
        assert!(!counts.settle(6, 9), "known already");
        counts.add(7, Some(-10));
        assert_eq!((counts.at(6), counts.at(7)), (Some(9), None), "a false claim");
        let unknown = RowCounts::new(3, None);
        unknown.add(4, Some(1));
        assert!(unknown.settle(3, 8) && unknown.newest() == Some(9));
    }
}
