//! Statistics of the running statement, for code without the session.

use std::sync::{Arc, Weak};

use keyaki_exec::Stats;
use parking_lot::Mutex;

use super::Session;

/// Reads the statistics of the last statement of a session, also while it runs: from another thread, or in the hook of
/// [`Connection::on_wait`](crate::Connection::on_wait). It does not keep the session open.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)", ())?;
/// let stats = connection.session().stats_handle();
/// connection.execute("SELECT sum(id % 7) FROM t WHERE id % 2 = 0", ())?;
/// for (operator, stats) in stats.last_stats() {
///     println!("{operator}: {} pages read", stats.counters().pages_read);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct StatsHandle {
    operators: Weak<Mutex<Vec<(String, Stats)>>>,
}

impl StatsHandle {
    /// As [`Session::last_stats`]; empty after the end of the session.
    pub fn last_stats(&self) -> Vec<(String, Stats)> {
        self.operators.upgrade().map(|operators| operators.lock().clone()).unwrap_or_default()
    }
}

impl Session {
    /// A handle that reads the statistics of the running statement from other threads.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle { operators: Arc::downgrade(&self.sql.last_stats) }
    }
}
