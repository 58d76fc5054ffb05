//! DESCRIBE: the columns of a table, a view, a file or a query.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{ObjectName, Query};

use super::columns::shown_schema;
use super::state::StatementState;
use crate::base::type_name;
use crate::catalog::{ColumnDef, Privileges, SqlType, types};
use crate::sql::{Outcome, SqlSession, access, documents, sequences};
use crate::{JsonType, Result};

/// A column: name, type, and the text of its default or expression.
struct Described {
    name: String,
    ty: String,
    nullable: bool,
    default: Option<String>,
}

impl Described {
    fn of(column: &ColumnDef) -> Described {
        let identity = column.identity.as_ref().map(|identity| sequences::identity_sql(identity, column.ty.column));
        let generated = column.generated.as_ref().map(|sql| format!("GENERATED ALWAYS AS ({sql}) STORED"));
        let default = column.default.clone().or(identity).or(generated);
        Described { name: column.name.clone(), ty: column.ty.to_string(), nullable: column.nullable, default }
    }

    /// `json`: the type of the documents that are the values.
    fn of_field(field: &Field, json: Option<JsonType>) -> Described {
        let ty = types::from_arrow(field.data_type()).map(|ty| SqlType { json, ..ty.into() }.to_string());
        let ty = ty.unwrap_or_else(|_| type_name(field.data_type()).to_uppercase());
        Described { name: field.name().clone(), ty, nullable: field.is_nullable(), default: None }
    }
}

/// DESCRIBE of a relation.
///
/// # Errors
/// `NotFound`; errors of planning a view, or of a file.
pub(super) async fn relation(session: &SqlSession, name: &ObjectName) -> Result<Outcome> {
    let state = StatementState::reading(session)?;
    if let Ok(own) = state.relation(name)
        && let Some(table) = state.catalog.tables.get(&own)
    {
        access::relation_any(&state.authority, &state.catalog, &own, Privileges::OF_TABLES)?;
        return rows(table.def.columns.iter().map(Described::of).collect());
    }
    of_query(&state, *super::parse_query(&format!("SELECT * FROM {name}"))?).await
}

/// DESCRIBE of a query.
///
/// # Errors
/// Errors of planning.
pub(super) async fn query(session: &SqlSession, query: Query) -> Result<Outcome> {
    of_query(&StatementState::reading(session)?, query).await
}

async fn of_query(state: &StatementState, query: Query) -> Result<Outcome> {
    let plan = state.plan_query(query).await?;
    let schema = shown_schema(plan.schema().inner());
    let fields = schema.fields().iter().zip(documents::columns(&plan));
    rows(fields.map(|(field, json)| Described::of_field(field, json)).collect())
}

fn rows(columns: Vec<Described>) -> Result<Outcome> {
    let field = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let fields = [("column_name", false), ("data_type", false), ("is_nullable", false), ("column_default", true)];
    let schema = Arc::new(Schema::new(fields.map(|(name, nullable)| field(name, nullable)).to_vec()));
    let text = |of: &dyn Fn(&Described) -> Option<String>| -> ArrayRef {
        Arc::new(columns.iter().map(of).collect::<StringArray>())
    };
    let arrays = vec![
        text(&|column| Some(column.name.clone())),
        text(&|column| Some(column.ty.clone())),
        text(&|column| Some(if column.nullable { "YES" } else { "NO" }.into())),
        text(&|column| column.default.clone()),
    ];
    let batch = RecordBatch::try_new(schema.clone(), arrays)?;
    Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(vec![batch], schema, None)?)))
}
