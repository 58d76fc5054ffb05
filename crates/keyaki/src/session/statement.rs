//! Prepared statements of the blocking API.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};

use super::Prepared;
use super::arrow_rows::ArrowRows;
use super::connection::Shared;
use super::params::Params;
use super::rows::{MappedRows, Row, Rows};
use crate::base::json_fields::json_type;
use crate::base::type_name;
use crate::{Error, Result};

/// A statement with parameters (`$1`, `$2` … or `?`), parsed once and executed many times.
///
/// A statement stays valid if its tables change: it is planned again. It keeps its connection open.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// connection.execute("CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT NOT NULL)", ())?;
/// let insert = connection.prepare("INSERT INTO city VALUES ($1, $2)")?;
/// for (id, name) in [(1, "Aomori"), (2, "Sendai")] {
///     insert.execute((id, name))?;
/// }
/// let find = connection.prepare("SELECT name FROM city WHERE id = $1")?;
/// assert_eq!(find.parameter_type_name(0).as_deref(), Some("integer"));
/// assert_eq!(find.query_row((2,), |row| row.get::<_, String>("name"))?, "Sendai");
/// assert!(!find.exists((3,))?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Statement {
    shared: Arc<Shared>,
    prepared: Prepared,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The name.
    pub name: String,
    /// PostgreSQL's name of the type.
    pub type_name: String,
    /// The Arrow type.
    pub data_type: DataType,
}

/// The columns of a schema.
pub(super) fn described(schema: &SchemaRef) -> Vec<Column> {
    let column = |field: &arrow::datatypes::FieldRef| Column {
        name: field.name().clone(),
        type_name: match json_type(field) {
            Some(json) => type_name(field.data_type()).replacen("text", json.name(), 1),
            None => type_name(field.data_type()),
        },
        data_type: field.data_type().clone(),
    };
    schema.fields().iter().map(column).collect()
}

impl Statement {
    pub(super) fn new(shared: &Arc<Shared>, prepared: Prepared) -> Statement {
        Statement { shared: shared.clone(), prepared }
    }

    /// Executes the statement and returns the number of rows that it has inserted, updated, deleted or copied; 0 for
    /// other statements. The rows of a query are discarded.
    ///
    /// # Errors
    /// `ParameterCount`; `Context` with the parameter for a value that cannot be converted to its type; errors of the
    /// statement; `Cancelled`.
    pub fn execute(&self, params: impl Params) -> Result<u64> {
        params.with_values(|values| self.shared.change_prepared(&self.prepared, values))
    }

    /// Executes the statement and returns its rows; no rows for statements other than queries.
    ///
    /// # Errors
    /// As [`Statement::execute`]. Errors during the execution of a query come with its rows.
    pub fn query(&self, params: impl Params) -> Result<Rows> {
        params.with_values(|values| self.shared.query_prepared(&self.prepared, values)).map(Rows::new)
    }

    /// As [`Statement::query`], with Arrow batches instead of rows.
    ///
    /// # Errors
    /// As [`Statement::query`].
    pub fn query_arrow(&self, params: impl Params) -> Result<ArrowRows> {
        params.with_values(|values| self.shared.query_prepared(&self.prepared, values)).map(ArrowRows::new)
    }

    /// Executes a query and returns an iterator over its rows, converted by `map`.
    ///
    /// # Errors
    /// As [`Statement::query`].
    pub fn query_map<T, F: FnMut(&Row<'_>) -> Result<T>>(&self, params: impl Params, map: F) -> Result<MappedRows<F>> {
        Ok(self.query(params)?.mapped(map))
    }

    /// Executes a query and converts its first row. Further rows are not read.
    ///
    /// # Errors
    /// `NoRows` if there is no row (see [`Optional`](crate::Optional)); errors of the query and of `map`.
    pub fn query_row<T>(&self, params: impl Params, map: impl FnOnce(&Row<'_>) -> Result<T>) -> Result<T> {
        match self.query(params)?.next()? {
            Some(row) => map(&row),
            None => Err(Error::NoRows),
        }
    }

    /// True if the query returns a row.
    ///
    /// # Errors
    /// Errors of the query.
    pub fn exists(&self, params: impl Params) -> Result<bool> {
        Ok(self.query(params)?.next()?.is_some())
    }

    /// The text of the statement.
    pub fn sql(&self) -> &str {
        self.prepared.sql()
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.prepared.parameters().len()
    }

    /// The types of the parameters, as of the preparation; `None` for parameters that take values of any type.
    pub fn parameter_types(&self) -> &[Option<DataType>] {
        self.prepared.parameters()
    }

    /// PostgreSQL's name of the type of a parameter, counted from 0; `None` for parameters that take values of any type
    /// and for parameters that the statement does not have.
    pub fn parameter_type_name(&self, parameter: usize) -> Option<String> {
        self.parameter_types().get(parameter)?.as_ref().map(type_name)
    }

    /// The columns of the result, as of the preparation. Empty for statements that return no rows, for EXPLAIN and SHOW,
    /// and for queries whose columns depend on the values of parameters: [`Rows::schema`] describes all results.
    pub fn columns(&self) -> Vec<Column> {
        self.prepared.columns().map(described).unwrap_or_default()
    }

    /// The schema of [`Statement::columns`]; `None` if these are unknown or empty.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.prepared.columns()
    }

    /// The names of [`Statement::columns`].
    pub fn column_names(&self) -> Vec<&str> {
        let fields = self.prepared.columns().map(|schema| schema.fields().iter());
        fields.into_iter().flatten().map(|field| field.name().as_str()).collect()
    }
}
