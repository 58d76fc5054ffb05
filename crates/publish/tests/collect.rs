//! The collector removes what no version needs, and never what a reader or a publisher needs.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use keyaki_device::Device;
use keyaki_primitives::Random;
use keyaki_publish::{CollectOptions, Collected, Error, Repository};
use keyaki_store::Store;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn keep(keep: usize) -> CollectOptions {
    CollectOptions { keep, ..CollectOptions::default() }
}

fn numbers(repository: &Repository) -> Vec<u64> {
    repository.versions().unwrap().iter().map(|version| version.number).collect()
}

#[test]
fn old_versions_and_their_objects_are_removed_after_the_grace_period() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    for round in 0..5 {
        insert(&tree, 0..2_000, round);
        publish(&repository, &store).unwrap();
        faulty.pass(HOUR);
    }
    let objects = faulty.paths("objects").len();
    faulty.pass(DAY * 2);
    let reader_of_first = open_uncached(&repository, Some(1));
    let collected = repository.collect(&keep(2)).unwrap();
    assert_eq!(collected, Collected { versions: 3, objects: 0, bytes: 0 });
    assert_eq!(numbers(&repository), [4, 5]);
    // Within the grace period, a reader finds all objects.
    faulty.pass(DAY - HOUR);
    assert_eq!(repository.collect(&keep(2)).unwrap(), Collected::default());
    let first = reader(&reader_of_first).unwrap();
    assert_eq!(rows(&first), (0..2_000).map(|key: u32| (key.to_be_bytes().to_vec(), value(key, 0))).collect::<Rows>());
    drop(first);
    faulty.pass(HOUR * 2);
    let collected = repository.collect(&keep(2)).unwrap();
    assert!(collected.objects > 0 && collected.bytes > 0, "{collected:?}");
    assert_eq!(faulty.paths("objects").len() as u64, objects as u64 - collected.objects);
    assert_eq!(faulty.paths("retired"), [""; 0]);
    // Afterwards, it gets a clear error.
    let gone = reader(&open_version(&repository, Some(5)));
    assert!(gone.is_ok());
    let gone = reader(&reader_of_first).and_then(|store| store.check(|_| true, &|_, _| true));
    let text = gone.unwrap_err().to_string();
    assert!(text.contains("its version may have been removed"), "{text}");
    for number in [4, 5] {
        let rows = rows_of(&repository, Some(number));
        assert_eq!((rows.len(), &rows[0].1), (2_000, &value(0, number - 1)));
    }
}

#[test]
fn objects_of_interrupted_publishers_are_removed() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..2_000, 0);
    faulty.set(|kind, path| (kind == "put" && path.contains("versions")).then_some(Fault::Unavailable));
    // No answer to the manifest: the lease stays.
    let failed = publish(&repository, &store);
    assert!(matches!(failed, Err(Error::Request { .. })), "{failed:?}");
    faulty.set_none();
    let objects = faulty.paths("objects").len() as u64;
    assert!(objects > 0 && faulty.paths("leases").len() == 1);
    assert_eq!(repository.collect(&keep(1)).unwrap(), Collected::default());
    // The lease dies within an hour, the objects are old after a day.
    faulty.pass(HOUR * 2);
    assert_eq!(repository.collect(&keep(1)).unwrap(), Collected::default());
    assert_eq!(faulty.paths("leases"), [""; 0]);
    faulty.pass(DAY);
    assert_eq!(repository.collect(&keep(1)).unwrap().objects, objects);
    assert_eq!(faulty.paths("objects"), [""; 0]);
    // Old objects are not found by publishers, even if the collector has not removed them.
    publish(&repository, &store).unwrap();
    assert_eq!(rows_of(&repository, None), rows(&store));
}

#[test]
fn a_living_lease_keeps_later_versions_and_young_objects() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    publish(&repository, &store).unwrap();
    faulty.pass(HOUR);
    let other = repository.clone();
    let collected = parking_lot::Mutex::new(None);
    insert(&tree, 0..500, 1);
    // Another publisher makes versions while this one uploads.
    let result = repository.publish(&store, &Default::default(), &|_, _| {
        if collected.lock().is_none() {
            *collected.lock() = Some(Collected::default());
            for round in 2..5 {
                faulty.pass(Duration::from_secs(60));
                insert(&tree, 0..500, round);
                publish(&other, &store).unwrap();
            }
            *collected.lock() = Some(other.collect(&keep(1)).unwrap());
        }
        true
    });
    // Version 1 is older than the lease. Version 2 has the number of this publisher.
    assert_eq!(*collected.lock(), Some(Collected { versions: 1, objects: 0, bytes: 0 }));
    assert!(matches!(result, Err(Error::Conflict { number: 2 })), "{result:?}");
    assert_eq!(numbers(&repository), [2, 3, 4]);
    assert_eq!(repository.collect(&keep(1)).unwrap().versions, 2);
    assert_eq!(numbers(&repository), [4]);
}

#[test]
fn a_removed_lease_prevents_the_version() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    let other = repository.clone();
    // The publisher sleeps for longer than a lease lives.
    let result = repository.publish(&store, &Default::default(), &|_, _| {
        faulty.pass(HOUR * 2);
        other.collect(&keep(1)).unwrap();
        true
    });
    assert!(matches!(result, Err(Error::LeaseExpired { .. })), "{result:?}");
    assert!(numbers(&repository).is_empty());
    publish(&repository, &store).unwrap();
    assert_eq!(rows_of(&repository, None), rows(&store));
}

/// A publisher whose write of the manifest is delayed for longer than its lease lives and its objects stay.
#[test]
fn a_publisher_that_was_suspended_before_the_manifest_publishes_nothing() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    let (of_hook, other) = (faulty.clone(), repository(&faulty));
    at_manifest(&faulty, move || {
        of_hook.pass(DAY + HOUR * 2);
        assert!(other.collect(&keep(1)).unwrap().objects > 0);
    });
    let result = publish(&repository(&faulty), &store);
    faulty.set_none();
    assert!(matches!(result, Err(Error::Conflict { number: 1 })), "{result:?}");
    let repository = repository(&faulty);
    assert!(numbers(&repository).is_empty());
    assert_eq!((faulty.paths("objects").len(), faulty.paths("leases").len()), (0, 0));
    let fence = repository.open_version(Some(1), &Default::default());
    assert!(matches!(fence, Err(Error::VersionNotFound { number: 1, .. })), "{fence:?}");
    let none = repository.open_version(None, &Default::default());
    assert!(matches!(none, Err(Error::NoVersion { .. })), "{none:?}");
    // The fence goes when it is no longer needed.
    assert_eq!(publish(&repository, &store).unwrap().version.number, 2);
    assert_eq!(faulty.paths("versions").len(), 2);
    repository.collect(&keep(1)).unwrap();
    assert_eq!(faulty.paths("versions").len(), 1);
    assert_eq!(rows_of(&repository, None), rows(&store));
}

/// Its number would be above the fence of a collector that has found the lease dead meanwhile.
#[test]
fn a_publisher_that_was_suspended_before_it_read_the_numbers_gives_up() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    let (of_hook, is_first) = (faulty.clone(), AtomicBool::new(true));
    faulty.set(move |kind, path| {
        if kind == "list" && path.contains("versions") && is_first.swap(false, Ordering::Relaxed) {
            of_hook.pass(HOUR * 2);
        }
        None
    });
    let result = publish(&repository(&faulty), &store);
    assert!(matches!(result, Err(Error::LeaseExpired { .. })), "{result:?}");
    assert!(numbers(&repository(&faulty)).is_empty());
    publish(&repository(&faulty), &store).unwrap();
}

/// The number of a suspended publisher has become free, since there is a newer version.
#[test]
fn a_suspended_publisher_retires_its_version_below_a_newer_one() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    let store = Arc::new(store);
    insert(&tree, 0..500, 0);
    publish(&repository(&faulty), &store).unwrap();
    insert(&tree, 0..500, 1);
    let (of_hook, other, of_other) = (faulty.clone(), repository(&faulty), store.clone());
    at_manifest(&faulty, move || {
        of_hook.pass(DAY + HOUR * 2);
        other.collect(&keep(1)).unwrap();
        for round in 2..4 {
            insert(&tree, 0..500, round);
            publish(&other, &of_other).unwrap();
        }
        // Versions 3 and 4, above the fence.
        of_hook.pass(HOUR);
        assert_eq!(other.collect(&keep(1)).unwrap().versions, 2);
        assert_eq!(numbers(&other), [4]);
    });
    let result = publish(&repository(&faulty), &store);
    faulty.set_none();
    assert!(matches!(result, Err(Error::Conflict { number: 4 })), "{result:?}");
    let repository = repository(&faulty);
    assert_eq!(numbers(&repository), [4]);
    assert_eq!(rows_of(&repository, None), rows(&store));
}

/// Calls `act` once, before the first write of a manifest. `act` can make requests.
fn at_manifest(faulty: &Faulty, act: impl FnOnce() + Send + 'static) {
    let act = parking_lot::Mutex::new(Some(act));
    faulty.set(move |kind, path| {
        if kind == "put" && path.contains("versions") {
            let act = act.lock().take();
            act.into_iter().for_each(|act| act());
        }
        None
    });
}

/// Publishers are suspended at any request, while others publish and collect.
#[test]
fn suspended_publishers_never_make_the_newest_version_lack_objects() {
    for seed in 0..4 {
        simulate_suspensions(seed);
    }
}

fn simulate_suspensions(seed: u64) {
    let (faulty, device): (_, Arc<dyn Device>) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    let (store, mut random) = (Arc::new(store), Random::new(seed));
    let may_end = seed % 2 == 1;
    let (mut expected, mut refused): (BTreeMap<u64, Rows>, u32) = (BTreeMap::new(), 0);
    for step in 0..40_u64 {
        let text = format!("seed {seed}, step {step}");
        let from = random.below(900) as u32;
        insert(&tree, from..from + 100, step);
        let (of_hook, other, of_other) = (faulty.clone(), repository(&faulty), store.clone());
        let (mut of_act, ends) = (Random::new(random.next_u64()), may_end && random.one_in(4));
        let act = move || {
            for _ in 0..=of_act.below(4) {
                of_hook.pass(HOUR * of_act.below(30) as u32);
                match of_act.below(2) {
                    0 => _ = publish(&other, &of_other).unwrap(),
                    _ => _ = other.collect(&keep(1)).unwrap(),
                }
            }
        };
        // Before the manifest, or any other request. Afterwards, the process ends with the write of the manifest.
        let at = random.one_in(2).then(|| random.below(20));
        let (act, requests) = (parking_lot::Mutex::new(Some(act)), AtomicU64::new(0));
        let (is_acting, is_written) = (AtomicBool::new(false), AtomicBool::new(false));
        faulty.set(move |kind, path| {
            if is_acting.load(Ordering::Relaxed) {
                return None;
            }
            let is_manifest = kind == "put" && path.contains("versions");
            if at.map_or(is_manifest, |at| requests.fetch_add(1, Ordering::Relaxed) == at) {
                let act = act.lock().take();
                is_acting.store(true, Ordering::Relaxed);
                act.into_iter().for_each(|mut act| act());
                is_acting.store(false, Ordering::Relaxed);
            }
            let is_dead = ends && is_written.fetch_or(is_manifest, Ordering::Relaxed);
            is_dead.then_some(Fault::Denied)
        });
        let own = repository(&faulty);
        let published = publish(&own, &store);
        faulty.set_none();
        let repository = repository(&faulty);
        let versions = numbers(&repository);
        match published {
            Ok(published) => assert_eq!(versions.last(), Some(&published.version.number), "{text}"),
            Err(Error::Conflict { .. } | Error::LeaseExpired { .. }) => refused += 1,
            Err(Error::Request { .. }) if ends => {}
            Err(error) => panic!("{text}: {error}"),
        }
        if let Some(&newest) = versions.last() {
            let rows = expected.entry(newest).or_insert_with(|| rows(&store));
            assert!(rows_of(&repository, Some(newest)) == *rows, "{text}");
        }
        // Only a publisher that ended early leaves a version that may lack objects.
        if !may_end {
            versions.iter().for_each(|&number| _ = rows_of(&repository, Some(number)));
        }
    }
    assert!(refused > 0, "seed {seed}: no publisher was suspended for too long");
}

/// Publications that fail at any request, collections, and readers, over weeks.
#[test]
fn no_version_within_its_grace_period_ever_lacks_an_object() {
    for seed in 0..4 {
        simulate(seed);
    }
}

fn simulate(seed: u64) {
    let (faulty, device): (_, Arc<dyn Device>) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    let mut random = Random::new(seed);
    insert(&tree, 0..1_000, 0);
    // The versions with their rows, and the readers with the times left to them.
    let mut expected: BTreeMap<u64, Rows> = BTreeMap::new();
    let mut readers: Vec<(u64, Store, Duration)> = Vec::new();
    for step in 0..50_u64 {
        let repository = repository(&faulty);
        let faults_from = random.below(60);
        let requests = std::sync::atomic::AtomicU64::new(0);
        let is_faulty = random.one_in(3);
        match random.below(4) {
            0 | 1 => {
                let from = random.below(900) as u32;
                insert(&tree, from..from + 100, step + 1);
                if is_faulty {
                    // The process ends: no request succeeds from here on.
                    faulty.set(move |_, _| {
                        let number = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        (number >= faults_from).then_some(Fault::Denied)
                    });
                }
                let published = publish(&repository, &store);
                faulty.set_none();
                match published {
                    Ok(published) => _ = expected.entry(published.version.number).or_insert_with(|| rows(&store)),
                    // The write of the manifest may have been the last request that succeeded.
                    Err(_) => {
                        let newest = repository.versions().unwrap().pop().map_or(0, |version| version.number);
                        let known = expected.keys().last().copied().unwrap_or(0);
                        assert!(newest >= known, "seed {seed}, step {step}");
                        if newest > known {
                            expected.insert(newest, rows(&store));
                        }
                    }
                }
            }
            2 => {
                if is_faulty {
                    faulty.set(move |_, _| {
                        let number = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        (number >= faults_from).then_some(Fault::Denied)
                    });
                }
                let collected = repository.collect(&keep(1 + random.index(3)));
                faulty.set_none();
                assert!(is_faulty || collected.is_ok(), "seed {seed}, step {step}: {collected:?}");
            }
            _ => {
                let time = HOUR * random.below(14) as u32;
                faulty.pass(time);
                readers.iter_mut().for_each(|(_, _, left)| *left = left.saturating_sub(time));
                readers.retain(|(_, _, left)| !left.is_zero());
            }
        }
        let versions = numbers(&repository);
        assert_eq!(versions.last(), expected.keys().last(), "seed {seed}, step {step}: the newest version stays");
        if let Some(&number) = versions.get(random.index(versions.len() + 1)) {
            assert_eq!(rows_of(&repository, Some(number)), expected[&number], "seed {seed}, step {step}");
        }
        if let Some(&number) = versions.get(random.index(versions.len() + 1)) {
            readers.push((number, reader(&open_uncached(&repository, Some(number))).unwrap(), DAY));
        }
        if let Some((number, store, _)) = readers.get(random.index(readers.len() + 1)) {
            store.drop_caches();
            assert_eq!(rows(store), expected[number], "seed {seed}, step {step}: a reader of version {number}");
        }
    }
    // In the end, only the objects of the versions are there.
    let repository = repository(&faulty);
    for _ in 0..3 {
        faulty.pass(DAY * 2);
        repository.collect(&keep(1)).unwrap();
    }
    insert(&tree, 0..1_000, 1_000);
    publish(&repository, &store).unwrap();
    for _ in 0..3 {
        faulty.pass(DAY * 2);
        repository.collect(&keep(1)).unwrap();
    }
    assert_eq!((faulty.paths("leases"), faulty.paths("retired")), (vec![], vec![]));
    let objects = faulty.paths("objects").len() as u64;
    repository.collect(&keep(1)).unwrap();
    assert_eq!(faulty.paths("objects").len() as u64, objects);
    assert_eq!(rows_of(&repository, None), rows(&store));
}
