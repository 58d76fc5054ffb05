//! The statements that run, and the last ones that have ended: the rows of the view `keyaki_queries`.
//!
//! Statements of the short path take microseconds and are not recorded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keyaki_exec::Stats;
use parking_lot::Mutex;

use super::sessions::Activity;
use crate::SqlState;
use crate::base::interrupt::{Interrupts, Started};

/// Number of ended statements that are kept.
const ENDED_MAX: usize = 1_000;
/// Bytes of a text that are kept, at most.
const TEXT_BYTES_MAX: usize = 4_096;

/// The statistics of the scans and pipelines that the current statement of a session has started, with a name for each.
pub(crate) type Operators = Arc<Mutex<Vec<(String, Stats)>>>;

/// The statements of a database.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    running: BTreeMap<u64, Running>,
    ended: VecDeque<Arc<Query>>,
}

#[derive(Debug)]
struct Running {
    query: Query,
    started: Instant,
    operators: Operators,
}

/// How a statement ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    Running,
    /// It ended, or its caller needed no further rows.
    Done,
    /// It was interrupted, or dropped before its first rows.
    Stopped,
    Failed(SqlState),
}

/// One statement.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub id: u64,
    /// The number of the session.
    pub session: i32,
    /// The session user; `None` for a session without a role.
    pub user: Option<Arc<str>>,
    pub text: String,
    pub status: Status,
    pub started_at: SystemTime,
    /// Time until the end, or until now.
    pub elapsed: Duration,
    /// Rows returned or changed; `None` for other statements, and until the end.
    pub rows: Option<u64>,
    pub reads: Reads,
}

/// What the scans and pipelines of a statement have read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reads {
    pub pages_cached: u64,
    /// Pages that were being read for another request.
    pub pages_shared: u64,
    pub pages_read: u64,
    pub reads: u64,
    pub bytes: u64,
    /// The highest number of reads in flight of one scan or pipeline.
    pub in_flight_max: u64,
}

impl Reads {
    fn of(operators: &Operators) -> Reads {
        let mut sum = Reads::default();
        for (_, stats) in operators.lock().iter() {
            let stats = stats.counters();
            sum.pages_cached += stats.pages_cached;
            sum.pages_shared += stats.pages_shared;
            sum.pages_read += stats.pages_read;
            sum.reads += stats.reads;
            sum.bytes += stats.bytes_read;
            sum.in_flight_max = sum.in_flight_max.max(stats.in_flight_max);
        }
        sum
    }
}

impl Queries {
    /// Records the start of a statement. `session`: its activity and user. `operators` is the list of its session, and
    /// `interrupts` those of its session since the start.
    pub fn start(
        self: &Arc<Self>,
        (session, user): (&Arc<Activity>, Option<Arc<str>>),
        text: &str,
        operators: &Operators,
        interrupts: (Arc<Interrupts>, Started),
    ) -> RunningQuery {
        self.clear(operators);
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut state = self.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        let query = Query {
            id,
            session: session.process,
            user,
            text: text[..end].to_string(),
            status: Status::Running,
            started_at: SystemTime::now(),
            elapsed: Duration::ZERO,
            rows: None,
            reads: Reads::default(),
        };
        state.running.insert(id, Running { query, started: Instant::now(), operators: operators.clone() });
        session.read();
        let (queries, session) = (self.clone(), session.clone());
        RunningQuery { queries, id, session, rows: None, status: Status::Stopped, interrupts }
    }

    /// Empties the list of a session for its next statement. A statement of the session that still runs keeps its operators.
    pub fn clear(&self, operators: &Operators) {
        if operators.lock().is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let own = Arc::new(Mutex::new(std::mem::take(&mut *operators.lock())));
        let mut running = state.running.values_mut();
        if let Some(running) = running.find(|running| Arc::ptr_eq(&running.operators, operators)) {
            running.operators = own;
        }
    }

    /// The ended statements, the oldest first, and the running ones.
    pub fn list(&self) -> Vec<Arc<Query>> {
        let state = self.state.lock();
        let running = state.running.values().map(|running| Arc::new(running.now()));
        state.ended.iter().cloned().chain(running).collect()
    }
}

impl Running {
    fn now(&self) -> Query {
        Query { elapsed: self.started.elapsed(), reads: Reads::of(&self.operators), ..self.query.clone() }
    }
}

/// A statement that runs. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningQuery {
    queries: Arc<Queries>,
    id: u64,
    /// Its result keeps the session active.
    session: Arc<Activity>,
    rows: Option<u64>,
    status: Status,
    interrupts: (Arc<Interrupts>, Started),
}

impl RunningQuery {
    /// Adds rows that were returned or changed.
    pub fn add_rows(&mut self, rows: u64) {
        self.rows = Some(self.rows.unwrap_or(0) + rows);
    }

    /// Records the end, unless there was an error.
    pub fn end(&mut self) {
        if self.status == Status::Stopped {
            self.status = Status::Done;
        }
    }

    /// Records an error. The first one counts. An interrupt is none.
    pub fn fail(&mut self, state: SqlState) {
        if self.status == Status::Stopped && state != SqlState::QUERY_CANCELED {
            self.status = Status::Failed(state);
        }
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.session.end(None);
        let (interrupts, started) = &self.interrupts;
        if self.status == Status::Stopped && self.rows.is_some() && !interrupts.since(*started) {
            self.status = Status::Done;
        }
        let operators = self.queries.state.lock().running.get(&self.id).map(|running| running.operators.clone());
        // Outside of the lock, under which all statements start and end.
        let reads = operators.map_or_else(Reads::default, |operators| Reads::of(&operators));
        let mut state = self.queries.state.lock();
        let Some(Running { query, started, .. }) = state.running.remove(&self.id) else { return };
        let (elapsed, rows, status) = (started.elapsed(), self.rows, self.status.clone());
        let ended = Arc::new(Query { elapsed, rows, status, reads, ..query });
        if state.ended.len() >= ENDED_MAX {
            state.ended.pop_front();
        }
        state.ended.push_back(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sessions::Sessions;

    fn start(queries: &Arc<Queries>, text: &str, operators: &Operators) -> RunningQuery {
        let interrupts = Arc::new(Interrupts::default());
        let started = interrupts.start();
        let session = Sessions::default().new_activity(interrupts.clone());
        queries.start((&session, None), text, operators, (interrupts, started))
    }

    #[test]
    fn statements_are_running_until_dropped() {
        let queries = Arc::new(Queries::default());
        let mut first = start(&queries, "SELECT 1", &Operators::default());
        let mut second = start(&queries, &"é".repeat(TEXT_BYTES_MAX), &Operators::default());
        assert!(queries.list().iter().all(|query| query.status == Status::Running));
        first.add_rows(2);
        first.add_rows(3);
        first.end();
        drop(first);
        second.fail(SqlState::DIVISION_BY_ZERO);
        second.end();
        drop(second);
        let mut third = start(&queries, "SELECT 2", &Operators::default());
        third.fail(SqlState::QUERY_CANCELED);
        drop(third);
        let mut fourth = start(&queries, "SELECT 3", &Operators::default());
        fourth.add_rows(1);
        drop(fourth);
        let ended = queries.list();
        assert_eq!((ended[0].rows, &ended[0].status), (Some(5), &Status::Done));
        assert_eq!((ended[1].rows, &ended[1].status), (None, &Status::Failed(SqlState::DIVISION_BY_ZERO)));
        assert_eq!(ended[2].status, Status::Stopped);
        assert_eq!(ended[3].status, Status::Done);
        assert_eq!(ended[1].text.len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn operators_stay_with_their_statement() {
        let (queries, operators) = (Arc::new(Queries::default()), Operators::default());
        let first = start(&queries, "SELECT 1", &operators);
        operators.lock().push(("scan t".into(), Stats::default()));
        let second = start(&queries, "SELECT 2", &operators);
        assert!(operators.lock().is_empty());
        let count = |id: u64| queries.state.lock().running[&id].operators.lock().len();
        assert_eq!((count(first.id), count(second.id)), (1, 0));
        operators.lock().push(("scan u".into(), Stats::default()));
        queries.clear(&operators);
        assert_eq!((count(first.id), count(second.id)), (1, 1));
    }

    #[test]
    fn the_last_statements_are_kept() {
        let queries = Arc::new(Queries::default());
        for _ in 0..ENDED_MAX + 10 {
            start(&queries, "SELECT 1", &Operators::default());
        }
        let ids: Vec<u64> = queries.list().iter().map(|query| query.id).collect();
        assert_eq!(ids, (11..=ENDED_MAX as u64 + 10).collect::<Vec<_>>());
    }
}
