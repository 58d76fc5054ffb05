//! Runs `slt/*.slt` (sqllogictest) under several configurations, all of which must give the same answers. The
//! environment variable `SLT` selects files by a part of their path.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use keyaki::{Database, Error, Options, Outcome, Session, TransactionStatus};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Record, Runner};

/// Options of the database and of its sessions.
#[derive(Debug, Clone)]
struct Configuration {
    options: Options,
    /// Statements executed at the start of every session.
    setup: &'static str,
    /// Close and reopen the database after every statement.
    reopen: bool,
    /// Clauses added to every CREATE INDEX without USING, if the index type supports the column: after the table, and
    /// at the end.
    using: Option<(&'static str, &'static str)>,
    transactions: Transactions,
}

impl Configuration {
    /// True unless a file has the same statements in this configuration as without `using`, which other tests run.
    fn has_own_statements(&self, file: &Path) -> bool {
        let Some(using) = self.using else { return true };
        let records = sqllogictest::parse_file::<DefaultColumnType>(file).expect("a test file");
        records.iter().any(|record| match record {
            Record::Statement { sql, .. } => using_other(sql, using).is_some(),
            _ => false,
        })
    }
}

/// How the statements of a file are divided into transactions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Transactions {
    /// As in the file.
    #[default]
    Own,
    /// Each statement between BEGIN and COMMIT or ROLLBACK.
    Each,
    /// All statements in one transaction; ROLLBACK TO a savepoint after an error.
    One,
}

/// The database of one test file.
struct Tested {
    configuration: Arc<Configuration>,
    path: PathBuf,
    session: Option<Session>,
}

impl Tested {
    async fn open(&mut self) -> Result<&Session, Error> {
        if self.session.is_none() {
            // Threads of a failed statement may still hold the database that was closed.
            let mut attempts = 100;
            let database = loop {
                match Database::open(&self.path, self.configuration.options.clone()) {
                    Err(Error::Locked { .. }) if attempts > 0 => attempts -= 1,
                    opened => break opened?,
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            let session = database.session();
            session.execute(self.configuration.setup).await?;
            self.session = Some(session);
        }
        Ok(self.session.as_ref().expect("just set"))
    }
}

#[async_trait]
impl AsyncDB for Tested {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let configuration = self.configuration.clone();
        let other = configuration.using.and_then(|using| using_other(sql, using));
        let session = self.open().await?;
        let output = match query(session, other.as_deref().unwrap_or(sql), configuration.transactions).await {
            // The index type may not support the column.
            Err(Error::Unsupported(what)) if what.contains("the first column must be") => {
                query(session, sql, configuration.transactions).await?
            }
            output => output?,
        };
        // Settings end with their session, and so do transactions.
        let is_over = session.transaction_status() == TransactionStatus::Idle;
        if configuration.reopen && is_over && !sql.trim_start().to_ascii_uppercase().starts_with("SET") {
            self.session = None;
        }
        Ok(output)
    }

    async fn shutdown(&mut self) {
        if let Some(session) = self.session.take()
            && session.transaction_status() != TransactionStatus::Idle
        {
            session.execute("COMMIT").await.expect("no conflicts");
        }
    }

    fn engine_name(&self) -> &str {
        "keyaki"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Executes a statement in a transaction.
async fn query(session: &Session, sql: &str, transactions: Transactions) -> Result<DBOutput<DefaultColumnType>, Error> {
    match transactions {
        Transactions::Own => return output(session, sql).await,
        Transactions::Each => drop(session.execute("BEGIN ISOLATION LEVEL SERIALIZABLE").await?),
        // Locators are built over pages, after the commit.
        Transactions::One if sql.contains("keyaki_indexes") => {
            if session.transaction_status() != TransactionStatus::Idle {
                session.execute("COMMIT; CHECKPOINT").await?;
                session.database().store().wait_for_locators();
            }
            return output(session, sql).await;
        }
        Transactions::One => {
            if session.transaction_status() == TransactionStatus::Idle {
                session.execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            }
            session.execute("SAVEPOINT before").await?;
        }
    }
    let done = output(session, sql).await;
    match (transactions, &done) {
        (_, Err(Error::ActiveTransaction(_))) => {
            session.execute("COMMIT").await?;
            return output(session, sql).await;
        }
        (Transactions::One, Ok(_)) => session.execute("RELEASE before").await?,
        (Transactions::One, Err(_)) => session.execute("ROLLBACK TO before").await?,
        (_, Ok(_)) => session.execute("COMMIT").await?,
        (_, Err(_)) => session.execute("ROLLBACK").await?,
    };
    done
}

/// Executes a statement.
async fn output(session: &Session, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
    let outcome = session.query(sql).await?;
    Ok(match outcome {
        Outcome::Done { rows, .. } => DBOutput::StatementComplete(rows.unwrap_or(0)),
        Outcome::Rows(_) => {
            let batches = outcome.collect().await?;
            let columns = batches.first().map_or(0, RecordBatch::num_columns);
            let rows: Vec<Vec<String>> = batches.iter().flat_map(rows_of).collect();
            DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows }
        }
    })
}
/// Adds clauses to a CREATE INDEX statement without USING, for example `ON t (…)` becomes `ON t USING masstree (…)`. WITH
/// stands before WHERE.
/// `None` for other statements, and for in-memory indexes that the statement cannot build.
fn using_other(sql: &str, (using, with): (&str, &str)) -> Option<String> {
    let upper = sql.trim_start().to_ascii_uppercase();
    let is_index = upper.starts_with("CREATE INDEX") || upper.starts_with("CREATE UNIQUE INDEX");
    let is_plain =
        is_index && !upper.contains(" USING ") && !(upper.contains("CONCURRENTLY") && using.contains("masstree"));
    let (head, columns) = sql.split_once(" (").filter(|_| is_plain)?;
    let (columns, condition) = columns.split_at(columns.find(" WHERE ").unwrap_or(columns.len()));
    Some(format!("{head} {using} ({columns} {with}{condition}"))
}

fn rows_of(batch: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::new().with_null("NULL");
    let batch = keyaki::printable(batch);
    let columns: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).expect("a printable type")).collect();
    let text = |column: &ArrayFormatter<'_>, row: usize| match column.value(row).to_string() {
        text if text.is_empty() => "(empty)".into(),
        text => text,
    };
    (0..batch.num_rows()).map(|row| columns.iter().map(|column| text(column, row)).collect()).collect()
}

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("tests/slt").map(|e| e.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "slt"));
    files.sort();
    assert!(!files.is_empty());
    files
}

async fn run_all(options: Options, setup: &'static str, reopen: bool) {
    run_files(Configuration { options, setup, reopen, using: None, transactions: Transactions::Own }).await;
}

async fn run_files(configuration: Configuration) {
    let configuration = Arc::new(configuration);
    let only = std::env::var("SLT").unwrap_or_default();
    let mut failures = Vec::new();
    // Files with transactions of their own.
    const OWN: [&str; 5] = ["cursors.slt", "transactions.slt", "locking.slt", "search_path.slt", "session_state.slt"];
    let has_own = |file: &Path| OWN.iter().any(|name| file.ends_with(name));
    let in_transactions = configuration.transactions != Transactions::Own;
    // Files whose statements need one session.
    const ONE_SESSION: [&str; 3] = ["session_state.slt", "locking.slt", "cursors.slt"];
    let needs_session = |file: &Path| ONE_SESSION.iter().any(|name| file.ends_with(name));
    for file in files().iter().filter(|file| file.to_string_lossy().contains(&only)) {
        let is_refused = in_transactions && has_own(file) || configuration.reopen && needs_session(file);
        if is_refused || !configuration.has_own_statements(file) {
            continue;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut runner = Runner::new(|| {
            let (configuration, path) = (configuration.clone(), dir.path().join("db"));
            async move { Ok(Tested { configuration, path, session: None }) }
        });
        if let Err(error) = runner.run_file_async(file).await {
            failures.push(error.display(false).to_string());
        }
        runner.shutdown_async().await;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn small_memory() -> Options {
    Options {
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    }
}

/// Minimum sizes: a few rows cause runs, flushes and splits.
fn tiny() -> Options {
    let store = keyaki_store::Options {
        cache_bytes: 128 << 10,
        buffer_bytes: 16 << 10,
        page_bytes: 4096,
        leaf_bytes: 16 << 10,
        fan_out: 4,
        node_buffer_bytes: 32 << 10,
        runs_per_node: 3,
        ..keyaki_store::Options::default()
    };
    Options { store: Some(store), ..small_memory() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_options() {
    run_all(small_memory(), "", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_buffers_and_pages() {
    run_all(tiny(), "", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reopened_after_every_statement() {
    run_all(tiny(), "", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masstree_indexes() {
    let using = Some(("USING masstree", ""));
    let configuration =
        Configuration { options: tiny(), setup: "", reopen: false, using, transactions: Transactions::Own };
    run_files(configuration.clone()).await;
    run_files(Configuration { reopen: true, ..configuration.clone() }).await;
    run_files(Configuration { setup: "SET keyaki.join = 'index'", ..configuration }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vast_indexes() {
    let using = Some(("USING vast", ""));
    let configuration =
        Configuration { options: tiny(), setup: "", reopen: false, using, transactions: Transactions::Own };
    run_files(configuration.clone()).await;
    run_files(Configuration { reopen: true, ..configuration.clone() }).await;
    let using = Some(("USING vast", "WITH (goal = 'fast', memory = '1 MiB')"));
    run_files(Configuration { setup: "SET keyaki.join = 'index'", using, ..configuration }).await;
}

/// Every statement of a few rows by key is compiled with parameters in place of its literals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_cache_always() {
    run_all(tiny(), "SET keyaki.plan_cache = 'always'", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_short_path() {
    run_all(small_memory(), "SET keyaki.short_path = 'off'", false).await;
}

/// No index pipelines; aggregates read rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_by_scan() {
    run_all(tiny(), "SET keyaki.join = 'scan'", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_order_execution() {
    run_all(tiny(), "SET keyaki.execution = 'in_order'", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_by_index() {
    run_all(tiny(), "SET keyaki.join = 'index'", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_statement_in_a_transaction() {
    let configuration =
        Configuration { options: tiny(), setup: "", reopen: true, using: None, transactions: Transactions::Each };
    run_files(configuration).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_statements_in_one_transaction() {
    let configuration = Configuration {
        options: Options { memory_bytes: Some(512 << 20), ..small_memory() },
        setup: "",
        reopen: false,
        using: None,
        transactions: Transactions::One,
    };
    run_files(configuration.clone()).await;
    run_files(Configuration { using: Some(("USING masstree", "")), ..configuration }).await;
}
