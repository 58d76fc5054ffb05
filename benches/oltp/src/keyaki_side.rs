//! Keyaki's side.

use std::path::Path;
use std::time::Instant;

use keyaki::{Database, Options, Prepared, Session, Value};
use keyaki_primitives::Random;
use tokio::runtime::Runtime;

use crate::{Side, text};

pub struct Keyaki {
    runtime: Runtime,
    database: Database,
    session: Session,
    point: Prepared,
    index: Prepared,
    insert: Prepared,
    update: Prepared,
    delete: Prepared,
}

const POINT: &str = "SELECT c FROM t WHERE id = $1";
const INSERT: &str = "INSERT INTO t VALUES ($1, $2, $3)";

impl Keyaki {
    pub fn new(path: &Path, rows: i64) -> Self {
        let runtime = Runtime::new().unwrap();
        let database =
            Database::open(path, Options { durability: keyaki::Durability::Off, ..Options::default() }).unwrap();
        let session = database.session();
        runtime
            .block_on(async {
                session
                    .execute(
                        "CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c TEXT); CREATE INDEX t_k ON t (k)",
                    )
                    .await
                    .unwrap();
                let insert = session.prepare(INSERT).await.unwrap();
                for id in 0..rows {
                    insert
                        .query(
                            &session,
                            &[Value::Integer(id), Value::Integer(id / crate::PER_KEY), Value::Text(text(id))],
                        )
                        .await
                        .unwrap();
                }
                let prepare = async |sql: &str| session.prepare(sql).await.unwrap();
                let (point, index) = (prepare(POINT).await, prepare("SELECT id, c FROM t WHERE k = $1").await);
                let (update, delete) = (
                    prepare("UPDATE t SET k = k + 1 WHERE id = $1").await,
                    prepare("DELETE FROM t WHERE id = $1").await,
                );
                (point, index, insert, update, delete)
            })
            .into_side(runtime, database, session)
    }

    fn rows(&self, statement: &Prepared, key: i64) -> usize {
        let outcome = self
            .runtime
            .block_on(async { statement.query(&self.session, &[Value::Integer(key)]).await.unwrap().collect().await });
        outcome.unwrap().iter().map(|batch| batch.num_rows()).sum()
    }

    fn text(&self, sql: &str) -> usize {
        let outcome = self.runtime.block_on(async { self.session.query(sql).await.unwrap().collect().await });
        outcome.unwrap().iter().map(|batch| batch.num_rows()).sum()
    }

    fn changed(&self, statement: &Prepared, values: &[Value]) -> usize {
        match self.runtime.block_on(statement.query(&self.session, values)).unwrap() {
            keyaki::Outcome::Done { rows, .. } => rows.unwrap() as usize,
            keyaki::Outcome::Rows(_) => panic!("rows"),
        }
    }
}

trait IntoSide {
    fn into_side(self, runtime: Runtime, database: Database, session: Session) -> Keyaki;
}

impl IntoSide for (Prepared, Prepared, Prepared, Prepared, Prepared) {
    fn into_side(self, runtime: Runtime, database: Database, session: Session) -> Keyaki {
        let (point, index, insert, update, delete) = self;
        Keyaki { runtime, database, session, point, index, insert, update, delete }
    }
}

impl Side for Keyaki {
    fn point(&mut self, id: i64) -> usize {
        self.rows(&self.point, id)
    }
    fn point_text(&mut self, id: i64) -> usize {
        self.text(&format!("SELECT c FROM t WHERE id = {id}"))
    }
    fn index(&mut self, k: i64) -> usize {
        self.rows(&self.index, k)
    }
    fn index_text(&mut self, k: i64) -> usize {
        self.text(&format!("SELECT id, c FROM t WHERE k = {k}"))
    }
    fn insert(&mut self, id: i64, k: i64, c: &str) {
        self.changed(&self.insert, &[Value::Integer(id), Value::Integer(k), Value::Text(c.into())]);
    }
    fn update(&mut self, id: i64) -> usize {
        self.changed(&self.update, &[Value::Integer(id)])
    }
    fn delete(&mut self, id: i64) -> usize {
        self.changed(&self.delete, &[Value::Integer(id)])
    }
    fn insert_many(&mut self, _rows: &[(i64, i64, String)], sql: &str) {
        self.runtime.block_on(self.session.query(sql)).unwrap();
    }
    fn count(&mut self) -> i64 {
        let outcome = self
            .runtime
            .block_on(async { self.session.query("SELECT count(*) FROM t").await.unwrap().collect().await });
        outcome.unwrap()[0].column(0).as_any().downcast_ref::<arrow_array::Int64Array>().unwrap().value(0)
    }
    fn set_durable(&mut self, durable: bool) {
        let setting = if durable { "full" } else { "off" };
        self.runtime.block_on(self.session.execute(&format!("SET keyaki.durability = '{setting}'"))).unwrap();
    }
    fn points_per_second(&mut self, threads: usize, rows: i64, statements: usize) -> f64 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let session = self.database.session();
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let mut random = Random::new(thread as u64);
                    runtime.block_on(async {
                        let statement = session.prepare(POINT).await.unwrap();
                        for _ in 0..statements {
                            let id = (random.next_u64() % rows as u64) as i64;
                            let outcome = statement.query(&session, &[Value::Integer(id)]).await.unwrap();
                            outcome.collect().await.unwrap();
                        }
                    });
                });
            }
        });
        (statements * threads) as f64 / start.elapsed().as_secs_f64()
    }
    fn inserts_per_second(&mut self, sessions: usize, first: i64, statements: usize) -> f64 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for number in 0..sessions {
                let session = self.database.session();
                let handle = self.runtime.handle().clone();
                scope.spawn(move || {
                    handle.block_on(async {
                        let statement = session.prepare(INSERT).await.unwrap();
                        for i in (number..statements).step_by(sessions) {
                            let id = first + i as i64;
                            statement
                                .query(
                                    &session,
                                    &[Value::Integer(id), Value::Integer(id / crate::PER_KEY), Value::Text(text(id))],
                                )
                                .await
                                .unwrap();
                        }
                    });
                });
            }
        });
        statements as f64 / start.elapsed().as_secs_f64()
    }
}
