//! The statements of the crash test, and what they do to a model. Number and seed determine a statement, so that the writing
//! and the checking process agree on it without talking.

use std::collections::BTreeMap;

/// The statements before all others.
const SCHEMA: [&str; 5] = [
    "CREATE TABLE account (id BIGINT PRIMARY KEY, owner BIGINT NOT NULL, balance BIGINT, note TEXT)",
    "CREATE INDEX account_owner ON account (owner) INCLUDE (balance)",
    "CREATE TABLE entry (account BIGINT, number BIGINT, amount BIGINT NOT NULL, PRIMARY KEY (account, number))",
    "CREATE INDEX entry_amount ON entry USING vast (amount) WITH (memory = '1 MiB')",
    "CREATE INDEX account_balance ON account USING masstree (balance) INCLUDE (owner)",
];
/// Owners of accounts.
pub const OWNERS: u64 = 20;
/// Amounts of entries are below.
pub const AMOUNTS: u64 = 50;
const ROWS_MAX: u64 = 24;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Schema(&'static str),
    /// id, owner, balance, note.
    InsertAccounts(Vec<(i64, i64, i64, String)>),
    /// account, number, amount.
    InsertEntries(Vec<(i64, i64, i64)>),
    /// All accounts of an owner.
    UpdateBalances {
        owner: i64,
        add: i64,
    },
    /// Moves index entries.
    UpdateOwner {
        from: i64,
        to: i64,
    },
    DeleteAccounts {
        owner: i64,
    },
    DeleteEntries {
        amount: i64,
    },
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn operation(seed: u64, number: u64) -> Operation {
    if let Some(statement) = SCHEMA.get(number as usize) {
        return Operation::Schema(statement);
    }
    let mut random = Random(seed.wrapping_mul(0x0001_0000_01b3) ^ number);
    let owner = |random: &mut Random| random.below(OWNERS) as i64;
    match random.below(10) {
        0..4 => {
            let rows = 1 + random.below(ROWS_MAX);
            // Scattered, and new: a key belongs to one operation.
            let id = |row: u64| (((number * ROWS_MAX + row) * 7919) % 1_000_003) as i64;
            let row = |row: u64| {
                let note = "note ".repeat(random.below(8) as usize);
                (id(row), owner(&mut random), random.below(1000) as i64, note)
            };
            Operation::InsertAccounts((0..rows).map(row).collect())
        }
        4..7 => {
            let rows = 1 + random.below(ROWS_MAX);
            let row = |row: u64| {
                let account = random.below(100) as i64;
                (account, (number * ROWS_MAX + row) as i64, random.below(AMOUNTS) as i64)
            };
            Operation::InsertEntries((0..rows).map(row).collect())
        }
        7 => Operation::UpdateBalances { owner: owner(&mut random), add: random.below(100) as i64 },
        8 => match random.below(3) {
            0 => Operation::DeleteAccounts { owner: owner(&mut random) },
            _ => Operation::UpdateOwner { from: owner(&mut random), to: owner(&mut random) },
        },
        _ => Operation::DeleteEntries { amount: random.below(AMOUNTS) as i64 },
    }
}

// Each of the two processes uses a half of this.
#[allow(dead_code)]
impl Operation {
    pub fn sql(&self) -> String {
        match self {
            Operation::Schema(statement) => (*statement).to_string(),
            Operation::InsertAccounts(rows) => {
                let row = |(id, owner, balance, note): &(i64, i64, i64, String)| {
                    format!("({id}, {owner}, {balance}, '{note}')")
                };
                format!("INSERT INTO account VALUES {}", rows.iter().map(row).collect::<Vec<_>>().join(", "))
            }
            Operation::InsertEntries(rows) => {
                let row = |(account, number, amount): &(i64, i64, i64)| format!("({account}, {number}, {amount})");
                format!("INSERT INTO entry VALUES {}", rows.iter().map(row).collect::<Vec<_>>().join(", "))
            }
            Operation::UpdateBalances { owner, add } => {
                format!("UPDATE account SET balance = balance + {add} WHERE owner = {owner}")
            }
            Operation::UpdateOwner { from, to } => format!("UPDATE account SET owner = {to} WHERE owner = {from}"),
            Operation::DeleteAccounts { owner } => format!("DELETE FROM account WHERE owner = {owner}"),
            Operation::DeleteEntries { amount } => format!("DELETE FROM entry WHERE amount = {amount}"),
        }
    }
}

/// What the tables should contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// Schema statements that took effect.
    pub schema: usize,
    /// By id: owner, balance, note.
    pub accounts: BTreeMap<i64, (i64, i64, String)>,
    /// By account and number: amount.
    pub entries: BTreeMap<(i64, i64), i64>,
}

#[allow(dead_code)]
impl Model {
    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Schema(_) => self.schema += 1,
            Operation::InsertAccounts(rows) => {
                let row =
                    |(id, owner, balance, note): &(i64, i64, i64, String)| (*id, (*owner, *balance, note.clone()));
                self.accounts.extend(rows.iter().map(row));
            }
            Operation::InsertEntries(rows) => {
                self.entries.extend(rows.iter().map(|&(account, number, amount)| ((account, number), amount)));
            }
            Operation::UpdateBalances { owner, add } => {
                self.accounts.values_mut().filter(|account| account.0 == *owner).for_each(|account| account.1 += add);
            }
            Operation::UpdateOwner { from, to } => {
                self.accounts.values_mut().filter(|account| account.0 == *from).for_each(|account| account.0 = *to);
            }
            Operation::DeleteAccounts { owner } => self.accounts.retain(|_, account| account.0 != *owner),
            Operation::DeleteEntries { amount } => self.entries.retain(|_, entry| entry != amount),
        }
    }
}
