//! Roles: CREATE, ALTER and DROP ROLE, memberships, SET ROLE and SET SESSION AUTHORIZATION.
//!
//! | module | contents |
//! |---|---|
//! | [`parse`] | the statements, from their tokens |
//! | [`words`] | keywords that sqlparser does not know |
//! | [`password`] | verifiers of passwords |
//! | [`define`] | CREATE, ALTER and DROP ROLE, GRANT and REVOKE of memberships |
//! | [`grants`] | GRANT and REVOKE of privileges, OWNER TO |
//! | [`defaults`] | ALTER DEFAULT PRIVILEGES |
//! | [`owned`] | REASSIGN OWNED and DROP OWNED |
//! | [`acting`] | the roles of a session |
//!
//! *Invariant.* A password is in no text that is recorded, logged or part of an error. The catalog has its verifier only.

pub(super) mod acting;
mod defaults;
mod define;
mod grants;
mod owned;
mod parse;
mod password;
pub(super) mod words;

use datafusion::sql::sqlparser::ast::Ident;

use super::names::plain_ident;
use super::split::Statement;
use super::{Outcome, SqlSession, local, settings};
use crate::base::interrupt::Execution;
use crate::catalog::Catalog;
use crate::{Error, ObjectKind, Result};

pub(super) use acting::Acting;
pub(super) use defaults::change_default_schema;
pub(super) use define::comment;
pub(super) use grants::{Owned, change_owner, owner_of, restore_access};
pub(super) use parse::parse;
pub(super) use words::has_secret;

use password::Password;

/// A parsed statement.
#[derive(Debug)]
pub(super) enum RoleStatement {
    Create(Ident, Options),
    Alter(RoleName, Options),
    Rename(RoleName, Ident),
    /// ALTER ROLE … SET: the setting, and its value as SQL text.
    Set(RoleName, String, String),
    /// ALTER ROLE … RESET: the setting; `None` for ALL.
    Reset(RoleName, Option<String>),
    Drop {
        names: Vec<RoleName>,
        if_exists: bool,
    },
    /// GRANT or REVOKE of memberships.
    Members(Members),
    /// ALTER DEFAULT PRIVILEGES.
    Defaults(Box<defaults::AlterDefaults>),
    /// REASSIGN OWNED: the owners, and their successor.
    Reassign(Vec<RoleName>, RoleName),
    /// DROP OWNED; with CASCADE if `cascades`.
    DropOwned {
        owners: Vec<RoleName>,
        cascades: bool,
    },
    /// GRANT or REVOKE of privileges.
    Grant(Box<grants::GrantStatement>),
    /// SET ROLE; `None` for NONE and RESET.
    SetRole(Option<Ident>),
    /// SET SESSION AUTHORIZATION; `None` for DEFAULT and RESET.
    SetSession(Option<Ident>),
}

/// GRANT or REVOKE of memberships.
#[derive(Debug)]
pub(super) struct Members {
    roles: Vec<Ident>,
    members: Vec<RoleName>,
    is_grant: bool,
    /// WITH ADMIN of GRANT; ADMIN OPTION FOR of REVOKE is `Some(false)`.
    admin: Option<bool>,
}

/// The options of CREATE ROLE and ALTER ROLE; `None` for an option that is not given.
#[derive(Debug, Default)]
pub(super) struct Options {
    superuser: Option<bool>,
    login: Option<bool>,
    create_role: Option<bool>,
    create_schema: Option<bool>,
    /// `Some(None)` removes the password.
    password: Option<Option<Password>>,
    connection_limit: Option<Option<u32>>,
    valid_until: Option<String>,
    /// The roles that the new role becomes a member of.
    member_of: Vec<Ident>,
    /// The members of the new role.
    members: Vec<RoleName>,
    /// The members of the new role with the ADMIN OPTION.
    admins: Vec<RoleName>,
}

/// A role in a statement.
#[derive(Debug, Clone)]
pub(super) enum RoleName {
    Named(Ident),
    CurrentUser,
    SessionUser,
}

impl RoleName {
    /// The name of a role that exists.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn existing(&self, session: &SqlSession, catalog: &Catalog) -> Result<String> {
        let name = match self {
            RoleName::Named(ident) => plain_ident(ident),
            RoleName::CurrentUser => {
                session.acting().map(|acting| acting.current_user().to_string()).unwrap_or_default()
            }
            RoleName::SessionUser => {
                session.acting().map(|acting| acting.session_user().to_string()).unwrap_or_default()
            }
        };
        match catalog.has_role(&name) {
            true => Ok(name),
            false if name.is_empty() => {
                Err(Error::InsufficientPrivilege("the session has no role (use SET ROLE, or log in)".into()))
            }
            false => Err(Error::NotFound { kind: ObjectKind::Role, name }),
        }
    }
}

/// The role that a statement creates or changes, or whose memberships it changes; `None` for other statements.
///
/// # Errors
/// As [`parse`].
pub(super) fn changed_role(statement: &Statement<'_>) -> Result<Option<String>> {
    let named = |role: &RoleName| match role {
        RoleName::Named(ident) => Some(plain_ident(ident)),
        RoleName::CurrentUser | RoleName::SessionUser => None,
    };
    Ok(match parse(statement)? {
        Some(RoleStatement::Create(name, _)) => Some(plain_ident(&name)),
        Some(RoleStatement::Set(role, ..)) => named(&role),
        Some(RoleStatement::Members(members)) => members.members.first().and_then(named),
        _ => None,
    })
}

/// Executes a statement.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: RoleStatement) -> Result<Outcome> {
    match statement {
        RoleStatement::SetRole(role) => {
            let role = role.as_ref().map(plain_ident);
            local::changing(session, &[settings::ROLE], false, || acting::set_role(session, role.as_deref()))
        }
        RoleStatement::SetSession(role) => {
            let role = role.as_ref().map(plain_ident);
            local::changing(session, &[settings::ROLE], false, || acting::set_session(session, role.as_deref()))
        }
        RoleStatement::Grant(grant) => grants::run(session, execution, *grant).await,
        RoleStatement::Defaults(alter) => defaults::run(session, execution, *alter).await,
        RoleStatement::Reassign(owners, new) => owned::reassign(session, execution, &owners, &new).await,
        RoleStatement::DropOwned { owners, cascades } => {
            Box::pin(owned::drop(session, execution, &owners, cascades)).await
        }
        statement => define::run(session, execution, statement).await,
    }
}
