//! Connections of the ADBC driver.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::{InfoCode, IsolationLevel, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::schemas::{GET_STATISTIC_NAMES_SCHEMA, GET_TABLE_TYPES_SCHEMA};
use adbc_core::{CancelHandle, Connection, Optionable};
use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::Schema;

use super::objects::{self, Filter};
use super::session::Session;
use super::statement::AdbcStatement;
use super::{Reader, reader, unknown};
use crate::registry::{Open, Opened};

/// Types of tables in the information schema.
pub const TABLE_TYPES: [&str; 3] = ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"];

/// A connection.
#[derive(Debug)]
pub struct AdbcConnection {
    session: Arc<Session>,
}

impl AdbcConnection {
    /// A connection that commits each statement.
    pub fn new(connection: keyaki::Connection, opened: Opened) -> AdbcConnection {
        let session = Arc::new(Session::new(connection, opened));
        AdbcConnection { session }
    }

    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn check_catalog(&self, catalog: &str) -> Result<()> {
        match self.session.one("SELECT current_database()")? == catalog {
            true => Ok(()),
            false => Err(Error::with_message_and_status(
                format!("catalog \"{catalog}\" does not exist: a database is one catalog"),
                Status::NotFound,
            )),
        }
    }

    /// Switches autocommit. The open transaction is committed.
    fn set_autocommit(&self, autocommit: bool) -> Result<()> {
        if autocommit && !self.session.autocommit() {
            self.session.end("COMMIT")?;
        }
        self.session.set_autocommit(autocommit);
        Ok(())
    }
}

impl Drop for AdbcConnection {
    fn drop(&mut self) {
        if self.session.is_of_this_process() {
            self.session.close();
        }
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
                read_only if read_only == self.session.opened().read_only => Ok(()),
                _ => Err(Error::with_message_and_status(
                    "a connection reads only if its database was opened so (adbc.keyaki.read_only)",
                    Status::NotImplemented,
                )),
            },
            OptionConnection::CurrentSchema => {
                let schema = super::text(key.as_ref(), &value)?;
                self.session.set(&format!("SET search_path = {}", quoted(&schema)))
            }
            OptionConnection::CurrentCatalog => self.check_catalog(&super::text(key.as_ref(), &value)?),
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
            OptionConnection::AutoCommit => Ok(self.session.autocommit().to_string()),
            OptionConnection::ReadOnly => Ok(self.session.opened().read_only.to_string()),
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
        let found = self.session.with(|connection| objects::all(connection, depth, &filter))?;
        objects::described(depth, found)
    }

    fn get_table_schema(&self, catalog: Option<&str>, db_schema: Option<&str>, table_name: &str) -> Result<Schema> {
        if let Some(catalog) = catalog.filter(|name| !name.is_empty()) {
            self.check_catalog(catalog)?;
        }
        let parts = db_schema.filter(|name| !name.is_empty()).into_iter().chain([table_name]);
        let name = parts.map(quoted).collect::<Vec<_>>().join(".");
        let statement = self.session.with(|connection| connection.prepare(&format!("SELECT * FROM {name}")))?;
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
        Err(Error::with_message_and_status(
            "statistics of tables are not supported (use EXPLAIN)",
            Status::NotImplemented,
        ))
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
