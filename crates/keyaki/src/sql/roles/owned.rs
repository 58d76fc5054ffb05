//! REASSIGN OWNED and DROP OWNED: the objects of roles that are to be dropped.
//!
//! DROP OWNED drops the objects that belong to the roles, and revokes the privileges that were granted to them, also those for
//! objects of others and in default privileges.

use keyaki_store::WriteBatch;

use super::RoleName;
use super::define::change_access;
use super::grants::give_all;
use crate::base::interrupt::Execution;
use crate::catalog::{Access, Catalog, DocumentKind, PUBLIC, RelationName, RoleDef, put, remove};
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession, ddl, sequences, views};
use crate::{Error, Result};

/// The names of roles whose objects the session may change.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` unless the session is a member of all; `Unsupported` for predefined roles.
fn permitted(session: &SqlSession, catalog: &Catalog, roles: &[RoleName]) -> Result<Vec<String>> {
    let authority = session.authority(catalog)?;
    let permitted = |role: &RoleName| {
        let name = role.existing(session, catalog)?;
        if !catalog.roles.contains_key(&name) {
            return Err(Error::Unsupported(format!("objects of the predefined role \"{name}\"")));
        }
        match authority.is_member_of(&name) {
            true => Ok(name),
            false => Err(Error::InsufficientPrivilege(format!("must be member of role \"{name}\""))),
        }
    };
    roles.iter().map(permitted).collect()
}

/// REASSIGN OWNED.
pub(super) async fn reassign(
    session: &SqlSession,
    execution: &Execution<'_>,
    owners: &[RoleName],
    new: &RoleName,
) -> Result<Outcome> {
    const TAG: &str = "REASSIGN OWNED";
    let writer = session.writer(execution, TAG).await?;
    let (catalog, _) = session.engine.latest(&writer);
    let owners = permitted(session, &catalog, owners)?;
    let new = permitted(session, &catalog, std::slice::from_ref(new))?;
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    give_all(&catalog, &mut changed, &mut batch, &owners, &new[0])?;
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done(TAG))
}

/// DROP OWNED.
pub(super) async fn drop(
    session: &SqlSession,
    execution: &Execution<'_>,
    owners: &[RoleName],
    cascades: bool,
) -> Result<Outcome> {
    const TAG: &str = "DROP OWNED";
    let writer = session.writer(execution, TAG).await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let owners = permitted(session, &catalog, owners)?;
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    Owned::of(&catalog, &owners, cascades)?.drop_from(&state, &mut changed, &mut batch, cascades)?;
    change_access(&mut changed, &mut batch, |access| owners.iter().for_each(|owner| access.forget_grantee(owner)))?;
    for owner in &owners {
        let Some(def) = changed.roles.get(owner).filter(|def| !def.defaults.is_empty()).cloned() else { continue };
        let def = RoleDef { defaults: Vec::new(), ..RoleDef::clone(&def) };
        put(&mut batch, DocumentKind::Role, owner, &def)?;
        changed.roles.insert(owner.clone(), def.into());
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done(TAG))
}

/// The objects of roles.
struct Owned {
    schemas: Vec<String>,
    relations: Vec<RelationName>,
    sequences: Vec<RelationName>,
}

impl Owned {
    /// The objects of roles; with CASCADE, also those of others in their schemas.
    ///
    /// # Errors
    /// `DependentColumn` if a schema has objects of others, without CASCADE; `Unsupported` for the schema `public`.
    fn of(catalog: &Catalog, owners: &[String], cascades: bool) -> Result<Owned> {
        let is_owned = |access: &Access| access.owner.as_ref().is_some_and(|owner| owners.contains(owner));
        let schemas = catalog.schema_access.iter().filter(|(_, access)| is_owned(access));
        let schemas: Vec<String> = schemas.map(|(name, _)| name.clone()).collect();
        if schemas.iter().any(|name| name == PUBLIC) {
            let problem = "DROP OWNED of the owner of schema \"public\" (use ALTER SCHEMA public OWNER TO first)";
            return Err(Error::Unsupported(problem.into()));
        }
        let is_in = |name: &RelationName| schemas.iter().any(|schema| **schema == *name.schema);
        let mut foreign = None;
        let mut is_dropped = |name: &RelationName, access: &Access| {
            let owned = is_owned(access);
            if !owned && is_in(name) && !cascades {
                foreign.get_or_insert_with(|| name.clone());
            }
            owned || is_in(name)
        };
        let mut relations: Vec<RelationName> = Vec::new();
        let tables = catalog.tables.values().map(|table| (&table.def.name, &table.def.access));
        let views = catalog.views.values().map(|view| (&view.name, &view.access));
        relations.extend(
            tables.chain(views).filter(|(name, access)| is_dropped(name, access)).map(|(name, _)| name.clone()),
        );
        let sequences = catalog.sequences.iter().filter(|(name, def)| is_dropped(name, &def.access));
        let sequences = sequences.map(|(name, _)| name.clone()).collect();
        match foreign {
            Some(name) => {
                let action = format!("drop schema \"{}\"", name.schema);
                Err(Error::DependentColumn { action, dependent: format!("\"{name}\"") })
            }
            None => Ok(Owned { schemas, relations, sequences }),
        }
    }

    /// Removes the objects from a catalog.
    ///
    /// # Errors
    /// Without CASCADE, if objects of others depend on them.
    fn drop_from(
        self,
        state: &StatementState,
        changed: &mut Catalog,
        batch: &mut WriteBatch,
        cascades: bool,
    ) -> Result<()> {
        let Owned { schemas, relations, sequences } = self;
        for name in &relations {
            if !ddl::remove_from(changed, batch, name)? {
                remove(batch, DocumentKind::View, name)?;
                changed.views.remove(name);
            }
        }
        for table in relations.iter().filter_map(|name| state.catalog.tables.get(name)) {
            let action = format!("drop table \"{}\"", table.def.name);
            let permitted = if cascades { Ok(()) } else { Err(action.as_str()) };
            sequences::without_users_of(changed, batch, &table.def, permitted)?;
        }
        if cascades {
            ddl::drop_dependents(state, relations, changed, batch)?;
        } else {
            for name in &relations {
                ddl::check_unreferenced(changed, name, &[], &format!("drop table \"{name}\""))?;
            }
            views::check_unused(state, &relations)?;
        }
        for name in &sequences {
            sequences::remove_from(changed, batch, name, cascades)?;
        }
        for schema in schemas {
            remove(batch, DocumentKind::Schema, &schema)?;
            changed.schemas.remove(&schema);
            changed.schema_comments.remove(&schema);
            changed.schema_access.remove(&schema);
            super::change_default_schema(changed, batch, &schema, None)?;
        }
        Ok(())
    }
}
