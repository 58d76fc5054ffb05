//! The shell's commands, output formats and errors, in scripts. `tests/python/test_shell.py` runs it on a pseudo-terminal.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn keyaki(directory: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyaki"))
        .args(arguments)
        .current_dir(directory)
        .env("HOME", directory)
        .env("XDG_CONFIG_HOME", directory.join("config"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it reads its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The output of a script without errors.
fn shown(directory: &Path, arguments: &[&str], input: &str) -> String {
    let output = keyaki(directory, arguments, input);
    assert_eq!(text(&output.stderr), "", "{input}");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).into()
}

/// The error of a script.
fn failure(directory: &Path, arguments: &[&str], input: &str, code: i32) -> String {
    let output = keyaki(directory, arguments, input);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stderr).into()
}

const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'a|b'), (2, NULL);\n";

#[test]
fn modes_and_their_settings() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    shown(path, &["db"], TABLE);
    let query = "SELECT id, name FROM t ORDER BY id;\n";
    for (script, expected) in [
        (".mode tsv\n", "id\tname\n1\ta|b\n2\t\n"),
        (".mode list\n", "id|name\n1|a|b\n2|\n"),
        (".mode ascii\n", "id\u{1f}name\u{1e}1\u{1f}a|b\u{1e}2\u{1f}\u{1e}"),
        (".mode jsonlines\n", "{\"id\":1,\"name\":\"a|b\"}\n{\"id\":2,\"name\":null}\n"),
        (".mode vertical\n", "  id = 1\nname = a|b\n\n  id = 2\nname = NULL\n"),
        (
            ".mode insert s.u\n",
            "INSERT INTO \"s\".\"u\" (\"id\", \"name\") VALUES (1, 'a|b');\n\
             INSERT INTO \"s\".\"u\" (\"id\", \"name\") VALUES (2, NULL);\n",
        ),
        (".mode csv\n.separator ';'\n.nullvalue -\n.headers off\n", "1;a|b\n2;-\n"),
        (".mode csv\n.separator ';'\n.mode csv\n", "id,name\n1,a|b\n2,\n"),
        (".mode list\n.separator '\\t->'\n", "id\t->name\n1\t->a|b\n2\t->\n"),
        (
            ".maxrows 1\n",
            "┌────┬──────┐\n│ id │ name │\n├────┼──────┤\n│  1 │ a|b  │\n│  ⋮ │ ⋮    │\n└────┴──────┘\n(1 of 2 rows shown)\n",
        ),
        (".width 0 2\n", "┌────┬────┐\n│ id │ n… │\n├────┼────┤\n│  1 │ a… │\n│  2 │ N… │\n└────┴────┘\n"),
        (
            ".mode duckbox\n",
            "┌────────┬──────┐\n│     id │ name │\n│ bigint │ text │\n├────────┼──────┤\n│      1 │ a|b  │\n│      2 │ NULL │\n└────────┴──────┘\n",
        ),
    ] {
        assert_eq!(shown(path, &["db"], &format!("{script}{query}")), expected, "{script}");
    }
    for mode in ["html", "latex", "markdown"] {
        assert!(shown(path, &["db", "--mode", mode], query).contains("name"));
    }
    let narrow = shown(path, &["db"], ".maxwidth 30\nSELECT 1234567890123 AS n, repeat('x', 100) AS x, 5 AS y;\n");
    assert!(narrow.lines().all(|line| line.chars().count() <= 30) && narrow.contains("│ 1234567890123 │"), "{narrow}");
    for (script, expected) in [
        (".mode nonsense", "unknown mode \"nonsense\" (available: table, duckbox, line, csv, tsv"),
        (".mode csv x", "only mode insert has a table"),
        (".separator ,", "mode table has no separator"),
        (".mode csv\n.separator ab", "one ASCII character"),
        (".maxrows x", "invalid number"),
        (".width x", "invalid width"),
        (".headers maybe", "usage: .headers on|off"),
    ] {
        let error = failure(path, &["db"], script, 1);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn commands_for_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("sub")).unwrap();
    let script = format!(
        "{TABLE}.mode csv\n.once once.csv\nSELECT 1 AS once;\nSELECT 2 AS shown;\n.print a  'b c'\n.shell echo \"x  y\"\n\
         .log log.sql\nSELECT 3 AS logged;\n.log off\n.changes on\nUPDATE t SET name = 'c' WHERE id = 1;\n.changes off\n\
         .cd sub\n.output out.csv\nSELECT 4 AS output;\n.output\n.show\n"
    );
    let printed = shown(path, &["db"], &script);
    let file = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    assert_eq!(file("once.csv"), "once\n1\n");
    assert_eq!(file("sub/out.csv"), "output\n4\n");
    let log = file("log.sql");
    assert!(log.starts_with("SELECT 3 AS logged;\n-- ") && log.lines().count() == 2, "{log}");
    let expected = "shown\n2\na b c\nx  y\nlogged\n3\nchanges: 1, total: 3\n";
    assert!(printed.starts_with(expected) && printed.contains("     mode: csv\n"), "{printed}");
    assert!(failure(path, &["db"], ".shell exit 3\n", 1).contains("the command failed (exit status: 3)"));
    assert!(failure(path, &["db"], ".cd nowhere\n", 1).contains("nowhere: No such file"));
    assert!(failure(path, &["db"], ".tabels\n", 1).contains("did you mean .tables?"));
    // The error is in the log, too, and the destination of the next result is the old one again.
    let script = ".log errors.sql\n.once x.csv\nSELECT * FROM nowhere;\nSELECT 5 AS five;\n";
    let output = keyaki(path, &["db", "--continue-on-error", "--mode", "csv"], script);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "five\n5\n"));
    assert!(file("errors.sql").contains("-- error: ") && file("x.csv").is_empty());
}

#[test]
fn parameters() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    shown(path, &["db"], TABLE);
    let script = ".mode csv\n.parameter set name a|b\n.parameter set zip 00501\n.parameter list\n\
                  SELECT id FROM t WHERE name = :name AND id = $id;\nSELECT :zip AS zip, 1::text AS one;\n\
                  .parameter unset zip\n.parameter clear\n.parameter list\n";
    let printed = shown(path, &["db", "--param", "id=1"], script);
    assert_eq!(printed, ":id = 1\n:name = 'a|b'\n:zip = '00501'\nid\n1\nzip,one\n00501,1\n");
    let injected = [
        "db",
        "--mode",
        "csv",
        "--param",
        "x='; DROP TABLE t; --",
        "-c",
        "SELECT :x AS x",
        "-c",
        "SELECT count(*) AS n FROM t",
    ];
    assert_eq!(shown(path, &injected, ""), "x\n'; DROP TABLE t; --\nn\n2\n");
    assert!(failure(path, &["db"], "SELECT :missing;\n", 1).contains("error"));
    assert!(failure(path, &["db"], ".parameter set 1 2\n", 1).contains("invalid name"));
    failure(path, &["db", "--param", "novalue"], "", 2);
    failure(path, &["db", "--param", "a b=1"], "", 2);
}

#[test]
fn commands_of_psql() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let script = format!(
        "{TABLE}CREATE TABLE u (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, t_id BIGINT NOT NULL REFERENCES t (id), \
         price DECIMAL(10,2) DEFAULT 1.5);\nCREATE INDEX u_t ON u (t_id);\nCREATE VIEW v AS SELECT id FROM t;\n\
         CREATE SCHEMA s;\nCREATE ROLE app LOGIN;\n"
    );
    shown(path, &["db"], &script);
    let tables = shown(path, &["db"], "\\d\n");
    assert_eq!(tables, shown(path, &["db"], ".tables\n"));
    assert!(tables.contains("view") && !tables.contains("keyaki_") && !tables.contains("pg_"), "{tables}");
    assert!(!shown(path, &["db", "--mode", "csv"], "SHOW TABLES;\n").contains("keyaki_"));
    let described = shown(path, &["db"], "\\d u\n");
    for expected in [
        "│ id     │ bigint        │ not null │ generated always as identity │",
        "│ t_id   │ bigint        │ not null │",
        "numeric(10,2)",
        "Indexes:\n",
        "u_t ON ",
        "Constraints:\n",
        "PRIMARY KEY (id)",
        "FOREIGN KEY (t_id) REFERENCES t",
    ] {
        assert!(described.contains(expected), "{expected}: {described}");
    }
    assert!(shown(path, &["db"], "\\d v\n").contains("│ id     │ bigint"));
    assert!(failure(path, &["db"], "\\d nowhere\n", 1).contains("table or view \"nowhere\" does not exist"));
    assert!(shown(path, &["db"], "\\di\n").contains("u_t"));
    let views = shown(path, &["db"], "\\dv\n");
    assert!(views.contains("v ") && views.to_lowercase().contains("select"), "{views}");
    let schemas = shown(path, &["db"], "\\dn\n");
    assert!(schemas.contains("│ s ") && schemas.contains("│ public"), "{schemas}");
    assert!(shown(path, &["db"], "\\du\n").contains("│ app"));
    assert!(shown(path, &["db"], "\\l\n").contains("db"));
    assert_eq!(shown(path, &["db"], "\\x\nSELECT 1 AS a;\n\\echo done\n\\q\nSELECT 2;\n"), "a = 1\ndone\n");
    assert!(shown(path, &["db"], "\\?\n").contains("\\timing"));
    assert!(failure(path, &["db"], "\\gexec\n", 1).contains("unknown command \"\\gexec\""));
}

#[test]
fn dumps_are_scripts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let script = "CREATE TABLE parent (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT UNIQUE, up BIGINT);
        ALTER TABLE parent ADD FOREIGN KEY (up) REFERENCES parent (id);
        CREATE TABLE \"Odd Name\" (k INT PRIMARY KEY, f DOUBLE, d DATE, ts TIMESTAMPTZ, x BYTEA, b BOOLEAN, u UUID, a TEXT[],
            i INTERVAL, n DECIMAL(20,5), j JSONB, twice INT GENERATED ALWAYS AS (k * 2) STORED);
        INSERT INTO parent (name, up) VALUES ('it''s', 2), ('line' || chr(10) || 'break', NULL);
        INSERT INTO \"Odd Name\" (k, f, d, ts, x, b, u, a, i, n, j) VALUES
            (1, 'NaN', '2024-02-29', '2024-02-29 12:00:00.123456+00', '\\x00ff', true, '00000000-0000-0000-0000-000000000001',
             ARRAY['a b', NULL, 'c\"d'], INTERVAL '1 month 2 days', -1.5, '{\"k\": [1, \"it''s\"]}'),
            (2, 1e300, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        INSERT INTO \"Odd Name\" (k) SELECT value FROM generate_series(3, 500);
        CREATE VIEW v AS SELECT count(*) AS n FROM parent; CREATE INDEX odd ON \"Odd Name\" (d);";
    shown(path, &["db"], script);
    let dump = shown(path, &["db", "-c", ".dump"], "");
    assert!(dump.contains("INSERT INTO \"public\".\"parent\" (") && !dump.contains("\"twice\""), "{dump}");
    shown(path, &["copy"], &dump);
    let content =
        "SELECT * FROM parent ORDER BY id; SELECT * FROM \"Odd Name\" ORDER BY k; SELECT * FROM v;\n.schema\n";
    assert_eq!(shown(path, &["copy", "--mode", "csv"], content), shown(path, &["db", "--mode", "csv"], content));
    // The identity column continues.
    let next = "INSERT INTO parent (name) VALUES ('next') RETURNING id;";
    assert_eq!(shown(path, &["copy", "--mode", "csv"], next), "id\n3\n");
    for table in ["parent", "Odd Name"] {
        let one = shown(path, &["db", "-c", &format!(".dump '{table}'")], "");
        shown(path, &[&format!("one {table}")], &one);
        let rows = format!("SELECT * FROM \"{table}\" ORDER BY 1;\n");
        let (copied, original) = (format!("one {table}"), "db");
        assert_eq!(shown(path, &[&copied, "--mode", "csv"], &rows), shown(path, &[original, "--mode", "csv"], &rows));
    }
    assert!(failure(path, &["db"], ".dump nowhere\n", 1).contains("table \"nowhere\" does not exist"));
}

#[test]
fn backups_checks_and_restores() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let printed = shown(path, &["db"], &format!("{TABLE}.backup copy\n.check\nEXPORT DATABASE 'dump';\n"));
    assert!(printed.contains(" to copy\n") && printed.contains("no damage in 1 table"), "{printed}");
    assert_eq!(shown(path, &["copy", "--mode", "csv", "-c", "SELECT count(*) AS n FROM t"], ""), "n\n2\n");
    let restored = shown(path, &["new"], ".restore dump\n.mode csv\nSELECT count(*) AS n FROM t;\n");
    assert!(restored.contains("│ t          │    2 │") && restored.ends_with("n\n2\n"), "{restored}");
    assert!(failure(path, &["new"], ".restore copy\n", 1).contains("\"copy\" is a database"));
    assert!(failure(path, &["new"], ".restore nowhere\n", 1).contains("nowhere"));
}

#[test]
fn imports_create_tables() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let file = |name: &str, text: &str| std::fs::write(path.join(name), text).unwrap();
    file("pets.csv", "id,name,born\n2,Kiki,2021-05-17\n1,Momo,\n");
    file("places.tsv", "x\ty\n1\t2.5\n");
    file("lines.ndjson", "{\"a\":1,\"b\":[true]}\n{\"a\":2,\"b\":null}\n");
    file("odd", "a comment\n1;NA\nx;3\n5;4\n");
    file("twice.csv", "id\n1\n1\n");
    let output = shown(
        path,
        &["db"],
        "CREATE SCHEMA s;\n.import --key id pets.csv pets\n.import places.tsv s.places\n.import --schema s lines.ndjson \"My Lines\"\n\
         .import --csv --no-header --delimiter ';' --skip 1 --null NA odd odd\n.import pets.csv plain\n.import pets.csv plain\n\
         .mode csv\nSELECT count(*) FROM plain;\nSELECT name FROM pets WHERE id = 1;\n\
         COPY (SELECT * FROM pets) TO 'pets.parquet';\nCOPY (SELECT * FROM pets) TO 'copy.csv.gz';\n\
         .import pets.parquet again\n.import --key id,name copy.csv.gz zipped\n.import --no-header --skip 1 pets.csv pets2\n",
    );
    let expected = "created table pets (id BIGINT, name TEXT, born DATE, PRIMARY KEY (id))\nloaded 2 rows\n\
         created table s.places (x BIGINT, y DOUBLE PRECISION)\nloaded 1 row\n\
         created table s.\"My Lines\" (a BIGINT, b BOOLEAN[])\nloaded 2 rows\n\
         created table odd (column_1 TEXT, column_2 BIGINT)\nloaded 3 rows\n\
         created table plain (id BIGINT, name TEXT, born DATE)\nloaded 2 rows\n\
         count(*)\n4\nname\nMomo\n\
         created table again (id BIGINT, name TEXT, born DATE)\nloaded 2 rows\n\
         created table zipped (id BIGINT, name TEXT, born DATE, PRIMARY KEY (id, name))\nloaded 2 rows\n\
         created table pets2 (column_1 BIGINT, column_2 TEXT, column_3 DATE)\nloaded 2 rows\n";
    assert_eq!(output, expected);
    for (command, expected) in [
        (".import --key id twice.csv twice", "duplicate key value violates unique constraint \"twice_pkey\""),
        (".import --key no pets.csv twice", "column \"no\" does not exist"),
        (".import --key id pets.csv pets", "--key applies to new tables only"),
        (".import missing.csv twice", "missing.csv"),
        (".import --schema none pets.csv twice", "schema \"none\" does not exist"),
        (".import odd twice", "add --csv, --tsv, --json or --parquet"),
        (".import --skip 1 pets.parquet twice", "CSV and TSV files only"),
        (".import --bad pets.csv twice", "unknown option \"--bad\" of .import"),
    ] {
        let error = failure(path, &["db", "-c", command], "", 1);
        assert!(error.contains(expected), "{command}: {error}");
    }
    // Nothing is left of a table whose rows were refused.
    assert!(failure(path, &["db", "-c", "SELECT * FROM twice"], "", 1).contains("does not exist"));
    file("some.csv", "id,n\n1,2\n3\n5,6\n");
    let kept = keyaki(path, &["db", "-c", ".import --ignore-errors --key id some.csv kept"], "");
    assert_eq!(text(&kept.stdout), "created table kept (id BIGINT, n BIGINT, PRIMARY KEY (id))\nloaded 2 rows\n");
    // In a transaction, with the tables of it.
    let script = "BEGIN;\n.import pets.csv own\n.import pets.csv own\nROLLBACK;\nSELECT * FROM own;\n";
    assert!(failure(path, &["db"], script, 1).contains("relation \"own\" does not exist"));
}

#[test]
fn start_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir_all(path.join("config/keyaki")).unwrap();
    std::fs::write(path.join("config/keyaki/init.sql"), "SELECT 'user' AS init;\n").unwrap();
    std::fs::write(path.join("first.sql"), ".mode csv\n.parameter set p 7\n").unwrap();
    // Scripts do not depend on the user's file.
    assert_eq!(shown(path, &["--mode", "csv", "-c", "SELECT 1 AS a"], ""), "a\n1\n");
    assert_eq!(shown(path, &["--init", "first.sql", "-c", "SELECT :p AS p"], ""), "p\n7\n");
    assert!(failure(path, &["--init", "missing.sql", "-c", "SELECT 1"], "", 1).contains("missing.sql"));
    failure(path, &["--init", "first.sql", "--no-init"], "", 2);
}

#[test]
fn paths_that_are_no_databases() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (name, bytes, expected) in [
        ("a.db", &b"SQLite format 3\0........"[..], "is an SQLite database"),
        ("b.duckdb", b"checksumDUCK............", "is a DuckDB database"),
        ("c.parquet", b"PAR1....................", "is a Parquet file"),
        ("d.csv", b"id,name\n1,a\n", "is a file"),
    ] {
        std::fs::write(path.join(name), bytes).unwrap();
        for arguments in [vec![name, "-c", "SELECT 1"], vec!["check", name], vec!["serve", name]] {
            let error = failure(path, &arguments, "", 1);
            assert!(error.contains(expected) && error.contains("a Keyaki database is a directory"), "{error}");
        }
        assert!(failure(path, &["-c", &format!(".open {name}")], "", 1).contains(expected));
    }
    std::fs::create_dir(path.join("photos")).unwrap();
    std::fs::write(path.join("photos/a.jpg"), "x").unwrap();
    let error = failure(path, &["photos", "-c", "SELECT 1"], "", 1);
    assert!(
        error.contains("/photos\" is not a Keyaki database: the directory contains another file, \"a.jpg\""),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(path.join("photos")).unwrap().count(), 1);
    for word in ["srve", "chekc", "restor"] {
        let error = failure(path, &[word], "SELECT 1;", 2);
        assert!(error.contains("did you mean keyaki ") && !path.join(word).exists(), "{error}");
    }
    failure(path, &["srve", "db"], "", 2);
    assert!(!path.join("srve").exists());
    assert_eq!(shown(path, &["./srve", "--mode", "csv", "-c", "SELECT 1 AS a"], ""), "a\n1\n");
}

#[test]
fn errors_show_no_passwords() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    shown(path, &["db"], "CREATE ROLE app;\n");
    let statements = [
        "ALTER ROLE nobody PASSWORD 'geheim'",
        "CREATE ROLE app PASSWORD 'geheim'",
        "ALTER ROLE app PASWORD 'geheim' PASSWORD 'x'",
    ];
    for sql in statements {
        let error = failure(path, &["db", "-c", sql], "", 1);
        assert!(!error.contains("geheim"), "{error}");
    }
}

#[test]
fn indexes_are_suggested() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let rows = "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT value AS id, value % 5000 AS a, 'text ' || value AS b, value % 3 AS c \
                FROM generate_series(1, 50000); ANALYZE;\n";
    shown(path, &["db"], rows);
    let query = "SELECT b FROM t WHERE a = :a AND b <> 'it''s'";
    let direct = shown(path, &["db", "--param", "a=7"], &format!(".expert {query};\n"));
    assert!(direct.starts_with("CREATE INDEX t_a_idx ON t (a)"), "{direct}");
    assert!(
        direct.contains(";\n-- estimated: ") && direct.contains(" before, ") && direct.contains("t.t_a_idx"),
        "{direct}"
    );
    assert!(direct.contains("plan with the index\nestimated  operator\n"), "{direct}");
    // The statement after the command is not executed, the one after it is.
    let next = format!(".expert\n.once found\n{query};\n.mode csv\nSELECT count(*) AS n FROM t WHERE a = 7;\n");
    assert_eq!(shown(path, &["db", "--param", "a=7"], &next), "n\n10\n");
    let found = std::fs::read_to_string(path.join("found")).unwrap();
    assert_eq!(found.lines().next(), direct.lines().next());
    assert!(found.contains("plan with the index\n"), "{found}");
    let deleted = shown(path, &["db"], ".expert\nDELETE FROM t WHERE a = 7;\n.indexes\nSELECT 4 + 5 AS nine;\n");
    assert!(deleted.starts_with("CREATE INDEX t_a_idx") && deleted.contains("nine"), "{deleted}");
    let none = shown(path, &["db"], ".expert SELECT * FROM t WHERE id = 1\n");
    assert!(none.starts_with("-- no further index is worthwhile; estimated: "), "{none}");
    // The output is a script.
    let script: Vec<&str> = direct.lines().take_while(|line| !line.is_empty()).collect();
    shown(path, &["db"], &format!("{}\n", script.join("\n")));
    let after = shown(path, &["db", "--param", "a=7"], &format!(".expert {query}\n"));
    assert!(after.starts_with("-- no further index") && after.contains("t.t_a_idx"), "{after}");
    for (statement, expected) in [("CREATE TABLE u (a INT)", "not supported"), ("SELECT x FROM t", "\"x\"")] {
        let error = failure(path, &["db", "-c", &format!(".expert {statement}")], "", 1);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn completions_and_manual() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for shell in ["bash", "zsh", "fish"] {
        let script = shown(path, &["completions", shell], "");
        assert!(script.contains("keyaki") && script.contains("calibrate"), "{script}");
    }
    failure(path, &["completions", "cmd"], "", 2);
    assert!(shown(path, &["man"], "").contains(".TH keyaki 1"));
    assert!(shown(path, &["man", "serve"], "").contains("max\\-connections"));
    assert!(failure(path, &["man", "nonsense"], "", 2).contains("unknown command \"nonsense\""));
}

#[test]
fn reads_are_plotted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let rows = "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT value AS id, md5(value::TEXT) AS a \
                FROM generate_series(1, 50000);\nCHECKPOINT;\n";
    shown(path, &["db"], rows);
    let query = "SELECT max(a) < 'g' AS found FROM t;\n";
    let cold = shown(path, &["db", "--mode", "csv"], &format!(".maxwidth 50\n{query}.plot\n"));
    assert!(cold.starts_with("found\ntrue\nreads in flight\n"), "{cold}");
    assert!(cold.contains("\nreads per second\n") && cold.contains(" ms\n") && cold.contains('█'), "{cold}");
    assert!(cold.contains("\nscan t: ") && cold.contains(" reads, "), "{cold}");
    let plots = cold.lines().filter(|line| line.contains(['┤', '┼']));
    assert!(plots.clone().count() == 14 && plots.clone().all(|line| line.chars().count() <= 50), "{cold}");
    let warm = shown(path, &["db", "--mode", "csv"], &format!("{query}{query}.plot\n"));
    assert!(warm.ends_with("found all of its pages in memory (DROP CACHES, then run it again)\n"), "{warm}");
    let none = shown(path, &["db", "--mode", "csv"], "SELECT 1 AS one;\n.plot\n");
    assert!(none.contains("no reads are recorded: the last statement ran no scan or pipeline"), "{none}");
}

#[test]
fn closed_pipes_end_silently() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    shown(path, &["db"], TABLE);
    let query = "SELECT value, repeat('x', 100) AS x FROM generate_series(1, 300000)";
    for arguments in [
        vec!["db", "-c", query],
        vec!["db", "--mode", "json", "-c", query],
        vec!["db", "--mode", "insert", "-c", query],
        vec!["db", "-c", ".help", "-c", ".schema", "-c", query],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyaki"))
            .args(&arguments)
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut head = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut head).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn long_values() {
    let directory = tempfile::tempdir().unwrap();
    // 8 MB took a minute when the width of a column was computed anew for each word.
    let printed = shown(directory.path(), &["-c", "SELECT repeat('word ', 1600000) AS long, 1 AS n"], "");
    assert!(printed.len() > 8_000_000 && printed.lines().count() == 5);
}
