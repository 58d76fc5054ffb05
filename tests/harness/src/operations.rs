//! The statements of the crash test and their effect on a model.
//!
//! A seed and a number determine a step, which is a statement or a transaction, so the writing process and the checking
//! process agree on it without communication.

use std::collections::BTreeMap;

use keyaki_primitives::Random;

/// The first statements.
const SCHEMA: [&str; 5] = [
    "CREATE TABLE account (id BIGINT PRIMARY KEY, owner BIGINT NOT NULL, balance BIGINT, note TEXT)",
    "CREATE INDEX account_owner ON account (owner) INCLUDE (balance)",
    "CREATE TABLE entry (account BIGINT, number BIGINT, amount BIGINT NOT NULL, PRIMARY KEY (account, number))",
    "CREATE INDEX entry_amount ON entry USING vast (amount) WITH (memory = '1 MiB')",
    "CREATE INDEX account_balance ON account USING masstree (balance) INCLUDE (owner)",
];
/// Owners of accounts are below this number.
pub const OWNERS: u64 = 20;
/// Amounts of entries are below this number.
pub const AMOUNTS: u64 = 50;
/// Most rows of one INSERT.
const ROWS_MAX: u64 = 24;

/// A statement of the crash test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// CREATE TABLE or CREATE INDEX.
    Schema(&'static str),
    /// Rows of `account`: id, owner, balance, note.
    InsertAccounts(Vec<(i64, i64, i64, String)>),
    /// Rows of `entry`: account, number, amount.
    InsertEntries(Vec<(i64, i64, i64)>),
    /// Adds to the balances of all accounts of an owner.
    UpdateBalances {
        /// The owner.
        owner: i64,
        /// The amount to add.
        add: i64,
    },
    /// Gives all accounts of one owner to another, which moves index entries.
    UpdateOwner {
        /// The old owner.
        from: i64,
        /// The new owner.
        to: i64,
    },
    /// Deletes all accounts of an owner.
    DeleteAccounts {
        /// The owner.
        owner: i64,
    },
    /// Deletes all entries with an amount.
    DeleteEntries {
        /// The amount.
        amount: i64,
    },
}

/// What the writer does before it acknowledges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The statements. Those with `false` are undone by ROLLBACK TO a savepoint.
    pub operations: Vec<(Operation, bool)>,
    /// How the step ends.
    pub ending: Ending,
}

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It is a single statement.
    Statement,
    /// COMMIT of a transaction.
    Commit,
    /// ROLLBACK of a transaction.
    Rollback,
}

/// Most statements of a transaction.
const STATEMENTS_MAX: u64 = 6;

/// The step with this number.
pub fn step(seed: u64, number: u64) -> Step {
    // The schema is created by a statement and two transactions.
    let schema = match number {
        0 => Some(0..1),
        1 => Some(1..3),
        2 => Some(3..5),
        _ => None,
    };
    if let Some(statements) = schema {
        let ending = if statements.len() == 1 { Ending::Statement } else { Ending::Commit };
        return Step { operations: statements.map(|i| (Operation::Schema(SCHEMA[i]), true)).collect(), ending };
    }
    let first = number * STATEMENTS_MAX;
    let mut random = Random::new(seed.wrapping_mul(0x0100_0193) ^ number);
    let ending = match random.below(8) {
        0..3 => Ending::Statement,
        7 => Ending::Rollback,
        _ => Ending::Commit,
    };
    let count = if ending == Ending::Statement { 1 } else { 1 + random.below(STATEMENTS_MAX) };
    let statement = |i| (operation(seed, first + i), ending == Ending::Statement || random.below(6) > 0);
    Step { operations: (0..count).map(statement).collect(), ending }
}

/// The statement with this number, which is at least the number of statements of the schema.
fn operation(seed: u64, number: u64) -> Operation {
    let mut random = Random::new(seed.wrapping_mul(0x0001_0000_01b3) ^ number);
    let owner = |random: &mut Random| random.below(OWNERS) as i64;
    match random.below(10) {
        0..4 => {
            let rows = 1 + random.below(ROWS_MAX);
            // The keys are scattered, and no two operations insert the same key.
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

impl Step {
    /// The texts of the statements.
    pub fn sql(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let is_transaction = self.ending != Ending::Statement;
        texts.extend(is_transaction.then(|| "BEGIN".to_string()));
        for (operation, is_kept) in &self.operations {
            if !is_kept {
                texts.push("SAVEPOINT before".into());
            }
            texts.push(operation.sql());
            if !is_kept {
                texts.push("ROLLBACK TO before".into());
            }
        }
        match self.ending {
            Ending::Statement => {}
            Ending::Commit => texts.push("COMMIT".into()),
            Ending::Rollback => texts.push("ROLLBACK".into()),
        }
        texts
    }
}

impl Operation {
    /// The statement's text.
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

/// The expected contents of the tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// Number of schema statements that took effect.
    pub schema: usize,
    /// Owner, balance and note by id.
    pub accounts: BTreeMap<i64, (i64, i64, String)>,
    /// Amount by account and number.
    pub entries: BTreeMap<(i64, i64), i64>,
}

impl Model {
    /// Does to the model what the step does to the tables.
    pub fn apply(&mut self, step: &Step) {
        if step.ending != Ending::Rollback {
            step.operations.iter().filter(|(_, is_kept)| *is_kept).for_each(|(operation, _)| self.change(operation));
        }
    }

    fn change(&mut self, operation: &Operation) {
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
