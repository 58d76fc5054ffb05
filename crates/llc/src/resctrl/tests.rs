//! Tests of control on the fake tree.

use std::io;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::CapacityMask;

fn fake(options: FakeOptions) -> Arc<FakeTree> {
    Arc::new(FakeTree::new(options))
}

fn control(tree: &Arc<FakeTree>) -> Result<Control, Unavailable> {
    open(tree.clone(), tree.clone())
}

/// Domains and masks of a group for a resource, as in the tree.
fn mask_of(group: &Group, resource: &str) -> Vec<(u32, CapacityMask)> {
    group.schemata().unwrap().masks(resource)
}

#[test]
fn groups_are_created_used_and_removed() {
    let tree = fake(FakeOptions { domains: vec![0, 1], bandwidth: true, ..FakeOptions::default() });
    let control = control(&tree).unwrap();
    assert!(tree.groups().is_empty(), "the probe has been removed");
    let streaming = control.create("streaming").unwrap();
    assert_eq!(tree.groups(), ["keyaki-7-100-1000-streaming"]);
    let (full, two) = (CapacityMask(0xfffff), CapacityMask(0xc0000));
    assert_eq!(mask_of(&streaming, "L3"), [(0, full), (1, full)]);
    streaming.set(&ClassMasks { l3: Some((0, 2)), l2: None }).unwrap();
    assert_eq!(mask_of(&streaming, "L3"), [(0, two), (1, two)], "the end that devices share");
    streaming.assign(103).unwrap();
    assert_eq!(streaming.threads().unwrap(), [103]);
    tree.set_usage(streaming.path(), 4096, 1 << 20);
    let usage = Usage { occupancy_bytes: Some(4096), total_bytes: Some(1 << 20), local_bytes: None };
    assert_eq!(streaming.usage(), Ok(usage));
    control.release(103).unwrap();
    assert_eq!(tree.group_of(103).as_deref(), Some(""));
    streaming.assign(104).unwrap();
    drop(streaming);
    assert!(tree.groups().is_empty());
    assert_eq!(tree.group_of(104).as_deref(), Some(""));
}

#[test]
fn errors_contain_the_kernel_status() {
    let tree = fake(FakeOptions::default());
    let control = control(&tree).unwrap();
    let group = control.create("a").unwrap();
    let error = group.assign(5_000).unwrap_err();
    assert_eq!(error.status, "No task 5000");
    assert!(error.to_string().contains("could not assign a thread to \"keyaki-7-100-1000-a/tasks\": "), "{error}");
    assert!(!error.is_vanished() && !error.is_exhausted());
    // A second group of the same class.
    assert_eq!(control.create("a").unwrap_err().kind, io::ErrorKind::AlreadyExists);
    assert_eq!(tree.groups().len(), 1, "the first group still exists");
}

#[test]
fn exhausted_classes_and_monitoring_ids_are_reported() {
    let tree = fake(FakeOptions { num_closids: 2, num_rmids: 3, ..FakeOptions::default() });
    let first = control(&tree).unwrap();
    let group = first.create("a").unwrap();
    let error = first.create("b").unwrap_err();
    assert!(error.is_exhausted() && error.status == "Out of CLOSIDs", "{error}");
    let monitor = first.monitor("m").unwrap();
    monitor.assign(101).unwrap();
    assert_eq!(tree.group_of(101).as_deref(), Some(""), "monitoring does not change the class");
    assert_eq!(first.monitor("n").unwrap_err().status, "Out of RMIDs");
    // Another process finds no free class.
    tree.be(200, 2_000);
    assert_eq!(control(&tree).unwrap_err(), Unavailable::NoClass(2));
    drop(monitor);
    drop(group);
    assert!(control(&tree).is_ok());
}

#[test]
fn reasons_are_reported() {
    let reason = |options: FakeOptions| control(&fake(options)).unwrap_err();
    let default = FakeOptions::default();
    let at = || std::path::PathBuf::from("/fake/resctrl");
    assert_eq!(reason(FakeOptions { read_only: true, ..default.clone() }), Unavailable::ReadOnly(at()));
    assert_eq!(reason(FakeOptions { writable: false, ..default.clone() }), Unavailable::NoPermission(at()));
    assert_eq!(reason(FakeOptions { levels: vec![], ..default.clone() }), Unavailable::NoAllocation);
    assert_eq!(reason(FakeOptions { num_closids: 1, ..default.clone() }), Unavailable::NoClass(1));
    let few = Unavailable::TooFewWays { usable: 3, total: 3, needed: 4 };
    assert_eq!(reason(FakeOptions { cbm_bits: 3, min_cbm_bits: 2, ..default }), few);
    assert!(few.to_string().contains("only 3 of 3 parts"));
}

#[test]
fn foreign_groups_are_not_touched() {
    let tree = fake(FakeOptions::default());
    tree.add_foreign("pod1", "shareable", 0xff, &[]);
    tree.add_foreign("realtime", "exclusive", 0x000f0, &[]);
    tree.add_foreign("keyaki-9-1-1-streaming", "shareable", 0x1, &[]);
    tree.narrow_default(0xfffff & !0x000f0);
    let before = tree.groups();
    let control = control(&tree).unwrap();
    let usable = control.capabilities().last_level().unwrap().domains[0].usable;
    assert_eq!(usable, CapacityMask(0xfff00), "the longer of the two runs that are not owned");
    let group = control.create("a").unwrap();
    assert_eq!(mask_of(&group, "L3"), [(0, usable)]);
    drop((group, control));
    assert_eq!(tree.groups(), before);
}

#[test]
fn a_process_in_a_foreign_group_stays_there() {
    let tree = fake(FakeOptions::default());
    tree.add_foreign("pod1", "shareable", 0xff, &[103]);
    assert_eq!(control(&tree).unwrap_err(), Unavailable::ForeignGroup("pod1".into()));
    assert_eq!(tree.group_of(103).as_deref(), Some("pod1"));
}

#[test]
fn code_and_data_and_two_levels_have_separate_masks() {
    let tree = fake(FakeOptions {
        levels: vec!["L3", "L2"],
        cdp: true,
        cbm_bits: 11,
        shareable_bits: 0x3,
        domains: vec![0, 3],
        ..FakeOptions::default()
    });
    let control = control(&tree).unwrap();
    let kinds: Vec<_> = control.capabilities().resources.iter().map(|resource| resource.kind.name()).collect();
    assert_eq!(kinds, ["L3CODE", "L3DATA", "L2CODE", "L2DATA"]);
    let group = control.create("a").unwrap();
    group.set(&ClassMasks { l3: Some((0, 2)), l2: Some((2, 4)) }).unwrap();
    assert_eq!(
        mask_of(&group, "L3DATA"),
        [(0, CapacityMask(0x3)), (3, CapacityMask(0x3))],
        "the shared end is the low one"
    );
    assert_eq!(mask_of(&group, "L2DATA")[1], (3, CapacityMask(0x3c)));
    assert_eq!(mask_of(&group, "L3CODE")[0], (0, CapacityMask(0x7ff)));
}

#[test]
fn vanished_groups_are_detected() {
    let tree = fake(FakeOptions::default());
    let control = control(&tree).unwrap();
    let group = control.create("a").unwrap();
    tree.vanish(group.path());
    assert!(!group.is_vanished());
    let error = group.set(&ClassMasks { l3: Some((0, 2)), l2: None }).unwrap_err();
    assert!(error.is_vanished() && group.is_vanished(), "{error}");
    assert!(group.usage().is_err() && group.threads().is_err());
    let again = control.create("a").unwrap();
    drop(group);
    assert!(again.threads().is_ok(), "a group with the same name, but a later generation");
    drop(again);
    assert!(tree.groups().is_empty());
}

#[test]
fn only_groups_of_dead_processes_are_removed() {
    let tree = fake(FakeOptions::default());
    let first = control(&tree).unwrap();
    std::mem::forget((first.create("a").unwrap(), first.monitor("m").unwrap()));
    tree.be(200, 2_000);
    let second = control(&tree).unwrap();
    let alive = second.create("b").unwrap();
    assert_eq!(tree.groups().len(), 3, "process 100 is alive");
    tree.kill(100);
    tree.be(300, 3_000);
    control(&tree).unwrap();
    assert_eq!(tree.groups(), [alive.path()], "process 200 is alive");
    // Another process reuses the id.
    tree.kill(200);
    tree.be(200, 9_000);
    control(&tree).unwrap();
    assert!(tree.groups().is_empty());
}

/// The process dies after each step in turn. The next process removes its groups and can create its own.
#[test]
fn groups_of_a_crashed_process_are_removed() {
    let run = |tree: &Arc<FakeTree>| -> Result<(), Box<dyn std::error::Error>> {
        let control = control(tree)?;
        let streaming = control.create("streaming")?;
        streaming.set(&ClassMasks { l3: Some((0, 2)), l2: None })?;
        streaming.assign(101)?;
        let sensitive = control.create("sensitive")?;
        sensitive.assign(102)?;
        let monitor = control.monitor("all")?;
        monitor.assign(103)?;
        drop(streaming);
        streaming_again(&control)
    };
    fn streaming_again(control: &Control) -> Result<(), Box<dyn std::error::Error>> {
        Ok(control.create("streaming")?.assign(101)?)
    }
    let tree = fake(FakeOptions::default());
    run(&tree).unwrap();
    let steps = tree.changes();
    assert!(steps > 15);
    for crash in 0..steps {
        let tree = fake(FakeOptions { num_closids: 3, ..FakeOptions::default() });
        tree.stop_after(Some(crash));
        let _ = run(&tree); // the final removals fail silently
        tree.stop_after(None);
        tree.kill(100);
        tree.be(200, 2_000);
        let control = control(&tree).unwrap_or_else(|reason| panic!("after step {crash}: {reason}"));
        assert!(tree.groups().is_empty(), "after step {crash}: {:?}", tree.groups());
        let both = (control.create("streaming").unwrap(), control.create("sensitive").unwrap());
        drop(both);
    }
}

#[test]
fn schemata_grammar() {
    let text = "    MB:0=100;1=90\n    L3:0=fffff;1=00ff\nL2DATA:uninitialized\n";
    let schemata = Schemata::parse(text).unwrap();
    assert_eq!(schemata.masks("L3"), [(0, CapacityMask(0xfffff)), (1, CapacityMask(0xff))]);
    assert_eq!(schemata.masks("L2DATA"), []);
    assert_eq!(schemata.masks("L2"), []);
    assert_eq!(schemata.to_string().lines().next(), Some("MB:0=100;1=90"));
    for bad in ["L3", "L3:", "L3:0", "L3:0=", "L3:x=1", ":0=1", "L3:0=1;;1=1"] {
        assert!(Schemata::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_fake_tree_rejects_what_the_kernel_rejects() {
    let tree = FakeTree::new(FakeOptions { min_cbm_bits: 2, ..FakeOptions::default() });
    tree.add_foreign("x", "exclusive", 0x30, &[]);
    for (text, status) in [
        ("L3:0=f", ""),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L9:0=1\n", "Unknown or unsupported resource name 'L9'"),
        ("L3:a=3\n", "Missing '=' or non-numeric domain"),
        ("L3:7=3\n", ""),
        ("L3:0=3;0=3\n", "Duplicate domain 0"),
        ("L3:0=zz\n", "Non-hex character in the mask zz"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=100000\n", "Mask out of range"),
        ("L3:0=5\n", "The mask 5 has non-consecutive 1-bits"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("L3:0=18\n", "Overlaps with exclusive group"),
    ] {
        assert_eq!(tree.write("schemata", text).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{text}");
        let expected = if status.is_empty() { "ok" } else { status };
        assert_eq!(tree.read("info/last_cmd_status").unwrap().trim(), expected, "{text}");
    }
    tree.write("schemata", "L3:0=c0\n").unwrap();
    assert_eq!(tree.read("schemata").unwrap(), "L3:0=000c0\n");
}

proptest! {
    /// On every machine, the kernel accepts every mask, and no mask overlaps parts that other groups own.
    #[test]
    fn masks_fit_any_machine(
        cbm_bits in 2_u32..=32,
        min_cbm_bits in 0_u32..4,
        shareable in any::<u32>(),
        sparse in any::<bool>(),
        default in any::<u32>(),
        owned in prop_oneof![Just(0_u32), any::<u32>()],
        first in 0_u32..40,
        bits in 0_u32..40,
    ) {
        let full = CapacityMask::low(cbm_bits).0;
        let tree = fake(FakeOptions {
            cbm_bits, min_cbm_bits, sparse_masks: sparse, shareable_bits: shareable & full, ..FakeOptions::default()
        });
        tree.narrow_default(default & full & !owned);
        if owned & full != 0 {
            tree.add_foreign("owner", "exclusive", owned & full, &[]);
        }
        match control(&tree) {
            Ok(control) => {
                let group = control.create("a").unwrap();
                // With sparse masks the kernel requires the minimum in the first run, which narrowed masks may not
                // have.
                let set = group.set(&ClassMasks { l3: Some((first, bits)), l2: None });
                prop_assert!(set.is_ok() || sparse && min_cbm_bits > 1, "{set:?}");
                let mask = mask_of(&group, "L3")[0].1;
                if set.is_ok() {
                    prop_assert!(CapacityMask(default & full & !owned).contains(mask));
                    prop_assert!(mask.count() >= min_cbm_bits.max(1));
                    prop_assert!(mask.count() <= bits.max(min_cbm_bits).max(1));
                }
            }
            Err(reason) => prop_assert!(
                matches!(reason, Unavailable::TooFewWays { .. } | Unavailable::Unexpected(_) | Unavailable::NoClass(_)),
                "{reason}"
            ),
        }
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in "[L23MBCODEAT:;=0-9a-f \n]{0,60}") {
        if let Ok(schemata) = Schemata::parse(&text) {
            prop_assert_eq!(Schemata::parse(&schemata.to_string()).unwrap_or_default().lines.len(), schemata.lines.iter().filter(|line| !line.domains.is_empty()).count());
        }
    }
}
