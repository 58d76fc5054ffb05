//! Connections of the ADBC driver.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::{InfoCode, IsolationLevel, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::schemas::{GET_STATISTIC_NAMES_SCHEMA, GET_TABLE_TYPES_SCHEMA};
use adbc_core::{CancelHandle, Connection, Optionable};
use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::Schema;
use keyaki::TransactionStatus;
use parking_lot::Mutex;

use super::objects::{self, Filter};
use super::statement::AdbcStatement;
use super::{Reader, failed, reader, state, unknown};
use crate::statements;

/// Types of tables in the information schema.
pub const TABLE_TYPES: [&str; 3] = ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"];

/// A connection.
#[derive(Debug)]
pub struct AdbcConnection {
    session: Arc<Session>,
}

/// The state that a connection shares with its statements. One statement runs at a time.
#[derive(Debug)]
pub struct Session {
    connection: Mutex<keyaki::Connection>,
    /// Statements that change rows are transactions of their own.
    autocommit: AtomicBool,
    read_only: bool,
    interrupt: keyaki::InterruptHandle,
}

impl Session {
    /// Runs `work` on the connection, in a transaction if `sql` needs one.
    ///
    /// # Errors
    /// Errors of `work` and of BEGIN.
    pub fn run<T>(&self, sql: &str, work: impl FnOnce(&keyaki::Connection) -> keyaki::Result<T>) -> Result<T> {
        let connection = self.connection.lock();
        let begins = !self.autocommit.load(Ordering::Relaxed)
            && statements::begins_transaction(sql)
            && connection.session().transaction_status() == TransactionStatus::Idle;
        if begins {
            connection.execute("BEGIN", ()).map_err(failed)?;
        }
        let done = work(&connection);
        if begins && done.is_err() {
            connection.execute("ROLLBACK", ()).map_err(failed)?;
        }
        done.map_err(failed)
    }

    /// Executes a statement of the driver itself.
    fn set(&self, sql: &str) -> Result<()> {
        self.connection.lock().execute(sql, ()).map(drop).map_err(failed)
    }

    fn one(&self, sql: &str) -> Result<String> {
        self.connection.lock().query_row(sql, (), |row| row.get(0)).map_err(failed)
    }

    fn end(&self, sql: &str) -> Result<()> {
        if self.autocommit.load(Ordering::Relaxed) {
            return Err(state(&format!("{sql} needs a transaction: switch autocommit off")));
        }
        let connection = self.connection.lock();
        match connection.session().transaction_status() {
            TransactionStatus::Idle => Ok(()),
            TransactionStatus::Failed if sql == "COMMIT" => {
                connection.execute("ROLLBACK", ()).map_err(failed)?;
                Err(failed(keyaki::Error::FailedTransaction))
            }
            _ => connection.execute(sql, ()).map(drop).map_err(failed),
        }
    }

    /// A handle that cancels the running statement.
    pub fn cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(Cancel(self.interrupt.clone()))
    }
}

struct Cancel(keyaki::InterruptHandle);

impl CancelHandle for Cancel {
    fn try_cancel(&self) -> Result<()> {
        self.0.interrupt();
        Ok(())
    }
}

impl AdbcConnection {
    /// A connection that commits each statement.
    pub fn new(connection: keyaki::Connection, read_only: bool) -> AdbcConnection {
        let interrupt = connection.interrupt_handle();
        let (connection, autocommit) = (Mutex::new(connection), AtomicBool::new(true));
        AdbcConnection { session: Arc::new(Session { connection, autocommit, read_only, interrupt }) }
    }

    /// Switches autocommit. The open transaction is committed.
    fn set_autocommit(&self, autocommit: bool) -> Result<()> {
        if autocommit && !self.session.autocommit.load(Ordering::Relaxed) {
            self.session.end("COMMIT")?;
        }
        self.session.autocommit.store(autocommit, Ordering::Relaxed);
        Ok(())
    }
}

/// A name in SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Optionable for AdbcConnection {
    type Option = OptionConnection;

    fn set_option(&mut self, key: OptionConnection, value: OptionValue) -> Result<()> {
        match &key {
            OptionConnection::AutoCommit => self.set_autocommit(bool::try_from(&value)?),
            OptionConnection::ReadOnly => match bool::try_from(&value)? {
                read_only if read_only == self.session.read_only => Ok(()),
                _ => Err(Error::with_message_and_status(
                    "a connection reads only if its database was opened so (adbc.keyaki.read_only)",
                    Status::NotImplemented,
                )),
            },
            OptionConnection::CurrentSchema => {
                let schema = super::text(key.as_ref(), &value)?;
                self.session.set(&format!("SET search_path = {}", quoted(&schema)))
            }
            OptionConnection::CurrentCatalog => {
                let catalog = super::text(key.as_ref(), &value)?;
                match self.session.one("SELECT current_database()")? == catalog {
                    true => Ok(()),
                    false => Err(Error::with_message_and_status(
                        format!("catalog \"{catalog}\" does not exist: a database is one catalog"),
                        Status::NotFound,
                    )),
                }
            }
            OptionConnection::IsolationLevel => {
                let level = super::text(key.as_ref(), &value)?;
                let known = [
                    (IsolationLevel::Default, "repeatable read"),
                    (IsolationLevel::Snapshot, "repeatable read"),
                    (IsolationLevel::RepeatableRead, "repeatable read"),
                    (IsolationLevel::ReadCommitted, "read committed"),
                    (IsolationLevel::ReadUncommitted, "read committed"),
                    (IsolationLevel::Serializable, "serializable"),
                ];
                let found = known.into_iter().find_map(|(known, name)| (String::from(known) == level).then_some(name));
                let level = found.ok_or_else(|| super::invalid(key.as_ref(), &level))?;
                self.session.set(&format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}"))
            }
            _ => Err(unknown(key.as_ref())),
        }
    }

    fn get_option_string(&self, key: OptionConnection) -> Result<String> {
        match &key {
            OptionConnection::AutoCommit => Ok(self.session.autocommit.load(Ordering::Relaxed).to_string()),
            OptionConnection::ReadOnly => Ok(self.session.read_only.to_string()),
            OptionConnection::CurrentSchema => self.session.one("SELECT current_schema()"),
            OptionConnection::CurrentCatalog => self.session.one("SELECT current_database()"),
            _ => Err(unknown(key.as_ref())),
        }
    }

    fn get_option_bytes(&self, key: OptionConnection) -> Result<Vec<u8>> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_int(&self, key: OptionConnection) -> Result<i64> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_double(&self, key: OptionConnection) -> Result<f64> {
        Err(unknown(key.as_ref()))
    }
}

impl Connection for AdbcConnection {
    type StatementType = AdbcStatement;

    fn new_statement(&mut self) -> Result<AdbcStatement> {
        Ok(AdbcStatement::new(self.session.clone()))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        self.session.cancel_handle()
    }

    fn get_info(&self, codes: Option<HashSet<InfoCode>>) -> Result<Reader> {
        objects::info(codes.as_ref())
    }

    fn get_objects(
        &self,
        depth: ObjectDepth,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: Option<&str>,
        table_type: Option<Vec<&str>>,
        column_name: Option<&str>,
    ) -> Result<Reader> {
        let filter = Filter { catalog, schema: db_schema, table: table_name, types: table_type, column: column_name };
        objects::all(&self.session.connection.lock(), depth, &filter)
    }

    fn get_table_schema(&self, catalog: Option<&str>, db_schema: Option<&str>, table_name: &str) -> Result<Schema> {
        let parts =
            catalog.filter(|name| !name.is_empty()).into_iter().chain(db_schema.filter(|name| !name.is_empty()));
        let name: Vec<String> = parts.chain([table_name]).map(quoted).collect();
        let connection = self.session.connection.lock();
        let statement = connection.prepare(&format!("SELECT * FROM {}", name.join("."))).map_err(failed)?;
        Ok(statement.schema().map_or_else(Schema::empty, |schema| Schema::clone(schema)))
    }

    fn get_table_types(&self) -> Result<Reader> {
        let schema = GET_TABLE_TYPES_SCHEMA.clone();
        let types = StringArray::from_iter_values(TABLE_TYPES);
        let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(types)])?;
        Ok(reader(schema, vec![batch]))
    }

    fn get_statistic_names(&self) -> Result<Reader> {
        Ok(reader(GET_STATISTIC_NAMES_SCHEMA.clone(), Vec::new()))
    }

    fn get_statistics(
        &self,
        _catalog: Option<&str>,
        _db_schema: Option<&str>,
        _table_name: Option<&str>,
        _approximate: bool,
    ) -> Result<Reader> {
        Err(Error::with_message_and_status("statistics of tables (use ANALYZE and EXPLAIN)", Status::NotImplemented))
    }

    fn commit(&mut self) -> Result<()> {
        self.session.end("COMMIT")
    }

    fn rollback(&mut self) -> Result<()> {
        self.session.end("ROLLBACK")
    }

    fn read_partition(&self, _partition: impl AsRef<[u8]>) -> Result<Reader> {
        Err(Error::with_message_and_status("results have no partitions", Status::NotImplemented))
    }
}
