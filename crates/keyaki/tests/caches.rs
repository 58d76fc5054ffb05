//! Control of the CPU caches: classes of operators, scans that bypass the cache, WARM and PIN, the system view, memory
//! traces.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use keyaki::CacheCalibration;
use keyaki::{CacheGovernor, Database, Error, ObjectKind, Options, Session};
use keyaki_llc::calibrate::{CacheProfile, Latency};
use keyaki_llc::sim::trace::TraceReader;
use keyaki_llc::software::{ScanMethod, Tuning};
use keyaki_llc::{Caches, Quartiles};

/// The governor belongs to the process. Tests that set it hold this lock.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const ROWS: i64 = 200_000;
/// Capacity of the last-level cache according to the calibration.
const CACHE_BYTES: u64 = 1 << 20;

fn options() -> Options {
    Options {
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    }
}

/// A calibration with a last-level cache of [`CACHE_BYTES`], in which `method` is the fastest scan method.
fn measured(method: ScanMethod) -> CacheCalibration {
    let latency = |working_set_bytes, ns: f64| Latency { working_set_bytes, load_ns: Quartiles::of(&[ns]) };
    let latencies = vec![latency(CACHE_BYTES, 10.0), latency(64 << 20, 100.0)];
    let profile = CacheProfile { caches: Caches::default(), huge_pages: None, latencies, retentions: Vec::new() };
    let mut tuning = Tuning::plain("a test");
    tuning.method = method;
    CacheCalibration { profile, tuning }
}

/// A database with a table larger than the cache, and a smaller table with an index on disk and an in-memory index.
async fn filled(directory: &std::path::Path) -> (Database, Session) {
    let database = Database::open(directory, options()).unwrap();
    let session = database.session();
    let table = "CREATE TABLE big (id BIGINT PRIMARY KEY, a BIGINT NOT NULL, b TEXT)";
    let rows = "SELECT value, value * 7919 % 100003, 'text ' || (value * 104729 % 1000003) || ' and more of it'";
    let fill = format!("INSERT INTO big {rows} FROM generate_series(1, {ROWS})");
    let small = "CREATE TABLE small AS SELECT * FROM big WHERE id <= 5000";
    let indexes = "CREATE INDEX small_a ON small (a); CREATE INDEX small_memory ON small USING masstree (a)";
    session.execute(&format!("{table}; {fill}; {small}; {indexes}; CHECKPOINT")).await.unwrap();
    (database, session)
}

async fn text(session: &Session, sql: &str) -> String {
    let batches = session.query(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

async fn error(session: &Session, sql: &str) -> Error {
    session.execute(sql).await.expect_err(sql)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_have_classes_and_streams_spare_the_cache() {
    let _turn = TURN.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (database, session) = filled(dir.path()).await;
    let sum = "SELECT sum(a), max(b), count(*) FROM big";
    let filtered = "SELECT count(*), min(b) FROM big WHERE a % 10 = 3 AND b LIKE '%7%'";
    session.execute("SET keyaki.cache_governor = off").await.unwrap();
    assert!(!text(&session, &format!("EXPLAIN {sum}")).await.contains("class="));
    let expected = (text(&session, sum).await, text(&session, filtered).await);
    session.execute("RESET keyaki.cache_governor").await.unwrap();
    assert!(text(&session, "SHOW keyaki.cache_governor").await.contains("on"));
    session.execute("SET keyaki.cache_governor = off; RESET ALL").await.unwrap();
    for method in [
        ScanMethod::Plain,
        ScanMethod::FlushBehind { behind_bytes: 1024 },
        ScanMethod::NonTemporal { ahead_bytes: 4096 },
    ] {
        database.set_cache_calibration(measured(method)).unwrap();
        session.execute("PIN INDEX small_a").await.unwrap();
        let plan = text(&session, &format!("EXPLAIN {sum}")).await;
        assert!(plan.contains("class=streaming"), "{plan}");
        for execution in ["out_of_order", "in_order"] {
            session.execute(&format!("SET keyaki.execution = '{execution}'")).await.unwrap();
            assert_eq!((text(&session, sum).await, text(&session, filtered).await), expected, "{method}");
            let analyzed = text(&session, &format!("EXPLAIN ANALYZE {sum}")).await;
            assert!(analyzed.contains("class=streaming"), "{analyzed}");
            assert_eq!(analyzed.contains("pages_spared="), method != ScanMethod::Plain, "{method}: {analyzed}");
        }
        session.execute("RESET keyaki.execution; UNPIN INDEX small_a").await.unwrap();
    }
    let bytes = database.tables().into_iter().find(|table| table.name == "big").unwrap().bytes;
    assert!(bytes > CACHE_BYTES, "{bytes}");
    let half = ROWS as u64 * (CACHE_BYTES / 2) / bytes;
    let range = format!("SELECT max(b) FROM big WHERE id < {half}");
    for (sql, class) in [
        ("SELECT b FROM big WHERE id = 77", "sensitive"),
        ("SELECT b FROM big LIMIT 3", "sensitive"),
        (&range, "adaptive"),
        ("SELECT s.b FROM small s JOIN big ON big.id = s.a WHERE s.id < 5", "sensitive"),
    ] {
        let plan = text(&session, &format!("EXPLAIN {sql}")).await;
        assert!(plan.contains(&format!("class={class}")), "{sql}: {plan}");
        session.query(sql).await.unwrap().collect().await.unwrap();
    }
    // The calibration survives reopening.
    drop((session, database));
    let database = Database::open(dir.path(), options()).unwrap();
    let status = database.cache_status();
    assert_eq!((status.measured, status.cache_bytes), (true, CACHE_BYTES));
    assert!(text(&database.session(), &format!("EXPLAIN {sum}")).await.contains("class=streaming"));
    drop(database);
    std::fs::write(dir.path().join("caches.json"), "nonsense").unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    assert!(!database.cache_status().measured);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_and_pin() {
    let _turn = TURN.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (database, session) = filled(dir.path()).await;
    database.set_cache_calibration(measured(ScanMethod::Plain)).unwrap();
    database.drop_caches();
    let warmed = session.query("WARM TABLE big").await.unwrap().collect().await.unwrap();
    let number = |column: usize| warmed[0].column(column).as_primitive::<Int64Type>().value(0);
    assert_eq!(number(1), ROWS);
    assert!(number(2) > 50 && number(3) == 0 && number(4) as u64 > CACHE_BYTES, "{warmed:?}");
    assert!(warmed[0].column(5).as_primitive::<Float64Type>().value(0) > 0.0);
    assert!(warmed[0].column(6).as_string_view().value(0).contains("larger than the CPU's cache"), "{warmed:?}");
    let analyzed = text(&session, "EXPLAIN ANALYZE SELECT sum(a), max(b) FROM big").await;
    assert!(analyzed.contains("pages_read=0"), "everything is in the page cache: {analyzed}");
    let memory = text(&session, "WARM INDEX small_memory").await;
    assert!(memory.contains("in the CPU's cache now") && memory.contains("| 5000 "), "{memory}");

    let pinned = text(&session, "PIN INDEX small_a").await;
    assert!(pinned.contains("pages stay in the page cache"), "{pinned}");
    session.execute("PIN INDEX small_memory; PIN INDEX small_a").await.unwrap();
    let view = "SELECT name, bytes > 0, detail FROM keyaki_cache WHERE kind = 'pin' ORDER BY name";
    let shown = text(&session, view).await;
    assert!(shown.contains("small_a") && shown.contains("in memory") && shown.lines().count() == 6, "{shown}");
    let kept = |database: &Database| {
        let pins = database.cache_status().pins;
        pins.iter().find(|pin| pin.name == "small_a").map(|pin| (pin.pages, pin.pages_kept))
    };
    let (pages, stay) = kept(&database).unwrap();
    assert!(pages >= 2 && pages == stay, "{pages} {stay}");
    // A scan larger than the page cache does not displace pinned pages. Only flushes of changes to their leaves replace
    // them.
    session.query("SELECT sum(a), max(b) FROM big").await.unwrap().collect().await.unwrap();
    assert_eq!(kept(&database), Some((pages, stay)));
    assert!(error(&session, "PIN TABLE big").await.to_string().starts_with("cannot pin \"big\": it takes "));
    assert_eq!(database.cache_status().pins.len(), 2);
    assert!(matches!(
        error(&session, "PIN INDEX nowhere").await.root(),
        Error::NotFound { kind: ObjectKind::Index, .. }
    ));
    assert!(matches!(
        error(&session, "WARM TABLE nowhere").await.root(),
        Error::NotFound { kind: ObjectKind::Relation, .. }
    ));
    assert!(matches!(error(&session, "UNPIN TABLE small").await, Error::PrerequisiteState(_)));
    for wrong in ["WARM", "PIN small", "PIN INDEX", "UNPIN INDEX a b", "WARM VIEW v"] {
        assert!(matches!(error(&session, wrong).await.root(), Error::Syntax { .. }), "{wrong}");
    }
    session.execute("UNPIN INDEX small_a; DROP INDEX small_memory").await.unwrap();
    assert!(database.cache_status().pins.is_empty());
    session.execute("PIN TABLE small; DROP TABLE small").await.unwrap();
    assert!(database.cache_status().pins.is_empty());
    session.execute("CREATE TABLE tiny AS SELECT * FROM big WHERE id < 10; PIN TABLE tiny").await.unwrap();
    database.set_cache_governor(CacheGovernor::Off);
    assert!(database.cache_status().pins.is_empty() && database.cache_status().governor.is_none());
    assert!(error(&session, "PIN TABLE tiny").await.to_string().contains("keyaki.cache_governor is off"));
    session.execute("WARM TABLE tiny").await.unwrap();
    assert!(text(&session, "SELECT kind, detail FROM keyaki_cache").await.contains("is off"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_name_objects_and_classes() {
    let _turn = TURN.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (database, session) = filled(dir.path()).await;
    let file = dir.path().join("trace");
    let trace = database.start_memory_trace(&file).unwrap();
    for sql in ["SELECT sum(a) FROM small", "SELECT b FROM big WHERE id = 500"] {
        session.query(sql).await.unwrap().collect().await.unwrap();
    }
    let accesses = database.end_memory_trace(&trace).unwrap();
    assert!(database.end_memory_trace(&trace).is_err(), "the trace has ended");
    session.query("SELECT sum(a) FROM big").await.unwrap().collect().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let reader = TraceReader::new(std::io::BufReader::new(std::fs::File::open(&file).unwrap())).unwrap();
    let header = reader.header().clone();
    let recorded: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(recorded.len() as u64, accesses);
    let of = |name: &str| {
        let number = header.objects.iter().position(|object| object == name).unwrap();
        recorded.iter().filter(|access| usize::from(access.object) == number).count()
    };
    // The scan reads one of three columns, of at most about a hundred bytes per row. The lookup reads a few cache
    // lines.
    let scanned = of("small") + of("small.small_a");
    assert!(scanned > 40 && scanned < 5000, "{scanned}");
    assert!((3..100).contains(&of("big")), "{}", of("big"));
    let classes: std::collections::BTreeSet<&str> =
        recorded.iter().map(|access| header.classes[usize::from(access.class)].as_str()).collect();
    assert!(classes.contains("sensitive") && !classes.contains("unclassified"), "{classes:?}");
    assert!(database.start_memory_trace(&dir.path().join("no/where")).is_err());
}
