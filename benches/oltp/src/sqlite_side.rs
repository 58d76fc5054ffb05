//! SQLite's side: WAL, prepared statements, autocommit.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use keyaki_primitives::Random;
use rusqlite::{Connection, Params, Statement, params};

use crate::side::{GROUPS, Row, Side, per_second, row};

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER NOT NULL, c TEXT); CREATE INDEX t_k ON t (k)";
const POINT: &str = "SELECT c FROM t WHERE id = ?";
const INSERT: &str = "INSERT INTO t VALUES (?, ?, ?)";

pub struct Sqlite {
    path: PathBuf,
    connection: Connection,
}

/// Opens a database whose commits do not wait for the disk.
pub fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000; \
             PRAGMA mmap_size = 4000000000;",
        )
        .unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    connection
}

/// Executes a query and counts its rows.
fn rows(statement: &mut Statement<'_>, params: impl Params) -> usize {
    let mut rows = statement.query(params).unwrap();
    let mut count = 0;
    while let Some(row) = rows.next().unwrap() {
        std::hint::black_box(row.get_ref(0).unwrap());
        count += 1;
    }
    count
}

impl Sqlite {
    pub fn new(path: &Path, count: i64) -> Self {
        let connection = open(path);
        connection.execute_batch(TABLE).unwrap();
        let mut sqlite = Sqlite { path: path.into(), connection };
        sqlite.transaction((0..count).map(row));
        sqlite
    }

    /// Prepared INSERTs in one transaction.
    fn transaction(&mut self, rows: impl Iterator<Item = impl Borrow<Row>>) -> usize {
        let transaction = self.connection.transaction().unwrap();
        let inserted = {
            let mut insert = transaction.prepare_cached(INSERT).unwrap();
            let mut insert = |(id, k, c): &Row| insert.execute(params![id, k, c]).unwrap();
            rows.map(|row| insert(row.borrow())).sum()
        };
        transaction.commit().unwrap();
        inserted
    }

    fn change(&self, sql: &str, params: impl Params) -> usize {
        self.connection.prepare_cached(sql).unwrap().execute(params).unwrap()
    }
}

impl Side for Sqlite {
    fn point(&mut self, id: i64) -> usize {
        rows(&mut self.connection.prepare_cached(POINT).unwrap(), [id])
    }
    fn point_text(&mut self, id: i64) -> usize {
        rows(&mut self.connection.prepare(&format!("SELECT c FROM t WHERE id = {id}")).unwrap(), [])
    }
    fn index(&mut self, k: i64) -> usize {
        rows(&mut self.connection.prepare_cached("SELECT id, c FROM t WHERE k = ?").unwrap(), [k])
    }
    fn index_text(&mut self, k: i64) -> usize {
        rows(&mut self.connection.prepare(&format!("SELECT id, c FROM t WHERE k = {k}")).unwrap(), [])
    }
    fn group(&mut self, k: i64) -> usize {
        let sql = "SELECT k, count(*), max(c) FROM t WHERE k BETWEEN ? AND ? GROUP BY k";
        rows(&mut self.connection.prepare_cached(sql).unwrap(), [k, k + GROUPS - 1])
    }
    fn insert(&mut self, (id, k, c): &Row) -> usize {
        self.change(INSERT, params![id, k, c])
    }
    fn update(&mut self, id: i64) -> usize {
        self.change("UPDATE t SET k = k + 1 WHERE id = ?", [id])
    }
    fn delete(&mut self, id: i64) -> usize {
        self.change("DELETE FROM t WHERE id = ?", [id])
    }
    fn insert_many(&mut self, rows: &[Row], _sql: &str) -> usize {
        self.transaction(rows.iter())
    }
    fn count(&mut self) -> usize {
        self.connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap() as usize
    }
    fn set_durable(&mut self, durable: bool) {
        let setting = if durable { "FULL" } else { "OFF" };
        self.connection.execute_batch(&format!("PRAGMA synchronous = {setting}")).unwrap();
    }
    fn points_per_second(&mut self, threads: usize, count: i64, statements: usize) -> f64 {
        let path = &self.path;
        per_second(threads, threads * statements, |thread| {
            let connection = open(path);
            let mut random = Random::new(thread as u64);
            let mut point = connection.prepare(POINT).unwrap();
            for _ in 0..statements {
                rows(&mut point, [random.below(count as u64) as i64]);
            }
        })
    }
}
