//! Waiting for rows that other transactions have changed.
//!
//! At the level read committed, a statement locks the rows that it changes ([`crate::base::row_locks`]) before it adds its
//! changes. If another transaction has locked one, or has committed a change of one since the statement's snapshot, the
//! statement ends without changes, waits, and runs again with a new snapshot. It keeps the locks that it has, so that other
//! statements that lock rows do not make it run for ever. The new snapshot includes commits that are not yet durable:
//! transactions that change the same row one after another share the sync of the log. Results with rows, and errors, wait for
//! the sync ([`TransactionSlot::acknowledged`]); numbers of changed rows do not.
//!
//! At the other levels, transactions lock free rows only, so that statements at the level read committed wait for them, and find
//! conflicts at their commits.
//!
//! *Invariant.* A statement that waits for a row holds neither the writer lock nor its turn in the transaction.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_store::TreeId;

use super::{Open, TransactionSlot, TransactionStatement};
use crate::base::options::Isolation;
use crate::base::row_locks::{LockHolder, ROWS_MAX, RowId, RowLocks, StatementLocks};
use crate::catalog::Table;
use crate::engine::{Changes, Engine};
use crate::{Error, Result};

impl Changes {
    /// The rows of a table that the changes concern, and its new unique keys, up to [`ROWS_MAX`].
    ///
    /// # Errors
    /// `Store` if the batch is invalid.
    pub fn locked_rows(&self, locks: &RowLocks, table: &Table) -> Result<Vec<RowId>> {
        let mut rows = Vec::new();
        let mut add = |tree: TreeId, key: &[u8]| {
            rows.push(locks.row(tree, key));
            rows.len() < ROWS_MAX
        };
        self.batch.keys(table.def.tree, |key| add(table.def.tree, key))?;
        for (tree, range) in self.absent.iter().flatten() {
            if let Bound::Included(start) | Bound::Excluded(start) = &range.start
                && !add(*tree, start)
            {
                break;
            }
        }
        Ok(rows)
    }
}

impl TransactionSlot {
    /// The holder of the locks of a statement; `None` if the open transaction does not wait for rows.
    pub fn waiting_holder(&self) -> Option<Arc<LockHolder>> {
        let state = self.state.lock();
        let open = state.as_ref().filter(|open| open.characteristics.isolation == Isolation::ReadCommitted)?;
        open.holder.clone()
    }

    /// Waits until all commits that the transaction has seen are acknowledged.
    ///
    /// # Errors
    /// Errors of the log.
    pub async fn acknowledged(&self, engine: &Engine) -> Result<()> {
        match self.unacknowledged(engine) {
            Some(acknowledged) => acknowledged.await,
            None => Ok(()),
        }
    }

    /// The wait for commits that the transaction has seen and that are not acknowledged; `None` without any.
    pub(super) fn unacknowledged(&self, engine: &Engine) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        if !self.is_open() {
            return None;
        }
        let state = self.state.lock();
        let open = state.as_ref().filter(|open| open.has_seen_newest)?;
        if open.running.as_ref().is_none_or(|running| running.store.is_base_visible()) {
            return None;
        }
        let pending = engine.store.pending();
        Some(async move {
            pending.committed().await?;
            Ok(())
        })
    }
}

impl TransactionStatement {
    /// Locks the rows that the statement is about to change. `locks` are those of a statement that waits for rows.
    ///
    /// # Errors
    /// `Conflict` if the statement has to run again ([`StatementLocks::repeat`]); `Deadlock`, `ActiveTransaction`.
    pub fn lock_rows(&self, table: &Table, changes: &Changes, locks: Option<&StatementLocks>) -> Result<()> {
        let mut state = self.state.lock();
        let Some(open) = state.as_mut() else { unreachable!("a transaction ended during the turn of a statement") };
        match (locks, &open.holder) {
            (None, None) => return Ok(()),
            (None, Some(holder)) => {
                holder.lock_free(changes.locked_rows(holder.locks(), table)?);
                return Ok(());
            }
            (Some(locks), _) => {
                let rows = changes.locked_rows(locks.holder.locks(), table)?;
                if locks.lock(rows)? && !open.is_outdated(table, changes)? {
                    return Ok(());
                }
                locks.set_outdated();
            }
        }
        open.needs_newest = true;
        self.is_repeated.store(true, Ordering::Relaxed);
        Err(Error::Conflict { relation: Some(table.def.name.to_string()) })
    }
}

impl Open {
    /// True if a commit has changed rows that the statement is about to change, since its snapshot.
    fn is_outdated(&self, table: &Table, changes: &Changes) -> Result<bool> {
        let (Some(running), Some(_)) = (&self.running, &self.holder) else { return Ok(false) };
        let ranges = changes.absent.as_deref().unwrap_or_default();
        Ok(running.store.is_outdated(table.def.tree, &changes.batch, ranges)?)
    }
}
