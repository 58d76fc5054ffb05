//! Changed definitions: ALTER TABLE, TRUNCATE, CHECK and DEFAULT in all states of a table, beside open snapshots, prepared
//! statements and concurrent readers, and on all paths that write.

use std::sync::atomic::{AtomicBool, Ordering};

use keyaki::{Connection, Error, Options, Result};

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn state(result: Result<u64>) -> String {
    result.map(|_| String::new()).unwrap_or_else(|error| error.sqlstate().code().to_string())
}

/// A table of 5,000 rows with an index of each kind, and a table without a primary key.
const TABLES: &str = "
    CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT NOT NULL, b TEXT, CHECK (a >= 0));
    CREATE INDEX t_a ON t (a) INCLUDE (b);
    CREATE UNIQUE INDEX t_m ON t USING masstree (a, id);
    CREATE INDEX t_v ON t USING vast (a);
    CREATE TABLE h (a BIGINT, b TEXT);
    CREATE INDEX h_a ON h (a);
    INSERT INTO t SELECT value, value * 2, 'row ' || value FROM generate_series(1, 5000);
    INSERT INTO h SELECT value * 2, 'row ' || value FROM generate_series(1, 5000);";

/// All access paths of both tables give the same answers.
fn check_paths(connection: &Connection, rows: i64) {
    for table in ["t", "h"] {
        assert_eq!(number(connection, &format!("SELECT count(*) FROM {table}")), rows, "{table}");
        assert_eq!(number(connection, &format!("SELECT count(*) FROM {table} WHERE a >= 0")), rows, "{table}");
        assert_eq!(number(connection, &format!("SELECT count(b) FROM {table} WHERE a + 0 >= 0")), rows, "{table}");
        let found = connection.query_map(&format!("SELECT b FROM {table} WHERE a = 84"), (), |row| row.get(0)).unwrap();
        let found: Vec<String> = found.collect::<Result<_>>().unwrap();
        assert_eq!(found, if rows > 0 { vec!["row 42"] } else { Vec::new() }, "{table}");
    }
    for index in ["t_a", "t_m", "t_v"] {
        let sql = format!("SELECT entries FROM keyaki_indexes WHERE index_name = '{index}'");
        assert_eq!(number(connection, &sql), rows, "{index}");
    }
}

const CHANGES: [&str; 4] = [
    "ALTER TABLE t ADD COLUMN c BIGINT DEFAULT 3, ADD COLUMN u TEXT DEFAULT uuid()",
    "ALTER TABLE h ADD COLUMN c BIGINT DEFAULT 3, ALTER COLUMN b SET NOT NULL",
    "ALTER TABLE t DROP COLUMN u, ALTER COLUMN c TYPE TEXT USING 'c' || c",
    "ALTER TABLE h DROP COLUMN c, ADD CHECK (a > 0)",
];

#[test]
fn tables_change_in_every_state() {
    for (checkpoint, reopen) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut connection = Connection::open(&path).unwrap();
        connection.execute_batch(TABLES).unwrap();
        for change in CHANGES {
            if checkpoint {
                connection.execute("CHECKPOINT", ()).unwrap();
            }
            if reopen {
                drop(connection);
                connection = Connection::open(&path).unwrap();
            }
            connection.execute(change, ()).unwrap_or_else(|error| panic!("{change}: {error}"));
            check_paths(&connection, 5000);
        }
        assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE c = 'c3'"), 5000);
        connection.execute("TRUNCATE t, h", ()).unwrap();
        check_paths(&connection, 0);
        drop(connection);
        let connection = Connection::open(&path).unwrap();
        check_paths(&connection, 0);
        connection.execute("INSERT INTO t (id, a, b) VALUES (42, 84, 'row 42')", ()).unwrap();
        connection.execute("INSERT INTO h (a, b) VALUES (84, 'row 42')", ()).unwrap();
        check_paths(&connection, 1);
        assert_eq!(state(connection.execute("INSERT INTO h (a, b) VALUES (0, 'x')", ())), "23514");
        assert_eq!(state(connection.execute("INSERT INTO h (a, b) VALUES (1, NULL)", ())), "23502");
        assert_eq!(state(connection.execute("INSERT INTO t (id, a, b) VALUES (1, -1, 'x')", ())), "23514");
        assert_eq!(state(connection.execute("INSERT INTO t (id, a, b) VALUES (42, 1, 'x')", ())), "23505");
    }
}

#[test]
fn large_tables_are_rebuilt_in_bulk() {
    let connection = Connection::open_temporary().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT UNIQUE, b TEXT);
             CREATE INDEX t_m ON t USING masstree (b);
             CREATE UNIQUE INDEX t_u ON t USING masstree (a, b);
             INSERT INTO t SELECT value, value, 'b' || value % 100 FROM generate_series(1, 250000)",
        )
        .unwrap();
    connection.execute("ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 7 CHECK (c < 10)", ()).unwrap();
    assert_eq!(number(&connection, "SELECT sum(c) FROM t"), 1_750_000);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE b = 'b7'"), 2_500);
    let error = connection.execute("ALTER TABLE t ADD COLUMN d BIGINT DEFAULT 1, ADD CHECK (id < 200000)", ());
    assert_eq!(state(error), "23514");
    assert_eq!(state(connection.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)", ())), "23505");
    assert_eq!(state(connection.execute("ALTER TABLE t ALTER COLUMN id TYPE SMALLINT", ())), "22003");
    // The primary key in the opposite order.
    connection.execute("ALTER TABLE t ALTER COLUMN id TYPE BIGINT USING -id, DROP COLUMN a", ()).unwrap();
    assert_eq!(number(&connection, "SELECT min(id) FROM t"), -250_000);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE id BETWEEN -10 AND -1 AND c = 7"), 10);
    assert_eq!(number(&connection, "SELECT count(*) FROM keyaki_indexes"), 1);
    connection.execute("TRUNCATE t", ()).unwrap();
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 0);
}

/// ADD COLUMN with a default does not write the rows of a table again, and all paths find the value.
#[test]
fn added_columns_with_a_default_write_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, b TEXT);
             CREATE INDEX t_m ON t USING masstree (a);
             INSERT INTO t SELECT value, value % 1000, md5(value::TEXT) FROM generate_series(1, 200000);
             CHECKPOINT",
        )
        .unwrap();
    let bytes = || std::fs::metadata(path.join("data")).unwrap().len();
    let before = bytes();
    assert!(before > 4 << 20, "{before} bytes");
    let b = connection.try_clone().unwrap();
    let reader = b.transaction().unwrap();
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 200_000);
    let prepared = connection.prepare("SELECT * FROM t WHERE id = $1").unwrap();
    assert!(prepared.exists((5,)).unwrap());
    connection.execute("ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 7 CHECK (c < 1000)", ()).unwrap();
    connection
        .execute("ALTER TABLE t ADD COLUMN d TEXT DEFAULT 'a text of some length', ADD COLUMN e INT", ())
        .unwrap();
    connection.execute("CHECKPOINT", ()).unwrap();
    let grown = bytes() - before;
    assert!(grown < before / 4, "{before} bytes grew by {grown}");
    assert_eq!(prepared.query_row((5,), |row| row.get::<_, i64>(3)).unwrap(), 7);
    // The older snapshot has the old columns.
    assert_eq!(number(&reader, "SELECT count(*) FROM t WHERE a = 7"), 200);
    assert_eq!(reader.query_row("SELECT * FROM t WHERE id = 1", (), |row| row.get::<_, i64>(1)).unwrap(), 1);
    assert!(reader.query_row("SELECT c FROM t WHERE id = 1", (), |row| row.get::<_, i64>(0)).is_err());
    reader.rollback().unwrap();
    drop(prepared);
    drop(b);
    connection
        .execute_batch(
            "UPDATE t SET c = 8 WHERE id BETWEEN 101 AND 200;
             UPDATE t SET d = NULL WHERE id BETWEEN 151 AND 250;
             DELETE FROM t WHERE id > 199900;
             INSERT INTO t VALUES (300000, 1, 'x', 9, NULL, 1);
             INSERT INTO t (id) VALUES (300001);
             INSERT INTO t (id, c) VALUES (1, 100), (300002, 50) ON CONFLICT (id) DO UPDATE SET c = t.c + excluded.c",
        )
        .unwrap();
    let check = |connection: &Connection, has_index: bool| {
        let check = |sql: &str, expected: i64| assert_eq!(number(connection, sql), expected, "{sql}, {has_index}");
        check("SELECT count(*) FROM t", 199_903);
        check("SELECT count(c) FROM t", 199_903);
        check("SELECT sum(c) FROM t", (199_900 - 101) * 7 + 100 * 8 + 107 + 9 + 7 + 50);
        check("SELECT count(*) FROM t WHERE c = 7", 199_900 - 101 + 1);
        check("SELECT count(*) FROM t WHERE c <> 7", 103);
        check("SELECT count(*) FROM t WHERE d IS NULL", 101);
        check("SELECT count(d) FROM t WHERE c = 7 AND e IS NULL", 199_800 - 50);
        check("SELECT min(c) + max(c) FROM t", 7 + 107);
        check("SELECT count(*) FROM t WHERE d = 'a text of some length'", 199_802);
        check("SELECT c FROM t WHERE id = 2", 7);
        check("SELECT c FROM t WHERE id = 150", 8);
        check("SELECT c FROM t WHERE id = 1", 107);
        check("SELECT sum(c) FROM t WHERE a = 5", 200 * 7);
        check("SELECT count(*) FROM t x JOIN t y ON x.c = y.c WHERE x.id < 4 AND y.id BETWEEN 1 AND 110", 2 * 99 + 1);
        check(
            "SELECT count(*) FROM (SELECT id FROM t ORDER BY c DESC, id LIMIT 3) r WHERE id IN (1, 300002, 300000)",
            3,
        );
    };
    check(&connection, false);
    // A snapshot that reads while rows are written again.
    let b = connection.try_clone().unwrap();
    let reader = b.transaction().unwrap();
    check(&reader, false);
    connection.execute_batch("CREATE INDEX t_c ON t (c, d); CREATE INDEX t_d ON t USING masstree (d, c)").unwrap();
    check(&connection, true);
    check(&reader, false);
    reader.rollback().unwrap();
    drop(b);
    for statement in ["", "CHECKPOINT", "ALTER TABLE t ALTER COLUMN c SET DEFAULT 1000"] {
        drop(connection);
        connection = Connection::open(&path).unwrap();
        check(&connection, true);
        connection.execute_batch(statement).unwrap();
        check(&connection, true);
    }
    assert_eq!(state(connection.execute("INSERT INTO t (id) VALUES (400000)", ())), "23514");
    // Rows are written again with the value.
    connection.execute("UPDATE t SET a = a + 0, b = 'b'", ()).unwrap();
    connection.execute("CHECKPOINT", ()).unwrap();
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE c = 7"), 199_800);
    connection.execute("ALTER TABLE t DROP COLUMN c", ()).unwrap();
    connection.execute("ALTER TABLE t ADD COLUMN c BIGINT DEFAULT 11", ()).unwrap();
    assert_eq!(number(&connection, "SELECT sum(c) FROM t"), 199_903 * 11);
}

#[test]
fn changes_belong_to_the_transaction() {
    for commit in [false, true] {
        let a = Connection::open_temporary().unwrap();
        a.execute_batch(TABLES).unwrap();
        let b = a.try_clone().unwrap();
        let transaction = a.transaction().unwrap();
        transaction.execute("INSERT INTO t VALUES (5001, 1, 'new')", ()).unwrap();
        transaction.execute_batch("SAVEPOINT s; ALTER TABLE t DROP COLUMN b; TRUNCATE h").unwrap();
        assert_eq!(number(&transaction, "SELECT count(*) FROM h"), 0);
        transaction.execute_batch("ROLLBACK TO s").unwrap();
        check_paths(&b, 5000);
        assert_eq!(number(&transaction, "SELECT count(b) FROM t"), 5001);
        for change in CHANGES {
            transaction.execute(change, ()).unwrap_or_else(|error| panic!("{change}: {error}"));
        }
        transaction.execute("ALTER TABLE t RENAME TO renamed", ()).unwrap();
        transaction.execute("ALTER TABLE renamed RENAME COLUMN a TO z", ()).unwrap();
        assert_eq!(number(&transaction, "SELECT count(*) FROM renamed WHERE z = 1 OR z = 84"), 2);
        assert_eq!(state(transaction.execute("INSERT INTO renamed (id, z) VALUES (1, 1)", ())), "23505");
        transaction.rollback().unwrap();
        let transaction = a.transaction().unwrap();
        transaction.execute_batch("TRUNCATE t; INSERT INTO t VALUES (7, 8, 'seven'); TRUNCATE h").unwrap();
        transaction.execute("ALTER TABLE t ADD COLUMN c INT DEFAULT 1", ()).unwrap();
        assert_eq!(number(&transaction, "SELECT count(*) FROM t WHERE a = 8 AND c = 1"), 1);
        check_paths(&b, 5000);
        if commit {
            transaction.commit().unwrap();
            assert_eq!(number(&b, "SELECT count(*) FROM t WHERE a = 8 AND c = 1"), 1);
            assert_eq!(number(&b, "SELECT count(*) FROM h"), 0);
        } else {
            transaction.rollback().unwrap();
            check_paths(&b, 5000);
        }
    }
}

/// DROP COLUMN leaves the rows as they are, on all paths that read and write them afterwards.
#[test]
fn dropped_columns_stay_in_the_tree() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let length = || std::fs::metadata(path.join("data")).map_or(0, |file| file.len());
    for key in ["PRIMARY KEY (id)", "PRIMARY KEY (part, id)", "CHECK (id > 0)"] {
        let connection = Connection::open(&path).unwrap();
        let run = |sql: &str| connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        run(&format!(
            "CREATE TABLE t (gone BIGINT NOT NULL, id BIGINT NOT NULL, texts TEXT NOT NULL, n BIGINT, list INT[] NOT NULL,
                part INT NOT NULL, at TIMESTAMPTZ NOT NULL, u UUID NOT NULL, d DECIMAL(10, 2) NOT NULL, name TEXT, {key});
            CREATE INDEX by_texts ON t (texts, gone);
            CREATE INDEX by_n ON t (n) INCLUDE (name);
            CREATE INDEX by_name ON t USING masstree (name);
            INSERT INTO t SELECT -value, value, 'text ' || value, value % 100, ARRAY[value, 1], value % 3, now(),
                'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1.50, 'name ' || value FROM generate_series(1, 30000) s(value);
            CHECKPOINT; ANALYZE t"
        ));
        let before = length();
        run("ALTER TABLE t DROP COLUMN gone; ALTER TABLE t DROP COLUMN texts, DROP COLUMN list, DROP u");
        run("ALTER TABLE t DROP d, DROP at, ADD COLUMN added TEXT");
        assert!(length() <= before + (1 << 20), "{before} bytes, then {}", length());
        assert_eq!(number(&connection, "SELECT count(*) FROM keyaki_indexes WHERE table_name = 't'"), 2);
        let columns = "SELECT string_agg(column_name, ' ' ORDER BY ordinal_position) FROM information_schema.columns
            WHERE table_name = 't'";
        let names: String = connection.query_row(columns, (), |row| row.get(0)).unwrap();
        assert_eq!(names, "id n part name added");
        let check = |connection: &Connection, rows: i64, sum: i64| {
            let count = |condition: &str| number(connection, &format!("SELECT count(*) FROM t WHERE {condition}"));
            assert_eq!(count("true"), rows);
            assert_eq!(number(connection, "SELECT sum(n)::bigint FROM t WHERE part + 0 >= 0"), sum);
            assert_eq!(count("n = 7 AND length(name) > 0"), 300);
            assert_eq!(count("name = 'name 77'"), 1);
            let row = "SELECT id || ' ' || n || ' ' || part || ' ' || name || coalesce(added, '-') FROM t WHERE";
            for condition in ["id = 77", "name = 'name 77'", "id = 77 AND part = 2", "id % 30000 = 77 AND n = 77"] {
                let found: String = connection.query_row(&format!("{row} {condition}"), (), |row| row.get(0)).unwrap();
                assert_eq!(found, "77 77 2 name 77-", "{condition}");
            }
        };
        check(&connection, 30_000, 1_485_000);
        // One row, several rows, many rows, and files.
        let file = directory.path().join("rows.csv");
        std::fs::write(&file, "50001,1,0,file,x\n50002,2,1,file,\n").unwrap();
        run(&format!(
            "INSERT INTO t VALUES (40001, 5, 0, 'one', 'x');
            INSERT INTO t (id, part) VALUES (40002, 1), (40003, 2);
            INSERT INTO t SELECT value, 1, 2, 'many', 'y' FROM generate_series(100001, 130000) s(value);
            COPY t FROM '{}';
            UPDATE t SET n = 6 WHERE id = 40001;
            UPDATE t SET name = 'changed', added = 'z' WHERE id BETWEEN 29000 AND 30000;
            DELETE FROM t WHERE id IN (40002, 50001)",
            file.display()
        ));
        check(&connection, 60_003, 1_485_000 + 6 + 30_000 + 2);
        if key != "CHECK (id > 0)" {
            let target = if key.contains("part") { "part, id" } else { "id" };
            run(&format!(
                "INSERT INTO t VALUES (40001, 4, 0, 'up', 'v'), (60000, 3, 0, 'up', 'w')
                    ON CONFLICT ({target}) DO UPDATE SET n = t.n + excluded.n, name = excluded.name;
                INSERT OR REPLACE INTO t VALUES (60000, 4, 0, 're', NULL)"
            ));
            assert_eq!(number(&connection, "SELECT sum(n)::bigint FROM t WHERE id IN (40001, 60000)"), 14);
            run("DELETE FROM t WHERE id = 60000; UPDATE t SET n = 6 WHERE id = 40001");
        }
        run(
            "CREATE UNIQUE INDEX by_id ON t (id); CREATE INDEX by_added ON t (added, id); CREATE INDEX by_n_id ON t USING vast (n, id)",
        );
        assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE added = 'y'"), 30_000);
        let rows = 60_003;
        check(&connection, rows, 1_515_008);
        // A column of the same name is another one. In a transaction, too.
        run("BEGIN; ALTER TABLE t DROP COLUMN n; INSERT INTO t VALUES (70000, 1, 'in', 'q'); ROLLBACK");
        run("ALTER TABLE t DROP COLUMN added, ADD COLUMN added TEXT");
        assert_eq!(number(&connection, "SELECT count(added) FROM t"), 0);
        check(&connection, rows, 1_515_008);
        drop(connection);
        let connection = Connection::open(&path).unwrap();
        check(&connection, rows, 1_515_008);
        // The conversion of a column rebuilds the trees without the dropped columns.
        connection.execute("ALTER TABLE t ALTER COLUMN n TYPE SMALLINT", ()).unwrap();
        check(&connection, rows, 1_515_008);
        connection.execute_batch("CHECKPOINT; DROP TABLE t; CHECKPOINT").unwrap();
    }
    // The upserts of a table without indexes read nothing.
    let connection = Connection::open(&path).unwrap();
    let blind = "CREATE TABLE c (id BIGINT PRIMARY KEY, gone TEXT NOT NULL, n BIGINT, m BIGINT, last BIGINT);
        INSERT INTO c SELECT value, 'x', value, 1, 2 FROM generate_series(1, 5000) s(value);
        ALTER TABLE c DROP COLUMN gone, DROP m;
        INSERT INTO c SELECT value * 2, 10, 3 FROM generate_series(1, 5000) s(value)
            ON CONFLICT (id) DO UPDATE SET n = n + excluded.n;
        INSERT INTO c VALUES (1, 5, 9) ON CONFLICT (id) DO UPDATE SET n = n + excluded.n, last = excluded.last;
        INSERT OR REPLACE INTO c VALUES (3, 100, 100)";
    connection.execute_batch(blind).unwrap();
    for _ in 0..2 {
        assert_eq!(number(&connection, "SELECT sum(n)::bigint FROM c"), 12_502_500 + 50_000 + 5 + 97);
        assert_eq!(number(&connection, "SELECT sum(last)::bigint FROM c"), 10_000 + 2500 * 3 + 7 + 98);
        connection.execute("CHECKPOINT", ()).unwrap();
    }
}

/// Columns outside of keys and indexes become nullable, and decimals get digits, without new trees.
#[test]
fn nulls_and_digits_are_allowed_without_rebuilding() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut connection = Connection::open(&path).unwrap();
    let run = |connection: &Connection, sql: &str| connection.execute_batch(sql).unwrap();
    let length = || std::fs::metadata(path.join("data")).unwrap().len();
    run(
        &connection,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT NOT NULL, n BIGINT NOT NULL, price DECIMAL(6,2) NOT NULL,
            cost DECIMAL(6,2) NOT NULL DEFAULT 1.5, kept TEXT NOT NULL, CHECK (cost < 9999));
         CREATE INDEX by_cost ON t (cost);
         INSERT INTO t SELECT value, 'name ' || value, value, value % 9000 + 0.25, 2.5, 'kept'
            FROM generate_series(1, 30000) s(value);
         CHECKPOINT; ANALYZE t;
         UPDATE t SET name = 'changed', price = 1.75 WHERE id <= 10;
         INSERT INTO t SELECT value, 'more', 1, 7.5, 1, 'kept' FROM generate_series(30001, 30100) s(value)",
    );
    let sum: i64 = (1..=30_000).map(|id| if id <= 10 { 175 } else { id % 9000 * 100 + 25 }).sum::<i64>() + 75_000;
    let before = length();
    let check = |connection: &Connection, nulls: i64, rows: i64| {
        assert_eq!(number(connection, "SELECT count(*) FROM t WHERE name IS NULL"), nulls);
        assert_eq!(number(connection, "SELECT count(*) FROM t WHERE n IS NULL"), nulls);
        assert_eq!(number(connection, "SELECT count(name) FROM t"), rows - nulls);
        assert_eq!(number(connection, "SELECT (sum(price) * 100)::bigint FROM t WHERE price < 100000"), sum);
        assert_eq!(number(connection, "SELECT count(*) FROM t WHERE price = 7.5"), 100);
        assert_eq!(number(connection, "SELECT count(*) FROM t WHERE cost = 2.5 AND kept = 'kept'"), 30_000);
    };
    run(&connection, "ALTER TABLE t ALTER name DROP NOT NULL, ALTER n DROP NOT NULL, ALTER price TYPE DECIMAL(12,2)");
    check(&connection, 0, 30_100);
    run(
        &connection,
        "INSERT INTO t VALUES (40001, NULL, NULL, 9999999999.99, 1, 'kept');
         INSERT INTO t VALUES (40002, 'x', 5, 1234567.25, 1, 'kept'), (40003, 'y', NULL, 1234567.5, 1, 'kept')
            ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n, name = excluded.name;
         INSERT INTO t VALUES (40002, NULL, NULL, 1, 1, 'kept')
            ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n, name = excluded.name;
         UPDATE t SET name = NULL WHERE id = 40003",
    );
    for sql in ["INSERT INTO t VALUES (50000, 'x', 1, 1, 1, NULL)", "UPDATE t SET kept = NULL WHERE id = 1"] {
        assert!(connection.execute(sql, ()).unwrap_err().to_string().contains("\"kept\""), "{sql}");
    }
    connection.execute("CHECKPOINT", ()).unwrap();
    check(&connection, 3, 30_103);
    assert!(length() <= before + (1 << 20), "{before} bytes, then {}", length());
    drop(connection);
    connection = Connection::open(&path).unwrap();
    check(&connection, 3, 30_103);
    // In a transaction, in which a tree keeps its schema; and columns in an index.
    run(
        &connection,
        "BEGIN; ALTER TABLE t ALTER kept DROP NOT NULL; INSERT INTO t (id, price, cost) VALUES (50000, 1e5, 1); ROLLBACK;
         BEGIN; ALTER TABLE t ALTER price TYPE DECIMAL(14,2); COMMIT;
         ALTER TABLE t ALTER cost DROP NOT NULL, ALTER cost TYPE DECIMAL(8,2);
         INSERT INTO t VALUES (50001, NULL, NULL, 100000000000.5, NULL, 'kept')",
    );
    assert!(connection.execute("INSERT INTO t (id, price, cost) VALUES (50000, 1, 1)", ()).is_err());
    check(&connection, 4, 30_104);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE cost IS NULL"), 1);
    for narrower in ["ALTER TABLE t ALTER price TYPE DECIMAL(6,2)", "ALTER TABLE t ALTER n SET NOT NULL"] {
        assert!(connection.execute(narrower, ()).is_err(), "{narrower}");
    }
    check(&connection, 4, 30_104);
    // Upserts that read nothing, before and after the changes.
    run(
        &connection,
        "CREATE TABLE c (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, d DECIMAL(6,2) NOT NULL, last TEXT NOT NULL);
         INSERT INTO c SELECT value, value, 1.25, 'old' FROM generate_series(1, 5000) s(value)",
    );
    let upsert = |n: &str, text: &str| {
        run(
            &connection,
            &format!(
                "INSERT INTO c SELECT value * 2, {n}, 2.5, {text} FROM generate_series(1, 5000) s(value)
                    ON CONFLICT (id) DO UPDATE SET n = c.n + excluded.n, d = c.d + excluded.d, last = excluded.last"
            ),
        );
    };
    upsert("10", "'new'");
    run(&connection, "CHECKPOINT; ALTER TABLE c ALTER last DROP NOT NULL, ALTER d TYPE DECIMAL(7,2)");
    upsert("100", "NULL");
    run(&connection, "ALTER TABLE c ALTER n DROP NOT NULL");
    upsert("CASE WHEN value < 1000 THEN 1 END", "'x'");
    for _ in 0..2 {
        assert_eq!(number(&connection, "SELECT count(*) FROM c WHERE n IS NULL"), 4001);
        // Odd keys below 5000, and even keys below 2000 with their old value.
        let sum = 2500 * 2500 + (1..1000).map(|i| 2 * i + 111).sum::<i64>();
        assert_eq!(number(&connection, "SELECT sum(n)::bigint FROM c"), sum);
        assert_eq!(number(&connection, "SELECT (sum(d) * 100)::bigint FROM c"), 2500 * 125 + 2500 * 875 + 2500 * 750);
        assert_eq!(number(&connection, "SELECT count(*) FROM c WHERE last = 'x'"), 5000);
        connection.execute("CHECKPOINT", ()).unwrap();
    }
}

#[test]
fn definitions_conflict_with_open_transactions() {
    let conflicts = |statement: &str, change: &str| -> bool {
        let a = Connection::open_temporary().unwrap();
        a.execute_batch(TABLES).unwrap();
        let b = a.try_clone().unwrap();
        let transaction = a.transaction().unwrap();
        transaction.execute(statement, ()).unwrap();
        b.execute(change, ()).unwrap();
        match transaction.commit() {
            Ok(()) => false,
            Err(error) if error.is_retryable() => true,
            Err(error) => panic!("{statement}, {change}: {error}"),
        }
    };
    let insert = "INSERT INTO t VALUES (9000, 1, 'x')";
    for change in [
        "ALTER TABLE t ADD CHECK (a < 20000)",
        "ALTER TABLE t ALTER COLUMN b SET NOT NULL",
        "ALTER TABLE t ADD COLUMN c INT",
        "ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 5",
        "ALTER TABLE t RENAME COLUMN a TO z",
        "TRUNCATE t",
    ] {
        assert!(conflicts(insert, change), "{change}");
    }
    assert!(!conflicts(insert, "ALTER TABLE h ADD COLUMN c INT"));
    assert!(conflicts("ALTER TABLE t ADD COLUMN c INT", insert));
    assert!(conflicts("ALTER TABLE t ADD CHECK (a < 20000)", insert));
    assert!(conflicts("ALTER TABLE t ALTER COLUMN b SET NOT NULL", "UPDATE t SET b = NULL WHERE id = 5"));
    assert!(!conflicts("ALTER TABLE t ALTER COLUMN a SET DEFAULT 5", insert));
}

#[test]
fn snapshots_and_prepared_statements_follow() {
    let a = Connection::open_temporary().unwrap();
    a.execute_batch(TABLES).unwrap();
    let b = a.try_clone().unwrap();
    let reader = b.transaction().unwrap();
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 5000);
    let select = a.prepare("SELECT a FROM t WHERE id = $1").unwrap();
    let all = a.prepare("SELECT * FROM t WHERE id = $1").unwrap();
    let insert = a.prepare("INSERT INTO t (id, a) VALUES ($1, $2)").unwrap();
    let update = a.prepare("UPDATE t SET a = $2 WHERE id = $1").unwrap();
    assert_eq!(select.query_row((5,), |row| row.get::<_, i64>(0)).unwrap(), 10);
    a.execute("ALTER TABLE t ADD COLUMN c INT DEFAULT 4, ADD CONSTRAINT small CHECK (a < 100000)", ()).unwrap();
    assert_eq!(select.query_row((5,), |row| row.get::<_, i64>(0)).unwrap(), 10);
    assert_eq!(all.query_row((5,), |row| row.get::<_, i64>(3)).unwrap(), 4);
    assert_eq!(state(insert.execute((6000, 200_000))), "23514");
    assert_eq!(state(update.execute((5, 200_000))), "23514");
    insert.execute((6000, 7)).unwrap();
    assert_eq!(number(&a, "SELECT c FROM t WHERE id = 6000"), 4);
    a.execute("ALTER TABLE t DROP CONSTRAINT small", ()).unwrap();
    update.execute((5, 200_000)).unwrap();
    a.execute("ALTER TABLE t RENAME COLUMN a TO z", ()).unwrap();
    assert!(matches!(select.query((5,)).err().unwrap().root(), Error::UndefinedColumn { .. }));
    a.execute("TRUNCATE t", ()).unwrap();
    assert!(!a.prepare("SELECT 1 FROM t WHERE id = $1").unwrap().exists((5,)).unwrap());
    // The snapshot keeps definition and rows.
    check_paths_of_snapshot(&reader);
    reader.commit().unwrap();
    assert_eq!(number(&b, "SELECT count(*) FROM t"), 0);
}

fn check_paths_of_snapshot(reader: &Connection) {
    assert_eq!(number(reader, "SELECT count(*) FROM t WHERE a + 0 >= 0"), 5000);
    assert_eq!(number(reader, "SELECT sum(a) FROM t WHERE a BETWEEN 1 AND 10"), 30);
    assert_eq!(number(reader, "SELECT count(b) FROM t"), 5000);
}

/// Readers see each table before or after a change, and never without its rows.
#[test]
fn readers_never_miss_a_table() {
    let options = Options { memory_bytes: Some(256 << 20), ..Options::default() };
    let dir = tempfile::tempdir().unwrap();
    let writer = Connection::open_with(dir.path().join("db"), options).unwrap();
    writer.execute_batch(TABLES).unwrap();
    writer.execute("CREATE TABLE e (id BIGINT PRIMARY KEY, a BIGINT)", ()).unwrap();
    let done = AtomicBool::new(false);
    let connections: Vec<Connection> = (0..3).map(|_| writer.try_clone().unwrap()).collect();
    std::thread::scope(|scope| {
        for connection in connections {
            let done = &done;
            scope.spawn(move || {
                let point = connection.prepare("SELECT a FROM t WHERE id = $1").unwrap();
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) || reads == 0 {
                    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE a >= 0"), 5000);
                    assert_eq!(point.query_row((21,), |row| row.get::<_, i64>(0)).unwrap(), 42);
                    assert_eq!(number(&connection, "SELECT count(*) FROM h WHERE a = 84"), 1);
                    number(&connection, "SELECT count(*) FROM e");
                    reads += 1;
                }
            });
        }
        for round in 0..6 {
            let run = |sql: &str| writer.execute(sql, ()).unwrap_or_else(|error| panic!("{sql}: {error}"));
            run("ALTER TABLE t ADD COLUMN c INT DEFAULT 1");
            run("ALTER TABLE t DROP COLUMN c");
            run("ALTER TABLE h ALTER COLUMN a TYPE BIGINT USING a + 0");
            run("INSERT INTO e SELECT value, value FROM generate_series(1, 100)");
            run("TRUNCATE e");
            let transaction = writer.transaction().unwrap();
            transaction.execute("ALTER TABLE t ALTER COLUMN b TYPE TEXT USING b || ''", ()).unwrap();
            transaction.execute("ALTER TABLE h ADD COLUMN d INT, DROP COLUMN d", ()).unwrap();
            if round % 2 == 0 { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn all_paths_check_and_fill_columns() {
    let dir = tempfile::tempdir().unwrap();
    let connection = Connection::open_temporary().unwrap();
    let create = "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT CHECK (a > 0), at TIMESTAMPTZ DEFAULT now(),
                  r DOUBLE PRECISION DEFAULT random(), k INT DEFAULT 1 + 1, day DATE DEFAULT current_date)";
    connection.execute(create, ()).unwrap();
    // An appender, with few and with many rows.
    for rows in [10_i64, 40_000] {
        connection.execute("TRUNCATE t", ()).unwrap();
        let mut appender = connection.appender_with_columns("t", &["id", "a"]).unwrap();
        (0..rows).for_each(|id| appender.append_row((id, id + 1)).unwrap());
        assert_eq!(appender.finish().unwrap(), rows as u64);
        assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE k = 2 AND at <= now() AND day IS NOT NULL"), rows);
        assert_eq!(number(&connection, "SELECT count(DISTINCT r) FROM t"), rows);
        let mut appender = connection.appender_with_columns("t", &["id", "a"]).unwrap();
        let appended = (rows..2 * rows).try_for_each(|id| appender.append_row((id, rows + 5 - id)));
        let error = appended.and_then(|()| appender.finish().map(|_| ())).unwrap_err();
        assert_eq!(error.sqlstate().code(), "23514");
        assert!(error.to_string().starts_with("row 6: new row for relation \"t\""), "{error}");
    }
    // COPY, as a batch and in bulk, and with the position of the row.
    for rows in [10_i64, 30_000] {
        connection.execute("TRUNCATE t", ()).unwrap();
        let file = dir.path().join("rows.csv");
        let text: String = (1..=rows).map(|id| format!("{id},{id}\n")).collect();
        std::fs::write(&file, &text).unwrap();
        let copy = format!("COPY t (id, a) FROM '{}'", file.display());
        assert_eq!(connection.execute(&copy, ()).unwrap(), rows as u64);
        assert_eq!(number(&connection, "SELECT count(DISTINCT at) FROM t WHERE k = 2"), 1);
        assert_eq!(number(&connection, "SELECT count(DISTINCT r) FROM t WHERE day IS NOT NULL"), rows);
        connection.execute("TRUNCATE t", ()).unwrap();
        std::fs::write(&file, text + &format!("{},0\n", rows + 1)).unwrap();
        let error = connection.execute(&copy, ()).unwrap_err();
        assert_eq!(error.sqlstate().code(), "23514");
        assert!(error.to_string().contains(&format!("row {}", rows + 1)), "{error}");
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), 0);
    }
    // INSERT … SELECT in bulk.
    let insert = "INSERT INTO t (id, a) SELECT value, 150000 - value FROM generate_series(1, 150000)";
    assert_eq!(state(connection.execute(insert, ())), "23514");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 0);
}

/// DELETE of all rows takes the way of TRUNCATE if the table is large, with the same result.
#[test]
fn large_tables_are_emptied_at_once() {
    let a = Connection::open_temporary().unwrap();
    a.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, b BIGINT UNIQUE)", ()).unwrap();
    let b = a.try_clone().unwrap();
    for rows in [9_000, 12_000, 120_000] {
        let insert = format!("INSERT INTO t SELECT value, value FROM generate_series(1, {rows})");
        a.execute(&insert, ()).unwrap();
        let reader = b.transaction().unwrap();
        assert_eq!(number(&reader, "SELECT count(*) FROM t"), rows);
        assert_eq!(a.execute("DELETE FROM t", ()).unwrap(), rows as u64);
        assert_eq!(number(&a, "SELECT count(*) FROM t"), 0);
        assert_eq!(number(&a, "SELECT count(*) FROM t WHERE b > 0"), 0);
        assert_eq!(number(&reader, "SELECT count(*) FROM t WHERE b > 0"), rows);
        reader.commit().unwrap();
        assert_eq!(a.execute("DELETE FROM t", ()).unwrap(), 0);
        a.execute(&insert, ()).unwrap();
        let transaction = a.transaction().unwrap();
        assert_eq!(transaction.execute("DELETE FROM t", ()).unwrap(), rows as u64);
        transaction.rollback().unwrap();
        assert_eq!(a.execute("DELETE FROM t WHERE true", ()).unwrap(), rows as u64);
    }
}

/// Every relation of `pg_catalog` has values of the types of its columns, for objects of all kinds.
#[test]
fn relations_of_pg_catalog_are_read() {
    let database = keyaki::Database::open_temporary(Options::default()).unwrap();
    let connection = database.connect().unwrap();
    connection.execute_batch(TABLES).unwrap();
    connection
        .execute_batch(
            "CREATE SCHEMA s; CREATE SEQUENCE s.q CYCLE MAXVALUE 9; COMMENT ON SEQUENCE s.q IS 'numbers';
             CREATE TABLE s.u (id INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n DECIMAL(8, 2) DEFAULT 1, l INT[], j JSON,
                 t BIGINT UNIQUE REFERENCES t ON DELETE SET NULL, g INT GENERATED ALWAYS AS (1 + 1) STORED);
             CREATE INDEX u_e ON s.u (lower(CAST(n AS TEXT)), t) WHERE t > 0;
             CREATE VIEW s.v AS SELECT l, j, NULL AS nothing, now() AS at FROM s.u;
             CREATE TEMPORARY TABLE own (a INT PRIMARY KEY);
             CREATE ROLE r LOGIN CONNECTION LIMIT 3 VALID UNTIL '2030-01-01'; CREATE ROLE g; GRANT g TO r;
             ALTER ROLE r SET application_name = 'x'; GRANT SELECT ON s.u TO r WITH GRANT OPTION;
             GRANT USAGE ON SCHEMA s TO PUBLIC; ALTER VIEW s.v OWNER TO g",
        )
        .unwrap();
    let names: Vec<String> = connection
        .query_map("SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace", (), |row| row.get(0))
        .unwrap()
        .collect::<Result<_>>()
        .unwrap();
    assert!(names.len() > 60);
    let filled: Vec<&String> = names
        .iter()
        .filter(|name| {
            connection.query(&format!("SELECT * FROM pg_catalog.{name}"), ()).unwrap().next().unwrap().is_some()
        })
        .collect();
    for name in
        ["pg_attrdef", "pg_auth_members", "pg_description", "pg_sequences", "pg_settings", "pg_user", "pg_views"]
    {
        assert!(filled.iter().any(|filled| *filled == name), "{name}");
    }
}
