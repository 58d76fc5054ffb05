//! The rows of the other relations: types, roles, the database, settings, and PostgreSQL's views of its own catalog.

use xxhash_rust::xxh3::xxh3_64;

use super::objects::{CATALOG_SCHEMA, DATABASE, Kind, OWNER, OWNER_NAME, Relation, Source, hashed_oid};
use super::rows::METHODS;
use super::shapes::{Rows, Shape};
use super::{activity, definitions, locks, operators, procedures, types};
use crate::catalog::{DefaultKind, RoleDef};
use crate::engine::CATALOG_NAME;

/// PostgreSQL's number of the encoding UTF-8.
pub(super) const UTF8: i64 = 6;
/// OID of the default tablespace.
const DEFAULT_TABLESPACE: u32 = 1663;
/// OIDs of the collations `default`, `C` and `ucs_basic`. All of them compare bytes.
const COLLATIONS: [(u32, &str); 3] = [(100, "default"), (950, "C"), (962, "ucs_basic")];

/// Adds the rows of a relation. Relations about objects that do not exist have none.
pub(super) fn add(source: &Source, shape: &Shape, rows: &mut Rows) {
    match shape.name {
        "pg_type" => all_types(rows),
        "pg_am" => methods(rows),
        "pg_database" => database(rows),
        "pg_tablespace" => {
            for (oid, name) in [(DEFAULT_TABLESPACE, "pg_default"), (DEFAULT_TABLESPACE + 1, "pg_global")] {
                rows.add(&[("oid", oid.into()), ("spcname", name.into()), ("spcowner", OWNER.into())]);
            }
        }
        "pg_collation" => collations(rows),
        "pg_language" => {
            for (oid, name) in [(12, "internal"), (14, "sql")] {
                rows.add(&[("oid", oid.into()), ("lanname", name.into()), ("lanowner", OWNER.into())]);
            }
        }
        "pg_authid" | "pg_roles" => roles(source, rows),
        "pg_user" | "pg_shadow" => users(source, rows),
        "pg_auth_members" => members(source, rows),
        "pg_default_acl" => default_privileges(source, rows),
        "pg_tables" => tables(source, rows),
        "pg_views" => views(source, rows),
        "pg_indexes" => indexes(source, rows),
        "pg_sequences" => sequences(source, rows),
        "pg_settings" => settings(source, rows),
        "pg_prepared_statements" => prepared_statements(source, rows),
        "pg_cursors" => cursors(source, rows),
        "pg_proc" => procedures::add(source, rows),
        "pg_operator" => operators::add_operators(&source.engine, rows),
        "pg_cast" => operators::add_casts(rows),
        "pg_aggregate" => operators::add_aggregates(source, rows),
        "pg_stat_activity" => activity::add(source, rows),
        "pg_locks" => locks::add(source, rows),
        "pg_stat_user_tables" | "pg_stat_all_tables" => statistics(source, rows),
        _ => {}
    }
}

fn all_types(rows: &mut Rows) {
    for ty in types::all() {
        let [input, output, receive, send] = ty.functions;
        rows.add(&[
            ("oid", ty.oid.into()),
            ("typname", ty.name.into()),
            ("typnamespace", CATALOG_SCHEMA.into()),
            ("typowner", OWNER.into()),
            ("typlen", ty.bytes.into()),
            ("typbyval", ty.by_value.into()),
            ("typtype", ty.kind.into()),
            ("typcategory", ty.category.into()),
            ("typispreferred", ty.is_preferred.into()),
            ("typisdefined", true.into()),
            ("typdelim", ",".into()),
            ("typsubscript", if ty.element != 0 { "array_subscript_handler" } else { "-" }.into()),
            ("typelem", ty.element.into()),
            ("typarray", ty.array.into()),
            ("typinput", input.into()),
            ("typoutput", output.into()),
            ("typreceive", receive.into()),
            ("typsend", send.into()),
            ("typmodin", "-".into()),
            ("typmodout", "-".into()),
            ("typanalyze", "-".into()),
            ("typalign", ty.alignment.into()),
            ("typstorage", ty.storage.into()),
            ("typtypmod", (-1).into()),
            ("typcollation", ty.collation.into()),
        ]);
    }
}

fn methods(rows: &mut Rows) {
    for (oid, name) in METHODS {
        let (kind, handler) = if name == "heap" { ("t", "heap_tableam_handler") } else { ("i", "bthandler") };
        rows.add(&[
            ("oid", oid.into()),
            ("amname", name.into()),
            ("amhandler", handler.into()),
            ("amtype", kind.into()),
        ]);
    }
}

fn database(rows: &mut Rows) {
    rows.add(&[
        ("oid", DATABASE.into()),
        ("datname", CATALOG_NAME.into()),
        ("datdba", OWNER.into()),
        ("encoding", UTF8.into()),
        ("datlocprovider", "c".into()),
        ("datallowconn", true.into()),
        ("datconnlimit", (-1).into()),
        ("dattablespace", DEFAULT_TABLESPACE.into()),
        ("datcollate", "C".into()),
        ("datctype", "C".into()),
    ]);
}

fn collations(rows: &mut Rows) {
    for (oid, name) in COLLATIONS {
        rows.add(&[
            ("oid", oid.into()),
            ("collname", name.into()),
            ("collnamespace", CATALOG_SCHEMA.into()),
            ("collowner", OWNER.into()),
            ("collprovider", if name == "default" { "d" } else { "c" }.into()),
            ("collisdeterministic", true.into()),
            ("collencoding", (-1).into()),
            ("collcollate", "C".into()),
            ("collctype", "C".into()),
        ]);
    }
}

/// Verifiers of passwords are not shown.
fn roles(source: &Source, rows: &mut Rows) {
    for (oid, name) in &source.objects().roles {
        let def = source.catalog.roles.get(name).filter(|_| *oid != OWNER);
        let is_owner = *oid == OWNER;
        let has = |of: &dyn Fn(&RoleDef) -> bool| is_owner || def.is_some_and(|def| of(def));
        let settings = def.map(|def| def.settings.iter().map(|(name, value)| format!("{name}={value}")).collect());
        let settings = settings.filter(|settings: &Vec<String>| !settings.is_empty());
        let mut values = vec![
            ("oid", (*oid).into()),
            ("rolname", name.as_str().into()),
            ("rolsuper", has(&|def| def.superuser).into()),
            ("rolinherit", true.into()),
            ("rolcreaterole", has(&|def| def.create_role || def.superuser).into()),
            ("rolcreatedb", has(&|def| def.create_schema || def.superuser).into()),
            ("rolcanlogin", has(&|def| def.login).into()),
            ("rolbypassrls", has(&|def| def.superuser).into()),
            ("rolconnlimit", def.and_then(|def| def.connection_limit).map_or(-1, i64::from).into()),
            ("rolvaliduntil", def.and_then(|def| def.valid_until).into()),
        ];
        if rows.has("rolconfig") {
            values.extend([("rolconfig", settings.into()), ("rolpassword", "********".into())]);
        }
        rows.add(&values);
    }
}

fn users(source: &Source, rows: &mut Rows) {
    for (oid, name) in &source.objects().roles {
        let def = source.catalog.roles.get(name).filter(|_| *oid != OWNER);
        let has = |of: &dyn Fn(&RoleDef) -> bool| *oid == OWNER || def.is_some_and(|def| of(def));
        if !has(&|def| def.login) {
            continue;
        }
        rows.add(&[
            ("usename", name.as_str().into()),
            ("usesysid", (*oid).into()),
            ("usecreatedb", has(&|def| def.create_schema || def.superuser).into()),
            ("usesuper", has(&|def| def.superuser).into()),
            ("usebypassrls", has(&|def| def.superuser).into()),
            ("valuntil", def.and_then(|def| def.valid_until).into()),
        ]);
    }
}

fn members(source: &Source, rows: &mut Rows) {
    for (name, def) in &source.catalog.roles {
        for role in &def.member_of {
            rows.add(&[
                ("roleid", source.objects().role(role).into()),
                ("member", source.objects().role(name).into()),
                ("grantor", OWNER.into()),
                ("admin_option", def.admin_of.contains(role).into()),
            ]);
        }
    }
}

fn default_privileges(source: &Source, rows: &mut Rows) {
    for (name, def) in &source.catalog.roles {
        for defaults in &def.defaults {
            let letter = match defaults.kind {
                DefaultKind::Tables => "r",
                DefaultKind::Sequences => "S",
                DefaultKind::Schemas => "n",
            };
            let schema = defaults.schema.as_ref();
            let key = format!("default privileges\0{}\0{letter}\0{name}", schema.map_or("", String::as_str));
            let known = schema.and_then(|schema| source.objects().schemas.iter().find(|(_, known)| known == schema));
            rows.add(&[
                ("oid", hashed_oid(xxh3_64(key.as_bytes())).into()),
                ("defaclrole", source.objects().role(name).into()),
                ("defaclnamespace", known.map_or(0, |(oid, _)| *oid).into()),
                ("defaclobjtype", letter.into()),
                ("defaclacl", definitions::privileges(&defaults.access).into()),
            ]);
        }
    }
}

/// The name of the owner of a relation.
fn owner(source: &Source, relation: &Relation) -> String {
    source.access(relation).owner.clone().unwrap_or_else(|| OWNER_NAME.into())
}

fn tables(source: &Source, rows: &mut Rows) {
    for relation in &source.objects().relations {
        let Relation { name, kind, .. } = relation;
        let (checks_keys, has_index) = match kind {
            Kind::Table(table) => {
                let def = &table.def;
                (!def.foreign_keys.is_empty(), !def.hidden_rowid || !def.indexes.is_empty())
            }
            Kind::System(shape) if shape.kind == "r" => (false, false),
            _ => continue,
        };
        rows.add(&[
            ("schemaname", (*name.schema).into()),
            ("tablename", name.name.as_str().into()),
            ("tableowner", owner(source, relation).into()),
            ("hasindexes", has_index.into()),
            ("hastriggers", checks_keys.into()),
        ]);
    }
}

fn views(source: &Source, rows: &mut Rows) {
    for relation in &source.objects().relations {
        let Relation { name, kind, .. } = relation;
        let definition = match kind {
            Kind::View(view) => Some(view.sql.as_str()),
            Kind::Information => None,
            Kind::System(shape) if shape.kind == "v" => None,
            _ => continue,
        };
        rows.add(&[
            ("schemaname", (*name.schema).into()),
            ("viewname", name.name.as_str().into()),
            ("viewowner", owner(source, relation).into()),
            ("definition", definition.into()),
        ]);
    }
}

fn indexes(source: &Source, rows: &mut Rows) {
    for relation in &source.objects().relations {
        let Some(definition) = definitions::index(relation) else { continue };
        let Some(def) = relation.kind.table() else { continue };
        rows.add(&[
            ("schemaname", (*relation.name.schema).into()),
            ("tablename", def.name.name.as_str().into()),
            ("indexname", relation.name.name.as_str().into()),
            ("indexdef", definition.into()),
        ]);
    }
}

fn sequences(source: &Source, rows: &mut Rows) {
    for relation in &source.objects().relations {
        let Relation { name, kind, .. } = relation;
        let Kind::Sequence(def, _) = kind else { continue };
        rows.add(&[
            ("schemaname", (*name.schema).into()),
            ("sequencename", name.name.as_str().into()),
            ("sequenceowner", owner(source, relation).into()),
            ("data_type", types::sql_name(types::of_column(def.ty.into()).0, None).into()),
            ("start_value", def.start.into()),
            ("min_value", def.min.into()),
            ("max_value", def.max.into()),
            ("increment_by", def.increment.into()),
            ("cycle", def.cycles.into()),
            ("cache_size", 1.into()),
            ("last_value", super::shapes::Value::Null),
        ]);
    }
}

fn settings(source: &Source, rows: &mut Rows) {
    for (name, value) in source.settings() {
        rows.add(&[
            ("name", name.into()),
            ("setting", value.into()),
            ("category", "Client".into()),
            ("context", "user".into()),
            ("vartype", "string".into()),
            ("source", "session".into()),
        ]);
    }
}

fn prepared_statements(source: &Source, rows: &mut Rows) {
    for (name, named) in source.named.lock().iter() {
        rows.add(&[
            ("name", name.as_str().into()),
            ("statement", (*named.text).into()),
            ("prepare_time", activity::micros(named.prepared_at).into()),
            ("parameter_types", named.types.iter().map(|oid| i64::from(*oid)).collect::<Vec<i64>>().into()),
            ("from_sql", named.from_sql.into()),
        ]);
    }
}

fn cursors(source: &Source, rows: &mut Rows) {
    for (name, cursor) in source.cursors.list() {
        rows.add(&[
            ("name", name.as_str().into()),
            ("statement", cursor.text.as_str().into()),
            ("is_holdable", cursor.is_holdable.into()),
            ("is_binary", cursor.is_binary.into()),
            ("is_scrollable", cursor.scrolls.into()),
            ("creation_time", activity::micros(cursor.declared_at).into()),
        ]);
    }
}

/// Keyaki counts rows, but not the accesses of each table.
fn statistics(source: &Source, rows: &mut Rows) {
    for relation in &source.objects().relations {
        let Kind::Table(_) = relation.kind else { continue };
        let (count, _) = super::rows::size(source, relation);
        rows.add(&[
            ("relid", relation.oid.into()),
            ("schemaname", (*relation.name.schema).into()),
            ("relname", relation.name.name.as_str().into()),
            ("n_live_tup", (count as i64).into()),
        ]);
    }
}
