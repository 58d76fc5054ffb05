//! The program as scripts use it: exit codes, output modes, where errors go.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn keyaki(arguments: &[&str], database: &Path, input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyaki"))
        .arg(database)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_script_creates_and_queries() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let script = "
        CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, total DECIMAL(12,2));
        INSERT INTO t VALUES (1, 'one', 1.50), (2, NULL, -0.25);  -- a comment; with a semicolon
        SELECT *
        FROM t ORDER BY id;
        .mode csv
        SELECT count(*) AS n FROM t;";
    let output = keyaki(&[], &database, script);
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    let expected = "\
┌────┬──────┬───────┐
│ id │ name │ total │
├────┼──────┼───────┤
│  1 │ one  │  1.50 │
│  2 │ NULL │ -0.25 │
└────┴──────┴───────┘
n
2
";
    assert_eq!(text(&output.stdout), expected);
    let output = keyaki(&["--mode", "json", "-c", "SELECT * FROM t ORDER BY id", "-c", ".tables x%"], &database, "");
    let expected = "[{\"id\":1,\"name\":\"one\",\"total\":1.50},\n {\"id\":2,\"name\":null,\"total\":-0.25}]\n";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn the_first_error_stops_a_script() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let script = "SELECT 1 AS a;\n\nSELECT * FROM nowhere;\nSELECT 2 AS b;\n";
    let output = keyaki(&["--mode", "csv"], &database, script);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "a\n1\n");
    assert!(text(&output.stderr).starts_with("error: stdin:3: "), "{}", text(&output.stderr));
    let output = keyaki(&["--mode", "csv", "--continue-on-error"], &database, script);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "a\n1\nb\n2\n");
}

#[test]
fn syntax_errors_show_the_position() {
    let directory = tempfile::tempdir().unwrap();
    let output = keyaki(&["-c", "SELECT 1\nFROM t WHERE (a = 1 ORDER BY 1"], &directory.path().join("db"), "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("\n  FROM t WHERE (a = 1 ORDER BY 1\n  "), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("error: -c:2: ") && text(&output.stderr).ends_with("^\n"));
}

#[test]
fn invalid_usage_has_its_own_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    assert_eq!(keyaki(&["--mode", "nonsense"], &database, "").status.code(), Some(2));
    assert_eq!(keyaki(&["--memory", "lots"], &database, "").status.code(), Some(2));
    let output = keyaki(&["--no-create", "-c", "SELECT 1"], &database, "");
    assert_eq!(output.status.code(), Some(1));
    assert!(!database.exists());
}

#[test]
fn databases_are_read_beside_the_process_that_writes() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let missing = keyaki(&["--readonly", "-c", "SELECT 1"], &database, "");
    assert_eq!(missing.status.code(), Some(1));
    assert!(!database.exists());
    let options = || keyaki::Options { memory_bytes: Some(64 << 20), ..Default::default() };
    let writer = keyaki::Connection::open_with(&database, options()).unwrap();
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)", ()).unwrap();
    writer.execute("INSERT INTO t VALUES (41)", ()).unwrap();
    let locked = keyaki(&["-c", "SELECT 1"], &database, "");
    assert_eq!(locked.status.code(), Some(1));
    assert!(text(&locked.stderr).contains("is locked"), "{}", text(&locked.stderr));
    let read = keyaki(&["--readonly", "--mode", "csv", "-c", "SELECT id + 1 AS n FROM t"], &database, "");
    assert_eq!((text(&read.stdout), text(&read.stderr)), ("n\n42\n", ""));
    let refused = keyaki(&["--readonly", "-c", "DELETE FROM t"], &database, "");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("the database is open read-only"), "{}", text(&refused.stderr));
}

#[test]
fn commands_of_the_shell() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let rows = directory.path().join("rows.csv");
    std::fs::write(&rows, "id,name\n1,a\n2,\"b,c\"\n").unwrap();
    let out = directory.path().join("out.txt");
    let nested = directory.path().join("nested.sql");
    std::fs::write(&nested, "SELECT name FROM t WHERE id = 2;\n").unwrap();
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); CREATE INDEX by_name ON t (name);\n.import '{}' t\n.mode csv\n\
         .output {}\n.read {}\n.output\n.indexes\n.schema t\n.help mode\n.quit\nSELECT 'never';\n",
        rows.display(),
        out.display(),
        nested.display()
    );
    let output = keyaki(&[], &database, &script);
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "name\n\"b,c\"\n");
    let shown = text(&output.stdout);
    assert!(shown.contains("by_name") && shown.contains("CREATE TABLE") && shown.contains("CREATE INDEX"), "{shown}");
    assert!(shown.contains("markdown") && !shown.contains("never"), "{shown}");
    assert_eq!(keyaki(&["-c", ".nonsense"], &database, "").status.code(), Some(1));
}

#[test]
fn devices_change_times_only() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let other = directory.path().join("other");
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT);
         INSERT INTO t SELECT value, value * 7 FROM generate_series(1, 1000);\nCHECKPOINT;\n.open '{}'\nSELECT 5 AS five;\n",
        other.display()
    );
    let output = keyaki(&["--mode", "csv", "--device", "array(4 ssd)"], &database, &script);
    assert_eq!((text(&output.stderr), text(&output.stdout)), ("", "five\n5\n"));
    let start = std::time::Instant::now();
    let query = ["--mode", "csv", "-c", "SELECT a FROM t WHERE id = 900"];
    let output = keyaki(&[&query[..], &["--device", "disk(20ms)"]].concat(), &database, "");
    assert_eq!((text(&output.stderr), text(&output.stdout)), ("", "a\n6300\n"));
    assert!(start.elapsed() >= std::time::Duration::from_millis(20), "opening and reading take several reads");
    assert_eq!(text(&keyaki(&query, &database, "").stdout), "a\n6300\n");
    assert!(other.join("data").exists() && !database.join("calibration.json").exists());
    let output = keyaki(&["--device", "arry(40 ssd)"], &database, "");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("unknown device \"arry\": expected array(N ssd)"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyaki"))
        .arg(directory.path().join("db"))
        .args(["--mode", "csv", "-c", "SELECT * FROM generate_series(1, 1000000)"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn caches_and_traces() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let trace = directory.path().join("trace");
    let script = "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT);
        INSERT INTO t SELECT value, value * 7 % 1000 FROM generate_series(1, 20000);
        CREATE INDEX t_a ON t (a); CHECKPOINT;
        PIN INDEX t_a;\n.cache\n.help cache\nSET keyaki.cache_governor = off;\n.cache\n";
    let output = keyaki(&[], &database, script);
    assert_eq!(text(&output.stderr), "");
    let shown = text(&output.stdout);
    for expected in ["path: ", "scans: ", "sensitive: ", "pin \"t_a\": ", "WARM TABLE t", "the cache governor is off"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let run = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_keyaki")).args(arguments).output().unwrap();
    let (path, file) = (database.to_str().unwrap(), trace.to_str().unwrap());
    let output = run(&["trace", path, "--memory", file, "--", "SELECT sum(a) FROM t WHERE id < 9000"]);
    assert!(output.status.success() && text(&output.stderr).contains("accesses recorded"), "{output:?}");
    let output = run(&["trace", "--replay", file, "--cache-kib", "2048"]);
    let replayed = text(&output.stdout);
    assert!(
        replayed.contains("last-level cache of 2048 KiB") && replayed.contains("missed, partitioned"),
        "{output:?}"
    );
    assert!(
        replayed.lines().any(|line| line.trim_start().starts_with("t ") || line.trim_start().starts_with("t.t_a ")),
        "{replayed}"
    );
    assert_eq!(run(&["trace", "--replay", path]).status.code(), Some(1));
    assert_eq!(run(&["trace", path, "--memory", file]).status.code(), Some(2));
    assert_eq!(run(&["trace"]).status.code(), Some(2));
    let (events, figure) = (directory.path().join("events.json"), directory.path().join("figure.svg"));
    let output = run(&["trace", path, "-o", events.to_str().unwrap(), "--", "SELECT sum(a) FROM t WHERE id < 9000"]);
    assert!(output.status.success() && text(&output.stderr).contains("events of the query's reads"), "{output:?}");
    let document = std::fs::read_to_string(&events).unwrap();
    assert!(document.contains("\"traceEvents\"") && document.contains("pages requested"), "{document}");
    let output = run(&["plot", path, "-o", figure.to_str().unwrap(), "--", "SELECT sum(a) FROM t WHERE a < 500"]);
    assert!(output.status.success() && text(&output.stdout).contains("in order"), "{output:?}");
    assert!(std::fs::read_to_string(&figure).unwrap().contains("reads per second"));
    let output = run(&["plot", path, "-o", figure.to_str().unwrap(), "--", "SELECT 1"]);
    assert!(text(&output.stderr).contains("read no pages from the device"), "{output:?}");
    assert_eq!(run(&["plot", path, "--", "SELECT 1"]).status.code(), Some(2));
    let output = run(&["plot", path, "-o", figure.to_str().unwrap(), "--", "DELETE FROM t"]);
    assert!(text(&output.stderr).contains("read-only transaction"), "{output:?}");
    assert_eq!(run(&["calibrate"]).status.code(), Some(2));
    assert_eq!(run(&["calibrate", "--cache", "/no/such/database"]).status.code(), Some(1));
}

#[test]
fn backups_are_complete_and_checks_print_problems() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let rows = "INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, 5000)";
    let script = format!("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); {rows}; CREATE INDEX t_name ON t (name);");
    assert!(keyaki(&[], &database, &script).status.success());
    let check = || Command::new(env!("CARGO_BIN_EXE_keyaki")).arg("check").arg(&database).output().unwrap();
    let output = check();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let expected = "no damage in 1 table and 1 index (5,000 rows, ";
    assert!(text(&output.stdout).starts_with(expected), "{output:?}");
    let copy = directory.path().join("it's a copy");
    let backup = || Command::new(env!("CARGO_BIN_EXE_keyaki")).arg("backup").args([&database, &copy]).output().unwrap();
    let output = backup();
    assert!(output.status.success() && text(&output.stdout).starts_with("copied "), "{output:?}");
    let output = backup();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("the directory has files"), "{output:?}");
    let update = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyaki"));
        command.args(["backup", "--incremental"]).args([&database, &copy]).output().unwrap()
    };
    let output = update();
    assert!(output.status.success() && text(&output.stdout).contains(", which already had "), "{output:?}");
    let count = keyaki(&["--mode", "csv", "-c", "SELECT count(*) AS n FROM t WHERE name LIKE 'text%'"], &copy, "");
    assert_eq!(text(&count.stdout), "n\n5000\n");
    let data = database.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let at = bytes.windows(5).position(|window| window == b"text ").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let output = check();
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.contains(" of table t: ") || printed.starts_with("table t: "), "{printed}");
    assert!(printed.contains("checksum") && printed.contains(", keys from ("), "{printed}");
    assert!(printed.contains("1 problem in 1 table and 1 index"), "{printed}");
    std::fs::remove_dir_all(&copy).unwrap();
    let output = backup();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("checksum"), "{output:?}");
    assert!(!copy.join("data").exists());
    let missing = Command::new(env!("CARGO_BIN_EXE_keyaki")).args(["check", "/no/such/database"]).output().unwrap();
    assert!(missing.status.code() == Some(1) && text(&missing.stderr).contains("does not exist"), "{missing:?}");
}

#[test]
fn dumps_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let script = "CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT); CREATE SCHEMA s;
        INSERT INTO t (name) SELECT 'text ' || value FROM generate_series(1, 5000); CREATE INDEX t_name ON t (lower(name));
        CREATE TABLE s.u (t_id BIGINT REFERENCES t (id)); INSERT INTO s.u VALUES (7), (NULL); CREATE VIEW v AS SELECT * FROM s.u;";
    assert!(keyaki(&[], &database, script).status.success());
    let run = |command: &str, from: &Path, to: &Path| {
        Command::new(env!("CARGO_BIN_EXE_keyaki")).arg(command).args([from, to]).output().unwrap()
    };
    let failed = |output: Output, expected: &str| {
        assert!(output.status.code() == Some(1) && text(&output.stderr).contains(expected), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    };
    let (dump, copy) = (directory.path().join("it's a dump"), directory.path().join("it's a copy"));
    let output = run("dump", &database, &dump);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("│ public      │ t          │ 5000 │"), "{printed}");
    assert!(printed.contains("\ndumped 5,002 rows (") && printed.ends_with("it's a dump\n"), "{printed}");
    failed(run("dump", &database, &dump), "the directory has files");
    failed(run("dump", &directory.path().join("nowhere"), &copy), "does not exist");
    failed(run("restore", &database, &copy), "not a complete export");
    failed(run("restore", &directory.path().join("nowhere"), &copy), "No such file");
    failed(run("restore", &dump, &database), "the directory has files");
    let file = dump.join("data").join("1-t.parquet");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    failed(run("restore", &dump, &copy), "1-t.parquet");
    let mut damaged = bytes.clone();
    damaged[..1000].fill(0);
    std::fs::write(&file, damaged).unwrap();
    failed(run("restore", &dump, &copy), "1-t.parquet");
    std::fs::write(&file, bytes).unwrap();
    // Neither the database nor a temporary one is left.
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["db", "it's a dump"]);
    std::fs::create_dir(&copy).unwrap();
    let output = run("restore", &dump, &copy);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let expected = "\
┌─────────────┬────────────┬──────┐
│ schema_name │ table_name │ rows │
├─────────────┼────────────┼──────┤
│ public      │ t          │ 5000 │
│ s           │ u          │    2 │
└─────────────┴────────────┴──────┘
restored 5,002 rows to ";
    assert!(text(&output.stdout).starts_with(expected), "{}", text(&output.stdout));
    let query = "INSERT INTO t (name) VALUES ('x') RETURNING id; SELECT count(*) AS n FROM v;";
    let output = keyaki(&["--mode", "csv", "-c", query], &copy, "");
    assert_eq!(text(&output.stdout), "id\n5001\nn\n2\n");
    let schema = |database: &Path| text(&keyaki(&["-c", ".schema"], database, "").stdout).to_string();
    assert_eq!(schema(&copy), schema(&database));
    let help = Command::new(env!("CARGO_BIN_EXE_keyaki")).args(["restore", "--help"]).output().unwrap();
    assert!(text(&help.stdout).contains("<DIRECTORY> <DATABASE>"), "{help:?}");
}

#[test]
fn damaged_databases_are_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("db");
    let rows = "INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, 5000)";
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); {rows}; CREATE UNIQUE INDEX t_name ON t (name);
         CREATE VIEW v AS SELECT count(*) AS n FROM t;"
    );
    assert!(keyaki(&[], &database, &script).status.success());
    let run = |command: &str, paths: &[&Path]| {
        Command::new(env!("CARGO_BIN_EXE_keyaki")).arg(command).args(paths).output().unwrap()
    };
    let (intact, repaired) = (directory.path().join("intact"), directory.path().join("it's repaired"));
    let output = run("repair", &[&database, &intact]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let expected = "\
┌─────────────┬────────────┬──────┬───────────────┬─────────────┬─────────────────┐
│ schema_name │ table_name │ rows │ damaged_pages │ lost_ranges │ outdated_ranges │
├─────────────┼────────────┼──────┼───────────────┼─────────────┼─────────────────┤
│ public      │ t          │ 5000 │             0 │           0 │               0 │
└─────────────┴────────────┴──────┴───────────────┴─────────────┴─────────────────┘
salvaged 5,000 rows to ";
    assert!(text(&output.stdout).starts_with(expected), "{}", text(&output.stdout));
    let data = database.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    // A page of rows: the table has tree 16.
    let is_leaf = |at: &usize| bytes[*at..].starts_with(b"KYPG") && bytes[at + 16] == 16 && bytes[at + 24] == 0;
    let at = (65_536..bytes.len() / 4096 * 4096).step_by(4096).filter(is_leaf).nth(1).unwrap();
    bytes[at + 100] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    let output = run("check", &[&database]);
    assert!(output.status.code() == Some(1), "{output:?}");
    assert!(
        text(&output.stdout).contains("\nrestore a backup, or salvage the intact rows: keyaki repair '"),
        "{output:?}"
    );
    let output = run("repair", &[&database, &repaired]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        printed.contains("table t: rows are lost, keys from (") && printed.contains("it's repaired\n"),
        "{printed}"
    );
    assert!(text(&output.stderr).contains("the new database lacks data of the damaged one"), "{output:?}");
    assert!(run("check", &[&repaired]).status.success());
    let query = "SELECT n BETWEEN 3000 AND 4999 AS most FROM v; SELECT id FROM t WHERE name = 'text 5000'";
    let output = keyaki(&["--mode", "csv", "-c", query], &repaired, "");
    assert_eq!(text(&output.stdout), "most\ntrue\nid\n5000\n");
    let failed = |output: Output, code: i32, expected: &str| {
        assert!(output.status.code() == Some(code) && text(&output.stderr).contains(expected), "{output:?}");
    };
    failed(run("repair", &[&database, &repaired]), 1, "the directory has files");
    failed(run("repair", &[&database, &database.join("inside")]), 2, "lies within the damaged one");
    let other = directory.path().join("other");
    failed(run("repair", &[&directory.path().join("nowhere"), &other]), 1, "does not exist");
    for slot in [0, 32 << 10] {
        bytes[slot + 20] ^= 1;
    }
    std::fs::write(&data, bytes).unwrap();
    failed(run("repair", &[&database, &other]), 1, "corrupt superblock");
    failed(run("check", &[&database]), 1, "keyaki repair '");
    // Neither a database nor a temporary one is left of a failed repair.
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["db", "intact", "it's repaired"]);
}
