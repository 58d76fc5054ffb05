//! The blocking API: parameters, values of every type, changing tables, threads, interrupts and appenders.

mod arrays;
mod program_tables;
mod waiting;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use keyaki::{
    Connection, ConstraintKind, Database, Error, Optional, Options, Row, ToSql, Value, ValueRef, params,
    params_from_iter,
};

fn connection() -> Connection {
    let options = Options { memory_bytes: Some(64 << 20), ..Options::default() };
    Database::open_temporary(options).unwrap().connect().unwrap()
}

/// A connection with the table `t (id BIGINT PRIMARY KEY, name TEXT, n SMALLINT NOT NULL DEFAULT 7)` of `rows` rows.
fn with_table(rows: i64) -> Connection {
    let connection = connection();
    connection
        .execute_batch("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, n SMALLINT NOT NULL DEFAULT 7)")
        .unwrap();
    let insert = connection.prepare("INSERT INTO t VALUES (?, ?, ?)").unwrap();
    for id in 0..rows {
        assert_eq!(insert.execute((id, format!("name {id}"), id % 100)).unwrap(), 1);
    }
    connection
}

fn integer(row: &Row<'_>) -> keyaki::Result<i64> {
    row.get(0)
}

fn count(connection: &Connection, table: &str) -> i64 {
    connection.query_row(&format!("SELECT count(*) FROM {table}"), (), integer).unwrap()
}

#[test]
fn handles_can_move_between_threads() {
    fn send<T: Send>() {}
    send::<Connection>();
    send::<keyaki::Statement>();
    send::<keyaki::Rows>();
    send::<keyaki::ArrowRows>();
    send::<keyaki::Appender>();
    send::<keyaki::InterruptHandle>();
}

#[test]
fn statements_report_changed_rows() {
    let connection = with_table(10);
    assert_eq!(connection.execute("UPDATE t SET n = 1 WHERE id < $1", [4]).unwrap(), 4);
    assert_eq!(connection.execute("DELETE FROM t WHERE id >= $1", (8,)).unwrap(), 2);
    assert_eq!(connection.execute("SELECT * FROM t", ()).unwrap(), 0);
    assert_eq!(connection.execute("CREATE INDEX t_n ON t (n)", []).unwrap(), 0);
    assert_eq!(connection.execute("INSERT INTO t (id) VALUES (100), (101)", ()).unwrap(), 2);
    assert_eq!(connection.query_row("SELECT sum(n) FROM t WHERE id >= 100", (), integer).unwrap(), 14);
    assert!(connection.query("DELETE FROM t WHERE id = 100", ()).unwrap().next().unwrap().is_none());
    assert_eq!(count(&connection, "t"), 9);
    let error = connection.execute("DELETE FROM t; DELETE FROM t", ()).unwrap_err();
    assert!(matches!(error, Error::Syntax { .. }), "{error}");
}

#[test]
fn wrong_parameters_are_errors() {
    let connection = with_table(3);
    let find = connection.prepare("SELECT name FROM t WHERE id = $1 AND n = $2").unwrap();
    assert_eq!((find.parameter_count(), find.column_names()), (2, vec!["name"]));
    assert_eq!(find.parameter_type_name(0).as_deref(), Some("bigint"));
    assert_eq!(find.parameter_type_name(1).as_deref(), Some("smallint"));
    assert_eq!(find.parameter_type_name(2), None);
    assert_eq!(find.columns()[0].type_name, "text");
    let message = |params: &[&dyn ToSql]| find.query(params).map(|_| ()).unwrap_err().to_string();
    assert_eq!(message(params![1]), "the statement has 2 parameters, but 1 value was given");
    assert_eq!(message(&[]), "the statement has 2 parameters, but 0 values were given");
    assert_eq!(message(params![1, 2, 3]), "the statement has 2 parameters, but 3 values were given");
    assert_eq!(message(params!["one", 1]), "parameter $1: invalid input syntax for type bigint: \"one\"");
    assert_eq!(message(params![1, 70_000]), "parameter $2: value \"70000\" is out of range for type smallint");
    assert!(message(params![true, 1]).starts_with("parameter $1: "), "{}", message(params![true, 1]));
    assert_eq!(message(params![u128::MAX, 1]).split(':').next(), Some("parameter $1"));
    // The statement still works.
    assert_eq!(find.query_row((2, 2), |row| row.get::<_, String>(0)).unwrap(), "name 2");
    assert_eq!(find.query_row(("2", 2_u8), |row| row.get::<_, String>(0)).unwrap(), "name 2");
    assert!(matches!(connection.query("SELECT $1", ()), Err(Error::UndefinedParameter { .. })));
    assert!(matches!(connection.prepare("SELECT ?, $1"), Err(Error::Syntax { .. })));
}

#[test]
fn nulls() {
    let connection = with_table(2);
    connection.execute("INSERT INTO t VALUES ($1, $2, $3)", params![5, None::<&str>, 1]).unwrap();
    let name = connection.prepare("SELECT name, id FROM t WHERE id = $1").unwrap();
    assert_eq!(name.query_row((5,), |row| row.get::<_, Option<String>>(0)).unwrap(), None);
    let error = name.query_row((5,), |row| row.get::<_, String>("NAME")).unwrap_err();
    assert_eq!(error.to_string(), "column \"name\": null cannot be converted to String (use Option<String>)");
    assert_eq!(error.sqlstate().code(), "22002");
    assert!(name.query_row((5,), |row| row.get_ref(0).map(|value| value.is_null())).unwrap());
    // A comparison with null is never true.
    assert_eq!(name.query_row((Value::Null,), |row| row.get::<_, String>(0)).optional().unwrap(), None);
    let error = connection.execute("INSERT INTO t VALUES (6, 'x', $1)", (None::<i32>,)).unwrap_err();
    assert!(matches!(error.root(), Error::Constraint { kind: ConstraintKind::NotNull, .. }), "{error}");
}

#[test]
fn columns_are_found_by_position_and_name() {
    let connection = connection();
    let sql = "SELECT 1 AS one, 'zwei' AS \"Two\", 2.5 AS three";
    let row = |row: &Row<'_>| {
        assert_eq!((row.len(), row.is_empty(), row.values()?.len()), (3, false, 3));
        assert_eq!((row.get::<_, i64>(0)?, row.get::<_, &str>("Two")?, row.get::<_, f64>("THREE")?), (1, "zwei", 2.5));
        assert!(matches!(row.get::<_, i64>("four"), Err(Error::UndefinedColumn { .. })));
        assert!(matches!(row.get::<_, i64>(3), Err(Error::InvalidColumnReference(_))));
        let error = row.get::<_, i64>("Two").unwrap_err();
        assert_eq!(error.to_string(), "column \"Two\": cannot cast type text to i64");
        assert_eq!(row.get::<_, u8>(0)?, 1);
        <(i32, String, f64)>::try_from(row)
    };
    assert_eq!(connection.query_row(sql, (), row).unwrap(), (1, "zwei".into(), 2.5));
    assert!(connection.query_row(sql, (), |row| <(i32,)>::try_from(row)).is_err());
    let error = connection.query_row("SELECT 300 AS x", (), |row| row.get::<_, u8>(0)).unwrap_err();
    assert_eq!(error.to_string(), "column \"x\": value \"300\" is out of range for type u8");
}

#[test]
fn values_of_every_column_type_go_both_ways() {
    let connection = connection();
    let types = "b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INTEGER, i8 BIGINT, f4 REAL, f8 DOUBLE PRECISION, n DECIMAL(38,4), \
                 t TEXT, v VARCHAR(5), y BYTEA, d DATE, ts TIMESTAMP, tz TIMESTAMPTZ";
    connection.execute(&format!("CREATE TABLE t (id INT PRIMARY KEY, {types})"), ()).unwrap();
    let holders = (2..=15).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ");
    let insert = connection.prepare(&format!("INSERT INTO t VALUES ($1, {holders})")).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_767_225_600_123_456);
    let decimal = Value::Decimal { unscaled: 10_i128.pow(37) + 1, scale: 4 };
    let rows: [&[&dyn ToSql]; 3] = [
        params![
            0,
            true,
            i8::MIN,
            i16::MIN,
            i32::MIN,
            i64::MIN,
            0.5_f32,
            0.1,
            decimal,
            "größer",
            String::from("äöüßé"),
            vec![0_u8, 255],
            Value::Date(-1),
            Value::Timestamp(-1),
            time
        ],
        params![
            1,
            None::<bool>,
            None::<i8>,
            None::<i16>,
            None::<i32>,
            None::<i64>,
            None::<f32>,
            None::<f64>,
            Value::Null,
            None::<String>,
            None::<&str>,
            None::<Vec<u8>>,
            Value::Null,
            Value::Null,
            None::<SystemTime>
        ],
        params![
            2,
            false,
            127_u8,
            32_767_u16,
            i32::MAX as u32,
            i64::MAX as u64,
            f32::MIN_POSITIVE,
            f64::NEG_INFINITY,
            "12.5",
            Cow::Borrowed("c"),
            "",
            *b"bytes",
            "2024-02-29",
            "2024-02-29 12:00:00",
            "2024-02-29 12:00:00+02:00"
        ],
    ];
    for row in rows {
        insert.execute(row).unwrap();
    }
    // Along the short path, and along the planner.
    for sql in ["SELECT * FROM t WHERE id = $1", "SELECT * FROM t WHERE id + 0 = $1 ORDER BY id"] {
        let find = connection.prepare(sql).unwrap();
        find.query_row([0], |row| {
            assert!(row.get::<_, bool>("b")?);
            assert_eq!((row.get::<_, i8>("i1")?, row.get::<_, i16>("i2")?), (i8::MIN, i16::MIN));
            assert_eq!((row.get::<_, i32>("i4")?, row.get::<_, i64>("i8")?), (i32::MIN, i64::MIN));
            assert_eq!((row.get::<_, f32>("f4")?, row.get::<_, f64>("f8")?), (0.5, 0.1));
            assert_eq!(row.get::<_, Value>("n")?, Value::Decimal { unscaled: 10_i128.pow(37) + 1, scale: 4 });
            assert_eq!(row.get::<_, f64>("n")?, 1e33);
            assert_eq!(
                (row.get::<_, String>("t")?, row.get::<_, Cow<'_, str>>("v")?),
                ("größer".into(), "äöüßé".into())
            );
            assert_eq!((row.get::<_, Vec<u8>>("y")?, row.get::<_, &[u8]>("y")?), (vec![0, 255], &[0, 255][..]));
            assert_eq!(row.get_ref("d")?, ValueRef::Date(-1));
            assert_eq!(row.get_ref("ts")?, ValueRef::Timestamp(-1));
            assert_eq!(row.get::<_, SystemTime>("tz")?, time);
            assert!(row.get::<_, SystemTime>("ts").is_err(), "a time without a zone");
            Ok(())
        })
        .unwrap();
        find.query_row([1], |row| {
            assert!(row.values()?[1..].iter().all(ValueRef::is_null));
            Ok(())
        })
        .unwrap();
        find.query_row([2], |row| {
            assert!(!row.get::<_, bool>("b")?);
            assert_eq!((row.get::<_, u8>("i1")?, row.get::<_, u16>("i2")?), (127, 32_767));
            assert_eq!((row.get::<_, u32>("i4")?, row.get::<_, u64>("i8")?), (i32::MAX as u32, i64::MAX as u64));
            assert_eq!((row.get::<_, f32>("f4")?, row.get::<_, f64>("f8")?), (f32::MIN_POSITIVE, f64::NEG_INFINITY));
            assert_eq!(row.get::<_, Value>("n")?.to_string(), "12.5000");
            assert_eq!(row.get::<_, &[u8]>("y")?, b"bytes");
            assert_eq!(row.get::<_, Value>("d")?.to_string(), "2024-02-29");
            assert_eq!(row.get_ref("tz")?, ValueRef::TimestampTz(1_709_200_800_000_000));
            Ok(())
        })
        .unwrap();
    }
    let error = insert.execute(rows[0]).unwrap_err();
    assert!(matches!(error, Error::Constraint { kind: ConstraintKind::PrimaryKey, .. }), "{error}");
    let long = connection.execute("UPDATE t SET v = $1", ("sechs Zeichen",)).unwrap_err();
    assert!(matches!(long.root(), Error::StringTooLong { .. }), "{long}");
}

#[test]
fn types_without_values_are_widened_or_text() {
    let connection = connection();
    let get = |expression: &str| {
        connection.query_row(&format!("SELECT {expression} AS x"), (), |row| row.get::<_, Value>(0)).unwrap()
    };
    assert_eq!(get("arrow_cast(200, 'UInt8')"), Value::Integer(200));
    assert_eq!(get("arrow_cast(5, 'UInt64')"), Value::Integer(5));
    let max = Value::Decimal { unscaled: u64::MAX.into(), scale: 0 };
    assert_eq!(get("arrow_cast('18446744073709551615', 'UInt64')"), max);
    assert_eq!(get("[1, NULL, 3]"), Value::Array(vec![Value::Integer(1), Value::Null, Value::Integer(3)]));
    assert_eq!(get("[arrow_cast(5, 'UInt64')]"), Value::Array(vec![Value::Integer(5)]));
    assert_eq!(get("INTERVAL '1 month'"), Value::Interval { months: 1, days: 0, micros: 0 });
    let difference = "TIMESTAMP '2024-01-03 00:00:00' - TIMESTAMP '2024-01-01 23:59:59'";
    assert_eq!(get(difference), Value::Interval { months: 0, days: 1, micros: 1_000_000 });
    assert_eq!(get("TIME '12:34:56'"), Value::Time(45_296_000_000));
    assert_eq!(get("arrow_cast(1000, 'Timestamp(Nanosecond, None)')"), Value::Timestamp(1));
    assert_eq!(get("arrow_cast(NULL, 'UInt8')"), Value::Null);
}

#[test]
fn statements_after_errors() {
    let connection = with_table(3);
    let divide = connection.prepare("SELECT 10 / $1").unwrap();
    assert!(matches!(divide.query_row((0,), integer), Err(Error::DivisionByZero)));
    assert_eq!(divide.query_row((5,), integer).unwrap(), 2);
    let mut rows = connection.query("SELECT 1 / (value - 5000) FROM generate_series(1, 10000)", ()).unwrap();
    let error = loop {
        match rows.next() {
            Ok(row) => assert!(row.is_some(), "an error is not the end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DivisionByZero), "{error}");
    assert!(rows.next().unwrap().is_none(), "the result has ended");
    let mapped =
        connection.query_map("SELECT id, name FROM t ORDER BY id", (), |row| row.get::<_, i64>("name")).unwrap();
    assert_eq!(mapped.filter(|item| item.is_err()).count(), 1);
    assert!(connection.execute_batch("DELETE FROM t WHERE id = 0; DELETE FROM missing; DELETE FROM t").is_err());
    assert_eq!(count(&connection, "t"), 2);
}

#[test]
fn statements_follow_changes_of_their_tables() {
    let connection = with_table(100);
    connection.execute("CREATE INDEX t_name ON t (name)", ()).unwrap();
    let by_name = connection.prepare("SELECT id FROM t WHERE name = $1").unwrap();
    let by_id = connection.prepare("SELECT name FROM t WHERE id = $1").unwrap();
    let insert = connection.prepare("INSERT INTO t (id, name) VALUES ($1, $2)").unwrap();
    assert_eq!(by_name.query_row(("name 42",), integer).unwrap(), 42);
    connection.execute("DROP INDEX t_name", ()).unwrap();
    assert_eq!(by_name.query_row(("name 42",), integer).unwrap(), 42);
    connection.execute("DROP TABLE t", ()).unwrap();
    let gone = |error: Error| assert!(matches!(error, Error::NotFound { .. }), "{error}");
    gone(by_name.query_row(("name 42",), integer).unwrap_err());
    gone(insert.execute((1, "x")).unwrap_err());
    connection.execute("CREATE TABLE t (id TEXT PRIMARY KEY, name DATE)", ()).unwrap();
    insert.execute(("one", "2024-02-29")).unwrap();
    let date = by_id.query_row(("one",), |row| row.get::<_, Value>(0)).unwrap();
    assert_eq!(date.to_string(), "2024-02-29");
    let error = insert.execute((2, "soon")).unwrap_err();
    assert!(matches!(error.root(), Error::InvalidText { .. }), "{error}");
    connection.execute("DROP TABLE t", ()).unwrap();
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY)", ()).unwrap();
    let error = by_name.query(("x",)).unwrap_err();
    assert!(matches!(error, Error::UndefinedColumn { .. }), "{error}");
}

#[test]
fn results_are_streams() {
    let connection = connection();
    // Far more rows than memory.
    let mut rows =
        connection.query("SELECT a.value FROM generate_series(1, 100000) a, generate_series(1, 100000) b", ()).unwrap();
    assert!(rows.next().unwrap().is_some());
    drop(rows);
    let batches = connection.query_arrow("SELECT value FROM generate_series(1, 20000)", ()).unwrap();
    assert_eq!(batches.schema().fields().len(), 1);
    assert_eq!(batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 20_000);
    // Results of one connection can be read together.
    let mut outer = connection.query("SELECT value FROM generate_series(1, 3)", ()).unwrap();
    let mut pairs = Vec::new();
    while let Some(row) = outer.next().unwrap() {
        let limit: i64 = row.get(0).unwrap();
        let inner = connection.query("SELECT value FROM generate_series(1, 3) WHERE value <= $1", (limit,)).unwrap();
        pairs.extend(inner.mapped(|row| Ok((limit, row.get::<_, i64>(0)?))).map(Result::unwrap));
    }
    assert_eq!(pairs, [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)]);
}

#[test]
fn two_threads_on_clones() {
    let connection = with_table(0);
    std::thread::scope(|scope| {
        for thread in 0..2_i64 {
            let clone = connection.try_clone().unwrap();
            scope.spawn(move || {
                let insert = clone.prepare("INSERT INTO t VALUES ($1, $2, 0)").unwrap();
                let find = clone.prepare("SELECT name FROM t WHERE id = $1").unwrap();
                for id in (0..500).map(|i| 2 * i + thread) {
                    insert.execute((id, id.to_string())).unwrap();
                    assert_eq!(find.query_row((id,), |row| row.get::<_, String>(0)).unwrap(), id.to_string());
                }
            });
        }
    });
    assert_eq!(count(&connection, "t"), 1000);
    // Options belong to one connection.
    let other = connection.try_clone().unwrap();
    other.execute("SET keyaki.join = 'scan'", ()).unwrap();
    assert_ne!(connection.session().options().join, other.session().options().join);
}

#[test]
fn an_interrupt_cancels_the_running_statement_only() {
    let connection = with_table(10);
    let handle = connection.interrupt_handle();
    handle.interrupt();
    assert_eq!(count(&connection, "t"), 10, "nothing was running");
    let slow = "SELECT sum(a.value % 7) FROM generate_series(1, 100000) a, generate_series(1, 100000000) b";
    std::thread::scope(|scope| {
        let handle = handle.clone();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            handle.interrupt();
        });
        let error = connection.query_row(slow, (), integer).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    });
    assert_eq!(count(&connection, "t"), 10);
    // A result that is being read, and a statement beside it.
    let mut rows = connection.query("SELECT value FROM generate_series(1, 10000000)", ()).unwrap();
    assert!(rows.next().unwrap().is_some());
    handle.interrupt();
    assert_eq!(count(&connection, "t"), 10);
    let error = loop {
        match rows.next() {
            Ok(row) => assert!(row.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Cancelled), "{error}");
    // Other connections are not affected.
    let other = connection.try_clone().unwrap();
    let mut rows = other.query("SELECT value FROM generate_series(1, 20000)", ()).unwrap();
    handle.interrupt();
    let mut read = 0;
    while rows.next().unwrap().is_some() {
        read += 1;
    }
    assert_eq!(read, 20_000);
}

#[test]
fn connections_work_inside_a_runtime() {
    let use_it = || {
        let connection = with_table(5);
        let find = connection.prepare("SELECT name FROM t WHERE id = $1").unwrap();
        assert_eq!(find.query_row((3,), |row| row.get::<_, String>(0)).unwrap(), "name 3");
        assert_eq!(count(&connection, "t"), 5);
        let error = connection.query("SELECT * FROM missing", ()).err().unwrap();
        assert!(matches!(error.root(), Error::NotFound { .. }), "{error}");
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { use_it() });
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    threads.block_on(async {
        tokio::spawn(async move { use_it() }).await.unwrap();
        tokio::task::spawn_blocking(use_it).await.unwrap();
    });
}

#[test]
fn the_last_handle_closes_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let options = || Options { memory_bytes: Some(64 << 20), ..Options::default() };
    for round in 0..3 {
        let connection = Connection::open_with(&path, options()).unwrap();
        assert!(matches!(Connection::open_with(&path, options()), Err(Error::Locked { .. })));
        connection.execute(&format!("CREATE TABLE t{round} (x INT)"), ()).unwrap();
        let mut rows = connection.query("SELECT value FROM generate_series(1, 1000000)", ()).unwrap();
        drop(connection);
        assert!(rows.next().unwrap().is_some(), "a result keeps the database open");
    }
    let temporary = connection();
    let path = temporary.database().path().to_path_buf();
    assert!(path.exists());
    drop(temporary);
    assert!(!path.exists());
}

#[test]
fn a_list_of_ten_thousand_values() {
    let connection = with_table(200);
    let numbers = (1..=10_000).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT count(*) FROM t WHERE id IN ({numbers})");
    assert_eq!(connection.query_row(&sql, params_from_iter(100..10_100_i64), integer).unwrap(), 100);
    let literals = (100..10_100).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    assert_eq!(
        connection.query_row(&format!("SELECT count(*) FROM t WHERE id IN ({literals})"), (), integer).unwrap(),
        100
    );
}

#[test]
fn a_text_of_64_mib() {
    let connection = with_table(1);
    let text = "ä".repeat(32 << 20);
    let length = connection.query_row("SELECT octet_length($1)", (&text,), integer).unwrap();
    assert_eq!(length, 64 << 20);
    let found = connection.query_row("SELECT id FROM t WHERE name = $1", (&text,), integer).optional().unwrap();
    assert_eq!(found, None);
    // Rows have a limit.
    let error = connection.execute("INSERT INTO t VALUES (9, $1, 0)", (&text,)).unwrap_err();
    assert!(matches!(error, Error::Store(_) | Error::OutOfMemory { .. }), "{error}");
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((10, &text, 0)).unwrap_err();
    appender.append_row((11, "short", 0)).unwrap();
    assert_eq!(appender.finish().unwrap(), 1);
    assert_eq!(count(&connection, "t"), 2);
}

#[test]
fn appenders_insert_rows_and_batches() {
    let connection = with_table(0);
    connection.execute("CREATE INDEX t_name ON t (name)", ()).unwrap();
    let mut appender = connection.appender("t").unwrap();
    for id in 0..100_000_i64 {
        appender.append_row((id, (id % 3 > 0).then(|| format!("name {id}")), id % 100)).unwrap();
    }
    assert!(appender.inserted() > 0 && count(&connection, "t") == appender.inserted() as i64);
    appender.flush().unwrap();
    assert_eq!(count(&connection, "t"), 100_000);
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(100_000..200_000));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..100_000).map(|i| format!("batch {i}"))));
    let batch = RecordBatch::try_from_iter([("name", names), ("id", ids)]).unwrap();
    appender.append_row(params![200_000, "last", 1]).unwrap();
    appender.append_batch(&batch).unwrap();
    assert_eq!(appender.finish().unwrap(), 200_001);
    assert_eq!(connection.query_row("SELECT id FROM t WHERE name = 'batch 99999'", (), integer).unwrap(), 199_999);
    assert_eq!(
        connection.query_row("SELECT sum(n) FROM t WHERE id BETWEEN 100000 AND 199999", (), integer).unwrap(),
        700_000
    );
    assert_eq!(connection.query_row("SELECT count(name) FROM t", (), integer).unwrap(), 166_667);
}

#[test]
fn appenders_with_a_subset_of_columns_use_defaults() {
    let connection = with_table(0);
    let mut appender = connection.appender_with_columns("t", &["name", "id"]).unwrap();
    appender.append_row(("a", 1)).unwrap();
    appender.append_row((None::<&str>, 2)).unwrap();
    drop(appender);
    assert_eq!(
        connection.query_row("SELECT sum(n), count(name) FROM t", (), |row| <(i64, i64)>::try_from(row)).unwrap(),
        (14, 1)
    );
    let refused = |columns: &[&str]| connection.appender_with_columns("t", columns).map(|_| ()).unwrap_err();
    assert!(matches!(refused(&["id", "missing"]), Error::UndefinedColumn { .. }));
    assert!(matches!(refused(&["id", "id"]), Error::DuplicateColumn(_)));
    assert!(matches!(refused(&["name"]), Error::Constraint { kind: ConstraintKind::NotNull, .. }));
    assert!(matches!(connection.appender("missing"), Err(Error::NotFound { .. })));
    let extra = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![3])) as ArrayRef),
        ("n", Arc::new(Int64Array::from(vec![3]))),
    ]);
    let mut appender = connection.appender_with_columns("t", &["id"]).unwrap();
    appender.append_batch(&extra.unwrap()).unwrap();
    assert!(matches!(appender.flush(), Err(Error::UndefinedColumn { .. })));
}

#[test]
fn appenders_refuse_rows_that_do_not_fit() {
    let connection = with_table(0);
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((1, "a", 1)).unwrap();
    let message = |error: keyaki::Result<()>| error.unwrap_err().to_string();
    let wrong = message(appender.append_row((2, "b")));
    assert_eq!(wrong, "an appended row of table \"t\" has 3 columns, but 2 values were given");
    let wrong = message(appender.append_row((2, "b", 40_000)));
    assert_eq!(wrong, "row 2: value \"40000\" is out of range for type smallint (column \"n\")");
    let wrong = message(appender.append_row(params![2, "b", None::<i16>]));
    assert_eq!(wrong, "row 2: null value in column \"n\" of relation \"t\" violates not-null constraint");
    assert!(appender.append_row(("two", "b", 1)).is_err());
    assert!(appender.append_row((true, "b", 1)).is_err());
    appender.append_row(("2", "c", 1.0)).unwrap();
    assert_eq!(appender.finish().unwrap(), 2);
    let names = connection.query_map("SELECT name FROM t ORDER BY id", (), |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(names.collect::<Result<Vec<_>, _>>().unwrap(), ["a", "c"]);
}

#[test]
fn a_chunk_with_a_duplicate_is_discarded_as_a_whole() {
    for unique in [false, true] {
        let connection = with_table(0);
        if unique {
            connection.execute("CREATE UNIQUE INDEX t_name ON t (name)", ()).unwrap();
        }
        let mut appender = connection.appender("t").unwrap();
        for id in 0..10_i64 {
            appender.append_row((id, id.to_string(), 0)).unwrap();
        }
        appender.flush().unwrap();
        for id in 10..20_i64 {
            appender.append_row((id, id.to_string(), 0)).unwrap();
        }
        match unique {
            false => appender.append_row((5, "again", 0)).unwrap(),
            true => appender.append_row((50, "5", 0)).unwrap(),
        }
        appender.append_row((60, "60", 0)).unwrap();
        let error = appender.flush().unwrap_err();
        assert!(matches!(&error, Error::Import { row: Some(21), path: None, .. }), "{error}");
        assert!(matches!(error.root(), Error::Constraint { .. }), "{error}");
        assert_eq!(appender.inserted(), 10);
        // The appender can be used further.
        appender.append_row((70, "70", 0)).unwrap();
        assert_eq!(appender.finish().unwrap(), 11);
        assert_eq!(count(&connection, "t"), 11);
    }
    // A bulk load into an empty table, and duplicates within a chunk.
    let connection = with_table(0);
    let mut appender = connection.appender("t").unwrap();
    for id in 0..5_000_i64 {
        appender.append_row((if id == 4_000 { 17 } else { id }, "x", 0)).unwrap();
    }
    let error = appender.finish().unwrap_err();
    assert!(matches!(error.root(), Error::Constraint { kind: ConstraintKind::PrimaryKey, .. }), "{error}");
    assert_eq!(count(&connection, "t"), 0);
}

#[test]
fn appenders_follow_changes_of_their_table() {
    let connection = with_table(0);
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((1, "a", 1)).unwrap();
    connection.execute("DROP TABLE t", ()).unwrap();
    assert!(matches!(appender.flush(), Err(Error::NotFound { .. })));
    connection.execute("CREATE TABLE t (n TEXT, id INT PRIMARY KEY, name TEXT)", ()).unwrap();
    appender.append_row((2, "b", 5)).unwrap();
    assert_eq!(appender.finish().unwrap(), 1);
    assert_eq!(connection.query_row("SELECT n FROM t", (), |row| row.get::<_, String>(0)).unwrap(), "5");
}

#[test]
fn an_appender_flushes_when_it_is_dropped() {
    let connection = with_table(0);
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((1, "a", 1)).unwrap();
    drop(appender);
    assert_eq!(count(&connection, "t"), 1);
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((1, "a", 1)).unwrap();
    drop(appender);
    assert_eq!(count(&connection, "t"), 1, "the error is only logged");
}

#[test]
fn intervals() {
    let connection = connection();
    connection.execute_batch("CREATE TABLE e (id INT PRIMARY KEY, i INTERVAL)").unwrap();
    let interval = |months, days, micros| Value::Interval { months, days, micros };
    let largest = interval(i32::MAX, i32::MIN, i64::MAX / 1000);
    connection.execute("INSERT INTO e VALUES (?, ?)", params![1, interval(14, -3, 500_000)]).unwrap();
    connection.execute("INSERT INTO e VALUES (?, ?)", params![2, "1 day"]).unwrap();
    connection.execute("INSERT INTO e VALUES (?, ?)", params![3, largest.clone()]).unwrap();
    let mut appender = connection.appender("e").unwrap();
    appender.append_row(params![4, interval(0, 0, -1)]).unwrap();
    // Texts are converted.
    appender.append_row(params![5, "-1 week"]).unwrap();
    appender.append_row(params![6, None::<&str>]).unwrap();
    let too_long = interval(0, 0, i64::MAX / 1000 + 1);
    assert_eq!(appender.append_row(params![7, too_long.clone()]).unwrap_err().sqlstate().code(), "22008");
    assert_eq!(appender.append_row(params![7, "soon"]).unwrap_err().sqlstate().code(), "22007");
    assert_eq!(appender.append_row(params![7, 5]).unwrap_err().sqlstate().code(), "42804");
    assert_eq!(appender.finish().unwrap(), 3);
    let rows = connection.query("SELECT i FROM e ORDER BY id", ()).unwrap();
    let found: Vec<Value> = rows.mapped(|row| row.get(0)).map(Result::unwrap).collect();
    let expected =
        [interval(14, -3, 500_000), interval(0, 1, 0), largest, interval(0, 0, -1), interval(0, -7, 0), Value::Null];
    assert_eq!(found, expected);
    assert_eq!(found[0].to_string(), "1 year 2 mons -3 days +00:00:00.5");
    let find = connection.prepare("SELECT id FROM e WHERE i = ?").unwrap();
    for day in [interval(0, 1, 0), interval(0, 0, 86_400_000_000), Value::Text("24 hours".into())] {
        assert_eq!(find.query_row((day,), integer).unwrap(), 2);
    }
    let update = connection.prepare("UPDATE e SET i = i + ? WHERE id = ?").unwrap();
    update.execute((interval(1, 0, 0), 2)).unwrap();
    let sum: Value =
        connection.query_row("SELECT i + $1 FROM e WHERE id = 2", (interval(0, 0, 5),), |row| row.get(0)).unwrap();
    assert_eq!(sum, interval(1, 1, 5));
    for statement in ["UPDATE e SET i = $1", "SELECT id FROM e WHERE i = $1", "SELECT $1"] {
        let refused = connection.query(statement, (too_long.clone(),)).map(drop).unwrap_err();
        assert_eq!(refused.sqlstate().code(), "22008", "{statement}");
    }
}

#[test]
fn uuids_times_and_documents() {
    let connection = connection();
    connection.execute_batch("CREATE TABLE e (id UUID PRIMARY KEY, at TIME, body JSON)").unwrap();
    let (first, second) = (uuid::Uuid::from_u128(7), uuid::Uuid::from_u128(u128::MAX));
    connection.execute("INSERT INTO e VALUES (?, ?, ?)", params![first, "10:00", r#"{"n": 1}"#]).unwrap();
    let mut appender = connection.appender("e").unwrap();
    appender.append_row(params![second, Value::Time(1), r#"{"n": 2}"#]).unwrap();
    // Texts and bytes are converted.
    appender.append_row(params![uuid::Uuid::from_u128(8).to_string(), "11:00", None::<&str>]).unwrap();
    appender.append_row(params![uuid::Uuid::from_u128(9).into_bytes(), None::<&str>, "[]"]).unwrap();
    let refused = appender.append_row(params![first, Value::Time(-1), None::<&str>]).unwrap_err();
    assert_eq!(refused.sqlstate().code(), "22008");
    let refused = appender.append_row(params![first, None::<&str>, "{"]).unwrap_err();
    assert_eq!(refused.sqlstate().code(), "22P02");
    assert_eq!(appender.finish().unwrap(), 3);
    let find = connection.prepare("SELECT at, body->>'n' FROM e WHERE id = ?").unwrap();
    for id in [Value::Uuid(second), Value::Text(second.to_string()), Value::Bytes(vec![255; 16])] {
        let found: (Value, String) = find.query_row((id,), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(found, (Value::Time(1), "2".into()));
    }
    let rows = connection.query("SELECT id FROM e ORDER BY id", ()).unwrap();
    let ids: Vec<uuid::Uuid> = rows.mapped(|row| row.get(0)).map(Result::unwrap).collect();
    assert_eq!(ids, [7, 8, 9, u128::MAX].map(uuid::Uuid::from_u128));
    let refused = connection.execute("UPDATE e SET at = ?", (Value::Time(86_400_000_000),)).unwrap_err();
    assert_eq!(refused.sqlstate().code(), "22008");
    assert!(connection.query_row("SELECT id FROM e LIMIT 1", (), |row| row.get::<_, String>(0)).is_err());
}
