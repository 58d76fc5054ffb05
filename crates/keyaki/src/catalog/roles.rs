//! Roles, and the privileges that a role has through its memberships.
//!
//! A role has the privileges of all roles that it is a member of, directly or not (INHERIT). The attributes of these roles,
//! such as SUPERUSER, are not inherited.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::documents::Catalog;
use super::privileges::{Access, Privileges};

/// Members of this role may read all tables, views and sequences.
pub(crate) const READ_ALL_DATA: &str = "pg_read_all_data";
/// Members of this role may insert, update and delete rows of all tables, and change all sequences.
pub(crate) const WRITE_ALL_DATA: &str = "pg_write_all_data";
/// Members of this role see the statements of all sessions.
pub(crate) const READ_ALL_STATS: &str = "pg_read_all_stats";
/// Members of this role have the privileges of [`READ_ALL_STATS`].
pub(crate) const MONITOR: &str = "pg_monitor";
/// Members of this role may cancel and terminate sessions of roles that are not superusers.
pub(crate) const SIGNAL_BACKEND: &str = "pg_signal_backend";
/// The roles that every database has.
pub(crate) const PREDEFINED: [&str; 5] = [READ_ALL_DATA, WRITE_ALL_DATA, READ_ALL_STATS, MONITOR, SIGNAL_BACKEND];

/// A verifier of a password, which logs and error messages do not show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Verifier(pub String);

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(…)")
    }
}

/// A role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleDef {
    pub name: String,
    /// Identifies the role from its creation to its removal, also if it is renamed. Random.
    pub id: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superuser: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
    /// CREATEROLE.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create_role: bool,
    /// CREATEDB: the role may create schemas.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create_schema: bool,
    /// `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifier: Option<Verifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// The password is valid until this time, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<i64>,
    /// The roles that the role is a direct member of.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub member_of: BTreeSet<String>,
    /// The roles of `member_of` whose memberships the role may grant (ADMIN OPTION).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub admin_of: BTreeSet<String>,
    /// Privileges for objects that the role will create (ALTER DEFAULT PRIVILEGES).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<DefaultPrivileges>,
    /// Settings of its sessions: names, and values as SQL texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<(String, String)>,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl RoleDef {
    /// A role without attributes.
    pub fn new(name: String, id: u64) -> RoleDef {
        RoleDef {
            name,
            id,
            superuser: false,
            login: false,
            create_role: false,
            create_schema: false,
            verifier: None,
            connection_limit: None,
            valid_until: None,
            member_of: BTreeSet::new(),
            admin_of: BTreeSet::new(),
            defaults: Vec::new(),
            settings: Vec::new(),
            comment: None,
        }
    }
}

/// The kinds of objects that have default privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultKind {
    /// Tables and views.
    Tables,
    Sequences,
    Schemas,
}

impl DefaultKind {
    /// The privileges of the objects.
    pub(crate) fn privileges(self) -> Privileges {
        match self {
            DefaultKind::Tables => Privileges::OF_TABLES,
            DefaultKind::Sequences => Privileges::OF_SEQUENCES,
            DefaultKind::Schemas => Privileges::OF_SCHEMAS,
        }
    }

    /// The keyword in ALTER DEFAULT PRIVILEGES.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            DefaultKind::Tables => "TABLES",
            DefaultKind::Sequences => "SEQUENCES",
            DefaultKind::Schemas => "SCHEMAS",
        }
    }
}

/// The privileges that objects get from the role that creates them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultPrivileges {
    pub kind: DefaultKind,
    /// The schema of the objects; `None` for all schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The owner is the role, and the grantor of all grants. At least one grant.
    pub access: Access,
}

impl RoleDef {
    /// The access to a new object of the role in a schema; `None` for a schema as the object.
    pub(crate) fn access_to_new(&self, kind: DefaultKind, schema: Option<&str>) -> Access {
        let mut access = Access::owned_by(Some(self.name.clone()));
        let is_for = |defaults: &&DefaultPrivileges| {
            defaults.kind == kind && defaults.schema.as_deref().is_none_or(|of| schema == Some(of))
        };
        for grant in self.defaults.iter().filter(is_for).flat_map(|defaults| &defaults.access.grants) {
            access.grant(grant.to.as_deref(), Some(&self.name), grant.privileges, grant.grantable);
        }
        access
    }

    /// Removes the default privileges without a grant.
    pub(crate) fn retain_defaults(&mut self) {
        self.defaults.retain(|defaults| !defaults.access.grants.is_empty());
    }
}

/// What a statement or a view may do.
#[derive(Debug, Clone)]
pub(crate) enum Authority {
    /// Everything: that of a session without a role, and of superusers.
    All,
    Role(Arc<Member>),
}

/// A role that is not a superuser, with its memberships.
#[derive(Debug)]
pub(crate) struct Member {
    pub role: Arc<RoleDef>,
    /// The role and all roles that it is a member of.
    roles: BTreeSet<String>,
    /// The authority by the newest definitions, and these, if they have to permit a statement, too.
    newest: Option<(Authority, Arc<Catalog>)>,
}

impl Authority {
    /// The authority of a role; `None` if there is no such role.
    pub fn of(catalog: &Catalog, name: &str) -> Option<Authority> {
        let role = catalog.roles.get(name)?;
        Some(match role.superuser {
            true => Authority::All,
            false => {
                let roles = memberships(catalog, name);
                Authority::Role(Arc::new(Member { role: role.clone(), roles, newest: None }))
            }
        })
    }

    /// The authority of a role, also of a predefined one; `None` if there is no such role.
    pub fn named(catalog: &Catalog, name: &str) -> Option<Authority> {
        let predefined = || {
            let roles = BTreeSet::from([name.to_string()]);
            Authority::Role(Arc::new(Member { role: Arc::new(RoleDef::new(name.into(), 0)), roles, newest: None }))
        };
        Authority::of(catalog, name).or_else(|| PREDEFINED.contains(&name).then(predefined))
    }

    /// The authority that all roles have.
    pub fn of_public() -> Authority {
        let role = Arc::new(RoleDef::new(String::new(), 0));
        Authority::Role(Arc::new(Member { role, roles: BTreeSet::new(), newest: None }))
    }

    /// This authority, as far as the newest definitions permit it. `newest`: the authority by these.
    pub fn limited(self, newest: Authority, catalog: Arc<Catalog>) -> Authority {
        let Authority::Role(of_newest) = &newest else { return self };
        let (role, roles) = match &self {
            Authority::All => (of_newest.role.clone(), of_newest.roles.clone()),
            Authority::Role(member) => (member.role.clone(), member.roles.clone()),
        };
        Authority::Role(Arc::new(Member { role, roles, newest: Some((newest, catalog)) }))
    }

    /// The authority by the newest definitions, and these, if they have to permit a statement, too.
    pub fn newest(&self) -> Option<(&Authority, &Catalog)> {
        match self {
            Authority::All => None,
            Authority::Role(member) => member.newest.as_ref().map(|(authority, catalog)| (authority, &**catalog)),
        }
    }

    /// The newest definitions, if they have to permit a statement, too.
    pub fn newest_catalog(&self) -> Option<Arc<Catalog>> {
        match self {
            Authority::All => None,
            Authority::Role(member) => member.newest.as_ref().map(|(_, catalog)| catalog.clone()),
        }
    }

    /// True for superusers and sessions without a role.
    pub fn is_all(&self) -> bool {
        matches!(self, Authority::All)
    }

    /// True if the authority is that of a role or of one of its members.
    pub fn is_member_of(&self, role: &str) -> bool {
        match self {
            Authority::All => true,
            Authority::Role(member) => member.roles.contains(role),
        }
    }

    /// True if the authority may grant and revoke memberships of a role by ADMIN OPTION.
    pub fn administers(&self, catalog: &Catalog, role: &str) -> bool {
        match self {
            Authority::All => true,
            Authority::Role(member) => {
                let mut defs = member.roles.iter().filter_map(|name| catalog.roles.get(name));
                defs.any(|def| def.admin_of.contains(role))
            }
        }
    }

    /// True for superusers and members of the owner.
    pub fn owns(&self, access: &Access) -> bool {
        match self {
            Authority::All => true,
            Authority::Role(member) => access.owner.as_ref().is_some_and(|owner| member.roles.contains(owner)),
        }
    }

    /// True if the authority has all of the privileges.
    pub fn holds(&self, access: &Access, privileges: Privileges) -> bool {
        self.owns(access) || self.held(access).has(privileges)
    }

    /// True if the authority has at least one of the privileges.
    pub fn holds_any(&self, access: &Access, privileges: Privileges) -> bool {
        self.owns(access) || !self.held(access).common(privileges).is_empty()
    }

    /// True if the authority may use the objects of all schemas.
    pub fn uses_all_schemas(&self) -> bool {
        [READ_ALL_DATA, WRITE_ALL_DATA].iter().any(|role| self.is_member_of(role))
    }

    /// True if the authority may grant all of the privileges to others.
    pub fn may_grant(&self, access: &Access, privileges: Privileges) -> bool {
        let Authority::Role(member) = self else { return true };
        let options = member.grants(access).fold(Privileges::NONE, |all, grant| all.and(grant.grantable));
        self.owns(access) || options.has(privileges)
    }

    /// True if the authority may create schemas.
    pub fn creates_schemas(&self) -> bool {
        match self {
            Authority::All => true,
            Authority::Role(member) => member.role.create_schema,
        }
    }

    /// The privileges by grants.
    fn held(&self, access: &Access) -> Privileges {
        let Authority::Role(member) = self else { return Privileges::NONE };
        let mut held = member.grants(access).fold(Privileges::NONE, |held, grant| held.and(grant.privileges));
        if member.roles.contains(READ_ALL_DATA) {
            held = held.and(Privileges::SELECT);
        }
        if member.roles.contains(WRITE_ALL_DATA) {
            let written = [Privileges::INSERT, Privileges::UPDATE, Privileges::DELETE];
            held = written.into_iter().fold(held, Privileges::and);
        }
        held
    }

    /// The grantor for privileges of an object, and the privileges that it may grant: the owner if the authority owns the
    /// object, or the role with the most grant options. `all` are the privileges of the kind of object.
    pub fn grantor<'a>(&'a self, access: &'a Access, all: Privileges) -> (Option<&'a str>, Privileges) {
        if self.owns(access) {
            return (access.owner.as_deref(), all);
        }
        let Authority::Role(member) = self else { return (None, all) };
        let options = |role: &str| {
            let grants = access.grants.iter().filter(|grant| grant.to.as_deref() == Some(role));
            grants.fold(Privileges::NONE, |held, grant| held.and(grant.grantable)).common(all)
        };
        let own = member.role.name.as_str();
        let roles = std::iter::once(own).chain(member.roles.iter().map(String::as_str));
        let best = roles.map(|role| (role, options(role))).fold((own, Privileges::NONE), |best, next| {
            if next.1.names().count() > best.1.names().count() { next } else { best }
        });
        (Some(best.0), best.1)
    }
}

impl Member {
    /// The grants to the role, to roles that it is a member of, and to PUBLIC.
    fn grants<'a>(&'a self, access: &'a Access) -> impl Iterator<Item = &'a super::privileges::Grant> {
        access.grants.iter().filter(|grant| grant.to.as_ref().is_none_or(|to| self.roles.contains(to)))
    }
}

/// A role and all roles that it is a member of.
pub(crate) fn memberships(catalog: &Catalog, name: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::from([name.to_string()]);
    let mut open = vec![name.to_string()];
    while let Some(name) = open.pop() {
        let further = catalog.roles.get(&name).into_iter().flat_map(|role| &role.member_of);
        for role in further {
            if all.insert(role.clone()) {
                open.push(role.clone());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog() -> Catalog {
        let mut catalog = Catalog::default();
        for (name, member_of) in [("a", vec!["b"]), ("b", vec!["c", READ_ALL_DATA]), ("c", vec!["a"]), ("s", vec![])] {
            let mut role = RoleDef::new(name.into(), 1);
            role.member_of = member_of.into_iter().map(Into::into).collect();
            role.superuser = name == "s";
            catalog.roles.insert(name.into(), Arc::new(role));
        }
        catalog
    }

    #[test]
    fn privileges_are_inherited() {
        let catalog = catalog();
        let authority = Authority::of(&catalog, "a").unwrap();
        assert!(authority.is_member_of("c") && !authority.is_member_of("s") && !authority.is_all());
        let mut access = Access::owned_by(Some("o".into()));
        assert!(authority.holds(&access, Privileges::SELECT), "by the predefined role");
        assert!(!authority.holds(&access, Privileges::INSERT) && !authority.owns(&access));
        access.grant(Some("c"), Some("o"), Privileges::INSERT, Privileges::INSERT);
        assert!(authority.holds(&access, Privileges::INSERT.and(Privileges::SELECT)));
        assert_eq!(authority.grantor(&access, Privileges::OF_TABLES), (Some("c"), Privileges::INSERT));
        access.owner = Some("b".into());
        assert!(authority.holds(&access, Privileges::OF_TABLES));
        assert!(Authority::of(&catalog, "s").unwrap().is_all());
        assert!(Authority::of(&catalog, "x").is_none());
    }

    #[test]
    fn verifiers_are_not_shown() {
        let role = RoleDef { verifier: Some(Verifier("SCRAM-SHA-256$1:x".into())), ..RoleDef::new("r".into(), 1) };
        assert!(!format!("{role:?}").contains("SCRAM"));
        let stored = serde_json::to_string(&role).unwrap();
        assert_eq!(serde_json::from_str::<RoleDef>(&stored).unwrap(), role);
    }
}
