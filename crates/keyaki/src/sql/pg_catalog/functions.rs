//! Functions of the catalog.
//!
//! DataFusion has one function for all of them, [`NAME`]: [`super::rewrite`] replaces `f(a, b)` by `NAME('f', a, b)`. It
//! knows the state of the statement ([`Source`]), evaluates row by row, and returns NULL for objects that do not exist, as
//! PostgreSQL's functions do.

use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

use super::objects::{Kind, Relation, Source};
use super::others::UTF8;
use super::procedures::Procedure;
use super::rewrite::LISTENING;
use super::shapes::{Letter, Value};
use super::{activity, definitions, locks, privileges, rows, types};
use crate::catalog::RelationName;
use crate::engine::CATALOG_NAME;
use crate::sql::advisory::is_advisory;
use crate::sql::client_settings::POSTGRESQL_VERSION;
use crate::sql::names::{quoted, relation_name};
use crate::{Error, ObjectKind};

/// The function of DataFusion.
pub(in crate::sql) const NAME: &str = "keyaki_pg_catalog";

/// As [`NAME`], for functions that do more than return a value.
const ACTION: &str = "keyaki_pg_action";

/// The types of OIDs, which name the functions of casts: `regclass_in` from texts to OIDs, `regclass_out` back, and `regclass`,
/// which is one of them by the type of its argument.
pub(super) const OID_TYPES: [&str; 4] = ["regclass", "regtype", "regnamespace", "regrole"];

/// A function: its name, numbers of arguments, the type of the result, and what it computes.
struct Spec {
    name: &'static str,
    arguments: std::ops::RangeInclusive<usize>,
    result: Letter,
    evaluate: fn(&Source, &[Argument]) -> crate::Result<Value>,
}

/// An argument in one row.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Argument {
    Null,
    Number(i64),
    Text(String),
    Bool(bool),
}

impl Argument {
    pub fn number(&self) -> Option<i64> {
        match self {
            Argument::Number(number) => Some(*number),
            Argument::Text(text) => text.trim().parse().ok(),
            Argument::Null | Argument::Bool(_) => None,
        }
    }

    pub fn oid(&self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    pub fn text(&self) -> Option<&str> {
        if let Argument::Text(text) = self { Some(text) } else { None }
    }
}

const fn spec(
    name: &'static str,
    arguments: std::ops::RangeInclusive<usize>,
    result: Letter,
    evaluate: fn(&Source, &[Argument]) -> crate::Result<Value>,
) -> Spec {
    Spec { name, arguments, result, evaluate }
}

/// All functions.
static SPECS: &[Spec] = &[
    spec("col_description", 2..=2, Letter::Text, |source, args| {
        let (Some(oid), Some(number)) = (args[0].oid(), args[1].number()) else { return Ok(Value::Null) };
        let relation = source.objects().relation(oid).filter(|_| number > 0);
        Ok(relation.and_then(|relation| rows::comment(relation, number as usize)).into())
    }),
    spec("current_database", 0..=0, Letter::Text, |_, _| Ok(CATALOG_NAME.into())),
    spec("current_catalog", 0..=0, Letter::Text, |_, _| Ok(CATALOG_NAME.into())),
    spec("current_setting", 1..=2, Letter::Text, |source, args| {
        let Some(name) = args[0].text() else { return Ok(Value::Null) };
        let settings = source.settings();
        match settings.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, value)) => Ok(value.as_str().into()),
            None if args.get(1) == Some(&Argument::Bool(true)) => Ok(Value::Null),
            None => Err(missing(ObjectKind::Setting, name)),
        }
    }),
    spec("format_type", 2..=2, Letter::Text, |_, args| {
        let modifier = args[1].number().and_then(|modifier| i32::try_from(modifier).ok());
        Ok(args[0].oid().map(|oid| types::sql_name(oid, modifier)).into())
    }),
    spec("getdatabaseencoding", 0..=0, Letter::Text, |_, _| Ok("UTF8".into())),
    spec("has_any_column_privilege", 2..=3, Letter::Bool, privileges::of_table),
    spec("has_column_privilege", 3..=4, Letter::Bool, privileges::of_column),
    spec("has_database_privilege", 2..=3, Letter::Bool, privileges::of_database),
    spec("has_function_privilege", 2..=3, Letter::Bool, privileges::of_function),
    spec("has_schema_privilege", 2..=3, Letter::Bool, privileges::of_schema),
    spec("has_sequence_privilege", 2..=3, Letter::Bool, privileges::of_sequence),
    spec("has_table_privilege", 2..=3, Letter::Bool, privileges::of_table),
    spec("inet_client_addr", 0..=0, Letter::Text, |source, _| {
        Ok(source.activity.owner().address.map(|address| address.ip().to_string()).into())
    }),
    spec("inet_client_port", 0..=0, Letter::Int4, |source, _| {
        Ok(source.activity.owner().address.map(|address| i32::from(address.port())).into())
    }),
    spec("inet_server_addr", 0..=0, Letter::Text, nothing),
    spec("inet_server_port", 0..=0, Letter::Int4, nothing),
    spec("obj_description", 1..=2, Letter::Text, |source, args| {
        let Some(oid) = args[0].oid() else { return Ok(Value::Null) };
        let of = |class: &str| args.get(1).is_none_or(|name| name.text() == Some(class));
        let relation = source.objects().relation(oid).filter(|_| of("pg_class"));
        let schema = || rows::schema_comment(source, oid).filter(|_| of("pg_namespace"));
        Ok(relation.and_then(|relation| rows::comment(relation, 0)).or_else(schema).into())
    }),
    spec("pg_backend_pid", 0..=0, Letter::Int4, |source, _| Ok(source.activity.process.into())),
    spec("pg_advisory_lock", 1..=2, Letter::Text, advisory),
    spec("pg_advisory_lock_shared", 1..=2, Letter::Text, advisory),
    spec("pg_advisory_unlock", 1..=2, Letter::Bool, advisory),
    spec("pg_advisory_unlock_shared", 1..=2, Letter::Bool, advisory),
    spec("pg_advisory_unlock_all", 0..=0, Letter::Text, advisory),
    spec("pg_advisory_xact_lock", 1..=2, Letter::Text, advisory),
    spec("pg_advisory_xact_lock_shared", 1..=2, Letter::Text, advisory),
    spec("pg_try_advisory_lock", 1..=2, Letter::Bool, advisory),
    spec("pg_try_advisory_lock_shared", 1..=2, Letter::Bool, advisory),
    spec("pg_try_advisory_xact_lock", 1..=2, Letter::Bool, advisory),
    spec("pg_try_advisory_xact_lock_shared", 1..=2, Letter::Bool, advisory),
    spec("pg_blocking_pids", 1..=1, Letter::Int4s, |source, args| {
        Ok(args[0].number().map_or(Value::Null, |process| locks::blocking(source, process)))
    }),
    spec(LISTENING, 0..=0, Letter::Texts, |source, _| Ok(source.channels.listening().into())),
    spec("pg_notify", 2..=2, Letter::Text, |source, args| {
        let channel = args[0].text().unwrap_or_default();
        let payload = args[1].text().unwrap_or_default();
        match source.outbox.get() {
            Some(outbox) => outbox.notify(channel, payload)?,
            None => source.channels.notify(channel, payload)?,
        }
        Ok("".into())
    }),
    spec("pg_cancel_backend", 1..=1, Letter::Bool, |source, args| {
        args[0].number().map_or(Ok(Value::Null), |process| activity::cancel(source, process))
    }),
    spec("pg_char_to_encoding", 1..=1, Letter::Int4, |_, args| {
        let is_utf8 = |name: &str| matches!(name.to_ascii_lowercase().as_str(), "utf8" | "utf-8" | "unicode");
        Ok(args[0].text().map(|name| if is_utf8(name) { UTF8 } else { -1 }).into())
    }),
    spec("pg_client_encoding", 0..=0, Letter::Text, |_, _| Ok("UTF8".into())),
    spec("pg_collation_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_conversion_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_database_size", 1..=1, Letter::Int8, |source, _| {
        Ok((source.engine.store.stats().data_file_bytes as i64).into())
    }),
    spec("pg_encoding_to_char", 1..=1, Letter::Text, |_, args| {
        Ok(args[0].number().map(|number| if number == UTF8 { "UTF8" } else { "" }).into())
    }),
    spec("pg_function_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_get_constraintdef", 1..=2, Letter::Text, |source, args| {
        let objects = source.objects();
        let constraint = args[0].oid().and_then(|oid| objects.constraint(oid));
        let name = |name: &RelationName| shown(source, name);
        Ok(constraint.and_then(|of| definitions::constraint(objects, of, &name)).into())
    }),
    spec("pg_get_expr", 2..=3, Letter::Text, |_, args| Ok(args[0].text().into())),
    spec("pg_get_function_arguments", 1..=1, Letter::Text, |source, args| {
        procedure(source, args, Procedure::arguments)
    }),
    spec("pg_get_function_identity_arguments", 1..=1, Letter::Text, |source, args| {
        procedure(source, args, Procedure::arguments)
    }),
    spec("pg_get_function_result", 1..=1, Letter::Text, |source, args| procedure(source, args, Procedure::result)),
    spec("pg_get_functiondef", 1..=1, Letter::Text, nothing),
    spec("pg_get_indexdef", 1..=3, Letter::Text, |source, args| {
        let relation = args[0].oid().and_then(|oid| source.objects().relation(oid));
        Ok(match args.get(1).and_then(Argument::number) {
            None | Some(0) => relation.and_then(definitions::index),
            Some(number) => relation.and_then(|of| definitions::index_column(of, usize::try_from(number).ok()?)),
        }
        .into())
    }),
    spec("pg_get_partkeydef", 1..=1, Letter::Text, nothing),
    spec("pg_get_ruledef", 1..=2, Letter::Text, nothing),
    spec("pg_get_serial_sequence", 2..=2, Letter::Text, |source, args| {
        let (Some(table), Some(column)) = (args[0].text(), args[1].text()) else { return Ok(Value::Null) };
        let Some(table) = relation(source, table)? else { return Err(missing(ObjectKind::Relation, table)) };
        let owned = |relation: &&Relation| {
            let Kind::Sequence(_, Some((owner, place))) = &relation.kind else { return false };
            let def = table.kind.table().filter(|def| def.name == *owner);
            def.is_some_and(|def| def.columns[*place].name == column)
        };
        let found = source.objects().relations.iter().find(owned);
        Ok(found.map(|relation| crate::sql::names::full_sql(&relation.name)).into())
    }),
    spec("pg_get_statisticsobjdef", 1..=1, Letter::Text, nothing),
    spec("pg_get_statisticsobjdef_columns", 1..=1, Letter::Text, nothing),
    spec("pg_get_triggerdef", 1..=2, Letter::Text, nothing),
    spec("pg_get_userbyid", 1..=1, Letter::Text, |source, args| Ok(args[0].oid().map(|oid| role(source, oid)).into())),
    spec("pg_get_viewdef", 1..=2, Letter::Text, |source, args| {
        let found = match (&args[0], args[0].oid()) {
            (_, Some(oid)) => source.objects().relation(oid),
            (Argument::Text(name), None) => relation(source, name)?,
            _ => None,
        };
        Ok(found
            .and_then(|relation| match &relation.kind {
                Kind::View(view) => Some(format!(" {};", view.sql)),
                _ => None,
            })
            .into())
    }),
    spec("pg_has_role", 2..=3, Letter::Bool, privileges::of_role),
    spec("pg_indexes_size", 1..=1, Letter::Int8, |source, args| sized(source, &args[0], false, true)),
    spec("pg_is_in_recovery", 0..=0, Letter::Bool, |_, _| Ok(false.into())),
    spec("pg_is_other_temp_schema", 1..=1, Letter::Bool, |_, _| Ok(false.into())),
    spec("pg_my_temp_schema", 0..=0, Letter::Oid, |source, _| {
        let temporary = source.path.temporary().map(|name| &**name);
        let schemas = &source.objects().schemas;
        Ok(schemas.iter().find(|(_, name)| Some(name.as_str()) == temporary).map_or(0, |(oid, _)| *oid).into())
    }),
    spec("pg_opclass_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_operator_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_opfamily_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_postmaster_start_time", 0..=0, Letter::Time, |source, _| {
        Ok(activity::micros(source.engine.sessions.opened_at).into())
    }),
    spec("pg_relation_is_publishable", 1..=1, Letter::Bool, |source, args| {
        let relation = args[0].oid().and_then(|oid| source.objects().relation(oid));
        Ok(relation.map(|relation| matches!(relation.kind, Kind::Table(_))).into())
    }),
    spec("pg_relation_size", 1..=2, Letter::Int8, |source, args| sized(source, &args[0], true, false)),
    spec("pg_size_pretty", 1..=1, Letter::Text, |_, args| Ok(args[0].number().map(pretty).into())),
    spec("pg_statistics_obj_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_table_is_visible", 1..=1, Letter::Bool, |source, args| {
        let relation = args[0].oid().and_then(|oid| source.objects().relation(oid));
        Ok(relation.map(|relation| is_visible(source, &relation.name)).into())
    }),
    spec("pg_table_size", 1..=1, Letter::Int8, |source, args| sized(source, &args[0], true, false)),
    spec("pg_tablespace_location", 1..=1, Letter::Text, |_, _| Ok("".into())),
    spec("pg_terminate_backend", 1..=2, Letter::Bool, |source, args| {
        let timeout = args.get(1).map_or(Some(0), Argument::number);
        match (args[0].number(), timeout) {
            (Some(process), Some(timeout)) => activity::terminate(source, process, timeout),
            _ => Ok(Value::Null),
        }
    }),
    spec("pg_total_relation_size", 1..=1, Letter::Int8, |source, args| sized(source, &args[0], true, true)),
    spec("pg_ts_config_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_ts_dict_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_ts_parser_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_ts_template_is_visible", 1..=1, Letter::Bool, always),
    spec("pg_type_is_visible", 1..=1, Letter::Bool, always),
    spec("quote_ident", 1..=1, Letter::Text, |_, args| Ok(args[0].text().map(quoted).into())),
    spec("set_config", 3..=3, Letter::Text, |_, _| {
        Err(Error::Unsupported("set_config other than in the select list of a query without FROM".into()))
    }),
    spec("shobj_description", 2..=2, Letter::Text, nothing),
    spec("to_regclass", 1..=1, Letter::Oid, |source, args| {
        let Some(name) = args[0].text() else { return Ok(Value::Null) };
        Ok(relation(source, name).ok().flatten().map(|relation| relation.oid).into())
    }),
    spec("to_regnamespace", 1..=1, Letter::Oid, |source, args| {
        Ok(args[0].text().and_then(|name| schema(source, name)).into())
    }),
    spec("to_regtype", 1..=1, Letter::Oid, |_, args| Ok(args[0].text().and_then(types::named).into())),
    spec("version", 0..=0, Letter::Text, |_, _| {
        let own = env!("CARGO_PKG_VERSION");
        Ok(format!("PostgreSQL {POSTGRESQL_VERSION} (Keyaki {own}) on {}-linux", std::env::consts::ARCH).into())
    }),
    spec("oid_in", 1..=1, Letter::Oid, |_, args| match (&args[0], args[0].oid()) {
        (Argument::Null, _) => Ok(Value::Null),
        (_, Some(oid)) => Ok(oid.into()),
        (other, None) => Err(no_oid(other)),
    }),
    spec("regclass_in", 1..=1, Letter::Oid, |source, args| {
        read(&args[0], |name| match relation(source, name)? {
            Some(relation) => Ok(relation.oid),
            None => Err(missing(ObjectKind::Relation, name)),
        })
    }),
    spec("regclass_out", 1..=1, Letter::Text, |source, args| {
        written(&args[0], |oid| source.objects().relation(oid).map(|relation| shown(source, &relation.name)))
    }),
    spec("regtype_in", 1..=1, Letter::Oid, |_, args| {
        read(&args[0], |name| types::named(name).ok_or_else(|| missing(ObjectKind::Type, name)))
    }),
    spec("regtype_out", 1..=1, Letter::Text, |_, args| {
        written(&args[0], |oid| types::find(oid).map(|ty| types::sql_name(ty.oid, None)))
    }),
    spec("regnamespace_in", 1..=1, Letter::Oid, |source, args| {
        read(&args[0], |name| schema(source, name).ok_or_else(|| missing(ObjectKind::Schema, name)))
    }),
    spec("regnamespace_out", 1..=1, Letter::Text, |source, args| {
        let schemas = &source.objects().schemas;
        written(&args[0], |oid| schemas.iter().find(|(schema, _)| *schema == oid).map(|(_, name)| quoted(name)))
    }),
    spec("regrole_in", 1..=1, Letter::Oid, |source, args| {
        read(&args[0], |name| match source.objects().role(name.trim_matches('"')) {
            0 => Err(missing(ObjectKind::Role, name)),
            oid => Ok(oid),
        })
    }),
    spec("regrole_out", 1..=1, Letter::Text, |source, args| written(&args[0], |oid| Some(quoted(&role(source, oid))))),
];

/// The functions of advisory locks, where they are not executed.
fn advisory(_: &Source, _: &[Argument]) -> crate::Result<Value> {
    let what = "functions of advisory locks other than in the select list of a query without FROM";
    Err(Error::Unsupported(what.into()))
}

fn nothing(_: &Source, _: &[Argument]) -> crate::Result<Value> {
    Ok(Value::Null)
}

/// A text about a function, by its OID.
fn procedure(source: &Source, args: &[Argument], text: fn(&Procedure) -> String) -> crate::Result<Value> {
    let oid = args[0].oid();
    Ok(source.functions().iter().find(|known| Some(known.oid) == oid).map(text).into())
}

fn always(_: &Source, args: &[Argument]) -> crate::Result<Value> {
    Ok((args[0] != Argument::Null).then_some(true).into())
}

/// The error for a value that is no OID.
fn no_oid(value: &Argument) -> Error {
    match value {
        Argument::Number(number) => Error::out_of_range("oid", &number.to_string(), None),
        Argument::Text(text) => Error::invalid_text("oid", text, None),
        Argument::Bool(value) => Error::invalid_text("oid", &value.to_string(), None),
        Argument::Null => Error::Internal("NULL is read as an OID".into()),
    }
}

pub(super) fn missing(kind: ObjectKind, name: &str) -> Error {
    Error::NotFound { kind, name: name.into() }
}

/// A cast of a text to a type of OIDs. Numbers stay.
fn read(text: &Argument, named: impl Fn(&str) -> crate::Result<u32>) -> crate::Result<Value> {
    match (text, text.oid()) {
        (Argument::Null, _) => Ok(Value::Null),
        (_, Some(oid)) => Ok(oid.into()),
        (Argument::Text(text), None) if text == "-" => Ok(0_u32.into()),
        (Argument::Text(text), None) => named(text).map(Into::into),
        (other, None) => Err(no_oid(other)),
    }
}

/// The name of an object; the number if there is none. Texts stay.
fn written(oid: &Argument, name: impl Fn(u32) -> Option<String>) -> crate::Result<Value> {
    Ok(match (oid, oid.oid()) {
        (_, Some(0)) => "-".into(),
        (_, Some(oid)) => name(oid).unwrap_or_else(|| oid.to_string()).into(),
        (Argument::Text(text), None) => text.as_str().into(),
        (_, None) => Value::Null,
    })
}

/// A relation by a name in SQL.
///
/// # Errors
/// `Syntax`.
pub(super) fn relation<'s>(source: &'s Source, name: &str) -> crate::Result<Option<&'s Relation>> {
    let parsed = crate::sql::parse_name(name)?;
    let found = relation_name(&parsed, &source.catalog, &source.path)?;
    let objects = source.objects();
    if !found.schema.is_empty() {
        return Ok(objects.named(&found));
    }
    // Indexes and the relations of the system are not found along the path.
    let temporary = source.path.temporary().map(|name| &**name);
    let schemas = temporary.into_iter().chain(source.path.schemas(&source.catalog)).chain([super::NAME]);
    Ok(schemas.map(|schema| RelationName::new(schema, found.name.clone())).find_map(|name| objects.named(&name)))
}

pub(super) fn schema(source: &Source, name: &str) -> Option<u32> {
    let name = name.trim_matches('"');
    source.objects().schemas.iter().find(|(_, schema)| schema == name).map(|(oid, _)| *oid)
}

fn role(source: &Source, oid: u32) -> String {
    let found = source.objects().roles.iter().find(|(role, _)| *role == oid);
    found.map_or_else(|| format!("unknown (OID={oid})"), |(_, name)| name.clone())
}

/// True if the session finds a relation without its schema.
fn is_visible(source: &Source, name: &RelationName) -> bool {
    let temporary = source.path.temporary().map(|name| &**name);
    let mut schemas = temporary.into_iter().chain(source.path.schemas(&source.catalog)).chain([super::NAME]);
    let first = schemas.find(|schema| source.objects().named(&RelationName::new(*schema, name.name.clone())).is_some());
    first == Some(&*name.schema)
}

/// The name of a relation, with its schema if the session needs it.
fn shown(source: &Source, name: &RelationName) -> String {
    match is_visible(source, name) {
        true => quoted(&name.name),
        false => format!("{}.{}", quoted(&name.schema), quoted(&name.name)),
    }
}

/// Bytes in the data file of a table without or with its indexes, or of an index.
fn sized(source: &Source, of: &Argument, own: bool, with_indexes: bool) -> crate::Result<Value> {
    let found = match (of, of.oid()) {
        (_, Some(oid)) => source.objects().relation(oid),
        (Argument::Text(name), None) => {
            Some(relation(source, name)?.ok_or_else(|| missing(ObjectKind::Relation, name))?)
        }
        _ => None,
    };
    let Some(found) = found else { return Ok(Value::Null) };
    let mut bytes = if own { rows::size(source, found).1 } else { 0 };
    if let (true, Kind::Table(table)) = (with_indexes, &found.kind) {
        bytes += source.objects().indexes(&table.def.name).map(|index| rows::size(source, index).1).sum::<u64>();
    }
    Ok((bytes as i64).into())
}

/// A number of bytes with the unit in which it has at most five digits.
fn pretty(bytes: i64) -> String {
    const LIMIT: i128 = 10 * 1024;
    let (sign, mut size) = (if bytes < 0 { "-" } else { "" }, i128::from(bytes).abs());
    if size < LIMIT {
        return format!("{sign}{size} bytes");
    }
    // Each division keeps one bit, by which the last result is rounded.
    size /= 512;
    let mut units = ["kB", "MB", "GB", "TB", "PB"].into_iter().peekable();
    while let Some(unit) = units.next() {
        if size.div_euclid(2) + size % 2 < LIMIT || units.peek().is_none() {
            return format!("{sign}{} {unit}", (size + 1) / 2);
        }
        size /= 1024;
    }
    format!("{sign}{size} PB")
}

/// The results of a function with a name and a number of arguments; `None` if there is none.
fn find(name: &str, arguments: usize) -> Option<&'static Spec> {
    SPECS.iter().find(|spec| spec.name == name && spec.arguments.contains(&arguments))
}

/// Names, numbers of arguments and types of the results of all functions, but those of casts.
pub(super) fn catalog_functions() -> impl Iterator<Item = (&'static str, std::ops::RangeInclusive<usize>, DataType)> {
    let is_cast = |name: &str| ["_in", "_out"].iter().any(|end| name.ends_with(end));
    let others = SPECS.iter().filter(move |spec| !is_cast(spec.name));
    others.map(|spec| (spec.name, spec.arguments.clone(), spec.result.data_type()))
}

/// True for the name of a function of the catalog.
pub(super) fn is_function(name: &str) -> bool {
    SPECS.iter().any(|spec| spec.name == name)
}

/// The function of DataFusion for a function of the catalog.
pub(super) fn implementation(name: &str) -> &'static str {
    match name {
        "pg_cancel_backend" | "pg_notify" | "pg_terminate_backend" | "set_config" => ACTION,
        name if is_advisory(name) => ACTION,
        _ => NAME,
    }
}

/// The function of DataFusion.
struct Catalog {
    name: &'static str,
    source: Arc<Source>,
    signature: Signature,
}

impl Debug for Catalog {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Catalog {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.source, &other.source)
    }
}

impl Eq for Catalog {}

impl Hash for Catalog {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.source).hash(state);
    }
}

/// The function that a call names with its first argument.
///
/// # Errors
/// As for a function that does not exist.
fn named(first: Option<&ScalarValue>, arguments: &[DataType]) -> Result<&'static Spec> {
    let name = first.and_then(|value| value.try_as_str().flatten()).unwrap_or_default();
    let arguments_len = arguments.len();
    let found = match (OID_TYPES.contains(&name), arguments) {
        (true, [ty]) if ty.is_numeric() => find(&format!("{name}_out"), 1),
        (true, [_]) => find(&format!("{name}_in"), 1),
        _ => find(name, arguments_len),
    };
    found.ok_or_else(|| DataFusionError::Plan(format!("function {name} with {arguments_len} arguments does not exist")))
}

impl ScalarUDFImpl for Catalog {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Err(Error::Internal("the type of a function of the catalog depends on its name".into()).into())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().skip(1).map(|field| field.data_type().clone()).collect();
        let spec = named(args.scalar_arguments.first().copied().flatten(), &types)?;
        Ok(Arc::new(Field::new(spec.name, spec.result.data_type(), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let (first, others) = match args.args.split_first() {
            Some((ColumnarValue::Scalar(name), others)) => (Some(name), others),
            _ => (None, &args.args[..]),
        };
        let types: Vec<DataType> = others.iter().map(ColumnarValue::data_type).collect();
        let spec = named(first, &types)?;
        let is_scalar = others.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { rows };
        let columns = others.iter().map(|arg| arguments(&arg.to_array(rows)?)).collect::<Result<Vec<_>>>()?;
        let mut results = Vec::with_capacity(rows);
        for row in 0..rows {
            let row: Vec<Argument> = columns.iter().map(|column| column[row].clone()).collect();
            results.push((spec.evaluate)(&self.source, &row)?);
        }
        let array = spec.result.array(results.iter());
        match is_scalar {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

/// The values of an array as arguments.
fn arguments(array: &ArrayRef) -> Result<Vec<Argument>> {
    Ok(match array.data_type() {
        DataType::Null => vec![Argument::Null; array.len()],
        DataType::Boolean => {
            array.as_boolean().iter().map(|value| value.map_or(Argument::Null, Argument::Bool)).collect()
        }
        ty if ty.is_numeric() => {
            let numbers = cast(array, &DataType::Int64)?;
            let numbers = numbers.as_primitive::<Int64Type>().iter();
            numbers.map(|value| value.map_or(Argument::Null, Argument::Number)).collect()
        }
        _ => {
            let texts = cast(array, &DataType::Utf8)?;
            let texts = texts.as_string::<i32>().iter();
            texts.map(|value| value.map_or(Argument::Null, |text| Argument::Text(text.into()))).collect()
        }
    })
}

/// Adds the functions to the state of a statement.
pub(in crate::sql) fn register_for(state: &mut SessionState, source: Arc<Source>) -> Result<()> {
    for (name, volatility) in [(NAME, Volatility::Stable), (ACTION, Volatility::Volatile)] {
        let function = Catalog { name, source: source.clone(), signature: Signature::variadic_any(volatility) };
        state.register_udf(Arc::new(ScalarUDF::new_from_impl(function)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (10_240, "10 kB"),
            (-20_000, "-20 kB"),
            (10 * 1024 * 1024, "10 MB"),
            (i64::MAX, "8192 PB"),
        ] {
            assert_eq!(pretty(bytes), text);
        }
    }

    #[test]
    fn functions_by_name_and_arguments() {
        assert!(is_function("format_type") && !is_function("abs"));
        assert!(find("format_type", 2).is_some() && find("format_type", 1).is_none());
        for ty in OID_TYPES {
            assert!(is_function(&format!("{ty}_in")) && is_function(&format!("{ty}_out")));
        }
    }
}
