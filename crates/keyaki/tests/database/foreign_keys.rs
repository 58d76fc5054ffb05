//! FOREIGN KEY constraints under concurrent changes, and in loads.
//!
//! The invariant of all tests: no committed row refers to a key that does not exist.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki::{Connection, Error, Isolation, Options, Transaction};
use keyaki_primitives::Random;

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

/// Two connections of a database in which `c` refers to `p`, with rows 1 and 2 in `p`, and (10, 1) in `c`.
fn two(indexed: bool) -> (Connection, Connection) {
    let first = Connection::open_temporary().unwrap();
    first
        .execute_batch(
            "CREATE TABLE p (id INT PRIMARY KEY, name TEXT);
             CREATE TABLE c (id INT PRIMARY KEY, p INT REFERENCES p, other INT);
             INSERT INTO p VALUES (1, 'one'), (2, 'two'); INSERT INTO c VALUES (10, 1, 0)",
        )
        .unwrap();
    if indexed {
        first.execute("CREATE INDEX c_p ON c (p)", ()).unwrap();
    }
    let second = first.try_clone().unwrap();
    // The sessions share a thread: their statements must not wait for each other.
    for connection in [&first, &second] {
        connection.execute("SET keyaki.row_locks = 'off'", ()).unwrap();
    }
    (first, second)
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Number of rows of `c` that refer to nothing.
fn orphans(connection: &Connection) -> i64 {
    number(connection, "SELECT count(*) FROM c LEFT JOIN p ON c.p = p.id WHERE c.p IS NOT NULL AND p.id IS NULL")
}

/// True if the transaction was committed, false after a conflict.
fn commits(transaction: Transaction<'_>) -> bool {
    match transaction.commit() {
        Ok(()) => true,
        Err(Error::Conflict { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

const ADD: &str = "INSERT INTO c VALUES (11, 2, 0)";
const POINT: &str = "UPDATE c SET p = 2 WHERE id = 10";
const REMOVE: &str = "DELETE FROM p WHERE id = 2";
const RENAME: &str = "UPDATE p SET id = 3 WHERE id = 2";

/// Of a new reference to a key and the removal of the key, one is refused, in whatever order they are made and committed.
#[test]
fn references_and_removals_conflict() {
    for level in LEVELS {
        for indexed in [false, true] {
            for (reference, removal) in [(ADD, REMOVE), (ADD, RENAME), (POINT, REMOVE), (POINT, RENAME)] {
                for (earlier, later) in [(reference, removal), (removal, reference)] {
                    let label = format!("{level}, indexed: {indexed}: {earlier}; {later}");
                    // Both in transactions; the first or the last one that began is committed first.
                    for reversed in [false, true] {
                        let (a, b) = two(indexed);
                        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
                        first.execute(earlier, ()).unwrap();
                        second.execute(later, ()).unwrap();
                        let (first, second) = if reversed { (second, first) } else { (first, second) };
                        assert!(commits(first), "{label}");
                        assert!(!commits(second), "{label}");
                        assert_eq!(orphans(&a), 0, "{label}");
                    }
                    // The later one outside of a transaction.
                    let (a, b) = two(indexed);
                    let first = a.transaction_at(level).unwrap();
                    first.execute(earlier, ()).unwrap();
                    b.execute(later, ()).unwrap();
                    assert!(!commits(first), "{label}");
                    assert_eq!(orphans(&a), 0, "{label}");
                }
            }
        }
    }
}

/// Changes of a referenced row that keep its key do not conflict with references to it.
#[test]
fn other_changes_do_not_conflict() {
    for level in LEVELS {
        for indexed in [false, true] {
            for change in [
                "UPDATE p SET name = 'TWO' WHERE id = 2",
                "UPDATE p SET name = 'TWO', id = 2 WHERE id = 2",
                "INSERT OR REPLACE INTO p VALUES (2, 'TWO')",
                "DELETE FROM p WHERE id = 3",
                "INSERT INTO p VALUES (4, 'four')",
            ] {
                let (a, b) = two(indexed);
                a.execute("INSERT INTO p VALUES (3, 'three')", ()).unwrap();
                let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
                first.execute(ADD, ()).unwrap();
                second.execute(change, ()).unwrap();
                assert!(commits(second));
                assert!(commits(first), "{level}, indexed: {indexed}: {change}");
                assert_eq!(orphans(&a), 0);
            }
            // Two references to the same key.
            let (a, b) = two(indexed);
            let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
            first.execute(ADD, ()).unwrap();
            second.execute("INSERT INTO c VALUES (12, 2, 0)", ()).unwrap();
            assert!(commits(first) && commits(second));
        }
    }
}

/// Removed and restored within one transaction, a key is not removed.
#[test]
fn restored_keys_exist() {
    for level in LEVELS {
        let (a, b) = two(true);
        let first = a.transaction_at(level).unwrap();
        first.execute(ADD, ()).unwrap();
        b.execute_batch("BEGIN; DELETE FROM p WHERE id = 2; INSERT INTO p VALUES (2, 'again'); COMMIT").unwrap();
        assert!(commits(first), "{level}");
        assert_eq!(orphans(&a), 0);
    }
}

/// Actions of a transaction that is not the first to commit do not lose the rows that others have added meanwhile.
#[test]
fn actions_conflict_with_new_references() {
    for level in LEVELS {
        for indexed in [false, true] {
            for action in ["CASCADE", "SET NULL", "SET DEFAULT"] {
                for removal in [REMOVE, RENAME] {
                    let (a, b) = two(indexed);
                    let alter = format!(
                        "ALTER TABLE c DROP CONSTRAINT c_p_fkey,
                         ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES p ON DELETE {action} ON UPDATE {action}"
                    );
                    a.execute(&alter, ()).unwrap();
                    a.execute("INSERT INTO c VALUES (9, 2, 0)", ()).unwrap();
                    let first = a.transaction_at(level).unwrap();
                    first.execute(removal, ()).unwrap();
                    b.execute(ADD, ()).unwrap();
                    assert!(!commits(first), "{level}, indexed: {indexed}: {action}");
                    assert_eq!(orphans(&a), 0);
                    a.execute(removal, ()).unwrap();
                    assert_eq!(orphans(&a), 0);
                    let (rows, null) = match (action, removal) {
                        ("CASCADE", REMOVE) => (1, 0),
                        ("CASCADE", _) => (3, 0),
                        _ => (3, 2),
                    };
                    assert_eq!(number(&a, "SELECT count(*) FROM c"), rows);
                    assert_eq!(number(&a, "SELECT count(*) FROM c WHERE p IS NULL"), null);
                }
            }
        }
    }
}

/// Definitions that change during a transaction.
#[test]
fn definitions_conflict_with_references() {
    for definition in [
        "ALTER TABLE p ADD COLUMN more INT DEFAULT 7",
        "ALTER TABLE p ALTER COLUMN id TYPE BIGINT",
        "TRUNCATE p CASCADE",
        "DROP TABLE p CASCADE",
        "ALTER TABLE p RENAME TO q",
        "ALTER TABLE p RENAME COLUMN id TO key",
    ] {
        let (a, b) = two(true);
        let first = a.transaction().unwrap();
        first.execute(ADD, ()).unwrap();
        b.execute_batch(definition).unwrap_or_else(|error| panic!("{definition}: {error}"));
        let committed = commits(first);
        let is_kept = definition.contains("COLUMN") || definition.contains("RENAME");
        let sql = match definition {
            _ if !is_kept => {
                assert!(!committed, "{definition}");
                continue;
            }
            _ if definition.ends_with("q") => "SELECT count(*) FROM c JOIN q ON c.p = q.id",
            _ if definition.ends_with("key") => "SELECT count(*) FROM c JOIN p ON c.p = p.key",
            _ => "SELECT count(*) FROM c JOIN p ON c.p = p.id",
        };
        assert_eq!(number(&a, sql), 1 + i64::from(committed), "{definition}");
    }
    // A constraint that is added after the transaction has removed the key.
    for definition in [
        "CREATE TABLE d (p INT REFERENCES p); INSERT INTO d VALUES (2)",
        "CREATE TABLE d (p INT); INSERT INTO d VALUES (2); ALTER TABLE d ADD FOREIGN KEY (p) REFERENCES p",
    ] {
        let (a, b) = two(true);
        let first = a.transaction().unwrap();
        first.execute(REMOVE, ()).unwrap();
        b.execute_batch(definition).unwrap();
        assert!(!commits(first), "{definition}");
        assert_eq!(number(&a, "SELECT count(*) FROM d JOIN p ON d.p = p.id"), 1);
    }
    // A constraint that is added by a transaction, while another one removes the key or adds a row without it.
    for change in [REMOVE, "INSERT INTO d VALUES (9)"] {
        let (a, b) = two(true);
        a.execute_batch("CREATE TABLE d (p INT); INSERT INTO d VALUES (2)").unwrap();
        let first = a.transaction().unwrap();
        first.execute("ALTER TABLE d ADD FOREIGN KEY (p) REFERENCES p", ()).unwrap();
        b.execute(change, ()).unwrap();
        assert!(!commits(first), "{change}");
    }
}

/// A database with a chain of references whose actions are `action`, a table that refers to itself, and a composite key.
fn chain(directory: &Path, action: &str, indexed: bool) -> Connection {
    let options = Options { durability: keyaki::Durability::Off, ..Options::default() };
    let connection = Connection::open_with(directory.join("db"), options).unwrap();
    let actions = format!("ON DELETE {action} ON UPDATE {action}");
    connection
        .execute_batch(&format!(
            "CREATE TABLE a (id INT PRIMARY KEY, x INT);
             CREATE TABLE b (id INT PRIMARY KEY, a INT REFERENCES a {actions}, UNIQUE (a, id));
             CREATE TABLE c (id INT PRIMARY KEY, a INT, b INT, FOREIGN KEY (b, a) REFERENCES b (id, a) {actions});
             CREATE TABLE r (id INT PRIMARY KEY, up INT REFERENCES r {actions});"
        ))
        .unwrap();
    if indexed {
        connection
            .execute_batch("CREATE INDEX b_a ON b (a); CREATE INDEX c_b ON c (a, b); CREATE INDEX r_up ON r (up)")
            .unwrap();
    }
    connection
}

const ORPHANS: [&str; 3] = [
    "SELECT count(*) FROM b LEFT JOIN a ON b.a = a.id WHERE b.a IS NOT NULL AND a.id IS NULL",
    "SELECT count(*) FROM c LEFT JOIN b ON c.b = b.id AND c.a = b.a
     WHERE c.a IS NOT NULL AND c.b IS NOT NULL AND b.id IS NULL",
    "SELECT count(*) FROM r x LEFT JOIN r y ON x.up = y.id WHERE x.up IS NOT NULL AND y.id IS NULL",
];

/// A random change.
fn change(random: &mut Random) -> String {
    let mut key = || random.below(12);
    let (i, j, k) = (key(), key(), key());
    match random.below(14) {
        0 | 1 => format!("INSERT OR IGNORE INTO a VALUES ({i}, {j})"),
        2 | 3 => format!("INSERT OR IGNORE INTO b VALUES ({i}, {j})"),
        4 | 5 => format!("INSERT OR IGNORE INTO c SELECT {i}, a, id FROM b WHERE id = {j}"),
        6 => format!("INSERT OR REPLACE INTO c VALUES ({i}, {j}, {k})"),
        7 => format!("DELETE FROM a WHERE id = {i}"),
        8 => format!("DELETE FROM b WHERE id IN ({i}, {j})"),
        9 => format!("UPDATE a SET id = {j} WHERE id = {i}"),
        10 => format!("UPDATE b SET a = {j} WHERE id = {i}"),
        11 => format!("INSERT OR IGNORE INTO r VALUES ({i}, {j}), ({j}, {k}), ({k}, NULL)"),
        12 => format!("DELETE FROM r WHERE id = {i}"),
        _ => format!("UPDATE r SET up = {j} WHERE id = {i}"),
    }
}

/// Random changes of four threads, in transactions and outside, while the constraints must hold in every snapshot.
#[test]
fn constraints_hold_in_concurrent_histories() {
    for (seed, (action, indexed)) in [
        ("NO ACTION", false),
        ("NO ACTION", true),
        ("RESTRICT", true),
        ("CASCADE", false),
        ("CASCADE", true),
        ("SET NULL", true),
    ]
    .into_iter()
    .enumerate()
    {
        let directory = tempfile::tempdir().unwrap();
        let connection = chain(directory.path(), action, indexed);
        let (committed, refused, conflicts) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let count = |result: keyaki::Result<u64>| match result {
            Ok(_) => committed.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.is_retryable() => conflicts.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.sqlstate().code().starts_with("23") => refused.fetch_add(1, Ordering::Relaxed),
            Err(error) => panic!("{action}: {error}"),
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (connection, count) = (connection.try_clone().unwrap(), &count);
                scope.spawn(move || {
                    let mut random = Random::new(seed as u64 * 10 + thread);
                    for _ in 0..30 {
                        if random.below(2) == 0 {
                            count(connection.execute(&change(&mut random), ()));
                            continue;
                        }
                        let level = LEVELS[random.below(3) as usize];
                        let transaction = connection.transaction_at(level).unwrap();
                        let statements = 1 + random.below(3);
                        let done = (0..statements).try_fold(0, |_, _| transaction.execute(&change(&mut random), ()));
                        match done {
                            Ok(_) => count(transaction.commit().map(|()| 0)),
                            failed => {
                                drop(transaction);
                                count(failed)
                            }
                        };
                        let at = connection.transaction_at(Isolation::RepeatableRead).unwrap();
                        ORPHANS.iter().for_each(|sql| assert_eq!(number(&at, sql), 0, "{action}: {sql}"));
                    }
                });
            }
        });
        ORPHANS.iter().for_each(|sql| assert_eq!(number(&connection, sql), 0, "{action}: {sql}"));
        let total = [&committed, &refused, &conflicts].map(|number| number.load(Ordering::Relaxed));
        assert!(total[0] > 15 && total[1] > 3, "{action}: {total:?}");
        // The state survives reopening.
        let rows = |connection: &Connection| -> Vec<String> {
            let sql = "SELECT 'a', id, x FROM a UNION ALL SELECT 'b', id, a FROM b UNION ALL SELECT 'c', id, a FROM c
                       UNION ALL SELECT 'r', id, up FROM r";
            let row = |row: &keyaki::Row<'_>| {
                Ok(format!(
                    "{} {} {:?}",
                    row.get::<_, String>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, Option<i64>>(2)?
                ))
            };
            let mut rows: Vec<String> = connection.query_map(sql, (), row).unwrap().map(Result::unwrap).collect();
            rows.sort();
            rows
        };
        let before = rows(&connection);
        drop(connection);
        let connection = Connection::open(directory.path().join("db")).unwrap();
        assert_eq!(rows(&connection), before);
    }
}

/// COPY and appenders check references, and say which row has none.
#[test]
fn loads_check_references() {
    let directory = tempfile::tempdir().unwrap();
    let (connection, _) = two(true);
    let path = directory.path().join("rows.csv");
    let copy = format!("COPY c FROM '{}'", path.display());
    let run = |rows: &[(i64, Option<i64>)], sql: &str| {
        let text: String =
            rows.iter().map(|(id, p)| format!("{id},{},0\n", p.map_or_else(String::new, |p| p.to_string()))).collect();
        std::fs::write(&path, text).unwrap();
        connection.execute(sql, ())
    };
    let error = run(&[(20, Some(1)), (21, None), (22, Some(9)), (23, Some(8))], &copy).unwrap_err();
    assert_eq!(error.sqlstate().code(), "23503");
    let text = "rows.csv, row 3: insert or update on table \"c\" violates foreign key constraint \"c_p_fkey\": Key (p)=(9) is \
                not present in table \"p\"";
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(number(&connection, "SELECT count(*) FROM c"), 1);
    assert_eq!(run(&[(20, Some(1)), (21, None), (22, Some(2))], &copy).unwrap(), 3);
    // Many rows are checked by other threads.
    let mut many: Vec<(i64, Option<i64>)> = (100..30_100).map(|id| (id, Some(1 + id % 2))).collect();
    assert_eq!(run(&many, &copy).unwrap(), 30_000);
    many.iter_mut().for_each(|(id, _)| *id += 100_000);
    many[25_000].1 = Some(3);
    let error = run(&many, &copy).unwrap_err().to_string();
    assert!(error.contains("rows.csv, row 25001: ") && error.contains("Key (p)=(3)"), "{error}");
    // Rows that refer to each other, in any order.
    connection.execute("CREATE TABLE r (id INT PRIMARY KEY, up INT REFERENCES r, x INT)", ()).unwrap();
    let copy = format!("COPY r FROM '{}'", path.display());
    let mut tree: Vec<(i64, Option<i64>)> =
        (0..20_000).map(|id| (id, (id > 0).then_some((id * 7 + 1) % 20_000))).collect();
    assert_eq!(run(&tree, &copy).unwrap(), 20_000);
    tree.iter_mut().for_each(|(id, up)| {
        *id += 20_000;
        *up = up.map(|up| up + 20_000);
    });
    tree[15_000].1 = Some(40_000);
    let error = run(&tree, &copy).unwrap_err().to_string();
    assert!(error.contains("rows.csv, row 15001: ") && error.contains("Key (up)=(40000)"), "{error}");
    tree[15_000].1 = Some(7);
    assert_eq!(run(&tree, &copy).unwrap(), 20_000);
    // Appenders.
    let mut appender = connection.appender("c").unwrap();
    appender.append_row((40, 2, 0)).unwrap();
    appender.append_row((41, 5, 0)).unwrap();
    let error = appender.finish().unwrap_err();
    assert_eq!(error.sqlstate().code(), "23503");
    assert!(error.to_string().contains("row 2: insert or update"), "{error}");
    assert_eq!(number(&connection, "SELECT count(*) FROM c WHERE id IN (40, 41)"), 0);
    let mut appender = connection.appender("c").unwrap();
    appender.append_row((40, 2, 0)).unwrap();
    appender.finish().unwrap();
    assert_eq!(number(&connection, "SELECT p FROM c WHERE id = 40"), 2);
}
