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
        "the columns of \"@/part-1.csv\" and \"@/part-13.csv\" differ (union_by_name => true finds columns by name)"
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
            "option headr not recognized by read_csv (perhaps you meant header)",
        ),
        (
            "SELECT * FROM read_csv('@/a.csv', header => 'maybe')",
            "invalid value for parameter \"HEADER\": \"maybe\" (expected true or false)",
        ),
        ("SELECT * FROM read_csv('@/a.csv', 'x')", "arguments of read_csv have the form name => value, not 'x'"),
        ("SELECT * FROM read_csv(1)", "read_csv needs the name of a file, or a list of names, not 1"),
        ("SELECT * FROM read_csv()", "read_csv needs the name of a file, or a list of names"),
        (
            "SELECT * FROM read_parquet('@/bad.parquet', header => true)",
            "option header not recognized by read_parquet (it has union_by_name, hive_partitioning)",
        ),
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
        ("SELECT * FROM '@/bad.json'", "@/bad.json, row 2: "),
        ("SELECT * FROM '@/packed.csv'", "the file is compressed with gzip (add the extension .gz"),
    ] {
        let error = files.error(query).await;
        assert!(error.contains(part) && !error.contains("nternal"), "{query}: {error}");
    }
    // A value behind the inferred ones has another type.
    let rows: String = (0..30_000).map(|i| format!("{i}\n")).collect();
    files.write("late.csv", format!("x\n{rows}text\n"));
    let error = files.error("SELECT sum(x) FROM '@/late.csv'").await;
    assert_eq!(
        error,
        "\"@/late.csv\", line 30002, column \"x\" with a type inferred from 20480 rows (set types, or sample_size => -1): \
         invalid input syntax for type bigint: \"text\""
    );
    assert_eq!(files.rows("SELECT max(x) FROM read_csv('@/late.csv', sample_size => -1)").await, "text");
    assert_eq!(files.rows("SELECT max(x) FROM read_csv('@/late.csv', all_varchar => true)").await, "text");
    // Columns that a query does not use are not converted.
    assert_eq!(files.rows("SELECT count(*) FROM '@/late.csv'").await, "30001");
}

#[tokio::test(flavor = "multi_thread")]
async fn types_are_inferred_without_loss() {
    let files = Files::new();
    files.write(
        "t.csv",
        "i,big,zip,f,b,d,ts,tz,t,s,none\n\
         1,12345678901234567890,007,1.5,true,2024-02-29,2024-02-29 10:00:00,2024-02-29T10:00:00Z,12:30:00,x,\n\
         -2,1,1,3,FALSE,2024-01-01,2024-01-01,2024-01-01 00:00:00+02,00:00:00,1,\n",
    );
    files.run("CREATE TABLE t AS SELECT * FROM '@/t.csv'").await;
    assert_eq!(
        files.rows("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't' ORDER BY ordinal_position").await,
        "i|bigint; big|numeric; zip|text; f|double precision; b|boolean; d|date; ts|timestamp without time zone; \
         tz|timestamp with time zone; t|time without time zone; s|text; none|text"
    );
    assert_eq!(
        files.rows("SELECT i, big, zip, f, b, d::TEXT, ts::TEXT, t::TEXT, s, none FROM t ORDER BY i").await,
        "-2|1|1|3.0|false|2024-01-01|2024-01-01 00:00:00|00:00:00|1|∅; \
         1|12345678901234567890|007|1.5|true|2024-02-29|2024-02-29 10:00:00|12:30:00|x|∅"
    );
    assert_eq!(files.rows("SELECT tz AT TIME ZONE 'UTC' FROM t WHERE i = -2").await, "2023-12-31T22:00:00");
    // A header may have equal and missing names if other rows have numbers.
    files.write("names.csv", "id,id,,name\n1,2,3,x\n");
    assert_eq!(
        files.rows("DESCRIBE '@/names.csv'").await,
        "id|BIGINT|YES|∅; id_1|BIGINT|YES|∅; column_3|BIGINT|YES|∅; name|TEXT|YES|∅"
    );
    // All files of a pattern count, and the delimiter is found.
    files.write("m1.csv", "a;b\n1;1\n");
    files.write("m2.csv", "a;b\n1,5;x\n");
    assert_eq!(files.rows("SELECT a, b FROM '@/m?.csv' ORDER BY a").await, "1|1; 1,5|x");
    files.write("pipe.txt", "a|b\n1|2\n");
    assert_eq!(files.rows("SELECT b FROM read_csv('@/pipe.txt')").await, "2");
    assert_eq!(files.rows("SELECT * FROM read_csv('@/pipe.txt', delim => ',')").await, "1|2");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_columns() {
    let files = Files::new();
    files.write("t.csv", "a,b\n1,2024-01-01\n2,\n");
    let typed = |options: &str| {
        format!("SELECT arrow_typeof(a), arrow_typeof(b), a, b FROM read_csv('@/t.csv', {options}) LIMIT 1")
    };
    for (options, expected) in [
        ("types => {'a': 'VARCHAR'}", "Utf8View|Date32|1|2024-01-01"),
        ("types = {a: INTEGER, \"B\": 'TIMESTAMP'}", "Int32|Timestamp(µs)|1|2024-01-01T00:00:00"),
        ("types => '{\"b\": \"TEXT\"}'", "Int64|Utf8View|1|2024-01-01"),
        ("dtypes => ['DECIMAL(5,2)']", "Decimal128(5, 2)|Date32|1.00|2024-01-01"),
        ("all_varchar => true", "Utf8View|Utf8View|1|2024-01-01"),
        ("all_varchar => true, types => {'a': 'SMALLINT'}", "Int16|Utf8View|1|2024-01-01"),
        ("auto_detect => false, header => true", "Utf8View|Utf8View|1|2024-01-01"),
    ] {
        assert_eq!(files.rows(&typed(options)).await, expected, "{options}");
    }
    let columns = "SELECT k, v FROM read_csv('@/t.csv', columns => {'k': 'INT', 'v': 'TEXT'}) ORDER BY k";
    assert_eq!(files.rows(columns).await, "1|2024-01-01; 2|∅");
    assert_eq!(
        files.rows("SELECT k, b FROM read_csv('@/t.csv', names => ['k']) ORDER BY k").await,
        "1|2024-01-01; 2|∅"
    );
    let named = "SELECT a, b, filename = '@/t.csv' FROM read_csv('@/t.csv', filename => true) WHERE a = 2";
    assert_eq!(files.rows(named).await, "2|∅|true");
    files.write("u.csv", "b,c\nx,1.5\n");
    let union = "read_csv(['@/t.csv', '@/u.csv'], union_by_name => true)";
    assert_eq!(files.rows(&format!("SELECT a, b, c FROM {union} ORDER BY a")).await, "1|2024-01-01|∅; 2|∅|∅; ∅|x|1.5");
    for (options, error) in [
        ("types => {'z': 'INT'}", "option types names column \"z\", but the files have a, b"),
        ("types => ['INT', 'INT', 'INT']", "the files have 2 columns, but option types has 3"),
        ("columns => {'a': 'INT'}", "the files have 2 columns, but option columns has 1"),
        ("names => ['x', 'x']", "column \"x\" specified more than once"),
        ("types => {'a': 'INT', 'a': 'TEXT'}", "column \"a\" specified more than once"),
        ("types => {'a': 'VARCHAR(3)'}", "not supported: type VARCHAR(3) for a column of a file (use TEXT and a cast)"),
        ("types => {'a': 'NUMBER'}", "not supported: type NUMBER (use numeric)"),
        (
            "sample_size => 0",
            "invalid value for parameter \"sample_size\": \"0\" (expected a number of records, or -1 for all)",
        ),
        ("skip => 'x'", "invalid value for parameter \"SKIP\": \"x\" (expected a number of lines)"),
        ("union_by_nam => true", "option union_by_nam not recognized by read_csv (perhaps you meant union_by_name)"),
        ("header => true, header => true", "option HEADER specified more than once"),
    ] {
        assert_eq!(files.error(&format!("SELECT * FROM read_csv('@/t.csv', {options})")).await, error, "{options}");
    }
    let wrong = "SELECT * FROM read_csv('@/t.csv', types => {'b': 'BIGINT'})";
    let error = files.error(wrong).await;
    assert_eq!(error, "\"@/t.csv\", line 2, column \"b\": invalid input syntax for type bigint: \"2024-01-01\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_values() {
    let files = Files::new();
    files.write("n.csv", "a,b\n1,NA\nNA,\"NA\"\n3,\n-,\"\"\n");
    for (options, expected) in [
        ("nullstr => ['NA', '-', '']", "1|∅; 3|∅; ∅|∅; ∅|∅"),
        ("nullstr => ['NA', '-']", "1|∅; 3|; ∅|; ∅|∅"),
        ("nullstr => ['NA', '-'], allow_quoted_nulls => false", "1|∅; 3|; ∅|; ∅|NA"),
    ] {
        let query = format!("SELECT a, b FROM read_csv('@/n.csv', {options}) ORDER BY a, b");
        assert_eq!(files.rows(&query).await, expected, "{options}");
    }
    assert_eq!(files.rows("SELECT max(a) FROM read_csv('@/n.csv', nullstr => 'NA')").await, "3", "texts, because of -");
    files.write("c.csv", "Report\n\n# by year\nyear,v\n2020,1 # estimated\n# none\n2021,2\n");
    let comments = "SELECT year, v FROM read_csv('@/c.csv', skip => 1, comment => '#') ORDER BY year";
    assert_eq!(files.rows(comments).await, "2020|1; 2021|2");
    files.write("d.csv", "d,t\n31/12/2024,31/12/2024 23:59\n");
    let formats = "dateformat => '%d/%m/%Y', timestampformat => '%d/%m/%Y %H:%M'";
    let dates = format!("SELECT d::TEXT, t::TEXT FROM read_csv('@/d.csv', {formats})");
    assert_eq!(files.rows(&dates).await, "2024-12-31|2024-12-31 23:59:00");
    files.run("CREATE TABLE dates (d DATE, t TIMESTAMP)").await;
    files.run("COPY dates FROM '@/d.csv' (DATEFORMAT '%d/%m/%Y', TIMESTAMPFORMAT '%d/%m/%Y %H:%M')").await;
    assert_eq!(files.rows("SELECT d::TEXT, t::TEXT FROM dates").await, "2024-12-31|2024-12-31 23:59:00");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_with_errors_are_skipped_and_counted() {
    let files = Files::new();
    let rows: String = (0..3000).map(|i| format!("{i},{}\n", if i % 1000 == 999 { "x" } else { "1" })).collect();
    files.write("e.csv", format!("a,b\n{rows}1,2,3\n\"4\"5,6\n7,y\n5008,9\n"));
    let read = "read_csv('@/e.csv', types => {'b': 'INT'}, ignore_errors => true)";
    files.session.take_notices();
    assert_eq!(files.rows(&format!("SELECT count(*), sum(b), max(a) FROM {read}")).await, "2998|3006|5008");
    let notices: Vec<String> = files.session.take_notices().into_iter().map(|notice| notice.message).collect();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].starts_with("6 rows with errors were skipped: "), "{notices:?}");
    // The rows do not depend on the columns.
    assert_eq!(files.rows(&format!("SELECT count(*) FROM {read}")).await, "2998");
    files.run("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL)").await;
    files.session.take_notices();
    files.run("COPY t FROM '@/e.csv' (IGNORE_ERRORS)").await;
    assert_eq!(files.rows("SELECT count(*), sum(b) FROM t").await, "2998|3006");
    assert_eq!(files.session.take_notices()[0].message, "6 rows with errors were skipped");
    // Constraints apply.
    files.write("v.csv", "a,b\nx,1\n5000,\n");
    let error = files.error("COPY t FROM '@/v.csv' (IGNORE_ERRORS true)").await;
    assert!(error.contains("violates not-null constraint"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_files() {
    let files = Files::new();
    files.run("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)").await;
    files.run("INSERT INTO t SELECT i, 'name ' || i FROM generate_series(1, 5000) AS s (i)").await;
    for name in ["t.csv.gz", "t.csv.zst", "t.json.gz", "t.ndjson.zst", "t.tsv.gz"] {
        files.run(&format!("COPY t TO '@/{name}'")).await;
        assert_eq!(
            files.rows(&format!("SELECT count(*), sum(id), max(name) FROM '@/{name}'")).await,
            "5000|12502500|name 999"
        );
        assert_eq!(
            files.rows(&format!("SELECT t.id FROM '@/{name}' WHERE id = 7")).await,
            "7",
            "the name of the table"
        );
        files.run(&format!("DELETE FROM t; COPY t FROM '@/{name}'")).await;
        assert_eq!(files.rows("SELECT count(*), sum(id) FROM t").await, "5000|12502500", "{name}");
    }
    files.run("COPY t TO '@/plain' (FORMAT csv, COMPRESSION gzip)").await;
    assert_eq!(files.rows("SELECT count(*) FROM read_csv('@/plain', compression => 'gzip')").await, "5000");
    files.run("DELETE FROM t; COPY t FROM '@/plain' (FORMAT csv, COMPRESSION 'gzip')").await;
    files.run("COPY t TO '@/t.tbl.zst'; DELETE FROM t; COPY t FROM '@/t.tbl.zst'").await;
    assert_eq!(files.rows("SELECT count(*) FROM t").await, "5000");
    // Damaged and incomplete files.
    for name in ["t.csv.gz", "t.csv.zst", "t.json.gz", "t.ndjson.zst"] {
        let whole = std::fs::read(files.directory.path().join(name)).unwrap();
        files.write(name, &whole[..whole.len() - 9]);
        for sql in [format!("SELECT max(name) FROM '@/{name}'"), format!("DELETE FROM t; COPY t FROM '@/{name}'")] {
            let error = files.error(&sql).await;
            assert!(error.contains("data ends early"), "{sql}: {error}");
        }
        let mut damaged = whole.clone();
        damaged[whole.len() / 2..][..20].iter_mut().for_each(|byte| *byte ^= 0xff);
        files.write(name, damaged);
        let error = files.error(&format!("SELECT max(name) FROM '@/{name}'")).await;
        assert!(error.contains(name) && !error.contains("nternal"), "{error}");
    }
    files.write("no.csv.gz", "a,b\n1,2\n");
    assert!(files.error("SELECT * FROM '@/no.csv.gz'").await.contains("the file is not compressed with gzip"));
    for (sql, error) in [
        ("COPY t TO '@/t.csv.xz'", "not supported: writing this compression (use gzip or zstd)"),
        (
            "COPY t TO '@/t.csv' (COMPRESSION snappy)",
            "not supported: this compression of text files (use gzip or zstd)",
        ),
    ] {
        assert_eq!(files.error(sql).await, error);
    }
    assert!(files.error("COPY (SELECT 1/0) TO '@/zero.csv.gz'").await.contains("division by zero"));
    let left = std::fs::read_dir(files.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("zero")), "no partial file");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_json_keep_their_meaning() {
    let files = Files::new();
    let mut text: String = (0..3).map(|i| format!("{{\"a\":{i},\"t\":\"2024-01-01 10:00:00\"}}\n")).collect();
    files.write("n.json", &text);
    assert_eq!(files.rows("SELECT sum(a), count(DISTINCT t) FROM '@/n.json'").await, "3|1");
    text.push_str("{\"a\":1.9}\n");
    files.write("n.json", &text);
    let error = files.error("SELECT sum(a) FROM read_json('@/n.json', sample_size => 2)").await;
    assert!(error.contains("row 4, column \"a\"") && error.contains("\"1.9\""), "{error}");
    assert!(files.error("SELECT a FROM read_json('@/n.json', columns => {'a': 'INT'})").await.contains("1.9"));
    let zoned = "SELECT min(t) = '2024-01-01 01:00:00Z' FROM read_json('@/n.json', columns => {'t': 'TIMESTAMPTZ'})";
    files.run("SET TIME ZONE 'Asia/Tokyo'").await;
    assert_eq!(files.rows(zoned).await, "true");
}

#[tokio::test(flavor = "multi_thread")]
async fn given_names_and_headers() {
    let files = Files::new();
    files.write("p.csv", "alice,london\nbob,paris\n");
    let columns = "columns => {'name': 'TEXT', 'city': 'TEXT'}";
    assert_eq!(files.rows(&format!("SELECT count(*), min(name) FROM read_csv('@/p.csv', {columns})")).await, "2|alice");
    assert_eq!(files.rows("SELECT count(*) FROM read_csv('@/p.csv', names => ['name', 'city'])").await, "2");
    files.write("p.csv", "Name,city\nbob,paris\n");
    assert_eq!(files.rows(&format!("SELECT count(*), min(name) FROM read_csv('@/p.csv', {columns})")).await, "1|bob");
    if let Ok(directory) = tempfile::tempdir_in("/dev/shm") {
        let path = directory.path().display();
        std::fs::write(directory.path().join("x.json"), "{\"a\":1}\n{\"a\":2}\n").unwrap();
        assert_eq!(files.rows(&format!("SELECT sum(a) FROM '{path}/x.json'")).await, "3");
        files.run(&format!("COPY (SELECT 1 AS a) TO '{path}/y.csv'")).await;
        assert_eq!(files.rows(&format!("SELECT a FROM '{path}/y.csv'")).await, "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_files_are_named() {
    let files = Files::new();
    files.write("a.db", b"SQLite format 3\0 and more");
    files.write("b.csv", b"12345678DUCK and more");
    files.write("c.csv", "PAR1 and more");
    for (query, part) in [
        ("SELECT * FROM '@/a.db'", "@/a.db: the file is an SQLite database"),
        ("SELECT * FROM read_csv('@/a.db')", "@/a.db: the file is an SQLite database"),
        ("SELECT * FROM '@/b.csv'", "@/b.csv: the file is a DuckDB database"),
        ("SELECT * FROM '@/c.csv'", "@/c.csv: the file is in Parquet format"),
    ] {
        let error = files.error(query).await;
        assert!(error.contains(part), "{query}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_permitted_files_are_opened() {
    let files = Files::new();
    let allowed = files.directory.path().join("allowed");
    std::fs::create_dir(&allowed).unwrap();
    files.write("secret.csv", "a\n1\n");
    files.run("COPY (SELECT 1 AS a) TO '@/secret.csv.gz'; COPY (SELECT 1 AS a) TO '@/secret.json'").await;
    for name in ["secret.csv", "secret.csv.gz", "secret.json"] {
        std::os::unix::fs::symlink(files.directory.path().join(name), allowed.join(name)).unwrap();
    }
    files.session.restrict_files(keyaki::FileAccess::Within(vec![allowed]));
    files.run("COPY (SELECT 1 AS a) TO '@/allowed/own.csv.gz'").await;
    assert_eq!(files.rows("SELECT a FROM '@/allowed/own.csv.gz'").await, "1");
    for sql in [
        "SELECT * FROM '@/allowed/secret.csv'",
        "SELECT * FROM '@/allowed/secret.csv.gz'",
        "SELECT * FROM '@/allowed/secret.json'",
        "SELECT * FROM read_csv(['@/allowed/own.csv.gz', '@/secret.csv'])",
        "COPY (SELECT 1) TO '@/other.csv.gz'",
        "COPY (SELECT 1) TO '/dev/stdout'",
        "COPY (SELECT 1) TO STDOUT",
    ] {
        assert!(files.error(sql).await.contains("is not permitted"), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_become_documents() {
    let files = Files::new();
    files.write(
        "n.json",
        "{\"id\": 1, \"at\": {\"x\": 1.5, \"tags\": [\"a\"]}, \"list\": [{\"k\": 1}], \"n\": [1, 2]}\n{\"id\": 2}\n",
    );
    files
        .run("COPY (SELECT * FROM (VALUES (1, 'x', 7), (2, 'y', 8)) AS v (id, name, extra)) TO '@/wide.parquet'")
        .await;
    files.run("CREATE TABLE n AS SELECT * FROM '@/n.json'").await;
    assert_eq!(
        files.rows("SELECT id, at ->> 'x', at -> 'tags' ->> 0, list -> 0 ->> 'k', n[2] FROM n ORDER BY id").await,
        "1|1.5|a|1|2; 2|∅|∅|∅|∅"
    );
    // Columns that the statement does not list stay in the file.
    files.run("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, price BIGINT DEFAULT 3)").await;
    let error = files.error("COPY t FROM '@/wide.parquet'").await;
    assert!(error.contains("column \"extra\" of relation \"t\" does not exist"), "{error}");
    files.run("COPY t (id, name) FROM '@/wide.parquet'").await;
    assert_eq!(files.rows("SELECT * FROM t ORDER BY id").await, "1|x|3; 2|y|3");
    let error = files.error("COPY t (id, price) FROM '@/wide.parquet'").await;
    assert!(error.contains("the file has no column \"price\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_inserted_by_name() {
    let files = Files::new();
    files.write("t.csv", "Name,ID\nx,1\ny,2\n");
    files.run("CREATE TABLE t (id BIGINT PRIMARY KEY, price BIGINT DEFAULT 9, name TEXT)").await;
    files.run("INSERT INTO t BY NAME SELECT * FROM '@/t.csv'").await;
    assert_eq!(files.rows("SELECT * FROM t ORDER BY id").await, "1|9|x; 2|9|y");
}
