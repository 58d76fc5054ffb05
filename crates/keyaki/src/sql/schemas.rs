//! Schemas: CREATE SCHEMA, ALTER SCHEMA … RENAME TO, DROP SCHEMA, and the functions `current_schema` and
//! `current_schemas`.
//!
//! A schema is a name in the catalog. The names of its objects contain it, as do definitions of other objects that use
//! these: a renamed schema is renamed in all of them ([`super::renames`]).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{AlterSchema, AlterSchemaOperation, ObjectName, ObjectNamePart, SchemaName};
use keyaki_store::WriteBatch;

use super::names::{SearchPath, new_schema_name, schema_name};
use super::state::StatementState;
use super::{Outcome, SqlSession, access, ddl, notices, renames, roles, sequences};
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, DefaultKind, DocumentKind, PUBLIC, RelationName, put_schema, remove};
use crate::{Error, ObjectKind, Result};

pub(super) async fn create(
    session: &SqlSession,
    execution: &Execution<'_>,
    name: &SchemaName,
    if_not_exists: bool,
) -> Result<Outcome> {
    let SchemaName::Simple(name) = name else {
        return Err(Error::Unsupported("AUTHORIZATION in CREATE SCHEMA".into()));
    };
    let name = new_schema_name(name)?;
    let writer = session.writer(execution, "CREATE SCHEMA").await?;
    let (catalog, _) = session.engine.latest(&writer);
    match catalog.has_schema(&name) {
        true if if_not_exists => {
            notices::schema_exists(session, &name);
            return Ok(Outcome::done("CREATE SCHEMA"));
        }
        true => return Err(Error::AlreadyExists { kind: ObjectKind::Schema, name }),
        false => {}
    }
    access::schema_creation(session, &catalog)?;
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    changed.schemas.insert(name.clone());
    let access = access::new_access(session, &catalog, DefaultKind::Schemas, None)?;
    if !access.is_default() {
        changed.schema_access.insert(name.clone(), Arc::new(access));
    }
    put_schema(&mut batch, &changed, &name)?;
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("CREATE SCHEMA"))
}

/// The name of a schema that exists, and is neither `public` nor one of temporary objects.
///
/// # Errors
/// `NotFound`, `InvalidDefinition`.
fn existing(catalog: &Catalog, name: &ObjectName, action: &str) -> Result<String> {
    let name = known(catalog, name)?;
    if name == PUBLIC {
        let problem = format!("cannot {action} schema \"{PUBLIC}\": every database has it");
        return Err(Error::InvalidDefinition { kind: ObjectKind::Schema, problem });
    }
    Ok(name)
}

/// The name of a schema that exists, and is not one of temporary objects.
///
/// # Errors
/// `NotFound`.
pub(super) fn known(catalog: &Catalog, name: &ObjectName) -> Result<String> {
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else {
        return Err(Error::NotFound { kind: ObjectKind::Schema, name: name.to_string() });
    };
    let name = schema_name(ident);
    match name == PUBLIC || catalog.schemas.contains(&name) {
        true => Ok(name),
        false => Err(Error::NotFound { kind: ObjectKind::Schema, name }),
    }
}

/// DROP SCHEMA. With CASCADE, its objects are dropped, and what depends on them.
pub(super) async fn drop(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
    cascades: bool,
) -> Result<Outcome> {
    let writer = session.writer(execution, "DROP SCHEMA").await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    let mut schemas = Vec::new();
    for name in names {
        match existing(&catalog, name, "drop") {
            Err(Error::NotFound { name, .. }) if if_exists => notices::missing(session, "schema", &name),
            name => {
                let name = name?;
                access::schema_owner(session, &catalog, &name)?;
                schemas.push(name);
            }
        }
    }
    let is_dropped = |name: &&RelationName| schemas.iter().any(|schema| **schema == *name.schema);
    let sequences: Vec<&RelationName> = catalog.sequences.keys().filter(is_dropped).collect();
    let relations: Vec<RelationName> =
        catalog.tables.keys().chain(catalog.views.keys()).filter(is_dropped).cloned().collect();
    if let Some(name) = relations.first().or(sequences.first().copied()).filter(|_| !cascades) {
        let action = format!("drop schema \"{}\"", name.schema);
        return Err(Error::DependentColumn { action, dependent: format!("\"{name}\"") });
    }
    for name in &relations {
        if !ddl::remove_from(&mut changed, &mut batch, name)? {
            remove(&mut batch, DocumentKind::View, name)?;
            changed.views.remove(name);
        }
    }
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    ddl::drop_dependents(&state, relations.clone(), &mut changed, &mut batch)?;
    for table in relations.iter().filter_map(|name| catalog.tables.get(name)) {
        sequences::without_users_of(&mut changed, &mut batch, &table.def, Ok(()))?;
    }
    for name in sequences {
        sequences::remove_from(&mut changed, &mut batch, name, true)?;
    }
    for schema in schemas {
        remove(&mut batch, DocumentKind::Schema, &schema)?;
        changed.schemas.remove(&schema);
        changed.schema_comments.remove(&schema);
        changed.schema_access.remove(&schema);
        roles::change_default_schema(&mut changed, &mut batch, &schema, None)?;
    }
    if cascades {
        notices::cascaded(session, &catalog, &changed, &[]);
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP SCHEMA"))
}

/// ALTER SCHEMA … RENAME TO.
pub(super) async fn alter(session: &SqlSession, execution: &Execution<'_>, alter: &AlterSchema) -> Result<Outcome> {
    if let [AlterSchemaOperation::OwnerTo { owner }] = alter.operations.as_slice() {
        return change_owner(session, execution, alter, &roles::owner_of(owner)).await;
    }
    let [AlterSchemaOperation::Rename { name: new }] = alter.operations.as_slice() else {
        return Err(Error::Unsupported(format!("{alter}")));
    };
    let new = new_schema_name(new)?;
    let writer = session.writer(execution, "ALTER SCHEMA").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let old = match existing(&catalog, &alter.name, "rename") {
        Err(Error::NotFound { name, .. }) if alter.if_exists => {
            notices::missing(session, "schema", &name);
            return Ok(Outcome::done("ALTER SCHEMA"));
        }
        name => name?,
    };
    access::schema_owner(session, &catalog, &old)?;
    access::schema_creation(session, &catalog)?;
    if catalog.has_schema(&new) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Schema, name: new });
    }
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    let schema: Arc<str> = new.clone().into();
    let renamed =
        |name: &RelationName| (*name.schema == *old).then(|| RelationName::new(schema.clone(), name.name.clone()));
    renames::apply(&mut changed, &mut batch, &renamed)?;
    remove(&mut batch, DocumentKind::Schema, &old)?;
    let comment = changed.schema_comments.remove(&old);
    changed.schema_comments.extend(comment.map(|comment| (new.clone(), comment)));
    let access = changed.schema_access.remove(&old);
    changed.schema_access.extend(access.map(|access| (new.clone(), access)));
    changed.schemas.remove(&old);
    changed.schemas.insert(new.clone());
    put_schema(&mut batch, &changed, &new)?;
    roles::change_default_schema(&mut changed, &mut batch, &old, Some(&new))?;
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("ALTER SCHEMA"))
}

/// ALTER SCHEMA … OWNER TO.
async fn change_owner(
    session: &SqlSession,
    execution: &Execution<'_>,
    alter: &AlterSchema,
    owner: &roles::RoleName,
) -> Result<Outcome> {
    let writer = session.writer(execution, "ALTER SCHEMA").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let name = match known(&catalog, &alter.name) {
        Err(Error::NotFound { name, .. }) if alter.if_exists => {
            notices::missing(session, "schema", &name);
            return Ok(Outcome::done("ALTER SCHEMA"));
        }
        name => name?,
    };
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    roles::change_owner(session, &catalog, &mut changed, &mut batch, &roles::Owned::Schema(name), owner)?;
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("ALTER SCHEMA"))
}

/// `current_schema()`, the schema of new objects, or `current_schemas(boolean)`, the schemas of the search path that exist.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Current {
    all: bool,
    schemas: Vec<String>,
    signature: Signature,
}

impl Current {
    fn new(all: bool, schemas: Vec<String>) -> Current {
        let signature = match all {
            true => Signature::exact(vec![DataType::Boolean], Volatility::Stable),
            false => Signature::nullary(Volatility::Stable),
        };
        Current { all, schemas, signature }
    }
}

impl ScalarUDFImpl for Current {
    fn name(&self) -> &str {
        if self.all { "current_schemas" } else { "current_schema" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        let text = DataType::Utf8View;
        Ok(if self.all { DataType::List(Arc::new(Field::new_list_field(text, true))) } else { text })
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> datafusion::error::Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(match self.all {
            true => {
                let schemas: Vec<ScalarValue> =
                    self.schemas.iter().map(|name| ScalarValue::Utf8View(Some(name.clone()))).collect();
                ScalarValue::List(ScalarValue::new_list_nullable(&schemas, &DataType::Utf8View))
            }
            false => ScalarValue::Utf8View(self.schemas.first().cloned()),
        }))
    }
}

/// Adds the functions to the state of a statement.
pub(super) fn register_for(state: &mut SessionState, catalog: &Catalog, path: &SearchPath) -> Result<()> {
    let schemas: Vec<String> = path.schemas(catalog).map(Into::into).collect();
    for all in [false, true] {
        state.register_udf(Arc::new(ScalarUDF::new_from_impl(Current::new(all, schemas.clone()))))?;
    }
    Ok(())
}
