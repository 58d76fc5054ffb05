//! Transactions of several statements: the store's transaction, with the catalog that its statements see.
//!
//! A session has at most one open transaction ([`TransactionSlot`]). The transaction takes its snapshot with its first
//! statement that reads or writes; at the level read committed, each statement takes a new one. Statements read the
//! snapshot below the transaction's own writes and add their changes to these. The commit takes the writer lock,
//! checks for conflicts, and makes all changes in one write batch.
//!
//! ```text
//! BEGIN ──► idle ──first statement──► running ──COMMIT──► conflicts? ──► one write batch
//!                                       │ error
//!                                       └──► failed: only ROLLBACK, or ROLLBACK TO a savepoint
//! ```
//!
//! A transaction that is open for longer than its timeout fails, and keeps neither snapshot nor changes ([`expire`]).
//!
//! *Conflicts.* The store finds changes of the same rows, of new unique keys, and of ranges that a serializable
//! transaction has read. At the level read committed, statements wait for the rows that other transactions have changed
//! ([`locks`]), so that such transactions have no conflicts with each other. Definitions are checked here: those of tables
//! with changed rows must be the same as when the transaction read them, and a transaction that changes definitions must be
//! the only one since its snapshot.

mod locks;
mod parts;
mod running;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use keyaki_store::{KeyRange, Savepoint, Snapshot, TreeId, WriteBatch};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;

use crate::base::interrupt::{Decision, InterruptHandle, Interrupts, Stage};
use crate::base::options::Isolation;
use crate::base::row_locks::LockHolder;
use crate::catalog::{Catalog, Table};
use crate::engine::Engine;
use crate::engine::writer::{Changes, Lock};
use crate::{Error, ObjectKind, Result};

pub(crate) use parts::Parts;
pub(crate) use running::Committed;
use running::{ChangedTables, Running};

/// The characteristics of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Characteristics {
    pub isolation: Isolation,
    pub is_read_only: bool,
    /// The transaction is rolled back after this time.
    pub timeout: Option<Duration>,
}

/// The state of a session's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// There is none: each statement is a transaction of its own.
    Idle,
    /// It is open.
    Open,
    /// A statement has failed: the transaction can only be rolled back.
    Failed,
}

/// The place of a session's transaction.
#[derive(Debug, Default)]
pub(crate) struct TransactionSlot {
    /// The number of the session.
    session: i32,
    /// Held by a statement that writes, begins or ends the transaction.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Arc<Mutex<Option<Open>>>,
    /// True if `state` is not `None`.
    is_open: AtomicBool,
    /// When the timer of the session looks at `state` next; `None` without one. Changed under the lock of `state`.
    timer: Arc<Mutex<Option<Instant>>>,
    /// Number of transactions begun.
    begun: AtomicU64,
}

/// An open transaction.
#[derive(Debug)]
struct Open {
    number: u64,
    characteristics: Characteristics,
    /// `None` before the first statement that reads or writes.
    running: Option<Running>,
    is_failed: bool,
    /// The transaction has failed because it was open for too long. It has, or will have, no snapshot and no changes.
    has_timed_out: bool,
    /// When it times out.
    deadline: Option<Instant>,
    /// Held from BEGIN IMMEDIATE to the end.
    lock: Option<Lock>,
    /// Has the locks of the changed rows; with `lock`, which no other commit passes, only those of queries.
    holder: Option<Arc<LockHolder>>,
    /// The next statement sees commits that are not acknowledged yet: it has waited for them.
    needs_newest: bool,
    /// A statement has seen such commits.
    has_seen_newest: bool,
    savepoints: Vec<NamedSavepoint>,
}

#[derive(Debug)]
struct NamedSavepoint {
    name: String,
    point: Point,
    /// Numbers of locked rows, and of ranges that the transaction depended on.
    locked: usize,
    dependencies: usize,
}

/// A point to which the transaction can return.
#[derive(Debug)]
struct Point {
    store: Savepoint,
    /// The transaction's own catalog; `None` if it had not changed definitions. ROLLBACK TO then uses the catalog of the
    /// current snapshot, which at the level read committed may be newer than the savepoint.
    catalog: Option<Arc<Catalog>>,
    changed: ChangedTables,
}

/// The turn of a statement in an open transaction.
#[derive(Debug)]
pub(crate) struct TransactionStatement {
    state: Arc<Mutex<Option<Open>>>,
    /// The statement has made some of its changes. If it ends before the last one, the transaction has failed.
    is_partial: AtomicBool,
    /// The state before the first of several changes.
    start: Mutex<Option<Point>>,
    /// The statement ends without changes, and runs again.
    is_repeated: AtomicBool,
    /// Number of ranges that the transaction depended on before the statement.
    dependencies: usize,
    _turn: OwnedMutexGuard<()>,
}

impl Drop for TransactionStatement {
    fn drop(&mut self) {
        let (is_partial, is_repeated) = (*self.is_partial.get_mut(), *self.is_repeated.get_mut());
        if !is_partial && !is_repeated {
            return;
        }
        let mut state = self.state.lock();
        let Some(open) = state.as_mut() else { return };
        match (open.running.as_mut(), self.start.get_mut().as_ref()) {
            (Some(running), start) if is_repeated => {
                start.inspect(|start| start.restore(running));
                running.store.forget_dependencies(self.dependencies);
            }
            _ => open.fail(),
        }
    }
}

impl TransactionSlot {
    /// The slot of the session with a number.
    pub fn of(session: i32) -> TransactionSlot {
        TransactionSlot { session, ..TransactionSlot::default() }
    }

    /// The state of the transaction.
    pub fn status(&self) -> TransactionStatus {
        match self.state.lock().as_ref() {
            None => TransactionStatus::Idle,
            Some(open) if open.is_failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::Open,
        }
    }

    /// True if a transaction is open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The number of the open transaction; `None` without one.
    pub fn number(&self) -> Option<u64> {
        match self.is_open() {
            true => self.state.lock().as_ref().map(|open| open.number),
            false => None,
        }
    }

    /// False if the next statement sees no commits since the last one: the transaction has its snapshot, or has failed.
    pub fn sees_changes(&self) -> bool {
        !self.is_open()
            || self.state.lock().as_ref().is_none_or(|open| {
                let has_snapshot = open.running.is_some() && open.characteristics.isolation != Isolation::ReadCommitted;
                !open.is_failed && !has_snapshot
            })
    }

    /// Checks that a statement may run.
    ///
    /// # Errors
    /// `FailedTransaction`, `TransactionTimeout`.
    pub fn check(&self) -> Result<()> {
        match self.is_open() {
            true => self.state.lock().as_ref().map_or(Ok(()), Open::check),
            false => Ok(()),
        }
    }

    /// The error of a statement that has failed with this one, which is another one after a timeout.
    pub fn cause(&self, error: Error) -> Error {
        let has_timed_out = || self.state.lock().as_ref().is_some_and(|open| open.has_timed_out);
        if matches!(error, Error::Cancelled) && self.is_open() && has_timed_out() {
            return Error::TransactionTimeout;
        }
        error
    }

    /// Notes that a statement has failed with this error. BEGIN in an open transaction does not affect it.
    pub fn failed(&self, error: &Error) {
        if self.is_open()
            && !matches!(error, Error::ActiveTransaction(_))
            && let Some(open) = self.state.lock().as_mut()
        {
            open.fail();
        }
    }

    /// Passes on the rows of a query, once all commits that it sees are acknowledged. An error makes the open transaction
    /// fail.
    pub fn watch(&self, engine: &Engine, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        if !self.is_open() {
            return rows;
        }
        let Some(number) = self.state.lock().as_ref().map(|open| open.number) else { return rows };
        let (state, schema) = (self.state.clone(), rows.schema());
        let rows = match self.unacknowledged(engine) {
            None => rows.boxed(),
            Some(acknowledged) => {
                let acknowledged = async move { acknowledged.await.map_err(DataFusionError::from) };
                acknowledged.map_ok(|()| rows).try_flatten_stream().boxed()
            }
        };
        let rows = rows.inspect_err(move |_| {
            if let Some(open) = state.lock().as_mut().filter(|open| open.number == number) {
                open.fail();
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    /// The characteristics of the open transaction.
    pub fn characteristics(&self) -> Option<Characteristics> {
        self.state.lock().as_ref().map(|open| open.characteristics)
    }

    /// True if the open transaction has changed definitions.
    pub fn defines(&self) -> bool {
        let defines = |open: &Open| open.running.as_ref().is_some_and(Running::defines);
        self.is_open() && self.state.lock().as_ref().is_some_and(defines)
    }

    /// The catalog of the open transaction; `None` without one.
    ///
    /// # Errors
    /// As [`TransactionSlot::moment`].
    pub fn catalog(&self, engine: &Engine) -> Result<Option<Arc<Catalog>>> {
        Ok(self.running(engine)?.map(|running| running.catalog.clone()))
    }

    /// The catalog and the snapshot for a statement that reads; `None` without an open transaction.
    ///
    /// # Errors
    /// `FailedTransaction`; `Conflict` if a table changed by the transaction has another definition by now.
    pub fn moment(&self, engine: &Engine) -> Result<Option<(Arc<Catalog>, Snapshot)>> {
        Ok(self.running(engine)?.map(|running| running.moment()))
    }

    /// The transaction, with a new snapshot at the level read committed. The caller reads it and does not wait.
    fn running(&self, engine: &Engine) -> Result<Option<MappedMutexGuard<'_, Running>>> {
        if !self.is_open() {
            return Ok(None);
        }
        let mut state = self.state.lock();
        if let Some(open) = state.as_mut() {
            open.start(engine)?;
        }
        Ok(MutexGuard::try_map(state, |open| open.as_mut()?.running.as_mut()).ok())
    }

    /// The turn of a statement that writes; `None` without an open transaction. `what` names the statement.
    ///
    /// # Errors
    /// As [`TransactionSlot::moment`]; `ReadOnlyTransaction`.
    pub async fn statement(&self, engine: &Engine, what: &str) -> Result<Option<TransactionStatement>> {
        if !self.is_open() {
            return Ok(None);
        }
        let turn = self.turn.clone().lock_owned().await;
        let mut state = self.state.lock();
        let Some(open) = state.as_mut() else { return Ok(None) };
        let dependencies = open.start(engine)?.store.dependencies();
        if open.characteristics.is_read_only {
            return Err(Error::ReadOnlyTransaction { statement: what.into() });
        }
        Ok(Some(TransactionStatement {
            state: self.state.clone(),
            is_partial: AtomicBool::new(false),
            start: Mutex::default(),
            is_repeated: AtomicBool::new(false),
            dependencies,
            _turn: turn,
        }))
    }

    /// Begins a transaction. If it is `immediate`, it holds the writer lock to its end, so that it has no conflicts. After its
    /// timeout, `interrupts` are raised.
    ///
    /// # Errors
    /// `ActiveTransaction` if one is open; errors of the log.
    pub async fn begin(
        &self,
        engine: &Engine,
        interrupts: &Arc<Interrupts>,
        characteristics: Characteristics,
        immediate: bool,
    ) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.is_open() {
            return Err(Error::ActiveTransaction("there is already a transaction in progress".into()));
        }
        if immediate {
            engine.check_read_write("BEGIN IMMEDIATE")?;
        }
        let lock = if immediate { Some(engine.lock_writer().await) } else { None };
        self.open(engine, characteristics, lock).await?;
        let state = self.state.lock();
        let Some(deadline) = state.as_ref().and_then(|open| open.deadline) else { return Ok(()) };
        let mut timer = self.timer.lock();
        if timer.is_none_or(|at| at > deadline) {
            *timer = Some(deadline);
            let (state, turn) = (Arc::downgrade(&self.state), Arc::downgrade(&self.turn));
            let (timer, interrupts) = (Arc::downgrade(&self.timer), interrupts.clone());
            engine.timers.schedule(deadline, move || {
                expire(&*state.upgrade()?, &*turn.upgrade()?, &*timer.upgrade()?, &interrupts)
            });
        }
        Ok(())
    }

    /// Opens a transaction that holds `lock` to its end.
    async fn open(&self, engine: &Engine, characteristics: Characteristics, lock: Option<Lock>) -> Result<()> {
        if lock.is_some() {
            // The snapshot contains acknowledged commits only.
            engine.store.pending().committed().await?;
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            number,
            characteristics,
            running: None,
            is_failed: false,
            has_timed_out: false,
            deadline: characteristics.timeout.map(|timeout| Instant::now() + timeout),
            holder: lock.is_none().then(|| Arc::new(engine.row_locks.holder(self.session))),
            lock,
            needs_newest: false,
            has_seen_newest: false,
            savepoints: Vec::new(),
        };
        *self.state.lock() = Some(open);
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    /// Changes the characteristics of a transaction that has not run a statement yet. Returns false without one.
    ///
    /// # Errors
    /// `ActiveTransaction` if it has run a statement and the level changes; read-only transactions stay read-only.
    pub fn set(&self, change: impl FnOnce(&mut Characteristics)) -> Result<bool> {
        let mut state = self.state.lock();
        let Some(open) = state.as_mut() else { return Ok(false) };
        let mut changed = open.characteristics;
        change(&mut changed);
        if open.running.is_some() && changed.isolation != open.characteristics.isolation {
            let problem = "SET TRANSACTION ISOLATION LEVEL must be called before any query";
            return Err(Error::ActiveTransaction(problem.into()));
        }
        if open.running.is_some() && open.characteristics.is_read_only && !changed.is_read_only {
            let problem = "transaction read-write mode must be set before any query";
            return Err(Error::ActiveTransaction(problem.into()));
        }
        open.characteristics = changed;
        Ok(true)
    }

    /// Ends the transaction without its changes. Returns its characteristics; `None` without a transaction.
    pub async fn roll_back(&self) -> Option<Characteristics> {
        let _turn = self.turn.lock().await;
        let open = self.take()?;
        open.holder.inspect(|holder| holder.release());
        Some(open.characteristics)
    }

    fn take(&self) -> Option<Open> {
        let open = self.state.lock().take();
        self.is_open.store(false, Ordering::Release);
        open
    }

    /// Commits the transaction; `None` if it had failed and was rolled back, or if there is none. The transaction ends in
    /// any case. The writer lock is released before the result returns, which the caller waits for.
    ///
    /// # Errors
    /// `Conflict`, `Cancelled`, `TransactionTimeout`, errors of the store: nothing has changed.
    pub async fn commit(&self, engine: &Arc<Engine>, decision: &Arc<Decision>) -> Result<Option<Committed>> {
        let _turn = self.turn.lock().await;
        let Some(Open { running, is_failed, has_timed_out, lock, holder, .. }) = self.take() else { return Ok(None) };
        match (is_failed, has_timed_out) {
            // No statement may have told the caller.
            (true, true) => return Err(Error::TransactionTimeout),
            (true, false) => return Ok(None),
            (false, _) => {}
        }
        let Some(running) = running.filter(|running| !running.is_read_only()) else {
            holder.inspect(|holder| holder.release());
            return Ok(Some(Committed::default()));
        };
        let lock = match lock {
            Some(lock) => lock,
            None => engine.lock_writer().await,
        };
        decision.reach(Stage::Begun);
        let (engine, decision) = (engine.clone(), decision.clone());
        let is_small = running.is_small() && !engine.store.slows_commits();
        let work = move || {
            let _lock = lock;
            let committed = running.commit(&engine, &decision);
            // Those who wait for the rows see the commit, although it may not be durable yet: theirs follow it in the log.
            holder.inspect(|holder| holder.release());
            committed
        };
        if is_small {
            return work().map(Some);
        }
        tokio::task::spawn_blocking(work).await.map_err(|error| Error::task(&error))?.map(Some)
    }

    /// Adds a savepoint.
    ///
    /// # Errors
    /// `NoActiveTransaction`, and as [`TransactionSlot::moment`].
    pub async fn save(&self, engine: &Engine, name: String) -> Result<()> {
        let _turn = self.turn.lock().await;
        let mut state = self.state.lock();
        let open = state.as_mut().ok_or_else(|| no_transaction("SAVEPOINT"))?;
        let running = open.start(engine)?;
        let (point, dependencies) = (Point::of(running), running.store.dependencies());
        let locked = open.holder.as_ref().map_or(0, |holder| holder.len());
        open.savepoints.push(NamedSavepoint { name, point, locked, dependencies });
        Ok(())
    }

    /// Removes the newest savepoint with this name and all later ones. Their changes remain.
    ///
    /// # Errors
    /// `NoActiveTransaction`, `FailedTransaction`; `NotFound` without such a savepoint.
    pub async fn release(&self, name: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        let mut state = self.state.lock();
        let open = state.as_mut().ok_or_else(|| no_transaction("RELEASE SAVEPOINT"))?;
        open.check()?;
        let place = open.savepoint(name)?;
        open.savepoints.truncate(place);
        Ok(())
    }

    /// Undoes all changes since the newest savepoint with this name, releases the rows that were locked since then, and removes
    /// all later savepoints. A failed transaction continues.
    ///
    /// # Errors
    /// `NoActiveTransaction`; `NotFound` without such a savepoint.
    pub async fn roll_back_to(&self, name: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        let mut state = self.state.lock();
        let open = state.as_mut().ok_or_else(|| no_transaction("ROLLBACK TO SAVEPOINT"))?;
        if open.has_timed_out {
            return Err(Error::TransactionTimeout);
        }
        let place = open.savepoint(name)?;
        open.savepoints.truncate(place + 1);
        if let (Some(running), Some(savepoint)) = (open.running.as_mut(), open.savepoints.last()) {
            savepoint.point.restore(running);
            // A serializable transaction depends on all that the program has read.
            if open.characteristics.isolation != Isolation::Serializable {
                running.store.forget_dependencies(savepoint.dependencies);
            }
            open.holder.as_ref().inspect(|holder| holder.release_after(savepoint.locked));
        }
        open.is_failed = false;
        Ok(())
    }
}

fn no_transaction(statement: &str) -> Error {
    Error::NoActiveTransaction(format!("{statement} can only be used in transaction blocks"))
}

/// Time after which a timer that could not do its work tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The work of a session's timer: makes a transaction that is past its deadline fail, cancels its statement, and releases its
/// snapshot, its changes and its lock, once no statement uses them. Returns the time after which to look again; `None` if
/// there is no transaction with a deadline.
fn expire(
    state: &Mutex<Option<Open>>,
    turn: &tokio::sync::Mutex<()>,
    timer: &Mutex<Option<Instant>>,
    interrupts: &Arc<Interrupts>,
) -> Option<Duration> {
    // A statement that spills holds the lock for long, and other sessions have timers, too.
    let Some(mut state) = state.try_lock() else { return Some(RETRY_INTERVAL) };
    let Some((open, deadline)) = state.as_mut().and_then(|open| open.deadline.map(|deadline| (open, deadline))) else {
        *timer.lock() = None;
        return None;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        *timer.lock() = Some(deadline);
        return Some(left);
    }
    open.is_failed = true;
    let holder = open.holder.take();
    if !std::mem::replace(&mut open.has_timed_out, true) {
        // While the state is locked: the transaction cannot end before, and no later statement is cancelled.
        InterruptHandle { interrupts: interrupts.clone() }.interrupt();
    }
    let Ok(_turn) = turn.try_lock() else { return Some(RETRY_INTERVAL) };
    let released = (open.running.take(), open.lock.take(), holder, std::mem::take(&mut open.savepoints));
    open.deadline = None;
    *timer.lock() = None;
    drop(state);
    drop(released);
    None
}

impl Open {
    /// Checks that a statement may run.
    fn check(&self) -> Result<()> {
        match (self.is_failed, self.has_timed_out) {
            (_, true) => Err(Error::TransactionTimeout),
            (true, false) => Err(Error::FailedTransaction),
            (false, false) => Ok(()),
        }
    }

    /// Takes the snapshot of the first statement; at the level read committed, that of each statement.
    fn start(&mut self, engine: &Engine) -> Result<&mut Running> {
        self.check()?;
        let isolation = self.characteristics.isolation;
        match &mut self.running {
            Some(running) => {
                if isolation == Isolation::ReadCommitted {
                    let is_newest = std::mem::take(&mut self.needs_newest);
                    self.has_seen_newest |= is_newest;
                    running.refresh(engine, is_newest)?;
                }
                Ok(running)
            }
            none => Ok(none.insert(Running::new(engine, isolation))),
        }
    }

    /// Makes the transaction fail. Without savepoints it can only be rolled back: others may change its rows.
    fn fail(&mut self) {
        self.is_failed = true;
        if self.savepoints.is_empty() {
            self.holder.as_ref().inspect(|holder| holder.release());
        }
    }

    /// The place of the newest savepoint with this name.
    fn savepoint(&self, name: &str) -> Result<usize> {
        let place = self.savepoints.iter().rposition(|savepoint| savepoint.name == name);
        place.ok_or_else(|| Error::NotFound { kind: ObjectKind::Savepoint, name: name.into() })
    }
}

impl Point {
    /// The current point.
    fn of(running: &Running) -> Point {
        let catalog = running.defines().then(|| running.catalog.clone());
        Point { store: running.store.savepoint(), catalog, changed: running.changed.clone() }
    }

    /// Undoes all changes since the point.
    fn restore(&self, running: &mut Running) {
        running.roll_back_to(self.store, self.catalog.clone(), self.changed.clone());
    }
}

impl TransactionStatement {
    /// The catalog and the snapshot of the statement.
    pub fn moment(&self) -> (Arc<Catalog>, Snapshot) {
        self.with(|running, _, _| running.moment())
    }

    /// Adds changed rows of a table: a part of the changes of the statement, or the last ones.
    ///
    /// # Errors
    /// `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn add_rows(&self, table: &Table, changes: Changes, is_part: bool) -> Result<()> {
        self.begin_change(is_part);
        self.with(|running, savepoints, is_alone| {
            running.write(changes.batch, savepoints)?;
            for (tree, range) in changes.absent.into_iter().flatten().filter(|_| !is_alone) {
                running.store.depend_on(tree, range);
            }
            let (rows, grown) = running.changed.entry(table.def.name.clone()).or_default();
            *rows += changes.rows;
            *grown += changes.grown;
            Result::Ok(())
        })?;
        self.is_partial.fetch_and(is_part, Ordering::Relaxed);
        Ok(())
    }

    /// Adds entries of an index that the statement has created: a part of its changes.
    ///
    /// # Errors
    /// `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn add_entries(&self, entries: WriteBatch) -> Result<()> {
        self.begin_change(true);
        self.with(|running, savepoints, _| running.write(entries, savepoints))
    }

    /// Begins a change; the first of several ones keeps the state before it.
    fn begin_change(&self, is_part: bool) {
        if is_part && !self.is_partial.swap(true, Ordering::Relaxed) {
            *self.start.lock() = Some(self.with(|running, _, _| Point::of(running)));
        }
    }

    /// The statement has made all its changes.
    pub fn complete(&self) {
        self.is_partial.store(false, Ordering::Relaxed);
    }

    /// Adds definitions; `catalog` has them. They are a part of the changes of the statement, or the last ones.
    ///
    /// # Errors
    /// `Cancelled`, `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn define(&self, decision: &Decision, batch: WriteBatch, catalog: Catalog, is_part: bool) -> Result<()> {
        if is_part {
            decision.check()?;
            self.begin_change(true);
            return self.with(|running, savepoints, _| running.define(batch, catalog, savepoints));
        }
        decision.commit()?;
        self.with(|running, savepoints, _| running.define(batch, catalog, savepoints))?;
        decision.reach(Stage::Committed);
        Ok(())
    }

    /// See [`Engine::depend_on_table`].
    pub fn depend_on(&self, tree: TreeId, range: KeyRange) {
        self.with(|running, _, is_alone| {
            if !is_alone {
                running.store.depend_on(tree, range);
            }
        });
    }

    /// See [`Engine::depend_on_existence`].
    pub fn depend_on_existence(&self, tree: TreeId, range: KeyRange) {
        self.with(|running, _, is_alone| {
            if !is_alone {
                running.store.depend_on_existence(tree, range);
            }
        });
    }

    /// Calls `work` with the transaction, which runs while the statement has its turn, its savepoints, and true if it holds
    /// the writer lock, so that it has no conflicts.
    fn with<T>(&self, work: impl FnOnce(&mut Running, &[Savepoint], bool) -> T) -> T {
        let mut state = self.state.lock();
        let Some(Open { running: Some(running), savepoints, lock, .. }) = state.as_mut() else {
            unreachable!("a transaction ended during the turn of a statement")
        };
        let mut savepoints: Vec<Savepoint> = savepoints.iter().map(|savepoint| savepoint.point.store).collect();
        savepoints.extend(self.start.lock().as_ref().map(|start| start.store));
        work(running, &savepoints, lock.is_some())
    }
}
