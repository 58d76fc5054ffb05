//! Keyaki's side: prepared statements of an async session, and of a blocking connection.

use std::path::Path;

use keyaki::{Connection, Database, Durability, Options, Outcome, Prepared, Session, Statement, Value};
use keyaki_primitives::Random;
use tokio::runtime::{Builder, Runtime};

use crate::side::{GROUPS, Row, Side, per_second, row};

const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c TEXT); CREATE INDEX t_k ON t (k)";
const POINT: &str = "SELECT c FROM t WHERE id = $1";
const INSERT: &str = "INSERT INTO t VALUES ($1, $2, $3)";

pub struct Keyaki {
    runtime: Runtime,
    database: Database,
    session: Session,
    statements: Statements,
    connection: Connection,
    insert_blocking: Statement,
}

/// The prepared statements of the session.
struct Statements {
    point: Prepared,
    index: Prepared,
    group: Prepared,
    insert: Prepared,
    update: Prepared,
    delete: Prepared,
}

impl Statements {
    async fn prepare(session: &Session) -> Self {
        let prepare = async |sql: &str| session.prepare(sql).await.unwrap();
        Statements {
            point: prepare(POINT).await,
            index: prepare("SELECT id, c FROM t WHERE k = $1").await,
            group: prepare("SELECT k, count(*), max(c) FROM t WHERE k BETWEEN $1 AND $2 GROUP BY k").await,
            insert: prepare(INSERT).await,
            update: prepare("UPDATE t SET k = k + 1 WHERE id = $1").await,
            delete: prepare("DELETE FROM t WHERE id = $1").await,
        }
    }
}

impl Keyaki {
    pub fn new(path: &Path, rows: i64) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::open(path, Options { durability: Durability::Off, ..Options::default() }).unwrap();
        let session = database.session();
        let statements = runtime.block_on(async {
            session.execute(TABLE).await.unwrap();
            let statements = Statements::prepare(&session).await;
            for id in 0..rows {
                statements.insert.query(&session, &values(&row(id))).await.unwrap();
            }
            statements
        });
        let connection = database.connect().unwrap();
        let insert_blocking = connection.prepare(INSERT).unwrap();
        Keyaki { runtime, database, session, statements, connection, insert_blocking }
    }

    /// Executes a query and counts its rows. Takes a closure, because a future that is moved into the block doubles its
    /// size of 33 kB, which costs 2.7 µs.
    fn rows(&self, query: impl AsyncFnOnce() -> keyaki::Result<Outcome>) -> usize {
        let batches = self.runtime.block_on(async { query().await.unwrap().collect().await });
        batches.unwrap().iter().map(|batch| batch.num_rows()).sum()
    }

    /// Executes a change and returns the number of its rows.
    fn changed(&self, change: impl AsyncFnOnce() -> keyaki::Result<Outcome>) -> usize {
        match self.runtime.block_on(change()).unwrap() {
            Outcome::Done { rows, .. } => rows.unwrap() as usize,
            Outcome::Rows(_) => panic!("a change returned rows"),
        }
    }

    /// INSERTs per second of `sessions` async sessions on a thread each.
    pub fn inserts_per_second(&self, sessions: usize, first: i64, statements: usize) -> f64 {
        per_second(sessions, statements, |number| {
            let session = self.database.session();
            self.runtime.block_on(async {
                let insert = session.prepare(INSERT).await.unwrap();
                for i in (number..statements).step_by(sessions) {
                    insert.query(&session, &values(&row(first + i as i64))).await.unwrap();
                }
            });
        })
    }

    /// INSERTs per second of `connections` blocking connections on a thread each.
    pub fn blocking_inserts_per_second(&self, connections: usize, first: i64, statements: usize) -> f64 {
        per_second(connections, statements, |number| {
            let insert = self.connection.try_clone().unwrap().prepare(INSERT).unwrap();
            for i in (number..statements).step_by(connections) {
                insert.execute(row(first + i as i64)).unwrap();
            }
        })
    }
}

fn values((id, k, c): &Row) -> [Value; 3] {
    [Value::Integer(*id), Value::Integer(*k), Value::Text(c.clone())]
}

impl Side for Keyaki {
    fn point(&mut self, id: i64) -> usize {
        self.rows(async || self.statements.point.query(&self.session, &[Value::Integer(id)]).await)
    }
    fn point_text(&mut self, id: i64) -> usize {
        self.rows(async || self.session.query(&format!("SELECT c FROM t WHERE id = {id}")).await)
    }
    fn index(&mut self, k: i64) -> usize {
        self.rows(async || self.statements.index.query(&self.session, &[Value::Integer(k)]).await)
    }
    fn index_text(&mut self, k: i64) -> usize {
        self.rows(async || self.session.query(&format!("SELECT id, c FROM t WHERE k = {k}")).await)
    }
    fn group(&mut self, k: i64) -> usize {
        let bounds = [Value::Integer(k), Value::Integer(k + GROUPS - 1)];
        self.rows(async || self.statements.group.query(&self.session, &bounds).await)
    }
    fn insert(&mut self, row: &Row) -> usize {
        self.changed(async || self.statements.insert.query(&self.session, &values(row)).await)
    }
    fn insert_blocking(&mut self, (id, k, c): &Row) -> usize {
        self.insert_blocking.execute((id, k, c)).unwrap() as usize
    }
    fn update(&mut self, id: i64) -> usize {
        self.changed(async || self.statements.update.query(&self.session, &[Value::Integer(id)]).await)
    }
    fn delete(&mut self, id: i64) -> usize {
        self.changed(async || self.statements.delete.query(&self.session, &[Value::Integer(id)]).await)
    }
    fn insert_many(&mut self, _rows: &[Row], sql: &str) -> usize {
        self.changed(async || self.session.query(sql).await)
    }
    fn count(&mut self) -> usize {
        let count = async { self.session.query("SELECT count(*) FROM t").await.unwrap().collect().await };
        let batches = self.runtime.block_on(count).unwrap();
        let counts = batches[0].column(0).as_any().downcast_ref::<arrow_array::Int64Array>().unwrap();
        counts.value(0) as usize
    }
    fn set_durable(&mut self, durable: bool) {
        let setting = if durable { "full" } else { "off" };
        self.connection.execute(&format!("SET keyaki.durability = '{setting}'"), ()).unwrap();
    }
    fn points_per_second(&mut self, threads: usize, rows: i64, statements: usize) -> f64 {
        per_second(threads, threads * statements, |thread| {
            let session = self.database.session();
            let runtime = Builder::new_current_thread().build().unwrap();
            let mut random = Random::new(thread as u64);
            runtime.block_on(async {
                let point = session.prepare(POINT).await.unwrap();
                for _ in 0..statements {
                    let id = random.below(rows as u64) as i64;
                    point.query(&session, &[Value::Integer(id)]).await.unwrap().collect().await.unwrap();
                }
            });
        })
    }
}
