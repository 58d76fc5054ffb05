//! A published database, and workers in this process.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use keyaki::{Database, Error, Options, QuerySplit, Session};
use keyaki_cluster::{Coordinator, Security, WorkerOptions, serve};
use keyaki_tpch::{Rows, Table};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const SCALE: f64 = 0.01;
/// Small tables are divided, too.
const SPLIT: QuerySplit = QuerySplit { scan_bytes: 5_000.0, driver_rows: 5.0 };
const MEMORY_BYTES: usize = 256 << 20;

pub fn options() -> Options {
    Options { memory_bytes: Some(MEMORY_BYTES), threads: Some(2), ..Options::default() }
}

/// TPC-H in a repository.
pub struct Shop {
    pub directory: TempDir,
    pub url: String,
}

impl Shop {
    pub async fn new() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        let bucket = directory.path().join("bucket");
        std::fs::create_dir(&bucket).unwrap();
        let url = format!("file://{}/shop", bucket.display());
        let database = Database::open(directory.path().join("shop"), options()).unwrap();
        let session = database.session();
        for table in Table::ALL {
            session.execute(&table.create(None)).await.unwrap();
            for index in table.indexes() {
                session.execute(&index.create(table)).await.unwrap();
            }
            let batches =
                Rows::new(table, SCALE).map(|batch| batch.map_err(|error| Error::Internal(error.to_string())));
            session.load_iter(table.name(), batches).await.unwrap();
        }
        session.execute("ANALYZE").await.unwrap();
        session.execute(&format!("PUBLISH DATABASE TO '{url}'")).await.unwrap();
        Shop { directory, url }
    }

    pub fn open(&self) -> Database {
        Database::open(&self.url, options()).unwrap()
    }
}

/// Workers in this process, each with threads of its own.
pub struct Workers {
    pub addresses: Vec<SocketAddr>,
    running: Vec<Option<Runtime>>,
}

impl Workers {
    pub fn start(count: usize, security: &Security) -> Workers {
        let mut workers = Workers { addresses: Vec::new(), running: Vec::new() };
        for _ in 0..count {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            workers.addresses.push(listener.local_addr().unwrap());
            let options = WorkerOptions { security: security.clone(), database: options(), ..WorkerOptions::default() };
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.spawn(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                serve(listener, options, std::future::pending()).await.unwrap();
            });
            workers.running.push(Some(runtime));
        }
        workers
    }

    /// Ends a worker without notice: its connections are closed.
    pub fn kill(&mut self, worker: usize) {
        self.running[worker].take().unwrap().shutdown_background();
    }

    pub fn coordinator(&self, security: &Security) -> Coordinator {
        let addresses: Vec<String> = self.addresses.iter().map(|address| address.to_string()).collect();
        Coordinator::new(&addresses, security.clone()).unwrap().with_split(SPLIT)
    }

    pub fn attach(&self, database: Database, security: &Security) -> Database {
        database.with_cluster(Arc::new(self.coordinator(security))).unwrap()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.running.drain(..).flatten().for_each(Runtime::shutdown_background);
    }
}

/// The rows of a query as texts.
pub async fn rows(session: &Session, sql: &str) -> Vec<String> {
    let batches = session.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let batches = batches.collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    batches.iter().flat_map(texts).collect()
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}

/// The stages of a query; `None` if it is not divided.
pub async fn explained(cluster: &Database, sql: &str) -> Option<String> {
    let plan = rows(&cluster.session(), &format!("EXPLAIN {sql}")).await.join("\n");
    if let Some((_, reason)) = plan.rsplit_once("cluster|") {
        println!("{reason}");
    }
    plan.starts_with("stages|").then_some(plan)
}

/// Compares the rows of a query on a cluster and on one machine. Returns true if the cluster divides it.
pub async fn compare(local: &Database, cluster: &Database, sql: &str) -> bool {
    let sql = sql.trim().trim_end_matches(';');
    let (session, other) = (local.session(), cluster.session());
    assert_eq!(rows(&other, sql).await, rows(&session, sql).await, "{sql}");
    let (ours, theirs) = (other.query(sql).await.unwrap(), session.query(sql).await.unwrap());
    let (ours, theirs) = (ours.collect().await.unwrap(), theirs.collect().await.unwrap());
    if let (Some(ours), Some(theirs)) = (ours.first(), theirs.first()) {
        assert_eq!(ours.schema().fields(), theirs.schema().fields(), "{sql}");
    }
    explained(cluster, sql).await.is_some()
}
