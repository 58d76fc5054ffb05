//! PUBLISH DATABASE, published versions as databases, and clones.

use std::path::Path;

use keyaki::{Connection, Error, Options, SqlState, clone_published, is_url, published_versions};

fn open(path: impl AsRef<Path>) -> Result<Connection, Error> {
    Connection::open_with(path, Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() })
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap()
}

/// Version, bytes uploaded, bytes kept, versions removed.
fn publish(connection: &Connection, sql: &str) -> [i64; 4] {
    let row = connection.query_row(sql, (), |row| Ok([row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]));
    row.unwrap()
}

fn shop(directory: &Path) -> Connection {
    let connection = open(directory.join("shop")).unwrap();
    let script = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT, city TEXT);
         CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, total DECIMAL(10, 2), placed DATE);
         CREATE INDEX orders_customer ON orders (customer);
         CREATE INDEX orders_placed ON orders USING vast (placed);
         CREATE INDEX customers_city ON customers USING masstree (city);
         INSERT INTO customers SELECT value, 'customer ' || value, 'city ' || value % 100 FROM generate_series(1, 3000);
         INSERT INTO orders SELECT value, value * 7919 % 3000 + 1, value % 1000 / 100.0, DATE '2024-01-01' + (value % 500)::INT
         FROM generate_series(1, 30000);
         CREATE VIEW large AS SELECT * FROM orders WHERE total > 9;
         ANALYZE";
    connection.execute_batch(script).unwrap();
    connection
}

const QUERIES: [&str; 6] = [
    "SELECT name FROM customers WHERE id = 17",
    "SELECT c.name, o.id FROM customers c JOIN orders o ON o.customer = c.id WHERE c.id BETWEEN 10 AND 40 ORDER BY 1, 2",
    "SELECT city, sum(total), count(*) FROM customers c JOIN orders o ON o.customer = c.id GROUP BY city ORDER BY 1",
    "SELECT count(*) FROM orders WHERE placed BETWEEN DATE '2024-02-01' AND DATE '2024-02-03'",
    "SELECT count(*) FROM customers WHERE city = 'city 7'",
    "SELECT max(total) FROM large",
];

fn answers(connection: &Connection) -> Vec<String> {
    let answer = |sql: &&str| {
        let batches: Vec<_> = connection.query_arrow(sql, ()).unwrap().map(Result::unwrap).collect();
        arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
    };
    QUERIES.iter().map(answer).collect()
}

#[test]
fn versions_are_read_and_cloned() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket/shop", directory.path().display());
    std::fs::create_dir(directory.path().join("bucket")).unwrap();
    let shop = shop(directory.path());
    let statement = format!("PUBLISH DATABASE TO '{url}'");
    let [version, uploaded, kept, removed] = publish(&shop, &statement);
    assert_eq!((version, kept, removed), (1, 0, 0));
    assert!(uploaded > 100_000, "{uploaded}");
    // Nothing has changed.
    assert_eq!(publish(&shop, &statement)[..2], [1, 0]);

    let first = open(&url).unwrap();
    let expected = answers(&shop);
    assert_eq!(answers(&first), expected);
    shop.execute("UPDATE customers SET name = 'changed' WHERE id = 17", ()).unwrap();
    shop.execute("INSERT INTO orders VALUES (100000, 17, 5, DATE '2024-02-01')", ()).unwrap();
    // The second version has the uploads of its own changes only.
    let [version, changed, kept, _] = publish(&shop, &statement);
    assert_eq!(version, 2);
    assert!(changed > 0 && kept > 0 && changed < uploaded, "{changed} of {uploaded} uploaded, {kept} kept");
    assert_eq!(answers(&first), expected, "an open version does not change");
    let changed = answers(&shop);
    assert_ne!(changed, expected);
    assert_eq!(answers(&open(&url).unwrap()), changed);
    assert_eq!(answers(&open(format!("{url}@1")).unwrap()), expected);
    assert_eq!(published_versions(&url).unwrap().iter().map(|version| version.number).collect::<Vec<_>>(), [1, 2]);

    for sql in ["DELETE FROM orders", "CREATE TABLE t (a INT)", "VACUUM", "BACKUP DATABASE TO '/nowhere'"] {
        assert_eq!(first.execute(sql, ()).unwrap_err().sqlstate(), SqlState::READ_ONLY_SQL_TRANSACTION, "{sql}");
    }
    let copy = directory.path().join("copy");
    let (version, bytes) = clone_published(&format!("{url}@1"), &copy, &|_, _| true).unwrap();
    assert_eq!(version, 1);
    assert!(bytes > 100_000);
    let clone = open(&copy).unwrap();
    assert_eq!(answers(&clone), expected);
    clone.execute("DELETE FROM orders WHERE id > 10", ()).unwrap();
    assert_eq!(number(&clone, "SELECT count(*) FROM orders"), 10);
    assert!(matches!(clone_published(&url, &copy, &|_, _| true), Err(Error::AlreadyExists { .. })));
    let cancelled = clone_published(&url, directory.path().join("cancelled"), &|_, _| false);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    let [version, _, _, removed_before] = publish(&shop, &format!("{statement} KEEP 1"));
    assert_eq!(version, 2);
    shop.execute("DELETE FROM orders WHERE id = 1", ()).unwrap();
    let [version, _, _, removed] = publish(&shop, &format!("{statement} keep 1;"));
    assert_eq!(version, 3);
    // Versions that are younger than the oldest publisher at work stay.
    let left: Vec<u64> = published_versions(&url).unwrap().iter().map(|version| version.number).collect();
    assert_eq!(left.len() as i64 + removed_before + removed, 3);
    assert_eq!(left.last(), Some(&3));
}

#[test]
fn a_reader_beside_a_writer_publishes_the_newest_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", directory.path().display());
    let writer = shop(directory.path());
    writer.execute("CHECKPOINT", ()).unwrap();
    let options = Options { read_only: true, memory_bytes: Some(64 << 20), ..Options::default() };
    let reader = Connection::open_with(directory.path().join("shop"), options).unwrap();
    assert_eq!(publish(&reader, &format!("PUBLISH DATABASE TO '{url}'"))[0], 1);
    let expected = answers(&writer);
    assert_eq!(answers(&open(&url).unwrap()), expected);
    writer.execute("DELETE FROM orders WHERE id % 2 = 0", ()).unwrap();
    writer.execute("CHECKPOINT", ()).unwrap();
    assert_eq!(publish(&reader, &format!("PUBLISH DATABASE TO '{url}'"))[0], 2);
    assert_eq!(number(&open(&url).unwrap(), "SELECT count(*) FROM orders"), 15_000);
}

#[test]
fn the_view_counts_requests() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", directory.path().display());
    let shop = shop(directory.path());
    assert_eq!(number(&shop, "SELECT count(*) FROM keyaki_object_store"), 0);
    publish(&shop, &format!("PUBLISH DATABASE TO '{url}'"));
    let options = Options {
        memory_bytes: Some(64 << 20),
        object_cache: Some(keyaki::DiskCacheOptions { directory: directory.path().join("cache"), bytes_max: 1 << 30 }),
        ..Options::default()
    };
    let fetched = || {
        let version = Connection::open_with(&url, options.clone()).unwrap();
        assert_eq!(number(&version, "SELECT count(*) FROM orders WHERE total >= 0"), 30_000);
        let row = version.query_row(
            "SELECT version, requests, bytes_read, frames_fetched, disk_hits, failed FROM keyaki_object_store",
            (),
            |row| (0..6).map(|column| row.get::<_, i64>(column)).collect::<Result<Vec<_>, _>>(),
        );
        row.unwrap()
    };
    let first = fetched();
    assert_eq!((first[0], first[5]), (1, 0));
    assert!(first[1] >= 2 && first[2] > 100_000 && first[3] > 1, "{first:?}");
    let second = fetched();
    assert!(second[4] > 0 && second[3] < first[3], "{second:?} after {first:?}");
}

#[test]
fn statements_and_urls_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let bucket = directory.path().join("bucket");
    let url = format!("file://{}", bucket.display());
    let shop = shop(directory.path());
    let state = |sql: &str| shop.execute(sql, ()).unwrap_err().sqlstate();
    for sql in [
        "PUBLISH DATABASE",
        "PUBLISH DATABASE TO 'file:///x' KEEP",
        "PUBLISH DATABASE TO 'file:///x' KEEP 'two'",
        "PUBLISH DATABASE TO 'file:///x' 1",
    ] {
        assert_eq!(state(sql), SqlState::SYNTAX_ERROR, "{sql}");
    }
    assert_eq!(state("PUBLISH DATABASE TO 'file:///x' KEEP 0"), SqlState::INVALID_PARAMETER_VALUE);
    let escaping = format!("{url}/%2e%2e/other");
    for url in ["shop", "ftp://host/shop", "memory:///", "", "file:shop", "file:///", "file:///a@1", &escaping] {
        assert_eq!(state(&format!("PUBLISH DATABASE TO '{url}'")), SqlState::INVALID_PARAMETER_VALUE, "{url}");
    }
    shop.execute("BEGIN", ()).unwrap();
    assert_eq!(state(&format!("PUBLISH DATABASE TO '{url}'")), SqlState::ACTIVE_SQL_TRANSACTION);
    shop.execute("ROLLBACK", ()).unwrap();

    let failed = |url: &str| open(url).unwrap_err();
    std::fs::create_dir(&bucket).unwrap();
    assert_eq!(failed(&url).sqlstate(), SqlState::INVALID_CATALOG_NAME);
    assert_eq!(failed(&url).to_string(), format!("\"{url}\" has no published version"));
    publish(&shop, &format!("PUBLISH DATABASE TO '{url}'"));
    assert_eq!(failed(&format!("{url}@7")).to_string(), format!("version 7 does not exist in \"{url}\""));
    let created = keyaki::Database::create(&url, Options::default()).unwrap_err();
    assert_eq!(created.sqlstate(), SqlState::FEATURE_NOT_SUPPORTED);
    let device = Some(keyaki_device::open_default().unwrap());
    let with_device = keyaki::Database::open(&url, Options { device, ..Options::default() }).unwrap_err();
    assert_eq!(with_device.sqlstate(), SqlState::FEATURE_NOT_SUPPORTED);
    // An older copy does not become the newest version.
    let copy = directory.path().join("older");
    clone_published(&url, &copy, &|_, _| true).unwrap();
    shop.execute("DELETE FROM orders WHERE id = 5", ()).unwrap();
    publish(&shop, &format!("PUBLISH DATABASE TO '{url}'"));
    let error = open(&copy).unwrap().execute(&format!("PUBLISH DATABASE TO '{url}'"), ()).unwrap_err();
    assert_eq!(error.sqlstate(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
    // A clone that was interrupted is no empty database.
    let unfinished = directory.path().join("unfinished");
    std::fs::create_dir(&unfinished).unwrap();
    std::fs::write(unfinished.join("data.clone"), "part").unwrap();
    assert_eq!(open(&unfinished).unwrap_err().sqlstate(), SqlState::INVALID_CATALOG_NAME);
    assert_eq!(clone_published(&url, &unfinished, &|_, _| true).unwrap().0, 2);
    // Versions of one database stay together.
    let other = open(directory.path().join("other")).unwrap();
    let error = other.execute(&format!("PUBLISH DATABASE TO '{url}'"), ()).unwrap_err();
    assert_eq!(error.sqlstate(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(is_url(&url) && !is_url(&bucket));
}

#[test]
fn damaged_objects_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let bucket = directory.path().join("bucket");
    let url = format!("file://{}", bucket.display());
    let shop = shop(directory.path());
    publish(&shop, &format!("PUBLISH DATABASE TO '{url}'"));
    let mut objects = Vec::new();
    for part in std::fs::read_dir(bucket.join("objects")).unwrap() {
        objects.extend(std::fs::read_dir(part.unwrap().path()).unwrap().map(|object| object.unwrap().path()));
    }
    assert!(!objects.is_empty());
    for object in objects {
        let mut bytes = std::fs::read(&object).unwrap();
        for at in (1000..bytes.len()).step_by(30_000) {
            bytes[at] ^= 1;
        }
        std::fs::write(&object, bytes).unwrap();
    }
    let failed = match open(&url) {
        Ok(version) => version.execute("SELECT sum(total) FROM orders", ()).unwrap_err(),
        Err(error) => error,
    };
    assert!(failed.to_string().contains("damaged"), "{failed}");
}
