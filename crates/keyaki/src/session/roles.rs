//! Roles for servers: looking up a role that logs in, and sessions that act as it.

use std::fmt;
use std::time::SystemTime;

use keyaki_store::WriteBatch;
use serde::{Deserialize, Serialize};

use super::{Database, Session};
use crate::catalog::{DocumentKind, document, put};
use crate::sql::login;
use crate::{Error, ObjectKind, Result};

/// The name of the document with the key of servers.
const SERVER_KEY: &str = "server_key";

/// The key of servers. Secret: it has no `Debug`.
#[derive(Serialize, Deserialize)]
struct ServerKey {
    key: [u8; 32],
}

/// A role, as a server needs it to authenticate a client.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoleLogin {
    /// Name of the role.
    pub name: String,
    /// The role may do everything.
    pub is_superuser: bool,
    /// The role has the attribute LOGIN.
    pub can_login: bool,
    /// The verifier of its password, `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`; `None` without a password.
    pub verifier: Option<String>,
    /// Maximum number of connections of the role; `None` without a limit.
    pub connection_limit: Option<u32>,
    /// The password is no longer valid (VALID UNTIL).
    pub is_expired: bool,
}

/// Does not show the verifier.
impl fmt::Debug for RoleLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleLogin")
            .field("name", &self.name)
            .field("is_superuser", &self.is_superuser)
            .field("can_login", &self.can_login)
            .field("has_verifier", &self.verifier.is_some())
            .field("connection_limit", &self.connection_limit)
            .field("is_expired", &self.is_expired)
            .finish()
    }
}

impl Database {
    /// The role with a name; `None` if there is none.
    ///
    /// # Errors
    /// Errors of bringing a database that is open read-only up to date.
    pub fn role(&self, name: &str) -> Result<Option<RoleLogin>> {
        self.engine.refresh()?;
        let catalog = self.engine.catalog.read().clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Ok(catalog.roles.get(name).map(|role| RoleLogin {
            name: role.name.clone(),
            is_superuser: role.superuser,
            can_login: role.login,
            verifier: role.verifier.as_ref().map(|verifier| verifier.0.clone()),
            connection_limit: role.connection_limit,
            is_expired: role.valid_until.is_some_and(|end| end <= now),
        }))
    }

    /// True if there is a role: clients of a server have to log in, also if no role can.
    ///
    /// # Errors
    /// As [`Database::role`].
    pub fn has_roles(&self) -> Result<bool> {
        self.engine.refresh()?;
        Ok(!self.engine.catalog.read().roles.is_empty())
    }

    /// True if a superuser can log in.
    ///
    /// # Errors
    /// As [`Database::role`].
    pub fn has_login_superusers(&self) -> Result<bool> {
        self.engine.refresh()?;
        Ok(self.engine.catalog.read().roles.values().any(|role| role.login && role.superuser))
    }

    /// A secret key that the database keeps for servers, whose answers then do not change with a restart: the stored one, or
    /// `candidate`, which is stored. A database that is open read-only stores nothing. Blocks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn kept_key(&self, candidate: [u8; 32]) -> Result<[u8; 32]> {
        let store = &self.engine.store;
        let stored: Option<ServerKey> = document(store, DocumentKind::Meta, &SERVER_KEY)?;
        if let Some(ServerKey { key }) = stored {
            return Ok(key);
        }
        if !self.engine.is_read_only() {
            let mut batch = WriteBatch::new();
            put(&mut batch, DocumentKind::Meta, &SERVER_KEY, &ServerKey { key: candidate })?;
            store.commit(batch)?;
        }
        Ok(candidate)
    }

    /// True if a role has the attribute LOGIN.
    ///
    /// # Errors
    /// As [`Database::role`].
    pub fn has_login_roles(&self) -> Result<bool> {
        self.engine.refresh()?;
        Ok(self.engine.catalog.read().roles.values().any(|role| role.login))
    }
}

impl Session {
    /// Makes the session act as a role from now on, with the settings of ALTER ROLE … SET. The caller has authenticated the
    /// client. A session without a role may do everything.
    ///
    /// # Errors
    /// `NotFound`; `InsufficientPrivilege` for a role without LOGIN; `ActiveTransaction` in a transaction.
    pub fn log_in(&self, role: &str) -> Result<()> {
        if self.sql.transaction.is_open() {
            return Err(Error::ActiveTransaction("a session cannot log in inside a transaction block".into()));
        }
        self.refresh()?;
        let catalog = self.sql.engine.catalog.read().clone();
        let found = catalog.roles.get(role);
        let role = found.ok_or_else(|| Error::NotFound { kind: ObjectKind::Role, name: role.into() })?;
        if !role.login {
            let problem = format!("role \"{}\" is not permitted to log in", role.name);
            return Err(Error::InsufficientPrivilege(problem));
        }
        login(&self.sql, role);
        Ok(())
    }

    /// The name of the current user: the role of the session, or that of SET ROLE. `None` for a session without a role.
    pub fn current_user(&self) -> Option<String> {
        self.sql.acting().map(|acting| acting.current_user().to_string())
    }
}
