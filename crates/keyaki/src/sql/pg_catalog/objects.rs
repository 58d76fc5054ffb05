//! All objects that a session sees, with their OIDs.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use datafusion::logical_expr::LogicalPlan;
use keyaki_store::Snapshot;
use xxhash_rust::xxh3::xxh3_64;

use super::procedures::{self, Procedure};
use super::shapes::{self, Shape};
use crate::base::options::SessionOptions;
use crate::catalog::{
    Access, Authority, Catalog, IndexDef, PREDEFINED, PUBLIC, RelationName, SequenceDef, Table, TableDef, ViewDef,
};
use crate::engine::Engine;
use crate::engine::sessions::Activity;
use crate::sql::channels::{Channels, Outbox};
use crate::sql::client_settings::ClientSettings;
use crate::sql::cursors::Cursors;
use crate::sql::named::NamedStatements;
use crate::sql::names::SearchPath;
use crate::sql::roles::acting;
use crate::sql::{SqlSession, access, information_schema, settings};
use crate::values::zone::Zone;

/// OIDs below this one belong to the system, as in PostgreSQL.
const FIRST_OID: u32 = 16_384;
/// OIDs of objects are below this one, so that they are positive as integers of 32 bits.
const END_OID: u32 = 1 << 31;

/// PostgreSQL's OIDs of its schemas, of the database and of the role that owns the system.
pub(super) const CATALOG_SCHEMA: u32 = 11;
pub(super) const PUBLIC_SCHEMA: u32 = 2200;
pub(super) const INFORMATION_SCHEMA: u32 = 13_000;
pub(super) const DATABASE: u32 = 5;
pub(super) const OWNER: u32 = 10;
/// Name of the role with the OID [`OWNER`], to which objects without an owner belong.
pub(super) const OWNER_NAME: &str = acting::NO_ROLE;
/// PostgreSQL's OIDs of the predefined roles.
const PREDEFINED_ROLES: [(u32, &str); PREDEFINED.len()] =
    [(6181, PREDEFINED[0]), (6182, PREDEFINED[1]), (3375, PREDEFINED[2]), (3373, PREDEFINED[3]), (4200, PREDEFINED[4])];

/// The state of one statement that the relations and functions show.
pub(in crate::sql) struct Source {
    pub engine: Arc<Engine>,
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
    pub path: Arc<SearchPath>,
    pub zone: Zone,
    pub client_settings: ClientSettings,
    options: SessionOptions,
    /// What the statement may do.
    pub authority: Authority,
    /// The session.
    pub activity: Arc<Activity>,
    /// The prepared statements of the session.
    pub named: NamedStatements,
    /// The cursors of the session.
    pub cursors: Arc<Cursors>,
    /// The channels of the session.
    pub channels: Arc<Channels>,
    /// The messages of a query that is evaluated after its statement. The messages of others are added to `channels`.
    pub outbox: OnceLock<Arc<Outbox>>,
    /// Computed when a relation or function uses them.
    objects: OnceLock<Objects>,
    functions: OnceLock<Vec<Procedure>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Source {
    pub fn new(session: &SqlSession, catalog: Arc<Catalog>, snapshot: Snapshot, authority: Authority) -> Source {
        Source {
            engine: session.engine.clone(),
            catalog,
            snapshot,
            path: session.path(),
            zone: session.zone(),
            client_settings: session.client_settings.lock().clone(),
            options: session.options(),
            authority,
            activity: session.activity.clone(),
            named: session.named.clone(),
            cursors: session.cursors.clone(),
            channels: session.channels.clone(),
            outbox: OnceLock::new(),
            objects: OnceLock::new(),
            functions: OnceLock::new(),
        }
    }

    /// The first error of a check by the definitions that the statement sees, and by the newest ones, if they have to permit
    /// it, too.
    pub(super) fn permit(&self, check: impl Fn(&Authority, &Catalog) -> crate::Result<()>) -> crate::Result<()> {
        check(&self.authority, &self.catalog)?;
        self.authority.newest().map_or(Ok(()), |(authority, catalog)| check(authority, catalog))
    }

    /// Names and values of the settings that clients of PostgreSQL read.
    pub(super) fn settings(&self) -> Vec<(&str, String)> {
        let client = self.client_settings.all().map(|(name, value)| (name, value.to_string()));
        let own = [
            ("default_table_access_method", "heap".into()),
            ("search_path", self.path.to_string()),
            ("TimeZone", self.zone.to_string()),
        ];
        client.chain(own).chain(settings::of_options(&self.options)).collect()
    }

    /// The owner of a relation, and the privileges of other roles. Those of an index are those of its table.
    pub(super) fn access(&self, relation: &Relation) -> Cow<'_, Access> {
        let name = match &relation.kind {
            Kind::PrimaryKey(table) | Kind::Index(table, _) => &table.def.name,
            _ => &relation.name,
        };
        access::relation_access(&self.catalog, name).map_or_else(Cow::default, |(_, access)| access)
    }

    /// The functions of `pg_proc`.
    pub(super) fn functions(&self) -> &[Procedure] {
        self.functions.get_or_init(|| procedures::all(&self.engine))
    }

    pub(super) fn objects(&self) -> &Objects {
        self.objects.get_or_init(|| Objects::new(&self.catalog, &self.path))
    }
}

/// The plan of a view, for its columns.
pub(super) type PlanOf<'p> = &'p dyn Fn(&RelationName) -> Option<LogicalPlan>;

/// A table, view, sequence or index.
#[derive(Debug)]
pub(super) struct Relation {
    pub oid: u32,
    pub name: RelationName,
    /// OID of the schema.
    pub schema: u32,
    pub kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Table(Arc<Table>),
    View(Arc<ViewDef>),
    /// A sequence, and the table and the position of the identity column to which it belongs.
    Sequence(Box<SequenceDef>, Option<(RelationName, usize)>),
    /// The order of a table's own tree.
    PrimaryKey(Arc<Table>),
    /// A secondary index, by its position in the table's list.
    Index(Arc<Table>, usize),
    /// A relation of `pg_catalog`.
    System(&'static Shape),
    /// A view of the information schema.
    Information,
}

impl Kind {
    /// `pg_class.relkind`.
    pub fn letter(&self) -> &'static str {
        match self {
            Kind::Table(_) => "r",
            Kind::View(_) | Kind::Information => "v",
            Kind::Sequence(..) => "S",
            Kind::PrimaryKey(_) | Kind::Index(..) => "i",
            Kind::System(shape) => shape.kind,
        }
    }

    /// The definition of the table; of an index, that of its table.
    pub fn table(&self) -> Option<&TableDef> {
        match self {
            Kind::Table(table) | Kind::PrimaryKey(table) | Kind::Index(table, _) => Some(&table.def),
            _ => None,
        }
    }

    /// The definition of a secondary index.
    pub fn index(&self) -> Option<&IndexDef> {
        match self {
            Kind::Index(table, place) => table.def.indexes.get(*place),
            _ => None,
        }
    }
}

/// A constraint of a table.
#[derive(Debug)]
pub(super) struct Constraint {
    pub oid: u32,
    pub name: String,
    /// OIDs of the table and, for a key, of its index.
    pub table: u32,
    pub index: u32,
    pub kind: ConstraintKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConstraintKind {
    Primary,
    /// By the position of the index in the table's list.
    Unique(usize),
    /// By the position in the table's lists.
    Foreign(usize),
    Check(usize),
}

/// All objects.
#[derive(Debug)]
pub(super) struct Objects {
    /// OIDs and names of the schemas.
    pub schemas: Vec<(u32, String)>,
    pub relations: Vec<Relation>,
    pub constraints: Vec<Constraint>,
    /// OIDs and names of the roles.
    pub roles: Vec<(u32, String)>,
    by_oid: HashMap<u32, usize>,
    by_name: HashMap<RelationName, usize>,
    constraints_by_oid: HashMap<u32, usize>,
}

/// The OID for a hash of the kind and name of an object.
pub(super) fn hashed_oid(hash: u64) -> u32 {
    FIRST_OID + (hash % u64::from(END_OID - FIRST_OID)) as u32
}

/// Assigns OIDs.
#[derive(Default)]
struct Oids(HashSet<u32>);

impl Oids {
    /// A hash of the kind and name of an object; another one if an object before has it.
    fn of(&mut self, kind: &str, schema: &str, name: &str) -> u32 {
        let mut oid = hashed_oid(xxh3_64(format!("{kind}\0{schema}\0{name}").as_bytes()));
        while !self.0.insert(oid) {
            oid = FIRST_OID + (oid - FIRST_OID + 1) % (END_OID - FIRST_OID);
        }
        oid
    }
}

impl Objects {
    fn new(catalog: &Catalog, path: &SearchPath) -> Objects {
        let mut oids = Oids::default();
        let mut schemas = vec![
            (PUBLIC_SCHEMA, PUBLIC.to_string()),
            (CATALOG_SCHEMA, super::NAME.into()),
            (INFORMATION_SCHEMA, information_schema::NAME.into()),
        ];
        let temporary = path.temporary().map(|name| name.to_string());
        for name in catalog.schemas.iter().cloned().chain(temporary) {
            schemas.push((oids.of("schema", "", &name), name));
        }
        let mut objects = Objects {
            schemas,
            relations: Vec::new(),
            constraints: Vec::new(),
            roles: [(OWNER, OWNER_NAME)]
                .into_iter()
                .chain(PREDEFINED_ROLES)
                .map(|(oid, name)| (oid, name.into()))
                .collect(),
            by_oid: HashMap::new(),
            by_name: HashMap::new(),
            constraints_by_oid: HashMap::new(),
        };
        for name in catalog.roles.keys() {
            objects.roles.push((oids.of("role", "", name), name.clone()));
        }
        let is_shown = |name: &RelationName| information_schema::is_shown(name, path.temporary());
        let tables: Vec<&Arc<Table>> = catalog.tables.values().filter(|table| is_shown(&table.def.name)).collect();
        for table in &tables {
            objects.add(&mut oids, table.def.name.clone(), Kind::Table(Arc::clone(table)));
        }
        for (name, view) in catalog.views.iter().filter(|(name, _)| is_shown(name)) {
            objects.add(&mut oids, name.clone(), Kind::View(view.clone()));
        }
        for (def, owner) in catalog.sequences().filter(|(def, _)| is_shown(&def.name)) {
            let owner = owner.and_then(|(table, column)| {
                let columns = &catalog.tables.get(table)?.def.columns;
                Some((table.clone(), columns.iter().position(|of| of.name == column)?))
            });
            objects.add(&mut oids, def.name.clone(), Kind::Sequence(Box::new(def.clone()), owner));
        }
        for table in &tables {
            if !table.def.hidden_rowid {
                let name = table.def.name.sibling(table.def.primary_key_name());
                objects.add(&mut oids, name, Kind::PrimaryKey(Arc::clone(table)));
            }
            for (place, index) in table.def.indexes.iter().enumerate() {
                let name = table.def.name.sibling(index.name.clone());
                objects.add(&mut oids, name, Kind::Index(Arc::clone(table), place));
            }
        }
        for name in information_schema::NAMES {
            objects.add(&mut oids, RelationName::new(information_schema::NAME, *name), Kind::Information);
        }
        for shape in shapes::all() {
            let name = RelationName::new(super::NAME, shape.name);
            let relation = Relation { oid: shape.oid, name, schema: CATALOG_SCHEMA, kind: Kind::System(shape) };
            objects.push(relation);
        }
        for table in tables {
            objects.add_constraints(&mut oids, &table.def);
        }
        objects
    }

    fn add(&mut self, oids: &mut Oids, name: RelationName, kind: Kind) {
        let oid = oids.of("relation", &name.schema, &name.name);
        let schema = self.schemas.iter().find(|(_, schema)| **schema == *name.schema).map_or(0, |(oid, _)| *oid);
        self.push(Relation { oid, name, schema, kind });
    }

    fn push(&mut self, relation: Relation) {
        self.by_oid.insert(relation.oid, self.relations.len());
        // A primary key can have the name of another relation: tables and their keys have separate names.
        self.by_name.entry(relation.name.clone()).or_insert(self.relations.len());
        self.relations.push(relation);
    }

    fn add_constraints(&mut self, oids: &mut Oids, def: &TableDef) {
        let Some(table) = self.named(&def.name).map(|relation| relation.oid) else { return };
        let index = |objects: &Objects, name: &str| {
            objects.named(&def.name.sibling(name.to_string())).map_or(0, |relation| relation.oid)
        };
        let mut found: Vec<(String, u32, ConstraintKind)> = Vec::new();
        if !def.hidden_rowid {
            let name = def.primary_key_name();
            let own = index(self, &name);
            found.push((name, own, ConstraintKind::Primary));
        }
        for (place, of) in def.indexes.iter().enumerate().filter(|(_, index)| index.constraint) {
            found.push((of.name.clone(), index(self, &of.name), ConstraintKind::Unique(place)));
        }
        for (place, key) in def.foreign_keys.iter().enumerate() {
            found.push((key.name.clone(), self.referenced_index(key), ConstraintKind::Foreign(place)));
        }
        found.extend(def.checks.iter().enumerate().map(|(i, check)| (check.name.clone(), 0, ConstraintKind::Check(i))));
        for (name, index, kind) in found {
            let oid = oids.of("constraint", &format!("{}\0{}", def.name.schema, def.name.name), &name);
            self.constraints_by_oid.insert(oid, self.constraints.len());
            self.constraints.push(Constraint { oid, name, table, index, kind });
        }
    }

    /// The OID of the index of the key that a foreign key refers to; 0 if it is missing.
    fn referenced_index(&self, key: &crate::catalog::ForeignKeyDef) -> u32 {
        let Some(def) = self.named(&key.references).and_then(|relation| relation.kind.table()) else { return 0 };
        let is_key = |columns: &[usize]| {
            columns.len() == key.referenced.len()
                && columns.iter().all(|column| key.referenced.contains(&def.columns[*column].name))
        };
        let unique = def.indexes.iter().filter(|index| index.is_key());
        let mut unique = unique.filter(|index| index.plain_columns().is_some_and(|columns| is_key(&columns)));
        let name = match !def.hidden_rowid && is_key(&def.primary_key) {
            true => Some(def.primary_key_name()),
            false => unique.next().map(|index| index.name.clone()),
        };
        name.and_then(|name| self.named(&def.name.sibling(name))).map_or(0, |relation| relation.oid)
    }

    /// The OID of a role; 0 if there is none with this name.
    pub fn role(&self, name: &str) -> u32 {
        // A role can have the name of the owner of the system.
        self.roles.iter().rfind(|(_, role)| role == name).map_or(0, |(oid, _)| *oid)
    }

    /// The OID of an owner.
    pub fn owner(&self, access: &Access) -> u32 {
        access.owner.as_ref().map_or(OWNER, |owner| self.role(owner))
    }

    /// A relation by its name.
    pub fn named(&self, name: &RelationName) -> Option<&Relation> {
        self.by_name.get(name).map(|&place| &self.relations[place])
    }

    /// A relation by its OID.
    pub fn relation(&self, oid: u32) -> Option<&Relation> {
        self.by_oid.get(&oid).map(|&place| &self.relations[place])
    }

    /// A constraint by its OID.
    pub fn constraint(&self, oid: u32) -> Option<&Constraint> {
        self.constraints_by_oid.get(&oid).map(|&place| &self.constraints[place])
    }

    /// The indexes of a table, its primary key first.
    pub fn indexes<'o>(&'o self, table: &'o RelationName) -> impl Iterator<Item = &'o Relation> {
        let is_index = |relation: &&Relation| matches!(relation.kind, Kind::PrimaryKey(_) | Kind::Index(..));
        self.relations
            .iter()
            .filter(is_index)
            .filter(move |relation| relation.kind.table().is_some_and(|def| def.name == *table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oids_are_stable_and_distinct() {
        let mut oids = Oids::default();
        let first = oids.of("relation", "public", "orders");
        assert_eq!(first, Oids::default().of("relation", "public", "orders"));
        assert!((FIRST_OID..END_OID).contains(&first));
        assert_eq!(oids.of("relation", "public", "orders"), first + 1);
    }
}
