//! The simulation of flushes on sizes (`examples/policy`) agrees with the store.

use std::path::Path;

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Durability, MergePolicy, Options, Store, TreeId};

use crate::costs::costs;
use crate::tree::{Encoding, Tree};

#[allow(dead_code, reason = "the example prints more figures")]
#[path = "../examples/policy/costs.rs"]
mod costs;
#[allow(dead_code, reason = "the example prints more figures")]
#[path = "../examples/policy/tree.rs"]
mod tree;

const TREE: TreeId = TreeId::new(1);
const FLUSHES: u64 = 40;
const ROWS: u64 = 2500;

/// Loads random rows of 116 bytes, with a flush after each 2,500. The depths differ by at most one, the spaces by at
/// most a tenth.
#[test]
fn simulated_trees_are_those_of_the_store() {
    for merge_policy in [MergePolicy::Tiered, MergePolicy::Leveled] {
        let options = Options {
            durability: Durability::Off,
            buffer_bytes: 1 << 30,
            checkpoint_log_bytes: 1 << 40,
            page_bytes: 4096,
            leaf_bytes: 64 << 10,
            fan_out: 4,
            node_buffer_bytes: 256 << 10,
            runs_per_node: 6,
            merge_policy,
            ..Options::default()
        };
        let encoding = Encoding { page_bytes: 4096, page_rows: 34, message_bytes: 123.0 };
        let mut simulated = Tree::new(&options, encoding, 1);
        let device = Simulated::new(SimulatedOptions::default()).device();
        let store = Store::open(device, Path::new("/db"), options).unwrap();
        let map = KeyValue::open(&store, TREE).unwrap();
        let mut random = Random::new(1);
        for _ in 0..FLUSHES {
            let mut batch = KeyValueBatch::default();
            for _ in 0..ROWS {
                let bytes: Vec<u8> = (0..15).flat_map(|_| random.next_u64().to_le_bytes()).take(116).collect();
                batch.insert(&map, &bytes[..16], &bytes[16..]);
            }
            map.commit(batch).unwrap();
            store.checkpoint().unwrap();
            simulated.flush(ROWS, 0.0, 1.0);
        }
        let figures = costs(&simulated, FLUSHES * ROWS, 0.0);
        let depth = store.latest().tree(TREE).unwrap().depth();
        assert!(depth.abs_diff(figures.depth as u64) <= 1, "{} levels simulated, {depth} found", figures.depth);
        let (expected, found) = (figures.space, store.tree_bytes(TREE));
        assert!(
            expected.abs_diff(found) * 10 < found,
            "{expected} bytes simulated, {found} found under {merge_policy:?}"
        );
    }
}
