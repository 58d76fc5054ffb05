//! EXPORT DATABASE and IMPORT DATABASE: the copy has the same definitions and rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::row::{RowConverter, SortField};
use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use keyaki::{Connection, Options};

fn options() -> Options {
    Options { memory_bytes: Some(64 << 20), ..Options::default() }
}

fn export(connection: &Connection, directory: &Path) -> keyaki::Result<Vec<(String, i64)>> {
    rows_of_tables(connection, "EXPORT", directory)
}

fn import(connection: &Connection, directory: &Path) -> keyaki::Result<Vec<(String, i64)>> {
    rows_of_tables(connection, "IMPORT", directory)
}

fn rows_of_tables(connection: &Connection, statement: &str, directory: &Path) -> keyaki::Result<Vec<(String, i64)>> {
    let sql = format!("{statement} DATABASE '{}'", directory.display().to_string().replace('\'', "''"));
    connection.query_map(&sql, (), |row| Ok((row.get("table_name")?, row.get("rows")?)))?.collect()
}

fn file(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap()
}

/// The rows of all tables and views, sorted, in a form that is equal for identical values only.
fn contents(connection: &Connection) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut contents = BTreeMap::new();
    for table in connection.database().tables() {
        if table.schema.starts_with("pg_temp") {
            continue;
        }
        let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let name = format!("{}.{}", quote(&table.schema), quote(&table.name));
        let batches = connection.query_arrow(&format!("SELECT * FROM {name}"), ()).unwrap();
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for batch in batches {
            let batch = batch.unwrap();
            rows.push(format!("{:?}", batch.schema()).into_bytes());
            let fields = batch.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
            let converter = RowConverter::new(fields).unwrap();
            let converted = converter.convert_columns(batch.columns()).unwrap();
            rows.extend(converted.iter().map(|row| row.as_ref().to_vec()));
        }
        rows.sort();
        rows.dedup_by(|a, b| a == b && a.starts_with(b"Schema"));
        contents.insert(name, rows);
    }
    contents
}

/// Exports a database, imports it into another one, and compares both. Returns the other one.
fn copied(connection: &Connection, directory: &Path) -> Connection {
    let (first, second) = (directory.join("it's \"one\""), directory.join("two"));
    let exported = export(connection, &first).unwrap();
    let copy = Connection::open_with(directory.join("copy"), options()).unwrap();
    assert_eq!(import(&copy, &first).unwrap(), exported);
    assert_eq!(contents(&copy), contents(connection));
    assert_eq!(export(&copy, &second).unwrap(), exported);
    for script in ["schema.sql", "finish.sql"] {
        assert_eq!(file(&second, script), file(&first, script));
    }
    for checked in copy.query("CHECK DATABASE", ()).unwrap().mapped(|row| row.get::<_, Option<String>>("problem")) {
        assert_eq!(checked.unwrap(), None);
    }
    copy
}

/// Columns of all types, and rows with values at the limits of the types and with NULL.
const TYPES: &str = r#"
    CREATE TABLE types (id INT PRIMARY KEY, b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INTEGER, i8 BIGINT, r REAL,
        d DOUBLE PRECISION, n DECIMAL(38, 10), n2 DECIMAL(5, 2), n3 NUMERIC(38, 38), t TEXT, v VARCHAR(5), c CHAR(3), y BYTEA, day DATE,
        clock TIME, at TIMESTAMP, atz TIMESTAMPTZ, u UUID, span INTERVAL, doc JSON);
    INSERT INTO types (id) VALUES (0);
    INSERT INTO types VALUES
        (1, true, -128, -32768, -2147483648, -9223372036854775808, '-Infinity', '-Infinity',
         -9999999999999999999999999999.9999999999, -999.99, -0.99999999999999999999999999999999999999, '', '', '', '\x', '4713-01-01 BC', '00:00',
         '290000-01-01 BC', '290000-01-01 00:00:00+00 BC', '00000000-0000-0000-0000-000000000000',
         '-178956970 years -8 mons -2147483648 days -2562047:47:16.854775', '{"b": 1,  "a": [null], "b": 2}'),
        (2, false, 127, 32767, 2147483647, 9223372036854775807, 'Infinity', 'Infinity',
         9999999999999999999999999999.9999999999, 999.99, 0.99999999999999999999999999999999999999, E'a''b"c\\d\n\t🌳', 'äöüß€', 'xyz', '\x00ff2722', '9999-12-31',
         '23:59:59.999999', '294000-12-31 23:59:59.999999', '294000-12-31 23:59:59.999999+00',
         'ffffffff-ffff-ffff-ffff-ffffffffffff', '178956970 years 7 mons 2147483647 days 2562047:47:16.854775', 'null'),
        (3, NULL, 0, 0, 0, 0, 'NaN', 'NaN', 0.0000000001, -0.01, 0, repeat('long ', 100), NULL, ' x ', '\x5c78', '1969-12-31',
         '12:00:00.000001', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999-12', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
         '-1 mons +1 day -00:00:00.000001', '""'),
        (4, NULL, 1, 1, 1, 1, '-0', -0.0, 1e-10, 0, 1e-38, 'NULL', 'NULL', '\N', '\000', '2024-02-29', '09:30', '2024-02-29 12:00',
         '2024-02-29 12:00:00+05:30', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', '0', '{"a": "\u00e4 \" \\ "}'),
        (5, NULL, 1, 1, 1, 1, 1e-45, 4.9e-324, 0, 0, 0, '', '', '', '', '2024-02-29', '09:30', '2024-02-29 12:00',
         '2024-02-29 12:00:00+05:30', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', '1 mon -1 days', '[]'),
        (6, NULL, 1, 1, 1, 1, 3.4028235e38, 1.7976931348623157e308, 0, 0, 0, '', '', '', '', '2024-02-29', '09:30', '2024-02-29 12:00',
         '2024-02-29 12:00:00+05:30', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', '1 year -13 mons', '[]');
    CREATE TABLE arrays (b BOOLEAN[], i1 TINYINT[], i8 BIGINT[], r REAL[], d DOUBLE PRECISION[], n DECIMAL(38, 10)[], t TEXT[], y BYTEA[],
        day DATE[], clock TIME[], at TIMESTAMP[], atz TIMESTAMPTZ[], u UUID[], span INTERVAL[], doc JSON[], nested INT[][]);
    INSERT INTO arrays (b) VALUES (NULL), ('{}'), ('{true,NULL,false}');
    INSERT INTO arrays VALUES ('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}');
    INSERT INTO arrays SELECT array_agg(b), array_agg(i1), array_agg(i8), array_agg(r), array_agg(d), array_agg(n), array_agg(t),
        array_agg(y), array_agg(day), array_agg(clock), array_agg(at), array_agg(atz), array_agg(u), array_agg(span),
        NULL, ARRAY[ARRAY[1, NULL], ARRAY[]::INT[], NULL] FROM types;
"#;

#[test]
fn values_of_all_types_stay_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    connection.execute_batch(TYPES).unwrap();
    let copy = copied(&connection, directory.path());
    let rows: i64 =
        copy.query_row("SELECT count(*) FROM types WHERE d = '-Infinity' OR d = 'NaN'", (), |r| r.get(0)).unwrap();
    assert_eq!(rows, 2);
}

const OBJECTS: &str = r#"
    CREATE SCHEMA s; CREATE SCHEMA "S t"; COMMENT ON SCHEMA s IS 'it''s a schema'; COMMENT ON SCHEMA public IS 'öffentlich';
    CREATE SEQUENCE plain; CREATE SEQUENCE s."Odd 'one'" INCREMENT BY -3 MINVALUE -20 MAXVALUE 7 START WITH 5 CYCLE;
    CREATE SEQUENCE used; CREATE SEQUENCE small AS SMALLINT MAXVALUE 3; CREATE SEQUENCE low MINVALUE -9223372036854775808 START -9223372036854775808;
    CREATE SEQUENCE set_only; CREATE SEQUENCE restarted START 10;
    SELECT nextval('used') FROM generate_series(1, 5); SELECT nextval('small') FROM generate_series(1, 3); SELECT nextval('low');
    SELECT nextval('s."Odd ''one''"') FROM generate_series(1, 4); SELECT setval('set_only', 44, false);
    SELECT nextval('restarted'); ALTER SEQUENCE restarted RESTART WITH 12;
    COMMENT ON SEQUENCE s."Odd 'one'" IS 'counts'; COMMENT ON SEQUENCE plain IS '';

    CREATE TABLE "table" ("select" INT PRIMARY KEY, "Upper Case" TEXT NOT NULL DEFAULT 'it''s', "quote""d" VARCHAR(9) UNIQUE,
        "ünï" NUMERIC(9, 2) CHECK ("ünï" > 0), "check" INT DEFAULT nextval('used'), "primary" DATE DEFAULT current_date,
        CONSTRAINT "Key 2" UNIQUE ("ünï", "Upper Case"), CONSTRAINT positive CHECK ("check" IS NULL OR "check" >= 0));
    INSERT INTO "table" ("select", "quote""d", "ünï") SELECT value, 'q' || value, value + 0.25 FROM generate_series(1, 100);
    CREATE INDEX "Index of ""t""" ON "table" ("Upper Case" DESC, "check") INCLUDE ("ünï");
    COMMENT ON TABLE "table" IS 'a table'; COMMENT ON COLUMN "table"."quote""d" IS 'it''s quoted'; COMMENT ON INDEX "Key 2" IS 'unique';

    CREATE TABLE s."table" (a INT, b TEXT, CONSTRAINT pk PRIMARY KEY (b, a));
    CREATE TABLE "S t"."Empty" (a INT, "A" INT, "a.b" TEXT);
    CREATE TABLE no_key (a INT, b TEXT); INSERT INTO no_key SELECT 5 - value, 'x' FROM generate_series(1, 9); INSERT INTO no_key VALUES (NULL, NULL);

    CREATE TABLE always (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a INT);
    CREATE TABLE by_default (id INT GENERATED BY DEFAULT AS IDENTITY (START WITH 100 INCREMENT BY 5 MAXVALUE 1000 CYCLE), a INT,
        down SMALLINT GENERATED ALWAYS AS IDENTITY (INCREMENT BY -1), s SERIAL);
    INSERT INTO always (a) VALUES (1), (2), (3); DELETE FROM always WHERE id = 2; INSERT INTO by_default (a) VALUES (1), (2);
    CREATE TABLE s.unused (id BIGINT GENERATED ALWAYS AS IDENTITY);
    COMMENT ON SEQUENCE always_id_seq IS 'of an identity column';

    CREATE TABLE generated (id INT PRIMARY KEY, a INT, double INT GENERATED ALWAYS AS (a * 2) STORED, name TEXT,
        upper TEXT GENERATED ALWAYS AS (upper(name)) STORED CHECK (upper <> 'X'));
    INSERT INTO generated (id, a, name) VALUES (1, 5, 'five'), (2, NULL, NULL);

    CREATE TABLE indexed (id BIGINT PRIMARY KEY, n INT, t TEXT, at TIMESTAMP, gone INT, doc JSON);
    INSERT INTO indexed SELECT value, value % 10, 'text ' || value, timestamp '2024-01-01' + interval '1 hour' * value, 1, '{"a": 1}'
        FROM generate_series(1, 3000);
    ALTER TABLE indexed DROP COLUMN gone;
    CREATE INDEX indexed_lower ON indexed (lower(t), (n + 1)); CREATE UNIQUE INDEX indexed_partial ON indexed (t) WHERE n > 5 AND t LIKE 'text%';
    CREATE INDEX indexed_masstree ON indexed USING masstree (n); CREATE INDEX indexed_vast ON indexed USING vast (at, n) WITH (goal = 'fast', memory = '1 MiB');
    CREATE INDEX indexed_desc ON indexed (n DESC); CREATE INDEX indexed_doc ON indexed ((doc ->> 'a'));
    COMMENT ON INDEX indexed_lower IS 'in lower case';

    CREATE TABLE tree (id INT PRIMARY KEY, parent INT REFERENCES tree (id) ON DELETE CASCADE, "order" INT);
    INSERT INTO tree VALUES (1, NULL, NULL), (2, 1, NULL), (3, 2, NULL);
    CREATE TABLE chicken (id INT PRIMARY KEY, egg INT, code TEXT, kind TEXT); CREATE UNIQUE INDEX chicken_code ON chicken (code, kind);
    CREATE TABLE egg (id INT PRIMARY KEY, chicken INT REFERENCES chicken ON UPDATE CASCADE ON DELETE SET NULL, kind TEXT, code TEXT,
        CONSTRAINT "of code" FOREIGN KEY (kind, code) REFERENCES chicken (kind, code) ON DELETE SET DEFAULT ON UPDATE RESTRICT);
    INSERT INTO chicken VALUES (1, NULL, 'c', 'k'), (2, NULL, NULL, NULL); INSERT INTO egg VALUES (7, 1, 'k', 'c'); UPDATE chicken SET egg = 7 WHERE id = 1;
    ALTER TABLE chicken ADD CONSTRAINT chicken_egg FOREIGN KEY (egg) REFERENCES egg (id);
    CREATE TABLE s.child (id INT REFERENCES "table" ("select"), b TEXT, a INT, FOREIGN KEY (b, a) REFERENCES s."table");

    CREATE VIEW z_first AS SELECT "select" AS a, "Upper Case" FROM "table" WHERE "select" < 50;
    CREATE VIEW s."View 2" (x, "Y z") AS SELECT a, count(*) FROM z_first GROUP BY a;
    CREATE VIEW a_last AS WITH w AS (SELECT * FROM s."View 2") SELECT w.x, t.b FROM w LEFT JOIN s."table" t ON t.a = w.x
        WHERE w.x IN (SELECT a FROM z_first) ORDER BY 1 LIMIT 10;
    CREATE VIEW texts AS SELECT E'it''s\n' AS e, $$dollar$$ AS d, 'a' || 'b' AS c, '{"a": 1}'::json ? 'a' AS has, date '2024-01-01' + interval '1 day' AS day;
    COMMENT ON VIEW a_last IS 'the last view';

    CREATE TEMPORARY TABLE passing (a INT); INSERT INTO passing VALUES (1); CREATE TEMPORARY SEQUENCE passing_sequence;
    CREATE TEMPORARY VIEW passing_view AS SELECT * FROM passing
"#;

#[test]
fn all_objects_stay_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    connection.execute_batch(OBJECTS).unwrap();
    // Settings of the session make no difference.
    connection.execute_batch("SET search_path = s; SET TIME ZONE 'Asia/Tokyo'").unwrap();
    let copy = copied(&connection, directory.path());
    let dump = directory.path().join("two");
    for script in [file(&dump, "schema.sql"), file(&dump, "finish.sql"), file(&dump, "manifest.json")] {
        assert!(!script.contains("passing") && !script.contains("pg_temp"), "{script}");
    }
    let described = |connection: &Connection, sql: &str| -> Vec<String> {
        let rows = connection.query_map(sql, (), |row| row.get::<_, Option<String>>(0)).unwrap();
        rows.map(|row| row.unwrap().unwrap_or_default()).collect()
    };
    for sql in [
        "SELECT concat_ws('|', schema_name, object_type, object_name, column_name, comment) AS c FROM keyaki_comments ORDER BY c",
        "SELECT concat_ws('|', table_schema, table_name, column_name, data_type, is_nullable, column_default, is_identity, generation_expression)
         FROM information_schema.columns WHERE table_schema NOT LIKE 'pg_temp%' ORDER BY table_schema, table_name, ordinal_position",
    ] {
        let expected = described(&connection, sql);
        assert!(expected.len() > 5, "{expected:?}");
        assert_eq!(described(&copy, sql), expected);
    }
    // Both continue in the same way.
    connection.execute("SET search_path = public", ()).unwrap();
    for sql in [
        "SELECT nextval('plain')",
        "SELECT nextval('used')",
        "SELECT nextval('low')",
        "SELECT nextval('set_only')",
        "SELECT nextval('restarted')",
        "SELECT nextval('s.\"Odd ''one''\"')",
        "INSERT INTO always (a) VALUES (9) RETURNING id",
        "INSERT INTO by_default (a) VALUES (9) RETURNING id + 1000 * down + 1000000 * s",
        "INSERT INTO s.unused DEFAULT VALUES RETURNING id",
        "INSERT INTO \"table\" (\"select\") VALUES (1000) RETURNING \"check\"",
        "INSERT INTO generated (id, a) VALUES (3, 7) RETURNING double",
        "DELETE FROM tree WHERE id = 1 RETURNING id",
        "SELECT count(*) FROM tree",
        "SELECT count(*) FROM indexed WHERE lower(t) = 'text 77' AND n + 1 = 8",
    ] {
        let value = |connection: &Connection| {
            connection.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
        };
        assert_eq!(value(&copy), value(&connection), "{sql}");
    }
    for (sql, code) in [
        ("INSERT INTO always VALUES (99, 1)", "428C9"),
        ("SELECT nextval('small')", "2200H"),
        ("INSERT INTO generated (id, name) VALUES (4, 'x')", "23514"),
        ("INSERT INTO \"table\" (\"select\", \"quote\"\"d\") VALUES (2000, 'q7')", "23505"),
        ("INSERT INTO indexed (id, n, t) VALUES (0, 6, 'text 6')", "23505"),
        ("INSERT INTO s.child (id) VALUES (-1)", "23503"),
        ("DELETE FROM egg WHERE id = 7", "23503"),
    ] {
        let error = copy.execute(sql, ()).expect_err(sql);
        assert_eq!(error.sqlstate().code(), code, "{sql}: {error}");
    }
}

/// Sequences of identity columns keep their names, which defaults of other tables use.
#[test]
fn renamed_identity_columns_keep_their_sequences() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    let script = "CREATE SEQUENCE taken_id_seq; CREATE TABLE taken (id BIGINT GENERATED ALWAYS AS IDENTITY);
        CREATE TABLE swapped (a INT GENERATED ALWAYS AS IDENTITY, b INT GENERATED ALWAYS AS IDENTITY, c TEXT);
        ALTER TABLE swapped RENAME COLUMN a TO x; ALTER TABLE swapped RENAME COLUMN b TO a; ALTER TABLE swapped RENAME COLUMN x TO b;
        CREATE TABLE old (id INT GENERATED BY DEFAULT AS IDENTITY, name TEXT); ALTER TABLE old RENAME TO new;
        CREATE TABLE early (a BIGINT DEFAULT nextval('old_id_seq'), b BIGINT DEFAULT nextval('\"Own\"'), id INT GENERATED ALWAYS AS IDENTITY);
        CREATE TABLE own (id INT GENERATED ALWAYS AS IDENTITY (INCREMENT BY 2)); ALTER SEQUENCE own_id_seq RENAME TO \"Own\";
        ALTER SEQUENCE early_id_seq RENAME TO later_id_seq; CREATE TABLE later (id INT GENERATED ALWAYS AS IDENTITY, n INT);
        INSERT INTO new (name) VALUES ('a'), ('b'); INSERT INTO swapped (c) VALUES ('x'); ALTER TABLE swapped ALTER COLUMN a RESTART WITH 50;
        INSERT INTO later (n) VALUES (1), (2), (3)";
    connection.execute_batch(script).unwrap();
    let copy = copied(&connection, directory.path());
    for sql in [
        "INSERT INTO early DEFAULT VALUES RETURNING a * 10000 + b * 100 + id",
        "INSERT INTO swapped (c) VALUES ('x') RETURNING a * 100 + b",
        "SELECT nextval('later_id_seq') + 100 * nextval('later_id_seq1') + 10000 * nextval('taken_id_seq1')",
        "SELECT nextval('\"Own\"')",
    ] {
        let value = |connection: &Connection| {
            connection.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
        };
        assert_eq!(value(&copy), value(&connection), "{sql}");
    }
}

/// Definitions are shown so that they can be read again, whatever the names.
#[test]
fn all_keywords_can_be_names() {
    let connection = Connection::open_temporary().unwrap();
    let mut wrong = Vec::new();
    for word in ALL_KEYWORDS.iter().map(|word| word.to_ascii_lowercase()) {
        let script = format!(
            "CREATE TABLE \"{word}\" (x INT DEFAULT 1, \"{word} 2\" INT, CONSTRAINT \"{word} 3\" CHECK (x > 0), CONSTRAINT \"{word} 4\" UNIQUE (x),
                 y INT GENERATED ALWAYS AS (x + 1) STORED);
             CREATE INDEX \"{word} 5\" ON \"{word}\" (\"{word} 2\", x) INCLUDE (y) WHERE x > 5; CREATE INDEX \"{word} 6\" ON \"{word}\" ((x * 2), y);
             COMMENT ON COLUMN \"{word}\".x IS 'c'; ALTER TABLE \"{word}\" RENAME COLUMN x TO \"{word}\";
             ALTER TABLE \"{word}\" RENAME CONSTRAINT \"{word} 3\" TO \"{word}\""
        );
        connection.execute_batch(&script).unwrap_or_else(|error| panic!("{word}: {error}"));
        let show = || {
            connection.query_row(&format!("SHOW CREATE TABLE \"{word}\""), (), |row| row.get::<_, String>(1)).unwrap()
        };
        let before = show();
        connection.execute(&format!("DROP TABLE \"{word}\""), ()).unwrap();
        let problem = match connection.execute_batch(&before) {
            Err(error) => Some(error.to_string()),
            Ok(()) if show() != before => Some(show()),
            Ok(()) => None,
        };
        wrong.extend(problem.map(|problem| format!("{word}: {problem}")));
        connection.execute(&format!("DROP TABLE IF EXISTS \"{word}\""), ()).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Exports beside a writer have the state of one moment.
#[test]
fn exports_beside_writers_are_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    let script = "CREATE TABLE accounts (id INT PRIMARY KEY, total BIGINT); INSERT INTO accounts SELECT value, 100 FROM generate_series(1, 500);
        CREATE TABLE moves (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, source INT, target INT); CREATE TABLE z_count (n BIGINT); INSERT INTO z_count VALUES (0)";
    connection.execute_batch(script).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = connection.try_clone().unwrap();
        let done = &done;
        scope.spawn(move || {
            for round in 0_i64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let (source, target) = (round * 7 % 500 + 1, round * 13 % 500 + 1);
                let transaction = writer.transaction().unwrap();
                transaction.execute("UPDATE accounts SET total = total - 5 WHERE id = $1", (source,)).unwrap();
                transaction.execute("UPDATE accounts SET total = total + 5 WHERE id = $1", (target,)).unwrap();
                transaction.execute("INSERT INTO moves (source, target) VALUES ($1, $2)", (source, target)).unwrap();
                transaction.execute("UPDATE z_count SET n = n + 1", ()).unwrap();
                transaction.commit().unwrap();
            }
        });
        for round in 0..5 {
            std::thread::sleep(Duration::from_millis(20));
            let dump = directory.path().join(format!("dump{round}"));
            export(&connection, &dump).unwrap();
            let copy = Connection::open_temporary().unwrap();
            import(&copy, &dump).unwrap();
            let number = |sql: &str| copy.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(number("SELECT sum(total)::BIGINT FROM accounts"), 50_000);
            assert_eq!(number("SELECT count(*) FROM moves"), number("SELECT n FROM z_count"));
            let last = number("SELECT coalesce(max(id), 0) FROM moves");
            assert!(number("INSERT INTO moves (source, target) VALUES (1, 1) RETURNING id") > last);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A database with some rows, and its export.
fn exported(directory: &Path) -> PathBuf {
    let connection = Connection::open_with(directory.join("db"), options()).unwrap();
    let script = "CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, 1000);
        CREATE TABLE u (id INT REFERENCES t (id)); INSERT INTO u VALUES (7); CREATE VIEW v AS SELECT * FROM t";
    connection.execute_batch(script).unwrap();
    let dump = directory.join("dump");
    assert_eq!(export(&connection, &dump).unwrap(), [("t".into(), 1000), ("u".into(), 1)]);
    let again = export(&connection, &dump).unwrap_err().to_string();
    assert!(again.contains("the directory has files"), "{again}");
    let missing = export(&connection, &directory.join("no").join("dump")).unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
    std::fs::create_dir(directory.join("empty")).unwrap();
    export(&connection, &directory.join("empty")).unwrap();
    for statement in ["EXPORT", "IMPORT"] {
        connection.execute("BEGIN", ()).unwrap();
        let inside = connection.execute(&format!("{statement} DATABASE 'x'"), ()).unwrap_err();
        assert_eq!(inside.sqlstate().code(), "25001", "{inside}");
        connection.execute("ROLLBACK", ()).unwrap();
    }
    connection.execute("CREATE TABLE generated (a INT GENERATED ALWAYS AS (1) STORED)", ()).unwrap();
    let refused = export(&connection, &directory.join("refused")).unwrap_err();
    assert_eq!(refused.sqlstate().code(), "0A000", "{refused}");
    connection.execute("DROP TABLE generated", ()).unwrap();
    // A view that is not valid any more.
    connection
        .execute_batch("CREATE VIEW w AS SELECT name FROM v; CREATE OR REPLACE VIEW v AS SELECT id FROM t")
        .unwrap();
    let invalid = export(&connection, &directory.join("invalid")).unwrap_err().to_string();
    assert!(invalid.starts_with("view \"w\"") && !directory.join("invalid").exists(), "{invalid}");
    let hidden = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(hidden.into_iter().all(|name| !name.to_string_lossy().starts_with('.')));
    dump
}

#[test]
fn damaged_exports_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let dump = exported(directory.path());
    let refused = |expected: &str| {
        let connection = Connection::open_temporary().unwrap();
        let error = import(&connection, &dump).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let table = dump.join("data").join("1-t.parquet");
    let changed = |path: &Path, change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let before = std::fs::read(path).unwrap();
        let mut bytes = before.clone();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
        refused(expected);
        std::fs::write(path, before).unwrap();
    };
    let replaced = |old: &'static str, new: &'static str| {
        move |bytes: &mut Vec<u8>| *bytes = String::from_utf8(bytes.clone()).unwrap().replace(old, new).into_bytes()
    };
    let manifest = dump.join("manifest.json");
    changed(&table, &|bytes| bytes.truncate(bytes.len() / 2), "the manifest says");
    changed(&table, &|bytes| bytes.fill(0), "1-t.parquet");
    changed(&manifest, &replaced("\"rows\": 1000", "\"rows\": 1001"), "the file has 1000 rows, the manifest says 1001");
    changed(&manifest, &replaced("\"format\": 1", "\"format\": 9"), "version 9");
    changed(&manifest, &|bytes| bytes.truncate(40), "the manifest is damaged");
    changed(&manifest, &replaced("\"t\"", "\"other\""), "relation \"other\" does not exist");
    changed(&dump.join("schema.sql"), &replaced("CREATE TABLE u", "CREATE TABLEAU u"), "schema.sql, line");
    changed(
        &dump.join("finish.sql"),
        &replaced("REFERENCES t", "REFERENCES nowhere"),
        "finish.sql, line 3: relation \"nowhere\" does not exist",
    );
    changed(&dump.join("finish.sql"), &|bytes| bytes.push(0xff), "UTF-8");
    let connection = Connection::open_temporary().unwrap();
    connection.execute("SET default_transaction_read_only = on", ()).unwrap();
    assert_eq!(import(&connection, &dump).unwrap_err().sqlstate().code(), "25006");
    connection.execute("SET default_transaction_read_only = off", ()).unwrap();
    import(&connection, &dump).unwrap();
    let again = import(&connection, &dump).unwrap_err().to_string();
    assert!(again.contains("schema.sql, line 3") && again.contains("already exists"), "{again}");
    std::fs::remove_file(&manifest).unwrap();
    refused("not a complete export");
    std::fs::remove_dir_all(&dump).unwrap();
    refused("No such file");
}

/// An interrupt either leaves no directory, or comes too late: the export is complete then.
#[test]
fn interrupted_exports_leave_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    let script = "CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, 30000);
        CREATE INDEX t_name ON t (name)";
    connection.execute_batch(script).unwrap();
    for round in 0..20 {
        let dump = directory.path().join(format!("dump{round}"));
        let handle = connection.interrupt_handle();
        let interrupt = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round * 4));
            handle.interrupt();
        });
        let result = export(&connection, &dump);
        interrupt.join().unwrap();
        match result {
            Ok(_) => assert!(dump.join("manifest.json").exists()),
            Err(error) => {
                assert_eq!(error.sqlstate().code(), "57014", "{error}");
                // An interrupt of the call that reads the result comes after the statement.
                if dump.exists() {
                    let copy = Connection::open_temporary().unwrap();
                    assert_eq!(import(&copy, &dump).unwrap(), [("t".to_string(), 30_000)]);
                }
            }
        }
    }
    let dump = directory.path().join("dump");
    export(&connection, &dump).unwrap();
    let names = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // The threads that write end after the statements.
    let is_clean = || names().all(|name| !name.to_string_lossy().starts_with('.'));
    let becomes_clean = || {
        std::thread::sleep(Duration::from_millis(20));
        is_clean()
    };
    assert!(is_clean() || (0..100).any(|_| becomes_clean()));
    for round in 0..10 {
        let copy = Connection::open_temporary().unwrap();
        let handle = copy.interrupt_handle();
        let interrupt = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round * 20));
            handle.interrupt();
        });
        let result = import(&copy, &dump);
        interrupt.join().unwrap();
        match result {
            Ok(rows) => assert_eq!(rows, [("t".to_string(), 30_000)]),
            Err(error) => assert_eq!(error.sqlstate().code(), "57014", "{error}"),
        }
        // The session stays usable.
        copy.execute("CREATE TABLE more (a INT)", ()).unwrap();
    }
}
