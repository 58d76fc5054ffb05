//! Notices, notifications and cursors of a session, for its owner: a server passes them on to its client.

use arrow::datatypes::SchemaRef;

use super::{Connection, Session};
use crate::Result;
use crate::base::notices::{Notice, Severity};
use crate::engine::notifications::Notification;
use crate::sql::cursors::BINARY;
use crate::sql::notices;

impl Session {
    /// Removes and returns the notices of the statements since the last call, the oldest one first. The setting
    /// `client_min_messages` selects them. A session keeps at most 1,000.
    ///
    /// ```
    /// # async fn example() -> keyaki::Result<()> {
    /// # let database = keyaki::Database::open_temporary(keyaki::Options::default())?;
    /// let session = database.session();
    /// session.execute("DROP TABLE IF EXISTS orders").await?;
    /// let notices = session.take_notices();
    /// assert_eq!(notices[0].message, "table \"orders\" does not exist, skipping");
    /// # Ok(()) }
    /// ```
    pub fn take_notices(&self) -> Vec<Notice> {
        self.sql.notices.take()
    }

    /// Adds a notice, if `client_min_messages` permits it: for statements that a server does not execute.
    pub fn add_notice(&self, severity: Severity, sqlstate: &'static str, message: &str) {
        notices::add(&self.sql, severity, sqlstate, message);
    }

    /// Removes and returns the messages of NOTIFY that have arrived for this session on the channels of LISTEN, the oldest one
    /// first. [`SessionControl::notify`](crate::SessionControl::notify) tells the owner of a session about them.
    ///
    /// # Errors
    /// `LimitExceeded` after messages were lost: a session keeps at most 65,536 messages, and 16 MiB of them.
    pub fn take_notifications(&self) -> Result<Vec<Notification>> {
        self.sql.channels.inbox.take()
    }

    /// The columns of an open cursor; `None` if there is none with the name.
    pub fn cursor_columns(&self, name: &str) -> Option<SchemaRef> {
        self.sql.cursors.columns(name)
    }

    /// Closes a cursor, if there is one with the name.
    pub fn close_cursor(&self, name: &str) {
        self.sql.cursors.close(name);
    }

    /// True for the columns of a cursor that was declared as BINARY.
    pub fn is_of_binary_cursor(columns: &SchemaRef) -> bool {
        columns.metadata().contains_key(BINARY)
    }
}

impl Connection {
    /// As [`Session::take_notices`].
    pub fn take_notices(&self) -> Vec<Notice> {
        self.session().take_notices()
    }

    /// As [`Session::take_notifications`].
    ///
    /// # Errors
    /// As [`Session::take_notifications`].
    pub fn take_notifications(&self) -> Result<Vec<Notification>> {
        self.session().take_notifications()
    }
}
