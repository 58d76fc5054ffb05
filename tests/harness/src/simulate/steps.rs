//! The steps of a simulation as data, and their texts.
//!
//! A step has a meaning in every state: a statement about a table that does not exist is an error that the model
//! expects. Steps can therefore be left out while a failing list is reduced.

use std::fmt;

/// Number of tables, `t0` to `t3`. Each may exist or not.
pub const TABLES: usize = 4;
/// Number of sessions that change rows.
pub const SESSIONS: usize = 4;
/// Number of results that can be open at the same time.
pub const READERS: usize = 3;
/// Rows satisfy the CHECK constraint if `a` is NULL or below this number.
pub const CHECK_BOUND: i64 = 900;
/// Partial indexes have the rows with `a` from this number on.
pub const PARTIAL_BOUND: i64 = 30;
/// The factor and the modulus of the values of `b` in generated rows, which are unique for all keys in use.
pub const SCATTER: (i64, i64) = (7, 100_003);

/// A column that an index has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    A,
    B,
    C,
}

/// A condition on the rows of a table. `Keys` and its relatives include both bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    All,
    Key(i64),
    Keys(i64, i64),
    A(i64),
    ARange(i64, i64),
    B(i64),
    BRange(i64, i64),
    BIsNull,
    /// `c` begins with this digit.
    CPrefix(u8),
}

/// A new row, without the column `d`, which gets its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRow {
    pub k: i64,
    pub a: Option<i64>,
    pub b: Option<i64>,
    pub c: Option<String>,
}

/// The clause ON CONFLICT of an INSERT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnConflict {
    /// There is none: a conflict is an error.
    Error,
    /// DO NOTHING, for any unique key.
    Nothing,
    /// DO NOTHING, for the primary key.
    KeyNothing,
    /// DO UPDATE, for the primary key.
    Update(Upsert),
    /// INSERT OR REPLACE.
    Replace,
}

/// The assignments of DO UPDATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upsert {
    /// `a = excluded.a`
    SetA,
    /// `a = t.a + excluded.a`
    AddA,
    /// `b = excluded.b, c = excluded.c`
    SetBc,
}

/// An assignment of UPDATE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignment {
    A(Option<i64>),
    AddA(i64),
    B(Option<i64>),
    AddB(i64),
    C(String),
}

/// The definition of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub columns: Vec<Column>,
    pub unique: bool,
    /// `betree`, `vast` or `masstree`.
    pub method: &'static str,
    /// The index has the rows with `a` from [`PARTIAL_BOUND`] on.
    pub partial: bool,
    /// INCLUDE (a).
    pub includes_a: bool,
    /// CREATE INDEX CONCURRENTLY, which cannot run inside of a transaction.
    pub concurrently: bool,
}

/// The order of the rows of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Any,
    Key,
    KeyDescending,
    AKey,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    Rows { table: usize, predicate: Predicate, order: Order, limit: Option<usize> },
    Aggregate { table: usize, predicate: Predicate },
    Groups { table: usize, predicate: Predicate },
    Join { left: usize, right: usize, predicate: Predicate },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    Insert {
        table: usize,
        rows: Vec<NewRow>,
        on_conflict: OnConflict,
    },
    /// INSERT … SELECT of consecutive keys, whose texts repeat the key.
    Fill {
        table: usize,
        first: i64,
        count: i64,
        repeat: usize,
        skips: bool,
    },
    /// INSERT … SELECT from another table, or the same one, with the keys moved by `shift`.
    Copy {
        from: usize,
        to: usize,
        predicate: Predicate,
        shift: i64,
    },
    Update {
        table: usize,
        predicate: Predicate,
        assignment: Assignment,
    },
    /// UPDATE of a primary key.
    Move {
        table: usize,
        from: i64,
        to: i64,
    },
    Delete {
        table: usize,
        predicate: Predicate,
    },
    Select(Query),
    NextValue,
    CreateTable {
        table: usize,
        checked: bool,
        compression: &'static str,
    },
    DropTable {
        table: usize,
    },
    Truncate {
        table: usize,
    },
    CreateIndex {
        table: usize,
        slot: usize,
        index: Index,
    },
    DropIndex {
        table: usize,
        slot: usize,
    },
    AddColumn {
        table: usize,
        default: i64,
    },
    DropColumn {
        table: usize,
    },
    AddCheck {
        table: usize,
    },
    DropCheck {
        table: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// A fault of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The power fails during an operation of the device after so many more.
    PowerFailure(u64),
    /// A write fails.
    Write { after: u64, no_space: bool },
    /// A sync fails.
    Sync { after: u64, no_space: bool },
    /// Reads of a range of the data file fail. The position is in thousandths of the file.
    Reads { position: u64, bytes: u64, reads: u64 },
    /// The device has so many bytes of free space.
    Capacity(u64),
    /// The device has latencies.
    Delays(bool),
}

/// Damage that the device does not report. Errors are allowed afterwards, wrong answers are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// Bits flip: seeds of their positions.
    Rot(Vec<u64>),
    /// A write after so many more is lost.
    Lost(u64),
    /// A write after so many more goes to another place, at this distance in blocks.
    Misdirected { after: u64, blocks: i64 },
    /// Syncs make nothing durable.
    LyingSyncs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Run {
        session: usize,
        statement: Statement,
    },
    Set {
        session: usize,
        setting: &'static str,
    },
    Begin {
        session: usize,
        isolation: Isolation,
    },
    Commit {
        session: usize,
    },
    Rollback {
        session: usize,
    },
    Savepoint {
        session: usize,
        name: u8,
    },
    RollbackTo {
        session: usize,
        name: u8,
    },
    Release {
        session: usize,
        name: u8,
    },
    /// Starts a query and reads its first batch, if `polls` is set. Its remaining rows are read by `Fetch`.
    Open {
        reader: usize,
        table: usize,
        ordered: bool,
        polls: bool,
    },
    Fetch {
        reader: usize,
    },
    /// CHECKPOINT, DROP CACHES, VACUUM, ANALYZE.
    Maintain(&'static str),
    /// Compares all tables and definitions with the model.
    Verify,
    /// Compares the tables and definitions that a second process reads with the model. The process opens the database
    /// read-only if it has not, or `anew`.
    Follow {
        anew: bool,
    },
    /// CHECK DATABASE.
    Check,
    /// BACKUP DATABASE; opens the copy and compares it with the model.
    Backup,
    /// Closes the database and opens it again.
    Reopen,
    /// Cuts the power now. The power also fails during recovery, after these numbers of operations.
    Crash(Vec<u64>),
    Fault(Fault),
    /// Ends all faults.
    Heal,
    Damage(Damage),
    /// Begins again with an empty device, because the old one may be damaged.
    NewDatabase,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Column::A => "a",
            Column::B => "b",
            Column::C => "c",
        })
    }
}

impl Predicate {
    /// The condition, with this qualifier before the names of columns.
    pub fn sql(&self, qualifier: &str) -> String {
        let q = qualifier;
        match self {
            Predicate::All => "true".into(),
            Predicate::Key(k) => format!("{q}k = {k}"),
            Predicate::Keys(low, high) => format!("{q}k BETWEEN {low} AND {high}"),
            Predicate::A(a) => format!("{q}a = {a}"),
            Predicate::ARange(low, high) => format!("{q}a >= {low} AND {q}a <= {high}"),
            Predicate::B(b) => format!("{q}b = {b}"),
            Predicate::BRange(low, high) => format!("{q}b BETWEEN {low} AND {high}"),
            Predicate::BIsNull => format!("{q}b IS NULL"),
            Predicate::CPrefix(digit) => format!("{q}c LIKE '{digit}%'"),
        }
    }
}

fn number(value: Option<i64>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

/// A text without quotes.
fn text(value: &Option<String>) -> String {
    value.as_ref().map_or("NULL".into(), |value| format!("'{value}'"))
}

impl Query {
    pub fn sql(&self) -> String {
        match self {
            Query::Rows { table, predicate, order, limit } => {
                let order = match order {
                    Order::Any => "",
                    Order::Key => " ORDER BY k",
                    Order::KeyDescending => " ORDER BY k DESC",
                    Order::AKey => " ORDER BY a, k",
                };
                let limit = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
                format!("SELECT k, a, b, c FROM t{table} WHERE {}{order}{limit}", predicate.sql(""))
            }
            Query::Aggregate { table, predicate } => {
                let columns = "count(*), count(b), sum(a), min(b), max(a), max(k)";
                format!("SELECT {columns} FROM t{table} WHERE {}", predicate.sql(""))
            }
            Query::Groups { table, predicate } => {
                format!("SELECT a, count(*), sum(b) FROM t{table} WHERE {} GROUP BY a", predicate.sql(""))
            }
            Query::Join { left, right, predicate } => {
                let from = format!("t{left} AS x JOIN t{right} AS y ON y.a = x.b");
                format!("SELECT x.k, y.k, y.c FROM {from} WHERE {}", predicate.sql("x."))
            }
        }
    }
}

impl Statement {
    pub fn sql(&self) -> String {
        match self {
            Statement::Insert { table, rows, on_conflict } => insert_sql(*table, rows, on_conflict),
            Statement::Fill { table, first, count, repeat, skips } => {
                let (factor, modulus) = SCATTER;
                let columns = format!("i, i % 60, i * {factor} % {modulus}, repeat(CAST(i AS TEXT), {repeat})");
                let last = first + count - 1;
                let clause = if *skips { " ON CONFLICT DO NOTHING" } else { "" };
                let series = format!("generate_series({first}, {last}) AS s(i)");
                format!("INSERT INTO t{table} (k, a, b, c) SELECT {columns} FROM {series}{clause}")
            }
            Statement::Copy { from, to, predicate, shift } => {
                let rows = format!("SELECT k + {shift}, a, b, c FROM t{from} WHERE {} ORDER BY k", predicate.sql(""));
                format!("INSERT INTO t{to} (k, a, b, c) {rows} ON CONFLICT DO NOTHING")
            }
            Statement::Update { table, predicate, assignment } => {
                let assignment = match assignment {
                    Assignment::A(a) => format!("a = {}", number(*a)),
                    Assignment::AddA(a) => format!("a = a + {a}"),
                    Assignment::B(b) => format!("b = {}", number(*b)),
                    Assignment::AddB(b) => format!("b = b + {b}"),
                    Assignment::C(c) => format!("c = '{c}'"),
                };
                format!("UPDATE t{table} SET {assignment} WHERE {}", predicate.sql(""))
            }
            Statement::Move { table, from, to } => format!("UPDATE t{table} SET k = {to} WHERE k = {from}"),
            Statement::Delete { table, predicate } => format!("DELETE FROM t{table} WHERE {}", predicate.sql("")),
            Statement::Select(query) => query.sql(),
            Statement::NextValue => "SELECT nextval('s')".into(),
            Statement::CreateTable { table, checked, compression } => {
                let check = if *checked { format!(", {}", check_sql()) } else { String::new() };
                let columns = format!("k BIGINT PRIMARY KEY, a BIGINT, b BIGINT, c TEXT{check}");
                format!("CREATE TABLE t{table} ({columns}) WITH (compression = '{compression}')")
            }
            Statement::DropTable { table } => format!("DROP TABLE t{table}"),
            Statement::Truncate { table } => format!("TRUNCATE t{table}"),
            Statement::CreateIndex { table, slot, index } => index.sql(*table, *slot),
            Statement::DropIndex { table, slot } => format!("DROP INDEX {}", index_name(*table, *slot)),
            Statement::AddColumn { table, default } => {
                format!("ALTER TABLE t{table} ADD COLUMN d BIGINT DEFAULT {default}")
            }
            Statement::DropColumn { table } => format!("ALTER TABLE t{table} DROP COLUMN d"),
            Statement::AddCheck { table } => format!("ALTER TABLE t{table} ADD {}", check_sql()),
            Statement::DropCheck { table } => format!("ALTER TABLE t{table} DROP CONSTRAINT small"),
        }
    }

    /// True for statements that cannot run inside of a transaction.
    pub fn stands_alone(&self) -> bool {
        matches!(self, Statement::CreateIndex { index: Index { concurrently: true, .. }, .. })
    }

    /// True for statements that change definitions.
    pub fn defines(&self) -> bool {
        match self {
            Statement::CreateTable { .. }
            | Statement::DropTable { .. }
            | Statement::Truncate { .. }
            | Statement::CreateIndex { .. }
            | Statement::DropIndex { .. }
            | Statement::AddColumn { .. }
            | Statement::DropColumn { .. }
            | Statement::AddCheck { .. }
            | Statement::DropCheck { .. } => true,
            Statement::Insert { .. }
            | Statement::Fill { .. }
            | Statement::Copy { .. }
            | Statement::Update { .. }
            | Statement::Move { .. }
            | Statement::Delete { .. }
            | Statement::Select(_)
            | Statement::NextValue => false,
        }
    }
}

fn check_sql() -> String {
    format!("CONSTRAINT small CHECK (a < {CHECK_BOUND})")
}

/// The name of an index.
pub fn index_name(table: usize, slot: usize) -> String {
    format!("t{table}_i{slot}")
}

impl Index {
    fn sql(&self, table: usize, slot: usize) -> String {
        let unique = if self.unique { "UNIQUE " } else { "" };
        let concurrently = if self.concurrently { "CONCURRENTLY " } else { "" };
        let columns = self.columns.iter().map(Column::to_string).collect::<Vec<_>>().join(", ");
        let include = if self.includes_a { " INCLUDE (a)" } else { "" };
        let condition = if self.partial { format!(" WHERE a >= {PARTIAL_BOUND}") } else { String::new() };
        let (name, method) = (index_name(table, slot), self.method);
        format!("CREATE {unique}INDEX {concurrently}{name} ON t{table} USING {method} ({columns}){include}{condition}")
    }
}

fn insert_sql(table: usize, rows: &[NewRow], on_conflict: &OnConflict) -> String {
    let row = |row: &NewRow| format!("({}, {}, {}, {})", row.k, number(row.a), number(row.b), text(&row.c));
    let rows = rows.iter().map(row).collect::<Vec<_>>().join(", ");
    let (verb, clause) = match on_conflict {
        OnConflict::Error => ("INSERT", String::new()),
        OnConflict::Nothing => ("INSERT", " ON CONFLICT DO NOTHING".into()),
        OnConflict::KeyNothing => ("INSERT", " ON CONFLICT (k) DO NOTHING".into()),
        OnConflict::Replace => ("INSERT OR REPLACE", String::new()),
        OnConflict::Update(upsert) => {
            let assignments = match upsert {
                Upsert::SetA => "a = excluded.a".into(),
                Upsert::AddA => format!("a = t{table}.a + excluded.a"),
                Upsert::SetBc => "b = excluded.b, c = excluded.c".into(),
            };
            ("INSERT", format!(" ON CONFLICT (k) DO UPDATE SET {assignments}"))
        }
    };
    format!("{verb} INTO t{table} (k, a, b, c) VALUES {rows}{clause}")
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        })
    }
}

impl Step {
    /// The session of the step and its statement, if it is one of a session.
    pub fn statement(&self) -> Option<(usize, String)> {
        match self {
            Step::Run { session, statement } => Some((*session, statement.sql())),
            Step::Set { session, setting } => Some((*session, format!("SET {setting}"))),
            Step::Begin { session, isolation } => Some((*session, format!("BEGIN ISOLATION LEVEL {isolation}"))),
            Step::Commit { session } => Some((*session, "COMMIT".into())),
            Step::Rollback { session } => Some((*session, "ROLLBACK".into())),
            Step::Savepoint { session, name } => Some((*session, format!("SAVEPOINT p{name}"))),
            Step::RollbackTo { session, name } => Some((*session, format!("ROLLBACK TO p{name}"))),
            Step::Release { session, name } => Some((*session, format!("RELEASE p{name}"))),
            _ => None,
        }
    }
}

/// The query of a reader.
pub fn reader_sql(table: usize, ordered: bool) -> String {
    let order = if ordered { " ORDER BY k" } else { "" };
    format!("SELECT k, a, b, c FROM t{table}{order}")
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((session, sql)) = self.statement() {
            return write!(f, "session {session}: {sql}");
        }
        match self {
            Step::Open { reader, table, ordered, polls } => {
                let first = if *polls { ", read the first batch" } else { "" };
                write!(f, "reader {reader}: {}{first}", reader_sql(*table, *ordered))
            }
            Step::Fetch { reader } => write!(f, "reader {reader}: read the remaining rows"),
            Step::Maintain(sql) => f.write_str(sql),
            Step::Verify => f.write_str("compare all tables with the model"),
            Step::Follow { anew: true } => f.write_str("open a reader anew, and compare what it sees with the model"),
            Step::Follow { anew: false } => f.write_str("compare what a reader sees with the model"),
            Step::Check => f.write_str("CHECK DATABASE"),
            Step::Backup => f.write_str("BACKUP DATABASE, open the copy and compare it with the model"),
            Step::Reopen => f.write_str("close the database and open it again"),
            Step::Crash(during) if during.is_empty() => f.write_str("cut the power and open the database again"),
            Step::Crash(during) => {
                write!(f, "cut the power, again during recovery after {during:?} operations, and open the database")
            }
            Step::Fault(fault) => write!(f, "plan a fault: {fault:?}"),
            Step::Heal => f.write_str("end all faults"),
            Step::Damage(damage) => write!(f, "damage: {damage:?}"),
            Step::NewDatabase => f.write_str("begin with an empty device"),
            // Statements are written above.
            _ => Ok(()),
        }
    }
}
