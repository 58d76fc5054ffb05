//! Waiting for rows that other transactions have changed.
//!
//! At the level read committed, a statement locks the rows that it changes ([`crate::base::row_locks`]) before it adds its
//! changes. If another transaction has locked one, or has committed a change of one since the statement's snapshot, the
//! statement ends without changes, waits, and runs again with a new snapshot. It keeps the locks that it has, so that other
//! statements that lock rows do not make it run for ever. The new snapshot includes commits that are not yet durable:
//! transactions that change the same row one after another share the sync of the log. Results with rows, and errors, wait for
//! the sync ([`TransactionSlot::acknowledged`]); numbers of changed rows do not.
//!
//! At the other levels, changes lock free rows only, so that statements at the level read committed wait for them, and find
//! conflicts at their commits. Queries with FOR UPDATE and FOR SHARE wait at all levels ([`crate::sql`]): each row that they lock
//! is a condition of the commit.
//!
//! *Invariant.* A statement that waits for a row holds neither the writer lock nor its turn in the transaction.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_store::{KeyRange, TreeId, WriteBatch};

use super::{Open, TransactionSlot, TransactionStatement};
use crate::base::options::Isolation;
use crate::base::row_locks::{LockHolder, LockMode, ROWS_MAX, RowId, RowLocks, StatementLocks};
use crate::catalog::Table;
use crate::engine::{Changes, Engine};
use crate::{Error, Result};

/// The tree of an empty batch.
const NO_TREE: TreeId = TreeId::new(0);

impl Changes {
    /// The rows of a table that the changes concern, and its new unique keys, up to [`ROWS_MAX`]. Rows stay in place if they
    /// keep all keys that other rows may refer to.
    ///
    /// # Errors
    /// `Store` if the batch is invalid.
    pub fn locked_rows(&self, locks: &RowLocks, table: &Table) -> Result<Vec<(RowId, LockMode)>> {
        let mut rows = Vec::new();
        let mut removes_keys = false;
        let is_unique = |tree: TreeId| table.def.indexes.iter().any(|index| index.unique && index.tree == tree);
        self.batch.messages(|tree, key, is_deletion| {
            if tree == table.def.tree {
                let mode = if is_deletion { LockMode::Update } else { LockMode::NoKeyUpdate };
                rows.push((locks.row(tree, key), mode));
            }
            removes_keys |= is_deletion && is_unique(tree);
            rows.len() < ROWS_MAX
        })?;
        if removes_keys {
            rows.iter_mut().for_each(|(_, mode)| *mode = LockMode::Update);
        }
        for (tree, range) in self.absent.iter().flatten() {
            if rows.len() >= ROWS_MAX {
                break;
            }
            if let Bound::Included(start) | Bound::Excluded(start) = &range.start {
                rows.push((locks.row(*tree, start), LockMode::Update));
            }
        }
        Ok(rows)
    }
}

impl TransactionSlot {
    /// The holder of the locks of a statement; `None` if the open transaction does not wait for rows.
    pub fn waiting_holder(&self) -> Option<Arc<LockHolder>> {
        let state = self.state.lock();
        let waits = |open: &&Open| open.characteristics.isolation == Isolation::ReadCommitted && open.lock.is_none();
        state.as_ref().filter(waits)?.holder.clone()
    }

    /// The holder of the locks of queries; `None` without an open transaction.
    pub fn query_holder(&self, engine: &Engine) -> Option<Arc<LockHolder>> {
        if !self.is_open() {
            return None;
        }
        let mut state = self.state.lock();
        let holder = &mut state.as_mut()?.holder;
        Some(holder.get_or_insert_with(|| Arc::new(engine.row_locks.holder(self.session))).clone())
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
    /// False if the transaction keeps other commits waiting: it must not wait for a row.
    pub fn may_wait(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|open| open.lock.is_none())
    }

    /// The positions of the keys of rows that a commit has changed since the snapshot.
    ///
    /// # Errors
    /// `Conflict` if there are any and the transaction keeps its snapshot.
    pub fn outdated(&self, keys: &[(TreeId, KeyRange)]) -> Result<Vec<usize>> {
        let state = self.state.lock();
        let Some(open) = state.as_ref() else { unreachable!("a transaction ended during the turn of a statement") };
        let (Some(running), None) = (&open.running, &open.lock) else { return Ok(Vec::new()) };
        let nothing = WriteBatch::new();
        let is_outdated = |keys| running.store.is_outdated(NO_TREE, &nothing, keys);
        if !is_outdated(keys)? {
            return Ok(Vec::new());
        }
        if open.characteristics.isolation != Isolation::ReadCommitted {
            return Err(Error::Conflict { relation: None });
        }
        let mut outdated = Vec::new();
        for (position, key) in keys.iter().enumerate() {
            if is_outdated(std::slice::from_ref(key))? {
                outdated.push(position);
            }
        }
        Ok(outdated)
    }

    /// Makes the next statement see the newest commits, for a statement that runs again.
    pub fn run_again(&self) {
        if let Some(open) = self.state.lock().as_mut() {
            open.needs_newest = open.characteristics.isolation == Isolation::ReadCommitted;
        }
    }

    /// Locks a row or a key. `locks` are those of a statement that waits for rows.
    ///
    /// # Errors
    /// As [`TransactionStatement::lock_rows`].
    pub fn lock_key(&self, lock: (RowId, LockMode), locks: Option<&StatementLocks>) -> Result<()> {
        let mut state = self.state.lock();
        let Some(open) = state.as_mut() else { unreachable!("a transaction ended during the turn of a statement") };
        match (locks, &open.holder) {
            (None, holder) => {
                holder.as_ref().inspect(|holder| holder.lock_free([lock]));
                return Ok(());
            }
            (Some(locks), _) if locks.lock([lock])? => return Ok(()),
            (Some(_), _) => {}
        }
        open.needs_newest = true;
        self.is_repeated.store(true, Ordering::Relaxed);
        Err(Error::Conflict { relation: None })
    }

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
