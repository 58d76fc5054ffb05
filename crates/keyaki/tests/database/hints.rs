//! Position and hint of the errors of mistakes that beginners make.

use keyaki::{Database, Options, Session};

const SETUP: &str = "
    CREATE TABLE customer (id INT PRIMARY KEY, name TEXT, city TEXT, born DATE);
    CREATE TABLE orders (id INT PRIMARY KEY, customer INT, amount NUMERIC(10, 2), paid_at TIMESTAMP);
    CREATE INDEX customer_city ON customer (city);
    CREATE VIEW adults AS SELECT id, name FROM customer WHERE born < DATE '2000-01-01';
    CREATE SCHEMA shop;
    CREATE TABLE shop.stock (item INT PRIMARY KEY, count INT);
    CREATE SEQUENCE numbers;
    CREATE ROLE reader;
    INSERT INTO customer VALUES (1, 'Ann', 'Oslo', DATE '1990-01-01')";

/// Statement, message, the text at the position (empty without one), hint (empty without one).
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    // Relations.
    ("SELECT * FROM custmer", "relation \"custmer\" does not exist", "custmer", "did you mean \"customer\"?"),
    ("SELECT * FROM Customers c", "relation \"customers\" does not exist", "Customers", "did you mean \"customer\"?"),
    (
        "SELECT 1,\n  (SELECT max(id)\n   FROM oders)",
        "relation \"oders\" does not exist",
        "oders)",
        "did you mean \"orders\"?",
    ),
    ("SELECT * FROM adult", "relation \"adult\" does not exist", "adult", "did you mean \"adults\"?"),
    ("SELECT * FROM stock", "relation \"stock\" does not exist", "stock", "did you mean \"shop.stock\"?"),
    ("SELECT * FROM shp.stock", "relation \"shp.stock\" does not exist", "shp.stock", "did you mean \"shop.stock\"?"),
    ("SELECT * FROM shop.stok", "relation \"shop.stok\" does not exist", "shop.stok", "did you mean \"shop.stock\"?"),
    ("SELECT * FROM invoice", "relation \"invoice\" does not exist", "invoice", ""),
    ("WITH abc AS (SELECT 1) SELECT * FROM abd", "relation \"abd\" does not exist", "abd", "did you mean \"abc\"?"),
    (
        "SELECT * FROM keyaki_index",
        "relation \"keyaki_index\" does not exist",
        "keyaki_index",
        "did you mean \"keyaki_indexes\"?",
    ),
    (
        "SELECT * FROM pg_clas",
        "relation \"pg_clas\" does not exist",
        "pg_clas",
        "did you mean \"pg_catalog.pg_class\"?",
    ),
    (
        "SELECT * FROM people.csv",
        "relation \"people.csv\" does not exist",
        "people.csv",
        "put the name of a file in single quotes: 'people.csv'",
    ),
    ("INSERT INTO custmer VALUES (1)", "relation \"custmer\" does not exist", "custmer", "did you mean \"customer\"?"),
    ("UPDATE custmer SET name = 'x'", "relation \"custmer\" does not exist", "custmer", "did you mean \"customer\"?"),
    ("DELETE FROM custmer", "relation \"custmer\" does not exist", "custmer", "did you mean \"customer\"?"),
    ("DROP TABLE custmer", "table \"custmer\" does not exist", "custmer", "did you mean \"customer\"?"),
    ("DROP VIEW adlts", "view \"adlts\" does not exist", "adlts", "did you mean \"adults\"?"),
    (
        "DROP INDEX customer_cty",
        "index \"customer_cty\" does not exist",
        "customer_cty",
        "did you mean \"customer_city\"?",
    ),
    ("DROP SCHEMA shopp", "schema \"shopp\" does not exist", "shopp", "did you mean \"shop\"?"),
    ("CREATE TABLE customer (x INT)", "relation \"customer\" already exists", "customer", ""),
    ("DROP TABLE adults", "\"adults\" is a view, not a table (use DROP VIEW)", "adults", ""),
    // Columns.
    ("SELECT nme FROM customer", "column \"nme\" does not exist", "nme", "did you mean \"name\"?"),
    ("SELECT c.nme FROM customer c", "column \"c.nme\" does not exist", "c.nme", "did you mean \"c.name\"?"),
    (
        "SELECT c.amount FROM customer c JOIN orders o ON o.customer = c.id",
        "column \"c.amount\" does not exist",
        "c.amount",
        "did you mean \"o.amount\"?",
    ),
    (
        "SELECT nam FROM customer c JOIN orders o ON o.customer = c.id",
        "column \"nam\" does not exist",
        "nam",
        "did you mean \"c.name\"?",
    ),
    (
        "SELECT amounts FROM customer, orders",
        "column \"amounts\" does not exist",
        "amounts",
        "did you mean \"orders.amount\"?",
    ),
    (
        "SELECT amount FROM customer",
        "column \"amount\" does not exist",
        "amount",
        "table \"orders\" has this column, but the statement does not read it",
    ),
    (
        "SELECT id AS x FROM customer WHERE x = 1",
        "column \"x\" does not exist",
        "x = 1",
        "an alias of the select list cannot be used here: repeat the expression",
    ),
    (
        "SELECT id FROM customer WHERE name = \"Ann\"",
        "column \"Ann\" does not exist",
        "\"Ann\"",
        "a text has single quotes: 'Ann'",
    ),
    ("SELECT name", "column \"name\" does not exist", "name", "the query has no FROM clause"),
    (
        "UPDATE customer SET nme = 'x'",
        "column \"nme\" of relation \"customer\" does not exist",
        "nme",
        "did you mean \"name\"?",
    ),
    ("UPDATE customer SET name = cty", "column \"cty\" does not exist", "cty", "did you mean \"city\"?"),
    (
        "INSERT INTO customer (id, nme) VALUES (3, 'x')",
        "column \"nme\" of relation \"customer\" does not exist",
        "nme",
        "did you mean \"name\"?",
    ),
    ("CREATE INDEX i ON customer (cty)", "column \"cty\" does not exist", "cty", "did you mean \"city\"?"),
    ("SELECT count(nme) FROM customer", "column \"nme\" does not exist", "nme", "did you mean \"name\"?"),
    ("SELECT id FROM customer ORDER BY nme", "column \"nme\" does not exist", "nme", "did you mean \"name\"?"),
    ("SELECT id FROM customer, orders", "column reference \"id\" is ambiguous", "id", ""),
    (
        "SELECT customer.name FROM customer c",
        "missing FROM-clause entry for table \"customer\"",
        "customer.name",
        "table \"customer\" has the alias \"c\" in this statement",
    ),
    (
        "SELECT custmer.id FROM customer",
        "missing FROM-clause entry for table \"custmer\"",
        "custmer.id",
        "did you mean \"customer\"?",
    ),
    (
        "SELECT orders.id FROM customer",
        "missing FROM-clause entry for table \"orders\"",
        "orders.id",
        "add table \"orders\" to FROM",
    ),
    // Functions and operators.
    ("SELECT lenght(name) FROM customer", "function lenght(...) does not exist", "lenght", "did you mean \"length\"?"),
    (
        "SELECT ifnul(name, 'x') FROM customer",
        "function ifnul(...) does not exist",
        "ifnul",
        "did you mean \"ifnull\"?",
    ),
    ("SELECT getdate()", "function getdate(...) does not exist", "getdate", "use now()"),
    (
        "SELECT * FROM generate_serie(1, 2)",
        "function generate_serie(...) does not exist",
        "generate_serie",
        "did you mean \"generate_series\"?",
    ),
    ("SELECT name + 1 FROM customer", "operator does not exist: text + bigint", "+ 1", ""),
    // Types, settings and others.
    ("CREATE TABLE a (x INTEGR)", "not supported: type INTEGR", "INTEGR", "did you mean \"integer\"?"),
    ("CREATE TABLE a (x VARCHAR2(10))", "not supported: type VARCHAR2(10)", "VARCHAR2", "use varchar"),
    (
        "SET timezon = 'UTC'",
        "unrecognized configuration parameter \"timezon\"",
        "timezon",
        "did you mean \"timezone\"?",
    ),
    (
        "SET keyaki.jion = 'scan'",
        "unrecognized configuration parameter \"keyaki.jion\"",
        "keyaki.jion",
        "did you mean \"keyaki.join\"?",
    ),
    (
        "SHOW serch_path",
        "unrecognized configuration parameter \"serch_path\"",
        "serch_path",
        "did you mean \"search_path\"?",
    ),
    ("SET ROLE raeder", "role \"raeder\" does not exist", "raeder", "did you mean \"reader\"?"),
    // Syntax.
    ("SELCT 1", "syntax error at or near \"SELCT\", expected an SQL statement", "SELCT", "did you mean SELECT?"),
    (
        "SELECT id, FROM customer",
        "syntax error at or near \"FROM\", expected an expression",
        "FROM",
        "remove the comma before FROM",
    ),
    (
        "SELECT * FORM customer",
        "syntax error at or near \"customer\", expected end of statement",
        "customer",
        "did you mean FROM?",
    ),
    (
        "SELECT 1 FROM orders ORDER id",
        "syntax error at or near \"ORDER\", expected end of statement",
        "ORDER",
        "did you mean ORDER BY?",
    ),
    ("SELECT 5 DIV 2", "syntax error at or near \"DIV\"", "DIV", ""),
    // Clauses and values.
    (
        "SELECT city, count(*) FROM customer",
        "column \"customer.city\" must appear in the GROUP BY clause or be used in an aggregate function",
        "city",
        "",
    ),
    (
        "SELECT city FROM customer WHERE count(*) > 1",
        "aggregate functions are not allowed in WHERE (use HAVING)",
        "count(*)",
        "",
    ),
    ("SELECT id FROM customer ORDER BY 7", "ORDER BY position 7 is not in select list", "7", ""),
    ("SELECT id FROM customer WHERE name", "argument of WHERE must be type boolean, not type text", "name", ""),
    (
        "INSERT INTO customer (id) VALUES ('abc')",
        "invalid input syntax for type integer: \"abc\" (column \"id\")",
        "'abc'",
        "",
    ),
];

async fn session(path: &std::path::Path) -> Session {
    let options = Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() };
    let session = Database::open(path, options).unwrap().session();
    session.execute(SETUP).await.unwrap();
    session
}

/// The text from a position on.
fn text_at(sql: &str, position: keyaki::Position) -> String {
    let line = sql.lines().nth(position.line as usize - 1).unwrap_or_default();
    line.chars().skip(position.column as usize - 1).collect()
}

#[tokio::test]
async fn mistakes_have_position_and_hint() {
    let dir = tempfile::tempdir().unwrap();
    let session = session(&dir.path().join("db")).await;
    let mut wrong = String::new();
    for (sql, message, at, hint) in MISTAKES {
        let error = match session.query(sql).await {
            Ok(outcome) => outcome.collect().await.err(),
            Err(error) => Some(error),
        };
        let Some(error) = error else {
            wrong.push_str(&format!("{sql:?} has no error\n"));
            continue;
        };
        let found = error.position().map(|position| text_at(sql, position)).unwrap_or_default();
        let is_there = if at.is_empty() { found.is_empty() } else { found.starts_with(at) };
        if (error.message().as_str(), error.hint().unwrap_or_default()) != (message, hint) || !is_there {
            wrong.push_str(&format!("{sql:?}: {:?} at {found:?}, hint {:?}\n", error.message(), error.hint()));
        }
        // A prepared statement has the same position and hint.
        if let Err(prepared) = session.prepare(sql).await {
            assert_eq!((prepared.position(), prepared.hint()), (error.position(), error.hint()), "{sql}");
        }
    }
    assert!(wrong.is_empty(), "unexpected errors:\n{wrong}");
}

/// Positions count characters and lines of the whole script.
#[tokio::test]
async fn positions_are_those_of_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let session = session(&dir.path().join("db")).await;
    let script = "SELECT 'größe';\n\nSELECT 'ä', nme\nFROM customer;\nSELECT 1";
    let error = session.execute(script).await.unwrap_err();
    assert_eq!(error.position(), Some(keyaki::Position { line: 3, column: 13 }));
    assert_eq!(error.to_string(), "column \"nme\" does not exist (did you mean \"name\"?)");
}

/// The text of a prepared statement is another one than that of EXECUTE.
#[tokio::test]
async fn prepared_statements_have_no_position_in_execute() {
    let dir = tempfile::tempdir().unwrap();
    let session = session(&dir.path().join("db")).await;
    session.execute("CREATE TABLE gone (x INT); PREPARE p AS SELECT x FROM gone; DROP TABLE gone").await.unwrap();
    let error = session.execute("EXECUTE p").await.unwrap_err();
    assert_eq!((error.message().as_str(), error.position()), ("relation \"gone\" does not exist", None));
    let error = session.execute("EXECUTE q").await.unwrap_err();
    assert_eq!(error.position(), Some(keyaki::Position { line: 1, column: 9 }));
}
