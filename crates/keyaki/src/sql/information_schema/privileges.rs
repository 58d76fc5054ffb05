//! `table_privileges`, `role_table_grants`, `column_privileges`, `enabled_roles` and `applicable_roles`.
//!
//! A statement sees the privileges that its roles have granted or hold, and those of PUBLIC. Superusers see all.

use arrow::array::RecordBatch;
use datafusion::error::Result;

use super::{Rows, Source};
use crate::catalog::{Access, Privileges, RelationName};
use crate::engine::CATALOG_NAME;
use crate::sql::columns::shown;
use crate::sql::roles::acting::NO_ROLE;

const PUBLIC: &str = "PUBLIC";

/// A privilege on a relation.
struct Held<'s> {
    grantor: &'s str,
    grantee: &'s str,
    relation: &'s RelationName,
    privilege: &'static str,
    is_grantable: bool,
}

/// True for a role whose privileges the statement has.
fn is_enabled(source: &Source<'_>, role: &str) -> bool {
    source.authority.is_member_of(role)
}

/// The privileges on all tables and views that the statement sees.
fn held<'s>(source: &'s Source<'_>, with_public: bool) -> Vec<Held<'s>> {
    let tables = source.tables().map(|table| (&table.def.name, &table.def.access));
    let views = source.catalog.views.iter().filter(|(name, _)| source.is_shown(name));
    let relations = tables.chain(views.map(|(name, view)| (name, &view.access)));
    relations
        .flat_map(|(relation, access)| of_relation(relation, access))
        .filter(|held| is_seen(source, held, with_public))
        .collect()
}

fn is_seen(source: &Source<'_>, held: &Held<'_>, with_public: bool) -> bool {
    match held.grantee {
        PUBLIC => with_public,
        grantee => is_enabled(source, grantee) || is_enabled(source, held.grantor),
    }
}

/// The privileges of the owner and of grants.
fn of_relation<'s>(relation: &'s RelationName, access: &'s Access) -> Vec<Held<'s>> {
    let owner = access.owner.as_deref().unwrap_or(NO_ROLE);
    let own = Privileges::OF_TABLES.names();
    let own = own.map(|privilege| Held { grantor: owner, grantee: owner, relation, privilege, is_grantable: true });
    let grants = access.grants.iter().flat_map(|grant| {
        let (grantor, grantee) = (grant.by.as_deref().unwrap_or(owner), grant.to.as_deref().unwrap_or(PUBLIC));
        grant.privileges.names().map(move |privilege| {
            let is_grantable = Privileges::named(privilege).is_some_and(|one| grant.grantable.has(one));
            Held { grantor, grantee, relation, privilege, is_grantable }
        })
    });
    own.chain(grants).collect()
}

/// `table_privileges`, and `role_table_grants` without those of PUBLIC.
pub(super) fn of_tables(source: &Source<'_>, with_public: bool) -> Result<RecordBatch> {
    let names = [
        "grantor",
        "grantee",
        "table_catalog",
        "table_schema",
        "table_name",
        "privilege_type",
        "is_grantable",
        "with_hierarchy",
    ];
    let mut view = Rows::new(names, &[]);
    for Held { grantor, grantee, relation, privilege, is_grantable } in held(source, with_public) {
        view.rows.push([
            grantor.into(),
            grantee.into(),
            CATALOG_NAME.into(),
            (*relation.schema).into(),
            relation.name.as_str().into(),
            privilege.into(),
            is_grantable.into(),
            (privilege == "SELECT").into(),
        ]);
    }
    view.batch()
}

/// `column_privileges`: those of the tables and views, for each column.
pub(super) fn of_columns(source: &Source<'_>) -> Result<RecordBatch> {
    const OF_COLUMNS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "REFERENCES"];
    let names = [
        "grantor",
        "grantee",
        "table_catalog",
        "table_schema",
        "table_name",
        "column_name",
        "privilege_type",
        "is_grantable",
    ];
    let mut view = Rows::new(names, &[]);
    for held in held(source, true).iter().filter(|held| OF_COLUMNS.contains(&held.privilege)) {
        let columns: Vec<String> = match source.catalog.tables.get(held.relation) {
            Some(table) => table.def.columns.iter().map(|column| column.name.clone()).collect(),
            None => {
                let plan = (source.plan)(held.relation);
                let fields = plan.iter().flat_map(|plan| plan.schema().fields().iter());
                fields.map(|field| shown(field.name()).to_string()).collect()
            }
        };
        for column in columns {
            view.rows.push([
                held.grantor.into(),
                held.grantee.into(),
                CATALOG_NAME.into(),
                (*held.relation.schema).into(),
                held.relation.name.as_str().into(),
                column.into(),
                held.privilege.into(),
                held.is_grantable.into(),
            ]);
        }
    }
    view.batch()
}

/// `enabled_roles`: the roles whose privileges the statement has.
pub(super) fn enabled_roles(source: &Source<'_>) -> Result<RecordBatch> {
    let mut view = Rows::new(["role_name"], &[]);
    for role in source.catalog.roles.keys().filter(|role| is_enabled(source, role)) {
        view.rows.push([role.as_str().into()]);
    }
    view.batch()
}

/// `applicable_roles`: the memberships of these roles.
pub(super) fn applicable_roles(source: &Source<'_>) -> Result<RecordBatch> {
    let mut view = Rows::new(["grantee", "role_name", "is_grantable"], &[]);
    for (name, def) in source.catalog.roles.iter().filter(|(name, _)| is_enabled(source, name)) {
        for role in &def.member_of {
            view.rows.push([name.as_str().into(), role.as_str().into(), def.admin_of.contains(role).into()]);
        }
    }
    view.batch()
}
