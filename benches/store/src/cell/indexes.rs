//! Write amplification of a tree with secondary indexes, against a single tree that receives as many bytes.
//!
//! A row has a random primary key of 8 bytes, seven random columns of 8 bytes, and filler up to 100 to 120 bytes. An
//! index has keys of 16 bytes (column, primary key) without values. Each batch contains 100 rows with their index
//! entries.

use std::path::PathBuf;
use std::time::Instant;

use keyaki_primitives::Random;

use super::{BATCH, Cell, print};
use crate::Result;
use crate::process::{self, Io};
use crate::system::{self, Change};

const INDEXES: usize = 7;
const COLUMN_BYTES: usize = 8;
const VALUE_BYTES_MIN: usize = 92;
const VALUE_BYTES_MAX: usize = 112;

/// A primary key with its value, and the keys in the indexes.
struct Row {
    key: [u8; COLUMN_BYTES],
    value: Vec<u8>,
    entries: [[u8; 2 * COLUMN_BYTES]; INDEXES],
}

impl Row {
    fn new(number: u64) -> Row {
        let mut random = Random::new(number);
        // The first number of a generator is a bijection of its seed, so that keys are distinct.
        let key = random.next_u64().to_be_bytes();
        let mut value = vec![0; VALUE_BYTES_MIN + random.index(VALUE_BYTES_MAX - VALUE_BYTES_MIN + 1)];
        for chunk in value.chunks_mut(COLUMN_BYTES) {
            chunk.copy_from_slice(&random.next_u64().to_be_bytes()[..chunk.len()]);
        }
        let mut entries = [[0; 2 * COLUMN_BYTES]; INDEXES];
        for (entry, column) in entries.iter_mut().zip(value.chunks(COLUMN_BYTES)) {
            entry[..COLUMN_BYTES].copy_from_slice(column);
            entry[COLUMN_BYTES..].copy_from_slice(&key);
        }
        Row { key, value, entries }
    }

    /// The changes that insert the row: into the first tree, and into the others if there are any.
    fn changes(&self, indexes: usize) -> impl Iterator<Item = Change<'_>> {
        let row = Change { tree: 0, key: &self.key, value: Some(&self.value) };
        let entries = self.entries[..indexes].iter().zip(1..);
        std::iter::once(row).chain(entries.map(|(key, tree)| Change { tree, key, value: Some(&[]) }))
    }
}

/// What a run has written.
struct Written {
    rows: u64,
    user_bytes: u64,
    seconds: f64,
    written_bytes: u64,
    space_bytes: u64,
}

impl Written {
    fn amplification(&self) -> f64 {
        self.written_bytes as f64 / self.user_bytes as f64
    }

    fn space(&self) -> f64 {
        self.space_bytes as f64 / self.user_bytes as f64
    }
}

pub fn indexes(cell: &Cell) -> Result {
    let deadline = cell.deadline();
    let eight = write(cell, INDEXES, |rows, _| rows >= cell.keys / 2 || Instant::now() > deadline)?;
    let one = write(cell, 0, |_, user_bytes| user_bytes >= eight.user_bytes)?;
    print("rows, eight trees", eight.rows as f64 / eight.seconds);
    print("rows, one tree", one.rows as f64 / one.seconds);
    print("bytes, eight trees", eight.user_bytes as f64 / eight.seconds / 1e6);
    print("bytes, one tree", one.user_bytes as f64 / one.seconds / 1e6);
    print("user bytes, eight trees", eight.user_bytes as f64 / 1e6);
    print("write amplification, eight trees", eight.amplification());
    print("write amplification, one tree", one.amplification());
    print("write amplification, eight trees / one", eight.amplification() / one.amplification());
    print("space amplification, eight trees", eight.space());
    print("space amplification, one tree", one.space());
    Ok(())
}

/// Inserts rows in batches until `is_done` for the numbers of rows and of user bytes.
fn write(cell: &Cell, indexes: usize, is_done: impl Fn(u64, u64) -> bool) -> Result<Written> {
    let directory: PathBuf = cell.directory.join(format!("indexes-{indexes}"));
    std::fs::create_dir_all(&directory)?;
    let before = Io::now()?.write_bytes;
    let trees = system::open_trees(cell.name, &directory, cell.memory, 1 + indexes)?;
    let (start, mut rows, mut user_bytes) = (Instant::now(), 0, 0);
    while !is_done(rows, user_bytes) {
        let batch: Vec<Row> = (rows..rows + BATCH).map(Row::new).collect();
        let changes: Vec<Change> = batch.iter().flat_map(|row| row.changes(indexes)).collect();
        trees.commit(&changes)?;
        rows += BATCH;
        let bytes = |change: &Change| change.key.len() + change.value.map_or(0, <[u8]>::len);
        user_bytes += changes.iter().map(bytes).sum::<usize>() as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    trees.sync()?;
    trees.settle()?;
    drop(trees);
    let written_bytes = Io::now()?.write_bytes - before;
    let space_bytes = process::allocated_bytes(&directory)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(Written { rows, user_bytes, seconds, written_bytes, space_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Memory, Name};

    #[test]
    fn rows_have_100_to_120_bytes() {
        let mut lengths: Vec<usize> = (0..1_000).map(|number| COLUMN_BYTES + Row::new(number).value.len()).collect();
        lengths.sort_unstable();
        assert_eq!((lengths[0], lengths[999]), (100, 120));
    }

    #[test]
    fn indexes_have_the_rows_of_the_tree() {
        for name in [Name::Keyaki, Name::Rocksdb] {
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::split(64 << 20);
            let trees = system::open_trees(name, directory.path(), memory, 1 + INDEXES).unwrap();
            let rows: Vec<Row> = (0..500).map(Row::new).collect();
            let changes: Vec<Change> = rows.iter().flat_map(|row| row.changes(INDEXES)).collect();
            trees.commit(&changes).unwrap();
            trees.sync().unwrap();
            for tree in 0..=INDEXES {
                let mut keys: Vec<Vec<u8>> = Vec::new();
                trees
                    .scan(tree, &[], &[0xff; 32], &mut |key, _| {
                        keys.push(key.to_vec());
                        Ok(())
                    })
                    .unwrap();
                let mut expected: Vec<Vec<u8>> =
                    changes.iter().filter(|change| change.tree == tree).map(|change| change.key.to_vec()).collect();
                expected.sort_unstable();
                assert_eq!(keys, expected, "{name}, tree {tree}");
            }
        }
    }
}
