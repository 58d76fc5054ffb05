//! Privileges on tables, views, sequences and schemas: owners, and grants to other roles.
//!
//! The grants of an object form a graph as in PostgreSQL: each has a grantor, which is the owner or a role that holds the
//! privileges with the grant option. Revoking a grant option also revokes the grants that were made with it. The owner
//! holds all privileges without a grant.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of privileges.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Privileges(u16);

/// The letter of each privilege in PostgreSQL's `aclitem`, and its name.
const NAMES: [(char, &str); 9] = [
    ('r', "SELECT"),
    ('a', "INSERT"),
    ('w', "UPDATE"),
    ('d', "DELETE"),
    ('D', "TRUNCATE"),
    ('x', "REFERENCES"),
    ('t', "TRIGGER"),
    ('U', "USAGE"),
    ('C', "CREATE"),
];

impl Privileges {
    pub const NONE: Privileges = Privileges(0);
    pub const SELECT: Privileges = Privileges(1);
    pub const INSERT: Privileges = Privileges(1 << 1);
    pub const UPDATE: Privileges = Privileges(1 << 2);
    pub const DELETE: Privileges = Privileges(1 << 3);
    pub const TRUNCATE: Privileges = Privileges(1 << 4);
    pub const REFERENCES: Privileges = Privileges(1 << 5);
    pub const USAGE: Privileges = Privileges(1 << 7);
    pub const CREATE: Privileges = Privileges(1 << 8);
    /// All privileges of tables and views.
    pub const OF_TABLES: Privileges = Privileges(0b0_0111_1111);
    /// All privileges of sequences.
    pub const OF_SEQUENCES: Privileges = Privileges(0b0_1000_0101);
    /// All privileges of schemas.
    pub const OF_SCHEMAS: Privileges = Privileges(0b1_1000_0000);

    /// The privilege with a name in capital letters.
    pub fn named(name: &str) -> Option<Privileges> {
        NAMES.iter().position(|(_, known)| *known == name).map(|place| Privileges(1 << place))
    }

    /// True if the set has all privileges of `others`.
    pub fn has(self, others: Privileges) -> bool {
        self.0 & others.0 == others.0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn and(self, others: Privileges) -> Privileges {
        Privileges(self.0 | others.0)
    }

    pub fn common(self, others: Privileges) -> Privileges {
        Privileges(self.0 & others.0)
    }

    pub fn without(self, others: Privileges) -> Privileges {
        Privileges(self.0 & !others.0)
    }

    /// The names of the privileges.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().enumerate().filter(move |(place, _)| self.0 & (1 << place) != 0).map(|(_, (_, name))| *name)
    }
}

/// The letters of the privileges.
impl fmt::Display for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = NAMES.iter().enumerate().filter(|(place, _)| self.0 & (1 << place) != 0);
        letters.map(|(_, (letter, _))| letter).try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl fmt::Debug for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Privileges({self})")
    }
}

impl Serialize for Privileges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Privileges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let letters = String::deserialize(deserializer)?;
        let place = |letter| NAMES.iter().position(|(known, _)| *known == letter);
        letters.chars().try_fold(Privileges::NONE, |known, letter| match place(letter) {
            Some(place) => Ok(known.and(Privileges(1 << place))),
            None => Err(serde::de::Error::custom(format!("unknown privilege \"{letter}\""))),
        })
    }
}

/// Privileges that one role has granted to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The role that has the privileges; `None` for PUBLIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The role that granted them: the owner at that time, or a role with the grant option. `None` for an object without
    /// an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub privileges: Privileges,
    /// The privileges with the grant option.
    #[serde(default, skip_serializing_if = "privileges_are_empty")]
    pub grantable: Privileges,
}

fn privileges_are_empty(privileges: &Privileges) -> bool {
    privileges.is_empty()
}

/// The owner of an object, and the privileges of other roles.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    /// `None` for an object that was created without a role: it belongs to superusers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// At most one for each pair of grantee and grantor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

impl Access {
    /// The access to an object that a role creates.
    pub fn owned_by(owner: Option<String>) -> Access {
        Access { owner, grants: Vec::new() }
    }

    /// The access to the schema `public` of a new database: everyone may use its objects.
    pub fn of_public() -> Access {
        let usage = Grant { to: None, by: None, privileges: Privileges::USAGE, grantable: Privileges::NONE };
        Access { owner: None, grants: vec![usage] }
    }

    /// True for an object without an owner and grants.
    pub fn is_default(&self) -> bool {
        *self == Access::default()
    }

    /// The roles that own the object, or have granted or hold privileges.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        let grants = self.grants.iter().flat_map(|grant| [grant.to.as_deref(), grant.by.as_deref()]);
        self.owner.as_deref().into_iter().chain(grants.flatten())
    }

    /// Adds privileges, and the grant option for those in `grantable`.
    pub fn grant(&mut self, to: Option<&str>, by: Option<&str>, privileges: Privileges, grantable: Privileges) {
        let is_same = |grant: &&mut Grant| grant.to.as_deref() == to && grant.by.as_deref() == by;
        if let Some(known) = self.grants.iter_mut().find(is_same) {
            known.privileges = known.privileges.and(privileges);
            known.grantable = known.grantable.and(grantable);
        } else if !privileges.is_empty() {
            let (to, by) = (to.map(Into::into), by.map(Into::into));
            self.grants.push(Grant { to, by, privileges, grantable });
        }
    }

    /// Removes privileges that `by` has granted to `to`, or their grant options only. Then, removes grants that need a grant
    /// option that is gone. Returns true if there were any.
    pub fn revoke(
        &mut self,
        to: Option<&str>,
        by: Option<&str>,
        privileges: Privileges,
        grant_option_only: bool,
    ) -> bool {
        for grant in &mut self.grants {
            if grant.to.as_deref() == to && grant.by.as_deref() == by {
                grant.grantable = grant.grantable.without(privileges);
                if !grant_option_only {
                    grant.privileges = grant.privileges.without(privileges);
                }
            }
        }
        self.remove_unfounded()
    }

    /// Removes grants whose grantors do not hold the grant option. Returns true if there were any.
    fn remove_unfounded(&mut self) -> bool {
        self.grants.retain(|grant| !grant.privileges.is_empty());
        let mut found = false;
        loop {
            // Grants are founded if a chain of grant options leads from the owner to them.
            let mut founded: Vec<(&str, Privileges)> = Vec::new();
            loop {
                let before = founded.len();
                for grant in &self.grants {
                    let Some(to) = grant.to.as_deref() else { continue };
                    let held = self.founded_options(&founded, grant.by.as_deref());
                    let new = grant.grantable.common(held);
                    let known = founded.iter().filter(|(role, _)| *role == to);
                    let known = known.fold(Privileges::NONE, |all, (_, some)| all.and(*some));
                    if !new.without(known).is_empty() {
                        founded.push((to, new.without(known)));
                    }
                }
                if founded.len() == before {
                    break;
                }
            }
            let kept = |grant: &Grant| {
                let held = self.founded_options(&founded, grant.by.as_deref());
                let (privileges, grantable) = (grant.privileges.common(held), grant.grantable.common(held));
                Grant { privileges, grantable, ..grant.clone() }
            };
            let kept: Vec<Grant> = self.grants.iter().map(kept).filter(|grant| !grant.privileges.is_empty()).collect();
            if kept == self.grants {
                return found;
            }
            (self.grants, found) = (kept, true);
        }
    }

    /// The privileges that a grantor may grant. `founded`: grant options of roles.
    fn founded_options(&self, founded: &[(&str, Privileges)], by: Option<&str>) -> Privileges {
        match by {
            by if by == self.owner.as_deref() => Privileges(u16::MAX),
            // Superusers grant in the name of the owner.
            None => Privileges::NONE,
            Some(by) => {
                founded.iter().filter(|(role, _)| *role == by).fold(Privileges::NONE, |all, (_, some)| all.and(*some))
            }
        }
    }

    /// Makes a role the owner. It takes over the grants that the former owner has made.
    pub fn change_owner(&mut self, owner: Option<&str>) {
        let (old, new) = (self.owner.take(), owner.map(String::from));
        let grants = std::mem::take(&mut self.grants);
        for Grant { to, by, privileges, grantable } in grants {
            let by = if by == old { new.clone() } else { by };
            if to.is_none() || to != new {
                self.grant(to.as_deref(), by.as_deref(), privileges, grantable);
            }
        }
        self.owner = new;
        self.remove_unfounded();
    }

    /// Removes all roles that `is_known` rejects.
    pub fn retain_roles(&mut self, is_known: impl Fn(&str) -> bool) {
        let is_known = |role: &Option<String>| role.as_deref().is_none_or(&is_known);
        self.grants.retain(|grant| is_known(&grant.to) && is_known(&grant.by));
        if !is_known(&self.owner) {
            self.change_owner(None);
        }
    }

    /// Removes the grants to a role, and the grants that it has made with them.
    pub fn forget_grantee(&mut self, role: &str) {
        self.grants.retain(|grant| grant.to.as_deref() != Some(role));
        self.remove_unfounded();
    }

    /// Changes the owner and the privileges of a table, and the privileges of its identity columns' sequences, which have the
    /// owner of the table.
    pub fn change_with_identities<'a>(
        &mut self,
        identities: impl Iterator<Item = &'a mut Access>,
        change: impl Fn(&mut Access),
    ) {
        let owner = self.owner.clone();
        change(self);
        for access in identities {
            access.owner.clone_from(&owner);
            change(access);
            access.owner = None;
        }
    }

    /// Replaces the name of a role.
    pub fn rename_role(&mut self, old: &str, new: &str) {
        let names = self.grants.iter_mut().flat_map(|grant| [&mut grant.to, &mut grant.by]);
        for name in names.chain([&mut self.owner]).filter(|name| name.as_deref() == Some(old)) {
            *name = Some(new.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_stored_as_letters() {
        let some = Privileges::SELECT.and(Privileges::DELETE).and(Privileges::USAGE);
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(text, "\"rdU\"");
        assert_eq!(serde_json::from_str::<Privileges>(&text).unwrap(), some);
        assert!(serde_json::from_str::<Privileges>("\"r?\"").is_err());
        assert_eq!(Privileges::OF_TABLES.to_string(), "rawdDxt");
        assert_eq!(Privileges::OF_SEQUENCES.to_string(), "rwU");
        assert_eq!(Privileges::OF_SCHEMAS.to_string(), "UC");
        assert_eq!(Privileges::named("TRUNCATE"), Some(Privileges::TRUNCATE));
        assert_eq!(Privileges::named("MAINTAIN"), None);
        assert_eq!(some.names().collect::<Vec<_>>(), ["SELECT", "DELETE", "USAGE"]);
    }

    #[test]
    fn revoking_a_grant_option_revokes_the_grants_made_with_it() {
        let (select, none) = (Privileges::SELECT, Privileges::NONE);
        let mut access = Access::owned_by(Some("o".into()));
        access.grant(Some("a"), Some("o"), select, select);
        access.grant(Some("b"), Some("a"), select, select);
        access.grant(Some("c"), Some("b"), select, none);
        access.grant(Some("c"), Some("o"), Privileges::INSERT, none);
        let mut cyclic = access.clone();
        assert!(access.revoke(Some("a"), Some("o"), select, true));
        let left: Vec<_> = access.grants.iter().map(|grant| (grant.to.as_deref(), grant.privileges)).collect();
        assert_eq!(left, [(Some("a"), select), (Some("c"), Privileges::INSERT)]);
        // A cycle does not found itself.
        cyclic.grant(Some("a"), Some("b"), select, select);
        assert!(cyclic.revoke(Some("a"), Some("o"), select, false));
        assert_eq!(cyclic.grants.len(), 1);
    }

    #[test]
    fn a_new_owner_takes_over_the_grants_of_the_old_one() {
        let mut access = Access::owned_by(Some("o".into()));
        access.grant(Some("n"), Some("o"), Privileges::SELECT, Privileges::NONE);
        access.grant(None, Some("o"), Privileges::SELECT, Privileges::NONE);
        access.change_owner(Some("n"));
        assert_eq!(access.roles().collect::<Vec<_>>(), ["n", "n"]);
        access.rename_role("n", "m");
        assert_eq!(access.roles().collect::<Vec<_>>(), ["m", "m"]);
        access.change_owner(None);
        assert_eq!(access.roles().count(), 0);
        assert_eq!(access.grants.len(), 1);
    }
}
