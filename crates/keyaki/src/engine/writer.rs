//! Writers: a statement that writes commits at its end, or adds its writes to the transaction of its session.
//!
//! The database has one writer lock. A statement outside of a transaction holds it from its first read to its commit, so
//! that its checks stay valid. A statement in a transaction reads and writes the transaction without the lock; its commit
//! takes the lock and finds conflicts ([`super::transaction`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_store::{KeyRange, Loaded, Snapshot, Submitted, TreeId, WriteBatch};
use tokio::sync::OwnedMutexGuard;

use super::Engine;
use super::transaction::{TransactionSlot, TransactionStatement};
use crate::base::interrupt::{Decision, Stage};
use crate::base::row_locks::LockMode;
use crate::catalog::{Catalog, Table, put_roles_format, remove_positions};
use crate::{Error, Result};

/// Number of times that a statement yields the CPU to the holder of the writer lock before it queues for the lock.
const WRITER_YIELDS: usize = 32;

/// The held writer lock. Clones share it; dropping the last one releases it.
pub(super) type Lock = Arc<OwnedMutexGuard<()>>;

/// The right of one statement to write, with its decision. Blocking work owns a clone, so that the statement keeps the
/// right until the work ends, even if its future is dropped before.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub decision: Arc<Decision>,
    scope: Scope,
    /// The statement has several changes: a change is not yet its decision to commit.
    is_part: bool,
}

#[derive(Debug, Clone)]
enum Scope {
    /// The statement is a transaction of its own.
    Database(Lock),
    /// The statement belongs to an open transaction.
    Transaction(Arc<TransactionStatement>),
}

/// The changes of a table by a statement.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub batch: WriteBatch,
    /// Ranges of keys that must stay empty until the commit: those of new unique keys. `None` if the statement holds the
    /// writer lock and does not wait for rows.
    pub absent: Option<Vec<(TreeId, KeyRange)>>,
    /// Number of changed rows.
    pub rows: u64,
    /// Change of the number of rows.
    pub grown: i64,
}

impl Writer {
    /// No changes yet, for this writer.
    pub fn changes(&self) -> Changes {
        let needs_absent = self.is_in_transaction() || self.decision.locks().is_some();
        Changes { absent: needs_absent.then(Vec::new), ..Changes::default() }
    }

    /// True if the writes are those of an open transaction.
    pub fn is_in_transaction(&self) -> bool {
        matches!(self.scope, Scope::Transaction(_))
    }

    /// False if the writer keeps other transactions waiting to its end: it must not wait for them.
    pub fn may_wait(&self) -> bool {
        match &self.scope {
            Scope::Transaction(statement) => statement.may_wait(),
            // The statement releases the writer lock before it waits.
            Scope::Database(_) => true,
        }
    }

    /// The positions of the keys of rows that a commit has changed since the snapshot of the statement.
    ///
    /// # Errors
    /// `Conflict` if there are any and the transaction keeps its snapshot.
    pub fn outdated(&self, keys: &[(TreeId, KeyRange)]) -> Result<Vec<usize>> {
        match &self.scope {
            Scope::Transaction(statement) => statement.outdated(keys),
            // No other statement commits while this one has the writer lock.
            Scope::Database(_) => Ok(Vec::new()),
        }
    }

    /// Makes the next statement of the transaction see the newest commits, for a statement that runs again.
    pub fn run_again(&self) {
        if let Scope::Transaction(statement) = &self.scope {
            statement.run_again();
        }
    }

    /// The writer of a part of the changes of a statement in a transaction, which ends with [`Writer::end_parts`].
    pub fn part(&self) -> Writer {
        Writer { is_part: true, ..self.clone() }
    }

    /// The writer of one of several changes of the statement, which belong to a transaction.
    pub(super) fn of_part(decision: &Arc<Decision>, statement: Arc<TransactionStatement>) -> Writer {
        Writer { decision: decision.clone(), scope: Scope::Transaction(statement), is_part: true }
    }

    /// Decides that the statement takes effect, after its parts.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn end_parts(&self) -> Result<()> {
        self.decision.commit()?;
        self.complete();
        self.decision.reach(Stage::Committed);
        Ok(())
    }

    /// All changes of the statement have been made.
    pub(super) fn complete(&self) {
        if let Scope::Transaction(statement) = &self.scope {
            statement.complete();
        }
    }

    /// The lock that the statement holds, or the transaction that it belongs to.
    pub(super) fn into_scope(self) -> std::result::Result<Lock, Arc<TransactionStatement>> {
        match self.scope {
            Scope::Database(lock) => Ok(lock),
            Scope::Transaction(statement) => Err(statement),
        }
    }
}

impl Engine {
    /// The writer of a statement: it writes to the open transaction of its session, or waits for the writer lock.
    /// `what` names the statement in errors.
    ///
    /// # Errors
    /// `FailedTransaction`, `ReadOnlyTransaction`, `ReadOnlyDatabase`, `Conflict`.
    pub async fn writer(&self, slot: &TransactionSlot, decision: &Arc<Decision>, what: &str) -> Result<Writer> {
        slot.check()?;
        self.check_read_write(what)?;
        let scope = match slot.statement(self, what).await? {
            Some(statement) => Scope::Transaction(Arc::new(statement)),
            None => Scope::Database(self.lock_writer().await),
        };
        decision.reach(Stage::Begun);
        Ok(Writer { decision: decision.clone(), scope, is_part: false })
    }

    /// Waits for the writer lock, for a change outside of all transactions.
    pub async fn own_writer(&self, decision: &Arc<Decision>) -> Writer {
        let scope = Scope::Database(self.lock_writer().await);
        decision.reach(Stage::Begun);
        Writer { decision: decision.clone(), scope, is_part: false }
    }

    /// Waits for the writer lock.
    pub(super) async fn lock_writer(&self) -> Lock {
        // The lock is fair: once a statement queues, each release hands the lock to a thread that has yet to wake up, so
        // that small statements queue behind wake-ups. They rather wait for each other without queueing.
        for _ in 0..WRITER_YIELDS {
            if let Ok(guard) = self.writer.clone().try_lock_owned() {
                return Arc::new(guard);
            }
            std::thread::yield_now();
        }
        Arc::new(self.writer.clone().lock_owned().await)
    }

    /// Returns the catalog and the snapshot for a writing statement. Outside of a transaction, the snapshot includes
    /// commits that are not yet durable.
    pub fn latest(&self, writer: &Writer) -> (Arc<Catalog>, Snapshot) {
        match &writer.scope {
            Scope::Database(_) => (self.catalog.read().clone(), self.store.latest()),
            Scope::Transaction(statement) => statement.moment(),
        }
    }

    /// Runs blocking work on a thread for such work. The statement keeps its right to write until the work ends, even if
    /// the future is dropped.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        writer: &Writer,
        work: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (engine, writer) = (self.clone(), writer.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            work(&engine)
        });
        task.await.map_err(|error| Error::task(&error))?
    }

    /// Runs blocking work that changes the store, after the decision of the statement to commit.
    ///
    /// # Errors
    /// `Cancelled`, without running the work; errors of the work.
    async fn change(
        self: &Arc<Self>,
        writer: &Writer,
        work: impl FnOnce(&Engine) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let decision = writer.decision.clone();
        let change = move |engine: &Engine| {
            decision.commit()?;
            work(engine)?;
            decision.reach(Stage::Committed);
            Ok(())
        };
        self.blocking(writer, change).await
    }

    /// Commits definitions by `commit`, and then replaces the catalog. The caller holds the writer lock. Blocks.
    ///
    /// # Errors
    /// Those of `commit`. The catalog is unchanged then.
    pub(super) fn replace_catalog<T>(&self, catalog: Arc<Catalog>, commit: impl FnOnce() -> Result<T>) -> Result<T> {
        self.unpublished.fetch_add(1, Ordering::SeqCst);
        let committed = commit();
        if committed.is_ok() {
            *self.catalog.write() = catalog;
            self.catalog_version.fetch_add(1, Ordering::Release);
        }
        self.unpublished.fetch_sub(1, Ordering::SeqCst);
        if committed.is_ok() {
            self.forget_removed();
        }
        committed
    }

    /// Commits changes of the rows of a table, after the decision of the statement; in a transaction, adds them to its
    /// writes. Blocks.
    ///
    /// # Errors
    /// `Conflict` if the statement has to run again ([`crate::base::row_locks::Repeat`]); `Deadlock`, `Cancelled`,
    /// `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn submit(&self, writer: &Writer, table: &Table, changes: Changes) -> Result<Option<Submitted>> {
        let locks = writer.decision.locks();
        match (&writer.scope, locks) {
            (Scope::Transaction(statement), _) => statement.lock_rows(table, &changes, locks)?,
            (Scope::Database(_), None) => {}
            (Scope::Database(_), Some(locks)) => {
                if !locks.lock(changes.locked_rows(&self.row_locks, table)?)? {
                    return Err(Error::Conflict { relation: Some(table.def.name.to_string()) });
                }
            }
        }
        match writer.is_part {
            true => writer.decision.check()?,
            false => writer.decision.commit()?,
        }
        self.note_rows(table);
        let submitted = match &writer.scope {
            Scope::Transaction(statement) => {
                statement.add_rows(table, changes, writer.is_part)?;
                None
            }
            Scope::Database(_) if changes.batch.is_empty() => None,
            Scope::Database(_) => Some(self.store.submit(changes.batch)?),
        };
        if matches!(writer.scope, Scope::Database(_)) {
            locks.inspect(|locks| locks.holder.release());
        }
        if !writer.is_part {
            writer.decision.reach(Stage::Committed);
        }
        Ok(submitted)
    }

    /// Adds entries of an index that the statement has created in its transaction, as a part of its changes.
    ///
    /// # Errors
    /// `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn add_entries(&self, writer: &Writer, entries: WriteBatch) -> Result<()> {
        match &writer.scope {
            Scope::Transaction(statement) => statement.add_entries(entries),
            Scope::Database(_) => unreachable!("a part of a statement belongs to a transaction"),
        }
    }

    /// Commits new, changed and removed definitions, then publishes `catalog`. Positions of removed sequences are removed
    /// outside of transactions only: `nextval` changes them in commits of its own, with which a transaction would conflict.
    pub async fn commit_catalog(
        self: &Arc<Self>,
        writer: &Writer,
        mut batch: WriteBatch,
        catalog: Catalog,
    ) -> Result<()> {
        put_roles_format(&mut batch, &catalog)?;
        if let Scope::Transaction(statement) = &writer.scope {
            return statement.define(&writer.decision, batch, catalog, writer.is_part);
        }
        self.remove_positions(&mut batch, &catalog)?;
        self.change(writer, move |engine| {
            engine.replace_catalog(Arc::new(catalog), || Ok(engine.store.commit(batch)?))?;
            Ok(())
        })
        .await
    }

    /// Adds the removal of the positions of sequences that `changed` lacks to `batch`.
    fn remove_positions(&self, batch: &mut WriteBatch, changed: &Catalog) -> Result<()> {
        let catalog = self.catalog.read().clone();
        let kept = changed.positions(&catalog);
        remove_positions(batch, catalog.positions(changed).difference(&kept))
    }

    /// Ends pins and locators of trees that the catalog no longer contains.
    fn forget_removed(&self) {
        let catalog = self.catalog.read().clone();
        self.cache.pins.retain(&self.store, |tree| catalog.has_tree(tree));
        self.locate_pages();
    }

    /// Makes the commit of the statement's transaction fail if another commit changes a table in the meantime. Without
    /// effect outside of a transaction, where the statement holds the writer lock.
    pub fn depend_on_table(&self, writer: &Writer, table: &Table) {
        if let Scope::Transaction(statement) = &writer.scope {
            statement.depend_on(table.def.tree, KeyRange::all());
        }
    }

    /// Makes the commit of the statement's transaction fail if another commit changes a range of a tree in the meantime.
    /// Without effect outside of a transaction.
    pub fn depend_on(&self, writer: &Writer, tree: TreeId, range: KeyRange) {
        if let Scope::Transaction(statement) = &writer.scope {
            statement.depend_on(tree, range);
        }
    }

    /// Locks a key that rows refer to, or that the statement removes. Statements that do not wait for rows lock it if it is free,
    /// in a transaction.
    ///
    /// # Errors
    /// `Conflict` if the statement has to run again ([`crate::base::row_locks::Repeat`]); `Deadlock`, `ActiveTransaction`.
    pub fn lock_key(&self, writer: &Writer, tree: TreeId, key: &[u8], mode: LockMode) -> Result<()> {
        let lock = (self.row_locks.row(tree, key), mode);
        match (&writer.scope, writer.decision.locks()) {
            (Scope::Transaction(statement), locks) => statement.lock_key(lock, locks),
            (Scope::Database(_), Some(locks)) if !locks.lock([lock])? => Err(Error::Conflict { relation: None }),
            (Scope::Database(_), _) => Ok(()),
        }
    }

    /// Makes the commit of the statement's transaction fail if another commit removes all entries of a range of a tree in
    /// the meantime. Without effect outside of a transaction.
    pub fn depend_on_existence(&self, writer: &Writer, tree: TreeId, range: KeyRange) {
        if let Scope::Transaction(statement) = &writer.scope {
            statement.depend_on_existence(tree, range);
        }
    }

    /// Commits `batch` and installs bulk-loaded trees atomically, then publishes `catalog`, if there is one.
    ///
    /// # Panics
    /// In a transaction: bulk loads are commits of their own.
    pub async fn install(
        self: &Arc<Self>,
        writer: &Writer,
        mut batch: WriteBatch,
        loaded: Vec<(TreeId, Loaded)>,
        catalog: Option<Catalog>,
    ) -> Result<()> {
        assert!(!writer.is_in_transaction(), "a bulk load in a transaction");
        if let Some(changed) = &catalog {
            self.remove_positions(&mut batch, changed)?;
            put_roles_format(&mut batch, changed)?;
        }
        self.change(writer, move |engine| {
            let install = || Ok(engine.store.install(batch, loaded)?);
            match catalog {
                Some(catalog) => engine.replace_catalog(Arc::new(catalog), install)?,
                None => install()?,
            }
            engine.store.share_memory();
            Ok(())
        })
        .await
    }
}
