//! CREATE, ALTER and DROP ROLE, and memberships.
//!
//! CREATEROLE allows changes of all roles except for powerful ones: superusers, the predefined roles, and their members, with
//! which the holder could do more than it may. A membership with the ADMIN OPTION allows changes of the members of its role.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use keyaki_store::WriteBatch;

use super::password::Password;
use super::{Members, Options, RoleName, RoleStatement};
use crate::base::interrupt::Execution;
use crate::catalog::{
    Access, Authority, Catalog, DocumentKind, PREDEFINED, RoleDef, Table, Verifier, memberships, put, put_schema,
    remove,
};
use crate::engine::sequences::Sequences;
use crate::sql::names::{new_name, quoted};
use crate::sql::{Outcome, SqlSession, notices, settings};
use crate::values::cast::cast;
use crate::values::zone::STORED;
use crate::{Error, ObjectKind, Result};

/// Prefix of the names of predefined roles.
const RESERVED_PREFIX: &str = "pg_";
/// Names with a meaning in GRANT and SET ROLE.
const RESERVED: [&str; 2] = ["public", "none"];

/// A change of the roles of a catalog.
struct Change<'s> {
    session: &'s SqlSession,
    authority: Authority,
    /// True if the authority may change roles.
    creates_roles: bool,
    catalog: Catalog,
    batch: WriteBatch,
}

/// Executes a statement that changes roles.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: RoleStatement) -> Result<Outcome> {
    let tag = match &statement {
        RoleStatement::Create(..) => "CREATE ROLE",
        RoleStatement::Drop { .. } => "DROP ROLE",
        RoleStatement::Members(Members { is_grant: true, .. }) => "GRANT ROLE",
        RoleStatement::Members(_) => "REVOKE ROLE",
        _ => "ALTER ROLE",
    };
    // Verifiers take time to compute: the writer lock is free meanwhile.
    let verifier = match &statement {
        RoleStatement::Create(_, options) | RoleStatement::Alter(_, options) => options
            .password
            .as_ref()
            .map(|password| password.as_ref().map(Password::verifier).transpose())
            .transpose()?,
        _ => None,
    };
    let writer = session.writer(execution, tag).await?;
    let (catalog, _) = session.engine.latest(&writer);
    let authority = session.authority(&catalog)?;
    let creates_roles = authority.is_all() || session.current_role(&catalog)?.is_some_and(|role| role.create_role);
    let (catalog, batch) = (Catalog::clone(&catalog), WriteBatch::new());
    let mut change = Change { session, authority, creates_roles, catalog, batch };
    match statement {
        RoleStatement::Create(name, options) => change.create(&name, &options, verifier)?,
        RoleStatement::Alter(role, options) => change.alter(&role, &options, verifier)?,
        RoleStatement::Rename(role, name) => change.rename(&role, &name)?,
        RoleStatement::Set(role, name, value) => change.set(&role, &name, Some(value))?,
        RoleStatement::Reset(role, Some(name)) => change.set(&role, &name, None)?,
        RoleStatement::Reset(role, None) => {
            let mut def = change.own(&role)?;
            def.settings.clear();
            change.put(def)?;
        }
        RoleStatement::Drop { names, if_exists } => change.drop(&names, if_exists)?,
        RoleStatement::Members(members) => change.members(&members)?,
        RoleStatement::SetRole(_)
        | RoleStatement::SetSession(_)
        | RoleStatement::Grant(_)
        | RoleStatement::Defaults(_)
        | RoleStatement::Reassign(..)
        | RoleStatement::DropOwned { .. } => {
            return Err(Error::Internal("a statement that changes no roles".into()));
        }
    }
    let Change { catalog, batch, .. } = change;
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, catalog).await?;
    }
    Ok(Outcome::done(tag))
}

/// COMMENT ON ROLE: changes `catalog`.
///
/// # Errors
/// `NotFound`, `InsufficientPrivilege`.
pub(in crate::sql) fn comment(
    session: &SqlSession,
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    name: &ObjectName,
    comment: Option<String>,
) -> Result<()> {
    let ident = match name.0.as_slice() {
        [part] => part.as_ident().cloned(),
        _ => None,
    };
    let ident = ident.ok_or_else(|| Error::NotFound { kind: ObjectKind::Role, name: name.to_string() })?;
    let authority = session.authority(catalog)?;
    let creates_roles = authority.is_all() || session.current_role(catalog)?.is_some_and(|role| role.create_role);
    let mut change = Change { session, authority, creates_roles, catalog: catalog.clone(), batch: WriteBatch::new() };
    let def = change.role(&RoleName::Named(ident))?;
    change.check_may_change(&def.name)?;
    let def = RoleDef { comment, ..RoleDef::clone(&def) };
    put(batch, DocumentKind::Role, &def.name, &def)?;
    change.put(def)?;
    *catalog = change.catalog;
    Ok(())
}

impl Change<'_> {
    fn denied(what: &str) -> Error {
        Error::InsufficientPrivilege(format!("permission denied to {what}"))
    }

    /// A role that can be changed.
    ///
    /// # Errors
    /// `NotFound`; `ReservedName` for a predefined role.
    fn role(&self, name: &RoleName) -> Result<Arc<RoleDef>> {
        let name = name.existing(self.session, &self.catalog)?;
        self.catalog.roles.get(&name).cloned().ok_or_else(|| {
            let reason = "predefined roles cannot be changed".into();
            Error::ReservedName { name, reason }
        })
    }

    /// True for superusers, predefined roles, and their members.
    fn is_powerful(&self, name: &str) -> bool {
        let is_superuser = |name: &String| self.catalog.roles.get(name).is_some_and(|role| role.superuser);
        memberships(&self.catalog, name).iter().any(|name| is_superuser(name) || PREDEFINED.contains(&name.as_str()))
    }

    /// # Errors
    /// `InsufficientPrivilege` unless the session may change a role.
    fn check_may_change(&self, name: &str) -> Result<()> {
        if self.is_powerful(name) && !self.authority.is_all() {
            let problem =
                format!("must be superuser to alter role \"{name}\", a superuser or member of a predefined role");
            return Err(Error::InsufficientPrivilege(problem));
        }
        match self.creates_roles {
            true => Ok(()),
            false => Err(Change::denied("alter role")),
        }
    }

    /// A role whose settings the session may change: those of its current user, too.
    fn own(&self, role: &RoleName) -> Result<RoleDef> {
        let def = self.role(role)?;
        if !self.is_current(&def)? {
            self.check_may_change(&def.name)?;
        }
        Ok(RoleDef::clone(&def))
    }

    fn is_current(&self, def: &RoleDef) -> Result<bool> {
        Ok(self.session.current_role(&self.catalog)?.is_some_and(|role| role.id == def.id))
    }

    fn put(&mut self, def: RoleDef) -> Result<()> {
        put(&mut self.batch, DocumentKind::Role, &def.name, &def)?;
        self.catalog.roles.insert(def.name.clone(), Arc::new(def));
        Ok(())
    }

    /// The name of a new role.
    ///
    /// # Errors
    /// `InvalidName`, `ReservedName`, `AlreadyExists`.
    fn new_name(&self, name: &Ident) -> Result<String> {
        let name = new_name(name)?;
        if name.starts_with(RESERVED_PREFIX) || RESERVED.contains(&name.as_str()) {
            let reason =
                format!("names starting with \"{RESERVED_PREFIX}\", \"public\" and \"none\" are no names of roles");
            return Err(Error::ReservedName { name, reason });
        }
        match self.catalog.has_role(&name) {
            true => Err(Error::AlreadyExists { kind: ObjectKind::Role, name }),
            false => Ok(name),
        }
    }

    fn create(&mut self, name: &Ident, options: &Options, verifier: Option<Option<Verifier>>) -> Result<()> {
        if !self.creates_roles {
            return Err(Change::denied("create role"));
        }
        if options.superuser == Some(true) && !self.authority.is_all() {
            return Err(Error::InsufficientPrivilege("must be superuser to create superusers".into()));
        }
        let name = self.new_name(name)?;
        let mut def = RoleDef::new(name.clone(), Sequences::new_id());
        self.apply(&mut def, options, verifier)?;
        self.put(def)?;
        let new = Ident::with_quote('"', name);
        let grants = [
            (options.member_of.clone(), vec![RoleName::Named(new.clone())], None),
            (vec![new.clone()], options.members.clone(), None),
            (vec![new], options.admins.clone(), Some(true)),
        ];
        grants
            .into_iter()
            .filter(|(_, members, _)| !members.is_empty())
            .try_for_each(|(roles, members, admin)| self.members(&Members { roles, members, is_grant: true, admin }))
    }

    fn alter(&mut self, role: &RoleName, options: &Options, verifier: Option<Option<Verifier>>) -> Result<()> {
        let def = self.role(role)?;
        let is_password_only = options.superuser.is_none()
            && options.login.is_none()
            && options.create_role.is_none()
            && options.create_schema.is_none()
            && options.connection_limit.is_none()
            && options.valid_until.is_none();
        if !(is_password_only && self.is_current(&def)?) {
            self.check_may_change(&def.name)?;
        }
        if options.superuser.is_some() && !self.authority.is_all() {
            return Err(Error::InsufficientPrivilege("must be superuser to change the attribute SUPERUSER".into()));
        }
        let mut def = RoleDef::clone(&def);
        self.apply(&mut def, options, verifier)?;
        self.put(def)
    }

    /// Applies the options, except for memberships.
    fn apply(&self, def: &mut RoleDef, options: &Options, verifier: Option<Option<Verifier>>) -> Result<()> {
        def.superuser = options.superuser.unwrap_or(def.superuser);
        def.login = options.login.unwrap_or(def.login);
        def.create_role = options.create_role.unwrap_or(def.create_role);
        def.create_schema = options.create_schema.unwrap_or(def.create_schema);
        if let Some(verifier) = verifier {
            def.verifier = verifier;
        }
        if let Some(limit) = options.connection_limit {
            def.connection_limit = limit;
        }
        if let Some(text) = &options.valid_until {
            def.valid_until = match text.trim().eq_ignore_ascii_case("infinity") {
                true => None,
                false => Some(self.time(text)?),
            };
        }
        Ok(())
    }

    /// Microseconds since 1970 of a text, in the time zone of the session.
    fn time(&self, text: &str) -> Result<i64> {
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values([text]));
        let to = DataType::Timestamp(TimeUnit::Microsecond, Some(STORED.into()));
        let times = cast(&texts, &to, self.session.zone())?;
        let times = times.as_primitive_opt::<TimestampMicrosecondType>();
        times.map(|times| times.value(0)).ok_or_else(|| Error::invalid_text("timestamp", text, None))
    }

    fn rename(&mut self, role: &RoleName, name: &Ident) -> Result<()> {
        let old = self.role(role)?;
        self.check_may_change(&old.name)?;
        if self.session.acting().is_some_and(|acting| acting.uses(&old)) {
            return Err(Error::RoleInUse("current user and session user cannot be renamed".into()));
        }
        let name = self.new_name(name)?;
        self.catalog.roles.remove(&old.name);
        remove(&mut self.batch, DocumentKind::Role, &old.name)?;
        self.put(RoleDef { name: name.clone(), ..RoleDef::clone(&old) })?;
        let members: Vec<Arc<RoleDef>> =
            self.catalog.roles.values().filter(|role| role.member_of.contains(&old.name)).cloned().collect();
        for member in members {
            let mut member = RoleDef::clone(&member);
            member.member_of.remove(&old.name);
            member.member_of.insert(name.clone());
            if member.admin_of.remove(&old.name) {
                member.admin_of.insert(name.clone());
            }
            self.put(member)?;
        }
        change_access(&mut self.catalog, &mut self.batch, |access| access.rename_role(&old.name, &name))
    }

    /// Sets or resets a setting of the sessions of a role.
    fn set(&mut self, role: &RoleName, name: &str, value: Option<String>) -> Result<()> {
        let mut def = self.own(role)?;
        // Names of settings have no case, also in quotes.
        let name = &*name.to_ascii_lowercase();
        def.settings.retain(|(known, _)| known != name);
        if let Some(value) = value {
            if ["role", "session_authorization"].contains(&name) {
                return Err(Error::Unsupported(format!("ALTER ROLE … SET {name}")));
            }
            settings::check_of_role(self.session, name, &value)?;
            def.settings.push((name.into(), value));
        }
        self.put(def)
    }

    fn drop(&mut self, names: &[RoleName], if_exists: bool) -> Result<()> {
        if !self.creates_roles {
            return Err(Change::denied("drop role"));
        }
        for name in names {
            let def = match self.role(name) {
                Err(Error::NotFound { name, .. }) if if_exists => {
                    notices::missing(self.session, "role", &name);
                    continue;
                }
                def => def?,
            };
            self.check_may_change(&def.name)?;
            if self.session.acting().is_some_and(|acting| acting.uses(&def)) {
                return Err(Error::RoleInUse("current user and session user cannot be dropped".into()));
            }
            let dependents = dependents(&self.catalog, &def.name);
            if !dependents.is_empty() {
                let shown = dependents.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                let more =
                    if dependents.len() > 5 { format!(" and {} more", dependents.len() - 5) } else { String::new() };
                return Err(Error::DependentPrivileges(format!(
                    "role \"{}\" cannot be dropped because some objects depend on it: {shown}{more}",
                    def.name
                )));
            }
            self.catalog.roles.remove(&def.name);
            remove(&mut self.batch, DocumentKind::Role, &def.name)?;
            let members: Vec<Arc<RoleDef>> =
                self.catalog.roles.values().filter(|role| role.member_of.contains(&def.name)).cloned().collect();
            for member in members {
                let mut member = RoleDef::clone(&member);
                member.member_of.remove(&def.name);
                member.admin_of.remove(&def.name);
                self.put(member)?;
            }
        }
        Ok(())
    }

    /// Checks that the session may change the members of a role.
    ///
    /// # Errors
    /// `InsufficientPrivilege`.
    fn check_may_grant(&self, role: &str) -> Result<()> {
        let is_superuser = self.catalog.roles.get(role).is_some_and(|def| def.superuser);
        if self.authority.is_all() || (!is_superuser && self.authority.administers(&self.catalog, role)) {
            return Ok(());
        }
        let needed = match (self.is_powerful(role), self.creates_roles) {
            (true, _) => "be superuser",
            (false, true) => return Ok(()),
            (false, false) => "have CREATEROLE or the ADMIN OPTION",
        };
        let problem = format!("must {needed} to change the members of role \"{role}\"");
        Err(Error::InsufficientPrivilege(problem))
    }

    /// GRANT roles TO members, or REVOKE roles FROM members.
    fn members(&mut self, change: &Members) -> Result<()> {
        let Members { roles, members, is_grant, admin } = change;
        for role in roles {
            let role = RoleName::Named(role.clone()).existing(self.session, &self.catalog)?;
            self.check_may_grant(&role)?;
            for member in members {
                let old = self.role(member)?;
                let mut member = RoleDef::clone(&old);
                // Memberships have no cycles.
                if *is_grant && memberships(&self.catalog, &role).contains(&member.name) {
                    let problem = format!("role \"{role}\" is a member of role \"{}\"", member.name);
                    return Err(Error::InvalidGrant(problem));
                }
                if *is_grant {
                    member.member_of.insert(role.clone());
                } else if admin.is_none() {
                    member.member_of.remove(&role);
                }
                match (is_grant, admin) {
                    (true, None) => {}
                    (true, Some(true)) => {
                        member.admin_of.insert(role.clone());
                    }
                    _ => {
                        member.admin_of.remove(&role);
                    }
                }
                if member != *old {
                    self.put(member)?;
                }
            }
        }
        Ok(())
    }
}

/// Descriptions of the objects that a role owns, or has privileges for.
fn dependents(catalog: &Catalog, role: &str) -> Vec<String> {
    let describe = |kind: &str, name: String, access: &Access| {
        if access.owner.as_deref() == Some(role) {
            return Some(format!("owner of {kind} {name}"));
        }
        access.roles().any(|known| known == role).then(|| format!("privileges for {kind} {name}"))
    };
    let schemas = catalog.schema_access.iter().filter_map(|(name, access)| describe("schema", quoted(name), access));
    let tables =
        catalog.tables.values().filter_map(|table| describe("table", table.def.name.to_string(), &table.def.access));
    let views = catalog.views.values().filter_map(|view| describe("view", view.name.to_string(), &view.access));
    let sequences = catalog.sequences().filter_map(|(def, _)| describe("sequence", def.name.to_string(), &def.access));
    let others = catalog.roles.values().filter(|def| def.name != role);
    let defaults = others.filter(|def| {
        let mut known = def.defaults.iter().flat_map(|defaults| defaults.access.roles());
        known.any(|known| known == role)
    });
    let defaults = defaults.map(|def| format!("default privileges of role {}", quoted(&def.name)));
    schemas.chain(tables).chain(views).chain(sequences).chain(defaults).collect()
}

/// Changes the owners and privileges of all objects, and default privileges.
pub(super) fn change_access(catalog: &mut Catalog, batch: &mut WriteBatch, change: impl Fn(&mut Access)) -> Result<()> {
    let tables: Vec<Arc<Table>> = catalog.tables.values().cloned().collect();
    for table in tables {
        let mut def = table.def.clone();
        let identities = def.columns.iter_mut().filter_map(|column| column.identity.as_mut());
        def.access.change_with_identities(identities.map(|identity| &mut identity.sequence.access), &change);
        if def != table.def {
            put(batch, DocumentKind::Table, &def.name, &def)?;
            catalog.tables.insert(def.name.clone(), Arc::new(Table::new(def, table.statistics.clone())?));
        }
    }
    for view in catalog.views.values_mut() {
        let mut def = (**view).clone();
        change(&mut def.access);
        if def != **view {
            put(batch, DocumentKind::View, &def.name, &def)?;
            *view = Arc::new(def);
        }
    }
    for sequence in catalog.sequences.values_mut() {
        let mut def = (**sequence).clone();
        change(&mut def.access);
        if def != **sequence {
            put(batch, DocumentKind::Sequence, &def.name, &def)?;
            *sequence = Arc::new(def);
        }
    }
    let mut changed = BTreeSet::new();
    for (name, access) in &mut catalog.schema_access {
        let mut new = Access::clone(access);
        change(&mut new);
        if new != **access {
            *access = Arc::new(new);
            changed.insert(name.clone());
        }
    }
    changed.iter().try_for_each(|name| put_schema(batch, catalog, name))?;
    for role in catalog.roles.values_mut().filter(|role| !role.defaults.is_empty()) {
        let mut def = RoleDef::clone(role);
        def.defaults.iter_mut().for_each(|defaults| change(&mut defaults.access));
        def.retain_defaults();
        if def != **role {
            put(batch, DocumentKind::Role, &def.name, &def)?;
            *role = Arc::new(def);
        }
    }
    Ok(())
}
