//! Ranges that keep the keys of a group together.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{Column, ColumnType, KeyRange, Options, Schema, Store, TreeId, WriteBatch};

const TREE: TreeId = TreeId::new(1);
/// Rows of each value of the first column.
const GROUP: i64 = 2000;

fn schema() -> Schema {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: name == "text" };
    Schema::new(vec![column("text", ColumnType::Text), column("number", ColumnType::Int64)], 2)
}

#[test]
fn parts_contain_whole_groups() {
    let device = Arc::new(Simulated::new(SimulatedOptions::default()));
    let options = Options { page_bytes: 4096, leaf_bytes: 16_384, fan_out: 4, ..Options::default() };
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    let rows = 60 * GROUP;
    // A NULL, and texts of which some are prefixes of others.
    let text = |row: i64| Some("ab\0".repeat((row / GROUP) as usize)).filter(|_| row >= GROUP);
    let texts: ArrayRef = Arc::new(StringViewArray::from_iter((0..rows).map(text)));
    let mut random = Random::new(7);
    let numbers: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..rows).map(|row| (row << 40) + random.below(1 << 40) as i64)));
    let batch = RecordBatch::try_from_iter_with_nullable([("text", texts, true), ("number", numbers, false)]).unwrap();
    let mut writer = store.bulk_writer(TREE, &schema());
    writer.push(&batch).unwrap();
    let mut changes = WriteBatch::new();
    changes.create_tree(TREE, &schema());
    store.install(changes, vec![(TREE, writer.finish().unwrap())]).unwrap();
    let view = store.snapshot().tree(TREE).unwrap();
    let codec = view.key_codec();
    let key = |row: i64| {
        let mut key = Vec::new();
        codec.encode(batch.columns(), row as usize, &mut key);
        key
    };
    assert_eq!(codec.prefix_len(&key(0), 1), Some(1), "NULL is one byte");
    assert_eq!(codec.prefix_len(&key(0), 2), Some(key(0).len()));
    assert_eq!(codec.prefix_len(&key(GROUP)[..2], 1), None, "the text is incomplete");

    let part_of = |parts: &[KeyRange], row| parts.iter().position(|part| part.contains(&key(row))).unwrap();
    for start in [0, GROUP * 5 / 2] {
        let range = KeyRange { start: Bound::Included(key(start)), ..KeyRange::all() };
        let parts = view.split_groups(&range, 16, 1);
        assert!(parts.len() > 8, "{} parts", parts.len());
        for row in (start..rows).step_by(61) {
            assert_eq!(part_of(&parts, row), part_of(&parts, start.max(row / GROUP * GROUP)), "row {row}");
        }
        let fine = view.split(&range, 16);
        let is_divided = |row| part_of(&fine, row) != part_of(&fine, row + GROUP / 2);
        assert!((start..rows - GROUP).step_by(GROUP as usize).any(is_divided), "other parts divide groups");
    }
    // More parts than groups: each group once.
    assert!(view.split_groups(&KeyRange::all(), usize::MAX, 1).len() <= 60);
}
