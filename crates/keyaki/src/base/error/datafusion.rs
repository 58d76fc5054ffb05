//! Errors of DataFusion, Arrow and Parquet.
//!
//! Typed variants are matched first. DataFusion provides only text for most errors of planning and evaluation;
//! [`patterns`] has tables of these texts. Wrappers (context, diagnostics, errors shared between partitions) are
//! removed.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use ::datafusion::arrow::error::ArrowError;
use ::datafusion::common::{Column, SchemaError};
use ::datafusion::error::DataFusionError;
use ::datafusion::parquet::errors::ParquetError;
use ::datafusion::sql::sqlparser::parser::ParserError;

use super::{Error, below, parser, patterns, similar};
use crate::base::identifiers::REPEATED;

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        convert(&error)
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        arrow(&error)
    }
}

impl From<&ArrowError> for Error {
    fn from(error: &ArrowError) -> Self {
        arrow(error)
    }
}

impl From<ParquetError> for Error {
    fn from(error: ParquetError) -> Self {
        parquet(&error)
    }
}

/// Takes a reference because partitions of a query share errors.
fn convert(error: &DataFusionError) -> Error {
    use DataFusionError as D;
    match error {
        D::ArrowError(error, _) => arrow(error),
        D::ParquetError(error) => parquet(error),
        D::ObjectStore(error) => Error::InvalidFile(error.to_string()),
        D::IoError(error) => io(error),
        D::SQL(error, _) => parser::syntax(ParserError::clone(error)),
        D::NotImplemented(message) => patterns::not_implemented(message),
        D::Plan(message) | D::Configuration(message) => patterns::plan(message),
        D::SchemaError(error, _) => schema(error),
        D::Execution(message) => patterns::evaluation(message),
        D::ExecutionJoin(error) => Error::task(error),
        D::ResourcesExhausted(message) => patterns::resources(message),
        D::External(error) => below::external(&**error),
        D::Context(_, error) | D::Diagnostic(_, error) => convert(error),
        D::Collection(errors) => {
            errors.first().map_or_else(|| Error::Internal("an empty list of errors".into()), convert)
        }
        D::Shared(error) => convert(error),
        D::Internal(message) => patterns::internal(message),
        D::Substrait(message) | D::Ffi(message) => Error::Internal(message.clone()),
    }
}

/// A boxed error of a library.
pub(super) fn external(error: &(dyn StdError + Send + Sync + 'static)) -> Error {
    if let Some(error) = error.downcast_ref::<DataFusionError>() {
        convert(error)
    } else if let Some(error) = error.downcast_ref::<Arc<DataFusionError>>() {
        convert(error)
    } else if let Some(error) = error.downcast_ref::<ArrowError>() {
        arrow(error)
    } else if let Some(error) = error.downcast_ref::<ParquetError>() {
        parquet(error)
    } else if let Some(error) = error.downcast_ref::<std::io::Error>() {
        io(error)
    } else if let Some(error) = error.downcast_ref::<ParserError>() {
        parser::syntax(error.clone())
    } else {
        patterns::internal(&error.to_string())
    }
}

fn arrow(error: &ArrowError) -> Error {
    use ArrowError as A;
    match error {
        A::DivideByZero => Error::DivisionByZero,
        A::ArithmeticOverflow(message) => patterns::overflow(message),
        A::CastError(message)
        | A::ParseError(message)
        | A::ComputeError(message)
        | A::InvalidArgumentError(message) => patterns::evaluation(message),
        A::NotYetImplemented(message) => patterns::not_implemented(message),
        A::ExternalError(error) => below::external(&**error),
        A::IoError(_, error) => io(error),
        A::CsvError(message) | A::JsonError(message) | A::AvroError(message) | A::ParquetError(message) => {
            Error::InvalidFile(parser::decapitalized(message))
        }
        A::OffsetOverflowError(_) | A::DictionaryKeyOverflowError | A::RunEndIndexOverflowError => {
            Error::Evaluation("the texts of a batch exceed 2 GiB (reduce datafusion.execution.batch_size)".into())
        }
        A::MemoryError(message) | A::SchemaError(message) | A::IpcError(message) | A::CDataInterface(message) => {
            Error::Internal(message.clone())
        }
    }
}

fn parquet(error: &ParquetError) -> Error {
    match error {
        ParquetError::External(error) => below::external(&**error),
        ParquetError::General(message) | ParquetError::EOF(message) | ParquetError::ArrowError(message) => {
            Error::InvalidFile(parser::decapitalized(message))
        }
        ParquetError::NYI(message) => patterns::not_implemented(message),
        other => Error::InvalidFile(other.to_string()),
    }
}

/// An I/O error of a library, which does not name the file: usually a temporary file of a query. COPY TO replaces the
/// path.
fn io(error: &std::io::Error) -> Error {
    if let Some(inner) = error.get_ref() {
        return below::external(inner);
    }
    Error::io("access", Path::new("temporary file"), std::io::Error::new(error.kind(), error.to_string()))
}

fn schema(error: &SchemaError) -> Error {
    match error {
        SchemaError::AmbiguousReference { field } => Error::AmbiguousColumn(field.name.clone()),
        SchemaError::DuplicateQualifiedField { qualifier, .. } => Error::DuplicateAlias(qualifier.table().into()),
        SchemaError::DuplicateUnqualifiedField { name } => Error::DuplicateColumn(name.clone()),
        SchemaError::FieldNotFound { field, valid_fields } => field_not_found(field, valid_fields),
    }
}

fn field_not_found(field: &Column, valid: &[Column]) -> Error {
    if let Some(relation) = &field.relation {
        let known = valid.iter().flat_map(|column| &column.relation).any(|known| known.table() == relation.table());
        if !known && !valid.is_empty() {
            return Error::MissingFromEntry(relation.table().into());
        }
    }
    let column = match &field.relation {
        Some(relation) => format!("{}.{}", relation.table(), field.name),
        None => field.name.clone(),
    };
    Error::UndefinedColumn { column, relation: None, similar: similar_columns(field, valid) }
}

/// The columns that resemble a column: with their tables if the statement reads several ones, or names a table.
fn similar_columns(field: &Column, valid: &[Column]) -> Vec<String> {
    let tables: HashSet<_> = valid.iter().map(|column| &column.relation).collect();
    let is_qualified = field.relation.is_some() || tables.len() > 1;
    let candidates = valid.iter().filter(|column| !column.name.starts_with("__")).map(|column| {
        let shown = match &column.relation {
            Some(relation) if is_qualified => format!("{}.{}", relation.table(), column.name),
            _ => column.name.clone(),
        };
        (column.name.trim_end_matches(REPEATED), shown)
    });
    similar(&field.name, candidates)
}
