//! Attached databases: `ATTACH 's3://bucket/shop' AS archive`.
//!
//! An attached database is open read-only, for one session. Its tables and views are relations of a schema with its name, those
//! of its schema `s` of the schema `archive.s`. Queries are planned with a catalog of all databases
//! ([`Attachments::catalog`]), in which each table knows its database by its schema ([`Part`]): a scan or a pipeline reads
//! with the snapshot and the executor of one database. Changes and definitions look up names in the catalog of the session's
//! own database, which has none of these schemas.
//!
//! *Invariant.* A schema of the own database never has the name of an attached one: statements fail while it has.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{ObjectName, ObjectNamePart, Statement, VisitorMut};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use keyaki_publish::VersionDevice;
use keyaki_store::Snapshot;

use super::names::{ident, new_name, plain_ident};
use super::transaction::check_outside;
use super::visit::walk_mut;
use super::{Outcome, SqlSession, information_schema, pg_catalog, qualify, syntax};
use crate::base::interrupt::Execution;
use crate::catalog::{Access, Catalog, PUBLIC, RelationName, Table, ViewDef};
use crate::engine::published::{is_url, split_version};
use crate::engine::{CATALOG_NAME, Compile, Engine, SharedEngines};
use crate::table::PlanContext;
use crate::{Error, ObjectKind, Options, Result};

/// An attached database may use this part of the memory of the session's database, in addition.
const MEMORY_PART: usize = 4;
const MEMORY_BYTES_MIN: usize = 64 << 20;

/// ATTACH or DETACH.
#[derive(Debug)]
pub(super) enum AttachStatement {
    Attach { location: String, name: Option<String>, if_not_exists: bool },
    Detach { name: String, if_exists: bool },
}

/// Parses a statement whose first word is ATTACH or DETACH.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<AttachStatement> {
    let is_attach = parser.next_token().to_string().eq_ignore_ascii_case("attach");
    let _ = parser.parse_keyword(Keyword::DATABASE);
    if !is_attach {
        let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
        let name = plain_ident(&parser.parse_identifier().map_err(syntax)?);
        return Ok(AttachStatement::Detach { name, if_exists });
    }
    let if_not_exists = parser.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let location = parser.next_token();
    let Token::SingleQuotedString(location) = location.token else {
        return parser.expected("a path or URL in single quotes", location).map_err(syntax);
    };
    let name = match parser.parse_keyword(Keyword::AS) {
        true => Some(new_name(&parser.parse_identifier().map_err(syntax)?)?),
        false => None,
    };
    // Attached databases are always open for reading only.
    if parser.consume_token(&Token::LParen) {
        let option = parser.parse_identifier().map_err(syntax)?;
        if plain_ident(&option) != "read_only" {
            return Err(Error::syntax(format!("unknown option {option} of ATTACH (the only option is READ_ONLY)")));
        }
        parser.expect_token(&Token::RParen).map_err(syntax)?;
    }
    Ok(AttachStatement::Attach { location, name, if_not_exists })
}

/// The attached databases of a session, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    list: BTreeMap<String, Attached>,
    /// The last catalog of all databases, and the catalogs that it was made of.
    merged: Option<(Vec<Arc<Catalog>>, Arc<Catalog>)>,
}

#[derive(Debug)]
struct Attached {
    location: String,
    engine: Arc<Engine>,
}

/// An attached database as a statement sees it.
#[derive(Debug)]
pub(crate) struct Part {
    pub name: String,
    /// The directory or URL of ATTACH.
    pub location: String,
    pub engine: Arc<Engine>,
    pub snapshot: Snapshot,
    pub context: PlanContext,
}

impl Part {
    /// True if a schema of the statement belongs to the database.
    pub fn has_schema(&self, schema: &str) -> bool {
        schema.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Attachments {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The devices of the published databases, by name.
    pub fn versions(&self) -> Vec<(String, Arc<VersionDevice>)> {
        let versions = self.list.iter();
        versions.filter_map(|(name, attached)| Some((name.clone(), attached.engine.version.clone()?))).collect()
    }

    /// The catalog of all databases, and the attached ones. `context` makes the context of an engine. Blocks while databases
    /// that other processes change are brought up to date.
    ///
    /// # Errors
    /// `AlreadyExists` if the own database has a schema with the name of another one; errors of reading.
    pub fn catalog(
        &mut self,
        own: &Arc<Catalog>,
        context: impl Fn(&Engine) -> PlanContext,
    ) -> Result<(Arc<Catalog>, Vec<Part>)> {
        let (mut catalogs, mut parts) = (vec![own.clone()], Vec::new());
        for (name, Attached { location, engine }) in &self.list {
            engine.refresh()?;
            let (catalog, snapshot) = engine.moment();
            catalogs.push(catalog);
            let (name, location, context) = (name.clone(), location.clone(), context(engine));
            parts.push(Part { name, location, engine: engine.clone(), snapshot, context });
        }
        let is_current = |(made_of, _): &&(Vec<Arc<Catalog>>, Arc<Catalog>)| {
            made_of.len() == catalogs.len() && made_of.iter().zip(&catalogs).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some((_, merged)) = self.merged.as_ref().filter(is_current) {
            return Ok((merged.clone(), parts));
        }
        let mut merged = Catalog::clone(own);
        for (part, catalog) in parts.iter().zip(&catalogs[1..]) {
            add(&mut merged, &part.name, catalog)?;
        }
        let merged = Arc::new(merged);
        self.merged = Some((catalogs, merged.clone()));
        Ok((merged, parts))
    }
}

/// The schema of all databases that stands for a schema of an attached one.
fn schema_of(database: &str, schema: &str) -> String {
    if schema == PUBLIC { database.into() } else { format!("{database}.{schema}") }
}

/// Adds the relations of a database to a catalog.
///
/// # Errors
/// `AlreadyExists`.
fn add(merged: &mut Catalog, database: &str, catalog: &Catalog) -> Result<()> {
    let schemas = std::iter::once(PUBLIC).chain(catalog.schemas.iter().map(String::as_str));
    for schema in schemas.map(|schema| schema_of(database, schema)) {
        if !merged.schemas.insert(schema.clone()) {
            return Err(Error::AlreadyExists { kind: ObjectKind::Schema, name: schema });
        }
    }
    let new = |name: &RelationName| RelationName::new(schema_of(database, &name.schema), name.name.clone());
    for (name, table) in catalog.tables.iter().filter(|(name, _)| !name.is_temporary()) {
        let mut def = table.def.clone();
        (def.name, def.access) = (new(name), Access::default());
        merged.tables.insert(def.name.clone(), Arc::new(Table::new(def, table.statistics.clone())?));
    }
    let renamed = |name: &RelationName| catalog.has_relation(name).then(|| new(name));
    for (name, view) in catalog.views.iter().filter(|(name, _)| !name.is_temporary()) {
        let mut query = super::parse_query(&view.sql)?;
        qualify::renamed(&mut query, catalog, &renamed)?;
        let def =
            ViewDef { name: new(name), sql: query.to_string(), access: Access::default(), ..ViewDef::clone(view) };
        merged.views.insert(def.name.clone(), Arc::new(def));
    }
    Ok(())
}

/// Replaces `database.schema.relation` by the relation of the schema that stands for it.
pub(super) fn replace(statement: &mut Statement, parts: &[Part]) {
    struct Replace<'a>(&'a [Part]);
    impl VisitorMut for Replace<'_> {
        type Break = ();
        fn pre_visit_relation(&mut self, name: &mut ObjectName) -> ControlFlow<()> {
            if let [ObjectNamePart::Identifier(database), ObjectNamePart::Identifier(schema), last] = name.0.as_slice()
                && self.0.iter().any(|part| part.name == plain_ident(database))
            {
                let schema = schema_of(&plain_ident(database), &plain_ident(schema));
                name.0 = vec![ObjectNamePart::Identifier(ident(&schema)), last.clone()];
            }
            ControlFlow::Continue(())
        }
    }
    if !parts.is_empty() {
        let _ = walk_mut(statement, &mut Replace(parts));
    }
}

/// Executes ATTACH or DETACH.
///
/// # Errors
/// `AlreadyExists`, `NotFound`, `InvalidParameter`, `FileAccess`; errors of opening a database.
pub(super) async fn run(
    session: &SqlSession,
    execution: &Execution<'_>,
    statement: AttachStatement,
) -> Result<Outcome> {
    match statement {
        AttachStatement::Attach { location, name, if_not_exists } => {
            check_outside(session, "ATTACH")?;
            let name = match name {
                Some(name) => name,
                None => default_name(&location)?,
            };
            if session.attachments.lock().list.contains_key(&name) {
                return match if_not_exists {
                    true => Ok(Outcome::done("ATTACH")),
                    false => Err(Error::AlreadyExists { kind: ObjectKind::Database, name }),
                };
            }
            check_name(session, &name)?;
            match is_url(Path::new(&location)) {
                true => session.files().access().check_url(&location)?,
                false => session.files().access().check(Path::new(&location))?,
            }
            let engine = open(session, execution, &location).await?;
            let mut attachments = session.attachments.lock();
            attachments.list.insert(name, Attached { location, engine });
            Ok(Outcome::done("ATTACH"))
        }
        AttachStatement::Detach { name, if_exists } => {
            check_outside(session, "DETACH")?;
            let removed = {
                let mut attachments = session.attachments.lock();
                attachments.merged = None;
                attachments.list.remove(&name)
            };
            match removed {
                // Closing it may wait for reads.
                Some(removed) => {
                    let closed = tokio::task::spawn_blocking(move || drop(removed)).await;
                    closed.map_err(|error| Error::task(&error))?;
                    Ok(Outcome::done("DETACH"))
                }
                None if if_exists => Ok(Outcome::done("DETACH")),
                None => Err(Error::NotFound { kind: ObjectKind::Database, name }),
            }
        }
    }
}

/// The name for a location: its last part, without a version and an extension.
fn default_name(location: &str) -> Result<String> {
    let (path, _) = split_version(location);
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = Path::new(last).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_lowercase();
    let is_word = stem.chars().all(|c| c.is_alphanumeric() || c == '_') && stem.starts_with(|c: char| !c.is_numeric());
    match is_word && !stem.is_empty() {
        true => Ok(stem),
        false => Err(Error::syntax(format!("\"{stem}\" is not a name: use ATTACH '{location}' AS name"))),
    }
}

/// # Errors
/// `AlreadyExists` if the name is that of a schema or of the session's database.
fn check_name(session: &SqlSession, name: &str) -> Result<()> {
    let (catalog, _) = session.moment()?;
    let reserved = [CATALOG_NAME, information_schema::NAME, pg_catalog::NAME, "pg_temp"];
    match catalog.has_schema(name) || reserved.contains(&name) {
        true => Err(Error::AlreadyExists { kind: ObjectKind::Schema, name: name.into() }),
        false => Ok(()),
    }
}

/// Opens a database, or shares it with another session.
async fn open(session: &SqlSession, execution: &Execution<'_>, location: &str) -> Result<Arc<Engine>> {
    let shared = |engines: &SharedEngines| {
        let mut engines = engines.lock();
        engines.retain(|(_, engine)| engine.strong_count() > 0);
        engines.iter().find(|(other, _)| other == location).and_then(|(_, engine)| engine.upgrade())
    };
    // A URL without a version may have a newer one by now.
    let is_fixed = !is_url(Path::new(location)) || split_version(location).1.is_some();
    if let Some(engine) = shared(&session.engine.attached).filter(|_| is_fixed) {
        return Ok(engine);
    }
    if is_same(&session.engine.path, Path::new(location)) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Database, name: location.into() });
    }
    let options = Options {
        must_exist: true,
        read_only: true,
        memory_bytes: Some((session.engine.memory_bytes / MEMORY_PART).max(MEMORY_BYTES_MIN)),
        threads: Some(session.engine.executor.options().workers),
        object_store: session.engine.object_store.clone(),
        object_cache: session.engine.object_cache.clone(),
        ..Options::default()
    };
    let path = PathBuf::from(location);
    execution.decision().check()?;
    let compile: Compile = |engine, table| super::expressions::compile(engine, table).map(drop);
    let opened = tokio::task::spawn_blocking(move || Engine::open(&path, options, compile)).await;
    let engine = opened.map_err(|error| Error::task(&error))??;
    session.engine.attached.lock().push((location.into(), Arc::downgrade(&engine)));
    Ok(engine)
}

/// True for two names of one directory.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}
