//! SQLite's side: WAL, prepared statements, autocommit.

use std::path::{Path, PathBuf};
use std::time::Instant;

use keyaki_primitives::Random;
use rusqlite::{Connection, params};

use crate::{Side, text};

pub struct Sqlite {
    path: PathBuf,
    connection: Connection,
}

const POINT: &str = "SELECT c FROM t WHERE id = ?";

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000; PRAGMA mmap_size = 4000000000;").unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    connection
}

impl Sqlite {
    pub fn new(path: &Path, rows: i64) -> Self {
        let connection = open(path);
        connection
            .execute_batch(
                "CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER NOT NULL, c TEXT); CREATE INDEX t_k ON t (k); BEGIN",
            )
            .unwrap();
        {
            let mut insert = connection.prepare("INSERT INTO t VALUES (?, ?, ?)").unwrap();
            for id in 0..rows {
                insert.execute(params![id, id / crate::PER_KEY, text(id)]).unwrap();
            }
        }
        connection.execute_batch("COMMIT").unwrap();
        Sqlite { path: path.into(), connection }
    }

    fn rows(&self, sql: &str, key: i64) -> usize {
        let mut statement = self.connection.prepare_cached(sql).unwrap();
        let mut rows = statement.query([key]).unwrap();
        let mut count = 0;
        while let Some(row) = rows.next().unwrap() {
            let value: rusqlite::types::ValueRef<'_> = row.get_ref(0).unwrap();
            std::hint::black_box(value);
            count += 1;
        }
        count
    }
}

impl Side for Sqlite {
    fn point(&mut self, id: i64) -> usize {
        self.rows(POINT, id)
    }
    fn point_text(&mut self, id: i64) -> usize {
        let mut statement = self.connection.prepare(&format!("SELECT c FROM t WHERE id = {id}")).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut count = 0;
        while rows.next().unwrap().is_some() {
            count += 1;
        }
        count
    }
    fn index(&mut self, k: i64) -> usize {
        self.rows("SELECT id, c FROM t WHERE k = ?", k)
    }
    fn index_text(&mut self, k: i64) -> usize {
        let mut statement = self.connection.prepare(&format!("SELECT id, c FROM t WHERE k = {k}")).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut count = 0;
        while rows.next().unwrap().is_some() {
            count += 1;
        }
        count
    }
    fn insert(&mut self, id: i64, k: i64, c: &str) {
        self.connection.prepare_cached("INSERT INTO t VALUES (?, ?, ?)").unwrap().execute(params![id, k, c]).unwrap();
    }
    fn update(&mut self, id: i64) -> usize {
        self.connection.prepare_cached("UPDATE t SET k = k + 1 WHERE id = ?").unwrap().execute([id]).unwrap()
    }
    fn delete(&mut self, id: i64) -> usize {
        self.connection.prepare_cached("DELETE FROM t WHERE id = ?").unwrap().execute([id]).unwrap()
    }
    /// Prepared inserts in one transaction.
    fn insert_many(&mut self, rows: &[(i64, i64, String)], _sql: &str) {
        self.connection.execute_batch("BEGIN").unwrap();
        {
            let mut insert = self.connection.prepare_cached("INSERT INTO t VALUES (?, ?, ?)").unwrap();
            for (id, k, c) in rows {
                insert.execute(params![id, k, c]).unwrap();
            }
        }
        self.connection.execute_batch("COMMIT").unwrap();
    }
    fn count(&mut self) -> i64 {
        self.connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }
    fn set_durable(&mut self, durable: bool) {
        let setting = if durable { "FULL" } else { "OFF" };
        self.connection.execute_batch(&format!("PRAGMA synchronous = {setting}")).unwrap();
    }
    fn points_per_second(&mut self, threads: usize, rows: i64, statements: usize) -> f64 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let path = self.path.clone();
                scope.spawn(move || {
                    let connection = open(&path);
                    let mut random = Random::new(thread as u64);
                    let mut statement = connection.prepare(POINT).unwrap();
                    for _ in 0..statements {
                        let id = (random.next_u64() % rows as u64) as i64;
                        let mut found = statement.query([id]).unwrap();
                        while let Some(row) = found.next().unwrap() {
                            let value: rusqlite::types::ValueRef<'_> = row.get_ref(0).unwrap();
                            std::hint::black_box(value);
                        }
                    }
                });
            }
        });
        (statements * threads) as f64 / start.elapsed().as_secs_f64()
    }
    fn inserts_per_second(&mut self, _sessions: usize, _first: i64, _statements: usize) -> f64 {
        unreachable!("SQLite has one writer")
    }
}
