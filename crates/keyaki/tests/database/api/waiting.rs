//! Results in parts, and a hook for the time in which a call waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use keyaki::{Error, Value};

use super::{connection, count, integer, with_table};

#[test]
fn rows_become_available_in_parts() {
    let connection = connection();
    let mut rows = connection.query("SELECT value FROM generate_series(1, 20000)", ()).unwrap();
    assert_eq!((rows.available(), rows.completion()), (0, None));
    assert_eq!(rows.columns()[0].type_name, "bigint");
    let mut read = 0;
    loop {
        let ready = rows.wait().unwrap();
        assert_eq!(rows.available(), ready);
        if ready == 0 {
            break;
        }
        assert_eq!(rows.wait().unwrap(), ready, "waits only after the last available row");
        for _ in 0..ready {
            read += 1;
            assert_eq!(rows.next().unwrap().unwrap().get::<_, i64>(0).unwrap(), read);
        }
    }
    assert_eq!(read, 20_000);
    assert!(rows.next().unwrap().is_none());
}

#[test]
fn statements_without_rows_have_a_completion() {
    let connection = with_table(3);
    for (sql, tag, changed) in [
        ("UPDATE t SET n = 1 WHERE id < 2", "UPDATE", Some(2)),
        ("CREATE INDEX t_n ON t (n)", "CREATE INDEX", None),
        ("DELETE FROM t WHERE id = 9", "DELETE", Some(0)),
    ] {
        let mut rows = connection.query(sql, ()).unwrap();
        let completion = rows.completion().cloned().unwrap();
        assert_eq!((completion.tag.as_str(), completion.rows), (tag, changed));
        assert_eq!((rows.wait().unwrap(), rows.columns()), (0, vec![]));
    }
    assert!(connection.query("INSERT INTO t VALUES (7) RETURNING id", ()).unwrap().completion().is_none());
}

#[test]
fn the_rest_of_a_result_becomes_batches() {
    let connection = connection();
    let total = |skipped: usize| {
        let mut rows = connection.query("SELECT value FROM generate_series(1, 20000)", ()).unwrap();
        for _ in 0..skipped {
            rows.next().unwrap().unwrap();
        }
        let batches: Vec<RecordBatch> = rows.into_arrow().collect::<keyaki::Result<_>>().unwrap();
        let first = batches.first().map(|batch| Int64Array::from(batch.column(0).to_data()).value(0));
        (first, batches.iter().map(RecordBatch::num_rows).sum::<usize>())
    };
    assert_eq!(total(0), (Some(1), 20_000));
    assert_eq!(total(5), (Some(6), 19_995));
    assert_eq!(total(8_192), (Some(8_193), 11_808));
    assert_eq!(total(20_000), (None, 0));
}

#[test]
fn connections_load_batches() {
    let connection = with_table(0);
    let batch = |ids: Vec<i64>| {
        RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(ids)) as arrow::array::ArrayRef)]).unwrap()
    };
    let batches = [Ok(batch(vec![1, 2])), Ok(batch(vec![3]))];
    assert_eq!(connection.load("t", batches.into_iter()).unwrap(), 3);
    let broken = [Ok(batch(vec![4])), Err(Error::Cancelled)];
    assert!(connection.load("t", broken.into_iter()).is_err());
    assert_eq!(count(&connection, "t"), 3);
}

#[test]
fn a_hook_runs_while_a_call_waits_and_can_interrupt_it() {
    let slow = "SELECT sum(a.value % b.value) FROM generate_series(1, $1) a, generate_series(1, 100000000) b";
    let connection = with_table(3);
    let (calls, is_to_end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (called, end) = (calls.clone(), is_to_end.clone());
    connection.on_wait(Duration::from_millis(1), move || {
        called.fetch_add(1, Ordering::Relaxed) >= 3 && end.load(Ordering::Relaxed)
    });
    let find = connection.prepare("SELECT n FROM t WHERE id = ?").unwrap();
    is_to_end.store(true, Ordering::Relaxed);
    for sql in [slow.replace("$1", "100000"), slow.into()] {
        let values: &[Value] = if sql.contains("$1") { &[Value::Integer(100_000)] } else { &[] };
        let error = connection.query(&sql, values).and_then(|mut rows| rows.next().map(|_| ())).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
    assert!(calls.load(Ordering::Relaxed) >= 4);
    is_to_end.store(false, Ordering::Relaxed);
    // Short statements do not wait.
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(find.query_row((2,), integer).unwrap(), 2);
    assert_eq!(calls.load(Ordering::Relaxed), before);
    assert_eq!(count(&connection, "t"), 3);
}
