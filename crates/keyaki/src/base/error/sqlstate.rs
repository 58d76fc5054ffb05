//! SQLSTATE codes: five characters that classify an error, as in appendix A of PostgreSQL's documentation.

use std::{fmt, io};

use super::text::is_datetime;
use super::{ConstraintKind, Error, ObjectKind, below};

/// A SQLSTATE code. The first two characters name its class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SqlState(&'static str);

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: SqlState = SqlState::new($code);)*

            /// Every code that Keyaki can raise.
            pub const ALL: &[SqlState] = &[$(SqlState::$name),*];
        }
    };
}

states! {
    /// `no_data`: a query that must return a row returned none.
    NO_DATA = "02000";
    /// `using_clause_does_not_match_dynamic_parameter_specification`: too few or too many values for parameters.
    PARAMETER_COUNT = "07001";
    /// `connection_failure`: a worker of a cluster cannot be reached.
    CONNECTION_FAILURE = "08006";
    /// `feature_not_supported`: valid SQL that Keyaki does not support.
    FEATURE_NOT_SUPPORTED = "0A000";
    /// `invalid_grant_operation`: a role cannot have the privilege or the membership.
    INVALID_GRANT_OPERATION = "0LP01";
    /// `cardinality_violation`: a subquery returned more than one row.
    CARDINALITY_VIOLATION = "21000";
    /// `data_exception`: the evaluation of an expression failed.
    DATA_EXCEPTION = "22000";
    /// `string_data_right_truncation`: a text is longer than its column allows.
    STRING_DATA_RIGHT_TRUNCATION = "22001";
    /// `null_value_no_indicator_parameter`: the program expects a value where a row has NULL.
    NULL_VALUE_NO_INDICATOR = "22002";
    /// `numeric_value_out_of_range`
    NUMERIC_VALUE_OUT_OF_RANGE = "22003";
    /// `invalid_datetime_format`: a text is not a valid date, time or interval.
    INVALID_DATETIME_FORMAT = "22007";
    /// `datetime_field_overflow`: a date or time is out of range.
    DATETIME_FIELD_OVERFLOW = "22008";
    /// `division_by_zero`
    DIVISION_BY_ZERO = "22012";
    /// `invalid_argument_for_logarithm`
    INVALID_ARGUMENT_FOR_LOGARITHM = "2201E";
    /// `invalid_argument_for_power_function`
    INVALID_ARGUMENT_FOR_POWER_FUNCTION = "2201F";
    /// `character_not_in_repertoire`: bytes are not valid UTF-8.
    CHARACTER_NOT_IN_REPERTOIRE = "22021";
    /// `invalid_parameter_value`: a setting or option has an invalid value.
    INVALID_PARAMETER_VALUE = "22023";
    /// `invalid_escape_sequence`: a pattern ends with its escape character.
    INVALID_ESCAPE_SEQUENCE = "22025";
    /// `invalid_text_representation`: a text is not a valid value of its type.
    INVALID_TEXT_REPRESENTATION = "22P02";
    /// `bad_copy_file_format`: a file does not have the format that COPY expects.
    BAD_COPY_FILE_FORMAT = "22P04";
    /// `sequence_generator_limit_exceeded`: a table has no rowids left.
    SEQUENCE_GENERATOR_LIMIT_EXCEEDED = "2200H";
    /// `not_null_violation`
    NOT_NULL_VIOLATION = "23502";
    /// `unique_violation`
    UNIQUE_VIOLATION = "23505";
    /// `foreign_key_violation`
    FOREIGN_KEY_VIOLATION = "23503";
    /// `check_violation`
    CHECK_VIOLATION = "23514";
    /// `active_sql_transaction`: the statement cannot run inside a transaction, or no longer.
    ACTIVE_SQL_TRANSACTION = "25001";
    /// `read_only_sql_transaction`: a read-only transaction contains a statement that writes.
    READ_ONLY_SQL_TRANSACTION = "25006";
    /// `no_active_sql_transaction`: the statement requires an open transaction.
    NO_ACTIVE_SQL_TRANSACTION = "25P01";
    /// `in_failed_sql_transaction`: a statement of the transaction has failed before.
    IN_FAILED_SQL_TRANSACTION = "25P02";
    /// `transaction_timeout`: the transaction was open for too long, and was rolled back.
    TRANSACTION_TIMEOUT = "25P04";
    /// `dependent_objects_still_exist`: another object uses the one to be dropped.
    DEPENDENT_OBJECTS_STILL_EXIST = "2BP01";
    /// `invalid_sql_statement_name`: a prepared statement does not exist.
    UNDEFINED_STATEMENT = "26000";
    /// `invalid_cursor_name`: a cursor does not exist.
    INVALID_CURSOR_NAME = "34000";
    /// `invalid_savepoint_specification`: a savepoint does not exist.
    INVALID_SAVEPOINT = "3B001";
    /// `invalid_catalog_name`: the database does not exist.
    INVALID_CATALOG_NAME = "3D000";
    /// `invalid_schema_name`: the schema does not exist.
    INVALID_SCHEMA_NAME = "3F000";
    /// `serialization_failure`: a concurrent commit conflicts with a transaction, which can be repeated.
    SERIALIZATION_FAILURE = "40001";
    /// `deadlock_detected`: transactions wait for each other; one that can be repeated was refused.
    DEADLOCK_DETECTED = "40P01";
    /// `syntax_error_or_access_rule_violation`: a statement is invalid for a reason without a code of its own.
    SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION = "42000";
    /// `insufficient_privilege`: the role of the session lacks a privilege, or the operating system denies access to a file.
    INSUFFICIENT_PRIVILEGE = "42501";
    /// `syntax_error`
    SYNTAX_ERROR = "42601";
    /// `invalid_name`: an empty name.
    INVALID_NAME = "42602";
    /// `name_too_long`
    NAME_TOO_LONG = "42622";
    /// `duplicate_column`
    DUPLICATE_COLUMN = "42701";
    /// `ambiguous_column`
    AMBIGUOUS_COLUMN = "42702";
    /// `undefined_column`
    UNDEFINED_COLUMN = "42703";
    /// `undefined_object`: an index, type or setting does not exist.
    UNDEFINED_OBJECT = "42704";
    /// `duplicate_object`: a constraint exists already.
    DUPLICATE_OBJECT = "42710";
    /// `duplicate_alias`: two relations of a query have the same name.
    DUPLICATE_ALIAS = "42712";
    /// `grouping_error`: a column is neither grouped nor aggregated.
    GROUPING_ERROR = "42803";
    /// `datatype_mismatch`
    DATATYPE_MISMATCH = "42804";
    /// `wrong_object_type`: a statement for tables names a view, or the other way round.
    WRONG_OBJECT_TYPE = "42809";
    /// `generated_always`: a statement gives a value for a column that is always generated.
    GENERATED_ALWAYS = "428C9";
    /// `invalid_foreign_key`: the referenced columns are no key.
    INVALID_FOREIGN_KEY = "42830";
    /// `cannot_coerce`: no cast leads from one type to the other.
    CANNOT_COERCE = "42846";
    /// `undefined_function`: no function or operator has this name and these argument types.
    UNDEFINED_FUNCTION = "42883";
    /// `reserved_name`
    RESERVED_NAME = "42939";
    /// `undefined_table`: a table or view does not exist.
    UNDEFINED_TABLE = "42P01";
    /// `undefined_parameter`: a parameter has no value.
    UNDEFINED_PARAMETER = "42P02";
    /// `duplicate_cursor`
    DUPLICATE_CURSOR = "42P03";
    /// `duplicate_prepared_statement`
    DUPLICATE_STATEMENT = "42P05";
    /// `duplicate_database`
    DUPLICATE_DATABASE = "42P04";
    /// `duplicate_table`: a table, view or index exists already.
    DUPLICATE_TABLE = "42P07";
    /// A schema with the name exists already.
    DUPLICATE_SCHEMA = "42P06";
    /// `ambiguous_alias`: several relations of a query have the name.
    AMBIGUOUS_ALIAS = "42P09";
    /// `invalid_column_reference`
    INVALID_COLUMN_REFERENCE = "42P10";
    /// `invalid_table_definition`
    INVALID_TABLE_DEFINITION = "42P16";
    /// `invalid_object_definition`
    INVALID_OBJECT_DEFINITION = "42P17";
    /// `insufficient_resources`: a resource other than memory and disk space is exhausted.
    INSUFFICIENT_RESOURCES = "53000";
    /// `disk_full`
    DISK_FULL = "53100";
    /// `out_of_memory`
    OUT_OF_MEMORY = "53200";
    /// `program_limit_exceeded`
    PROGRAM_LIMIT_EXCEEDED = "54000";
    /// `statement_too_complex`: a statement is nested too deeply.
    STATEMENT_TOO_COMPLEX = "54001";
    /// `too_many_columns`
    TOO_MANY_COLUMNS = "54011";
    /// `object_not_in_prerequisite_state`
    OBJECT_NOT_IN_PREREQUISITE_STATE = "55000";
    /// `lock_not_available`: a lock was not granted in time.
    LOCK_NOT_AVAILABLE = "55P03";
    /// `object_in_use`: another process has the database open.
    OBJECT_IN_USE = "55006";
    /// `query_canceled`
    QUERY_CANCELED = "57014";
    /// `admin_shutdown`: the database is closed.
    ADMIN_SHUTDOWN = "57P01";
    /// `io_error`
    IO_ERROR = "58030";
    /// `undefined_file`
    UNDEFINED_FILE = "58P01";
    /// `duplicate_file`
    DUPLICATE_FILE = "58P02";
    /// `internal_error`: a bug in Keyaki or in a library.
    INTERNAL_ERROR = "XX000";
    /// `data_corrupted`: a file of the database is damaged.
    DATA_CORRUPTED = "XX001";
}

impl SqlState {
    const fn new(code: &'static str) -> SqlState {
        let bytes = code.as_bytes();
        assert!(bytes.len() == 5, "a SQLSTATE has five characters");
        let mut i = 0;
        while i < bytes.len() {
            assert!(bytes[i].is_ascii_digit() || bytes[i].is_ascii_uppercase(), "digits and capital letters only");
            i += 1;
        }
        SqlState(code)
    }

    /// The state with a code; `None` if Keyaki raises no such error.
    pub fn of_code(code: &str) -> Option<SqlState> {
        SqlState::ALL.iter().find(|state| state.code() == code).copied()
    }

    /// The five characters.
    pub const fn code(self) -> &'static str {
        self.0
    }

    /// The first two characters, for example `"23"`: integrity constraint violation.
    pub fn class(self) -> &'static str {
        &self.0[..2]
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlState({})", self.0)
    }
}

impl Error {
    /// The SQLSTATE code of the error.
    pub fn sqlstate(&self) -> SqlState {
        match self {
            Error::Syntax { .. } => SqlState::SYNTAX_ERROR,
            Error::TooComplex(_) => SqlState::STATEMENT_TOO_COMPLEX,
            Error::LimitExceeded(_) => SqlState::PROGRAM_LIMIT_EXCEEDED,
            Error::Unsupported(_) | Error::FormatVersion { .. } => SqlState::FEATURE_NOT_SUPPORTED,
            Error::InvalidStatement(_) => SqlState::SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION,
            Error::NotFound { kind, .. } => kind.undefined(),
            Error::UndefinedColumn { .. } => SqlState::UNDEFINED_COLUMN,
            Error::MissingFromEntry(_) => SqlState::UNDEFINED_TABLE,
            Error::UndefinedParameter { .. } => SqlState::UNDEFINED_PARAMETER,
            Error::ParameterCount { .. } => SqlState::PARAMETER_COUNT,
            Error::UndefinedFunction { .. } => SqlState::UNDEFINED_FUNCTION,
            Error::AlreadyExists { kind: ObjectKind::Database, .. } => SqlState::DUPLICATE_DATABASE,
            Error::AlreadyExists { kind: ObjectKind::PreparedStatement, .. } => SqlState::DUPLICATE_STATEMENT,
            Error::AlreadyExists { kind: ObjectKind::Cursor, .. } => SqlState::DUPLICATE_CURSOR,
            Error::AlreadyExists { kind: ObjectKind::Schema, .. } => SqlState::DUPLICATE_SCHEMA,
            Error::AlreadyExists { kind: ObjectKind::Constraint | ObjectKind::Role, .. } => SqlState::DUPLICATE_OBJECT,
            Error::AlreadyExists { .. } => SqlState::DUPLICATE_TABLE,
            Error::DuplicateColumn(_) => SqlState::DUPLICATE_COLUMN,
            Error::DuplicateAlias(_) => SqlState::DUPLICATE_ALIAS,
            Error::AmbiguousColumn(_) => SqlState::AMBIGUOUS_COLUMN,
            Error::AmbiguousTable(_) => SqlState::AMBIGUOUS_ALIAS,
            Error::WrongObjectType { .. } => SqlState::WRONG_OBJECT_TYPE,
            Error::InvalidName { name, .. } if name.is_empty() => SqlState::INVALID_NAME,
            Error::InvalidName { .. } => SqlState::NAME_TOO_LONG,
            Error::ReservedName { .. } => SqlState::RESERVED_NAME,
            Error::ColumnExists { .. } => SqlState::DUPLICATE_COLUMN,
            Error::UndefinedConstraint { .. } => SqlState::UNDEFINED_OBJECT,
            Error::NullValues { .. } => SqlState::NOT_NULL_VIOLATION,
            Error::DependentObject { .. } | Error::DependentConstraint { .. } | Error::DependentColumn { .. } => {
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST
            }
            Error::InsufficientPrivilege(_) => SqlState::INSUFFICIENT_PRIVILEGE,
            Error::InvalidGrant(_) => SqlState::INVALID_GRANT_OPERATION,
            Error::DependentPrivileges(_) => SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
            Error::RoleInUse(_) => SqlState::OBJECT_IN_USE,
            Error::InvalidForeignKey(_) => SqlState::INVALID_FOREIGN_KEY,
            Error::SequenceLimit { .. } => SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
            Error::GeneratedAlways { .. } => SqlState::GENERATED_ALWAYS,
            Error::InvalidDefinition { kind: ObjectKind::Table, .. } => SqlState::INVALID_TABLE_DEFINITION,
            // Only the options of a sequence can be invalid.
            Error::InvalidDefinition { kind: ObjectKind::Sequence, .. } => SqlState::INVALID_PARAMETER_VALUE,
            Error::InvalidDefinition { .. } => SqlState::INVALID_OBJECT_DEFINITION,
            Error::TooManyColumns { .. } => SqlState::TOO_MANY_COLUMNS,
            Error::InvalidColumnReference(_) => SqlState::INVALID_COLUMN_REFERENCE,
            Error::Grouping(_) => SqlState::GROUPING_ERROR,
            Error::DatatypeMismatch(_) => SqlState::DATATYPE_MISMATCH,
            Error::CannotCast { .. } => SqlState::CANNOT_COERCE,
            Error::InvalidText { ty, .. } if is_datetime(ty) => SqlState::INVALID_DATETIME_FORMAT,
            Error::InvalidText { .. } => SqlState::INVALID_TEXT_REPRESENTATION,
            Error::OutOfRange { ty, .. } if is_datetime(ty) => SqlState::DATETIME_FIELD_OVERFLOW,
            Error::OutOfRange { .. } => SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
            Error::StringTooLong { .. } => SqlState::STRING_DATA_RIGHT_TRUNCATION,
            Error::InvalidEncoding { .. } => SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            Error::DivisionByZero => SqlState::DIVISION_BY_ZERO,
            Error::InvalidLogarithm(_) => SqlState::INVALID_ARGUMENT_FOR_LOGARITHM,
            Error::InvalidPower(_) => SqlState::INVALID_ARGUMENT_FOR_POWER_FUNCTION,
            Error::InvalidEscape(_) => SqlState::INVALID_ESCAPE_SEQUENCE,
            Error::Cardinality | Error::AffectedTwice { .. } => SqlState::CARDINALITY_VIOLATION,
            Error::NoRows => SqlState::NO_DATA,
            Error::UnexpectedNull { .. } => SqlState::NULL_VALUE_NO_INDICATOR,
            Error::Evaluation(_) => SqlState::DATA_EXCEPTION,
            Error::InvalidParameter { .. } => SqlState::INVALID_PARAMETER_VALUE,
            Error::Constraint { kind: ConstraintKind::NotNull, .. } => SqlState::NOT_NULL_VIOLATION,
            Error::Constraint { .. } => SqlState::UNIQUE_VIOLATION,
            Error::CheckViolation { .. } => SqlState::CHECK_VIOLATION,
            Error::MissingReference { .. } | Error::StillReferenced { .. } => SqlState::FOREIGN_KEY_VIOLATION,
            Error::Conflict { .. } => SqlState::SERIALIZATION_FAILURE,
            Error::Deadlock => SqlState::DEADLOCK_DETECTED,
            Error::LockTimeout | Error::LockNotAvailable { .. } => SqlState::LOCK_NOT_AVAILABLE,
            Error::ActiveTransaction(_) => SqlState::ACTIVE_SQL_TRANSACTION,
            Error::NoActiveTransaction(_) => SqlState::NO_ACTIVE_SQL_TRANSACTION,
            Error::FailedTransaction => SqlState::IN_FAILED_SQL_TRANSACTION,
            Error::TransactionTimeout => SqlState::TRANSACTION_TIMEOUT,
            Error::ReadOnlyTransaction { .. } | Error::ReadOnlyDatabase { .. } => SqlState::READ_ONLY_SQL_TRANSACTION,
            Error::RowidsExhausted { .. } => SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
            Error::Import { source, .. } | Error::Context { source, .. } | Error::Located { source, .. } => {
                source.sqlstate()
            }
            Error::InvalidFile(_) => SqlState::BAD_COPY_FILE_FORMAT,
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => SqlState::UNDEFINED_FILE,
                io::ErrorKind::AlreadyExists => SqlState::DUPLICATE_FILE,
                io::ErrorKind::PermissionDenied => SqlState::INSUFFICIENT_PRIVILEGE,
                io::ErrorKind::IsADirectory => SqlState::WRONG_OBJECT_TYPE,
                _ => SqlState::IO_ERROR,
            },
            Error::DiskFull { .. } | Error::SpillLimit { .. } => SqlState::DISK_FULL,
            Error::Corrupt { .. } => SqlState::DATA_CORRUPTED,
            Error::NotADatabase { .. } => SqlState::INVALID_CATALOG_NAME,
            Error::Locked { .. } => SqlState::OBJECT_IN_USE,
            Error::FileAccess { .. } => SqlState::INSUFFICIENT_PRIVILEGE,
            Error::OutOfMemory { .. } | Error::TooManyLocks => SqlState::OUT_OF_MEMORY,
            Error::PinTooLarge { .. } => SqlState::INSUFFICIENT_RESOURCES,
            Error::PrerequisiteState(_) | Error::IndexUnusable { .. } => SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            Error::Cancelled => SqlState::QUERY_CANCELED,
            Error::Terminated => SqlState::ADMIN_SHUTDOWN,
            Error::Store(error) => below::sqlstate(error),
            Error::ObjectStore(error) => below::sqlstate_of_publish(error),
            Error::Cluster(_) => SqlState::CONNECTION_FAILURE,
            Error::Remote { state, .. } => *state,
            Error::Internal(_) => SqlState::INTERNAL_ERROR,
        }
    }
}
