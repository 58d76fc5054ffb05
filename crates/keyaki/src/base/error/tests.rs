//! Tests that every variant has a SQLSTATE and a message.

use std::collections::HashSet;
use std::mem::discriminant;

use ::datafusion::arrow::error::ArrowError;
use ::datafusion::common::Diagnostic;

use super::*;
use ::datafusion::error::DataFusionError;

/// One error of each variant, and of each SQLSTATE within it.
fn errors() -> Vec<(Error, &'static str, &'static str)> {
    let path = || PathBuf::from("/db/data");
    let io = |kind| Error::io("open", Path::new("/f"), io::Error::new(kind, "text (os error 2)"));
    let constraint = |kind, key: Option<&str>| Error::Constraint {
        kind,
        table: "t".into(),
        name: "i".into(),
        key: key.map(Into::into),
    };
    let not_found = |kind| Error::NotFound { kind, name: "x".into() };
    vec![
        (
            Error::Syntax { message: "syntax error".into(), position: Some(Position { line: 2, column: 3 }) },
            "42601",
            "syntax error (line 2, column 3)",
        ),
        (Error::TooComplex("statement is nested too deeply".into()), "54001", "statement is nested too deeply"),
        (Error::Unsupported("REINDEX".into()), "0A000", "not supported: REINDEX"),
        (Error::InvalidStatement("text".into()), "42000", "text"),
        (not_found(ObjectKind::Relation), "42P01", "relation \"x\" does not exist"),
        (not_found(ObjectKind::Table), "42P01", "table \"x\" does not exist"),
        (not_found(ObjectKind::View), "42P01", "view \"x\" does not exist"),
        (not_found(ObjectKind::Index), "42704", "index \"x\" does not exist"),
        (not_found(ObjectKind::Database), "3D000", "database \"x\" does not exist"),
        (not_found(ObjectKind::Schema), "3F000", "schema \"x\" does not exist"),
        (not_found(ObjectKind::Setting), "42704", "unrecognized configuration parameter \"x\""),
        (Error::undefined_column("c", "t"), "42703", "column \"c\" of relation \"t\" does not exist"),
        (Error::MissingFromEntry("t".into()), "42P01", "missing FROM-clause entry for table \"t\""),
        (Error::UndefinedFunction { signature: "function f(text)".into() }, "42883", "function f(text) does not exist"),
        (
            Error::Located {
                source: Box::new(not_found(ObjectKind::Relation)),
                position: Some(Position { line: 1, column: 15 }),
                hint: Some("did you mean \"y\"?".into()),
            },
            "42P01",
            "relation \"x\" does not exist (did you mean \"y\"?)",
        ),
        (
            Error::AlreadyExists { kind: ObjectKind::Relation, name: "t".into() },
            "42P07",
            "relation \"t\" already exists",
        ),
        (
            Error::AlreadyExists { kind: ObjectKind::Database, name: "d".into() },
            "42P04",
            "database \"d\" already exists",
        ),
        (Error::AlreadyExists { kind: ObjectKind::Schema, name: "s".into() }, "42P06", "schema \"s\" already exists"),
        (Error::DuplicateColumn("c".into()), "42701", "column \"c\" specified more than once"),
        (Error::DuplicateAlias("t".into()), "42712", "table name \"t\" specified more than once"),
        (Error::AmbiguousColumn("c".into()), "42702", "column reference \"c\" is ambiguous"),
        (Error::AmbiguousTable("t".into()), "42P09", "table reference \"t\" is ambiguous"),
        (
            Error::WrongObjectType {
                name: "v".into(),
                found: ObjectKind::View,
                expected: ObjectKind::Table,
                hint: Some("use DROP VIEW"),
            },
            "42809",
            "\"v\" is a view, not a table (use DROP VIEW)",
        ),
        (Error::InvalidName { name: "".into(), bytes_max: 9 }, "42602", "invalid name \"\": names have 1 to 9 bytes"),
        (Error::InvalidName { name: "n".into(), bytes_max: 9 }, "42622", "invalid name \"n\": names have 1 to 9 bytes"),
        (
            Error::ReservedName { name: "n".into(), reason: "because".into() },
            "42939",
            "name \"n\" is reserved: because",
        ),
        (
            Error::DependentObject { action: "drop \"t\"".into(), dependent: "v".into() },
            "2BP01",
            "cannot drop \"t\" because view \"v\" depends on it (drop the view first)",
        ),
        (not_found(ObjectKind::Role), "42704", "role \"x\" does not exist"),
        (Error::AlreadyExists { kind: ObjectKind::Role, name: "r".into() }, "42710", "role \"r\" already exists"),
        (
            Error::InsufficientPrivilege("permission denied for table t".into()),
            "42501",
            "permission denied for table t",
        ),
        (Error::InvalidGrant("text".into()), "0LP01", "text"),
        (Error::DependentPrivileges("text".into()), "2BP01", "text"),
        (Error::RoleInUse("text".into()), "55006", "text"),
        (Error::InvalidDefinition { kind: ObjectKind::Table, problem: "p".into() }, "42P16", "p"),
        (Error::InvalidDefinition { kind: ObjectKind::View, problem: "p".into() }, "42P17", "p"),
        (Error::TooManyColumns { limit: 9 }, "54011", "tables can have at most 9 columns"),
        (Error::InvalidColumnReference("text".into()), "42P10", "text"),
        (Error::Grouping("text".into()), "42803", "text"),
        (Error::DatatypeMismatch("text".into()), "42804", "text"),
        (Error::CannotCast { from: "a".into(), to: "b".into() }, "42846", "cannot cast type a to b"),
        (Error::invalid_text("integer", "x", None), "22P02", "invalid input syntax for type integer: \"x\""),
        (
            Error::invalid_text("date", "x", Some("c")),
            "22007",
            "invalid input syntax for type date: \"x\" (column \"c\")",
        ),
        (Error::out_of_range("integer", "9", None), "22003", "value \"9\" is out of range for type integer"),
        (Error::out_of_range(ANY_NUMBER, "9 + 9", None), "22003", "numeric value out of range: \"9 + 9\""),
        (Error::out_of_range("timestamp", "x", None), "22008", "timestamp out of range: \"x\""),
        (Error::OutOfRange { ty: "bigint".into(), value: None, column: None }, "22003", "bigint out of range"),
        (
            Error::StringTooLong {
                ty: "character varying(3)".into(),
                value: "four".into(),
                chars: 4,
                column: Some("c".into()),
            },
            "22001",
            "value too long for type character varying(3): \"four\" has 4 characters (column \"c\")",
        ),
        (Error::InvalidEncoding { column: None }, "22021", "invalid byte sequence for encoding \"UTF8\""),
        (Error::DivisionByZero, "22012", "division by zero"),
        (Error::InvalidLogarithm("text"), "2201E", "text"),
        (Error::InvalidPower("text"), "2201F", "text"),
        (Error::InvalidEscape("LIKE"), "22025", "LIKE pattern must not end with escape character"),
        (Error::Cardinality, "21000", "more than one row returned by a subquery used as an expression"),
        (Error::NoRows, "02000", "the query returned no rows"),
        (Error::UnexpectedNull { ty: "i64" }, "22002", "null cannot be converted to i64 (use Option<i64>)"),
        (Error::Evaluation("text".into()), "22000", "text"),
        (
            Error::InvalidParameter { name: "p".into(), value: "v".into(), expected: "w".into() },
            "22023",
            "invalid value for parameter \"p\": \"v\" (expected w)",
        ),
        (
            constraint(ConstraintKind::PrimaryKey, Some("(id)=(5)")),
            "23505",
            "duplicate key value violates unique constraint \"i\": Key (id)=(5) already exists",
        ),
        (constraint(ConstraintKind::Unique, None), "23505", "duplicate key value violates unique constraint \"i\""),
        (
            constraint(ConstraintKind::NotNull, None),
            "23502",
            "null value in column \"i\" of relation \"t\" violates not-null constraint",
        ),
        (
            Error::ColumnExists { column: "c".into(), relation: "t".into() },
            "42701",
            "column \"c\" of relation \"t\" already exists",
        ),
        (
            Error::UndefinedConstraint { constraint: "c".into(), relation: "t".into() },
            "42704",
            "constraint \"c\" of relation \"t\" does not exist",
        ),
        (
            Error::NullValues { column: "c".into(), relation: "t".into() },
            "23502",
            "column \"c\" of relation \"t\" contains null values",
        ),
        (
            Error::CheckViolation { table: "t".into(), name: "c".into(), is_new_row: true },
            "23514",
            "new row for relation \"t\" violates check constraint \"c\"",
        ),
        (
            Error::CheckViolation { table: "t".into(), name: "c".into(), is_new_row: false },
            "23514",
            "check constraint \"c\" of relation \"t\" is violated by some row",
        ),
        (
            Error::MissingReference {
                table: "c".into(),
                name: "c_p_fkey".into(),
                references: "p".into(),
                key: "(p)=(5)".into(),
            },
            "23503",
            "insert or update on table \"c\" violates foreign key constraint \"c_p_fkey\": Key (p)=(5) is not present in \
             table \"p\"",
        ),
        (
            Error::StillReferenced {
                table: "c".into(),
                name: "c_p_fkey".into(),
                references: "p".into(),
                key: "(id)=(5)".into(),
            },
            "23503",
            "update or delete on table \"p\" violates foreign key constraint \"c_p_fkey\" on table \"c\": Key (id)=(5) is \
             still referenced from table \"c\"",
        ),
        (
            Error::DependentConstraint {
                action: "drop table \"p\"".into(),
                constraint: "c_p_fkey".into(),
                table: "c".into(),
            },
            "2BP01",
            "cannot drop table \"p\" because constraint \"c_p_fkey\" of table \"c\" depends on it (drop the constraint \
             first)",
        ),
        (Error::InvalidForeignKey("no key".into()), "42830", "no key"),
        (
            Error::DependentColumn { action: "drop sequence \"s\"".into(), dependent: "column \"c\"".into() },
            "2BP01",
            "cannot drop sequence \"s\" because column \"c\" uses it",
        ),
        (
            Error::SequenceLimit { name: "s".into(), end: "maximum", limit: 3 },
            "2200H",
            "nextval: reached maximum value of sequence \"s\" (3)",
        ),
        (
            Error::GeneratedAlways { column: "id".into(), updates: false },
            "428C9",
            "cannot insert a non-DEFAULT value into column \"id\": it is GENERATED ALWAYS (omit it, or use DEFAULT)",
        ),
        (
            Error::AlreadyExists { kind: ObjectKind::Constraint, name: "c".into() },
            "42710",
            "constraint \"c\" already exists",
        ),
        (Error::RowidsExhausted { table: "t".into() }, "2200H", "rowids of table \"t\" are exhausted"),
        (
            Error::Import {
                path: Some("a.csv".into()),
                row: Some(2),
                column: Some("c".into()),
                source: Box::new(Error::DivisionByZero),
            },
            "22012",
            "a.csv, row 2, column c: division by zero",
        ),
        (Error::InvalidFile("text".into()), "22P04", "text"),
        (io(io::ErrorKind::NotFound), "58P01", "could not open \"/f\": text"),
        (io(io::ErrorKind::AlreadyExists), "58P02", "could not open \"/f\": text"),
        (io(io::ErrorKind::PermissionDenied), "42501", "could not open \"/f\": text"),
        (io(io::ErrorKind::IsADirectory), "42809", "could not open \"/f\": text"),
        (io(io::ErrorKind::TimedOut), "58030", "could not open \"/f\": text"),
        (
            io(io::ErrorKind::StorageFull),
            "53100",
            "could not open \"/f\": no space left on device (free disk space and retry)",
        ),
        (Error::SpillLimit { limit: "1 GB".into() }, "53100", "temporary files of the query exceed 1 GB"),
        (
            Error::Corrupt { path: path(), what: "page", offset: Some(4096), detail: "checksum".into() },
            "XX001",
            "/db/data: corrupt page at offset 4096: checksum",
        ),
        (
            Error::NotADatabase { path: path(), detail: "no magic".into() },
            "3D000",
            "\"/db/data\" is not a Keyaki database: no magic",
        ),
        (
            Error::FormatVersion { path: path(), found: 9, supported: 1 },
            "0A000",
            "/db/data: format version 9 is not supported; this program reads version 1",
        ),
        (
            Error::Locked { path: path(), holder: None },
            "55006",
            "database \"/db/data\" is locked: another process, or another handle of this process, has it open",
        ),
        (
            Error::OutOfMemory {
                consumer: "the sort".into(),
                requested: Some(3 << 29),
                available: Some(400 << 20),
                budget: Some(1 << 30),
                remedy: "raise it",
            },
            "53200",
            "out of memory: the sort needs 1.5 GiB, 400.0 MiB of the budget of 1.0 GiB are left (raise it)",
        ),
        (
            Error::PinTooLarge { name: "t".into(), requested: 2048, available: 1024 },
            "53000",
            "cannot pin \"t\": it takes 2.0 KiB, and 1.0 KiB of the CPU cache are left for pins (three quarters of the \
             cache in total)",
        ),
        (Error::LimitExceeded("text".into()), "54000", "text"),
        (Error::PrerequisiteState("text".into()), "55000", "text"),
        (
            Error::IndexUnusable { index: "i".into(), cause: "why".into() },
            "55000",
            "index \"i\" could not be built in memory: why (drop the index, or open the database again)",
        ),
        (Error::Cancelled, "57014", "canceling statement due to user request"),
        (Error::Terminated, "57P01", "terminating connection due to administrator command"),
        (Error::DivisionByZero.within("view \"v\""), "22012", "view \"v\": division by zero"),
        (Error::Store(keyaki_store::Error::Closed), "57P01", "the database is closed"),
        (
            Error::ObjectStore(keyaki_publish::Error::NoVersion { repository: "s3://b".into() }),
            "3D000",
            "\"s3://b\" has no published version",
        ),
        (Error::Cluster("no worker answers".into()), "08006", "no worker answers"),
        (
            Error::Remote { state: SqlState::DIVISION_BY_ZERO, message: "division by zero".into() },
            "22012",
            "division by zero",
        ),
        (Error::Internal("text".into()), "XX000", "internal error: text"),
        (Error::NotFound { kind: ObjectKind::Cursor, name: "c".into() }, "34000", "cursor \"c\" does not exist"),
        (Error::AlreadyExists { kind: ObjectKind::Cursor, name: "c".into() }, "42P03", "cursor \"c\" already exists"),
        (
            Error::NotFound { kind: ObjectKind::PreparedStatement, name: "p".into() },
            "26000",
            "prepared statement \"p\" does not exist",
        ),
        (
            Error::AlreadyExists { kind: ObjectKind::PreparedStatement, name: "p".into() },
            "42P05",
            "prepared statement \"p\" already exists",
        ),
        (Error::UndefinedParameter { name: "$2".into() }, "42P02", "there is no parameter $2"),
        (
            Error::ParameterCount { expected: 1, given: 2 },
            "07001",
            "the statement has 1 parameter, but 2 values were given",
        ),
        (
            Error::Conflict { relation: Some("t".into()) },
            "40001",
            "could not serialize access to relation \"t\" because of a concurrent change (retry the transaction)",
        ),
        (
            Error::from(keyaki_store::Error::Conflict { tree: keyaki_store::TreeId::new(1) }),
            "40001",
            "could not serialize access because of a concurrent change (retry the transaction)",
        ),
        (Error::Deadlock, "40P01", "deadlock detected (retry the transaction)"),
        (Error::LockTimeout, "55P03", "canceling statement due to lock timeout"),
        (Error::LockNotAvailable { relation: "t".into() }, "55P03", "could not obtain lock on row in relation \"t\""),
        (Error::TooManyLocks, "53200", "a transaction locks at most 65536 rows with FOR UPDATE and FOR SHARE"),
        (
            Error::AffectedTwice { statement: "ON CONFLICT DO UPDATE" },
            "21000",
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
        ),
        (Error::ActiveTransaction("text".into()), "25001", "text"),
        (Error::NoActiveTransaction("text".into()), "25P01", "text"),
        (
            Error::FailedTransaction,
            "25P02",
            "current transaction is aborted (ROLLBACK ends it, ROLLBACK TO returns to a savepoint)",
        ),
        (Error::FileAccess { path: path() }, "42501", "access to \"/db/data\" is not permitted"),
        (Error::TransactionTimeout, "25P04", "the transaction was rolled back after transaction_timeout"),
        (
            Error::ReadOnlyTransaction { statement: "INSERT".into() },
            "25006",
            "cannot execute INSERT in a read-only transaction",
        ),
        (
            Error::ReadOnlyDatabase { statement: "INSERT".into() },
            "25006",
            "cannot execute INSERT: the database is open read-only",
        ),
        (Error::NotFound { kind: ObjectKind::Savepoint, name: "s".into() }, "3B001", "savepoint \"s\" does not exist"),
    ]
}

/// Numbers the variants. A match without wildcard: a new variant does not compile until it is added here.
fn number(error: &Error) -> usize {
    use Error as E;
    match error {
        E::Syntax { .. } => 0,
        E::InsufficientPrivilege(_) => 77,
        E::InvalidGrant(_) => 78,
        E::DependentPrivileges(_) => 79,
        E::RoleInUse(_) => 80,
        E::TooComplex(_) => 1,
        E::Unsupported(_) => 2,
        E::InvalidStatement(_) => 3,
        E::NotFound { .. } => 4,
        E::UndefinedColumn { .. } => 5,
        E::MissingFromEntry(_) => 6,
        E::UndefinedFunction { .. } => 7,
        E::AlreadyExists { .. } => 8,
        E::DuplicateColumn(_) => 9,
        E::DuplicateAlias(_) => 10,
        E::AmbiguousColumn(_) => 11,
        E::WrongObjectType { .. } => 12,
        E::InvalidName { .. } => 13,
        E::ReservedName { .. } => 14,
        E::DependentObject { .. } => 15,
        E::InvalidDefinition { .. } => 16,
        E::TooManyColumns { .. } => 17,
        E::InvalidColumnReference(_) => 18,
        E::Grouping(_) => 19,
        E::DatatypeMismatch(_) => 20,
        E::CannotCast { .. } => 21,
        E::InvalidText { .. } => 22,
        E::OutOfRange { .. } => 23,
        E::StringTooLong { .. } => 24,
        E::InvalidEncoding { .. } => 25,
        E::DivisionByZero => 26,
        E::Cardinality => 27,
        E::Evaluation(_) => 28,
        E::InvalidParameter { .. } => 29,
        E::Constraint { .. } => 30,
        E::RowidsExhausted { .. } => 31,
        E::Import { .. } => 32,
        E::InvalidFile(_) => 33,
        E::Io { .. } => 34,
        E::DiskFull { .. } => 35,
        E::SpillLimit { .. } => 36,
        E::Corrupt { .. } => 37,
        E::NotADatabase { .. } => 38,
        E::FormatVersion { .. } => 39,
        E::Locked { .. } => 40,
        E::OutOfMemory { .. } => 41,
        E::PinTooLarge { .. } => 42,
        E::PrerequisiteState(_) => 43,
        E::IndexUnusable { .. } => 44,
        E::Cancelled => 45,
        E::Context { .. } => 46,
        E::Store(_) => 47,
        E::Internal(_) => 48,
        E::UndefinedParameter { .. } => 49,
        E::ParameterCount { .. } => 50,
        E::NoRows => 51,
        E::UnexpectedNull { .. } => 52,
        E::Conflict { .. } => 53,
        E::ActiveTransaction(_) => 54,
        E::NoActiveTransaction(_) => 55,
        E::FailedTransaction => 56,
        E::ReadOnlyTransaction { .. } => 57,
        E::AffectedTwice { .. } => 58,
        E::CheckViolation { .. } => 59,
        E::ColumnExists { .. } => 60,
        E::UndefinedConstraint { .. } => 61,
        E::NullValues { .. } => 62,
        E::MissingReference { .. } => 63,
        E::StillReferenced { .. } => 64,
        E::DependentConstraint { .. } => 65,
        E::InvalidForeignKey(_) => 66,
        E::SequenceLimit { .. } => 67,
        E::GeneratedAlways { .. } => 68,
        E::DependentColumn { .. } => 69,
        E::AmbiguousTable(_) => 70,
        E::InvalidLogarithm(_) => 71,
        E::InvalidPower(_) => 72,
        E::InvalidEscape(_) => 73,
        E::ReadOnlyDatabase { .. } => 74,
        E::TransactionTimeout => 75,
        E::FileAccess { .. } => 76,
        E::Terminated => 81,
        E::Deadlock => 82,
        E::LockTimeout => 83,
        E::LockNotAvailable { .. } => 84,
        E::TooManyLocks => 85,
        E::LimitExceeded(_) => 86,
        E::Located { .. } => 87,
        E::ObjectStore(_) => 88,
        E::Cluster(_) => 89,
        E::Remote { .. } => 90,
    }
}
const VARIANTS: usize = 91;

#[test]
fn every_variant_has_a_sqlstate_and_a_message() {
    let mut seen = HashSet::new();
    let mut states = HashSet::new();
    for (error, state, message) in errors() {
        assert_eq!((error.sqlstate().code(), error.to_string().as_str()), (state, message));
        assert!(!message.ends_with('.'), "{message}");
        seen.insert((number(&error), discriminant(&error)));
        states.insert(error.sqlstate());
    }
    assert_eq!(seen.len(), VARIANTS);
    // Errors of the store without variants of their own.
    states.insert(below::sqlstate(&keyaki_store::Error::TooLarge { what: "key", bytes: 2, limit: 1 }));
    let unused: Vec<_> = SqlState::ALL.iter().filter(|state| !states.contains(state)).collect();
    assert!(unused.is_empty(), "codes that nothing raises: {unused:?}");
    assert_eq!(SqlState::UNIQUE_VIOLATION.class(), "23");
}

#[test]
fn errors_survive_the_way_through_datafusion() {
    let own = || Error::DivisionByZero.within("view \"v\"");
    let text = own().to_string();
    let external = || DataFusionError::from(own());
    let diagnostic = Diagnostic::new_error("text", None);
    let arrow = ArrowError::from(external());
    let io = io::Error::other(external());
    for wrapped in [
        external(),
        external().context("context"),
        external().context("inner").context("outer"),
        external().with_diagnostic(diagnostic),
        DataFusionError::Collection(vec![external(), DataFusionError::Plan("second".into())]),
        DataFusionError::Shared(Arc::new(external())),
        DataFusionError::External(Box::new(DataFusionError::Shared(Arc::new(external())))),
        DataFusionError::External(Box::new(Arc::new(external()))),
        DataFusionError::ArrowError(Box::new(arrow), Some("\n\nbacktrace: 0: main".into())),
        DataFusionError::IoError(io),
        DataFusionError::External(Box::new(keyaki_exec::Error::Filter(Arc::new(own())))),
        DataFusionError::External(Box::new(keyaki_store::Error::PageSource(Arc::new(own())))),
    ] {
        let shown = format!("{wrapped:?}");
        let found = Error::from(wrapped);
        assert_eq!((found.to_string(), found.sqlstate().code()), (text.clone(), "22012"), "{shown}");
        assert!(matches!(found.root(), Error::DivisionByZero));
    }
}

#[test]
fn errors_of_the_layers_below_become_typed() {
    use keyaki_store::Error as Store;
    let path = || PathBuf::from("/db/data");
    let write = keyaki_device::Operation::Write;
    let device = |kind| keyaki_device::Error::in_range(write, Path::new("/db/data"), 8, 4, io::Error::from(kind));
    assert!(matches!(Error::from(device(io::ErrorKind::StorageFull)), Error::DiskFull { operation: "write", .. }));
    let error = Error::from(device(io::ErrorKind::TimedOut));
    assert!(matches!(error, Error::Io { operation: "write", offset: Some(8), .. }), "{error:?}");
    let corrupt = || Store::Corrupt { path: path(), what: "page", offset: Some(4096), detail: "checksum".into() };
    assert!(matches!(Error::from(corrupt()), Error::Corrupt { what: "page", offset: Some(4096), .. }));
    assert!(matches!(Error::from(keyaki_exec::Error::Store(corrupt())), Error::Corrupt { .. }));
    assert!(matches!(Error::from(Store::Locked { path: path(), holder: None }), Error::Locked { .. }));
    assert!(matches!(Error::from(keyaki_exec::Error::Cancelled), Error::Cancelled));
    let missing = Error::from(Store::DatabaseNotFound { path: path() });
    assert_eq!(missing.sqlstate(), SqlState::INVALID_CATALOG_NAME);
}

#[test]
fn values_in_messages_are_short_and_on_one_line() {
    assert_eq!(shown("a\nb"), "a\\nb");
    assert_eq!(shown(&"ä".repeat(100)), "ä".repeat(60) + "…");
}
