//! Bulk inserts into table `purchase`, as in the example `appender`: keys in ascending order, other columns at random.

use std::path::Path;
use std::time::Instant;

use keyaki::{Durability, Options};
use keyaki_primitives::Random;
use rusqlite::params;

/// Parts of a load with a rate of their own.
pub const PARTS: u64 = 10;

/// Columns of the secondary indexes. Experiments use the first ones.
const INDEXES: [&str; 3] = ["price, customer", "customer, product", "product"];

/// Rows of a transaction in SQLite; the appender has chunks of this size.
const TRANSACTION_ROWS: usize = 32_768;

/// `id`, `price`, `customer` and `product`.
type Purchase = (i64, f64, u32, u32);

/// The rows of every load.
fn purchases() -> impl Iterator<Item = Purchase> {
    let mut random = Random::new(1);
    (0..).map(move |id| {
        let bits = random.next_u64();
        (id, (bits % 50_000) as f64 / 100.0, (bits >> 20) as u32 % 100_000, (bits >> 40) as u32 % 10_000)
    })
}

/// A database with the empty table and `indexes` secondary indexes. Commits do not wait for the disk. Functions panic on
/// failure.
pub trait Table {
    /// Inserts rows in bulk.
    fn insert(&mut self, purchases: &mut dyn Iterator<Item = Purchase>);
    /// The result of `SELECT count(*) FROM purchase`.
    fn count(&mut self) -> u64;
}

pub struct KeyakiTable(keyaki::Connection);

impl KeyakiTable {
    /// With `memory_bytes` of memory, or the default.
    pub fn new(path: &Path, indexes: usize, memory_bytes: Option<usize>) -> Self {
        let options = Options { durability: Durability::Off, memory_bytes, ..Options::default() };
        let connection = keyaki::Connection::open_with(path, options).unwrap();
        let columns = "id BIGINT PRIMARY KEY, price DOUBLE PRECISION, customer INTEGER, product INTEGER";
        connection.execute_batch(&definitions(columns, indexes)).unwrap();
        KeyakiTable(connection)
    }
}

impl Table for KeyakiTable {
    fn insert(&mut self, purchases: &mut dyn Iterator<Item = Purchase>) {
        let mut appender = self.0.appender("purchase").unwrap();
        for purchase in purchases {
            appender.append_row(purchase).unwrap();
        }
        appender.finish().unwrap();
    }

    fn count(&mut self) -> u64 {
        self.0.query_row("SELECT count(*) FROM purchase", (), |row| row.get::<_, i64>(0)).unwrap() as u64
    }
}

pub struct SqliteTable(rusqlite::Connection);

impl SqliteTable {
    /// With a page cache of `cache_bytes`, or with the settings of small statements.
    pub fn new(path: &Path, indexes: usize, cache_bytes: Option<usize>) -> Self {
        let connection = crate::sqlite_side::open(path);
        if let Some(bytes) = cache_bytes {
            let limits = format!("PRAGMA mmap_size = 0; PRAGMA cache_size = -{}", bytes / 1024);
            connection.execute_batch(&limits).unwrap();
        }
        let columns = "id INTEGER PRIMARY KEY, price REAL, customer INTEGER, product INTEGER";
        connection.execute_batch(&definitions(columns, indexes)).unwrap();
        SqliteTable(connection)
    }
}

impl Table for SqliteTable {
    /// Prepared INSERTs in transactions.
    fn insert(&mut self, purchases: &mut dyn Iterator<Item = Purchase>) {
        let mut purchases = purchases.peekable();
        while purchases.peek().is_some() {
            let transaction = self.0.transaction().unwrap();
            {
                let mut insert = transaction.prepare_cached("INSERT INTO purchase VALUES (?, ?, ?, ?)").unwrap();
                for (id, price, customer, product) in purchases.by_ref().take(TRANSACTION_ROWS) {
                    insert.execute(params![id, price, customer, product]).unwrap();
                }
            }
            transaction.commit().unwrap();
        }
    }

    fn count(&mut self) -> u64 {
        self.0.query_row("SELECT count(*) FROM purchase", [], |row| row.get::<_, i64>(0)).unwrap() as u64
    }
}

/// The statements that create the table with these columns and its indexes.
fn definitions(columns: &str, indexes: usize) -> String {
    let create = |(number, columns)| format!("; CREATE INDEX purchase_{number} ON purchase ({columns})");
    let indexes: String = INDEXES.iter().enumerate().take(indexes).map(create).collect();
    format!("CREATE TABLE purchase ({columns}){indexes}")
}

/// Rates of a load in rows per second.
pub struct Rates {
    pub overall: f64,
    pub first: f64,
    pub last: f64,
}

/// Inserts `rows` rows into an empty table, in parts. `progress` gets the number of rows and the rate after each part.
pub fn load(table: &mut dyn Table, rows: u64, progress: impl Fn(u64, f64)) -> Rates {
    let mut purchases = purchases();
    let start = Instant::now();
    let parts: Vec<f64> = (0..PARTS)
        .map(|part| {
            let (first, end) = (rows * part / PARTS, rows * (part + 1) / PARTS);
            let start = Instant::now();
            table.insert(&mut purchases.by_ref().take((end - first) as usize));
            let rate = (end - first) as f64 / start.elapsed().as_secs_f64();
            progress(end, rate);
            rate
        })
        .collect();
    Rates { overall: rows as f64 / start.elapsed().as_secs_f64(), first: parts[0], last: parts[parts.len() - 1] }
}
