//! The forms of queries that the short path executes, over random rows with nulls, duplicates and deleted rows: each
//! gives the same rows as on the long path, prepared and as text, and really takes the short path.

use keyaki::{Database, Prepared, Session, Value};

use super::{Random, options, shown, text_of};

const TABLES: &str = "
    CREATE TABLE s (id BIGINT PRIMARY KEY, x INTEGER, y TEXT, z DECIMAL(8,2), w DATE);
    CREATE INDEX s_x ON s (x);
    CREATE INDEX s_yx ON s (y, x) INCLUDE (z);
    CREATE INDEX s_w ON s (w);
    CREATE TABLE p (a SMALLINT, b TEXT, c BIGINT, d INTEGER, PRIMARY KEY (a, b, c));
    CREATE TABLE n (f INTEGER, g TEXT);
    CREATE INDEX n_f ON n (f);
    CREATE TABLE customer (id BIGINT PRIMARY KEY, name TEXT, city INTEGER);
    CREATE INDEX customer_city ON customer (city);
    CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT NOT NULL, twin INTEGER);
    CREATE TABLE sale (customer BIGINT, item TEXT, place INTEGER, amount DECIMAL(8,2), id BIGINT PRIMARY KEY);
    CREATE INDEX sale_customer ON sale (customer, item);
    CREATE TABLE item (name TEXT PRIMARY KEY, weight SMALLINT, price DOUBLE PRECISION);
    CREATE TABLE price (price DOUBLE PRECISION PRIMARY KEY, what TEXT);
    CREATE VIEW low_sales AS SELECT id, amount + 1 AS d FROM sale WHERE amount < 500;
    INSERT INTO price VALUES (-0.0, 'nothing'), (1.5, 'little');
";

/// Rows of each table.
const ROWS: u64 = 900;

/// Queries with the kinds of their parameters, as in [`super::STATEMENTS`]. `j` is a greater key, close to the last.
const RANGES: &[(&str, &str)] = &[
    ("SELECT * FROM s WHERE id BETWEEN $1 AND $2", "kk"),
    ("SELECT id, y FROM s WHERE id > $1 AND id <= $2", "kk"),
    ("SELECT id FROM s WHERE $1 < id AND id < 40", "k"),
    ("SELECT id, x FROM s WHERE id >= $1 AND id > $2 AND id < $3 AND id <= 55", "kkk"),
    ("SELECT x, y FROM s WHERE id BETWEEN 10 AND $1 AND x <> 3", "k"),
    ("SELECT id, x, w FROM s WHERE x < $1", "m"),
    ("SELECT id, x FROM s WHERE x <= $1 AND x > -2", "m"),
    ("SELECT id, z FROM s WHERE y = $1 AND x > $2", "ti"),
    ("SELECT id, z FROM s WHERE y = $1 AND x < $2", "ti"),
    ("SELECT id, z, w FROM s WHERE y = $1 AND x BETWEEN $2 AND $3", "tii"),
    ("SELECT id, x FROM s WHERE y > $1 AND y < 'b'", "t"),
    ("SELECT id FROM s WHERE w > $1 AND w < $2", "dd"),
    ("SELECT * FROM p WHERE a = $1 AND b = $2 AND c >= $3", "itk"),
    ("SELECT c, d FROM p WHERE a = $1 AND b >= $2", "it"),
    ("SELECT c FROM p WHERE a = $1 AND b > $2 AND b <= $3 AND c > $4 AND d > 0", "ittk"),
    ("SELECT f, g FROM n WHERE f > $1 AND f < 3", "i"),
    ("SELECT g FROM n WHERE f >= $1 AND f <= 1", "i"),
];

const FIRST_ROWS: &[(&str, &str)] = &[
    ("SELECT * FROM s WHERE id > $1 ORDER BY id LIMIT 20", "k"),
    ("SELECT id, y FROM s WHERE id < $1 ORDER BY id DESC LIMIT 7", "j"),
    ("SELECT id, x + 1 FROM s WHERE id > $1 AND x > 0 ORDER BY id LIMIT 5 OFFSET 2", "k"),
    ("SELECT id, z FROM s ORDER BY id LIMIT 3", ""),
    ("SELECT id, z FROM s ORDER BY id DESC LIMIT 300", ""),
    ("SELECT x, id FROM s WHERE x = $1 ORDER BY id DESC LIMIT 4", "i"),
    ("SELECT x, id, w FROM s WHERE x = $1 ORDER BY x, id LIMIT 4", "i"),
    ("SELECT x, id FROM s ORDER BY x NULLS FIRST, id LIMIT 10", ""),
    ("SELECT x, id, w FROM s ORDER BY x DESC NULLS LAST, id DESC LIMIT 15", ""),
    ("SELECT x, id, w FROM s WHERE x > $1 ORDER BY x, id LIMIT 15", "i"),
    ("SELECT x, id FROM s WHERE x < $1 ORDER BY x DESC, id DESC LIMIT 15", "m"),
    ("SELECT id, y, x FROM s WHERE y = $1 AND x > $2 ORDER BY x, id LIMIT 6", "ti"),
    ("SELECT c, b FROM p WHERE a = $1 ORDER BY b, c LIMIT 9", "i"),
    ("SELECT c, b FROM p WHERE a = $1 AND b = $2 AND c < $3 ORDER BY c DESC LIMIT 2", "itk"),
    ("SELECT c, b, a FROM p WHERE a >= $1 ORDER BY a, b, c, d LIMIT 25", "i"),
    ("SELECT u.id FROM (SELECT * FROM s WHERE id > $1) AS u ORDER BY u.id LIMIT 5", "k"),
];

/// Orders that no tree has, and ranges of too many rows: the long path answers.
const LONG: &[(&str, &str)] = &[
    ("SELECT x, id FROM s ORDER BY x, id LIMIT 10", ""),
    ("SELECT x, id FROM s WHERE x > -3 ORDER BY x, id DESC LIMIT 10", ""),
    ("SELECT id, x FROM s ORDER BY id LIMIT 513", ""),
    ("SELECT id FROM s WHERE id >= $1", "m"),
    ("SELECT id FROM s WHERE z > $1 AND z < 100", "n"),
    ("SELECT id FROM s WHERE id NOT IN ($1, 3)", "m"),
    ("SELECT id FROM s WHERE NOT (id <> 1 AND id <> 2) AND id IN ($1, 2, 6, 7)", "m"),
    // DataFusion intersects lists without the values of parameters.
    ("SELECT id FROM s WHERE id IN ($1, $2, 3, 4) AND id IN (4, $3, $4, $5)", "mmmmm"),
    ("SELECT id FROM s WHERE id IN ($1, $2, 3, 4) AND id NOT IN (5, $3, $4, $5, 7)", "mmmmm"),
    ("SELECT id FROM s WHERE id IN ($1, $2, $3, $4) AND (id = 0 OR id = 2 OR id = 1 OR id = 5)", "mmmm"),
    ("SELECT count(DISTINCT x), count(*) FILTER (WHERE x > 2) FROM s WHERE id < $1", "k"),
    ("SELECT x, count(*) FROM s WHERE id < $1 GROUP BY x ORDER BY x", "k"),
    ("SELECT count(*), max(id) FROM s WHERE id > $1", "m"),
    ("SELECT id FROM s WHERE id IN ($1, 3) OR x = 2", "k"),
    ("SELECT id FROM s WHERE id > $1 AND z = -1 ORDER BY id LIMIT 5", "m"),
];

const LISTS: &[(&str, &str)] = &[
    ("SELECT * FROM s WHERE id IN ($1, $2, $3, $4, $5)", "kkkkk"),
    ("SELECT * FROM s WHERE id IN ($1, $2)", "kk"),
    ("SELECT * FROM s WHERE id IN ($1)", "k"),
    ("SELECT id, x FROM s WHERE id IN ($1, $2, NULL, $3)", "kkk"),
    ("SELECT id, w FROM s WHERE x IN ($1, $2, $3, -1) AND id < 300", "iii"),
    ("SELECT id FROM s WHERE y IN ($1, 'ab') AND x = $2", "ti"),
    ("SELECT id, z FROM s WHERE y IN ($1, 'ab') AND x IN ($2, 0, 1, 1, $2)", "ti"),
    ("SELECT id, z FROM s WHERE y IN ($1, 'ab') AND x > 3", "t"),
    ("SELECT * FROM p WHERE a IN ($1, $4, $5) AND b = $2 AND c < $3", "itkii"),
    ("SELECT * FROM p WHERE a = $1 AND b IN ($2, 'ab') ORDER BY b, c LIMIT 5", "it"),
    ("SELECT * FROM p WHERE a IN (0, 2) AND b IN ($1, 'ab') ORDER BY a DESC, b DESC, c DESC LIMIT 90", "t"),
    ("SELECT id FROM s WHERE (id = $1 OR id = $2 OR id IN (4, 5, 6, 7)) AND z > 0", "kk"),
    ("SELECT id FROM s WHERE id IN ($1, $2, $3) ORDER BY id DESC LIMIT 2", "kkk"),
    ("SELECT id FROM s WHERE w IN ($1, $2) AND x = $3 AND id NOT IN (5, 6, $4)", "ddik"),
];

const AGGREGATES: &[(&str, &str)] = &[
    ("SELECT count(*), count(w), sum(x), min(y), max(z), avg(z), sum(z), max(w) FROM s WHERE x = $1", "i"),
    ("SELECT sum(x), avg(x) FROM s WHERE id BETWEEN $1 AND $2", "kk"),
    ("SELECT count(*) FROM s WHERE id = $1", "k"),
    ("SELECT count(*) AS rows FROM p WHERE a = $1 AND b > $2", "it"),
    ("SELECT sum(z) / (count(*) + 1), max(w) FROM s WHERE y = $1 AND x > $2", "ti"),
    ("SELECT count(*) FROM s WHERE x = $1 HAVING count(*) > 85", "i"),
    ("SELECT avg(x), avg(x) * 2, sum(x + $1) FROM s WHERE id < $2", "ik"),
    ("SELECT min(w), max(w), min(z), max(y) FROM s WHERE id IN ($1, $2, $3, $4)", "kkkk"),
    ("SELECT count(*), min(id) FROM (SELECT id FROM s WHERE id > $1 ORDER BY id LIMIT 10) AS u", "k"),
    ("SELECT count(*) FROM n WHERE f = $1 LIMIT 1", "i"),
];

const JOINS: &[(&str, &str)] = &[
    ("SELECT s.*, c.* FROM sale AS s JOIN customer AS c ON c.id = s.customer WHERE s.id = $1", "k"),
    ("SELECT c.name, s.amount FROM customer AS c JOIN sale AS s ON c.id = s.customer WHERE c.id = $1", "k"),
    (
        "SELECT c.id, s.id, i.weight FROM customer AS c, sale AS s, item AS i
      WHERE c.id = $1 AND s.customer = c.id AND i.name = s.item AND s.amount > $2",
        "ki",
    ),
    (
        "SELECT c.name, t.name, w.name, s.id FROM sale AS s JOIN customer AS c ON c.id = s.customer
      JOIN city AS t ON t.id = c.city JOIN city AS w ON w.id = t.twin WHERE s.id BETWEEN $1 AND $2",
        "kk",
    ),
    (
        "SELECT s.id, o.id FROM sale AS s JOIN sale AS o ON o.customer = s.customer AND o.item = s.item
      WHERE s.id = $1 AND o.id <> s.id",
        "k",
    ),
    (
        "SELECT c.name, s.id FROM customer AS c JOIN sale AS s ON s.customer = c.id AND s.item = $2
      WHERE c.id IN ($1, 3, 4, 5, 6)",
        "kt",
    ),
    (
        "SELECT c.id, s.id FROM customer AS c JOIN sale AS s ON s.customer = c.id AND s.place > c.city
      WHERE c.id = $1 ORDER BY s.id LIMIT 4",
        "k",
    ),
    (
        "SELECT count(*), sum(s.amount) / (count(t.name) + 1) FROM sale AS s JOIN city AS t ON t.id = s.place
      WHERE s.customer = $1 AND s.item = $2",
        "kt",
    ),
    (
        "SELECT count(*), max(s.amount), min(t.name) FROM sale AS s JOIN city AS t ON t.id = s.place
      WHERE s.customer = $1",
        "k",
    ),
    ("SELECT a.id, b.id FROM customer AS a, customer AS b WHERE a.id = $1 AND b.id = $2", "kk"),
    ("SELECT s.id, c.name FROM sale AS s LEFT JOIN customer AS c ON c.id = s.customer WHERE s.id < $1", "k"),
    (
        "SELECT s.id, c.id, c.city FROM sale AS s LEFT JOIN customer AS c ON c.id = s.customer AND c.city > $2
      WHERE s.id IN ($1, 1, 2, 3, 4, 5, 6, 7)",
        "ki",
    ),
    (
        "SELECT s.id, c.id, t.name FROM sale AS s LEFT JOIN customer AS c ON c.id = s.customer AND s.place = c.city
      LEFT JOIN city AS t ON t.id = c.city WHERE s.id BETWEEN $1 AND $2",
        "kk",
    ),
    (
        "SELECT c.id, s.id FROM customer AS c LEFT JOIN sale AS s ON s.customer = c.id
      WHERE c.id > $1 AND c.id <= 50 AND s.id IS NULL",
        "k",
    ),
    (
        "SELECT count(*), count(s.id), max(c.id) FROM customer AS c LEFT JOIN sale AS s ON s.customer = c.id
      AND s.amount > $2 WHERE c.id = $1",
        "ki",
    ),
    (
        "SELECT s.id, c.id, t.id FROM sale AS s LEFT JOIN customer AS c ON c.id = s.customer
      JOIN city AS t ON t.id = s.place WHERE s.id IN ($1, $2, 3, 4, 5)",
        "kk",
    ),
    (
        "SELECT u.id, t.name FROM (SELECT id, place + 0 AS p, place FROM sale WHERE id = $1) AS u
      JOIN city AS t ON t.id = u.place",
        "k",
    ),
];

/// Joins without a suitable key, or of other kinds.
const LONG_JOINS: &[(&str, &str)] = &[
    ("SELECT s.id FROM sale AS s JOIN item AS i ON i.weight = s.place WHERE s.id = $1", "k"),
    ("SELECT s.id FROM sale AS s RIGHT JOIN customer AS c ON c.id = s.customer WHERE c.city = $1", "i"),
    (
        "SELECT c.id FROM customer AS c WHERE c.id < $1 AND EXISTS (SELECT 1 FROM sale AS s WHERE s.customer = c.id)",
        "k",
    ),
    ("SELECT s.id, c.name FROM sale AS s JOIN customer AS c ON c.id = s.customer", ""),
    ("SELECT i.name, p.what FROM item AS i JOIN price AS p ON p.price = i.price WHERE i.name = $1", "t"),
    ("SELECT a.id, b.id FROM sale AS a JOIN sale AS b ON b.customer = a.customer WHERE a.id > $1", "m"),
];

/// Queries that are not short: prepared, they are executed from templates.
const TEMPLATES: &[(&str, &str)] = &[
    ("SELECT x, count(*), max(z) FROM s WHERE id BETWEEN $1 AND $2 GROUP BY x HAVING count(*) > $3 ORDER BY x", "kki"),
    ("SELECT DISTINCT y, x + $1 FROM s WHERE z > $2", "in"),
    ("SELECT x + $1, count(*) FROM s GROUP BY x + $1", "i"),
    ("SELECT id FROM s ORDER BY z, id LIMIT $1 OFFSET 2", "k"),
    ("SELECT id, CASE WHEN x > $1 THEN y ELSE $2 END FROM s WHERE y <> $2", "it"),
    ("SELECT id FROM s WHERE x = (SELECT max(place) FROM sale WHERE customer < $1)", "k"),
    (
        "SELECT id FROM customer AS c
      WHERE id < $1 AND NOT EXISTS (SELECT 1 FROM sale WHERE customer = c.id AND place > $2)",
        "ki",
    ),
    ("SELECT id FROM s WHERE x IN (SELECT city FROM customer WHERE name = $1 OR id > $2)", "tk"),
    (
        "SELECT id, (SELECT count(*) FROM sale WHERE customer = c.id AND place < $1) FROM customer AS c WHERE id < $2",
        "ik",
    ),
    ("SELECT id, rank() OVER (PARTITION BY x ORDER BY id) FROM s WHERE id < $1 ORDER BY id", "k"),
    ("SELECT id FROM s WHERE id < $1 UNION SELECT customer FROM sale WHERE place = $2", "ki"),
    ("SELECT x FROM s WHERE x = $1 INTERSECT SELECT city FROM customer WHERE name > $2", "it"),
    (
        "WITH c AS (SELECT id, city FROM customer WHERE city >= $1)
      SELECT a.id, count(*) FROM c AS a JOIN c AS b ON a.city = b.city WHERE b.id < $2 GROUP BY a.id",
        "ik",
    ),
    (
        "SELECT a.id, b.n FROM customer AS a,
      LATERAL (SELECT count(*) AS n FROM sale WHERE customer = a.id AND place <> $1) AS b WHERE a.id < $2",
        "ik",
    ),
    ("SELECT id FROM s WHERE $1 IS NULL OR x = $1", "i"),
    ("SELECT id FROM s WHERE coalesce(x, $1) = $1 AND w > $2", "id"),
    ("SELECT v.a, count(s.id) FROM (VALUES ($1, 1), (3, $2)) AS v (a, b) LEFT JOIN s ON s.x = v.a GROUP BY v.a", "ii"),
    ("SELECT id, d FROM low_sales WHERE d < $1 OR id = $2", "nk"),
    ("SELECT s.id, c.name FROM sale AS s RIGHT JOIN customer AS c ON c.id = s.customer AND s.place = $1", "i"),
    ("SELECT sum(x), $1 FROM s GROUP BY y", "t"),
    ("SELECT id FROM s WHERE y LIKE $1 OR y NOT IN ($2, 'ab')", "tt"),
    ("SELECT i, $1 FROM generate_series(1, 5) AS g (i) JOIN s ON s.id = g.i", "e"),
];

/// `m` is a small integer that few rows are below.
fn value(random: &mut Random, kind: u8) -> Value {
    match kind {
        b'm' => Value::Integer(random.below(3) as i64 - 2),
        b'j' => Value::Integer(ROWS as i64 - random.below(50) as i64),
        kind => random.value(kind),
    }
}

async fn fill(session: &Session, random: &mut Random) {
    let s = session.prepare("INSERT INTO s VALUES ($1, $2, $3, $4, $5)").await.unwrap();
    let p = session.prepare("INSERT INTO p VALUES ($1, $2, $3, $4)").await.unwrap();
    let n = session.prepare("INSERT INTO n VALUES ($1, $2)").await.unwrap();
    for i in 0..ROWS {
        let id = Value::Integer((i * 541 % ROWS) as i64);
        let values: Vec<Value> = b"itnd".iter().map(|&kind| random.value(kind)).collect();
        shown(s.query(session, &[std::slice::from_ref(&id), &values[..]].concat()).await).await;
        let text = Value::Text(["", "ab", "it's", "größe%"][random.below(4) as usize].into());
        let row = [Value::Integer(random.below(9) as i64 - 2), text, id, random.value(b'i')];
        shown(p.query(session, &row).await).await;
        shown(n.query(session, &[random.value(b'i'), random.value(b't')]).await).await;
        if i == ROWS / 2 {
            session.execute("CHECKPOINT").await.unwrap();
        }
    }
    session.execute("DELETE FROM s WHERE id % 7 = 3; DELETE FROM p WHERE c % 5 = 1").await.unwrap();
}

async fn fill_joined(session: &Session, random: &mut Random) {
    let customer = session.prepare("INSERT INTO customer VALUES ($1, $2, $3)").await.unwrap();
    let city = session.prepare("INSERT INTO city VALUES ($1, $2, $3)").await.unwrap();
    let sale = session.prepare("INSERT INTO sale VALUES ($1, $2, $3, $4, $5)").await.unwrap();
    let item = session.prepare("INSERT INTO item VALUES ($1, $2, $3)").await.unwrap();
    for i in 0..5 {
        let row = [Value::Integer(i - 2), Value::Text(format!("city {i}")), random.value(b'i')];
        shown(city.query(session, &row).await).await;
        let name = ["", "ab", "it's", "größe%", "other"][i as usize];
        let row = [Value::Text(name.into()), random.value(b'i'), Value::Float(0.0)];
        shown(item.query(session, &row).await).await;
    }
    for id in 0..60 {
        let row = [Value::Integer(id), random.value(b't'), random.value(b'i')];
        shown(customer.query(session, &row).await).await;
    }
    for id in 0..300 {
        let mut row: Vec<Value> = b"ktin".iter().map(|&kind| random.value(kind)).collect();
        row.push(Value::Integer(id));
        shown(sale.query(session, &row).await).await;
    }
    session.execute("DELETE FROM customer WHERE id % 6 = 1; DELETE FROM sale WHERE id % 10 = 4").await.unwrap();
}

/// Two sessions of one database, with and without the short path; the third executes texts.
struct Sessions {
    short: Session,
    long: Session,
    cached: Session,
}

impl Sessions {
    async fn new(database: &Database) -> Sessions {
        let [short, long, cached] = [(); 3].map(|()| database.session());
        long.execute("SET keyaki.short_path = 'off'").await.unwrap();
        cached.execute("SET keyaki.plan_cache = 'always'").await.unwrap();
        Sessions { short, long, cached }
    }

    /// Executes a query in three ways. Returns the numbers of executions on the short path, prepared and as text.
    async fn compare(&self, prepared: &Prepared, sql: &str, values: &[Value]) -> (u64, u64) {
        let before = (self.short.short_statements(), self.cached.short_statements());
        let text = text_of(sql, values);
        let mut rows = [
            shown(prepared.query(&self.short, values).await).await,
            shown(self.cached.query(&text).await).await,
            shown(self.long.query(&text).await).await,
        ];
        if !sql.contains("ORDER BY") {
            rows.iter_mut().for_each(|rows| rows.sort());
        }
        assert_eq!(rows[0], rows[2], "prepared: {text}");
        assert_eq!(rows[1], rows[2], "cached: {text}");
        (self.short.short_statements() - before.0, self.cached.short_statements() - before.1)
    }

    /// Compares all forms. At least `share` of the executions take the short path; none if the share is 0.
    async fn compare_all(&self, forms: &[(&str, &str)], share: f64, random: &mut Random) {
        // Planning takes most of the time of the long path.
        let rounds = if share > 0.0 { 20 } else { 8 };
        for (sql, kinds) in forms {
            let prepared = self.short.prepare(sql).await.unwrap();
            let mut short = (0, 0);
            for _ in 0..rounds {
                let values: Vec<Value> = kinds.bytes().map(|kind| value(random, kind)).collect();
                let (prepared, cached) = self.compare(&prepared, sql, &values).await;
                short = (short.0 + prepared, short.1 + cached);
            }
            let enough = |short: u64, share: f64| short as f64 >= rounds as f64 * share;
            let is_expected = match share > 0.0 {
                // NULL as literal may give a query without rows, which is not executed on the short path.
                true => enough(short.0, share) && enough(short.1, share * 0.7),
                // A text may have more parameters than the prepared statement.
                false => short.0 == 0,
            };
            assert!(is_expected, "{short:?} of {rounds} prepared statements and texts are short: {sql}");
        }
    }
}

/// Compares forms while rows are in buffers, when all are in leaves, and with a cold cache.
async fn compare(forms: &[(&str, &str)], share: f64) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(11);
    let database = Database::open(dir.path().join("db"), options()).unwrap();
    database.session().execute(TABLES).await.unwrap();
    fill(&database.session(), &mut random).await;
    fill_joined(&database.session(), &mut random).await;
    Sessions::new(&database).await.compare_all(forms, share, &mut random).await;
    database.session().execute("CHECKPOINT").await.unwrap();
    Sessions::new(&database).await.compare_all(forms, share, &mut random).await;
    drop(database);
    let database = Database::open(dir.path().join("db"), options()).unwrap();
    Sessions::new(&database).await.compare_all(forms, share / 2.0, &mut random).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_of_keys() {
    compare(RANGES, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_rows_in_key_order() {
    compare(FIRST_ROWS, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_values() {
    compare(LISTS, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregates_of_few_rows() {
    compare(AGGREGATES, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_of_a_few_lookups() {
    compare(JOINS, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_forms_take_the_long_path() {
    compare(LONG, 0.0).await;
    compare(LONG_JOINS, 0.0).await;
    compare(TEMPLATES, 0.0).await;
}
