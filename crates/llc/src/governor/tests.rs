//! Tests of the governor on the fake resctrl tree, and without hardware.

use std::sync::Arc;

use super::*;
use crate::CapacityMask;
use crate::resctrl::{FakeOptions, FakeTree, open};

/// A governor on a fake tree with this process's threads.
fn governed(options: FakeOptions) -> (Arc<FakeTree>, Governor) {
    let tree = Arc::new(FakeTree::new(options));
    tree.be(worker::thread_id(), 5_000);
    let control = open(tree.clone(), tree.clone());
    let options = GovernorOptions {
        hardware: Hardware::Given(control),
        software: Software::Given(Tuning::plain("a test")),
        ..GovernorOptions::default()
    };
    (tree, Governor::new(options))
}

fn mask(governor: &Governor, class: WorkClass) -> CapacityMask {
    let state = governor.core.state.lock();
    let classes = state.classes.as_ref().unwrap();
    classes.group(class).unwrap().schemata().unwrap().masks("L3")[0].1
}

fn my_group(tree: &FakeTree) -> String {
    let group = tree.group_of(worker::thread_id()).unwrap();
    group.rsplit('-').next().unwrap().to_string()
}

#[test]
fn masks_and_threads_follow_the_announcements() {
    let (tree, governor) = governed(FakeOptions::default());
    assert_eq!(governor.status().path, CachePath::Hardware);
    assert_eq!(mask(&governor, WorkClass::Streaming), CapacityMask(0xfffff));
    let worker = governor.register();
    {
        let _sensitive = worker.announce(WorkClass::Sensitive);
        assert_eq!(my_group(&tree), "sensitive");
        assert_eq!(mask(&governor, WorkClass::Streaming), CapacityMask(0xc0000));
        {
            let running = worker.announce(WorkClass::Streaming);
            assert_eq!((my_group(&tree).as_str(), running.class()), ("streaming", WorkClass::Streaming));
        }
        assert_eq!(my_group(&tree), "sensitive");
    }
    assert_eq!(mask(&governor, WorkClass::Streaming), CapacityMask(0xc0000), "masks widen slowly");
    governor.core.tick_at(1_000_000);
    assert_eq!(mask(&governor, WorkClass::Streaming), CapacityMask(0xfffff));
    drop(worker);
    assert_eq!(my_group(&tree), "");
    drop(governor);
    assert!(tree.groups().is_empty());
}

#[test]
fn pins_take_parts_from_all_classes() {
    let (tree, governor) = governed(FakeOptions::default());
    let index = vec![1_u8; 1 << 20];
    let before = mask(&governor, WorkClass::Sensitive);
    let pin = governor.protect("orders_pk", &[&index, &index[..100]]);
    let narrowed = mask(&governor, WorkClass::Sensitive);
    assert!(before.contains(narrowed) && narrowed.count() < before.count());
    assert!(narrowed.contains(mask(&governor, WorkClass::Streaming)));
    assert!(
        !tree.groups().iter().any(|group| group.ends_with("pinning")),
        "the class for pinning exists only during warming"
    );
    assert_eq!(my_group(&tree), "", "this thread has announced nothing, so it is back in the default class");
    let status = governor.status();
    assert_eq!(status.pins[0].name, "orders_pk");
    assert!(status.to_string().contains("pinned: orders_pk (1024 KiB)"), "{status}");
    pin.warm(&[&index]);
    drop(pin);
    assert_eq!(mask(&governor, WorkClass::Sensitive), before);
    assert!(governor.status().pins.is_empty());
    assert_eq!(governor.warm(&[&index, &[]]), 1 << 20);
}

#[test]
fn two_classes_of_service_are_enough() {
    let (tree, governor) = governed(FakeOptions { num_closids: 2, ..FakeOptions::default() });
    let worker = governor.register();
    let _running = worker.announce(WorkClass::Adaptive);
    assert_eq!(my_group(&tree), "", "the default class");
    let status = governor.status();
    assert_eq!(status.classes[2].masks, "default class");
    assert!(status.classes[0].masks.starts_with("L3:0="), "{status}");
    let _pin = governor.protect("x", &[&[0; 100]]);
}

#[test]
fn vanished_groups_are_recreated_and_lost_hardware_is_survived() {
    let (tree, governor) = governed(FakeOptions::default());
    let worker = governor.register();
    let streaming = worker.announce(WorkClass::Streaming);
    let groups = tree.groups();
    groups.iter().for_each(|group| tree.vanish(group));
    drop(streaming);
    let _sensitive = worker.announce(WorkClass::Sensitive);
    assert_eq!(governor.status().path, CachePath::Hardware);
    assert_eq!((my_group(&tree).as_str(), tree.groups()), ("sensitive", groups.clone()));
    // Now other groups take all classes of service as well.
    groups.iter().for_each(|group| tree.vanish(group));
    (0..15).for_each(|other| tree.add_foreign(&format!("other{other}"), "shareable", 1, &[]));
    let _streaming = worker.announce(WorkClass::Streaming);
    let status = governor.status();
    assert_eq!(status.path, CachePath::None);
    assert!(status.reason.contains("Out of CLOSIDs"), "{}", status.reason);
}

#[test]
fn adaptive_work_is_measured() {
    let (tree, governor) = governed(FakeOptions::default());
    let worker = governor.register();
    let _sensitive = worker.announce(WorkClass::Adaptive);
    let group = tree.groups().into_iter().find(|group| group.ends_with("adaptive")).unwrap();
    let narrow = |governor: &Governor| mask(governor, WorkClass::Adaptive).count() <= 2;
    // The work moves twice as many bytes with a narrow mask.
    let mut total = 0;
    for turn in 1..30 {
        total += if narrow(&governor) { 2_000 } else { 1_000 };
        tree.set_usage(&group, 1 << 40, total);
        governor.core.tick_at(100_000 + turn * 100);
    }
    assert_eq!(mask(&governor, WorkClass::Adaptive).count(), 20, "the work reuses data");
    // Later the traffic does not depend on the mask.
    for turn in 1..100 {
        total += 1_000;
        tree.set_usage(&group, 1 << 40, total);
        governor.core.tick_at(200_000 + turn * 100);
        if turn == 20 {
            assert!(narrow(&governor));
        }
    }
}

#[test]
fn without_hardware_scans_bypass_the_cache_while_there_is_data_to_protect() {
    let mut tuning = Tuning::plain("measured elsewhere");
    tuning.method = ScanMethod::NonTemporal { ahead_bytes: 4096 };
    let options = GovernorOptions {
        hardware: Hardware::Given(Err(Unavailable::NotMounted)),
        software: Software::Given(tuning.clone()),
        ..GovernorOptions::default()
    };
    let governor = Governor::new(options);
    let status = governor.status();
    assert_eq!(status.path, CachePath::Software);
    assert!(status.to_string().contains("path: software (resctrl is not mounted"), "{status}");
    assert_eq!(governor.scan_method(WorkClass::Streaming), ScanMethod::Plain, "there is no data to protect");
    let pin = governor.protect("x", &[&[1; 1000]]);
    assert_eq!(governor.scan_method(WorkClass::Streaming), tuning.method);
    assert_eq!(governor.scan_method(WorkClass::Sensitive), ScanMethod::Plain);
    drop(pin);
    let worker = governor.register();
    let running = worker.announce(WorkClass::Sensitive);
    assert_eq!(governor.scan_method(WorkClass::Streaming), tuning.method);
    drop(running);
    governor.core.tick_at(1_000_000);
    assert_eq!(governor.scan_method(WorkClass::Streaming), ScanMethod::Plain);
    // The same from many threads.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let worker = governor.register();
                for class in WorkClass::ALL.into_iter().cycle().take(300) {
                    let _running = worker.announce(class);
                    let _pin = governor.protect("y", &[&[2; 64]]);
                    governor.tick();
                }
            });
        }
    });
    let state = governor.core.state.lock();
    assert_eq!((state.mix, state.pins.len(), state.threads.len()), (Mix::default(), 0, 1));
}

#[test]
fn classes_by_size() {
    let off = GovernorOptions { hardware: Hardware::Off, software: Software::Off, ..GovernorOptions::default() };
    let governor = Governor::new(GovernorOptions { caches: Some(Caches::default()), ..off });
    assert_eq!(governor.status().path, CachePath::None);
    let (small, middle, big) = (1 << 20, 6 << 20, 1 << 30);
    assert_eq!(governor.classify(small, None), WorkClass::Sensitive);
    assert_eq!(governor.classify(middle, Some(true)), WorkClass::Sensitive);
    assert_eq!(governor.classify(middle, Some(false)), WorkClass::Streaming);
    assert_eq!(governor.classify(middle, None), WorkClass::Adaptive);
    assert_eq!(governor.classify(big, None), WorkClass::Streaming);
    assert_eq!(governor.classify(big, Some(true)), WorkClass::Streaming, "it exceeds the cache");
}

#[test]
fn threads_of_a_pool_enter_classes_and_stay_in_their_group() {
    let (tree, governor) = governed(FakeOptions::default());
    {
        let _entered = governor.enter(WorkClass::Streaming);
        assert_eq!(my_group(&tree), "streaming");
        {
            let _inner = governor.enter(WorkClass::Sensitive);
            assert_eq!((my_group(&tree).as_str(), governor.status().classes[2].workers), ("sensitive", 1));
        }
        assert_eq!(my_group(&tree), "streaming");
    }
    assert_eq!(governor.status().classes[0].workers, 0);
    assert_eq!(my_group(&tree), "streaming", "an idle thread stays in its group");
    let worker = governor.register();
    worker.switch(Some(WorkClass::Sensitive));
    assert_eq!((my_group(&tree).as_str(), governor.status().classes[2].workers), ("sensitive", 1));
    worker.switch(None);
    assert_eq!(governor.status().classes[2].workers, 0);
    // Pinning moves idle threads. They return with their next announcement.
    let _pin = governor.protect_by("an index", 1 << 20, || assert_eq!(my_group(&tree), "pinning"));
    worker.switch(Some(WorkClass::Streaming));
    assert_eq!(my_group(&tree), "streaming");
    // The groups vanish, and an announcement to another governor comes in between: the thread is assigned again.
    let other = Governor::new(GovernorOptions {
        hardware: Hardware::Off,
        software: Software::Off,
        ..GovernorOptions::default()
    });
    drop(other.enter(WorkClass::Sensitive));
    tree.groups().iter().for_each(|group| tree.vanish(group));
    drop(governor.enter(WorkClass::Streaming));
    assert_eq!((governor.status().path, my_group(&tree).as_str()), (CachePath::Hardware, "streaming"));
}

#[test]
fn tuning_may_be_postponed() {
    let options = |hardware| GovernorOptions { hardware, software: Software::Later, ..GovernorOptions::default() };
    let governor = Governor::new(options(Hardware::Off));
    let weak = governor.downgrade();
    assert!(!governor.wants_tuning(WorkClass::Streaming), "there is no data to protect");
    let _hot = governor.enter(WorkClass::Sensitive);
    assert!(governor.wants_tuning(WorkClass::Streaming) && !governor.wants_tuning(WorkClass::Sensitive));
    assert_eq!(governor.scan_method(WorkClass::Streaming), ScanMethod::Plain);
    let method = ScanMethod::FlushBehind { behind_bytes: 1024 };
    let mut tuning = Tuning::plain("a test");
    tuning.method = method;
    governor.set_missing_tuning(tuning);
    governor.set_missing_tuning(Tuning::plain("it is not missing"));
    assert_eq!((governor.scan_method(WorkClass::Streaming), governor.tuning().method), (method, method));
    assert!(!governor.wants_tuning(WorkClass::Streaming));
    assert_eq!(governor.status().path, CachePath::Software);
    assert!(weak.upgrade().is_some_and(|same| same.is(&governor)));
    drop((_hot, governor));
    assert!(weak.upgrade().is_none());
}
