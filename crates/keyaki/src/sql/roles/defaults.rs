//! ALTER DEFAULT PRIVILEGES: privileges for objects that a role will create.
//!
//! They belong to the role that creates the objects, and are stored in its definition. The privileges for all schemas and the privileges for the
//! schema of an object add up.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::parser::Parser;
use keyaki_store::WriteBatch;

use super::grants::{parse_grantees, wanted};
use super::words::{accept, expect, identifier, list, next, role_name, unexpected};
use super::{RoleName, RoleStatement};
use crate::base::interrupt::Execution;
use crate::catalog::{Access, Catalog, DefaultKind, DefaultPrivileges, DocumentKind, Privileges, RoleDef, put};
use crate::sql::{Outcome, SqlSession, schemas};
use crate::{Error, ObjectKind, Result};

/// A parsed statement.
#[derive(Debug)]
pub(in crate::sql) struct AlterDefaults {
    /// The roles that create the objects; empty for the current user.
    roles: Vec<RoleName>,
    /// Empty for all schemas.
    schemas: Vec<Ident>,
    is_grant: bool,
    /// WITH GRANT OPTION, or GRANT OPTION FOR.
    grant_option: bool,
    /// `None` for ALL PRIVILEGES.
    privileges: Option<Vec<String>>,
    kind: DefaultKind,
    /// `None` for PUBLIC.
    grantees: Vec<Option<RoleName>>,
}

/// Parses the statement behind ALTER DEFAULT.
///
/// # Errors
/// `Syntax`, `Unsupported`.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<RoleStatement> {
    expect(parser, &["PRIVILEGES"])?;
    let (mut roles, mut schemas) = (Vec::new(), Vec::new());
    loop {
        if accept(parser, &["FOR", "ROLE"]) || accept(parser, &["FOR", "USER"]) {
            roles.extend(list(parser, role_name)?);
        } else if accept(parser, &["IN", "SCHEMA"]) {
            schemas.extend(list(parser, identifier)?);
        } else {
            break;
        }
    }
    let is_grant = accept(parser, &["GRANT"]);
    if !is_grant {
        expect(parser, &["REVOKE"])?;
    }
    let mut grant_option = !is_grant && accept(parser, &["GRANT", "OPTION", "FOR"]);
    let privileges = match accept(parser, &["ALL"]) {
        true => {
            let _ = accept(parser, &["PRIVILEGES"]);
            None
        }
        false => {
            let word = |parser: &mut Parser<'_>| next(parser).ok_or_else(|| unexpected(parser, "a privilege"));
            Some(list(parser, word)?)
        }
    };
    expect(parser, &["ON"])?;
    let kind = match next(parser).unwrap_or_default().as_str() {
        "TABLES" => DefaultKind::Tables,
        "SEQUENCES" => DefaultKind::Sequences,
        "SCHEMAS" if schemas.is_empty() => DefaultKind::Schemas,
        "SCHEMAS" => return Err(Error::InvalidGrant("cannot use IN SCHEMA with default privileges on SCHEMAS".into())),
        "" => return Err(unexpected(parser, "TABLES, SEQUENCES or SCHEMAS")),
        other => return Err(Error::Unsupported(format!("default privileges on {other}"))),
    };
    let grantees = parse_grantees(parser, is_grant)?;
    grant_option |= is_grant && accept(parser, &["WITH", "GRANT", "OPTION"]);
    let _ = !is_grant && (accept(parser, &["CASCADE"]) || accept(parser, &["RESTRICT"]));
    let alter = AlterDefaults { roles, schemas, is_grant, grant_option, privileges, kind, grantees };
    Ok(RoleStatement::Defaults(Box::new(alter)))
}

/// Executes a statement.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, alter: AlterDefaults) -> Result<Outcome> {
    const TAG: &str = "ALTER DEFAULT PRIVILEGES";
    let writer = session.writer(execution, TAG).await?;
    let (catalog, _) = session.engine.latest(&writer);
    let authority = session.authority(&catalog)?;
    let own = [RoleName::CurrentUser];
    let roles = if alter.roles.is_empty() { &own[..] } else { &alter.roles[..] };
    let schema = |ident: &Ident| schemas::known(&catalog, &ObjectName::from(vec![ident.clone()])).map(Some);
    let mut of_schemas = alter.schemas.iter().map(schema).collect::<Result<Vec<_>>>()?;
    if of_schemas.is_empty() {
        of_schemas.push(None);
    }
    let existing =
        |grantee: &Option<RoleName>| grantee.as_ref().map(|grantee| grantee.existing(session, &catalog)).transpose();
    let grantees = alter.grantees.iter().map(existing).collect::<Result<Vec<_>>>()?;
    if alter.is_grant && alter.grant_option && grantees.contains(&None) {
        return Err(Error::InvalidGrant("grant options can only be granted to roles".into()));
    }
    let kind = match alter.kind {
        DefaultKind::Tables => ObjectKind::Table,
        DefaultKind::Sequences => ObjectKind::Sequence,
        DefaultKind::Schemas => ObjectKind::Schema,
    };
    let privileges = wanted(alter.privileges.as_deref(), alter.kind.privileges(), kind)?;
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    for role in roles {
        let name = role.existing(session, &catalog)?;
        let Some(def) = changed.roles.get(&name).cloned() else {
            return Err(Error::Unsupported(format!("default privileges of the predefined role \"{name}\"")));
        };
        if !authority.is_member_of(&name) {
            return Err(Error::InsufficientPrivilege(format!("must be member of role \"{name}\"")));
        }
        let mut new = RoleDef::clone(&def);
        for schema in &of_schemas {
            alter.apply(&mut new, schema.as_deref(), privileges, &grantees);
        }
        if new != *def {
            put(&mut batch, DocumentKind::Role, &name, &new)?;
            changed.roles.insert(name, Arc::new(new));
        }
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done(TAG))
}

impl AlterDefaults {
    /// Changes the default privileges of a role for a schema, or for all.
    fn apply(&self, role: &mut RoleDef, schema: Option<&str>, privileges: Privileges, grantees: &[Option<String>]) {
        let owner = role.name.clone();
        let is_same = |defaults: &DefaultPrivileges| defaults.kind == self.kind && defaults.schema.as_deref() == schema;
        let place = role.defaults.iter().position(is_same).unwrap_or_else(|| {
            let (schema, access) = (schema.map(Into::into), Access::owned_by(Some(owner.clone())));
            role.defaults.push(DefaultPrivileges { kind: self.kind, schema, access });
            role.defaults.len() - 1
        });
        let access = &mut role.defaults[place].access;
        // The role itself holds all privileges.
        for to in grantees.iter().filter(|to| to.as_ref() != Some(&owner)) {
            if self.is_grant {
                let grantable = if self.grant_option { privileges } else { Privileges::NONE };
                access.grant(to.as_deref(), Some(&owner), privileges, grantable);
            } else {
                access.revoke(to.as_deref(), Some(&owner), privileges, self.grant_option);
            }
        }
        role.retain_defaults();
    }
}

/// Renames a schema in the default privileges of all roles; without a new name, removes those for the schema.
///
/// # Errors
/// None is expected.
pub(in crate::sql) fn change_default_schema(
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    old: &str,
    new: Option<&str>,
) -> Result<()> {
    for role in changed.roles.values_mut() {
        let is_of = |defaults: &DefaultPrivileges| defaults.schema.as_deref() == Some(old);
        if !role.defaults.iter().any(is_of) {
            continue;
        }
        let mut def = RoleDef::clone(role);
        match new {
            Some(new) => {
                let of_schema = def.defaults.iter_mut().filter(|defaults| is_of(defaults));
                of_schema.for_each(|defaults| defaults.schema = Some(new.into()));
            }
            None => def.defaults.retain(|defaults| !is_of(defaults)),
        }
        put(batch, DocumentKind::Role, &def.name, &def)?;
        *role = Arc::new(def);
    }
    Ok(())
}
