//! Trees over plain keys: every plan, preset and instruction set compared with a binary search.

use keyaki_primitives::Random;
use proptest::prelude::*;

use super::samples::{KINDS, sorted, wanted};
use crate::tree::PlainKeys;
use crate::{Goal, Instructions, Key, Parameters, Plan, Preset, Shape, Tree};

const COUNTS: [usize; 8] = [0, 1, 2, 16, 17, 65, 1000, 20_000];

/// Compares every kind of search on every instruction set with a binary search of the slice.
fn check<K: Key>(tree: &Tree<K>, keys: &[K], label: &str) {
    let wanted = wanted(keys, keys.len() as u64);
    let right: Vec<usize> = wanted.iter().map(|&key| keys.partition_point(|&other| other < key)).collect();
    for instructions in Instructions::available() {
        let tree = tree.clone().with_instructions(instructions);
        let mut rows = vec![usize::MAX; wanted.len()];
        tree.lower_bound_many(keys, &wanted, &mut rows);
        let mut windows = Vec::new();
        tree.window_many(&wanted, &mut windows);
        for (at, &key) in wanted.iter().enumerate() {
            let name = instructions.name();
            assert_eq!(tree.lower_bound(keys, key), right[at], "{label}, {name}: {key:?}, {:?}", tree.plan());
            assert_eq!(rows[at], right[at], "{label}, {name}, many: {key:?}, {:?}", tree.plan());
            let window = tree.window(key);
            assert_eq!(window, windows[at]);
            assert!(window.start <= right[at] && right[at] <= window.end, "{label}, {name}: {key:?} {window:?}");
            assert!(right[at] - window.start <= tree.displacement().max, "{label}, {name}: {key:?} {window:?}");
        }
    }
    exact_displacement(tree, keys);
}

/// Compares the displacement with the one found by searching for every key that can give another distance.
fn exact_displacement<K: Key>(tree: &Tree<K>, keys: &[K]) {
    if keys.len() > 5000 {
        return;
    }
    let (mut max, mut sum) = (0, 0.0);
    for key in keys {
        // The distance of a row is greatest for the smallest search key with this answer: the successor of the previous
        // row's key.
        let next = key.ordered().checked_add(1).filter(|&next| next <= K::LAST).map(K::from_ordered);
        for key in [Some(*key), next].into_iter().flatten() {
            let answer = keys.partition_point(|&other| other < key);
            max = max.max(answer - tree.window(key).start);
        }
        sum += (keys.partition_point(|other| other < key) - tree.window(*key).start) as f64;
    }
    assert_eq!(tree.displacement().max, max, "{:?}", tree.plan());
    assert!((tree.displacement().mean - sum / keys.len().max(1) as f64).abs() < 1e-6);
}

fn all_kinds<K: Key>(check_one: impl Fn(&[K], &str)) {
    for (seed, kind) in KINDS.iter().enumerate() {
        for count in COUNTS {
            check_one(&sorted::<K>(kind, count, seed as u64), &format!("{kind}, {count}"));
        }
    }
}

fn chosen<K: Key>() {
    all_kinds::<K>(|keys, label| {
        for goal in [Goal::Smallest, Goal::Fastest, Goal::Bounded { rows: 100 }] {
            let tree = Tree::build(keys, &Parameters::new(goal)).unwrap();
            check(&tree, keys, &format!("{label}, {goal:?}"));
            if let Goal::Bounded { rows } = goal {
                assert!(tree.displacement().max <= rows);
            }
        }
    });
}

#[test]
fn chosen_parameters_u32() {
    chosen::<u32>();
}

#[test]
fn chosen_parameters_i32() {
    chosen::<i32>();
}

#[test]
fn chosen_parameters_u64() {
    chosen::<u64>();
}

#[test]
fn chosen_parameters_i64() {
    chosen::<i64>();
}

fn presets<K: Key>() {
    all_kinds::<K>(|keys, label| {
        for register in [16, 32, 64] {
            for (exact, h32, h16) in [(4, 0, 6), (8, 4, 0), (0, 0, 0), (64, 0, 0)] {
                let plan = Preset { register, exact, h32, h16 }.plan::<K>(keys.len()).unwrap();
                let tree = Tree::build_with(keys, &plan).unwrap();
                check(&tree, keys, &format!("{label}, {register} bytes, {exact} {h32} {h16}"));
            }
        }
    });
}

#[test]
fn published_layouts_u32() {
    presets::<u32>();
}

#[test]
fn published_layouts_i64() {
    presets::<i64>();
}

#[test]
fn published_heights() {
    // 2^30 keys with H32 = 8 and H16 = 6: H8 has the remaining 16 levels.
    let plan = Preset::published(8, 6).plan::<u32>(1 << 30).unwrap();
    assert_eq!(plan.slot_rows, 1);
    let plan = Preset::published(8, 6).plan::<u32>((1 << 29) + 5).unwrap();
    assert_eq!(plan.slot_rows, 1);
    let plan = Preset::published(4, 12).plan::<u32>(1 << 22).unwrap();
    assert_eq!(plan.slot_rows, 4);
    assert!(Preset { register: 7, exact: 4, h32: 0, h16: 0 }.plan::<u32>(5).is_err());
}

#[test]
fn invalid_plans() {
    let keys: Vec<u32> = (0..1000).collect();
    let build = |slot_rows, shapes| Tree::build_with(&keys[..], &Plan { slot_rows, shapes });
    assert!(build(0, vec![Shape::line(4)]).is_err());
    assert!(build(16, vec![]).is_err());
    assert!(build(16, vec![Shape::line(4)]).is_err(), "63 slots do not fit below 17 children");
    assert!(build(16, vec![Shape::line(8), Shape::line(1)]).is_err());
    assert!(build(16, vec![Shape::line(3), Shape::line(1)]).is_err());
    assert!(build(16, vec![Shape { depth: 2, ..Shape::line(1) }, Shape::line(1)]).is_err());
    assert!(build(16, vec![Shape::published(1, 16, 0); 2]).is_err());
    assert!(build(16, vec![Shape::published(1, 64, 8); 2]).is_err());
    assert!(build(16, vec![Shape::line(4), Shape::line(1)]).is_ok());
    assert!(build(1000, vec![]).is_ok());
}

#[test]
fn trees_stay_within_the_memory_limit() {
    let keys: Vec<u64> = sorted("clusters", 100_000, 3);
    for memory in [200, 1000, 20_000] {
        let tree = Tree::build(&keys[..], &Parameters::new(Goal::Fastest).memory(memory)).unwrap();
        assert!(tree.bytes() <= memory);
        check(&tree, &keys, "memory");
    }
    assert!(Tree::build(&keys[..], &Parameters::new(Goal::Bounded { rows: 16 }).memory(64)).is_err());
}

#[test]
fn unsorted_keys_cause_no_panic() {
    let mut random = Random::new(5);
    let keys: Vec<u64> = (0..20_000).map(|_| random.next_u64()).collect();
    for plan in [
        Tree::build(&keys[..], &Parameters::default()).unwrap().plan(),
        Preset::published(4, 6).plan::<u64>(keys.len()).unwrap(),
    ] {
        let tree = Tree::build_with(&keys[..], &plan).unwrap();
        for instructions in Instructions::available() {
            let tree = tree.clone().with_instructions(instructions);
            for key in wanted(&keys, 1) {
                assert!(tree.lower_bound(&keys, key) <= keys.len());
            }
        }
    }
}

#[test]
fn keys_at_any_address() {
    let keys: Vec<u64> = sorted("gaps", 5000, 1);
    let tree = Tree::build(&keys[..], &Parameters::default()).unwrap();
    let mut bytes = vec![0];
    bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    for key in wanted(&keys, 2) {
        let right = keys.partition_point(|&other| other < key);
        assert_eq!(tree.lower_bound_plain(PlainKeys::from_bytes(&bytes[1..]), key), right);
    }
}

/// The codes of a block with distant keys cover numbers beyond the separators of the next blocks, whose keys are close.
#[test]
fn codes_that_reach_into_the_next_blocks() {
    for distant in [200, 255, 256, 300] {
        let far = (0..distant).map(|row| row << 55);
        let near = (0..600u64).map(|row| ((distant - 1) << 55) + (row + 1) * (row % 3 + 1));
        let mut keys: Vec<u64> = far.chain(near).collect();
        keys.sort_unstable();
        let plan = Plan { slot_rows: 1, shapes: vec![Shape::published(1, 64, 1), Shape::line(1), Shape::line(1)] };
        check(&Tree::build_with(&keys[..], &plan).unwrap(), &keys, "distant, then close");
        let shapes =
            [(1, 64), (1, 16), (1, 16)].map(|(width, bytes)| Shape { line: true, ..Shape::published(width, bytes, 1) });
        let plan = Plan { slot_rows: 1, shapes: shapes.to_vec() };
        check(&Tree::build_with(&keys[..], &plan).unwrap(), &keys, "distant, then close, lines");
    }
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let shape = prop_oneof![
        prop::sample::select(vec![1u8, 2, 4, 8]).prop_map(Shape::line),
        prop::sample::select(vec![Shape::part(1, 16), Shape::part(1, 32), Shape::part(2, 32)]),
        (prop::sample::select(vec![1u8, 2, 4]), prop::sample::select(vec![16u8, 32, 64]), 1u8..3)
            .prop_map(|(width, bytes, depth)| Shape::published(width, bytes, depth)),
    ];
    prop::collection::vec(shape, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 150 }))]

    #[test]
    fn any_shapes_any_keys(
        shapes in shapes(),
        slot_rows in 1usize..70,
        base in any::<u64>(),
        gaps in prop::collection::vec(prop_oneof![4 => 0u64..4, 2 => 0u64..5000, 1 => any::<u32>().prop_map(u64::from), 1 => 0..1u64 << 57], 0..3000),
    ) {
        let mut at = base;
        let mut keys = vec![];
        for gap in gaps {
            at = at.saturating_add(gap);
            keys.push(at);
        }
        // If the shapes have too few children for the keys, add uncompressed levels on top.
        for more in 0..4 {
            let mut all = vec![Shape::line(8); more];
            all.extend(&shapes);
            if let Ok(tree) = Tree::build_with(&keys[..], &Plan { slot_rows, shapes: all }) {
                check(&tree, &keys, "any");
                break;
            }
        }
    }
}
