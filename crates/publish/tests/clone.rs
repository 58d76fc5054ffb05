//! Clones are databases that can be written.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;
use keyaki_device::OpenMode;
use keyaki_device::simulated::Simulated;
use keyaki_publish::Error;
use keyaki_store::key_value::KeyValue;

#[test]
fn a_clone_can_be_written() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..5_000, 0);
    publish(&repository, &store).unwrap();
    let first = rows(&store);
    insert(&tree, 0..500, 1);
    publish(&repository, &store).unwrap();
    faulty.set_random(2, "get", 4, &[Fault::Unavailable, Fault::Truncated, Fault::Flipped, Fault::Shifted]);
    // Another machine.
    let elsewhere = Simulated::new(Default::default());
    let target = elsewhere.device();
    let cloned = repository.clone_version(Some(1), &target, Path::new("/clone"), &|done, total| {
        assert!(done <= total);
        true
    });
    let cloned = cloned.unwrap().unwrap();
    assert!(cloned.number == 1 && cloned.bytes > 500_000, "{cloned:?}");
    // It is durable.
    elsewhere.crash();
    let target = elsewhere.device();
    let (clone, tree) = database(&target, "/clone");
    assert_eq!(rows(&clone), first);
    insert(&tree, 10_000..10_100, 3);
    drop((clone, tree));
    let (clone, tree) = database(&target, "/clone");
    assert_eq!(tree.get(&10_050_u32.to_be_bytes()).unwrap(), Some(value(10_050, 3)));
    assert!(clone.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
    let newest = repository.clone_version(None, &target, Path::new("/newest"), &|_, _| true).unwrap();
    assert_eq!(newest.unwrap().number, 2);
    assert_eq!(rows(&database(&target, "/newest").0), rows(&store));
}

#[test]
fn a_clone_continues_as_a_published_database() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..20_000, 0);
    publish(&repository, &store).unwrap();
    repository.clone_version(None, &device, Path::new("/clone"), &|_, _| true).unwrap();
    let (clone, tree) = database(&device, "/clone");
    insert(&tree, 7_000..7_050, 2);
    let second = publish(&repository, &clone).unwrap();
    assert!(second.kept_bytes > second.uploaded_bytes, "{second:?}");
    assert_eq!(rows_of(&repository, None), rows(&clone));
    assert_eq!(rows_of(&repository, Some(1)), rows(&store));
}

#[test]
fn a_failed_clone_leaves_no_database() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..5_000, 0);
    publish(&repository, &store).unwrap();
    let target = Path::new("/clone");
    let ended = repository.clone_version(None, &device, target, &|_, _| false).unwrap();
    assert_eq!(ended, None);
    assert_eq!(device.list(target).unwrap(), ["LOCK"]);
    faulty.set(|kind, path| (kind == "get" && path.contains("objects")).then_some(Fault::Denied));
    let failed = repository.clone_version(None, &device, target, &|_, _| true);
    assert!(matches!(failed, Err(Error::Device(_))), "{failed:?}");
    assert_eq!(device.list(target).unwrap(), ["LOCK"]);
    faulty.set_none();
    // What a process that died has left.
    device.open(&target.join("data.clone"), OpenMode::CreateNew).unwrap();
    repository.clone_version(None, &device, target, &|_, _| true).unwrap().unwrap();
    let again = repository.clone_version(None, &device, target, &|_, _| true);
    assert!(matches!(again, Err(Error::DirectoryNotEmpty { .. })), "{again:?}");
    let (clone, _) = database(&device, "/clone");
    assert_eq!(KeyValue::open(&clone, TREE).unwrap().get(&1_u32.to_be_bytes()).unwrap(), Some(value(1, 0)));
}

/// A clone that ends early removes no file that another clone uses.
#[test]
fn one_of_several_clones_makes_the_database() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..2_000, 0);
    publish(&repository, &store).unwrap();
    let expected = rows(&store);
    let directory = tempfile::tempdir().unwrap();
    let local = keyaki_device::open_default().unwrap();
    for round in 0..20 {
        let target = directory.path().join(round.to_string());
        let successes = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (repository, local, target, successes) = (&repository, &local, &target, &successes);
                scope.spawn(move || {
                    for attempt in 0..5 {
                        // Most end early.
                        let goes_on = (number + attempt + round) % 4 == 0;
                        match repository.clone_version(None, local, target, &|_, _| goes_on) {
                            Ok(Some(_)) => _ = successes.fetch_add(1, Ordering::Relaxed),
                            Ok(None) | Err(Error::DirectoryNotEmpty { .. }) => {}
                            Err(Error::Device(error)) if error.is_locked() => {}
                            Err(error) => panic!("round {round}: {error}"),
                        }
                    }
                });
            }
        });
        let is_there = local.exists(&target.join("data")).unwrap();
        assert_eq!(u32::from(is_there), successes.into_inner(), "round {round}");
        if is_there {
            assert_eq!(rows(&database(&local, target.to_str().unwrap()).0), expected, "round {round}");
        }
    }
}
