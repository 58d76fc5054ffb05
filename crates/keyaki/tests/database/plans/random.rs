//! Random schemas, indexes, rows and queries, compared in all modes.
//!
//! Environment variables: `SEED` is the first seed, `WORLDS` the number of databases, `QUERIES` the number of queries
//! for each. `VERBOSE` prints them. With `LATE` set, half of the tables get their indexes after their rows, and half of
//! them are analysed.

use std::path::Path;

use keyaki::{Database, Options, Session};
use keyaki_primitives::Random;

use super::compare;

/// Random decisions by percentage.
trait Chance {
    /// True with this probability.
    fn chance(&mut self, percent: u64) -> bool;
}

impl Chance for Random {
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Type {
    BigInt,
    Int,
    Text,
    Decimal,
    Date,
    Double,
    Boolean,
}

impl Type {
    const ALL: [Type; 7] =
        [Type::BigInt, Type::Int, Type::Text, Type::Decimal, Type::Date, Type::Double, Type::Boolean];

    fn sql(self) -> &'static str {
        match self {
            Type::BigInt => "BIGINT",
            Type::Int => "INT",
            Type::Text => "TEXT",
            Type::Decimal => "DECIMAL(10,2)",
            Type::Date => "DATE",
            Type::Double => "DOUBLE PRECISION",
            Type::Boolean => "BOOLEAN",
        }
    }

    /// The SQL literal number `n` of a small domain.
    fn literal(self, n: usize) -> String {
        match self {
            Type::BigInt | Type::Int => format!("{}", n as i64 - 3),
            Type::Text => format!("'{}'", ["", "a", "ab", "abc", "b", "ba", "bb", "c", "d", "é", "f", "g"][n % 12]),
            Type::Decimal => format!("{}.{}", n, [0, 25, 50, 75][n % 4]),
            Type::Date => format!("DATE '2024-01-{:02}'", n % 28 + 1),
            Type::Double => format!("CAST({}.5 AS DOUBLE PRECISION)", n as i64 - 3),
            Type::Boolean => ["true", "false"][n % 2].into(),
        }
    }
}

struct Table {
    name: String,
    columns: Vec<(String, Type)>,
}

/// A random database with three to five tables.
pub struct World {
    random: Random,
    tables: Vec<Table>,
}

impl World {
    pub async fn create(seed: u64, session: &Session) -> World {
        let mut world = World { random: Random::new(seed), tables: Vec::new() };
        for i in 0..3 + world.random.index(3) {
            world.create_table(i, session).await;
        }
        world
    }

    async fn create_table(&mut self, i: usize, session: &Session) {
        let random = &mut self.random;
        let name = format!("t{i}");
        let mut columns =
            vec![("a".to_string(), Type::BigInt), ("b".to_string(), *random.pick(&[Type::BigInt, Type::Int]))];
        for c in 0..1 + random.index(4) {
            columns.push((format!("c{c}"), *random.pick(&Type::ALL)));
        }
        let key = match random.index(4) {
            0 => None,
            1 => Some(vec!["a"]),
            2 => Some(vec!["a", "b"]),
            _ => Some(vec!["b", "a"]),
        };
        let list = columns.iter().map(|(name, ty)| format!("{name} {}", ty.sql())).collect::<Vec<_>>().join(", ");
        let primary = key.as_ref().map_or(String::new(), |key| format!(", PRIMARY KEY ({})", key.join(", ")));
        run(session, &format!("CREATE TABLE {name} ({list}{primary})")).await;
        let early = random.chance(50) || std::env::var("LATE").is_err();
        let mut indexes = Vec::new();
        for x in 0..random.index(4) {
            let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
            let first = *random.pick(&names);
            let second = *random.pick(&names);
            let both = if first != second && random.chance(40) { format!("{first}, {second}") } else { first.into() };
            let included = *random.pick(&names);
            let include = if random.chance(30) && !both.contains(included) {
                format!(" INCLUDE ({included})")
            } else {
                String::new()
            };
            let method = if random.index(3) == 0 { "USING masstree " } else { "" };
            indexes.push(format!("CREATE INDEX {name}_{x} ON {name} {method}({both}){include}"));
        }
        if early {
            run_all(session, &indexes).await;
        }
        self.insert(&name, &columns, key.as_deref(), session).await;
        if !early {
            run_all(session, &indexes).await;
        }
        if self.random.chance(50) && std::env::var("LATE").is_ok() {
            run(session, &format!("ANALYZE {name}")).await;
        }
        if self.random.chance(30) {
            run(session, "CHECKPOINT").await;
        }
        self.tables.push(Table { name, columns });
    }

    async fn insert(&mut self, name: &str, columns: &[(String, Type)], key: Option<&[&str]>, session: &Session) {
        let random = &mut self.random;
        let domain = 3 + random.index(9);
        let mut seen = std::collections::HashSet::new();
        let mut rows = Vec::new();
        for _ in 0..random.index(40) {
            let is_key = |column: &str| key.is_some_and(|key| key.contains(&column));
            let values: Vec<String> = columns
                .iter()
                .map(|(name, ty)| match random.chance(10) && !is_key(name) {
                    true => "NULL".into(),
                    false => ty.literal(random.index(domain)),
                })
                .collect();
            let unique: Vec<&String> =
                columns.iter().zip(&values).filter(|((name, _), _)| is_key(name)).map(|(_, value)| value).collect();
            if key.is_none() || seen.insert(format!("{unique:?}")) {
                rows.push(format!("({})", values.join(", ")));
            }
        }
        if !rows.is_empty() {
            run(session, &format!("INSERT INTO {name} VALUES {}", rows.join(", "))).await;
        }
    }

    /// Picks a column of one of the tables in `from` (alias and table number). Returns its qualified name.
    fn column(&mut self, from: &[(String, usize)]) -> (String, Type) {
        let (alias, table) = &from[self.random.index(from.len())];
        let columns = &self.tables[*table].columns;
        let (name, ty) = &columns[self.random.index(columns.len())];
        (format!("{alias}.{name}"), *ty)
    }

    fn condition(&mut self, from: &[(String, usize)]) -> String {
        let (column, ty) = self.column(from);
        let mut value = || ty.literal(self.random.index(12));
        let (a, b, c) = (value(), value(), value());
        let operator = *self.random.pick(&["=", "<", "<=", ">", ">=", "<>"]);
        match self.random.index(12) {
            0..=4 => format!("{column} {operator} {a}"),
            5 => format!("{column} = {a}"),
            6 if ty != Type::Boolean => format!("{column} BETWEEN {a} AND {b}"),
            7 => format!("{column} IN ({a}, {b}, {c})"),
            8 => format!("{column} IS NULL"),
            9 => format!("{column} IS NOT NULL"),
            10 if ty == Type::Text => format!("{column} LIKE 'a%'"),
            10 => format!("NOT ({column} = {a})"),
            _ => {
                let other = self.condition(from);
                let word = *self.random.pick(&["OR", "AND"]);
                format!("({column} {operator} {a} {word} {other})")
            }
        }
    }

    /// Builds an equality between columns of comparable types. Returns `None` if 20 attempts find no pair.
    fn equality(&mut self, left: &[(String, usize)], right: &(String, usize)) -> Option<String> {
        for _ in 0..20 {
            let (a, ty) = self.column(left);
            let (b, other) = self.column(std::slice::from_ref(right));
            let numbers = [Type::BigInt, Type::Int];
            let fits = ty == other || (numbers.contains(&ty) && numbers.contains(&other));
            if fits && ty != Type::Boolean {
                return Some(format!("{a} = {b}"));
            }
        }
        None
    }

    fn query(&mut self) -> String {
        let count = 1 + self.random.index(4);
        let mut from: Vec<(String, usize)> = Vec::new();
        let mut sql = String::new();
        for i in 0..count {
            let table = self.random.index(self.tables.len());
            let next = (format!("x{i}"), table);
            let source = self.source(&next);
            if i == 0 {
                sql = source;
            } else {
                let mut on = match self.equality(&from, &next) {
                    Some(on) => on,
                    None => "1 = 1".into(),
                };
                if self.random.chance(30)
                    && let Some(more) = self.equality(&from, &next)
                {
                    on += &format!(" AND {more}");
                }
                let both: Vec<(String, usize)> = from.iter().cloned().chain([next.clone()]).collect();
                if self.random.chance(25) {
                    on += &format!(" AND {}", self.condition(&both));
                }
                let kind = *self.random.pick(&["JOIN", "JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN"]);
                sql += &format!(" {kind} {source} ON {on}");
            }
            from.push(next);
        }
        let mut filters = Vec::new();
        for _ in 0..self.random.index(4) {
            filters.push(self.condition(&from));
        }
        for i in 0..2 {
            if self.random.chance(20)
                && let Some((table, on)) = self.subquery(&from, &format!("s{i}"))
            {
                let not = *self.random.pick(&["", "NOT "]);
                filters.push(format!("{not}EXISTS (SELECT 1 FROM {table} s{i} WHERE {on})"));
            }
        }
        if self.random.chance(10)
            && let Some((table, on)) = self.subquery(&from, "v")
        {
            let (column, ty) = self.column(&from);
            let value = ty.literal(self.random.index(12));
            filters.push(format!("({column} = {value} OR (SELECT count(*) FROM {table} v WHERE {on}) < 3)"));
        }
        if self.random.chance(15)
            && let Some((table, on)) = self.subquery(&from, "l0")
        {
            let number = self.tables.iter().position(|other| other.name == table).expect("a table");
            let columns = self.column_names(number);
            let limit = *self.random.pick(&["", " LIMIT 1", " LIMIT 2"]);
            let order = if limit.is_empty() { String::new() } else { format!(" ORDER BY {columns}") };
            let lateral = format!("LATERAL (SELECT {columns} FROM {table} l0 WHERE {on}{order}{limit}) l");
            sql += &match self.random.chance(50) {
                true => format!(" CROSS JOIN {lateral}"),
                false => format!(" LEFT JOIN {lateral} ON true"),
            };
            from.push(("l".into(), number));
        }
        let filter = if filters.is_empty() { String::new() } else { format!(" WHERE {}", filters.join(" AND ")) };
        let mut output = self.output(&from);
        if self.random.chance(15)
            && !["count", "DISTINCT"].iter().any(|word| output.starts_with(word))
            && let Some((table, on)) = self.subquery(&from, "v")
        {
            let (value, _) =
                self.column(&[("v".into(), self.tables.iter().position(|t| t.name == table).expect("a table"))]);
            let function = *self.random.pick(&["count", "min", "max"]);
            output += &format!(", (SELECT {function}({value}) FROM {table} v WHERE {on}) AS s");
        }
        format!("SELECT {output} FROM {sql}{filter}")
    }

    fn column_names(&self, table: usize) -> String {
        let names: Vec<&str> = self.tables[table].columns.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }

    /// A table and a condition of its rows, under an alias, that compares them with the rows of `from`.
    fn subquery(&mut self, from: &[(String, usize)], alias: &str) -> Option<(String, String)> {
        let table = self.random.index(self.tables.len());
        let inner = (alias.to_string(), table);
        let mut on = self.equality(from, &inner)?;
        if self.random.chance(40) {
            on += &format!(" AND {}", self.condition(std::slice::from_ref(&inner)));
        }
        if self.random.chance(40)
            && let Some(more) = self.equality(from, &inner)
        {
            let operator = *self.random.pick(&["=", "<>", "<", ">="]);
            on += &format!(" AND {}", more.replace(" = ", &format!(" {operator} ")));
        }
        Some((self.tables[table].name.clone(), on))
    }

    /// FROM item of a table, with probability 25 % as a subquery with the same column names: filtered, without duplicates, or
    /// the first rows.
    fn source(&mut self, (alias, table): &(String, usize)) -> String {
        let name = &self.tables[*table].name;
        if !self.random.chance(25) {
            return format!("{name} {alias}");
        }
        let columns: Vec<String> = self.tables[*table].columns.iter().rev().map(|(name, _)| name.clone()).collect();
        let (name, columns) = (name.clone(), columns.join(", "));
        let inner = vec![("y".to_string(), *table)];
        let filter = self.condition(&inner);
        let rows = format!("{columns} FROM {name} y WHERE {filter}");
        match self.random.index(4) {
            0 => format!("(SELECT DISTINCT {rows}) {alias}"),
            1 => format!("(SELECT {rows} ORDER BY {columns} LIMIT {}) {alias}", self.random.index(12)),
            _ => format!("(SELECT {rows}) {alias}"),
        }
    }

    fn output(&mut self, from: &[(String, usize)]) -> String {
        match self.random.index(6) {
            0 => "count(*)".into(),
            1 => {
                let (a, _) = self.column(from);
                let (b, _) = self.column(from);
                format!("count({a}), min({b})")
            }
            2 => {
                let (a, _) = self.column(from);
                format!("DISTINCT {a}")
            }
            _ => {
                let columns: Vec<String> = (0..1 + self.random.index(4))
                    .map(|i| {
                        let (column, ty) = self.column(from);
                        match ty {
                            Type::BigInt | Type::Int if self.random.chance(20) => format!("{column} + 1 AS o{i}"),
                            _ => format!("{column} AS o{i}"),
                        }
                    })
                    .collect();
                columns.join(", ")
            }
        }
    }
}

pub async fn run(session: &Session, sql: &str) {
    if let Err(error) = session.execute(sql).await {
        panic!("{sql}: {error}");
    }
}

async fn run_all(session: &Session, statements: &[String]) {
    for sql in statements {
        run(session, sql).await;
    }
}

pub fn options() -> Options {
    let store =
        keyaki_store::Options { buffer_bytes: 16 << 10, page_bytes: 4096, leaf_bytes: 32 << 10, ..Default::default() };
    Options { store: Some(store), threads: Some(2), ..Options::default() }
}

async fn world(dir: &Path, seed: u64, queries: usize) -> (usize, usize) {
    let database = Database::create(dir.join(format!("db{seed}")), options()).expect("a new database");
    let session = database.session();
    let mut world = World::create(seed, &session).await;
    let (mut pipelines, mut total) = (0, 0);
    for _ in 0..queries {
        let sql = world.query();
        let plan = compare(&session, &sql).await;
        total += 1;
        pipelines += usize::from(plan.contains("IndexPipelineExec"));
    }
    (pipelines, total)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_queries() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (first, count, queries) = (number("SEED", 1), number("WORLDS", 5), number("QUERIES", 12));
    let dir = tempfile::tempdir().expect("a directory");
    let (mut pipelines, mut total) = (0, 0);
    for seed in first..first + count {
        let (with, all) = world(dir.path(), seed, queries as usize).await;
        pipelines += with;
        total += all;
    }
    println!("{pipelines} of {total} queries have pipelines in index mode");
    assert!(pipelines * 3 > total, "only {pipelines} of {total} queries had pipelines");
}
