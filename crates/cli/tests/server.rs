//! `keyaki sql`: the shell as a client of a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_keyaki");

/// `keyaki serve` on a free port.
struct Served {
    directory: TempDir,
    child: Child,
    port: u16,
}

impl Served {
    fn start(setup: &str, options: &[&str]) -> Served {
        Served::start_in(tempfile::tempdir().unwrap(), setup, options)
    }

    fn start_in(directory: TempDir, setup: &str, options: &[&str]) -> Served {
        let database = directory.path().join("db");
        let done = Command::new(PROGRAM).arg(&database).args(["-c", setup]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(&database).args(["--listen", "127.0.0.1:0"]).args(options);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        // The log must not fill its pipe.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Served { directory, child, port }
    }

    fn address(&self, user: &str, parameters: &str) -> String {
        format!("postgres://{user}@localhost:{}/shop?{parameters}", self.port)
    }

    fn sql(&self, arguments: &[&str], input: &str) -> Output {
        self.sql_at(&self.address("me", ""), arguments, input, &[])
    }

    fn sql_at(&self, address: &str, arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = self.command(address);
        let mut child = command.args(arguments).envs(variables.iter().copied()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Without the variables of the user's environment, and without a terminal.
    fn command(&self, address: &str) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(PROGRAM).args(["sql", address]).env("HOME", self.directory.path());
        for name in
            ["PGPASSWORD", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSSLMODE", "PGSSLROOTCERT", "PGPASSFILE"]
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const TABLE: &str =
    "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, total DECIMAL(12,2), f DOUBLE PRECISION, b BOOLEAN);
    INSERT INTO t VALUES (1, 'one', 1.50, 0.25, true), (2, NULL, -0.25, NULL, false)";

#[test]
fn results_are_those_of_the_embedded_shell() {
    let directory = tempfile::tempdir().unwrap();
    let script = "SELECT id, name, total, f, b FROM t ORDER BY id;\nSELECT id FROM t WHERE id > 5;\n\
                  UPDATE t SET name = 'two' WHERE id = 2;\nSELECT count(*) AS n FROM t;\n";
    for mode in ["table", "csv", "json", "line", "markdown"] {
        let database = directory.path().join(mode);
        let local = |input: &str| {
            let mut child = Command::new(PROGRAM)
                .args([database.to_str().unwrap(), "--mode", mode])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        };
        let expected = local(&format!("{TABLE};\n{script}"));
        let served = Served::start(TABLE, &[]);
        let found = served.sql(&["--mode", mode], script);
        assert_eq!((text(&found.stderr), text(&found.stdout)), ("", text(&expected.stdout)), "{mode}");
    }
}

#[test]
fn statements_transactions_and_errors() {
    let served = Served::start(TABLE, &[]);
    let script = "BEGIN;\nINSERT INTO t (id) VALUES (3), (4);\nROLLBACK;\n.mode csv\nSELECT count(*) AS n FROM t;\n";
    let output = served.sql(&["--timer"], script);
    let shown = text(&output.stdout);
    assert!(shown.contains("BEGIN, ") && shown.contains("INSERT, 2 rows, ") && shown.ends_with("n\n2\n"), "{output:?}");
    let output = served.sql(&["-c", "SELECT 1\nFROM t WHERE (a = 1 ORDER BY 1"], "");
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stderr);
    assert!(shown.starts_with("error: -c:2: ") && shown.contains("\n  FROM t WHERE (a = 1 ORDER BY 1\n  "), "{shown}");
    assert!(shown.ends_with("^\n"), "{shown}");
    let script = "SELECT 1 AS a;\nSELECT * FROM nowhere;\nSELECT 2 AS b;\n";
    let output = served.sql(&["--mode", "csv", "--continue-on-error"], script);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "a\n1\nb\n2\n"));
    assert!(text(&output.stderr).starts_with("error: stdin:2: "), "{output:?}");
    let output = served.sql(&["-c", "COMMIT"], "");
    assert!(output.status.success() && text(&output.stderr).starts_with("WARNING: "), "{output:?}");
    let output = served.sql(&["-c", "COPY t FROM STDIN"], "");
    assert!(text(&output.stderr).contains("use .import"), "{output:?}");
    let output = served.sql(&["--mode", "csv", "-c", "COPY (SELECT id, name FROM t ORDER BY id) TO STDOUT"], "");
    assert_eq!(text(&output.stdout), "copy\n1\tone\n2\t\\N\n");
    let query = "COPY (SELECT a, repeat('x', 100) FROM generate_series(1, 50000) g (a)) TO STDOUT";
    let output = served.sql(&["--mode", "csv", "-c", query], "");
    assert_eq!(text(&output.stdout).lines().count(), 50_001);
    let output = served.sql(&["--mode", "csv", "-c", "SELECT a FROM generate_series(1, 100000) g (a)"], "");
    assert_eq!(text(&output.stdout).lines().count(), 100_001);
}

/// The rows of COPY FROM STDIN are lines of the script.
#[test]
fn scripts_with_rows() {
    let served = Served::start("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)", &[]);
    let rows: String = (0..20_000).map(|id| format!("{id}\tname of {id}\n")).collect();
    let script = format!("COPY t FROM STDIN;\n{rows}\\.\nSELECT count(*) AS n, max(name) AS m FROM t;\n");
    let output = served.sql(&["--mode", "csv"], &script);
    assert_eq!((text(&output.stderr), text(&output.stdout)), ("", "n,m\n20000,name of 9999\n"));
    // The rows of a statement that fails are skipped, and end with the script.
    let script = "COPY nowhere FROM STDIN;\n1\n\\.\nSELECT 1 AS a;\nCOPY t FROM STDIN;\n7\tagain\n";
    let output = served.sql(&["--mode", "csv", "--continue-on-error"], script);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "a\n1\n"), "{output:?}");
    let errors = text(&output.stderr);
    assert!(errors.starts_with("error: stdin:1: ") && errors.contains("error: stdin:5: "), "{errors}");
}

#[test]
fn notices_and_notifications() {
    let served = Served::start("CREATE SEQUENCE numbers START WITH 5", &[]);
    let output = served.sql(&["-c", "DROP TABLE IF EXISTS a; LISTEN c; NOTIFY c, 'hello'; SELECT 1"], "");
    let messages = text(&output.stderr);
    assert!(messages.starts_with("NOTICE: table \"a\" does not exist, skipping\n"), "{messages}");
    assert!(
        messages.contains("notification on channel \"c\" from process") && messages.contains(": hello"),
        "{messages}"
    );
    let output = served.sql(&["-c", ".schema"], "");
    assert!(text(&output.stdout).starts_with("CREATE SEQUENCE numbers AS bigint INCREMENT BY 1"), "{output:?}");
}

#[test]
fn commands_of_the_shell() {
    let setup = "CREATE TABLE parent (id BIGINT PRIMARY KEY, name TEXT NOT NULL DEFAULT 'x');
         CREATE TABLE child (id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, p BIGINT REFERENCES parent (id), CHECK (p > 0));
         CREATE INDEX by_name ON parent (name); CREATE VIEW shown AS SELECT id FROM parent;
         COMMENT ON COLUMN parent.name IS 'it''s a name'";
    let served = Served::start(setup, &[]);
    let rows = served.directory.path().join("rows.csv");
    std::fs::write(&rows, "id,name\n1,a\n2,\"b,c\"\n").unwrap();
    let script = format!(".import '{}' parent\n.tables\n.tables ch%\n.indexes\n.databases\n.schema\n", rows.display());
    let output = served.sql(&[], &script);
    assert_eq!(text(&output.stderr), "");
    let shown = text(&output.stdout);
    for expected in [
        "shown",
        "view",
        "by_name",
        "CREATE TABLE parent (",
        "id bigint NOT NULL",
        "PRIMARY KEY (id)",
        "GENERATED ALWAYS AS IDENTITY",
        "ADD CONSTRAINT child_p_fkey FOREIGN KEY",
        "COMMENT ON COLUMN parent.name IS 'it''s a name';",
        "CREATE VIEW shown AS",
        "not encrypted",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let output = served.sql(&["--mode", "csv", "-c", "SELECT name FROM parent ORDER BY id"], "");
    assert_eq!(text(&output.stdout), "name\na\n\"b,c\"\n");
    // The scripts of .schema create the same tables again.
    let again = Served::start("SELECT 1", &[]);
    let definitions = served.sql(&["-c", ".schema"], "");
    let created = again.sql(&[], text(&definitions.stdout));
    assert_eq!(text(&created.stderr), "");
    assert_eq!(text(&again.sql(&["-c", ".schema"], "").stdout), text(&definitions.stdout));
    for (command, expected) in [
        (".stats", "needs an embedded database"),
        (".cache", "needs an embedded database"),
        (".plot", "needs an embedded database"),
        (".expert", "needs an embedded database"),
        (".expert SELECT 1", "needs an embedded database"),
        (".schema nowhere", "does not exist"),
        (".import rows.parquet parent", "only CSV and TSV files"),
    ] {
        let output = served.sql(&["-c", command], "");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
    // A new table.
    let new = served.sql(&["-c", &format!(".import --key id '{}' imported", rows.display())], "");
    assert_eq!((text(&new.stderr), new.status.code()), ("", Some(0)));
    assert!(
        text(&new.stdout).starts_with("created table imported (id BIGINT, name TEXT, PRIMARY KEY (id))\n"),
        "{new:?}"
    );
    let output = served.sql(&["--mode", "csv", "-c", "SELECT name FROM imported ORDER BY id"], "");
    assert_eq!(text(&output.stdout), "name\na\n\"b,c\"\n");
    served.sql(&["-c", "DROP TABLE imported"], "");
    // From an embedded database to the server.
    let open = format!(".open '{}'\n.mode csv\nSELECT count(*) AS n FROM parent;\n", served.address("me", ""));
    let mut child = Command::new(PROGRAM).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(open.as_bytes()).unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "n\n2\n");
}

#[test]
fn passwords_and_addresses() {
    let served = Served::start("CREATE ROLE app LOGIN PASSWORD 'se:cret'", &[]);
    let (address, query) = (served.address("app", ""), ["--mode", "csv", "-c", "SELECT current_user AS u"]);
    let ask = |address: &str, variables: &[(&str, &str)]| served.sql_at(address, &query, "", variables);
    let output = ask(&address, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("requires the password of \"app\""), "{output:?}");
    assert_eq!(text(&ask(&address, &[("PGPASSWORD", "se:cret")]).stdout), "u\napp\n");
    assert_eq!(text(&ask(&address.replace("app@", "app:se%3Acret@"), &[]).stdout), "u\napp\n");
    let file = served.directory.path().join(".pgpass");
    std::fs::write(&file, format!("localhost:{}:*:app:se\\:cret\n", served.port)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(text(&ask(&address, &[]).stdout), "u\napp\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(text(&ask(&address, &[]).stderr).contains("has group or world access"));
    let wrong = ask(&address, &[("PGPASSWORD", "wrong")]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("password authentication failed") && !text(&wrong.stderr).contains("wrong"));
    let required = ask(&served.address("app", "sslmode=require"), &[("PGPASSWORD", "se:cret")]);
    assert!(text(&required.stderr).contains("does not support TLS"), "{required:?}");
    let nobody = ask("postgres://me@127.0.0.1:1/x", &[]);
    assert!(text(&nobody.stderr).contains("could not connect to me@127.0.0.1:1/x"), "{nobody:?}");
    assert_eq!(ask("postgres://me@localhost/x?nonsense=1", &[]).status.code(), Some(2));
}

/// A certificate of localhost that signs itself, and its key.
fn certificate(directory: &Path) -> [String; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    let files = ["server.crt", "server.key"].map(|name| directory.join(name));
    std::fs::write(&files[0], params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&files[1], key.serialize_pem()).unwrap();
    std::fs::set_permissions(&files[1], std::fs::Permissions::from_mode(0o600)).unwrap();
    files.map(|file| file.to_str().unwrap().to_string())
}

#[test]
fn encryption_is_verified() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate_file, key] = certificate(directory.path());
    let other = tempfile::tempdir().unwrap();
    let [unrelated, _] = certificate(other.path());
    let setup = "CREATE ROLE app LOGIN PASSWORD 'secret'";
    let served = Served::start_in(directory, setup, &["--tls-certificate", &certificate_file, "--tls-key", &key]);
    let ask =
        |parameters: &str| served.sql_at(&served.address("app:secret", parameters), &["-c", ".databases"], "", &[]);
    for parameters in [
        "sslmode=prefer".to_string(),
        "sslmode=require&channel_binding=require".into(),
        format!("sslmode=verify-full&sslrootcert={certificate_file}&channel_binding=require"),
        format!("sslmode=verify-ca&sslrootcert={certificate_file}"),
        "sslmode=require&channel_binding=disable".into(),
    ] {
        let output = ask(&parameters);
        assert!(text(&output.stdout).contains("TLS)"), "{parameters}: {output:?}");
    }
    assert!(text(&ask("sslmode=disable").stdout).contains("not encrypted"));
    for (parameters, expected) in [
        (format!("sslmode=verify-full&sslrootcert={unrelated}"), "TLS: "),
        (format!("sslmode=verify-ca&sslrootcert={unrelated}"), "TLS: "),
        (format!("sslmode=require&sslrootcert={unrelated}"), "TLS: "),
        ("sslmode=verify-full".into(), "need the certificates of authorities"),
        ("sslmode=verify-full&sslrootcert=/nowhere".into(), "could not read \"/nowhere\""),
        ("sslmode=disable&channel_binding=require".into(), "channel binding is required"),
    ] {
        let output = ask(&parameters);
        assert!(!output.status.success() && text(&output.stderr).contains(expected), "{parameters}: {output:?}");
    }
    // The certificate has another name.
    let address = served
        .address("app:secret", &format!("sslrootcert={certificate_file}&sslmode="))
        .replace("localhost", "127.0.0.1");
    let full = served.sql_at(&format!("{address}verify-full"), &["-c", ".databases"], "", &[]);
    assert!(text(&full.stderr).contains("TLS: "), "{full:?}");
    let authority = served.sql_at(&format!("{address}verify-ca"), &["-c", ".databases"], "", &[]);
    assert!(text(&authority.stdout).contains("TLS)"), "{authority:?}");
}

#[test]
fn an_interrupt_cancels_the_statement_on_the_server() {
    let served = Served::start("CREATE TABLE t (id INTEGER PRIMARY KEY)", &[]);
    for query in [
        "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)",
        "SELECT a FROM generate_series(1, 100000000000) g (a)",
    ] {
        // Without setsid, whose child would not get the signal.
        let mut command = Command::new(PROGRAM);
        command.args(["sql", &served.address("me", ""), "--mode", "csv", "-c", query]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        std::thread::sleep(Duration::from_millis(1500));
        let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(interrupted.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{query}");
        reader.join().unwrap().unwrap();
    }
    let running = ["--mode", "csv", "-c", "SELECT count(*) AS n FROM keyaki_queries WHERE status = 'running'"];
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = served.sql(&running, "");
        if text(&output.stdout) == "n\n1\n" {
            break;
        }
        assert!(Instant::now() < deadline, "{output:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
