//! The rows of the relations about tables, views, indexes, sequences and constraints.

use arrow::array::RecordBatch;
use datafusion::error::Result;
use keyaki_store::{ColumnType, KeyRange};

use super::definitions::{self, IndexColumn};
use super::objects::{ConstraintKind, Kind, Objects, PlanOf, Relation, Source};
use super::shapes::{self, Letter, Rows, Shape, Value};
use super::{others, types};
use crate::catalog::{self, ColumnDef, ConstraintTiming, ReferentialAction, SqlType};
use crate::sql::documents;

/// PostgreSQL's access methods, and those of Keyaki's indexes: OID and name.
pub(super) const METHODS: [(u32, &str); 4] = [(2, "heap"), (403, "btree"), (16_000, "masstree"), (16_001, "vast")];
/// Bytes of a page in `pg_class.relpages`.
const PAGE_BYTES: u64 = 8192;

/// The rows of a relation of the schema; `None` for other names. `plan` is used for `pg_attribute`.
///
/// # Errors
/// None is expected.
pub(in crate::sql) fn view(source: &Source, name: &str, plan: PlanOf<'_>) -> Result<Option<RecordBatch>> {
    let Some(shape) = shapes::find(name) else { return Ok(None) };
    let mut rows = Rows::new(shape);
    match name {
        "pg_namespace" => schemas(source, &mut rows),
        "pg_class" => classes(source, &mut rows),
        "pg_attribute" => attributes(source, plan, &mut rows),
        "pg_attrdef" => defaults(source.objects(), &mut rows),
        "pg_index" => indexes(source.objects(), &mut rows),
        "pg_constraint" => constraints(source, &mut rows),
        "pg_sequence" => sequences(source.objects(), &mut rows),
        "pg_description" => descriptions(source, &mut rows),
        "pg_depend" => dependencies(source.objects(), &mut rows),
        _ => others::add(source, shape, &mut rows),
    }
    rows.batch().map(Some)
}

/// The OID of a relation of `pg_catalog`.
pub(super) fn class_oid(name: &str) -> u32 {
    shapes::find(name).map_or(0, |shape| shape.oid)
}

fn schemas(source: &Source, rows: &mut Rows) {
    for (oid, name) in &source.objects().schemas {
        let access = source.catalog.access_of_schema(name);
        rows.add(&[
            ("oid", (*oid).into()),
            ("nspname", name.as_str().into()),
            ("nspowner", source.objects().owner(&access).into()),
            ("nspacl", definitions::privileges(&access).into()),
        ]);
    }
}

fn method_oid(name: &str) -> u32 {
    METHODS.iter().find(|(_, method)| *method == name).map_or(0, |(oid, _)| *oid)
}

/// Estimated rows, and bytes in the data file, of a table or index.
pub(super) fn size(source: &Source, relation: &Relation) -> (f64, u64) {
    let tree = match &relation.kind {
        Kind::Table(table) => table.def.tree,
        Kind::Index(..) => match relation.kind.index() {
            Some(index) => index.tree,
            None => return (0.0, 0),
        },
        // The table's own tree is counted with the table.
        _ => return (0.0, 0),
    };
    let rows = source.snapshot.tree(tree).map_or(0.0, |view| view.estimate(&KeyRange::all()).rows);
    (rows, source.engine.store.tree_bytes(tree))
}

fn classes(source: &Source, rows: &mut Rows) {
    let objects = source.objects();
    for relation in &objects.relations {
        let Relation { oid, name, schema, kind } = relation;
        let mut columns: usize = 0;
        let (mut checks, mut has_index, mut has_triggers, mut method) = (0, false, false, 0);
        match kind {
            Kind::Table(table) => {
                let def = &table.def;
                columns = def.columns.len();
                checks = def.checks.len();
                has_index = !def.hidden_rowid || !def.indexes.is_empty();
                has_triggers = !def.foreign_keys.is_empty() || source.catalog.referencing(&def.name).next().is_some();
                method = method_oid("heap");
            }
            Kind::PrimaryKey(_) | Kind::Index(..) => {
                columns = definitions::index_columns(relation).map_or(0, |columns| columns.len());
                method = method_oid(definitions::method(kind));
            }
            Kind::System(shape) => columns = shape.columns.len(),
            Kind::View(_) | Kind::Sequence(..) | Kind::Information => {}
        }
        let (count, bytes) = size(source, relation);
        let access = source.access(relation);
        rows.add(&[
            ("oid", (*oid).into()),
            ("relname", name.name.as_str().into()),
            ("relnamespace", (*schema).into()),
            ("relowner", objects.owner(&access).into()),
            ("relacl", definitions::privileges(&access).filter(|_| kind.letter() != "i").into()),
            ("relam", method.into()),
            ("relfilenode", (*oid).into()),
            ("relpages", (bytes.div_ceil(PAGE_BYTES).min(i32::MAX as u64) as i64).into()),
            ("reltuples", count.into()),
            ("relhasindex", has_index.into()),
            ("relpersistence", if name.is_temporary() { "t" } else { "p" }.into()),
            ("relkind", kind.letter().into()),
            ("relnatts", columns.into()),
            ("relchecks", checks.into()),
            ("relhasrules", matches!(kind, Kind::View(_)).into()),
            ("relhastriggers", has_triggers.into()),
            ("relispopulated", true.into()),
            ("relreplident", if matches!(kind, Kind::Table(_)) { "d" } else { "n" }.into()),
        ]);
    }
}

fn attribute(rows: &mut Rows, relation: u32, number: usize, column: &ColumnDef, is_of_table: bool) {
    let (ty, modifier) = types::of_column(column.ty);
    let dimensions = if matches!(column.ty.column, ColumnType::List(_)) { 1 } else { 0 };
    let known = types::find(ty);
    let identity = column.identity.as_ref().map_or("", |identity| if identity.always { "a" } else { "d" });
    rows.add(&[
        ("attrelid", relation.into()),
        ("attname", column.name.as_str().into()),
        ("atttypid", ty.into()),
        ("attstattarget", (-1).into()),
        ("attlen", known.map_or(-1, |ty| ty.bytes).into()),
        ("attnum", (number + 1).into()),
        ("attndims", dimensions.into()),
        ("attcacheoff", (-1).into()),
        ("atttypmod", modifier.into()),
        ("attbyval", known.is_some_and(|ty| ty.by_value).into()),
        ("attalign", known.map_or("i", |ty| ty.alignment).into()),
        ("attstorage", known.map_or("x", |ty| ty.storage).into()),
        ("attcompression", "".into()),
        ("attnotnull", (is_of_table && !column.nullable).into()),
        ("atthasdef", (column.default.is_some() || column.generated.is_some()).into()),
        ("attidentity", identity.into()),
        ("attgenerated", if column.generated.is_some() { "s" } else { "" }.into()),
        ("attislocal", true.into()),
        ("attcollation", known.map_or(0, |ty| ty.collation).into()),
    ]);
}

fn attributes(source: &Source, plan: PlanOf<'_>, rows: &mut Rows) {
    for relation in &source.objects().relations {
        match &relation.kind {
            Kind::Table(table) => {
                let is_key = |i: &usize| table.def.primary_key.contains(i);
                for (i, column) in table.def.columns.iter().enumerate() {
                    let nullable = column.nullable && !is_key(&i);
                    attribute(rows, relation.oid, i, &ColumnDef { nullable, ..column.clone() }, true);
                }
            }
            Kind::View(_) => {
                let Some(plan) = plan(&relation.name) else { continue };
                let fields = plan.schema().fields().iter().zip(documents::columns(&plan));
                for (i, (field, json)) in fields.enumerate() {
                    let column = catalog::types::from_arrow(field.data_type()).unwrap_or(ColumnType::Text);
                    let column = ColumnDef::new(field.name(), SqlType { json, ..column.into() });
                    attribute(rows, relation.oid, i, &column, false);
                }
            }
            Kind::PrimaryKey(_) | Kind::Index(..) => {
                let Some(def) = relation.kind.table() else { continue };
                let columns = definitions::index_columns(relation).unwrap_or_default();
                let mut expressions = relation.kind.index().into_iter().flat_map(|index| index.expressions());
                for (i, column) in columns.iter().enumerate() {
                    let column = match column {
                        IndexColumn::Column(column) => def.columns[*column].clone(),
                        IndexColumn::Expression(_) => {
                            let ty = expressions.next().map_or(SqlType::from(ColumnType::Text), |of| of.ty);
                            ColumnDef::new("expr", ty)
                        }
                    };
                    let column = ColumnDef { default: None, generated: None, identity: None, ..column };
                    attribute(rows, relation.oid, i, &column, false);
                }
            }
            Kind::System(shape) => system_attributes(rows, shape),
            Kind::Sequence(..) | Kind::Information => {}
        }
    }
}

fn system_attributes(rows: &mut Rows, shape: &Shape) {
    for (i, (name, letter)) in shape.columns.iter().enumerate() {
        let ty = match letter {
            Letter::Oid => "oid",
            Letter::Int2 => "int2",
            Letter::Int4 => "int4",
            Letter::Int8 => "int8",
            Letter::Bool => "bool",
            Letter::Float4 => "float4",
            Letter::Float8 => "float8",
            Letter::Time => "timestamptz",
            Letter::Text => "text",
            Letter::Int2s => "_int2",
            Letter::Int4s => "_int4",
            Letter::Oids => "_oid",
            Letter::Texts => "_text",
            Letter::Int2Vector => "int2vector",
            Letter::OidVector => "oidvector",
        };
        rows.add(&[
            ("attrelid", shape.oid.into()),
            ("attname", (*name).into()),
            ("atttypid", types::named(ty).into()),
            ("attstattarget", (-1).into()),
            ("attlen", types::named(ty).and_then(types::find).map_or(-1, |ty| ty.bytes).into()),
            ("attnum", (i + 1).into()),
            ("attcacheoff", (-1).into()),
            ("atttypmod", (-1).into()),
            ("attidentity", "".into()),
            ("attgenerated", "".into()),
            ("attcompression", "".into()),
            ("attislocal", true.into()),
        ]);
    }
}

/// The OID of a column's default in `pg_attrdef`, which has no other use.
fn default_oid(table: u32, column: usize) -> u32 {
    (table ^ (((column + 1) as u32) << 16)) & (i32::MAX as u32)
}

fn defaults(objects: &Objects, rows: &mut Rows) {
    for relation in &objects.relations {
        let Kind::Table(table) = &relation.kind else { continue };
        for (i, column) in table.def.columns.iter().enumerate() {
            let Some(sql) = column.default.as_ref().or(column.generated.as_ref()) else { continue };
            rows.add(&[
                ("oid", default_oid(relation.oid, i).into()),
                ("adrelid", relation.oid.into()),
                ("adnum", (i + 1).into()),
                ("adbin", sql.as_str().into()),
            ]);
        }
    }
}

fn indexes(objects: &Objects, rows: &mut Rows) {
    for relation in &objects.relations {
        let (Some(columns), Some(def)) = (definitions::index_columns(relation), relation.kind.table()) else {
            continue;
        };
        let table = objects.named(&def.name).map_or(0, |table| table.oid);
        let index = relation.kind.index();
        let numbers = columns.iter().map(|column| match column {
            IndexColumn::Column(column) => *column as i64 + 1,
            IndexColumn::Expression(_) => 0,
        });
        let expressions: Vec<&str> = columns
            .iter()
            .filter_map(|column| match column {
                IndexColumn::Column(_) => None,
                IndexColumn::Expression(sql) => Some(*sql),
            })
            .collect();
        let keys = definitions::key_count(relation);
        rows.add(&[
            ("indexrelid", relation.oid.into()),
            ("indrelid", table.into()),
            ("indnatts", columns.len().into()),
            ("indnkeyatts", keys.into()),
            ("indisunique", index.is_none_or(|index| index.unique).into()),
            ("indisprimary", index.is_none().into()),
            ("indimmediate", true.into()),
            ("indisvalid", true.into()),
            ("indisready", true.into()),
            ("indislive", true.into()),
            ("indkey", numbers.collect::<Vec<i64>>().into()),
            ("indcollation", vec![0; keys].into()),
            ("indclass", vec![0; keys].into()),
            // Ascending, nulls last.
            ("indoption", vec![0; keys].into()),
            ("indexprs", (!expressions.is_empty()).then(|| expressions.join(", ")).into()),
            ("indpred", index.and_then(|index| index.predicate.clone()).into()),
        ]);
    }
}

fn action(action: ReferentialAction) -> &'static str {
    match action {
        ReferentialAction::NoAction => "a",
        ReferentialAction::Restrict => "r",
        ReferentialAction::Cascade => "c",
        ReferentialAction::SetNull => "n",
        ReferentialAction::SetDefault => "d",
    }
}

fn constraints(source: &Source, rows: &mut Rows) {
    let objects = source.objects();
    let numbers = |columns: &[usize]| Value::from(columns.iter().map(|&c| c as i64 + 1).collect::<Vec<i64>>());
    for constraint in &objects.constraints {
        let Some(table) = objects.relation(constraint.table) else { continue };
        let Some(def) = table.kind.table() else { continue };
        let mut values: Vec<(&str, Value)> = vec![
            ("oid", constraint.oid.into()),
            ("conname", constraint.name.as_str().into()),
            ("connamespace", table.schema.into()),
            ("convalidated", true.into()),
            ("conrelid", constraint.table.into()),
            ("conindid", constraint.index.into()),
            ("conislocal", true.into()),
            ("connoinherit", true.into()),
            ("confupdtype", " ".into()),
            ("confdeltype", " ".into()),
            ("confmatchtype", " ".into()),
        ];
        match constraint.kind {
            ConstraintKind::Primary => {
                values.extend([("contype", "p".into()), ("conkey", numbers(&def.primary_key))]);
            }
            ConstraintKind::Unique(place) => {
                let columns: Vec<usize> = def.indexes[place].key_columns().collect();
                values.extend([("contype", "u".into()), ("conkey", numbers(&columns))]);
            }
            ConstraintKind::Check(place) => {
                values.extend([("contype", "c".into()), ("conbin", def.checks[place].sql.as_str().into())]);
            }
            ConstraintKind::Foreign(place) => {
                let key = &def.foreign_keys[place];
                let referenced = objects.named(&key.references);
                let columns = referenced.and_then(|relation| relation.kind.table()).map(|def| {
                    let place = |name: &String| def.columns.iter().position(|column| column.name == *name);
                    key.referenced.iter().filter_map(place).collect::<Vec<usize>>()
                });
                values.retain(|(name, _)| !name.starts_with("conf"));
                values.extend([
                    ("contype", "f".into()),
                    ("conkey", numbers(&key.columns)),
                    ("confrelid", referenced.map_or(0, |relation| relation.oid).into()),
                    ("confkey", numbers(&columns.unwrap_or_default())),
                    ("confupdtype", action(key.on_update).into()),
                    ("confdeltype", action(key.on_delete).into()),
                    ("confmatchtype", "s".into()),
                    ("condeferrable", (key.timing != ConstraintTiming::NotDeferrable).into()),
                    ("condeferred", (key.timing == ConstraintTiming::Deferred).into()),
                ]);
            }
        }
        rows.add(&values);
    }
}

fn sequences(objects: &Objects, rows: &mut Rows) {
    for relation in &objects.relations {
        let Kind::Sequence(def, _) = &relation.kind else { continue };
        rows.add(&[
            ("seqrelid", relation.oid.into()),
            ("seqtypid", types::of_column(def.ty.into()).0.into()),
            ("seqstart", def.start.into()),
            ("seqincrement", def.increment.into()),
            ("seqmax", def.max.into()),
            ("seqmin", def.min.into()),
            ("seqcache", 1.into()),
            ("seqcycle", def.cycles.into()),
        ]);
    }
}

/// The comment of a relation, or of one of its columns by its number.
pub(super) fn comment(relation: &Relation, column: usize) -> Option<&str> {
    let text = match (&relation.kind, column) {
        (Kind::Table(table), 0) => &table.def.comment,
        (Kind::Table(table), number) => &table.def.columns.get(number - 1)?.comment,
        (Kind::View(view), 0) => &view.comment,
        (Kind::Sequence(def, _), 0) => &def.comment,
        (Kind::Index(..), 0) => &relation.kind.index()?.comment,
        _ => return None,
    };
    text.as_deref()
}

/// The comment of a schema.
pub(super) fn schema_comment(source: &Source, oid: u32) -> Option<&str> {
    let (_, name) = source.objects().schemas.iter().find(|(schema, _)| *schema == oid)?;
    source.catalog.schema_comments.get(name).map(String::as_str)
}

fn descriptions(source: &Source, rows: &mut Rows) {
    let mut add = |oid: u32, class: &str, number: usize, text: &str| {
        rows.add(&[
            ("objoid", oid.into()),
            ("classoid", class_oid(class).into()),
            ("objsubid", number.into()),
            ("description", text.into()),
        ]);
    };
    for relation in &source.objects().relations {
        let columns = relation.kind.table().map_or(0, |def| def.columns.len());
        for number in 0..=columns {
            if let Some(text) = comment(relation, number) {
                add(relation.oid, "pg_class", number, text);
            }
        }
    }
    for (oid, _) in &source.objects().schemas {
        if let Some(text) = schema_comment(source, *oid) {
            add(*oid, "pg_namespace", 0, text);
        }
    }
}

/// Identity columns own their sequences, tables their indexes, keys theirs, and columns their defaults.
fn dependencies(objects: &Objects, rows: &mut Rows) {
    let class = class_oid("pg_class");
    let mut add = |(of, oid): (u32, u32), (on, referenced, number): (u32, u32, usize), kind: &str| {
        rows.add(&[
            ("classid", of.into()),
            ("objid", oid.into()),
            ("refclassid", on.into()),
            ("refobjid", referenced.into()),
            ("refobjsubid", number.into()),
            ("deptype", kind.into()),
        ]);
    };
    for relation in &objects.relations {
        match &relation.kind {
            Kind::Sequence(_, Some((table, column))) => {
                let Some(table) = objects.named(table) else { continue };
                add((class, relation.oid), (class, table.oid, column + 1), "i");
            }
            Kind::Index(..) if relation.kind.index().is_some_and(|index| !index.constraint) => {
                let Some(table) = relation.kind.table().and_then(|def| objects.named(&def.name)) else { continue };
                for column in definitions::index_columns(relation).unwrap_or_default() {
                    if let IndexColumn::Column(column) = column {
                        add((class, relation.oid), (class, table.oid, column + 1), "a");
                    }
                }
            }
            Kind::Table(table) => {
                for (i, column) in table.def.columns.iter().enumerate() {
                    if column.default.is_some() || column.generated.is_some() {
                        let default = (class_oid("pg_attrdef"), default_oid(relation.oid, i));
                        add(default, (class, relation.oid, i + 1), "a");
                    }
                }
            }
            _ => {}
        }
    }
    for constraint in &objects.constraints {
        let own = (class_oid("pg_constraint"), constraint.oid);
        match constraint.kind {
            ConstraintKind::Primary | ConstraintKind::Unique(_) => {
                add((class, constraint.index), (own.0, own.1, 0), "i")
            }
            ConstraintKind::Foreign(_) => add(own, (class, constraint.index, 0), "n"),
            ConstraintKind::Check(_) => {}
        }
        add(own, (class, constraint.table, 0), "a");
    }
}
