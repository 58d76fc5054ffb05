//! COPY in both directions, bulk loads, and rollback after failures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::util::display::array_value_to_string;
use datafusion::parquet::arrow::ArrowWriter;
use keyaki::{ConstraintKind, Database, Error, Options, Session};

/// A database and a directory for files.
struct Fixture {
    dir: tempfile::TempDir,
    session: Session,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(dir.path().join("db"), options).unwrap();
        Fixture { session: database.session(), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    async fn run(&self, sql: &str) {
        if let Err(error) = self.session.execute(sql).await {
            panic!("{sql}: {error}");
        }
    }

    async fn fail(&self, sql: &str) -> String {
        match self.session.execute(sql).await {
            Ok(_) => panic!("{sql}: no error"),
            Err(error) => error.to_string(),
        }
    }

    /// All values as text: values separated by `|`, rows by `;`.
    async fn rows(&self, sql: &str) -> String {
        let outcome = self.session.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let batches = outcome.collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let value = |column: &ArrayRef, row: usize| match column.is_null(row) {
            true => "∅".to_string(),
            false => array_value_to_string(column, row).unwrap(),
        };
        let row = |batch: &RecordBatch, row: usize| {
            batch.columns().iter().map(|column| value(column, row)).collect::<Vec<_>>().join("|")
        };
        let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |i| row(batch, i)));
        rows.collect::<Vec<_>>().join(";")
    }
}

fn parquet(path: &Path, batches: &[RecordBatch]) {
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batches[0].schema(), None).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
}

fn copy_from(table: &str, path: &Path) -> String {
    format!("COPY {table} FROM '{}'", path.display())
}

fn copy_to(what: &str, path: &Path) -> String {
    format!("COPY {what} TO '{}'", path.display())
}

const ALL_TYPES: &str = "CREATE TABLE NAME (id INTEGER PRIMARY KEY, b BOOLEAN, i1 TINYINT, i2 SMALLINT, i8 BIGINT, \
    f4 REAL, f8 DOUBLE PRECISION, d DECIMAL(38,10), t TEXT, v VARCHAR(5), x BYTEA, day DATE, ts TIMESTAMP, tz TIMESTAMPTZ)";

/// Rows of the table in CSV, as COPY TO writes them.
const ALL_VALUES: &str = "id,b,i1,i2,i8,f4,f8,d,t,v,x,day,ts,tz\n\
    1,true,-128,-32768,-9223372036854775808,1.5,-1e300,-9999999999999999999999999999.9999999999,\
    \"a,b\"\"c\nd|\\N\",äöüß€,\\x00ff0a,0001-01-01,1969-12-31 23:59:59.999999,2024-02-29 10:00:00+00\n\
    2,false,127,32767,9223372036854775807,-0.1,0.1,0.0000000001,\"\",\"\",\\x,9999-12-31,\
    2024-01-01 00:00:00,1970-01-01 00:00:00+00\n\
    3,,,,,,,,,,,,,\n\
    4,true,0,0,0,Infinity,-Infinity,0.0000000000,NULL,null,\\x5c,5881580-07-11,294247-01-10 04:00:54.775807,\
    290309-12-22 19:59:05.224192+00 BC\n";

#[tokio::test(flavor = "multi_thread")]
async fn every_type_survives_every_format() {
    let fixture = Fixture::new();
    fixture.run(&ALL_TYPES.replace("NAME", "a")).await;
    fixture.run(&copy_from("a", &fixture.write("first.csv", ALL_VALUES))).await;
    let some = "SELECT i8, d, v, x, day, ts FROM a WHERE id < 3 ORDER BY id";
    let expected = "-9223372036854775808|-9999999999999999999999999999.9999999999|äöüß€|00ff0a|0001-01-01|\
        1969-12-31T23:59:59.999999;9223372036854775807|0.0000000001|||9999-12-31|2024-01-01T00:00:00";
    assert_eq!(fixture.rows(some).await, expected);
    for (i, file) in ["a.parquet", "a.csv", "a.json", "a.tsv"].into_iter().enumerate() {
        let path = fixture.path(file);
        fixture.run(&copy_to("a", &path)).await;
        let table = format!("b{i}");
        fixture.run(&ALL_TYPES.replace("NAME", &table)).await;
        fixture.run(&copy_from(&table, &path)).await;
        let again = fixture.path("again.csv");
        fixture.run(&copy_to(&format!("(SELECT * FROM {table} ORDER BY id)"), &again)).await;
        assert_eq!(std::fs::read_to_string(again).unwrap(), ALL_VALUES, "{file}");
    }
    // Without a header, with other delimiters and quotes, from a query, into a list of columns.
    let path = fixture.path("part.csv");
    let options = "(HEADER false, DELIMITER ';', QUOTE '''', NULL '-')";
    fixture.run(&format!("{} {options}", copy_to("(SELECT t, id FROM a)", &path))).await;
    fixture.run("CREATE TABLE c (id INTEGER PRIMARY KEY, t TEXT, other TEXT DEFAULT 'x' || 'y')").await;
    fixture.run(&format!("{} {options}", copy_from("c (t, id)", &path))).await;
    assert_eq!(
        fixture.rows("SELECT t, id FROM c ORDER BY id").await,
        fixture.rows("SELECT t, id FROM a ORDER BY id").await
    );
    assert_eq!(fixture.rows("SELECT DISTINCT other FROM c").await, "xy");
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_survive_every_format() {
    let fixture = Fixture::new();
    let table = "CREATE TABLE NAME (id INTEGER PRIMARY KEY, n INT[], t TEXT[], f REAL[], x BYTEA[], day DATE[], \
        tz TIMESTAMPTZ[], i INTERVAL[], u UUID[], nn INT[][])";
    let values = "id,n,t,f,x,day,tz,i,u,nn\n\
        1,\"{1,NULL,-3}\",\"{\"\"a \\\"\"b\\\"\"\"\",\"\"x\ny\t\\\\\"\",NULL,\"\"\"\",é}\",\"{1.5,NaN}\",\"{\"\"\\\\x00ff\"\"}\",\
        {2024-02-29},\"{\"\"2024-02-29 10:00:00+00\"\"}\",\"{\"\"1 mon\"\",NULL}\",\
        {a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11},\"{{1,2},{},NULL}\"\n\
        2,{},{},{},{},{},{},{},{},{}\n\
        3,,,,,,,,,\n";
    fixture.run(&table.replace("NAME", "a")).await;
    fixture.run(&copy_from("a", &fixture.write("first.csv", values))).await;
    for (i, file) in ["a.parquet", "a.csv", "a.json", "a.tsv"].into_iter().enumerate() {
        let path = fixture.path(file);
        fixture.run(&copy_to("a", &path)).await;
        let name = format!("b{i}");
        fixture.run(&table.replace("NAME", &name)).await;
        fixture.run(&copy_from(&name, &path)).await;
        let again = fixture.path("again.csv");
        fixture.run(&copy_to(&format!("(SELECT * FROM {name} ORDER BY id)"), &again)).await;
        assert_eq!(std::fs::read_to_string(again).unwrap(), values, "{file}");
    }
    let broken = fixture.write("broken.csv", "id,n\n10,{1}\n11,\"{1,x}\"\n");
    let error = fixture.fail(&copy_from("a (id, n)", &broken)).await;
    assert!(error.contains("invalid input syntax for type integer: \"x\""), "{error}");
    let parquet = fixture.path("a.parquet");
    let query = format!("SELECT n[1], cardinality(t) FROM '{}' ORDER BY id", parquet.display());
    assert_eq!(fixture.rows(&query).await, "1|5;∅|0;∅|∅");
}

#[tokio::test(flavor = "multi_thread")]
async fn tbl_files_of_dbgen() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE r (r_regionkey INTEGER PRIMARY KEY, r_name CHAR(25), r_comment VARCHAR(152))").await;
    let path = fixture.write("region.tbl", "0|AFRICA|lar deposits. |\n1|AMERICA||\n");
    fixture.run(&copy_from("r", &path)).await;
    assert_eq!(fixture.rows("SELECT * FROM r ORDER BY 1").await, "0|AFRICA|lar deposits. ;1|AMERICA|");
    let out = fixture.path("out.tbl");
    fixture.run(&copy_to("(SELECT * FROM r ORDER BY 1)", &out)).await;
    assert_eq!(std::fs::read_to_string(&out).unwrap(), std::fs::read_to_string(&path).unwrap());
    fixture.run("UPDATE r SET r_name = 'a|b'").await;
    assert!(fixture.fail(&copy_to("r", &out)).await.contains("row 1, column r_name"));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), std::fs::read_to_string(&path).unwrap(), "the old file stays");
    assert_eq!(std::fs::read_dir(fixture.dir.path()).unwrap().count(), 3, "no temporary file stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_matched_by_name_or_position() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c INTEGER NOT NULL DEFAULT 7)").await;
    let columns: Vec<(&str, ArrayRef)> =
        vec![("B", Arc::new(StringArray::from(vec![Some("x"), None]))), ("a", Arc::new(Int64Array::from(vec![2, 1])))];
    let path = fixture.path("t.parquet");
    parquet(&path, &[RecordBatch::try_from_iter(columns).unwrap()]);
    fixture.run(&copy_from("t", &path)).await;
    assert_eq!(fixture.rows("SELECT * FROM t ORDER BY a").await, "1|∅|7;2|x|7");
    fixture.run("DELETE FROM t").await;
    let foreign = format!("{} (HEADER)", copy_from("t", &fixture.write("t.csv", "Key,Text,Number\n9,x,1\n")));
    fixture.run(&foreign).await;
    assert_eq!(fixture.rows("SELECT * FROM t").await, "9|x|1");
    fixture.run("DELETE FROM t").await;
    fixture.run(&copy_from("t", &fixture.write("t.csv", "c,A\n1,2\n"))).await;
    fixture.run(&copy_from("t (b, a)", &fixture.write("u.csv", "x,3\n"))).await;
    fixture
        .run(&copy_from(
            "t",
            &fixture.write("t.json", "[{\"a\": 4, \"c\": \"5\"},\n {\"a\": 6, \"c\": 8, \"b\": 1.50}]"),
        ))
        .await;
    assert_eq!(fixture.rows("SELECT * FROM t ORDER BY a").await, "2|∅|1;3|x|7;4|∅|5;6|1.50|8");
    for (name, content, expected) in [
        ("extra.csv", "a,b,d\n1,2,3\n", "column \"d\" of relation \"t\" does not exist"),
        ("extra.json", "{\"a\":1,\"z\":2}", "row 1: column \"z\" of the file is not a column of the table"),
        ("twice.csv", "a,b,A\n1,2,3\n", "column \"A\" specified more than once"),
        ("missing.csv", "b,c\n1,2\n", "null value in column \"a\" of relation \"t\" violates not-null constraint"),
    ] {
        let path = fixture.write(name, content);
        let sql = format!("{}{}", copy_from("t", &path), if name.ends_with("csv") { " (HEADER)" } else { "" });
        let message = fixture.fail(&sql).await;
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcards_match_several_files() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)").await;
    for i in 1..=12 {
        fixture.write(&format!("part-{i}.csv"), format!("{i},x\n"));
    }
    fixture.run(&copy_from("t", &fixture.path("part-*.csv"))).await;
    assert_eq!(fixture.rows("SELECT count(*), min(a), max(a) FROM t").await, "12|1|12");
    fixture.write("part-5.csv", "50,x\n5y,z\n");
    let message = fixture.fail(&copy_from("t", &fixture.path("part-?.csv"))).await;
    assert!(message.contains("part-1.csv, row 1") || message.contains("part-5.csv, row 2, column a"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_file_row_and_column() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a SMALLINT PRIMARY KEY, b VARCHAR(3) NOT NULL, c DECIMAL(4,2), d DATE)").await;
    for (content, expected) in [
        ("1,x,1,2024-01-01\n2,y\n", "bad.csv, row 2: row has 2 values, expected 4"),
        ("1,x,1,2024-01-01\n2x,y,1,\n", "bad.csv, row 2, column a: invalid input syntax for type smallint: \"2x\""),
        (
            "1,x,1,2024-01-01\n\n40000,y,1,\n",
            "bad.csv, row 2, column a: value \"40000\" is out of range for type smallint",
        ),
        ("1,x,1,\n2,y,123.4,\n", "bad.csv, row 2, column c: value \"123.4\" is out of range for type numeric(4,2)"),
        ("1,x,1,2024-02-30\n", "bad.csv, row 1, column d: date out of range: \"2024-02-30\""),
        (
            "1,wxyz,1,\n",
            "bad.csv, row 1, column b: value too long for type character varying(3): \"wxyz\" has 4 characters",
        ),
        (
            "1,x,1,\n2,,1,\n",
            "bad.csv, row 2, column b: null value in column \"b\" of relation \"t\" violates not-null constraint",
        ),
        (
            ",x,1,\n",
            "bad.csv, row 1, column a: null value in column \"a\" of relation \"t\" violates not-null constraint",
        ),
        (
            "1,x,1,\n2,y,2,\n1,z,3,\n",
            "bad.csv, row 3: duplicate key value violates unique constraint \"t_pkey\": Key (a)=(1) already exists",
        ),
        ("1,\"x,1,\n", "bad.csv, row 1: unterminated quoted value at end of file"),
    ] {
        let path = fixture.write("bad.csv", content);
        let message = fixture.fail(&copy_from("t", &path)).await;
        assert!(message.contains(expected), "{content:?}: {message}");
    }
    let path = fixture.write("bad.csv", b"1,x,1,\n2,\xff,1,\n");
    assert!(fixture.fail(&copy_from("t", &path)).await.contains("row 2: value 2 is not valid UTF-8"));
    for name in ["missing.csv", "missing.parquet", "missing.json", "missing.tbl", "none-*.csv"] {
        let message = fixture.fail(&copy_from("t", &fixture.path(name))).await;
        assert!(message.contains(name), "{message}");
    }
    assert!(fixture.fail(&copy_from("t", fixture.dir.path())).await.contains("directory"));
    assert!(fixture.fail(&copy_to("t", fixture.dir.path())).await.contains("directory"));
    assert!(fixture.fail(&format!("{} (FORMAT csv)", copy_to("t", fixture.dir.path()))).await.contains("directory"));
    assert!(fixture.fail(&copy_from("t", &fixture.write("x.unknown", ""))).await.contains("format"));
    assert!(fixture.fail(&copy_from("nothing", &path)).await.contains("does not exist"));
    assert!(fixture.fail(&copy_to("(SELECT 1/0)", &fixture.path("zero.csv"))).await.contains("zero"));
    assert!(!fixture.path("zero.csv").exists());
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_parquet_files_are_errors() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a BIGINT PRIMARY KEY, b TEXT)").await;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int64Array::from_iter_values(0..5000))),
        ("b", Arc::new(StringArray::from_iter_values((0..5000).map(|i| format!("text {i}"))))),
    ];
    let path = fixture.path("good.parquet");
    parquet(&path, &[RecordBatch::try_from_iter(columns).unwrap()]);
    let good = std::fs::read(&path).unwrap();
    let bad = fixture.path("bad.parquet");
    for len in [0, 3, 4, 8, good.len() / 2, good.len() - 9, good.len() - 1] {
        std::fs::write(&bad, &good[..len]).unwrap();
        let message = fixture.fail(&copy_from("t", &bad)).await;
        assert!(message.contains("bad.parquet"), "{len}: {message}");
    }
    for at in (4..good.len()).step_by(good.len() / 40) {
        let mut bytes = good.clone();
        bytes[at..(at + 16).min(good.len())].fill(0xa5);
        std::fs::write(&bad, &bytes).unwrap();
        // Checksums in Parquet files are optional: damaged values may be loaded, but no error may be a panic.
        let _ = fixture.session.execute(&copy_from("t", &bad)).await;
        fixture.run("DELETE FROM t").await;
    }
    let columns: Vec<(&str, ArrayRef)> =
        vec![("a", Arc::new(Int32Array::from(vec![1]))), ("b", Arc::new(Int64Array::from(vec![1])))];
    parquet(&bad, &[RecordBatch::try_from_iter(columns).unwrap()]);
    fixture.run(&copy_from("t", &bad)).await;
    assert_eq!(fixture.rows("SELECT * FROM t").await, "1|1");
}

/// CSV rows for the keys `i * step % modulus` of all `i` below `count`.
fn many(count: u64, step: u64, modulus: u64) -> String {
    (0..count).map(|i| i * step % modulus).map(|k| format!("{k},name {},{}\n", k % 1000, k * 3)).collect()
}

const KEYED: &str = "CREATE TABLE t (k BIGINT PRIMARY KEY, name TEXT, n BIGINT);
    CREATE INDEX by_name ON t (name) INCLUDE (n);
    CREATE UNIQUE INDEX by_n ON t (n)";

async fn check_many(fixture: &Fixture, count: u64) {
    let sum = (0..count).sum::<u64>();
    let expected = format!("{count}|{sum}|{}|{}", sum * 3, count.min(1000));
    let sql = "SELECT count(*), sum(k), sum(n), count(DISTINCT name) FROM t";
    assert_eq!(fixture.rows(sql).await, expected);
    let least: Vec<String> = (77..count).step_by(1000).take(3).map(|k| format!("{k}|{}", k * 3)).collect();
    let sql = "SELECT k, n FROM t WHERE name = 'name 77' ORDER BY k LIMIT 3";
    assert_eq!(fixture.rows(sql).await, least.join(";"));
    let k = count / 2;
    assert_eq!(fixture.rows(&format!("SELECT k FROM t WHERE n = {}", k * 3)).await, k.to_string());
    assert_eq!(fixture.rows(&format!("SELECT n FROM t WHERE k = {k}")).await, (k * 3).to_string());
    let ordered = fixture.rows("SELECT k FROM t ORDER BY k LIMIT 5 OFFSET 100").await;
    assert_eq!(ordered, "100;101;102;103;104");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_sorted_and_shuffled_files_are_loaded() {
    const COUNT: u64 = 50_000;
    // 7919 and the count are coprime: the rows are a permutation of all keys.
    for (name, step) in [("sorted.csv", 1), ("shuffled.csv", 7919)] {
        let fixture = Fixture::new();
        fixture.run(KEYED).await;
        let path = fixture.write(name, many(COUNT, step, COUNT));
        fixture.run(&copy_from("t", &path)).await;
        check_many(&fixture, COUNT).await;
    }
    // Keys that are in order only at the start, in several files.
    let fixture = Fixture::new();
    fixture.run(KEYED).await;
    let all = many(COUNT, 1, COUNT);
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    fixture.write("p-1.csv", lines[20_000..45_000].concat());
    fixture.write("p-2.csv", lines[..20_000].concat());
    fixture.write("p-3.csv", lines[45_000..].concat());
    fixture.run(&copy_from("t", &fixture.path("p-*.csv"))).await;
    check_many(&fixture, COUNT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sorts_spill_with_little_memory() {
    let fixture = Fixture::with(Options { memory_bytes: Some(32 << 20), ..Options::default() });
    fixture.run(KEYED).await;
    let path = fixture.write("shuffled.csv", many(150_000, 7919, 150_000));
    fixture.run(&copy_from("t", &path)).await;
    check_many(&fixture, 150_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_built_over_existing_rows() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (k BIGINT PRIMARY KEY, name TEXT, n BIGINT)").await;
    fixture.run(&copy_from("t", &fixture.write("t.csv", many(30_000, 1, 30_000)))).await;
    fixture.run("CREATE INDEX by_name ON t (name) INCLUDE (n); CREATE UNIQUE INDEX by_n ON t (n)").await;
    check_many(&fixture, 30_000).await;
    let message = fixture.fail("CREATE UNIQUE INDEX unique_name ON t (name)").await;
    assert!(
        message.contains(
            "duplicate key value violates unique constraint \"unique_name\": Key (name)=(name 0) already exists"
        ),
        "{message}"
    );
    fixture.run("CREATE INDEX unique_name ON t (name)").await;
    // A table without a primary key.
    fixture.run("CREATE TABLE h (a INTEGER, b TEXT)").await;
    fixture.run(&copy_from("h", &fixture.write("h.csv", "1,x\n2,y\n2,y\n".repeat(20_000)))).await;
    fixture.run("CREATE INDEX h_a ON h (a)").await;
    assert_eq!(fixture.rows("SELECT count(*) FROM h WHERE a = 2").await, "40000");
    fixture.run(&copy_from("h", &fixture.path("h.csv"))).await;
    assert_eq!(fixture.rows("SELECT count(*) FROM h WHERE a = 2").await, "80000");
    assert_eq!(fixture.rows("SELECT count(*) FROM h").await, "120000");
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_leave_the_table_unchanged() {
    const COUNT: u64 = 25_000;
    for step in [1, 7919] {
        let fixture = Fixture::new();
        fixture.run(KEYED).await;
        let good = many(COUNT, step, COUNT);
        // Duplicates within the file, of the primary key and of the unique index.
        let path = fixture.write("twice.csv", format!("{good}{},again,0\n", COUNT - 1));
        let message = fixture.fail(&copy_from("t", &path)).await;
        assert!(
            message.contains(&format!("unique constraint \"t_pkey\": Key (k)=({}) already exists", COUNT - 1)),
            "{message}"
        );
        if step == 1 {
            assert!(message.contains(&format!("twice.csv, row {}", COUNT + 1)), "{message}");
        }
        let path = fixture.write("twice.csv", format!("{good}{},again,3\n", COUNT + 1));
        let message = fixture.fail(&copy_from("t", &path)).await;
        assert!(message.contains("unique constraint \"by_n\": Key (n)=(3) already exists"), "{message}");
        assert_eq!(fixture.rows("SELECT count(*) FROM t").await, "0");
        // Duplicates of existing rows, in a large and in a small file.
        fixture.run(&copy_from("t", &fixture.write("good.csv", &good))).await;
        for rest in [good.as_str(), ""] {
            let path = fixture.write("more.csv", format!("{},x,-1\n{rest}5,x,-2\n", COUNT + 5));
            let message = fixture.fail(&copy_from("t", &path)).await;
            assert!(message.contains("\"t_pkey\""), "{message}");
            let path = fixture.write("more.csv", format!("{},x,-1\n{},x,9\n", COUNT + 5, COUNT + 6));
            let message = fixture.fail(&copy_from("t", &path)).await;
            assert!(
                message.contains("more.csv, row 2: duplicate key value violates unique constraint \"by_n\""),
                "{message}"
            );
        }
        check_many(&fixture, COUNT).await;
        // Rows without conflicts are added.
        let more: String = (COUNT..2 * COUNT).map(|k| format!("{k},name {},{}\n", k % 1000, k * 3)).collect();
        fixture.run(&copy_from("t", &fixture.write("more.csv", more))).await;
        check_many(&fixture, 2 * COUNT).await;
        fixture.run("ANALYZE t").await;
        check_many(&fixture, 2 * COUNT).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_survive_a_restart() {
    let fixture = Fixture::new();
    fixture.run(KEYED).await;
    fixture.run(&copy_from("t", &fixture.write("t.csv", many(30_000, 7919, 30_000)))).await;
    let path = fixture.session.database().path().to_path_buf();
    let Fixture { dir, session } = fixture;
    drop(session);
    let database = Database::open(path, Options::default()).unwrap();
    let fixture = Fixture { session: database.session(), dir };
    check_many(&fixture, 30_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_load_batches() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a BIGINT PRIMARY KEY, b VARCHAR(9), c INTEGER DEFAULT 5)").await;
    let batch = |range: std::ops::Range<i32>| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("b", Arc::new(StringArray::from_iter_values(range.clone().map(|i| format!("b{i}"))))),
            ("a", Arc::new(Int32Array::from_iter_values(range))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches = move |end: i32| (0..end).step_by(1000).map(move |start| Ok(batch(start..start + 1000)));
    assert_eq!(fixture.session.load_iter("t", batches(100_000)).await.unwrap(), 100_000);
    assert_eq!(fixture.rows("SELECT count(*), sum(a), min(c), max(c) FROM t").await, "100000|4999950000|5|5");
    let error = fixture.session.load_iter("t", batches(2000)).await.unwrap_err();
    assert!(matches!(error, Error::Constraint { kind: ConstraintKind::PrimaryKey, .. }), "{error}");
    let failing = batches(70_000).chain([Err(Error::InvalidFile("no more".into()))]);
    fixture.run("DELETE FROM t").await;
    assert_eq!(fixture.session.load_iter("t", failing).await.unwrap_err().to_string(), "no more");
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, "0");
    let stream = futures::stream::iter([Ok(batch_of_wrong_type())]);
    assert!(fixture.session.load("t", stream).await.unwrap_err().to_string().starts_with("row 2: "));
}

fn batch_of_wrong_type() -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![("a", Arc::new(StringArray::from(vec!["1", "x"])))];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_statements_write_the_same_file() {
    let fixture = Fixture::new();
    let path = fixture.path("same.csv");
    let other = fixture.session.database().session();
    // Both hold their temporary files at the same time: each has more batches than the queues.
    let copy = |first: i64| copy_to(&format!("(SELECT {first} + value FROM generate_series(1, 200000))"), &path);
    let (low, high) = (copy(0), copy(1_000_000));
    let (low, high) = tokio::join!(fixture.session.execute(&low), other.execute(&high));
    assert!(low.is_ok() && high.is_ok(), "{low:?} {high:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut numbers: Vec<i64> = text.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    let first = numbers[0];
    assert!([1, 1_000_001].contains(&first) && numbers.iter().copied().eq(first..first + 200_000));
    let names = std::fs::read_dir(fixture.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".tmp")));
    // The permissions are those of a file that the process creates itself.
    let mode = |path: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
    assert_eq!(mode(&path), mode(&fixture.write("own", "")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_load_leaves_nothing() {
    let fixture = Fixture::new();
    fixture.run("CREATE TABLE t (a BIGINT PRIMARY KEY)").await;
    fixture.run("CREATE INDEX i ON t (a)").await;
    let endless = (0i64..).map(|i| {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(i * 1000..(i + 1) * 1000));
        Ok(RecordBatch::try_from_iter([("a", column)]).unwrap())
    });
    let load = fixture.session.load_iter("t", endless);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), load).await.is_err());
    // The next writer waits until the threads of the load have ended.
    fixture.run("INSERT INTO t VALUES (-1)").await;
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, "1");
}
