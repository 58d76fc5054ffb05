//! Objects in stores as files: COPY to and from them, queries over them, and folders by the values of columns.

use std::path::Path;

use arrow::util::pretty::pretty_format_batches;
use keyaki::{Connection, Error, FileAccess, Options};
use keyaki_object_server::{Faults, Server};

struct Shop {
    connection: Connection,
    server: Server,
    root: tempfile::TempDir,
}

fn shop(refused_one_in: u64) -> Shop {
    let root = tempfile::tempdir().unwrap();
    for folder in ["store/bucket", "local"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    let faults = Faults { refused_one_in, ..Faults::default() };
    let server = Server::start(&root.path().join("store"), "127.0.0.1:0", faults).unwrap();
    let options = Options {
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        object_store: server.variables(),
        ..Options::default()
    };
    let connection = Connection::open_with(root.path().join("shop"), options).unwrap();
    let orders = "CREATE TABLE orders (id BIGINT PRIMARY KEY, city TEXT, placed DATE, total DECIMAL(10, 2), note TEXT);
         INSERT INTO orders SELECT value, CASE value % 5 WHEN 0 THEN NULL WHEN 1 THEN 'a/b=c' WHEN 2 THEN 'Zürich'
         WHEN 3 THEN '..' ELSE 'Kyoto 京都' END, DATE '2026-01-01' + (value % 3)::int, value / 4.0,
         repeat('note ' || value, (value % 40)::int) FROM generate_series(1, 20000)";
    connection.execute_batch(orders).unwrap();
    Shop { connection, server, root }
}

impl Shop {
    fn run(&self, sql: &str) {
        self.connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn answer(&self, sql: &str) -> String {
        let batches = self.connection.query_arrow(sql, ()).and_then(|rows| rows.collect::<Result<Vec<_>, _>>());
        let batches = batches.unwrap_or_else(|error| panic!("{sql}: {error}"));
        pretty_format_batches(&batches).unwrap().to_string()
    }

    fn failure(&self, sql: &str) -> Error {
        match self.connection.execute_batch(sql) {
            Ok(()) => panic!("{sql} has succeeded"),
            Err(error) => error,
        }
    }

    /// The objects of the bucket, as the server stores them.
    fn objects(&self) -> Vec<String> {
        let bucket = self.root.path().join("store/bucket");
        files(&bucket, &bucket)
    }
}

/// The files below a folder, relative to `root`, in order.
fn files(root: &Path, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(root, &path)),
            false => found.push(path.strip_prefix(root).unwrap().display().to_string()),
        }
    }
    found.retain(|name| !name.starts_with('.') && !name.contains("/."));
    found.sort();
    found
}

#[test]
fn rows_are_copied_to_objects_and_back() {
    for refused_one_in in [0, 8] {
        let shop = shop(refused_one_in);
        let expected = shop.answer("SELECT * FROM orders ORDER BY id");
        for (name, read) in [
            ("a/orders.parquet", "read_parquet('@')"),
            ("orders.csv", "read_csv('@')"),
            ("orders.csv.gz", "'@'"),
            ("orders.json.zst", "read_json('@')"),
            ("with space.parquet", "'@'"),
        ] {
            let url = format!("s3://bucket/{name}");
            shop.run(&format!("COPY orders TO '{url}'"));
            let table = read.replace('@', &url);
            let columns = "id, city, placed::date, total::decimal(10, 2), note";
            let sums = "count(*), sum(id), count(city), min(placed::date), sum(total::decimal(10, 2)), max(note)";
            assert_eq!(
                shop.answer(&format!("SELECT {sums} FROM {table}")),
                shop.answer(&format!("SELECT {sums} FROM orders")),
                "{name}"
            );
            let few = "WHERE id IN (77, 19999) ORDER BY id";
            let (of_object, of_table) =
                (format!("SELECT {columns} FROM {table} {few}"), format!("SELECT {columns} FROM orders {few}"));
            assert_eq!(shop.answer(&of_object), shop.answer(&of_table), "{name}");
            shop.run("CREATE TABLE again (LIKE orders INCLUDING ALL)");
            shop.run(&format!("COPY again FROM '{url}'"));
            assert_eq!(shop.answer("SELECT * FROM again ORDER BY id"), expected, "{name}");
            shop.run("DROP TABLE again");
        }
        let expected = ["a/orders.parquet", "orders.csv", "orders.csv.gz", "orders.json.zst", "with space.parquet"];
        assert_eq!(shop.objects(), expected);
        assert_eq!(shop.server.stats().refused > 0, refused_one_in > 0);
        // The scheme of local files.
        let url = format!("file://{}/local/orders.csv", shop.root.path().display());
        shop.run(&format!("COPY orders TO '{url}'"));
        assert_eq!(
            shop.answer(&format!("SELECT count(*) AS n FROM '{url}'")),
            shop.answer("SELECT count(*) AS n FROM orders")
        );
    }
}

#[test]
fn patterns_match_objects() {
    let shop = shop(0);
    for part in [1, 2, 10] {
        shop.run(&format!(
            "COPY (SELECT * FROM orders WHERE id % 11 = {part}) TO 's3://bucket/parts/x{part}/p{part}.csv'"
        ));
    }
    shop.run("COPY (SELECT 'other') TO 's3://bucket/parts/other.csv'");
    let count = |pattern: &str| shop.answer(&format!("SELECT count(*) AS n, sum(id) AS s FROM '{pattern}'"));
    let expected =
        |condition: &str| shop.answer(&format!("SELECT count(*) AS n, sum(id) AS s FROM orders WHERE {condition}"));
    assert_eq!(count("s3://bucket/parts/*/*.csv"), expected("id % 11 IN (1, 2, 10)"));
    assert_eq!(count("s3://bucket/parts/x?/p*.csv"), expected("id % 11 IN (1, 2)"));
    shop.run("CREATE TABLE again (LIKE orders INCLUDING ALL); COPY again FROM 's3://bucket/parts/x*/*.csv'");
    assert_eq!(shop.answer("SELECT count(*) AS n, sum(id) AS s FROM again"), expected("id % 11 IN (1, 2, 10)"));
    let names = shop
        .answer("SELECT DISTINCT filename FROM read_csv('s3://bucket/parts/x1*/*.csv', filename => true) ORDER BY 1");
    assert!(
        names.contains("s3://bucket/parts/x1/p1.csv") && names.contains("s3://bucket/parts/x10/p10.csv"),
        "{names}"
    );
}

#[test]
fn rows_are_copied_to_folders_by_their_values() {
    let shop = shop(0);
    let folders = [
        "city=%2E%2E",
        "city=Kyoto%20%E4%BA%AC%E9%83%BD",
        "city=Z%C3%BCrich",
        "city=__HIVE_DEFAULT_PARTITION__",
        "city=a%2Fb%3Dc",
    ];
    for (format, extension) in [("parquet", "parquet"), ("csv, COMPRESSION gzip", "csv.gz"), ("json", "json")] {
        for root in [format!("{}/local/{extension}", shop.root.path().display()), format!("s3://bucket/{extension}")] {
            shop.run(&format!("COPY orders TO '{root}/' (FORMAT {format}, PARTITION_BY (CITY, placed))"));
            let written = match root.starts_with("s3") {
                true => shop.objects().into_iter().filter(|name| name.starts_with(&format!("{extension}/"))).collect(),
                false => {
                    let folder = Path::new(&root);
                    files(folder.parent().unwrap(), folder)
                }
            };
            let mut expected: Vec<String> = folders
                .iter()
                .flat_map(|city| {
                    [1, 2, 3].map(|day| format!("{extension}/{city}/placed=2026-01-0{day}/data_0.{extension}"))
                })
                .collect();
            expected.sort();
            assert_eq!(written, expected);
            let sums = "count(*) AS n, sum(id) AS s, sum(total::decimal(10, 2)) AS t, max(note) AS m";
            for (pattern, condition) in [
                ("*/*", "true"),
                ("city=__HIVE_DEFAULT_PARTITION__/*", "city IS NULL"),
                ("city=a%2Fb%3Dc/placed=2026-01-02", "city = 'a/b=c' AND placed = '2026-01-02'"),
            ] {
                let table = format!("'{root}/{pattern}/data_0.{extension}'");
                let got = shop.answer(&format!("SELECT {sums} FROM {table}"));
                assert_eq!(got, shop.answer(&format!("SELECT {sums} FROM orders WHERE {condition}")), "{table}");
            }
            // The names of folders are values of columns again.
            let table = format!("'{root}/*/*/data_0.{extension}'");
            let columns = "id, city, placed, total::decimal(10, 2) AS total, note";
            for condition in [
                "id % 1000 = 7",
                "city = 'a/b=c' AND placed = '2026-01-02' AND id < 500",
                "city IS NULL AND placed > '2026-01-02' AND total < 100",
                "(city = '..' OR id = 4) AND note LIKE 'note 1%'",
                "city = 'nowhere'",
                "placed BETWEEN '2026-01-02' AND '2026-01-03' AND city IN ('Zürich', 'Kyoto 京都') AND id % 700 = 2",
            ] {
                let rows =
                    |from: &str| shop.answer(&format!("SELECT {columns} FROM {from} WHERE {condition} ORDER BY id"));
                assert_eq!(rows(&table), rows("orders"), "{table} {condition}");
            }
            let groups = |from: &str| {
                shop.answer(&format!("SELECT city, placed, count(*) AS n FROM {from} GROUP BY 1, 2 ORDER BY 1, 2"))
            };
            assert_eq!(groups(&table), groups("orders"));
            let function = if format.starts_with("csv") { "csv" } else { format };
            let without = format!("read_{function}('{root}/*/*/data_0.{extension}', hive_partitioning => false)");
            let columns = shop.answer(&format!("SELECT * FROM {without} LIMIT 1"));
            assert!(!columns.contains("city") && !columns.contains("placed") && columns.contains("note"), "{columns}");
            // A folder with files is left alone.
            let again = format!("COPY orders TO '{root}' (FORMAT {format}, PARTITION_BY city");
            let message = shop.failure(&format!("{again})")).to_string();
            assert!(message.contains("is not empty") && message.contains("OVERWRITE_OR_IGNORE"), "{message}");
            shop.run(&format!("{again}, OVERWRITE_OR_IGNORE)"));
        }
    }
    shop.run("COPY orders TO 's3://bucket/plain' (FORMAT csv, COMPRESSION none, PARTITION_BY placed)");
    assert!(shop.objects().contains(&"plain/placed=2026-01-01/data_0.csv".into()));
    // No rows, no files.
    shop.run("COPY (SELECT * FROM orders WHERE id < 0) TO 's3://bucket/none' (FORMAT csv, PARTITION_BY city)");
    assert!(!shop.objects().iter().any(|name| name.starts_with("none")));
}

/// Also within the second that the times of objects have.
#[test]
fn objects_are_read_again_by_each_statement() {
    let shop = shop(0);
    shop.run("CREATE TABLE live (a BIGINT)");
    for round in 0..6 {
        shop.run(&format!("TRUNCATE live; INSERT INTO live VALUES ({})", 1111 * (round + 1)));
        for name in ["n.parquet", "folder/n.parquet"] {
            shop.run(&format!("COPY live TO 's3://bucket/{name}'"));
            let rows = |condition: &str| shop.answer(&format!("SELECT a FROM 's3://bucket/{name}' WHERE {condition}"));
            let expected = shop.answer("SELECT a FROM live");
            assert_eq!(rows(&format!("a > {}", 1111 * round)), expected);
            assert_eq!(rows(&format!("a = {}", 1111 * (round + 1))), expected);
        }
    }
    // A file of another store with the same path.
    let local = shop.root.path().join("local/same.parquet").display().to_string();
    shop.run(&format!("COPY (SELECT 1 AS a) TO '{local}'; COPY (SELECT 2 AS a) TO 's3://bucket{local}'"));
    let both = |url: &str| shop.answer(&format!("SELECT a FROM '{url}' WHERE a > 1"));
    assert!(!both(&local).contains('2'));
    assert!(both(&format!("s3://bucket{local}")).contains('2'));
    let mixed = format!("SELECT * FROM read_parquet(['{local}', 's3://bucket/n.parquet'])");
    assert!(shop.failure(&mixed).to_string().contains("files of different stores"));
}

#[test]
fn values_of_folders_keep_their_texts() {
    let shop = shop(0);
    let values = "(1, '01234'), (2, '1234'), (3, NULL), (4, '__HIVE_DEFAULT_PARTITION__'), (5, ''), (6, '.'), (7, 'a..b'), (8, '+1')";
    shop.run(&format!("CREATE TABLE codes (id BIGINT, zip TEXT); INSERT INTO codes VALUES {values}"));
    let local = shop.root.path().join("local/codes").display().to_string();
    for root in [local.as_str(), "s3://bucket/codes", "S3://bucket/codes2"] {
        shop.run(&format!("COPY codes TO '{root}' (FORMAT csv, PARTITION_BY zip)"));
        let rows = |from: &str| shop.answer(&format!("SELECT id, zip FROM {from} ORDER BY id"));
        assert_eq!(rows(&format!("'{root}/*/*.csv'")), rows("codes"), "{root}");
    }
    // COPY FROM does not read them.
    shop.run("CREATE TABLE again (id BIGINT, zip TEXT)");
    for format in ["csv", "json", "parquet"] {
        shop.run(&format!("COPY codes TO 's3://bucket/{format}' (FORMAT {format}, PARTITION_BY zip)"));
        let from = format!("'s3://bucket/{format}/*/*.{format}'");
        let message = shop.failure(&format!("COPY again FROM {from}")).to_string();
        assert!(message.contains("column \"zip\" is in the name of a folder"), "{message}");
        shop.run(&format!(
            "COPY again (id) FROM {from}; TRUNCATE again; INSERT INTO again BY NAME SELECT * FROM {from}"
        ));
        assert_eq!(shop.answer("SELECT * FROM again ORDER BY id"), shop.answer("SELECT * FROM codes ORDER BY id"));
        shop.run("TRUNCATE again");
    }
}

/// Only the files whose folders meet the conditions are read.
#[test]
fn folders_are_left_out() {
    let shop = shop(0);
    shop.run("COPY orders TO 's3://bucket/by_day' (FORMAT parquet, PARTITION_BY placed)");
    let requests = |condition: &str| {
        let before = shop.server.stats().gets;
        let sql = format!("SELECT count(*) AS n, sum(id) AS s FROM 's3://bucket/by_day/*/*.parquet' WHERE {condition}");
        let answer = shop.answer(&sql);
        assert_eq!(answer, shop.answer(&format!("SELECT count(*) AS n, sum(id) AS s FROM orders WHERE {condition}")));
        shop.server.stats().gets - before
    };
    let (all, one, none) = (requests("true"), requests("placed = '2026-01-02'"), requests("placed > '2027-01-01'"));
    assert!(all > one && one > none, "{all} {one} {none}");
}

#[test]
fn errors_say_what_is_wrong() {
    let shop = shop(0);
    for (sql, part) in [
        ("SELECT * FROM 's3://bucket/missing.parquet'", "no such object"),
        ("SELECT * FROM 's3://bucket/missing.csv'", "no such object"),
        ("SELECT * FROM 's3://bucket/*.csv'", "no object matches"),
        ("COPY orders FROM 's3://bucket/missing.parquet'", "no such object"),
        ("COPY orders TO 's3://bucket/a//b.csv'", "a//b.csv"),
        ("COPY orders TO 's3://bucket/' (FORMAT csv)", "is not the name of an object"),
        ("COPY orders TO 'ftp://bucket/a.csv'", "is not supported (use s3://"),
        ("COPY orders FROM 's3://bucket/a.csv' (PARTITION_BY city)", "PARTITION_BY except for COPY TO"),
        ("COPY orders TO 's3://bucket/a.csv' (OVERWRITE_OR_IGNORE)", "OVERWRITE_OR_IGNORE except for"),
        ("COPY orders TO 's3://bucket/a' (FORMAT csv, PARTITION_BY nothing)", "nothing"),
        ("COPY orders TO 's3://bucket/a' (FORMAT csv, PARTITION_BY (city, city))", "city"),
        ("COPY (SELECT 1 AS a) TO 's3://bucket/a' (FORMAT csv, PARTITION_BY a)", "all columns"),
        ("COPY orders TO STDOUT (FORMAT csv, PARTITION_BY city)", "stream"),
        ("COPY (SELECT 1 / (20000 - id) FROM orders) TO 's3://bucket/failed.csv'", "division by zero"),
        (
            "SELECT * FROM read_csv(['s3://bucket/a=1/x.csv', 's3://bucket/b=1/x.csv'], hive_partitioning => true)",
            "name different columns",
        ),
        ("COPY orders TO '' (FORMAT csv, PARTITION_BY city)", "is not the name of a directory"),
        ("COPY orders TO '/' (FORMAT csv, PARTITION_BY city)", "is not empty"),
        ("COPY orders TO 'file:///' (FORMAT csv, PARTITION_BY city)", "is not empty"),
        ("COPY orders TO 's3://' (FORMAT csv, PARTITION_BY city)", "names no bucket"),
        (
            "COPY (SELECT 1 AS a, INTERVAL '1 month' AS b) TO 's3://bucket/i' (FORMAT csv, PARTITION_BY b)",
            "of type interval",
        ),
        ("SELECT * FROM 's3://buck*/a.csv'", "the name of the bucket has a wildcard"),
        ("SELECT * FROM read_csv('s3://bucket/')", "is not the name of an object"),
        ("BACKUP DATABASE TO 's3://bucket/backup'", "use PUBLISH DATABASE"),
        ("EXPORT DATABASE 's3://bucket/export'", "URLs in EXPORT DATABASE"),
        ("IMPORT DATABASE 's3://bucket/export'", "URLs in IMPORT DATABASE"),
    ] {
        let message = shop.failure(sql).to_string();
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(shop.objects(), Vec::<String>::new());
    shop.run("COPY orders TO 's3://bucket/open/a.csv'");
    shop.connection.session().restrict_files(FileAccess::Within(vec!["s3://bucket/open".into()]));
    shop.run("COPY orders TO 's3://bucket/open/b.parquet'");
    shop.run("COPY orders TO 's3://bucket/open/by_city' (FORMAT csv, PARTITION_BY city)");
    assert!(shop.answer("SELECT count(*) AS n FROM 's3://bucket/open/*.csv'").contains("20000"));
    assert!(shop.answer("SELECT count(*) AS n FROM 's3://bucket/open/b.parquet'").contains("20000"));
    for sql in [
        "COPY orders TO 's3://bucket/b.csv'",
        "COPY orders TO 's3://bucket/other' (FORMAT csv, PARTITION_BY city)",
        "COPY orders FROM 's3://bucket/open/../b.csv'",
        "SELECT * FROM 's3://bucket/*.csv'",
        "SELECT * FROM 's3://bucket/b.parquet'",
        "COPY orders TO 's3://other/open/b.csv'",
    ] {
        assert!(matches!(shop.failure(sql).root(), Error::FileAccess { .. }), "{sql}: {}", shop.failure(sql));
    }
}
