//! What a session does, for other sessions: its row of `pg_stat_activity`, and requests to cancel or end it.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Session;
use crate::Result;
use crate::engine::sessions::SessionControl;
use crate::engine::transaction::TransactionStatus;
use crate::sql::{advisory, cursors, local};

impl Session {
    /// The number of the session: its `pid` in `pg_stat_activity`, and the result of `pg_backend_pid()`.
    pub fn process(&self) -> i32 {
        self.sql.activity.process
    }

    /// The value of the setting `application_name`.
    pub fn application_name(&self) -> Arc<str> {
        self.sql.activity.owner().application
    }

    /// Connects the session with a client of a server, for `pg_stat_activity` (`address`), `pg_cancel_backend` and
    /// `pg_terminate_backend` (`control`).
    pub fn attach(&self, address: Option<SocketAddr>, control: Arc<dyn SessionControl>) {
        self.sql.activity.attach(address, control);
    }

    /// Notes the start of a statement, which ends when the result is dropped.
    ///
    /// # Errors
    /// `Terminated` after `pg_terminate_backend`.
    pub(super) fn begin(&self, text: Arc<str>) -> Result<Active<'_>> {
        // The transaction may have ended without a statement.
        local::end(&self.sql);
        cursors::end(&self.sql);
        if !self.sql.transaction.is_open() {
            self.sql.channels.discard();
        }
        advisory::end(&self.sql);
        // A session that was terminated keeps no rows locked.
        self.sql.activity.begin(text).inspect_err(|error| self.sql.transaction.failed(error))?;
        Ok(Active(self))
    }
}

/// A running statement.
pub(super) struct Active<'s>(&'s Session);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let sql = &self.0.sql;
        local::end(sql);
        cursors::end(sql);
        advisory::end(sql);
        let is_open = sql.transaction.is_open();
        sql.activity.end(Some(if is_open { sql.transaction.status() } else { TransactionStatus::Idle }));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.database.engine.sessions.remove(&self.sql.activity);
    }
}
