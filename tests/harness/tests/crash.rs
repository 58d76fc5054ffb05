//! Kills a process that commits statements and transactions under full durability at random moments. Afterwards every
//! acknowledged one must be in effect, none may be half in effect, and the indexes must agree with their tables.
//!
//! `KEYAKI_CRASH_ROUNDS` sets the number of kills (default 200), `KEYAKI_CRASH_SEED` the seed (default: random, printed).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use keyaki::{Database, Options, Session};
use keyaki_harness::operations::{AMOUNTS, Model, OWNERS, step};
use keyaki_primitives::Random;

/// Kills of writers on one database before the test begins a new one.
const ROUNDS_PER_DATABASE: u64 = 20;

/// Index lookups per check.
const LOOKUPS: usize = 3;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_writers_lose_nothing() {
    let rounds = variable("KEYAKI_CRASH_ROUNDS").unwrap_or(200);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = variable("KEYAKI_CRASH_SEED").unwrap_or(now % 1_000_000_007);
    eprintln!("KEYAKI_CRASH_SEED={seed}");
    let mut random = Random::new(seed);
    let mut round = 0;
    let mut acknowledged = 0;
    while round < rounds {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("database");
        let (mut model, mut next) = (Model::default(), 0);
        let seed = random.below(1 << 30);
        for _ in 0..ROUNDS_PER_DATABASE.min(rounds - round) {
            let last = kill_a_writer(&database, seed, next, &mut random);
            for number in next..last.map_or(next, |last| last + 1) {
                model.apply(&step(seed, number));
                acknowledged += 1;
            }
            next = last.map_or(next, |last| last + 1);
            // The step that ran when the writer was killed is in effect as a whole or not at all.
            let mut with_unfinished = model.clone();
            with_unfinished.apply(&step(seed, next));
            let found = contents(&database, &mut random).await;
            if found == with_unfinished {
                model = with_unfinished;
                next += 1;
            } else {
                assert_eq!(found, model, "round {round}, seed {seed}, step {next}");
            }
            round += 1;
        }
    }
    eprintln!("{rounds} kills, {acknowledged} acknowledged steps");
}

/// Starts a writer at step `from` and kills it. Returns the number of the last acknowledged step.
fn kill_a_writer(database: &Path, seed: u64, from: u64, random: &mut Random) -> Option<u64> {
    let mut writer = Command::new(env!("CARGO_BIN_EXE_keyaki-harness"))
        .arg("crash-writer")
        .arg(database)
        .args([seed.to_string(), "--from".into(), from.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    // One writer in ten is killed while it opens the database, the others after up to 59 steps.
    let steps = if random.below(10) == 0 { 0 } else { random.below(60) };
    let mut last = None;
    let number = |line: std::io::Result<String>| line.unwrap().parse::<u64>().unwrap();
    for line in lines.by_ref().take(steps as usize) {
        last = Some(number(line));
    }
    std::thread::sleep(Duration::from_micros(random.below(3000)));
    writer.kill().unwrap();
    // Steps acknowledged before the kill took effect. The last line may be cut off.
    for line in lines.map_while(Result::ok) {
        last = line.parse().ok().filter(|&line| last.is_none_or(|last| line == last + 1)).or(last);
    }
    let status = writer.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "the writer ended before it was killed: {status}"
    );
    last
}

/// The contents of all tables, after checking that the indexes agree with them.
async fn contents(path: &Path, random: &mut Random) -> Model {
    if !path.exists() {
        return Model::default();
    }
    let database = Database::open(path, Options { memory_bytes: Some(64 << 20), ..Default::default() }).unwrap();
    let session = database.session();
    let tables: Vec<String> = database.tables().into_iter().map(|table| table.name).collect();
    let mut model = Model { schema: tables.len() + database.indexes().len(), ..Model::default() };
    if tables.iter().any(|table| table == "account") {
        model.accounts = accounts(&session, "").await;
        if database.indexes().iter().any(|index| index.name == "account_owner") {
            check_accounts(&database, &session, &model, random).await;
        }
    }
    if tables.iter().any(|table| table == "entry") {
        model.entries = entries(&session, "").await;
        if database.indexes().iter().any(|index| index.name == "entry_amount") {
            check_entries(&session, &model, random).await;
        }
    }
    model
}

/// Compares lookups of owners by index, scans of the index in memory, and sums over the index's columns with the table.
async fn check_accounts(database: &Database, session: &Session, model: &Model, random: &mut Random) {
    for _ in 0..LOOKUPS {
        let owner = random.below(OWNERS) as i64;
        let by_index = accounts(session, &format!("WHERE owner = {owner}")).await;
        let mut by_table = model.accounts.clone();
        by_table.retain(|_, account| account.0 == owner);
        assert_eq!(by_index, by_table, "index and table differ for owner {owner}");
    }
    if database.indexes().iter().any(|index| index.name == "account_balance") {
        let mut by_index: Vec<(i64, i64, i64)> = Vec::new();
        for batch in
            rows(session, "SELECT balance, owner, id FROM account WHERE balance IS NOT NULL ORDER BY balance").await
        {
            by_index.extend(
                (0..batch.num_rows())
                    .map(|row| (integer(&batch, 0, row), integer(&batch, 1, row), integer(&batch, 2, row))),
            );
        }
        assert!(by_index.is_sorted_by_key(|entry| entry.0));
        by_index.sort_unstable();
        let mut by_table: Vec<(i64, i64, i64)> =
            model.accounts.iter().map(|(&id, account)| (account.1, account.0, id)).collect();
        by_table.sort_unstable();
        assert_eq!(by_index, by_table, "the index in memory and the table differ");
    }
    let mut groups = 0;
    for batch in rows(session, "SELECT owner, count(*), sum(balance) FROM account GROUP BY owner").await {
        for row in 0..batch.num_rows() {
            let owned = model.accounts.values().filter(|account| account.0 == integer(&batch, 0, row));
            let (count, sum) = owned.fold((0, 0), |(count, sum), account| (count + 1, sum + account.1));
            assert_eq!((integer(&batch, 1, row), integer(&batch, 2, row)), (count, sum));
            groups += count;
        }
    }
    assert_eq!(groups, model.accounts.len() as i64);
}

async fn check_entries(session: &Session, model: &Model, random: &mut Random) {
    for _ in 0..LOOKUPS {
        let amount = random.below(AMOUNTS) as i64;
        let by_index = entries(session, &format!("WHERE amount = {amount}")).await;
        let mut by_table = model.entries.clone();
        by_table.retain(|_, entry| *entry == amount);
        assert_eq!(by_index, by_table, "index and table differ for amount {amount}");
    }
}

async fn rows(session: &Session, sql: &str) -> Vec<RecordBatch> {
    session.query(sql).await.unwrap().collect().await.unwrap()
}

fn integer(batch: &RecordBatch, column: usize, row: usize) -> i64 {
    batch.column(column).as_primitive::<Int64Type>().value(row)
}

async fn accounts(session: &Session, condition: &str) -> BTreeMap<i64, (i64, i64, String)> {
    let mut accounts = BTreeMap::new();
    for batch in rows(session, &format!("SELECT id, owner, balance, note FROM account {condition}")).await {
        for row in 0..batch.num_rows() {
            let note = arrow::util::display::array_value_to_string(batch.column(3), row).unwrap();
            let account = (integer(&batch, 1, row), integer(&batch, 2, row), note);
            assert_eq!(accounts.insert(integer(&batch, 0, row), account), None, "duplicate row");
        }
    }
    accounts
}

async fn entries(session: &Session, condition: &str) -> BTreeMap<(i64, i64), i64> {
    let mut entries = BTreeMap::new();
    for batch in rows(session, &format!("SELECT account, number, amount FROM entry {condition}")).await {
        for row in 0..batch.num_rows() {
            assert!(batch.columns().iter().all(|column| column.is_valid(row)));
            let key = (integer(&batch, 0, row), integer(&batch, 1, row));
            assert_eq!(entries.insert(key, integer(&batch, 2, row)), None, "duplicate row");
        }
    }
    entries
}
