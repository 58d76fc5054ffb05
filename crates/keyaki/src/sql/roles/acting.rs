//! The roles of a session: the one that it logged in as, its session user and its current user.
//!
//! A session has no role until a server logs it in, or SET ROLE gives it one. Without a role, it may do everything. Roles are
//! compared by their identifiers, not only by their names: a role that was dropped and created again, or renamed, is another
//! one for a session that acts as it.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::scalar::ScalarValue;

use crate::catalog::{Authority, Catalog, RoleDef};
use crate::sql::{Outcome, SqlSession};
use crate::{Error, ObjectKind, Result};

/// The name that `current_user` has in a session without a role.
pub const NO_ROLE: &str = "keyaki";

/// A role that a session acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    name: Arc<str>,
    id: u64,
}

impl Identity {
    fn of(role: &RoleDef) -> Identity {
        Identity { name: role.name.as_str().into(), id: role.id }
    }

    /// The role in a catalog.
    ///
    /// # Errors
    /// `NotFound` if it was dropped or renamed.
    fn role<'a>(&self, catalog: &'a Catalog) -> Result<&'a Arc<RoleDef>> {
        let role = catalog.roles.get(&*self.name).filter(|role| role.id == self.id);
        role.ok_or_else(|| Error::NotFound { kind: ObjectKind::Role, name: self.name.to_string() })
    }
}

/// The roles of a session that has one. `None` stands for a session without a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acting {
    login: Option<Identity>,
    /// That of SET SESSION AUTHORIZATION, or `login`.
    session: Option<Identity>,
    /// That of SET ROLE, or `session`.
    current: Option<Identity>,
}

impl Acting {
    /// The roles of a session that logs in.
    pub fn logged_in(role: &RoleDef) -> Acting {
        let role = Some(Identity::of(role));
        Acting { login: role.clone(), session: role.clone(), current: role }
    }

    /// The name and identifier of the role that has logged in.
    pub fn login(&self) -> Option<(Arc<str>, u64)> {
        self.login.as_ref().map(|role| (role.name.clone(), role.id))
    }

    pub fn current_user(&self) -> &str {
        self.current.as_ref().map_or(NO_ROLE, |role| &*role.name)
    }

    pub fn session_user(&self) -> &str {
        self.session.as_ref().map_or(NO_ROLE, |role| &*role.name)
    }

    /// The current role in a catalog; `None` without one.
    ///
    /// # Errors
    /// `NotFound` if it was dropped or renamed.
    pub fn current_role(&self, catalog: &Catalog) -> Result<Option<Arc<RoleDef>>> {
        self.current.as_ref().map(|role| role.role(catalog).cloned()).transpose()
    }

    /// The authority of the current user.
    ///
    /// # Errors
    /// `NotFound` if the role was dropped or renamed.
    pub fn authority(&self, catalog: &Catalog) -> Result<Authority> {
        authority(self.current.as_ref(), catalog)
    }

    /// True if the current user, the session user or the user that logged in is the role.
    pub fn uses(&self, role: &RoleDef) -> bool {
        [&self.login, &self.session, &self.current].into_iter().flatten().any(|used| used.id == role.id)
    }
}

fn authority(role: Option<&Identity>, catalog: &Catalog) -> Result<Authority> {
    let Some(role) = role else { return Ok(Authority::All) };
    role.role(catalog)?;
    Authority::of(catalog, &role.name)
        .ok_or_else(|| Error::NotFound { kind: ObjectKind::Role, name: role.name.to_string() })
}

/// A role that a session can act as.
fn identity(catalog: &Catalog, name: &str) -> Result<Identity> {
    let role = catalog.roles.get(name).map(|role| Identity::of(role));
    role.ok_or_else(|| Error::NotFound { kind: ObjectKind::Role, name: name.into() })
}

/// True if the definitions that the session sees permit a change of the role, and the newest ones, too: a transaction that keeps
/// its snapshot does not keep roles.
fn is_permitted(session: &SqlSession, catalog: &Catalog, check: impl Fn(&Catalog) -> Result<bool>) -> Result<bool> {
    let newest = session.engine.catalog.read().clone();
    Ok(check(catalog)? && (session.transaction.defines() || check(&newest)?))
}

/// SET ROLE; `None` for NONE.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` unless the session user is a member of the role.
pub fn set_role(session: &SqlSession, name: Option<&str>) -> Result<Outcome> {
    let acting = session.acting().map(|acting| Acting::clone(&acting)).unwrap_or_default();
    let current = match name {
        None => acting.session.clone(),
        Some(name) => {
            let (catalog, _) = session.moment()?;
            let role = identity(&catalog, name)?;
            let is_member = |catalog: &Catalog| Ok(authority(acting.session.as_ref(), catalog)?.is_member_of(name));
            if !is_permitted(session, &catalog, is_member)? {
                return Err(Error::InsufficientPrivilege(format!("permission denied to set role \"{name}\"")));
            }
            Some(role)
        }
    };
    session.act(Acting { current, ..acting });
    Ok(Outcome::done(if name.is_some() { "SET" } else { "RESET" }))
}

/// SET SESSION AUTHORIZATION; `None` for DEFAULT.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` unless the session has logged in as a superuser.
pub fn set_session(session: &SqlSession, name: Option<&str>) -> Result<Outcome> {
    let acting = session.acting().map(|acting| Acting::clone(&acting)).unwrap_or_default();
    let role = match name {
        None => acting.login.clone(),
        Some(name) => {
            let (catalog, _) = session.moment()?;
            let role = identity(&catalog, name)?;
            let is_same = acting.login.as_ref() == Some(&role);
            let is_superuser = |catalog: &Catalog| Ok(authority(acting.login.as_ref(), catalog)?.is_all());
            if !is_same && !is_permitted(session, &catalog, is_superuser)? {
                return Err(Error::InsufficientPrivilege("permission denied to set session authorization".into()));
            }
            Some(role)
        }
    };
    session.act(Acting { session: role.clone(), current: role, ..acting });
    Ok(Outcome::done(if name.is_some() { "SET" } else { "RESET" }))
}

/// `current_user`, `session_user` and their synonyms.
#[derive(Debug, PartialEq, Eq, Hash)]
struct User {
    name: &'static str,
    role: String,
    signature: Signature,
}

impl ScalarUDFImpl for User {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> datafusion::error::Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8View(Some(self.role.clone()))))
    }
}

/// Adds the functions to the state of a statement.
pub(in crate::sql) fn register_for(state: &mut SessionState, acting: Option<&Acting>) -> Result<()> {
    let current = acting.map_or(NO_ROLE, Acting::current_user);
    let session = acting.map_or(NO_ROLE, Acting::session_user);
    for (name, role) in [("current_user", current), ("current_role", current), ("session_user", session)] {
        let user = User { name, role: role.into(), signature: Signature::nullary(Volatility::Stable) };
        state.register_udf(Arc::new(ScalarUDF::new_from_impl(user)))?;
    }
    Ok(())
}
