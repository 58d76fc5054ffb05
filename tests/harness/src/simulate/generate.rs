//! The list of steps of a seed.
//!
//! Most steps are statements of sessions. Keys are dense, so that sessions change the same rows. Faults are rare,
//! and end after some steps; damage is followed by a new database.

use keyaki_primitives::Random;

use super::steps::{
    Assignment, Column, Damage, Fault, Index, Isolation, NewRow, OnConflict, Order, Predicate, Query, READERS, SCATTER,
    SESSIONS, Statement, Step, TABLES, Upsert,
};

/// Keys of many statements are below this number, so that transactions conflict.
const KEYS_HOT: u64 = 40;
/// Keys of most other single rows are below this number.
const KEYS: u64 = 300;
/// Keys of generated rows are below this number.
const KEYS_FILLED: u64 = 4000;
/// Most rows of INSERT … SELECT.
const FILLED_MAX: u64 = 2500;
/// Places of indexes of each table.
const SLOTS: u64 = 3;
/// Names of savepoints.
const SAVEPOINTS: u64 = 2;

/// Kinds of indexes.
const METHODS: [&str; 3] = ["betree", "vast", "masstree"];

/// Methods of compression of tables.
const COMPRESSIONS: [&str; 3] = ["lz4", "zstd", "none"];

/// Settings of sessions that choose other plans for the same results.
const SETTINGS: [&str; 11] = [
    "keyaki.join = 'index'",
    "keyaki.join = 'scan'",
    "keyaki.join = 'auto'",
    "keyaki.execution = 'in_order'",
    "keyaki.execution = 'out_of_order'",
    "keyaki.short_path = 'off'",
    "keyaki.short_path = 'on'",
    "keyaki.blind_upserts = 'off'",
    "keyaki.blind_upserts = 'on'",
    "keyaki.plan_cache = 'always'",
    "keyaki.plan_cache = 'on'",
];

/// Makes the steps of a seed.
#[derive(Debug)]
pub struct Generator {
    random: Random,
    /// Steps until the end of the current fault or damage.
    ends: Option<(u64, Step)>,
    /// Sessions in a transaction, as far as the generator can foresee.
    open: [bool; SESSIONS],
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Generator { random: Random::new(seed ^ 0x5eed_0f57_e95a), ends: None, open: [false; SESSIONS] }
    }

    pub fn steps(mut self, count: usize) -> Vec<Step> {
        (0..count).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        if let Some((left, step)) = self.ends.take() {
            if left == 0 {
                return step;
            }
            self.ends = Some((left - 1, step));
        }
        match self.random.below(1000) {
            0..640 => self.run(),
            640..780 => self.transaction(),
            780..820 => Step::Open {
                reader: self.random.index(READERS),
                table: self.random.index(TABLES),
                ordered: self.random.one_in(2),
                polls: self.random.one_in(2),
            },
            820..855 => Step::Fetch { reader: self.random.index(READERS) },
            855..880 => Step::Set { session: self.session(), setting: SETTINGS[self.random.index(SETTINGS.len())] },
            880..915 => self.maintain(),
            915..930 => Step::Verify,
            930..938 => Step::Check,
            938..941 => Step::Backup,
            941..946 => Step::Reopen,
            946..953 => self.crash(),
            953..971 if self.ends.is_none() => self.fault(),
            971..974 if self.ends.is_none() => self.damage(),
            974..988 => Step::Follow { anew: self.random.one_in(6) },
            _ => self.run(),
        }
    }

    fn session(&mut self) -> usize {
        self.random.index(SESSIONS)
    }

    fn table(&mut self) -> usize {
        self.random.index(TABLES)
    }

    fn run(&mut self) -> Step {
        let session = self.session();
        Step::Run { session, statement: self.statement() }
    }

    fn transaction(&mut self) -> Step {
        let session = self.session();
        if !self.open[session] {
            self.open[session] = true;
            let isolation = match self.random.below(5) {
                0 => Isolation::ReadCommitted,
                1 => Isolation::Serializable,
                _ => Isolation::RepeatableRead,
            };
            return Step::Begin { session, isolation };
        }
        let name = self.random.below(SAVEPOINTS) as u8;
        match self.random.below(12) {
            0..2 => Step::Savepoint { session, name },
            2..4 => Step::RollbackTo { session, name },
            4 => Step::Release { session, name },
            5..7 => {
                self.open[session] = false;
                Step::Rollback { session }
            }
            _ => {
                self.open[session] = false;
                Step::Commit { session }
            }
        }
    }

    fn maintain(&mut self) -> Step {
        match self.random.below(6) {
            0..3 => Step::Maintain("CHECKPOINT"),
            3 => Step::Maintain("DROP CACHES"),
            4 => Step::Maintain("VACUUM"),
            _ => Step::Maintain("ANALYZE"),
        }
    }

    fn crash(&mut self) -> Step {
        let count = if self.random.one_in(3) { 1 + self.random.below(2) } else { 0 };
        Step::Crash((0..count).map(|_| self.random.below(25)).collect())
    }

    fn fault(&mut self) -> Step {
        let after = self.random.below(40);
        let no_space = self.random.one_in(3);
        let fault = match self.random.below(12) {
            0..5 => Fault::PowerFailure(after),
            5 => Fault::Write { after, no_space },
            6 => Fault::Sync { after: after / 3, no_space },
            7..9 => Fault::Reads {
                position: self.random.below(1000),
                bytes: 4096 << self.random.below(8),
                reads: *self.random.pick(&[1, 2, 8, u64::MAX]),
            },
            9..11 => Fault::Capacity(*self.random.pick(&[0, 10_000, 100_000, 1_000_000])),
            _ => Fault::Delays(self.random.one_in(2)),
        };
        let steps = if matches!(fault, Fault::Capacity(_)) { 150 } else { 30 };
        self.ends = Some((5 + self.random.below(steps), Step::Heal));
        Step::Fault(fault)
    }

    fn damage(&mut self) -> Step {
        let after = self.random.below(30);
        let damage = match self.random.below(5) {
            0..2 => Damage::Rot((0..1 + self.random.below(20)).map(|_| self.random.next_u64()).collect()),
            2 => Damage::Lost(after),
            3 => Damage::Misdirected { after, blocks: self.random.below(41) as i64 - 20 },
            _ => Damage::LyingSyncs,
        };
        self.ends = Some((10 + self.random.below(30), Step::NewDatabase));
        Step::Damage(damage)
    }

    fn statement(&mut self) -> Statement {
        let table = self.table();
        match self.random.below(100) {
            0..18 => self.insert(table),
            18..22 => Statement::Fill {
                table,
                first: self.random.below(KEYS_FILLED - FILLED_MAX) as i64,
                count: self.filled(),
                repeat: *self.random.pick(&[1, 8, 40, 150]),
                skips: self.random.one_in(2),
            },
            22..24 => {
                let shift = self.random.below(2000) as i64 - 1000;
                Statement::Copy { from: self.table(), to: table, predicate: self.predicate(), shift }
            }
            24..40 => {
                let (predicate, assignment) = (self.predicate(), self.assignment());
                Statement::Update { table, predicate, assignment }
            }
            40..43 => Statement::Move { table, from: self.key(), to: self.key() },
            43..55 => self.delete(table),
            55..90 => Statement::Select(self.query(table)),
            90..92 => Statement::NextValue,
            _ => self.definition(table),
        }
    }

    /// Rows of INSERT … SELECT.
    fn filled(&mut self) -> i64 {
        let bound = *self.random.pick(&[10, 200, FILLED_MAX]);
        1 + self.random.below(bound) as i64
    }

    fn key(&mut self) -> i64 {
        let bound = *self.random.pick(&[KEYS_HOT, KEYS_HOT, KEYS, KEYS, KEYS, KEYS_FILLED]);
        self.random.below(bound) as i64
    }

    fn a(&mut self) -> Option<i64> {
        match self.random.below(40) {
            0..2 => None,
            2 => Some(1000),
            _ => Some(self.random.below(60) as i64),
        }
    }

    fn b(&mut self, k: i64) -> Option<i64> {
        match self.random.below(10) {
            0 => None,
            1..3 => Some(self.random.below(80) as i64),
            _ => Some(k * SCATTER.0 % SCATTER.1),
        }
    }

    fn text(&mut self) -> String {
        let length = *self.random.pick(&[0, 3, 20, 150]);
        (0..length).map(|_| char::from(b'0' + self.random.below(10) as u8)).collect()
    }

    fn insert(&mut self, table: usize) -> Statement {
        let on_conflict = match self.random.below(10) {
            0..2 => OnConflict::Error,
            2 => OnConflict::Nothing,
            3 => OnConflict::KeyNothing,
            4..7 => OnConflict::Replace,
            7 => OnConflict::Update(Upsert::SetA),
            8 => OnConflict::Update(Upsert::AddA),
            _ => OnConflict::Update(Upsert::SetBc),
        };
        let count = *self.random.pick(&[1, 1, 1, 2, 8]);
        let rows = (0..count).map(|_| {
            let k = self.key();
            let c = if self.random.one_in(12) { None } else { Some(self.text()) };
            NewRow { k, a: self.a(), b: self.b(k), c }
        });
        Statement::Insert { table, rows: rows.collect(), on_conflict }
    }

    fn predicate(&mut self) -> Predicate {
        let a = self.random.below(60) as i64;
        match self.random.below(20) {
            0..7 => Predicate::Key(self.key()),
            7..11 => {
                let low = self.key();
                Predicate::Keys(low, low + self.random.below(60) as i64)
            }
            11..13 => Predicate::A(a),
            13..15 => Predicate::ARange(a, a + self.random.below(6) as i64),
            15 => {
                let k = self.key();
                Predicate::B(self.b(k).unwrap_or(0))
            }
            16 => {
                let low = self.random.below(2000) as i64;
                Predicate::BRange(low, low + self.random.below(300) as i64)
            }
            17 => Predicate::BIsNull,
            18 => Predicate::CPrefix(self.random.below(10) as u8),
            _ => Predicate::Keys(self.random.below(KEYS_FILLED) as i64, KEYS_FILLED as i64),
        }
    }

    fn assignment(&mut self) -> Assignment {
        match self.random.below(10) {
            0..2 => Assignment::A(self.a()),
            2..4 => Assignment::AddA(self.random.below(5) as i64 - 2),
            4 => Assignment::B(None),
            5 => {
                let k = self.key();
                Assignment::B(self.b(k))
            }
            6..8 => Assignment::AddB(self.random.below(9) as i64 - 4),
            _ => Assignment::C(self.text()),
        }
    }

    fn delete(&mut self, table: usize) -> Statement {
        let predicate = match self.random.below(20) {
            0 => Predicate::All,
            1..4 => Predicate::Keys(self.random.below(KEYS_FILLED) as i64, KEYS_FILLED as i64),
            _ => self.predicate(),
        };
        Statement::Delete { table, predicate }
    }

    fn query(&mut self, table: usize) -> Query {
        let predicate = if self.random.one_in(25) { Predicate::All } else { self.predicate() };
        match self.random.below(20) {
            0..12 => {
                let order = *self.random.pick(&[Order::Any, Order::Any, Order::Key, Order::KeyDescending, Order::AKey]);
                let is_limited = order != Order::Any && self.random.one_in(2);
                let limit = is_limited.then(|| 1 + self.random.index(10));
                Query::Rows { table, predicate, order, limit }
            }
            12..16 => Query::Aggregate { table, predicate },
            16..18 => Query::Groups { table, predicate },
            _ => Query::Join { left: table, right: self.table(), predicate },
        }
    }

    fn definition(&mut self, table: usize) -> Statement {
        let slot = self.random.below(SLOTS) as usize;
        match self.random.below(20) {
            0..7 => Statement::CreateTable {
                table,
                checked: self.random.one_in(3),
                compression: COMPRESSIONS[self.random.index(COMPRESSIONS.len())],
            },
            7 if self.random.one_in(3) => Statement::DropTable { table },
            7 => Statement::Truncate { table },
            8..14 => Statement::CreateIndex { table, slot, index: self.index() },
            14..16 => Statement::DropIndex { table, slot },
            16 => Statement::AddColumn { table, default: self.random.below(100) as i64 },
            17 => Statement::DropColumn { table },
            18 => Statement::AddCheck { table },
            _ => Statement::DropCheck { table },
        }
    }

    fn index(&mut self) -> Index {
        let columns = match self.random.below(6) {
            0..2 => vec![Column::A],
            2..4 => vec![Column::B],
            4 => vec![Column::C],
            _ => vec![Column::A, Column::B],
        };
        let method = METHODS[self.random.index(METHODS.len())];
        Index {
            includes_a: !columns.contains(&Column::A) && self.random.one_in(2),
            unique: self.random.one_in(4),
            // A locator needs numbers.
            method: if method == "vast" && columns[0] == Column::C { "betree" } else { method },
            concurrently: method != "masstree" && self.random.one_in(5),
            partial: self.random.one_in(4),
            columns,
        }
    }
}
