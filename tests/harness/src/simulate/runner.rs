//! Executes steps on a database and compares every result with the model.
//!
//! An error is accepted if the model permits it, or if an active fault of the device explains it. After an error of the device during a change, [`recovery`](super::recovery) decides which commits have survived.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use datafusion::arrow::array::RecordBatch;
use futures::StreamExt;
use keyaki::{Database, Outcome, SendableRecordBatchStream, Session};
use keyaki_device::simulated::Simulated;
use keyaki_primitives::Random;
use tokio::runtime::{Builder, Runtime};

use super::database::{Contents, DIRECTORY, Failed, Sizes, remove, row_difference, run, settle, values};
use super::model::{Ending, Model, Start};
use super::state::{Answer, Expected, State, UNDEFINED_TABLE, Value};
use super::steps::{Isolation, Order, Predicate, Query, READERS, Statement, Step, reader_sql};

const CONFLICT: &str = "40001";
const OUT_OF_MEMORY: &str = "53200";
const FAILED_TRANSACTION: &str = "25P02";
const NO_TRANSACTION: &str = "25P01";
const ACTIVE_TRANSACTION: &str = "25001";
const NO_SAVEPOINT: &str = "3B001";
/// Column of the result of CHECK DATABASE that describes a problem.
const PROBLEM_COLUMN: usize = 6;

/// A difference between the database and the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A short name of the kind of the difference, which stays the same while a list of steps is reduced.
    pub kind: String,
    pub expected: String,
    pub found: String,
}

impl Problem {
    pub fn new(kind: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Problem { kind: kind.into(), expected: expected.into(), found: found.into() }
    }

    /// An error instead of `expected`.
    pub fn error(expected: &str, found: &Failed) -> Self {
        // Numbers differ while a list of steps is reduced.
        let class = expected.trim_start_matches(|c: char| c.is_ascii_digit());
        let kind = format!("unexpected error {} instead of {class}", found.code);
        Problem::new(kind, expected, format!("error {}: {}", found.code, found.text))
    }
}

pub type Checked = Result<(), Problem>;

/// The faults of the device at present.
#[derive(Debug, Default)]
pub struct Faults {
    /// Writes, syncs or reads may fail, or the power. Ends with a restart.
    pub failing: bool,
    /// The device may have no space.
    pub limited: bool,
    /// The committed states since the device was damaged, and the one before. A restart may restore any of them.
    pub damaged: Option<Vec<State>>,
}

/// Counts of events, which show the coverage of a run.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub steps: u64,
    pub commits: u64,
    pub conflicts: u64,
    /// Errors that the model expects, by SQLSTATE.
    pub errors: BTreeMap<&'static str, u64>,
    pub restarts: u64,
    pub unacknowledged: u64,
    pub device_errors: u64,
    pub full_disks: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { steps, commits, conflicts, errors, restarts, unacknowledged, device_errors, full_disks } = self;
        write!(f, "{steps} steps, {commits} commits, {conflicts} conflicts, {restarts} restarts, ")?;
        write!(f, "{unacknowledged} unacknowledged commits found, {device_errors} errors of the device, ")?;
        write!(f, "{full_disks} full disks, {} expected errors", errors.values().sum::<u64>())
    }
}

/// A result that is being read.
struct Reader {
    rows: SendableRecordBatchStream,
    /// Read so far.
    batches: Vec<RecordBatch>,
    expected: Vec<Vec<Value>>,
    ordered: bool,
    _session: Session,
}

/// A simulation that runs.
pub struct Runner {
    pub(super) runtime: Runtime,
    pub(super) random: Random,
    pub(super) sizes: Sizes,
    pub(super) simulated: Simulated,
    pub(super) database: Option<Database>,
    /// The database, as another process has opened it for reading.
    pub(super) follower: Option<Database>,
    pub(super) sessions: Vec<Session>,
    readers: [Option<Reader>; READERS],
    pub(super) model: Model,
    pub(super) faults: Faults,
    backups: u64,
    pub counts: Counts,
    digest: DefaultHasher,
}

impl Runner {
    /// An empty database.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(seed: u64) -> Result<Runner, Problem> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(|error| Problem::new("runtime", "a runtime", error.to_string()))?;
        let mut random = Random::new(seed);
        let sizes = Sizes::new(&mut random);
        let mut runner = Runner {
            runtime,
            random,
            sizes,
            simulated: Simulated::new(Default::default()),
            database: None,
            follower: None,
            sessions: Vec::new(),
            readers: Default::default(),
            model: Model::default(),
            faults: Faults::default(),
            backups: 0,
            counts: Counts::default(),
            digest: DefaultHasher::new(),
        };
        runner.new_database()?;
        Ok(runner)
    }

    /// A hash of the results of all steps, which is equal for equal runs.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    pub(super) fn database(&self) -> &Database {
        #[expect(clippy::expect_used, reason = "only a restart closes the database, and opens another one")]
        self.database.as_ref().expect("a database is open")
    }

    /// Executes a step.
    ///
    /// # Errors
    /// A difference from the model.
    pub fn step(&mut self, step: &Step) -> Checked {
        self.counts.steps += 1;
        match step {
            Step::Run { session, statement } => self.run_statement(*session, statement),
            Step::Set { session, setting } => self.set(*session, setting),
            Step::Begin { session, isolation } => self.begin(*session, *isolation, &sql(step)),
            Step::Commit { session } => self.commit(*session),
            Step::Rollback { session } => self.roll_back(*session),
            Step::Savepoint { session, name } => self.savepoint(*session, *name, &sql(step)),
            Step::RollbackTo { session, name } => self.roll_back_to(*session, *name, &sql(step)),
            Step::Release { session, name } => self.release(*session, *name, &sql(step)),
            Step::Open { reader, table, ordered, polls } => self.open_reader(*reader, *table, *ordered, *polls),
            Step::Fetch { reader } => self.fetch(*reader),
            Step::Maintain(sql) => self.maintain(sql),
            Step::Verify => self.verify(),
            Step::Follow { anew } => self.follow(*anew),
            Step::Check => self.check(),
            Step::Backup => self.back_up(),
            Step::Reopen => self.reopen(),
            Step::Crash(during) => self.recover(None, during),
            Step::Fault(fault) => self.fault(fault),
            Step::Heal => self.heal(),
            Step::Damage(damage) => self.damage(damage),
            Step::NewDatabase => self.new_database(),
        }?;
        if let Some(database) = &self.database {
            settle(database);
        }
        if self.simulated.is_down() { self.recover(None, &[]) } else { Ok(()) }
    }

    /// Runs a statement in a session.
    fn execute(&mut self, session: usize, sql: &str) -> Result<Answer, Failed> {
        let answer = run(&self.runtime, &self.sessions[session], sql);
        match &answer {
            Ok(answer) => format!("{answer:?}").hash(&mut self.digest),
            Err(error) => error.code.hash(&mut self.digest),
        }
        answer
    }

    /// Runs a statement outside of the sessions.
    pub(super) fn administer(&self, sql: &str) -> Result<Answer, Failed> {
        run(&self.runtime, &self.database().session(), sql)
    }

    /// True if the faults of the device explain an error.
    pub(super) fn explains(&self, error: &Failed) -> bool {
        let failing = self.faults.failing || self.simulated.is_down();
        // A panic of a thread of the store poisons it.
        !error.text.contains("panicked")
            && ((self.faults.damaged.is_some() && error.is_damage())
                || (failing && (error.is_device() || error.code == "55000")))
    }

    /// Accepts an error that faults explain, of a statement that changes nothing.
    pub(super) fn tolerate(&mut self, expected: &str, error: &Failed) -> Checked {
        if self.explains(error) {
            self.counts.device_errors += 1;
            return Ok(());
        }
        if error.is_disk_full() && self.faults.limited {
            self.counts.full_disks += 1;
            return Ok(());
        }
        Err(Problem::error(expected, error))
    }

    /// Accepts an error that faults explain, of a statement that may have committed `pending`.
    fn change_failed(&mut self, expected: &str, error: &Failed, pending: Option<State>) -> Checked {
        let restarts = self.explains(error) && !error.is_disk_full();
        self.tolerate(expected, error)?;
        if restarts { self.recover(pending, &[]) } else { Ok(()) }
    }

    pub(super) fn run_statement(&mut self, session: usize, statement: &Statement) -> Checked {
        let sql = statement.sql();
        let mut may_conflict = false;
        if let Some(open) = self.model.transaction(session) {
            // At this level, the definitions of the model's snapshot change between statements.
            if statement.stands_alone() || (statement.defines() && open.isolation == Isolation::ReadCommitted) {
                return Ok(());
            }
            if open.failed {
                self.refused(session, &sql, &[FAILED_TRANSACTION])?;
                // Otherwise, most later statements of the session would be refused.
                return if matches!(statement, Statement::Select(_)) { Ok(()) } else { self.roll_back(session) };
            }
            match self.model.start(session) {
                Start::Success => {}
                Start::MayConflict => may_conflict = true,
                Start::Conflict => {
                    self.model.fail(session);
                    return self.refused(session, &sql, &[CONFLICT]);
                }
            }
        }
        let in_transaction = self.model.transaction(session).is_some();
        let mut expected = self.model.expect(session, statement);
        expected.errors.extend(may_conflict.then_some(CONFLICT));
        // Changes of in-memory indexes do not spill.
        let creates = matches!(statement, Statement::CreateIndex { index, .. } if index.method == "masstree");
        let may_exceed_memory =
            creates || !matches!(statement, Statement::Select(_)) && self.model.has_memory_indexes();
        expected.errors.extend(may_exceed_memory.then_some(OUT_OF_MEMORY));
        match self.execute(session, &sql) {
            Ok(answer) => {
                let Some(effect) = expected.effect else {
                    return Err(Problem::new("missing error", format!("error {:?}", expected.errors), shown(&answer)));
                };
                if effect.answer == Answer::Next {
                    self.next_value(&answer)?;
                } else {
                    compare(&effect.answer, &answer)?;
                }
                let changes = !effect.written.is_empty() || effect.defined.is_some();
                self.model.apply(session, effect);
                if changes && !in_transaction {
                    self.acknowledged();
                }
                Ok(())
            }
            Err(error) => self.statement_failed(session, statement, expected, &error),
        }
    }

    fn statement_failed(
        &mut self,
        session: usize,
        statement: &Statement,
        expected: Expected,
        error: &Failed,
    ) -> Checked {
        let in_transaction = self.model.transaction(session).is_some();
        self.model.fail(session);
        if *statement == Statement::NextValue {
            self.model.values_missing += 1;
        }
        if expected.errors.contains(error.code) {
            *self.counts.errors.entry(error.code).or_default() += 1;
            return Ok(());
        }
        let text = match &expected.effect {
            Some(effect) => shown(&effect.answer),
            None => format!("error {:?}", expected.errors),
        };
        let reads = matches!(statement, Statement::Select(_));
        if reads && !self.simulated.is_down() {
            return self.tolerate(&text, error);
        }
        let pending = expected.effect.filter(|_| !in_transaction).map(|effect| effect.state);
        self.change_failed(&text, error, pending)
    }

    /// Counts a commit that the database has acknowledged.
    pub(super) fn acknowledged(&mut self) {
        self.counts.commits += 1;
        if let Some(states) = &mut self.faults.damaged {
            states.push(self.model.committed.clone());
        }
    }

    /// Runs a statement that must fail with one of these codes.
    fn refused(&mut self, session: usize, sql: &str, codes: &[&str]) -> Checked {
        match self.execute(session, sql) {
            Err(error) if codes.contains(&error.code) => {
                *self.counts.errors.entry(error.code).or_default() += 1;
                Ok(())
            }
            Err(error) => self.tolerate(&format!("error {codes:?}"), &error),
            Ok(answer) => Err(Problem::new("missing error", format!("error {codes:?}"), shown(&answer))),
        }
    }

    /// Runs a statement that must succeed.
    fn succeeds(&mut self, session: usize, sql: &str) -> Checked {
        match self.execute(session, sql) {
            Ok(_) => Ok(()),
            Err(error) => self.tolerate("success", &error),
        }
    }

    /// Checks a value of the sequence.
    fn next_value(&mut self, answer: &Answer) -> Checked {
        let value = match answer {
            Answer::Rows { rows, .. } => rows.first().and_then(|row| row.first()).cloned(),
            _ => None,
        };
        let (first, last) = (self.model.last_value + 1, self.model.last_value + 1 + self.model.values_missing);
        match value {
            // A damaged device may have lost the reservation of values.
            Some(Value::Integer(value)) if (first..=last).contains(&value) || self.faults.damaged.is_some() => {
                (self.model.last_value, self.model.values_missing) = (value, 0);
                Ok(())
            }
            _ => Err(Problem::new("sequence", format!("a value from {first} to {last}"), shown(answer))),
        }
    }

    fn set(&mut self, session: usize, setting: &str) -> Checked {
        if self.model.transaction(session).is_some() {
            return Ok(());
        }
        self.succeeds(session, &format!("SET {setting}"))
    }

    fn begin(&mut self, session: usize, isolation: Isolation, sql: &str) -> Checked {
        if let Some(open) = self.model.transaction(session) {
            let code = if open.failed { FAILED_TRANSACTION } else { ACTIVE_TRANSACTION };
            return self.refused(session, sql, &[code]);
        }
        if isolation == Isolation::ReadCommitted {
            // One thread runs all sessions: none can wait for another.
            self.succeeds(session, "SET keyaki.row_locks = 'off'")?;
        }
        match self.execute(session, sql) {
            Ok(_) => {
                self.model.begin(session, isolation);
                Ok(())
            }
            Err(error) => self.tolerate("success", &error),
        }
    }

    fn roll_back(&mut self, session: usize) -> Checked {
        if self.model.transaction(session).is_none() {
            return self.refused(session, "ROLLBACK", &[NO_TRANSACTION]);
        }
        self.model.roll_back(session);
        self.succeeds(session, "ROLLBACK")
    }

    fn savepoint(&mut self, session: usize, name: u8, sql: &str) -> Checked {
        match self.model.transaction(session).map(|open| open.failed) {
            None => return self.refused(session, sql, &[NO_TRANSACTION]),
            Some(true) => return self.refused(session, sql, &[FAILED_TRANSACTION]),
            Some(false) => {}
        }
        let start = self.model.start(session);
        if start == Start::Conflict {
            self.model.fail(session);
            return self.refused(session, sql, &[CONFLICT]);
        }
        match self.execute(session, sql) {
            Err(error) if start == Start::MayConflict && error.code == CONFLICT => {
                self.model.fail(session);
                Ok(())
            }
            Err(error) => self.tolerate("success", &error),
            Ok(_) => {
                self.model.save(session, name);
                Ok(())
            }
        }
    }

    fn roll_back_to(&mut self, session: usize, name: u8, sql: &str) -> Checked {
        if self.model.transaction(session).is_none() {
            return self.refused(session, sql, &[NO_TRANSACTION]);
        }
        if !self.model.has_savepoint(session, name) {
            self.model.fail(session);
            return self.refused(session, sql, &[NO_SAVEPOINT]);
        }
        self.model.roll_back_to(session, name);
        self.succeeds(session, sql)
    }

    fn release(&mut self, session: usize, name: u8, sql: &str) -> Checked {
        match self.model.transaction(session) {
            None => self.refused(session, sql, &[NO_TRANSACTION]),
            Some(open) if open.failed => self.refused(session, sql, &[FAILED_TRANSACTION]),
            Some(_) if !self.model.has_savepoint(session, name) => {
                self.model.fail(session);
                self.refused(session, sql, &[NO_SAVEPOINT])
            }
            Some(_) => {
                self.model.release(session, name);
                self.succeeds(session, sql)
            }
        }
    }

    fn commit(&mut self, session: usize) -> Checked {
        if self.model.transaction(session).is_none() {
            return self.refused(session, "COMMIT", &[NO_TRANSACTION]);
        }
        let ending = self.model.ending(session);
        let found = self.execute(session, "COMMIT");
        match (ending, found) {
            (Ending::RolledBack | Ending::Unchanged, Ok(_)) => {
                self.model.roll_back(session);
                Ok(())
            }
            (Ending::Commit { state, .. }, Ok(_)) => {
                self.model.committed(session, state);
                self.acknowledged();
                Ok(())
            }
            (Ending::Conflict(reason), Ok(_)) => {
                Err(Problem::new("missing conflict", format!("error 40001, because {reason}"), "the commit succeeded"))
            }
            (Ending::Conflict(_) | Ending::Commit { may_fail: true, .. }, Err(error)) if error.code == CONFLICT => {
                self.counts.conflicts += 1;
                self.model.roll_back(session);
                Ok(())
            }
            (ending, Err(error)) => {
                self.model.roll_back(session);
                match ending {
                    Ending::Commit { state, .. } => {
                        self.change_failed("a commit without conflict", &error, Some(state))
                    }
                    Ending::Conflict(reason) => self.change_failed(&format!("40001: {reason}"), &error, None),
                    Ending::RolledBack | Ending::Unchanged => self.change_failed("success", &error, None),
                }
            }
        }
    }

    fn open_reader(&mut self, reader: usize, table: usize, ordered: bool, polls: bool) -> Checked {
        self.readers[reader] = None;
        let order = if ordered { Order::Key } else { Order::Any };
        let query = Query::Rows { table, predicate: Predicate::All, order, limit: None };
        let expected = self.model.committed.run(&Statement::Select(query), &mut self.model.ids);
        let session = self.database().session();
        let found = self.runtime.block_on(async {
            let outcome = session.query(&reader_sql(table, ordered)).await?;
            let Outcome::Rows(mut rows) = outcome else { return Ok(None) };
            let mut batches = Vec::new();
            if polls {
                batches.extend(rows.next().await.transpose().map_err(keyaki::Error::from)?);
            }
            Ok::<_, Failed>(Some((rows, batches)))
        });
        let expected = expected.effect.map(|effect| effect.answer);
        match (expected, found) {
            (Some(Answer::Rows { rows: expected, ordered }), Ok(Some((rows, batches)))) => {
                self.readers[reader] = Some(Reader { rows, batches, expected, ordered, _session: session });
                Ok(())
            }
            (None, Err(error)) if error.code == UNDEFINED_TABLE => Ok(()),
            (_, Err(error)) => self.tolerate("a result", &error),
            (expected, Ok(_)) => Err(Problem::new("missing error", format!("{expected:?}"), "a result")),
        }
    }

    fn fetch(&mut self, reader: usize) -> Checked {
        let Some(mut reader) = self.readers[reader].take() else { return Ok(()) };
        let read = self.runtime.block_on(async {
            while let Some(batch) = reader.rows.next().await {
                reader.batches.push(batch.map_err(keyaki::Error::from)?);
            }
            Ok::<_, Failed>(())
        });
        match read {
            Ok(()) => {
                let expected = Answer::Rows { rows: reader.expected, ordered: reader.ordered };
                compare(&expected, &Answer::Rows { rows: values(&reader.batches), ordered: true })
            }
            Err(error) => self.tolerate("the rows of the snapshot", &error),
        }
    }

    /// Ends all sessions and results.
    pub(super) fn end_sessions(&mut self) {
        self.readers = Default::default();
        self.sessions.clear();
    }

    fn maintain(&mut self, sql: &str) -> Checked {
        if sql == "ANALYZE" {
            self.model.analyze();
        }
        match self.administer(sql) {
            Ok(_) => Ok(()),
            Err(error) => self.change_failed("success", &error, None),
        }
    }

    fn verify(&mut self) -> Checked {
        match Contents::of_database(&self.runtime, self.database()) {
            Err(error) => self.tolerate("the contents of all tables", &error),
            Ok(found) => match Contents::of_state(&self.model.committed).difference(&found) {
                Some((expected, found)) => Err(Problem::new("other contents", expected, found)),
                None => Ok(()),
            },
        }
    }

    /// Compares what a reader beside the writer sees with the model: it has all acknowledged commits.
    fn follow(&mut self, anew: bool) -> Checked {
        if anew {
            self.follower = None;
        }
        if self.faults.damaged.is_some() {
            return Ok(());
        }
        let reader = match self.follower.take() {
            Some(reader) => Ok(reader),
            None => self.sizes.open_read_only(&self.simulated, DIRECTORY, &self.runtime),
        };
        let read = reader.and_then(|reader| Ok((Contents::of_database(&self.runtime, &reader)?, reader)));
        match read {
            Err(error) => self.tolerate("the contents for a reader", &error),
            Ok((found, reader)) => match Contents::of_state(&self.model.committed).difference(&found) {
                Some((expected, found)) => Err(Problem::new("other contents for a reader", expected, found)),
                None => {
                    self.follower = Some(reader);
                    Ok(())
                }
            },
        }
    }

    pub(super) fn check(&mut self) -> Checked {
        match self.administer("CHECK DATABASE") {
            Err(error) => self.tolerate("the result of CHECK", &error),
            Ok(checked) => self.problem_of_check(&checked),
        }
    }

    /// The first problem in the result of CHECK DATABASE that no fault explains.
    fn problem_of_check(&self, checked: &Answer) -> Checked {
        let Answer::Rows { rows, .. } = checked else { return Err(Problem::new("CHECK", "rows", shown(checked))) };
        match rows.iter().find(|row| row.get(PROBLEM_COLUMN) != Some(&Value::Null)) {
            Some(row) if !self.faults.failing && self.faults.damaged.is_none() => {
                Err(Problem::new("CHECK", "no problem", format!("{row:?}")))
            }
            _ => Ok(()),
        }
    }

    fn back_up(&mut self) -> Checked {
        self.backups += 1;
        let directory = format!("/simulated-copy-{}", self.backups);
        if let Err(error) = self.administer(&format!("BACKUP DATABASE TO '{directory}'")) {
            return self.change_failed("a backup", &error, None);
        }
        let copy = self.sizes.open(&self.simulated, &directory, &self.runtime);
        let read = copy.and_then(|copy| {
            let contents = Contents::of_database(&self.runtime, &copy)?;
            let checked = run(&self.runtime, &copy.session(), "CHECK DATABASE")?;
            Ok((contents, checked))
        });
        remove(&self.simulated, &directory);
        match read {
            Err(error) => self.tolerate("the contents of the copy", &error),
            Ok((found, checked)) => match Contents::of_state(&self.model.committed).difference(&found) {
                Some((expected, found)) => Err(Problem::new("other backup", expected, found)),
                None => self.problem_of_check(&checked),
            },
        }
    }
}

fn sql(step: &Step) -> String {
    step.statement().map(|(_, sql)| sql).unwrap_or_default()
}

/// Compares an answer with the expected one.
fn compare(expected: &Answer, found: &Answer) -> Checked {
    let (Answer::Rows { rows, ordered }, Answer::Rows { rows: found_rows, .. }) = (expected, found) else {
        let equal = expected == found;
        return if equal { Ok(()) } else { Err(Problem::new("wrong answer", shown(expected), shown(found))) };
    };
    let difference = if *ordered {
        row_difference(rows, found_rows)
    } else {
        let sorted = |rows: &[Vec<Value>]| {
            let mut rows = rows.to_vec();
            rows.sort();
            rows
        };
        row_difference(&sorted(rows), &sorted(found_rows))
    };
    match difference {
        Some((expected, found)) => Err(Problem::new("wrong answer", expected, found)),
        None => Ok(()),
    }
}

fn shown(answer: &Answer) -> String {
    match answer {
        Answer::Done => "success".into(),
        Answer::Count(count) => format!("{count} rows changed"),
        Answer::Rows { rows, .. } => format!("{} rows, first: {:?}", rows.len(), rows.first()),
        Answer::Next => "a value of the sequence".into(),
    }
}
