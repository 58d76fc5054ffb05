//! The memory of statements on tables larger than memory, counted by the allocator: at most a tenth above the budget.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki::{Connection, Options};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEMORY: usize = 64 << 20;
const TABLES: [&str; 4] = [
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT, total BIGINT, note TEXT)",
    "INSERT INTO orders SELECT value, value * 7919 % 500000, value * 31 % 10007, 'a note of the order with number ' || value
     FROM generate_series(1, 600000)",
    "CREATE TABLE items (id BIGINT, line INT, quantity INT, note TEXT, PRIMARY KEY (id, line))",
    "INSERT INTO items SELECT value / 4, value % 4, value * 13 % 100, 'item ' || value FROM generate_series(1, 800000)",
];
/// Statements and the number of rows that they return.
const STATEMENTS: [(&str, usize); 21] = [
    ("SELECT id FROM orders WHERE note LIKE '%77777%'", 6),
    ("SELECT note, id FROM orders ORDER BY note", 600_000),
    ("SELECT id, note FROM orders ORDER BY total, id DESC", 600_000),
    ("SELECT note, sum(total), max(id) FROM orders GROUP BY note HAVING count(*) > 1", 0),
    ("SELECT total % 10, count(DISTINCT note) FROM orders GROUP BY 1", 10),
    ("SELECT a.id FROM orders a JOIN orders b ON a.note = b.note WHERE a.id % 1000 = 0", 600),
    ("SELECT note FROM orders INTERSECT SELECT note FROM orders WHERE id > 599000", 1000),
    ("SELECT DISTINCT customer FROM orders", 500_000),
    ("SELECT id, note, row_number() OVER (ORDER BY note) FROM orders", 600_000),
    ("SELECT note, count(*) OVER (PARTITION BY note) FROM orders", 600_000),
    ("SELECT note, sum(total) OVER (), row_number() OVER () FROM orders", 600_000),
    ("SELECT id, lag(note) OVER (PARTITION BY total % 2 ORDER BY id) FROM orders", 600_000),
    ("CREATE INDEX orders_note ON orders (note)", 0),
    ("CREATE TABLE copy (id BIGINT PRIMARY KEY, note TEXT)", 0),
    ("INSERT INTO copy SELECT id * 7919 % 1500007, note FROM orders", 0),
    ("CREATE TABLE other AS SELECT * FROM items ORDER BY note", 0),
    ("UPDATE orders SET total = total + 1 WHERE id % 3 = 0", 0),
    ("BEGIN", 0),
    ("DELETE FROM items WHERE quantity < 30", 0),
    ("UPDATE items SET quantity = quantity + 1", 0),
    ("ROLLBACK", 0),
];

fn open(directory: &Path, memory_bytes: usize) -> Connection {
    let options = Options {
        memory_bytes: Some(memory_bytes),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    };
    Connection::open_with(directory.join("db"), options).unwrap()
}

/// The only test of the file, so that no other test allocates at the same time.
#[test]
fn statements_keep_to_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), 1 << 30);
    for sql in TABLES {
        connection.execute(sql, ()).unwrap();
    }
    drop(connection);
    let connection = open(directory.path(), MEMORY);
    let mut above = Vec::new();
    for (sql, expected) in STATEMENTS {
        PEAK.store(HELD.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut rows = 0;
        for batch in connection.query_arrow(sql, ()).unwrap() {
            rows += batch.unwrap_or_else(|error| panic!("{sql}: {error}")).num_rows();
        }
        let peak = PEAK.load(Ordering::Relaxed);
        println!("{:4} MiB: {sql}", peak >> 20);
        assert_eq!(rows, expected, "{sql}");
        if peak > MEMORY + MEMORY / 10 {
            above.push(format!("{} MiB: {sql}", peak >> 20));
        }
    }
    assert!(above.is_empty(), "above {} MiB:\n{}", MEMORY >> 20, above.join("\n"));
}
