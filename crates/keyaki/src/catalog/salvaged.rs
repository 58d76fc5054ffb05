//! The definitions of a database whose catalog may be damaged: each document is decoded on its own.
//!
//! *Invariants.* Definitions of temporary objects and of unfinished indexes are left out. No two tables have the same
//! tree, and no two relations the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keyaki_store::{Schema, TreeId, WriteBatch};

use super::definitions::{SequenceDef, SequencePosition, TableDef, ViewDef};
use super::documents::{
    Catalog, DocumentKind, FORMAT_NEWEST, FormatDocument, SchemaDocument, extend_format, parse, put, put_roles_format,
    put_schema,
};
use super::names::{PUBLIC, RelationName};
use super::privileges::Access;
use super::roles::RoleDef;
use super::table::Table;
use crate::catalog::TableStatistics;
use crate::{Error, Result};

/// The readable definitions of a damaged catalog.
#[derive(Debug, Default)]
pub(crate) struct SalvagedCatalog {
    pub tables: BTreeMap<RelationName, TableDef>,
    pub views: BTreeMap<RelationName, ViewDef>,
    /// The sequences of CREATE SEQUENCE.
    pub sequences: BTreeMap<RelationName, SequenceDef>,
    pub positions: BTreeMap<u64, SequencePosition>,
    /// The schemas.
    pub schemas: BTreeSet<String>,
    /// Roles, and comments and privileges of schemas.
    others: Catalog,
    statistics: BTreeMap<String, TableStatistics>,
    /// Unusable documents, with the reason.
    pub problems: Vec<String>,
    /// Trees of temporary tables.
    temporary: BTreeSet<TreeId>,
}

impl SalvagedCatalog {
    /// Adds a document.
    ///
    /// # Errors
    /// `FormatVersion` for documents of another program.
    pub fn add(&mut self, key: &[u8], document: &[u8]) -> Result<()> {
        let key = String::from_utf8_lossy(key).into_owned();
        match self.decode(&key, document) {
            Err(error) if !matches!(error, Error::FormatVersion { .. }) => self.problems.push(error.to_string()),
            decoded => decoded?,
        }
        Ok(())
    }

    fn decode(&mut self, key: &str, document: &[u8]) -> Result<()> {
        // `table` for `table/NAME` and `table@SCHEMA/NAME`.
        let (kind, name) = key.split_at(key.find(['/', '@']).unwrap_or(key.len()));
        match kind {
            "meta" if name == "/format" => {
                let FormatDocument { version } = parse(key, document)?;
                if version > FORMAT_NEWEST {
                    let (path, found, supported) = ("catalog".into(), version, FORMAT_NEWEST);
                    return Err(Error::FormatVersion { path, found, supported });
                }
            }
            "table" => {
                let def: TableDef = parse(key, document)?;
                if def.name.is_temporary() {
                    self.temporary.insert(def.tree);
                    return Ok(());
                }
                // Checks the definition.
                Table::new(def.clone(), None)?;
                self.tables.insert(def.name.clone(), def);
            }
            "view" => {
                let view: ViewDef = parse(key, document)?;
                self.views.insert(view.name.clone(), view);
            }
            "sequence" => {
                let sequence: SequenceDef = parse(key, document)?;
                self.sequences.insert(sequence.name.clone(), sequence);
            }
            "sequence_position" => {
                if let Some(id) = name.strip_prefix('/').and_then(|id| id.parse().ok()) {
                    self.positions.insert(id, parse(key, document)?);
                }
            }
            "schema" => {
                let SchemaDocument { name, comment, access } = parse(key, document)?;
                self.others.schema_comments.extend(comment.map(|comment| (name.clone(), comment)));
                self.others.schema_access.extend(access.map(|access| (name.clone(), Arc::new(access))));
                self.schemas.insert(name);
            }
            "role" => {
                let role: RoleDef = parse(key, document)?;
                self.others.roles.insert(role.name.clone(), Arc::new(role));
            }
            "statistics" => {
                // The optimizer collects them again if they are lost.
                self.statistics.extend(parse(key, document).ok().map(|statistics| (key.to_string(), statistics)));
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes definitions that contradict each other, or that have no tree among `trees`. Completes the schemas.
    pub fn reconcile(&mut self, trees: &BTreeMap<TreeId, Arc<Schema>>) {
        let mut owners: BTreeMap<TreeId, RelationName> = BTreeMap::new();
        let problems = &mut self.problems;
        self.tables.retain(|name, def| {
            let fits = Table::new(def.clone(), None)
                .is_ok_and(|table| trees.get(&def.tree).is_some_and(|schema| has_columns(&table.schema, schema)));
            let problem = match owners.get(&def.tree) {
                Some(owner) => {
                    format!("table \"{name}\" has the rows of table \"{owner}\": its definition is outdated")
                }
                None if !fits => format!(
                    "table \"{name}\" has no tree with its columns: its definition is outdated, and its rows, if any, are \
                     in a table named recovered_N"
                ),
                None => {
                    owners.insert(def.tree, name.clone());
                    return true;
                }
            };
            problems.push(problem);
            false
        });
        self.views.retain(|name, _| !name.is_temporary());
        self.sequences.retain(|name, _| !name.is_temporary());
        // A role that is created later under the name of a lost one must not get its privileges.
        let others = self.others.clone();
        let known = |role: &str| others.has_role(role);
        for def in self.tables.values_mut() {
            let identities = def.columns.iter_mut().filter_map(|column| column.identity.as_mut());
            let identities = identities.map(|identity| &mut identity.sequence.access);
            def.access.change_with_identities(identities, |access| access.retain_roles(known));
        }
        self.sequences.values_mut().for_each(|def| def.access.retain_roles(known));
        self.others.schema_access.values_mut().for_each(|access| Arc::make_mut(access).retain_roles(known));
        for role in self.others.roles.values_mut() {
            let role = Arc::make_mut(role);
            role.member_of.retain(|role| known(role));
            role.admin_of.retain(|role| known(role));
            role.defaults.iter_mut().for_each(|defaults| defaults.access.retain_roles(known));
            role.retain_defaults();
        }
        for (name, view) in &mut self.views {
            if view.access.owner.as_deref().is_some_and(|owner| !known(owner)) {
                // Without an owner, the view reads with all privileges: others must not use it.
                view.access = Access::default();
                problems.push(format!("the owner of view \"{name}\" is lost: its privileges are left out"));
            }
            view.access.retain_roles(known);
        }
        let (tables, problems) = (&self.tables, &mut self.problems);
        self.sequences.retain(|name, _| {
            let is_free = !tables.contains_key(name);
            if !is_free {
                problems.push(format!(
                    "sequence \"{name}\" has the name of a table: its definition is outdated (create it under \
                                       another name)"
                ));
            }
            is_free
        });
        let names = self.tables.keys().chain(self.views.keys()).chain(self.sequences.keys());
        let used: Vec<String> = names.map(|name| name.schema.to_string()).collect();
        for schema in used.into_iter().filter(|schema| schema != PUBLIC) {
            self.schemas.insert(schema);
        }
    }

    /// True if a table, also a temporary one, has the tree.
    pub fn has_tree(&self, tree: TreeId) -> bool {
        self.temporary.contains(&tree) || self.tables.values().any(|def| def.tree == tree)
    }

    /// True if a relation other than an index has the name.
    pub fn has_relation(&self, name: &RelationName) -> bool {
        self.tables.contains_key(name) || self.views.contains_key(name) || self.sequences.contains_key(name)
    }

    /// Adds the documents of schemas, sequences and their positions, and of `tables`, with statistics, to `batch`.
    ///
    /// # Errors
    /// Errors of encoding.
    pub fn put(&self, batch: &mut WriteBatch, tables: &[TableDef]) -> Result<()> {
        extend_format(batch)?;
        for name in &self.schemas {
            put_schema(batch, &self.others, name)?;
        }
        for (name, role) in &self.others.roles {
            put(batch, DocumentKind::Role, name, role)?;
        }
        for (name, sequence) in &self.sequences {
            put(batch, DocumentKind::Sequence, name, sequence)?;
        }
        for (id, position) in &self.positions {
            put(batch, DocumentKind::SequencePosition, &id.to_string(), position)?;
        }
        for def in tables {
            put(batch, DocumentKind::Table, &def.name, def)?;
            if let Some(statistics) = self.statistics.get(&DocumentKind::Statistics.key(&def.name)) {
                put(batch, DocumentKind::Statistics, &def.name, statistics)?;
            }
        }
        put_roles_format(batch, &self.others)
    }

    /// The sequences, also those of identity columns of `tables`.
    pub fn all_sequences<'a>(&'a self, tables: &'a [TableDef]) -> impl Iterator<Item = &'a SequenceDef> {
        let columns = tables.iter().flat_map(|def| &def.columns);
        self.sequences.values().chain(columns.filter_map(|column| column.identity.as_ref()).map(|own| &own.sequence))
    }
}

/// True if both schemas have columns of the same types, nullability and key. Names may differ.
fn has_columns(a: &Schema, b: &Schema) -> bool {
    let mut pairs = a.columns().iter().zip(b.columns());
    (a.columns().len(), a.key_columns()) == (b.columns().len(), b.key_columns())
        && pairs.all(|(a, b)| (a.ty, a.nullable) == (b.ty, b.nullable))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"name":"t","tree":16,"columns":[{"name":"a","ty":{"column":"BIGINT","max_chars":null},
        "nullable":false,"default":null}],"primary_key":[0],"hidden_rowid":false,"indexes":[]}"#;

    fn trees() -> BTreeMap<TreeId, Arc<Schema>> {
        let mut catalog = SalvagedCatalog::default();
        catalog.add(b"table/t", TABLE.as_bytes()).unwrap();
        let def = catalog.tables.into_values().next().unwrap();
        BTreeMap::from([(def.tree, Table::new(def, None).unwrap().schema.clone())])
    }

    #[test]
    fn documents_are_decoded_one_by_one() {
        let mut catalog = SalvagedCatalog::default();
        let documents = [
            ("meta/format", r#"{"version":2}"#),
            ("table/t", TABLE),
            ("table/u", "{"),
            ("view@s/v", r#"{"name":{"schema":"s","name":"v"},"sql":"SELECT 1"}"#),
            ("view/x", "[]"),
            ("statistics/t", "damaged"),
            ("sequence_position/7", r#"{"next":5}"#),
            ("sequence_position/x", r#"{"next":5}"#),
            ("sequence_position", "{}"),
            ("sequence_position@", "{}"),
            ("future/t", "{}"),
            ("", ""),
        ];
        documents.iter().for_each(|(key, text)| catalog.add(key.as_bytes(), text.as_bytes()).unwrap());
        catalog.reconcile(&trees());
        assert_eq!(catalog.tables.keys().map(ToString::to_string).collect::<Vec<_>>(), ["t"]);
        assert_eq!(catalog.views.len(), 1);
        assert!(catalog.schemas.contains("s") && catalog.positions.contains_key(&7));
        assert_eq!(catalog.problems.len(), 2, "{:?}", catalog.problems);
        let error = catalog.add(b"meta/format", br#"{"version":5}"#).unwrap_err();
        assert!(error.to_string().contains("version 5"), "{error}");
    }

    #[test]
    fn privileges_of_lost_roles_are_left_out() {
        let mut catalog = SalvagedCatalog::default();
        let grants = r#"[{"to":"r","by":"lost","privileges":"r"},{"to":"r","by":"r","privileges":"a"}]"#;
        let table = TABLE.replace(
            r#""hidden_rowid":"#,
            &format!(r#""access":{{"owner":"lost","grants":{grants}}},"hidden_rowid":"#),
        );
        catalog.add(b"table/t", table.as_bytes()).unwrap();
        catalog.add(b"role/r", br#"{"name":"r","id":1}"#).unwrap();
        catalog.add(b"schema/s", br#"{"name":"s","access":{"owner":"lost"}}"#).unwrap();
        catalog.reconcile(&trees());
        assert_eq!(catalog.problems.len(), 0, "{:?}", catalog.problems);
        let def = catalog.tables.values().next().unwrap();
        assert!(def.access.is_default(), "{:?}", def.access);
        assert!(catalog.others.access_of_schema("s").is_default() && catalog.others.has_role("r"));
    }

    #[test]
    fn contradictory_definitions_are_left_out() {
        let mut catalog = SalvagedCatalog::default();
        let renamed = TABLE.replace(r#""name":"t""#, r#""name":"u""#);
        let dropped = renamed.replace("16", "17").replace(r#""name":"u""#, r#""name":"v""#);
        let retyped = TABLE.replace("BIGINT", "TEXT").replace(r#""name":"t""#, r#""name":"a""#);
        let temporary =
            TABLE.replace("16", "18").replace(r#""name":"t""#, r#""name":{"schema":"pg_temp_1","name":"t"}"#);
        for (key, text) in [
            ("table/t", TABLE),
            ("table/u", &renamed),
            ("table/v", &dropped),
            ("table/a", &retyped),
            ("table/w", &temporary),
        ] {
            catalog.add(key.as_bytes(), text.as_bytes()).unwrap();
        }
        catalog.reconcile(&trees());
        assert_eq!(catalog.tables.keys().map(ToString::to_string).collect::<Vec<_>>(), ["t"]);
        assert_eq!(catalog.problems.len(), 3, "{:?}", catalog.problems);
        assert!(catalog.has_tree(TreeId::new(16)) && catalog.has_tree(TreeId::new(18)));
        assert!(!catalog.has_tree(TreeId::new(17)));
    }
}
