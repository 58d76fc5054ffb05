//! State of one session: options, settings of DataFusion, statistics of the last query.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use datafusion::sql::sqlparser::ast::{ObjectName, ObjectNamePart};
use keyaki_store::Snapshot;
use parking_lot::Mutex;

use super::attached::Attachments;
use super::channels::Channels;
use super::client_settings::ClientSettings;
use super::cluster::Cluster;
use super::cursors::Cursors;
use super::file_access::FileAccess;
use super::files::Files;
use super::local::Journal;
use super::named::NamedStatements;
use super::names::{self, SearchPath};
use super::plan_cache::PlanCache;
use super::program_tables::ProgramTables;
use super::roles::Acting;
use super::sequences::Taken;
use super::settings;
use super::state::Planning;
use crate::base::advisory_locks::LockSession;
use crate::base::interrupt::{Execution, Interrupts};
use crate::base::notices::Notices;
use crate::base::options::{ExecutionMode, Isolation, JoinMode, PlanCacheMode, SessionOptions, Switch};
use crate::base::progress::{NoProgress, Progress};
use crate::catalog::{Authority, Catalog, RelationName, RoleDef};
use crate::engine::queries::{Operators, RunningQuery};
use crate::engine::sessions::Activity;
use crate::engine::transaction::{Characteristics, TransactionSlot};
use crate::engine::{Engine, Writer};
use crate::table::Distribution;
use crate::values::zone::Zone;
use crate::write::{Deferred, WriteStatement};
use crate::{Error, ObjectKind, Result};

/// The state of one session, and the engine of its database.
#[derive(Debug)]
pub(crate) struct SqlSession {
    pub engine: Arc<Engine>,
    pub options: Mutex<SessionOptions>,
    /// The isolation level before SET.
    pub default_isolation: Mutex<Isolation>,
    /// The time zone of TIMESTAMPTZ in texts and local times.
    pub zone: Mutex<Zone>,
    /// The schemas of names without a schema.
    pub path: Mutex<Arc<SearchPath>>,
    pub progress: Mutex<Arc<dyn Progress>>,
    /// Statistics of the index pipelines and scans that the last statement started.
    pub last_stats: Operators,
    /// What the session does, for other sessions.
    pub activity: Arc<Activity>,
    /// Settings of DataFusion changed with SET, in the order of the statements.
    pub overrides: Mutex<Vec<(String, String)>>,
    /// The files that statements may use.
    pub files: Mutex<Arc<FileAccess>>,
    /// Tables of the program that statements may read.
    pub program_tables: Mutex<Option<ProgramTables>>,
    /// The attached databases.
    pub attachments: Mutex<Attachments>,
    /// Settings of PostgreSQL's clients.
    pub client_settings: Mutex<ClientSettings>,
    /// Prepared statements with names.
    pub named: NamedStatements,
    /// The cursors.
    pub cursors: Arc<Cursors>,
    /// The notices that the owner of the session has not taken yet.
    pub notices: Arc<Notices>,
    /// The channels of LISTEN and NOTIFY.
    pub channels: Arc<Channels>,
    /// Number of removals of prepared statements by SQL.
    pub named_removals: AtomicU64,
    /// The settings that the open transaction has changed.
    pub journal: Mutex<Journal>,
    /// `journal` may have values.
    pub has_journal: AtomicBool,
    /// The settings to which RESET returns; `None` for the defaults.
    pub initial: Mutex<Option<Arc<InitialSettings>>>,
    /// The program that uses the session cancels statements after `statement_timeout`.
    pub has_timeouts: AtomicBool,
    /// The plan cache of the database.
    pub plans: Arc<PlanCache>,
    pub interrupts: Arc<Interrupts>,
    /// The session belongs to a blocking connection.
    pub is_blocking: AtomicBool,
    /// Slot of the session's moment in the engine.
    pub slot: usize,
    /// Number of statements executed on the short path.
    pub short_statements: AtomicU64,
    /// The cluster that executes statements of the session.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// The basis of the session's plans, if several machines execute them.
    pub distribution: Option<Arc<Distribution>>,
    /// DataFusion's state for the current options and overrides; `None` after a change of either.
    pub planning: Mutex<Option<Planning>>,
    /// The open transaction, if there is one.
    pub transaction: TransactionSlot,
    /// The session has created a temporary table with ON COMMIT DELETE ROWS or DROP.
    pub has_on_commit: AtomicBool,
    /// The roles of the session; `None` for a session without one, which may do everything.
    acting: Mutex<Option<Arc<Acting>>>,
    /// True if `acting` is not `None`.
    has_role: AtomicBool,
    /// The foreign keys that the open transaction checks at its commit.
    pub deferred: Arc<Deferred>,
    /// Its advisory locks.
    pub advisory_locks: Arc<LockSession>,
    /// Values that the session has taken from sequences.
    pub taken: Arc<Mutex<Taken>>,
}

/// The settings of a session without those of the database.
#[derive(Debug, Clone, Default)]
pub(crate) struct InitialSettings {
    pub options: SessionOptions,
    pub zone: Zone,
    /// Without temporary objects.
    pub path: Arc<SearchPath>,
    pub overrides: Vec<(String, String)>,
    pub client: ClientSettings,
}

impl SqlSession {
    /// Makes the current settings those to which RESET returns.
    pub fn keep_settings(&self) {
        let settings = InitialSettings {
            options: self.options(),
            zone: self.zone(),
            path: Arc::new(self.path().without_temporary()),
            overrides: self.overrides.lock().clone(),
            client: self.client_settings.lock().clone(),
        };
        *self.initial.lock() = Some(Arc::new(settings));
    }

    /// The settings to which RESET returns.
    pub fn initial_settings(&self) -> Arc<InitialSettings> {
        let kept = self.initial.lock().clone();
        kept.unwrap_or_else(|| {
            let options = SessionOptions { isolation: *self.default_isolation.lock(), ..SessionOptions::default() };
            Arc::new(InitialSettings { options, ..InitialSettings::default() })
        })
    }

    pub fn new(engine: Arc<Engine>, plans: Arc<PlanCache>) -> Self {
        let interrupts = Arc::<Interrupts>::default();
        let activity = engine.sessions.new_activity(interrupts.clone());
        SqlSession {
            transaction: TransactionSlot::of(activity.process),
            channels: Arc::new(Channels::new(engine.clone(), activity.clone())),
            cursors: Arc::default(),
            notices: Arc::default(),
            activity,
            interrupts,
            is_blocking: AtomicBool::new(false),
            slot: engine.moments.assign(),
            advisory_locks: Arc::new(engine.advisory_locks.session()),
            engine,
            named: Arc::default(),
            named_removals: AtomicU64::new(0),
            journal: Mutex::default(),
            has_journal: AtomicBool::new(false),
            initial: Mutex::default(),
            has_timeouts: AtomicBool::new(false),
            plans,
            short_statements: AtomicU64::new(0),
            options: Mutex::default(),
            default_isolation: Mutex::default(),
            zone: Mutex::default(),
            path: Mutex::default(),
            progress: Mutex::new(Arc::new(NoProgress)),
            last_stats: Arc::default(),
            overrides: Mutex::default(),
            files: Mutex::default(),
            program_tables: Mutex::default(),
            attachments: Mutex::default(),
            client_settings: Mutex::default(),
            cluster: None,
            distribution: None,
            planning: Mutex::default(),
            has_on_commit: AtomicBool::new(false),
            acting: Mutex::default(),
            has_role: AtomicBool::new(false),
            deferred: Arc::default(),
            taken: Arc::default(),
        }
    }

    pub fn options(&self) -> SessionOptions {
        self.options.lock().clone()
    }

    pub fn zone(&self) -> Zone {
        *self.zone.lock()
    }

    /// The files that statements may use.
    pub fn files(&self) -> Files {
        Files::new(self.files.lock().clone(), self.engine.buckets.clone())
    }

    pub fn path(&self) -> Arc<SearchPath> {
        self.path.lock().clone()
    }

    /// True if `path` is the search path of the session.
    pub fn has_path(&self, path: &Arc<SearchPath>) -> bool {
        let own = self.path.lock();
        Arc::ptr_eq(&own, path) || **own == **path
    }

    /// Name of a relation that a statement names; see [`names::relation_name`].
    ///
    /// # Errors
    /// As [`names::relation_name`].
    pub fn relation(&self, catalog: &Catalog, name: &ObjectName) -> Result<RelationName> {
        names::relation_name(name, catalog, &self.path())
    }

    /// Name of a new relation; see [`names::new_relation_name`]. It is temporary if the statement says so or the schema is
    /// that of temporary objects.
    ///
    /// # Errors
    /// As [`names::new_relation_name`]; `InvalidDefinition` for a temporary relation in another schema.
    pub fn new_relation(&self, catalog: &Catalog, name: &ObjectName, is_temporary: bool) -> Result<RelationName> {
        if !is_temporary && !names::is_temporary(name) {
            return names::new_relation_name(name, catalog, &self.path());
        }
        let schema = self.temporary_schema();
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() {
            return Ok(RelationName::new(schema, names::new_name(ident)?));
        }
        let found = names::new_relation_name(name, catalog, &self.path())?;
        match *found.schema == *schema {
            true => Ok(found),
            false => {
                let problem =
                    format!("the temporary relation \"{}\" cannot be in schema \"{}\"", found.name, found.schema);
                Err(Error::InvalidDefinition { kind: ObjectKind::Relation, problem })
            }
        }
    }

    /// The schema of the session's temporary objects.
    fn temporary_schema(&self) -> Arc<str> {
        let mut path = self.path.lock();
        if let Some(schema) = path.temporary() {
            return schema.clone();
        }
        let schema = self.engine.temporary.new_name();
        if self.engine.is_read_only() {
            // The statement fails. The schema may be that of a session of the writing process.
            return schema;
        }
        *path = Arc::new(path.with_temporary(schema.clone()));
        schema
    }

    /// Replaces the search path.
    pub fn change_path(&self, change: impl FnOnce(&SearchPath) -> SearchPath) {
        let mut path = self.path.lock();
        *path = Arc::new(change(&path));
    }

    /// The relation with the given name, or with a name that is qualified as in SQL.
    ///
    /// # Errors
    /// `NotFound` for a name that is not on the search path.
    pub fn named(&self, catalog: &Catalog, name: &str) -> Result<RelationName> {
        if let Some(found) = self.path().find(catalog, name) {
            return Ok(found);
        }
        match super::parse_name(name) {
            Ok(parsed) if parsed.0.len() > 1 => self.relation(catalog, &parsed),
            _ => Err(Error::NotFound { kind: ObjectKind::Relation, name: name.into() }),
        }
    }

    /// The roles of the session; `None` for a session without one.
    pub fn acting(&self) -> Option<Arc<Acting>> {
        match self.has_role.load(Ordering::Acquire) {
            true => self.acting.lock().clone(),
            false => None,
        }
    }

    /// True if `acting` are the roles of the session.
    pub fn acts_as(&self, acting: &Option<Arc<Acting>>) -> bool {
        match self.has_role.load(Ordering::Acquire) {
            true => *self.acting.lock() == *acting,
            false => acting.is_none(),
        }
    }

    /// Changes the roles of the session.
    pub fn act(&self, acting: Acting) {
        self.activity.set_role(acting.login());
        let mut own = self.acting.lock();
        *own = (acting != Acting::default()).then(|| Arc::new(acting));
        self.has_role.store(own.is_some(), Ordering::Release);
    }

    /// What statements of the session may do.
    ///
    /// # Errors
    /// `NotFound` if the role of the session was dropped or renamed.
    pub fn authority(&self, catalog: &Catalog) -> Result<Authority> {
        let Some(acting) = self.acting() else { return Ok(Authority::All) };
        let authority = acting.authority(catalog)?;
        if !self.transaction.is_open() || self.transaction.defines() {
            return Ok(authority);
        }
        // REVOKE takes effect also for transactions that keep their snapshot.
        let newest = self.engine.catalog.read().clone();
        match std::ptr::eq(&*newest, catalog) {
            true => Ok(authority),
            false => Ok(authority.limited(acting.authority(&newest)?, newest)),
        }
    }

    /// The role of the current user; `None` without one.
    ///
    /// # Errors
    /// As [`SqlSession::authority`].
    pub fn current_role(&self, catalog: &Catalog) -> Result<Option<Arc<RoleDef>>> {
        self.acting().map_or(Ok(None), |acting| acting.current_role(catalog))
    }

    /// True if the session has changed settings of DataFusion, which may change the meaning of its statements.
    pub fn has_overrides(&self) -> bool {
        !self.overrides.lock().is_empty()
    }

    /// True if statements of a few rows by key bypass DataFusion's planner.
    pub fn uses_short_path(&self) -> bool {
        if self.has_overrides() {
            return false;
        }
        let options = self.options.lock();
        options.short_path == Switch::On
            && options.execution == ExecutionMode::OutOfOrder
            && options.join == JoinMode::Auto
    }

    /// The catalog and the snapshot for a statement that reads: those of the open transaction, or the newest that readers
    /// see.
    ///
    /// # Errors
    /// `FailedTransaction`, `Conflict`.
    pub fn moment(&self) -> Result<(Arc<Catalog>, Snapshot)> {
        Ok(self.transaction.moment(&self.engine)?.unwrap_or_else(|| self.engine.moment()))
    }

    /// The writer of a statement; see [`Engine::writer`].
    ///
    /// # Errors
    /// `FailedTransaction`, `ReadOnlyTransaction`, `Conflict`.
    pub async fn writer(&self, execution: &Execution<'_>, what: &str) -> Result<Writer> {
        self.remove_ended().await;
        self.engine.writer(&self.transaction, execution.decision(), what).await
    }

    /// Removes the temporary objects of sessions that have ended, and abandoned builds of indexes, unless a transaction is
    /// open.
    pub async fn remove_ended(&self) {
        let engine = &self.engine;
        let (have_ended, have_abandoned) = (engine.temporary.have_ended(), engine.index_builds.have_abandoned());
        // Boxed, because the futures of statements contain these.
        if have_ended && !self.transaction.is_open() {
            Box::pin(engine.remove_ended()).await;
        }
        if have_abandoned && !self.transaction.is_open() {
            Box::pin(engine.remove_abandoned()).await;
        }
    }

    /// True in a read-only transaction, open or implicit.
    pub fn is_read_only(&self) -> bool {
        let open = self.transaction.characteristics();
        open.unwrap_or_else(|| self.characteristics()).is_read_only || self.engine.is_read_only()
    }

    /// The characteristics of transactions that do not specify any.
    pub fn characteristics(&self) -> Characteristics {
        let options = self.options.lock();
        let is_read_only = options.is_read_only || self.engine.is_read_only();
        Characteristics { isolation: options.isolation, is_read_only, timeout: options.transaction_timeout }
    }

    /// True if the calling thread waits for the log itself.
    pub fn waits_inline(&self) -> bool {
        self.is_blocking.load(Ordering::Relaxed)
    }

    /// Which statements without parameters use the plan cache.
    pub fn plan_cache(&self) -> PlanCacheMode {
        // The cache is made for the definitions that all sessions see.
        match self.uses_short_path() && !self.transaction.defines() {
            true => self.options.lock().plan_cache,
            false => PlanCacheMode::Off,
        }
    }

    /// Records the start of a statement of the long path.
    pub fn start(&self, execution: &Execution<'_>, text: &str) -> RunningQuery {
        let interrupts = (self.interrupts.clone(), execution.started());
        let user = self.acting().map(|acting| acting.session_user().into());
        self.engine.queries.start((&self.activity, user), text, &self.last_stats, interrupts)
    }

    /// The context of a writing statement that holds `writer`.
    pub fn write(&self, writer: Writer) -> WriteStatement {
        WriteStatement {
            engine: self.engine.clone(),
            writer,
            progress: self.progress.lock().clone(),
            waits_inline: self.waits_inline(),
            deferred: self.transaction.is_open().then(|| self.deferred.clone()),
        }
    }
}

/// Makes a session act as a role, with the settings of the role. A setting that is no longer valid is left out.
pub(crate) fn login(session: &SqlSession, role: &RoleDef) {
    session.act(Acting::logged_in(role));
    for (name, value) in &role.settings {
        if let Err(error) = settings::set_text(session, name, value) {
            tracing::warn!(role = %role.name, setting = %name, %error, "could not apply a setting of a role");
        }
    }
}

impl Drop for SqlSession {
    fn drop(&mut self) {
        self.channels.unlisten_all();
        if let Some(schema) = self.path.get_mut().temporary() {
            self.engine.temporary.end(schema.clone());
        }
    }
}
