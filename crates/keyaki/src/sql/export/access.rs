//! The statements of an export that define roles, owners and privileges.
//!
//! An import leaves roles of the database that have the name of an exported one as they are. Grants that a role has made by a
//! grant option are made by this role again.

use chrono::DateTime;

use crate::catalog::{Access, Catalog, DefaultPrivileges, Grant, PUBLIC, Privileges, RoleDef};
use crate::sql::names::{full_sql, quoted};

/// The roles, without their passwords unless `has_passwords`, their memberships, settings and comments.
pub(super) fn roles(catalog: &Catalog, has_passwords: bool) -> Vec<String> {
    let roles = || catalog.roles.values();
    let created = roles().map(|role| create(role, has_passwords));
    let memberships = roles().flat_map(|role| {
        role.member_of.iter().map(|of| {
            let admin = if role.admin_of.contains(of) { " WITH ADMIN OPTION" } else { "" };
            format!("GRANT {} TO {}{admin}", name(of), name(&role.name))
        })
    });
    let settings = roles().flat_map(|role| {
        let settings = role.settings.iter();
        settings
            .map(|(setting, value)| format!("ALTER ROLE {} SET {setting} TO {}", name(&role.name), value.trim_end()))
    });
    let comments = roles().filter_map(|role| {
        let comment = role.comment.as_ref()?.replace('\'', "''");
        Some(format!("COMMENT ON ROLE {} IS '{comment}'", name(&role.name)))
    });
    created.chain(memberships).chain(settings).chain(comments).collect()
}

/// The name of a role as SQL. Words such as CURRENT_USER have another meaning without quotes.
fn name(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}

fn create(role: &RoleDef, has_passwords: bool) -> String {
    let mut sql = format!("CREATE ROLE {}", name(&role.name));
    let attributes = [
        (role.superuser, " SUPERUSER"),
        (role.create_schema, " CREATEDB"),
        (role.create_role, " CREATEROLE"),
        (role.login, " LOGIN"),
    ];
    sql.extend(attributes.iter().filter(|(has, _)| *has).map(|(_, attribute)| *attribute));
    if let Some(limit) = role.connection_limit {
        sql.push_str(&format!(" CONNECTION LIMIT {limit}"));
    }
    if let Some(micros) = role.valid_until {
        // Times that cannot be written are in the past.
        let end = DateTime::from_timestamp_micros(micros).unwrap_or_default();
        sql.push_str(&format!(" VALID UNTIL '{}+00'", end.format("%Y-%m-%d %H:%M:%S%.6f")));
    }
    if let Some(verifier) = role.verifier.as_ref().filter(|_| has_passwords) {
        sql.push_str(&format!(" PASSWORD '{}'", verifier.0.replace('\'', "''")));
    }
    sql
}

/// The owners and privileges of all objects that are not temporary, and default privileges.
pub(super) fn privileges(catalog: &Catalog) -> Vec<String> {
    let mut statements = Vec::new();
    for (schema, access) in &catalog.schema_access {
        if schema == PUBLIC {
            // What a new database grants.
            statements.push(format!("REVOKE USAGE ON SCHEMA {} FROM PUBLIC", quoted(schema)));
        }
        object(&mut statements, "SCHEMA", "SCHEMA", &quoted(schema), access);
    }
    for table in catalog.tables.values().filter(|table| !table.def.name.is_temporary()) {
        object(&mut statements, "TABLE", "TABLE", &full_sql(&table.def.name), &table.def.access);
        for identity in table.def.columns.iter().filter_map(|column| column.identity.as_ref()) {
            let owner = table.def.access.owner.as_deref();
            let sequence = &identity.sequence;
            grants(&mut statements, "SEQUENCE", &full_sql(&sequence.name), owner, &sequence.access.grants);
        }
    }
    for view in catalog.views.values().filter(|view| !view.name.is_temporary()) {
        object(&mut statements, "VIEW", "TABLE", &full_sql(&view.name), &view.access);
    }
    for sequence in catalog.sequences.values().filter(|def| !def.name.is_temporary()) {
        object(&mut statements, "SEQUENCE", "SEQUENCE", &full_sql(&sequence.name), &sequence.access);
    }
    for role in catalog.roles.values() {
        role.defaults.iter().for_each(|defaults| default_privileges(&mut statements, role, defaults));
    }
    statements
}

/// The owner and the privileges of an object. `kind` is its kind in ALTER, `granted` in GRANT.
fn object(statements: &mut Vec<String>, kind: &str, granted: &str, sql: &str, access: &Access) {
    statements.extend(access.owner.iter().map(|owner| format!("ALTER {kind} {sql} OWNER TO {}", name(owner))));
    grants(statements, granted, sql, access.owner.as_deref(), &access.grants);
}

/// Grants, in an order in which each grantor holds the grant option.
fn grants(statements: &mut Vec<String>, kind: &str, sql: &str, owner: Option<&str>, grants: &[Grant]) {
    let mut open: Vec<&Grant> = grants.iter().collect();
    let mut given: Vec<&Grant> = Vec::new();
    while !open.is_empty() {
        let is_ready = |grant: &&Grant| {
            let options = given.iter().filter(|given| given.to == grant.by);
            grant.by.as_deref() == owner
                || options.fold(grant.privileges, |missing, given| missing.without(given.grantable)).is_empty()
        };
        let (ready, others): (Vec<&Grant>, Vec<&Grant>) = open.into_iter().partition(is_ready);
        // Every chain of grants begins with the owner: there is always one that is ready.
        if ready.is_empty() {
            return;
        }
        for grant in ready {
            given.push(grant);
            let by = grant.by.as_deref().filter(|by| Some(*by) != owner);
            statements.extend(by.map(|by| format!("SET ROLE {}", name(by))));
            statements.extend(of_grant(grant, &format!("{kind} {sql}")));
            statements.extend(by.map(|_| "RESET ROLE".into()));
        }
        open = others;
    }
}

/// GRANT of the privileges with and without the grant option.
fn of_grant(grant: &Grant, object: &str) -> Vec<String> {
    let to = grant.to.as_deref().map_or_else(|| "PUBLIC".into(), name);
    let parts = [(grant.privileges.without(grant.grantable), ""), (grant.grantable, " WITH GRANT OPTION")];
    let parts = parts.iter().filter(|(privileges, _)| !privileges.is_empty());
    parts.map(|(privileges, option)| format!("GRANT {} ON {object} TO {to}{option}", list(*privileges))).collect()
}

fn list(privileges: Privileges) -> String {
    privileges.names().collect::<Vec<_>>().join(", ")
}

fn default_privileges(statements: &mut Vec<String>, role: &RoleDef, defaults: &DefaultPrivileges) {
    let schema = defaults.schema.as_ref().map(|schema| format!(" IN SCHEMA {}", quoted(schema))).unwrap_or_default();
    for grant in defaults.access.grants.iter().flat_map(|grant| of_grant(grant, defaults.kind.keyword())) {
        statements.push(format!("ALTER DEFAULT PRIVILEGES FOR ROLE {}{schema} {grant}", name(&role.name)));
    }
}
