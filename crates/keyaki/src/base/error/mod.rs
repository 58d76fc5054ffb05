//! Errors of the database: one variant for each case that callers may handle differently.
//!
//! Every error has a SQLSTATE ([`Error::sqlstate`]) and a one-line message in PostgreSQL's wording. Errors of the
//! layers below are converted in one place each: `below` converts errors of store, executor and device, `datafusion`
//! those of DataFusion, Arrow and Parquet, `parser` those of the SQL parser. Messages contain no type names or prefixes
//! of these libraries.
//!
//! An error may pass through DataFusion inside [`DataFusionError::External`](::datafusion::error::DataFusionError::External). The conversion back restores it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod below;
mod datafusion;
mod located;
mod object;
mod parser;
mod patterns;
mod similar;
mod sqlstate;
#[cfg(test)]
mod tests;
mod text;

pub use located::Position;
pub use object::ObjectKind;
pub use sqlstate::SqlState;

pub(crate) use parser::{syntax, tokenizer};
pub(crate) use similar::{did_you_mean, similar};
pub(crate) use text::shown;
use text::{
    bytes, check_violation, hinted, io_text, left, not_found, of_column, of_relation, out_of_range, place, undefined,
    violation,
};

/// The result of a call into the database.
pub type Result<T> = std::result::Result<T, Error>;

/// The type of an arithmetic overflow, for which libraries provide only text.
const ANY_NUMBER: &str = "numeric value";

/// An error of a call into the database. It is `Clone` because one failure may end several parts of a query.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The text of a statement.
    /// The statement cannot be parsed.
    #[error("{message}{}", .position.map(|at| format!(" ({at})")).unwrap_or_default())]
    Syntax {
        /// For example `syntax error at or near "x"`, with the expected token.
        message: String,
        /// Position in the text passed to the session.
        position: Option<Position>,
    },
    /// A statement or a chain of views is nested too deeply.
    #[error("{0}")]
    TooComplex(String),
    /// Valid SQL that Keyaki does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The statement is invalid for a reason that has no variant of its own.
    #[error("{0}")]
    InvalidStatement(String),

    // Names.
    /// No object of this kind has the name.
    #[error("{}", not_found(*.kind, .name))]
    NotFound {
        /// Kind of the object.
        kind: ObjectKind,
        /// Name as given.
        name: String,
    },
    /// The given relation, or every relation of the query, lacks a column with this name.
    #[error("column \"{column}\"{} does not exist", of_relation(.relation))]
    UndefinedColumn {
        /// Name as given, with its qualifier.
        column: String,
        /// The relation that should have the column, if the statement determines it.
        relation: Option<String>,
        /// Similar names of columns that the expression could use, the most similar one first.
        similar: Vec<String>,
    },
    /// A statement uses a parameter that has no value.
    #[error("there is no parameter {name}")]
    UndefinedParameter {
        /// `$1`, `$2` …
        name: String,
    },
    /// The number of values differs from the number of parameters of a statement.
    #[error("the statement has {expected} parameter{}, but {given} value{} given", if *.expected == 1 { "" } else { "s" }, if *.given == 1 { " was" } else { "s were" })]
    ParameterCount {
        /// Number of parameters.
        expected: usize,
        /// Number of values.
        given: usize,
    },
    /// A column is qualified with a table that the query does not read.
    #[error("missing FROM-clause entry for table \"{0}\"")]
    MissingFromEntry(String),
    /// No function or operator with this name takes arguments of these types.
    #[error("{}", undefined(.signature))]
    UndefinedFunction {
        /// `function f(integer)` or `operator text + integer`.
        signature: String,
    },
    /// An object with the name exists already. Tables, views and indexes share one namespace.
    #[error("{kind} \"{name}\" already exists")]
    AlreadyExists {
        /// Kind of the object to be created.
        kind: ObjectKind,
        /// Name as given.
        name: String,
    },
    /// A list of columns contains a column twice.
    #[error("column \"{0}\" specified more than once")]
    DuplicateColumn(String),
    /// Two relations of a query have the same name.
    #[error("table name \"{0}\" specified more than once")]
    DuplicateAlias(String),
    /// Several relations of a query can be meant by the qualifier of a column.
    #[error("table reference \"{0}\" is ambiguous")]
    AmbiguousTable(String),
    /// Several relations of a query have a column with this name.
    #[error("column reference \"{0}\" is ambiguous")]
    AmbiguousColumn(String),
    /// A statement for one kind of object names an object of another kind.
    #[error("\"{name}\" is a {found}, not a {expected}{}", .hint.map(|hint| format!(" ({hint})")).unwrap_or_default())]
    WrongObjectType {
        /// Name as given.
        name: String,
        /// Kind of the object with the name.
        found: ObjectKind,
        /// Kind that the statement requires.
        expected: ObjectKind,
        /// Alternative statement.
        hint: Option<&'static str>,
    },
    /// A new name is empty or too long.
    #[error("invalid name \"{name}\": names have 1 to {bytes_max} bytes")]
    InvalidName {
        /// Name as given.
        name: String,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// A new name is reserved for the database itself.
    #[error("name \"{name}\" is reserved: {reason}")]
    ReservedName {
        /// Name as given.
        name: String,
        /// Description of the reserved names.
        reason: String,
    },
    /// A view uses the object to be dropped or changed.
    #[error("cannot {action} because view \"{dependent}\" depends on it (drop the view first)")]
    DependentObject {
        /// The change, for example `drop "t"`.
        action: String,
        /// View that uses the object.
        dependent: String,
    },
    /// A foreign key refers to the object to be dropped or changed.
    #[error(
        "cannot {action} because constraint \"{constraint}\" of table \"{table}\" depends on it (drop the constraint first)"
    )]
    DependentConstraint {
        /// The change, for example `drop table "t"`.
        action: String,
        /// The foreign key.
        constraint: String,
        /// The table that has the foreign key.
        table: String,
    },
    /// The default or the expression of a column uses the object to be dropped or changed.
    #[error("cannot {action} because {dependent} uses it")]
    DependentColumn {
        /// The change, for example `drop sequence "s"`.
        action: String,
        /// The column that uses the object.
        dependent: String,
    },
    /// The role of the session lacks a privilege.
    #[error("{0}")]
    InsufficientPrivilege(String),
    /// A role cannot have the privilege or the membership.
    #[error("{0}")]
    InvalidGrant(String),
    /// Objects or privileges depend on a role or a privilege.
    #[error("{0}")]
    DependentPrivileges(String),
    /// The session uses the role that the statement drops or renames.
    #[error("{0}")]
    RoleInUse(String),
    /// A sequence has returned its last value.
    #[error("nextval: reached {end} value of sequence \"{name}\" ({limit})")]
    SequenceLimit {
        /// Name of the sequence.
        name: String,
        /// `maximum` or `minimum`.
        end: &'static str,
        /// The last value that the sequence may return.
        limit: i64,
    },
    /// A statement gives a value for a column that is GENERATED ALWAYS.
    #[error("{} column \"{column}\": it is GENERATED ALWAYS (omit it, or use DEFAULT)", if *.updates { "cannot update" } else { "cannot insert a non-DEFAULT value into" })]
    GeneratedAlways {
        /// Name of the column.
        column: String,
        /// The statement updates rows; else, it inserts them.
        updates: bool,
    },
    /// The columns that a foreign key refers to are not a key.
    #[error("{0}")]
    InvalidForeignKey(String),
    /// A table has a column with this name already.
    #[error("column \"{column}\" of relation \"{relation}\" already exists")]
    ColumnExists {
        /// Name of the new column.
        column: String,
        /// The table.
        relation: String,
    },
    /// A table has no constraint with this name.
    #[error("constraint \"{constraint}\" of relation \"{relation}\" does not exist")]
    UndefinedConstraint {
        /// Name as given.
        constraint: String,
        /// The table.
        relation: String,
    },
    /// The definition of a table, view or index contradicts itself.
    #[error("{problem}")]
    InvalidDefinition {
        /// Kind of the object to be created.
        kind: ObjectKind,
        /// The contradiction, with the name of the object.
        problem: String,
    },
    /// A table has too many columns.
    #[error("tables can have at most {limit} columns")]
    TooManyColumns {
        /// Maximum number of columns.
        limit: usize,
    },

    // Types and values.
    /// A column is neither in GROUP BY nor inside an aggregate function.
    #[error("{0}")]
    Grouping(String),
    /// An expression has a type that is invalid at its position.
    #[error("{0}")]
    DatatypeMismatch(String),
    /// There is no cast between the types.
    #[error("cannot cast type {from} to {to}")]
    CannotCast {
        /// Type of the expression.
        from: String,
        /// Type to cast to.
        to: String,
    },
    /// A text is not a valid value of a type.
    #[error("invalid input syntax for type {ty}: \"{value}\"{}", of_column(.column))]
    InvalidText {
        /// PostgreSQL's name of the type.
        ty: String,
        /// The text, shortened.
        value: String,
        /// Target column of the value, if it is known.
        column: Option<String>,
    },
    /// A value is too large or too small for a type.
    #[error("{}{}", out_of_range(.ty, .value), of_column(.column))]
    OutOfRange {
        /// PostgreSQL's name of the type.
        ty: String,
        /// The value, shortened; `None` if it is the result of an operation.
        value: Option<String>,
        /// Target column of the value, if it is known.
        column: Option<String>,
    },
    /// An expression refers to a column that cannot be used there.
    #[error("{0}")]
    InvalidColumnReference(String),
    /// A string has more characters than its column allows.
    #[error("value too long for type {ty}: \"{value}\" has {chars} characters{}", of_column(.column))]
    StringTooLong {
        /// PostgreSQL's name of the type, with the length.
        ty: String,
        /// The text, shortened.
        value: String,
        /// Characters of the whole text.
        chars: usize,
        /// Target column of the value, if it is known.
        column: Option<String>,
    },
    /// Bytes that should be text are not valid UTF-8.
    #[error("invalid byte sequence for encoding \"UTF8\"{}", of_column(.column))]
    InvalidEncoding {
        /// Target column of the value, if it is known.
        column: Option<String>,
    },
    /// A number was divided by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A logarithm of a number that has none.
    #[error("{0}")]
    InvalidLogarithm(&'static str),
    /// A power, or a root, of a number that has none.
    #[error("{0}")]
    InvalidPower(&'static str),
    /// A pattern ends with its escape character.
    #[error("{0} pattern must not end with escape character")]
    InvalidEscape(&'static str),
    /// A query that must return a row returned none.
    #[error("the query returned no rows")]
    NoRows,
    /// A row of a result has NULL where the program expects a value.
    #[error("null cannot be converted to {ty} (use Option<{ty}>)")]
    UnexpectedNull {
        /// The Rust type.
        ty: &'static str,
    },
    /// A scalar subquery returned more than one row.
    #[error("more than one row returned by a subquery used as an expression")]
    Cardinality,
    /// A statement would change a row twice.
    #[error("{statement} command cannot affect row a second time")]
    AffectedTwice {
        /// The name of the statement.
        statement: &'static str,
    },
    /// A function or operator failed for a reason that has no variant of its own.
    #[error("{0}")]
    Evaluation(String),
    /// A setting or option has an invalid value.
    #[error("invalid value for parameter \"{name}\": \"{value}\" (expected {expected})")]
    InvalidParameter {
        /// Name of the setting or option.
        name: String,
        /// Value as given.
        value: String,
        /// Description of the valid values.
        expected: String,
    },
    /// A change violates a constraint of a table.
    #[error("{}", violation(.kind, .table, .name, .key))]
    Constraint {
        /// Kind of the constraint.
        kind: ConstraintKind,
        /// Table that has the constraint.
        table: String,
        /// Name of the constraint; name of the column for [`ConstraintKind::NotNull`].
        name: String,
        /// Key that exists already, for example `(id)=(5)`.
        key: Option<String>,
    },
    /// A row violates a CHECK constraint.
    #[error("{}", check_violation(.table, .name, *.is_new_row))]
    CheckViolation {
        /// Table that has the constraint.
        table: String,
        /// Name of the constraint.
        name: String,
        /// False for an existing row, when the constraint is added.
        is_new_row: bool,
    },
    /// A row refers to a row that does not exist.
    #[error(
        "insert or update on table \"{table}\" violates foreign key constraint \"{name}\": Key {key} is not present in \
         table \"{references}\""
    )]
    MissingReference {
        /// Table that has the constraint.
        table: String,
        /// Name of the constraint.
        name: String,
        /// The referenced table.
        references: String,
        /// The key that does not exist, for example `(customer)=(5)`.
        key: String,
    },
    /// A row that other rows refer to is deleted or gets another key.
    #[error(
        "update or delete on table \"{references}\" violates foreign key constraint \"{name}\" on table \"{table}\": Key \
         {key} is still referenced from table \"{table}\""
    )]
    StillReferenced {
        /// Table that has the constraint.
        table: String,
        /// Name of the constraint.
        name: String,
        /// The referenced table.
        references: String,
        /// The key that rows refer to, for example `(id)=(5)`.
        key: String,
    },
    /// A column that becomes NOT NULL contains nulls.
    #[error("column \"{column}\" of relation \"{relation}\" contains null values")]
    NullValues {
        /// The column.
        column: String,
        /// The table.
        relation: String,
    },
    // Transactions.
    /// Another transaction has changed the same rows or definitions, or rows that this one has read. Nothing was changed.
    /// The program should run the whole transaction again.
    #[error("could not serialize access{} because of a concurrent change (retry the transaction)", .relation.as_ref().map(|name| format!(" to relation \"{name}\"")).unwrap_or_default())]
    Conflict {
        /// The table or view, if it is known.
        relation: Option<String>,
    },
    /// Transactions wait for each other's rows. The statement was refused so that the others go on. The program should run
    /// the whole transaction again.
    #[error("deadlock detected (retry the transaction)")]
    Deadlock,
    /// Another transaction has changed a row, and has not ended within `lock_timeout`.
    #[error("canceling statement due to lock timeout")]
    LockTimeout,
    /// Another transaction has locked a row, and the statement does not wait.
    #[error("could not obtain lock on row in relation \"{relation}\"")]
    LockNotAvailable {
        /// The table.
        relation: String,
    },
    /// A transaction locks too many rows.
    #[error("a transaction locks at most 65536 rows with FOR UPDATE and FOR SHARE")]
    TooManyLocks,
    /// The statement cannot run inside a transaction, or no longer.
    #[error("{0}")]
    ActiveTransaction(String),
    /// The statement requires an open transaction.
    #[error("{0}")]
    NoActiveTransaction(String),
    /// A statement of the transaction has failed before.
    #[error("current transaction is aborted (ROLLBACK ends it, ROLLBACK TO returns to a savepoint)")]
    FailedTransaction,
    /// The transaction was open for longer than `transaction_timeout`, and was rolled back.
    #[error("the transaction was rolled back after transaction_timeout")]
    TransactionTimeout,
    /// A read-only transaction contains a statement that writes.
    #[error("cannot execute {statement} in a read-only transaction")]
    ReadOnlyTransaction {
        /// For example `INSERT`.
        statement: String,
    },
    /// A table without a primary key has no rowids left.
    #[error("rowids of table \"{table}\" are exhausted")]
    RowidsExhausted {
        /// The table.
        table: String,
    },

    // Files.
    /// An error at a position in a file that COPY reads or writes, or in rows that a program loads.
    #[error("{}{source}", place(.path, *.row, .column))]
    Import {
        /// The file; `None` for rows of a program.
        path: Option<PathBuf>,
        /// Counted from 1.
        row: Option<u64>,
        /// Name of the column.
        column: Option<String>,
        /// The problem.
        source: Box<Error>,
    },
    /// The session may not use a file or directory ([`Session::restrict_files`](crate::Session::restrict_files)).
    #[error("access to \"{}\" is not permitted", .path.display())]
    FileAccess {
        /// The path, as in the statement.
        path: PathBuf,
    },
    /// A file does not have the format that COPY expects.
    #[error("{0}")]
    InvalidFile(String),
    /// An operation on a file failed.
    #[error("could not {operation} \"{}\"{}: {}", .path.display(), .offset.map(|at| format!(" at offset {at}")).unwrap_or_default(), io_text(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// `"read"`, `"write"`, `"open"` …
        operation: &'static str,
        /// Start of the range in bytes from the start of the file.
        offset: Option<u64>,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The disk has no space left.
    #[error("could not {operation} \"{}\": no space left on device (free disk space and retry)", .path.display())]
    DiskFull {
        /// File that could not be extended.
        path: PathBuf,
        /// `"write"`, `"allocate"` …
        operation: &'static str,
    },

    // The database.
    /// A file of the database is damaged.
    #[error("{}: corrupt {what}{}: {detail}", .path.display(), .offset.map(|at| format!(" at offset {at}")).unwrap_or_default())]
    Corrupt {
        /// The damaged file, or the directory of the database.
        path: PathBuf,
        /// The damaged structure: `"page"`, `"log"`, `"catalog"` …
        what: &'static str,
        /// Position in bytes from the start of the file.
        offset: Option<u64>,
        /// Expected and found values.
        detail: String,
    },
    /// The file or directory is not a Keyaki database.
    #[error("\"{}\" is not a Keyaki database: {detail}", .path.display())]
    NotADatabase {
        /// The file or directory.
        path: PathBuf,
        /// Evidence, for example a wrong magic number.
        detail: String,
    },
    /// An incompatible version of Keyaki wrote the database.
    #[error("{}: format version {found} is not supported; this program reads version {supported}", .path.display())]
    FormatVersion {
        /// The file, or the directory of the database.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// The only version that this program supports.
        supported: u32,
    },
    /// Another process, or another handle of this process, has the database open.
    #[error("database \"{}\" is locked: {} has it open", .path.display(), .holder.as_deref().unwrap_or("another process, or another handle of this process,"))]
    Locked {
        /// Directory of the database.
        path: PathBuf,
        /// The process that has it open, for example `process 1234 (keyaki)`, if it is known.
        holder: Option<String>,
    },
    /// The database is open read-only ([`Options::read_only`](crate::Options::read_only)).
    #[error("cannot execute {statement}: the database is open read-only")]
    ReadOnlyDatabase {
        /// Name of the statement, for example `INSERT`.
        statement: String,
    },
    /// A memory budget is exhausted.
    #[error("out of memory: {consumer} needs {}, {} ({remedy})", .requested.map_or_else(|| "more memory".into(), bytes), left(*.available, *.budget))]
    OutOfMemory {
        /// Operator, statement or structure that needs the memory.
        consumer: String,
        /// Requested bytes.
        requested: Option<u64>,
        /// Free bytes of the budget.
        available: Option<u64>,
        /// Bytes of the whole budget.
        budget: Option<u64>,
        /// How to raise the budget or reduce the need.
        remedy: &'static str,
    },
    /// A query spills more bytes to temporary files than permitted.
    #[error("temporary files of the query exceed {limit}")]
    SpillLimit {
        /// Limit on the size of the temporary files of all queries, with its unit.
        limit: String,
    },
    /// An object to be pinned does not fit into the part of the CPU cache that pins may use.
    #[error("cannot pin \"{name}\": it takes {}, and {} of the CPU cache are left for pins (three quarters of the cache in total)", bytes(*.requested), bytes(*.available))]
    PinTooLarge {
        /// Table or index.
        name: String,
        /// Bytes of the object.
        requested: u64,
        /// Bytes not used by other pins.
        available: u64,
    },
    /// A session or transaction needs more of a limited resource than it may have.
    #[error("{0}")]
    LimitExceeded(String),
    /// The statement requires another state of an object or setting.
    #[error("{0}")]
    PrerequisiteState(String),
    /// An in-memory index could not be built when the database was opened.
    #[error("index \"{index}\" could not be built in memory: {cause} (drop the index, or open the database again)")]
    IndexUnusable {
        /// Name of the index. Its table rejects changes.
        index: String,
        /// Error of the build.
        cause: String,
    },
    /// The statement was cancelled.
    #[error("canceling statement due to user request")]
    Cancelled,
    /// The session was ended by `pg_terminate_backend`.
    #[error("terminating connection due to administrator command")]
    Terminated,

    /// An error in the definition of an object that a statement uses.
    #[error("{context}: {source}")]
    Context {
        /// `view "v"`, `DEFAULT of column "c"` …
        context: String,
        /// The error.
        source: Box<Error>,
    },
    /// An error about a part of a statement ([`Error::position`], [`Error::hint`]).
    #[error("{source}{}", hinted(.hint))]
    Located {
        /// The error.
        source: Box<Error>,
        /// Position in the text passed to the session.
        position: Option<Position>,
        /// For example `did you mean "customer"?`.
        hint: Option<String>,
    },
    /// Another error of the store.
    #[error(transparent)]
    Store(keyaki_store::Error),
    /// An error of an object store, or of a published version in it.
    #[error(transparent)]
    ObjectStore(keyaki_publish::Error),
    /// Workers of a cluster cannot be reached, or do not fit the coordinator.
    #[error("{0}")]
    Cluster(String),
    /// An error that occurred in another process.
    #[error("{message}")]
    Remote {
        /// The code of the error there.
        state: SqlState,
        /// Its message.
        message: String,
    },
    /// A bug in Keyaki or in a library: a panicked task, a violated invariant.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Kind of a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConstraintKind {
    /// PRIMARY KEY.
    PrimaryKey,
    /// UNIQUE, or a unique index.
    Unique,
    /// NOT NULL.
    NotNull,
}

impl Error {
    /// True for conflicts with other transactions, and deadlocks: the whole transaction may succeed if it runs again.
    pub fn is_retryable(&self) -> bool {
        [SqlState::SERIALIZATION_FAILURE, SqlState::DEADLOCK_DETECTED].contains(&self.sqlstate())
    }

    /// Adds the object in whose definition the error occurred.
    pub(crate) fn within(self, context: impl Into<String>) -> Error {
        Error::Context { context: context.into(), source: Box::new(self) }
    }

    /// An error of a file operation; `DiskFull` if the disk or quota is full.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull { path, operation },
            _ => Error::Io { path, operation, offset: None, source: Arc::new(source) },
        }
    }

    /// A syntax error without a position.
    pub(crate) fn syntax(message: impl Into<String>) -> Error {
        Error::Syntax { message: message.into(), position: None }
    }

    /// A column that a table does not have.
    pub(crate) fn undefined_column(column: impl Into<String>, relation: &str) -> Error {
        Error::UndefinedColumn { column: column.into(), relation: Some(relation.into()), similar: Vec::new() }
    }
}
