//! Clones are databases that can be written.

mod common;

use std::path::Path;

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
    assert!(device.list(target).unwrap().is_empty());
    faulty.set(|kind, path| (kind == "get" && path.contains("objects")).then_some(Fault::Denied));
    let failed = repository.clone_version(None, &device, target, &|_, _| true);
    assert!(matches!(failed, Err(Error::Device(_))), "{failed:?}");
    assert!(device.list(target).unwrap().is_empty());
    faulty.set_none();
    // What a process that died has left.
    device.open(&target.join("data.new"), OpenMode::CreateNew).unwrap();
    repository.clone_version(None, &device, target, &|_, _| true).unwrap().unwrap();
    let again = repository.clone_version(None, &device, target, &|_, _| true);
    assert!(matches!(again, Err(Error::DirectoryNotEmpty { .. })), "{again:?}");
    let (clone, _) = database(&device, "/clone");
    assert_eq!(KeyValue::open(&clone, TREE).unwrap().get(&1_u32.to_be_bytes()).unwrap(), Some(value(1, 0)));
}
