//! Files as tables of queries: formats, options, patterns, types and errors.

use arrow::array::ArrayRef;
use arrow::util::display::array_value_to_string;
use keyaki::{Database, Options, Session};

/// A database and a directory for files, which `@` stands for in statements.
struct Files {
    directory: tempfile::TempDir,
    session: Session,
}

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(directory.path().join("db"), Options::default()).unwrap();
        Files { session: database.session(), directory }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.directory.path().join(name), content).unwrap();
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace('@', self.directory.path().to_str().unwrap())
    }

    async fn run(&self, sql: &str) {
        if let Err(error) = self.session.execute(&self.sql(sql)).await {
            panic!("{sql}: {error}");
        }
    }

    async fn error(&self, sql: &str) -> String {
        match self.session.execute(&self.sql(sql)).await {
            Ok(_) => panic!("{sql}: no error"),
            Err(error) => error.to_string().replace(self.directory.path().to_str().unwrap(), "@"),
        }
    }

    /// All values as text: values separated by `|`, rows by `;`.
    async fn rows(&self, sql: &str) -> String {
        let outcome = self.session.query(&self.sql(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let batches = outcome.collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let value = |column: &ArrayRef, row: usize| match column.is_null(row) {
            true => "∅".to_string(),
            false => array_value_to_string(column, row).unwrap(),
        };
        let rows = batches.iter().flat_map(|batch| {
            (0..batch.num_rows())
                .map(|row| batch.columns().iter().map(|column| value(column, row)).collect::<Vec<_>>().join("|"))
        });
        rows.collect::<Vec<_>>().join("; ")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_is_a_table() {
    let files = Files::new();
    files.run("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(8,2), day DATE, at TIMESTAMP)").await;
    files
        .run(
            "INSERT INTO t VALUES (1, 'ada', 1.50, '2024-02-29', '2024-02-29 12:00:00.5'), (2, NULL, NULL, NULL, NULL),
             (3, 'x,y\"z', -2.25, '1969-12-31', '0001-01-01 00:00:00')",
        )
        .await;
    for format in ["parquet", "csv", "ndjson", "tsv"] {
        files.run(&format!("COPY t TO '@/t.{format}'")).await;
        let query = format!("SELECT id, name, price, day::DATE, at::TIMESTAMP FROM '@/t.{format}' ORDER BY id");
        assert_eq!(
            files.rows(&query).await.replace("1.50", "1.5"),
            "1|ada|1.5|2024-02-29|2024-02-29T12:00:00.500; 2|∅|∅|∅|∅; 3|x,y\"z|-2.25|1969-12-31|0001-01-01T00:00:00",
            "{format}"
        );
        // The name of the file is the name of the table; an alias replaces it.
        assert_eq!(files.rows(&format!("SELECT t.name FROM '@/t.{format}' WHERE t.id = 1")).await, "ada");
        let join = format!("SELECT f.id FROM '@/t.{format}' AS f JOIN t USING (id) WHERE t.name = f.name ORDER BY 1");
        assert_eq!(files.rows(&join).await, "1; 3");
        let aggregate = format!("SELECT count(*), max(id), sum(price) FROM '@/t.{format}'");
        assert_eq!(files.rows(&aggregate).await, "3|3|-0.75");
    }
    // Whole numbers of text files are BIGINT, others DOUBLE PRECISION.
    let types = "SELECT arrow_typeof(id), arrow_typeof(name), arrow_typeof(price), arrow_typeof(day), arrow_typeof(at)
                 FROM '@/t.csv' LIMIT 1";
    assert_eq!(files.rows(types).await, "Int64|Utf8View|Float64|Date32|Timestamp(µs)");
    assert_eq!(
        files.rows(&types.replace("csv", "parquet")).await,
        "Int64|Utf8View|Decimal128(8, 2)|Date32|Timestamp(µs)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_use_files() {
    let files = Files::new();
    files.write("new.csv", "id,name\n1,one\n2,two\n3,three\n");
    files.run("CREATE TABLE copy AS SELECT * FROM '@/new.csv'").await;
    files.run("INSERT INTO copy SELECT id + 10, upper(name) FROM '@/new.csv' WHERE id > 1").await;
    assert_eq!(files.rows("SELECT * FROM copy ORDER BY id").await, "1|one; 2|two; 3|three; 12|TWO; 13|THREE");
    files.run("UPDATE copy SET name = 'from ' || f.name FROM '@/new.csv' AS f WHERE f.id = copy.id").await;
    files.run("DELETE FROM copy WHERE id IN (SELECT id + 10 FROM '@/new.csv')").await;
    files.run("COPY (SELECT name FROM copy UNION SELECT name FROM '@/new.csv') TO '@/out.parquet'").await;
    assert_eq!(files.rows("SELECT count(*), min(name) FROM '@/out.parquet'").await, "6|from one");
    assert_eq!(files.rows("DESCRIBE '@/new.csv'").await, "id|BIGINT|YES|∅; name|TEXT|YES|∅");
    // Two files, and one file twice.
    let both = "SELECT a.id, b.name FROM '@/new.csv' a, '@/new.csv' b, '@/out.parquet' c
                WHERE a.id = b.id AND b.name = c.name ORDER BY 1";
    assert_eq!(files.rows(both).await, "1|one; 2|two; 3|three");
    // The same text sees a changed file.
    let count = "SELECT count(*) FROM '@/new.csv' WHERE id > 0";
    assert_eq!(files.rows(count).await, "3");
    files.write("new.csv", "id,name\n7,seven\n");
    assert_eq!(files.rows(count).await, "1");
    files.run("SET keyaki.plan_cache = 'always'").await;
    assert_eq!(files.rows(count).await, "1");
    files.write("new.csv", "id,name\n8,eight\n7,seven\n");
    assert_eq!(files.rows(count).await, "2");
    files.write("new.csv", "id,name\n7,seven\n");
    assert_eq!(files.rows("WITH f AS (SELECT * FROM '@/new.csv') SELECT * FROM f").await, "7|seven");
    assert_eq!(files.rows("SELECT (SELECT max(id) FROM '@/new.csv')").await, "7");
    let in_view = "not supported: files in a view (use CREATE TABLE … AS)";
    assert_eq!(files.error("CREATE VIEW v AS SELECT * FROM '@/new.csv'").await, in_view);
    assert_eq!(
        files.error("CREATE VIEW v AS SELECT 1 WHERE 2 IN (SELECT id FROM read_csv('@/new.csv'))").await,
        in_view
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_text_files() {
    let files = Files::new();
    files.write("semicolon.txt", "a;b\n1;'x;y'\n2;\n");
    let read = "SELECT * FROM read_csv('@/semicolon.txt', delim => ';', quote => '''') ORDER BY a";
    assert_eq!(files.rows(read).await, "1|x;y; 2|∅");
    files.write("plain.csv", "1,2024-01-01,true\n2,2024-01-02,false\n");
    assert_eq!(files.rows("SELECT * FROM '@/plain.csv' ORDER BY 1").await, "1|2024-01-01|true; 2|2024-01-02|false");
    assert_eq!(files.rows("SELECT * FROM read_csv('@/plain.csv', header = true)").await, "2|2024-01-02|false");
    assert_eq!(
        files.rows("SELECT * FROM read_csv('@/plain.csv') AS p (n, day, flag) WHERE flag").await,
        "1|2024-01-01|true"
    );
    // Records of several lines, quotes, a byte order mark, line ends of Windows, no line end.
    files.write("lines.csv", "\u{feff}id,text\r\n1,\"two\nlines, \"\"quoted\"\"\"\r\n2,\r\n3,end");
    assert_eq!(
        files.rows("SELECT id, text FROM '@/lines.csv' ORDER BY id").await,
        "1|two\nlines, \"quoted\"; 2|∅; 3|end"
    );
    files.write("header.csv", "id,name\n");
    assert_eq!(files.rows("SELECT count(*), max(name) FROM '@/header.csv'").await, "0|∅");
    files.write("array.json", " [{\"a\": 1, \"b\": [1, 2]}, {\"a\": null}, {\"c\": {\"d\": \"x\"}}]");
    assert_eq!(
        files.rows("SELECT a, b[2], c.d FROM (SELECT a, b, c FROM '@/array.json') ORDER BY a, 3").await,
        "1|2|∅; ∅|∅|x; ∅|∅|∅"
    );
    assert_eq!(files.rows("SELECT count(*) FROM read_json('@/array.json')").await, "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_and_lists() {
    let files = Files::new();
    for part in 1..=12 {
        files.write(&format!("part-{part}.csv"), format!("id,v\n{part},{}\n", if part == 12 { "1.5" } else { "1" }));
        files.run(&format!("COPY (SELECT {part} AS id, {part} % 2 = 0 AS even) TO '@/p{part}.parquet'")).await;
    }
    assert_eq!(files.rows("SELECT count(*), sum(id), sum(v) FROM '@/part-*.csv'").await, "12|78|12.5");
    assert_eq!(files.rows("SELECT count(*) FILTER (WHERE even), sum(id) FROM '@/p?.parquet'").await, "4|45");
    let list = "SELECT id FROM read_parquet(['@/p3.parquet', '@/p1?.parquet']) ORDER BY id";
    assert_eq!(files.rows(list).await, "3; 10; 11; 12");
    // Columns of Parquet and JSON files are found by name, and may be missing.
    files.run("COPY (SELECT TRUE AS even, 'x' AS more, 99 AS id) TO '@/q.parquet'").await;
    let mixed = "SELECT id, even, more FROM read_parquet(['@/p12.parquet', '@/q.parquet']) ORDER BY id";
    assert_eq!(files.rows(mixed).await, "12|true|∅; 99|true|x");
    // Names of files may contain any characters.
    files.write("a b%20[1]#é.csv", "x\n1\n");
    assert_eq!(files.rows("SELECT x FROM '@/a b%20[1]#é.csv'").await, "1");
    // Columns of text files are not found by name.
    files.write("part-13.csv", "v,id\n1,2\n");
    assert_eq!(
        files.error("SELECT * FROM '@/part-*.csv'").await,
        "the columns of \"@/part-1.csv\" and \"@/part-13.csv\" differ"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_file() {
    let files = Files::new();
    files.write("a.csv", "x\n1\n");
    files.write("a.unknown", "x\n1\n");
    files.write("empty.csv", "");
    files.write("bad.parquet", "no parquet");
    files.write("bad.json", "{\"a\": 1}\n{");
    files.write("packed.csv", b"\x1f\x8b\x08rest");
    for (query, error) in [
        ("SELECT * FROM '@/missing.csv'", "could not open \"@/missing.csv\": No such file or directory"),
        ("SELECT * FROM '@/*.tsv'", "could not open \"@/*.tsv\": no file matches"),
        ("SELECT * FROM '@'", "could not open \"@\": is a directory (name its files, as in 'dir/*.parquet')"),
        ("SELECT * FROM '@/empty.csv'", "\"@/empty.csv\" has no columns"),
        (
            "SELECT * FROM read_csv('@/a.csv', headr => true)",
            "option headr not recognized by read_csv (it has header, delim, delimiter, sep, quote, escape)",
        ),
        (
            "SELECT * FROM read_csv('@/a.csv', header => 'maybe')",
            "invalid value for parameter \"HEADER\": \"maybe\" (expected true or false)",
        ),
        ("SELECT * FROM read_csv('@/a.csv', 'x')", "arguments of read_csv have the form name => value, not 'x'"),
        ("SELECT * FROM read_csv(1)", "read_csv needs the name of a file, or a list of names, not 1"),
        ("SELECT * FROM read_csv()", "read_csv needs the name of a file, or a list of names"),
        ("SELECT * FROM read_parquet('@/bad.parquet', header => true)", "not supported: HEADER except for csv"),
        ("SELECT y FROM '@/a.csv'", "column \"y\" does not exist"),
        ("SELECT * FROM read_nothing('@/a.csv')", "function read_nothing(...) does not exist"),
    ] {
        assert_eq!(files.error(query).await, error, "{query}");
    }
    for (query, part) in [
        (
            "SELECT * FROM '@/a.unknown'",
            "the name of \"@/a.unknown\" has no known extension (use read_parquet, read_csv or read_json)",
        ),
        ("SELECT * FROM '@/bad.parquet'", "\"@/bad.parquet\": "),
        ("SELECT * FROM '@/bad.json'", "\"@/bad.json\": "),
        ("SELECT * FROM '@/packed.csv'", "the file is compressed (decompress it first)"),
    ] {
        let error = files.error(query).await;
        assert!(error.contains(part) && !error.contains("nternal"), "{query}: {error}");
    }
    // A value behind the inferred ones has another type.
    let rows: String = (0..30_000).map(|i| format!("{i}\n")).collect();
    files.write("late.csv", format!("x\n{rows}text\n"));
    let error = files.error("SELECT sum(x) FROM '@/late.csv'").await;
    assert!(error.contains("of a CSV file: invalid input syntax for type bigint: \"text\""), "{error}");
}
