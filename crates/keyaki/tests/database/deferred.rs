//! DEFERRABLE foreign keys: checked at the commit, or when SET CONSTRAINTS makes them immediate.

use keyaki::{Connection, Error, TransactionStatus};

/// Tables `p` and `c`, where `c.p` refers to `p` with a constraint `c_p_fkey` of these clauses; rows 1 and 2 of `p`, row 10 of
/// `c`, which refers to 1. Indexed or not.
fn open(clauses: &str, indexed: bool) -> Connection {
    let connection = Connection::open_temporary().unwrap();
    let index = if indexed { "CREATE INDEX ON c (p)" } else { "SELECT 1" };
    connection
        .execute_batch(&format!(
            "CREATE TABLE p (id INT PRIMARY KEY);
             CREATE TABLE c (id INT PRIMARY KEY, p INT REFERENCES p {clauses});
             {index};
             INSERT INTO p VALUES (1), (2);
             INSERT INTO c VALUES (10, 1)"
        ))
        .unwrap();
    connection
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::MissingReference { name, .. } if name == "c_p_fkey")
}

fn is_referenced(error: &Error) -> bool {
    matches!(error, Error::StillReferenced { name, .. } if name == "c_p_fkey")
}

const DEFERRED: &str = "DEFERRABLE INITIALLY DEFERRED";

#[test]
fn violations_are_found_at_the_commit() {
    for indexed in [false, true] {
        let connection = open(DEFERRED, indexed);
        for (change, of_row) in [
            ("INSERT INTO c VALUES (11, 7)", true),
            ("INSERT INTO c SELECT 11, 7", true),
            ("UPDATE c SET p = 7", true),
            ("DELETE FROM p WHERE id = 1", false),
            ("UPDATE p SET id = 7 WHERE id = 1", false),
            ("INSERT INTO c VALUES (11, 2); DELETE FROM p WHERE id = 2", false),
            ("DELETE FROM p WHERE id = 2; INSERT INTO c VALUES (11, 2)", true),
        ] {
            connection.execute_batch(&format!("BEGIN; {change}")).unwrap();
            let error = connection.execute("COMMIT", ()).unwrap_err();
            assert!(if of_row { is_missing(&error) } else { is_referenced(&error) }, "{change}: {error}");
            assert_eq!(connection.session().transaction_status(), TransactionStatus::Idle, "{change}");
            // Outside of a transaction, the end of the statement is the commit.
            if !change.contains(';') {
                let error = connection.execute(change, ()).unwrap_err();
                assert!(if of_row { is_missing(&error) } else { is_referenced(&error) }, "{change}: {error}");
            }
        }
        let rows: i64 =
            connection.query_row("SELECT count(*) FROM c JOIN p ON p = p.id", (), |row| row.get(0)).unwrap();
        assert_eq!(rows, 1);
    }
}

#[test]
fn violations_may_disappear_before_the_commit() {
    for indexed in [false, true] {
        for changes in [
            "INSERT INTO c VALUES (11, 7); INSERT INTO p VALUES (7)",
            "INSERT INTO c VALUES (11, 7); DELETE FROM c WHERE id = 11",
            "INSERT INTO c VALUES (11, 7); UPDATE c SET p = 2 WHERE id = 11",
            "DELETE FROM p WHERE id = 1; INSERT INTO p VALUES (1)",
            "DELETE FROM p WHERE id = 1; DELETE FROM c",
            "UPDATE p SET id = 3 WHERE id = 1; UPDATE c SET p = 3",
            "SAVEPOINT s; INSERT INTO c VALUES (11, 7); ROLLBACK TO s",
            "INSERT INTO c VALUES (11, 7); INSERT INTO p VALUES (7); ALTER TABLE c RENAME TO d; ALTER TABLE p RENAME TO q",
            "INSERT INTO c VALUES (11, 7); CREATE TABLE d (x INT); INSERT INTO p VALUES (7)",
        ] {
            let connection = open(DEFERRED, indexed);
            connection.execute_batch(&format!("BEGIN; {changes}; COMMIT")).unwrap_or_else(|e| panic!("{changes}: {e}"));
            // A rollback forgets the violations.
            connection.execute_batch("BEGIN; SELECT 1; COMMIT").unwrap();
        }
        let connection = open(DEFERRED, indexed);
        connection
            .execute_batch("BEGIN; INSERT INTO c VALUES (11, 7); ROLLBACK; BEGIN; INSERT INTO c VALUES (12, 2)")
            .unwrap();
        connection.execute("COMMIT", ()).unwrap();
    }
}

/// ROLLBACK TO a savepoint restores checks that were made since, and forgets those that were added.
#[test]
fn savepoints_keep_the_checks() {
    for verified in
        ["SET CONSTRAINTS ALL IMMEDIATE", "ALTER TABLE other ADD COLUMN x INT", "SET CONSTRAINTS ALL DEFERRED"]
    {
        let connection = open(DEFERRED, true);
        connection
            .execute_batch(&format!(
                "CREATE TABLE other (id INT); BEGIN; INSERT INTO c VALUES (11, 7); SAVEPOINT s; INSERT INTO p VALUES (7);
                 {verified}; ROLLBACK TO s"
            ))
            .unwrap();
        assert!(is_missing(&connection.execute("COMMIT", ()).unwrap_err()), "{verified}");
        assert_eq!(connection.session().transaction_status(), TransactionStatus::Idle);
    }
    let connection = open(DEFERRED, true);
    for undone in [
        "CREATE TABLE d (p INT REFERENCES p INITIALLY DEFERRED); INSERT INTO d VALUES (7)",
        "ALTER TABLE c RENAME TO c2; INSERT INTO c2 VALUES (11, 7)",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "SAVEPOINT t; INSERT INTO c VALUES (11, 7); RELEASE t",
    ] {
        connection.execute_batch(&format!("BEGIN; SAVEPOINT s; {undone}; ROLLBACK TO s")).unwrap();
        connection.execute_batch("INSERT INTO c VALUES (11, 7); DELETE FROM c WHERE id = 11; COMMIT").unwrap();
    }
}

/// As in PostgreSQL, definitions cannot change while checks are open.
#[test]
fn changes_of_definitions_make_the_checks() {
    for change in [
        "DROP TABLE c",
        "ALTER TABLE c RENAME TO d",
        "ALTER TABLE p RENAME TO q",
        "ALTER TABLE c RENAME CONSTRAINT c_p_fkey TO f",
        "ALTER TABLE c DROP CONSTRAINT c_p_fkey",
        "ALTER TABLE c ADD COLUMN x INT",
        "TRUNCATE c",
    ] {
        let connection = open(DEFERRED, true);
        connection.execute_batch("BEGIN; INSERT INTO c VALUES (11, 7)").unwrap();
        assert!(is_missing(&connection.execute(change, ()).unwrap_err()), "{change}");
        connection.execute_batch("ROLLBACK; BEGIN; INSERT INTO c VALUES (11, 7)").unwrap();
        assert!(is_missing(&connection.prepare(change).unwrap().execute(()).unwrap_err()), "prepared {change}");
        connection.execute("ROLLBACK", ()).unwrap();
        connection.execute_batch(&format!("BEGIN; {change}; COMMIT")).unwrap_or_else(|e| panic!("{change}: {e}"));
    }
    // Violations after the change are still found.
    let connection = open(DEFERRED, true);
    connection
        .execute_batch("BEGIN; ALTER TABLE c RENAME TO d; ALTER TABLE p RENAME TO q; INSERT INTO d VALUES (11, 7)")
        .unwrap();
    assert!(is_missing(&connection.execute("COMMIT", ()).unwrap_err()));
}

/// COMMIT that is interrupted while it checks ends normally.
#[test]
fn an_interrupted_commit_ends_the_transaction() {
    let connection = open(DEFERRED, true);
    let rows = "SELECT value FROM generate_series(100, 20000)";
    connection
        .execute_batch(&format!("BEGIN; INSERT INTO c SELECT value, value FROM ({rows}); INSERT INTO p {rows}"))
        .unwrap();
    let handle = connection.interrupt_handle();
    let ended = std::thread::scope(|scope| {
        let commit = scope.spawn(|| connection.execute("COMMIT", ()));
        std::thread::sleep(std::time::Duration::from_millis(5));
        handle.interrupt();
        commit.join().unwrap()
    });
    let status = connection.session().transaction_status();
    match ended {
        Ok(_) => assert_eq!(status, TransactionStatus::Idle),
        // The interrupt was earlier than the checks.
        Err(error) => assert!(matches!(error, Error::Cancelled), "{error}"),
    }
    if status != TransactionStatus::Idle {
        connection.execute("ROLLBACK", ()).unwrap();
    }
    let rows: i64 = connection.query_row("SELECT count(*) FROM c", (), |row| row.get(0)).unwrap();
    assert!([1, 19_902].contains(&rows), "{rows}");
}

#[test]
fn actions_and_restrict_are_not_deferred() {
    let connection = open("ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED", true);
    connection.execute_batch("BEGIN; DELETE FROM p WHERE id = 1").unwrap();
    let left: i64 = connection.query_row("SELECT count(*) FROM c", (), |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    connection.execute("COMMIT", ()).unwrap();
    let connection = open("ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED", true);
    connection.execute("BEGIN", ()).unwrap();
    assert!(is_referenced(&connection.execute("DELETE FROM p WHERE id = 1", ()).unwrap_err()));
}

#[test]
fn set_constraints_changes_the_time() {
    let connection = open("DEFERRABLE", true);
    let violation = "INSERT INTO c VALUES (11, 7)";
    let immediate = |connection: &Connection| {
        connection.execute("BEGIN", ()).unwrap();
        assert!(is_missing(&connection.execute(violation, ()).unwrap_err()));
        connection.execute("ROLLBACK", ()).unwrap();
    };
    immediate(&connection);
    for deferral in ["ALL", "c_p_fkey", "public.c_p_fkey", "\"c_p_fkey\""] {
        connection.execute_batch(&format!("BEGIN; SET CONSTRAINTS {deferral} DEFERRED; {violation}")).unwrap();
        assert!(is_missing(&connection.execute("COMMIT", ()).unwrap_err()));
        // The next transaction begins with the definition's time.
        immediate(&connection);
        connection.execute_batch(&format!("BEGIN; SET CONSTRAINTS {deferral} DEFERRED; {violation}")).unwrap();
        let error = connection.execute(&format!("SET CONSTRAINTS {deferral} IMMEDIATE"), ()).unwrap_err();
        assert!(is_missing(&error));
        connection.execute("ROLLBACK", ()).unwrap();
        connection
            .execute_batch(&format!(
                "BEGIN; SET CONSTRAINTS {deferral} DEFERRED; {violation}; INSERT INTO p VALUES (7);
                 SET CONSTRAINTS {deferral} IMMEDIATE; DELETE FROM c WHERE id = 11; DELETE FROM p WHERE id = 7"
            ))
            .unwrap();
        assert!(is_missing(&connection.execute(violation, ()).unwrap_err()), "it is immediate now");
        connection.execute("ROLLBACK", ()).unwrap();
    }
    connection.execute("SET CONSTRAINTS ALL DEFERRED", ()).unwrap();
    immediate(&connection);
    for (sql, state) in [
        ("SET CONSTRAINTS nothing DEFERRED", "42704"),
        ("SET CONSTRAINTS other.c_p_fkey DEFERRED", "42704"),
        ("SET CONSTRAINTS ALL", "42601"),
        ("SET CONSTRAINTS c_p_fkey LATER", "42601"),
        ("CREATE TABLE d (p INT REFERENCES p NOT DEFERRABLE INITIALLY DEFERRED)", "42P17"),
    ] {
        assert_eq!(connection.execute(sql, ()).unwrap_err().sqlstate().code(), state, "{sql}");
    }
    let plain = open("", true);
    assert!(plain.execute("SET CONSTRAINTS c_p_fkey DEFERRED", ()).is_err(), "not deferrable");
}

#[test]
fn definitions_show_the_time() {
    for (clauses, shown, flags) in [
        ("NOT DEFERRABLE", "", (false, false)),
        ("DEFERRABLE", " DEFERRABLE", (true, false)),
        ("DEFERRABLE INITIALLY IMMEDIATE", " DEFERRABLE", (true, false)),
        ("INITIALLY DEFERRED", " DEFERRABLE INITIALLY DEFERRED", (true, true)),
        (
            "ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED",
            " ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED",
            (true, true),
        ),
    ] {
        let connection = open(clauses, false);
        let sql = "SELECT pg_get_constraintdef(oid), condeferrable, condeferred FROM pg_constraint WHERE contype = 'f'";
        let row: (String, bool, bool) =
            connection.query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        assert_eq!(row, (format!("FOREIGN KEY (p) REFERENCES p(id){shown}"), flags.0, flags.1));
        let created: String = connection.query_row("SHOW CREATE TABLE c", (), |row| row.get("definition")).unwrap();
        assert!(
            created.contains(&format!("(\"id\"){shown}")) || created.contains(&format!("(id){shown}")),
            "{created}"
        );
        let view = "SELECT is_deferrable, initially_deferred FROM information_schema.table_constraints \
                    WHERE constraint_type = 'FOREIGN KEY'";
        let yes = |holds: bool| if holds { "YES" } else { "NO" };
        let row: (String, String) = connection.query_row(view, (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!((row.0.as_str(), row.1.as_str()), (yes(flags.0), yes(flags.1)));
    }
}
