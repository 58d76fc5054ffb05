//! Versions are complete, immutable copies of the database, of which exactly one publisher makes each.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use keyaki_primitives::Random;
use keyaki_publish::{CollectOptions, Error, PublishOptions, Repository, RequestOptions};
use keyaki_store::{KeyRange, Options, Store};
use object_store::local::LocalFileSystem;

#[test]
fn a_version_has_the_rows_of_the_database() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..3_000, 0);
    let expected = rows(&store);
    let first = publish(&repository, &store).unwrap();
    assert_eq!((first.version.number, first.is_new, first.kept_bytes, first.resumed_bytes), (1, true, 0, 0));
    insert(&tree, (0..3_000).step_by(7), 1);
    insert(&tree, 5_000..5_100, 1);
    let second = publish(&repository, &store).unwrap();
    assert_eq!(second.version.number, 2);
    assert_eq!(rows_of(&repository, None), rows(&store));
    assert_eq!(rows_of(&repository, Some(1)), expected);
    assert_eq!(repository.versions().unwrap(), [first.version, second.version]);
    assert_eq!(faulty.paths("leases"), [""; 0]);
    let missing = repository.open_version(Some(3), &Default::default());
    assert!(matches!(missing, Err(Error::VersionNotFound { number: 3, .. })), "{missing:?}");
}

#[test]
fn a_directory_is_an_object_store() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/shop", directory.path().display());
    let device = device();
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..2_000, 0);
    let repository = Repository::from_url(&url).unwrap();
    let none = repository.open_version(None, &Default::default());
    assert!(matches!(none, Err(Error::NoVersion { .. })), "{none:?}");
    publish(&repository, &store).unwrap();
    insert(&tree, 0..100, 1);
    assert_eq!(publish(&repository, &store).unwrap().version.number, 2);
    assert_eq!(rows_of(&Repository::from_url(&url).unwrap(), None), rows(&store));
    // Processes that ended early have left files under construction. Another process is at work.
    let staging = directory.path().join("shop/new");
    assert_eq!(std::fs::read_dir(&staging).unwrap().count(), 0);
    let [old, young] = ["0123456789abcdef", "123456789abcdef0"].map(|name| staging.join(name));
    std::fs::write(&young, b"part").unwrap();
    std::fs::write(&old, b"part").unwrap();
    let two_days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 24 * 3600);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(two_days_ago).unwrap();
    assert_eq!(repository.versions().unwrap().len(), 2);
    assert_eq!(repository.collect(&Default::default()).unwrap(), Default::default());
    assert!(!old.exists() && young.exists());
    for url in ["shop", "ftp://bucket/shop", "file://host/x", "memory:///shop"] {
        let error = Repository::from_url(url);
        assert!(matches!(&error, Err(Error::InvalidUrl { .. })), "{url}: {error:?}");
    }
}

#[test]
fn a_version_has_new_extents_only_once() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..20_000, 0);
    let first = publish(&repository, &store).unwrap();
    let unchanged = publish(&repository, &store).unwrap();
    assert!(!unchanged.is_new && unchanged.uploaded_bytes == 0, "{unchanged:?}");
    assert_eq!(unchanged.version, first.version);
    // One place of the key space.
    insert(&tree, 4_000..4_100, 1);
    let second = publish(&repository, &store).unwrap();
    assert!(second.uploaded_bytes < first.uploaded_bytes / 4, "{second:?} after {first:?}");
    assert_eq!(rows_of(&repository, None), rows(&store));
    assert_eq!(rows_of(&repository, Some(1)).len(), 20_000);
}

#[test]
fn a_closed_database_is_published_without_writing_it() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..1_000, 0);
    let expected = rows(&store);
    drop((store, tree));
    let reader = Store::open_read_only(device.clone(), "/db".as_ref(), options()).unwrap();
    publish(&repository, &reader).unwrap();
    assert_eq!(rows_of(&repository, None), expected);
}

#[test]
fn an_empty_database_is_published() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let store = Store::open(device, "/db".as_ref(), Options::default()).unwrap();
    let repository = repository(&faulty);
    publish(&repository, &store).unwrap();
    let device = open_version(&repository, None);
    assert_eq!(reader(&device).unwrap().snapshot().sequence(), 0);
}

#[test]
fn versions_are_consistent_beside_writers() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    let (next, is_done) = (AtomicU32::new(500), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let key = next.fetch_add(1, Ordering::Relaxed);
                insert(&tree, key..key + 1, 0);
                if key % 200 == 0 {
                    store.checkpoint().unwrap();
                }
            }
        });
        for number in 1..6 {
            let least = next.load(Ordering::Relaxed) as usize - 1;
            let published = publish(&repository, &store).unwrap();
            let most = next.load(Ordering::Relaxed) as usize;
            let rows = rows_of(&repository, Some(published.version.number));
            assert!((least..=most).contains(&rows.len()), "version {number}: {} rows", rows.len());
            let is_prefix = (0..).zip(&rows).all(|(key, row)| *row == (u32::to_be_bytes(key).to_vec(), value(key, 0)));
            assert!(is_prefix, "version {number} has all commits before its last one");
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn another_database_is_refused() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..10, 0);
    publish(&repository, &store).unwrap();
    let (other, _) = database(&device, "/other");
    let refused = publish(&repository, &other);
    assert!(matches!(refused, Err(Error::OtherDatabase { .. })), "{refused:?}");
    assert_eq!(faulty.paths("leases"), [""; 0]);
}

#[test]
fn exactly_one_of_several_publishers_wins() {
    for seed in 0..5 {
        let (faulty, device) = (Faulty::in_memory(), device());
        let (store, tree) = database(&device, "/db");
        insert(&tree, 0..1_000, 0);
        faulty.set_random(seed, "put", 4, &[Fault::Unavailable, Fault::LostAnswer]);
        let results: Vec<_> = std::thread::scope(|scope| {
            let publishers: Vec<_> = (0..4)
                .map(|_| {
                    let (repository, store) = (repository(&faulty), store.clone());
                    scope.spawn(move || publish(&repository, &store))
                })
                .collect();
            publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect()
        });
        let new =
            |result: &keyaki_publish::Result<_>| matches!(result, Ok(keyaki_publish::Published { is_new: true, .. }));
        assert_eq!(results.iter().filter(|result| new(result)).count(), 1, "seed {seed}: {results:?}");
        let is_allowed = |result: &keyaki_publish::Result<keyaki_publish::Published>| match result {
            Ok(published) => published.version.number == 1,
            Err(error) => matches!(error, Error::Conflict { number: 1 }),
        };
        assert!(results.iter().all(is_allowed), "seed {seed}: {results:?}");
        faulty.set_none();
        let repository = repository(&faulty);
        assert_eq!(repository.versions().unwrap().len(), 1);
        assert_eq!(rows_of(&repository, None), rows(&store));
    }
}

#[test]
fn an_interrupted_publisher_leaves_no_version_and_is_resumed() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..60_000, 0);
    // Merges in the background would replace extents between the publications.
    assert!(store.compact(TREE, &KeyRange::all(), &|_, _| true).unwrap());
    // Between objects and manifest.
    faulty.set(|kind, path| (kind == "put" && path.contains("versions")).then_some(Fault::Denied));
    let failed = publish(&repository, &store);
    assert!(matches!(failed, Err(Error::Request { attempts: 1, .. })), "{failed:?}");
    faulty.set_none();
    assert!(repository.versions().unwrap().is_empty());
    let resumed = publish(&repository, &store).unwrap();
    assert!(resumed.resumed_bytes > 0, "{resumed:?}");
    assert_eq!(rows_of(&repository, None), rows(&store));
    // A change between an interrupted publisher and the next one.
    faulty.set(|kind, path| (kind == "put" && path.contains("versions")).then_some(Fault::Denied));
    insert(&tree, 100..110, 1);
    assert!(publish(&repository, &store).is_err());
    faulty.set_none();
    insert(&tree, 110..120, 1);
    assert_eq!(publish(&repository, &store).unwrap().version.number, 2);
    assert_eq!(rows_of(&repository, None), rows(&store));
}

#[test]
fn an_upload_can_be_ended() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..60_000, 0);
    // Merges in the background would replace extents between the publications.
    assert!(store.compact(TREE, &KeyRange::all(), &|_, _| true).unwrap());
    let ended = repository.publish(&store, &PublishOptions { threads: 1, first_tree: None }, &|done, total| {
        assert!(done > 0 && done <= total);
        false
    });
    assert_eq!(ended.unwrap(), None);
    assert!(repository.versions().unwrap().is_empty());
    assert_eq!(faulty.paths("leases"), [""; 0]);
    let seen = AtomicU32::new(0);
    let published = repository.publish(&store, &PublishOptions::default(), &|done, total| {
        seen.fetch_add(u32::from(done == total), Ordering::Relaxed);
        true
    });
    assert!(published.unwrap().unwrap().resumed_bytes > 0);
    assert!(seen.load(Ordering::Relaxed) > 0, "the last progress is the total");
}

#[test]
fn faults_of_every_request_are_survived() {
    for seed in 0..4 {
        let (faulty, device) = (Faulty::in_memory(), device());
        let repository = repository(&faulty);
        let (store, tree) = database(&device, "/db");
        let random = parking_lot::Mutex::new(Random::new(seed));
        faulty.set(move |kind, _| {
            let mut random = random.lock();
            let faults: &[Fault] = match kind {
                "get" => &[Fault::Unavailable, Fault::Truncated, Fault::Flipped, Fault::Shifted],
                "put" | "delete" => &[Fault::Unavailable, Fault::LostAnswer],
                "list" => &[Fault::Unavailable, Fault::Truncated],
                _ => &[Fault::Unavailable],
            };
            random.one_in(4).then(|| *random.pick(faults))
        });
        for round in 0..3 {
            insert(&tree, 0..1_000, round);
            publish(&repository, &store).unwrap();
            assert_eq!(rows_of(&repository, None), rows(&store));
            faulty.pass(Duration::from_secs(2 * 24 * 3600));
            let collected = repository.collect(&CollectOptions { keep: 1, ..Default::default() }).unwrap();
            assert_eq!(collected.versions, u64::from(round > 0), "seed {seed}");
        }
        let stats = repository.request_stats();
        assert!(stats.retries > 0 && stats.damaged > 0, "{stats:?}");
        faulty.set_none();
        assert_eq!(repository.versions().unwrap().len(), 1);
        assert_eq!(faulty.paths("leases"), [""; 0]);
        // A listing that fails in the middle, and removals whose answers are lost, lose nothing.
        assert_eq!(rows_of(&repository, None), rows(&store));
    }
}

#[test]
fn failed_requests_for_metadata_publish_and_remove_nothing() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..500, 0);
    let quick = RequestOptions { timeout: Duration::from_millis(20), attempts_max: 2, ..requests(1) };
    let inner: Arc<dyn object_store::ObjectStore> = faulty.clone();
    let own = Repository::open(inner, "bucket/shop", "shop", quick).unwrap();
    for (kind, fault) in [
        ("head", Fault::Denied),
        ("head", Fault::Hangs),
        ("head", Fault::Unavailable),
        ("list", Fault::Denied),
        ("list", Fault::Hangs),
        ("list", Fault::Truncated),
    ] {
        faulty.set(move |of, _| (of == kind).then_some(fault));
        let text = format!("{kind}: {fault:?}");
        let (published, collected) = (publish(&own, &store), own.collect(&Default::default()));
        for error in [published.map(drop).unwrap_err(), collected.map(drop).unwrap_err()] {
            let is_right = match fault {
                Fault::Hangs => matches!(error, Error::TimedOut { attempts: 2, .. }),
                Fault::Denied => matches!(error, Error::Request { attempts: 1, .. }),
                _ => matches!(error, Error::Request { attempts: 2, .. }),
            };
            assert!(is_right, "{text}: {error:?}");
        }
        if kind == "list" {
            assert!(own.versions().is_err() && own.open_version(None, &Default::default()).is_err(), "{text}");
        }
        faulty.set_none();
        assert_eq!(repository(&faulty).versions().unwrap().len(), 0, "{text}");
    }
    // Removals that fail leave files, and no error for a publisher.
    faulty.set(|kind, _| (kind == "delete").then_some(Fault::Denied));
    publish(&own, &store).unwrap();
    assert_eq!(faulty.paths("leases").len(), 1);
    // A removal whose answer is lost is repeated, and finds nothing.
    let count = AtomicU32::new(0);
    let is_first = move |kind: &str| kind == "delete" && count.fetch_add(1, Ordering::Relaxed) == 0;
    faulty.set(move |kind, _| is_first(kind).then_some(Fault::LostAnswer));
    faulty.pass(Duration::from_secs(2 * 3600));
    own.collect(&Default::default()).unwrap();
    faulty.set_none();
    assert_eq!(faulty.paths("leases"), [""; 0]);
    assert_eq!(rows_of(&own, None), rows(&store));
}

#[test]
fn a_crash_of_the_process_is_survived_by_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let inner = Arc::new(LocalFileSystem::new_with_prefix(directory.path()).unwrap());
    let (faulty, device) = (Faulty::new(inner), device());
    let (store, tree) = database(&device, "/db");
    let mut versions = Vec::new();
    for step in 0..12_u32 {
        insert(&tree, (0..500).map(|key| key * (step + 1)), step.into());
        // The repository, its lease and its requests end at the n-th write.
        let repository = repository(&faulty);
        let writes = AtomicU32::new(0);
        faulty.set(move |kind, _| {
            let is_dead = kind == "put" && writes.fetch_add(1, Ordering::Relaxed) >= step;
            (is_dead || (kind == "delete" && step < 8)).then_some(Fault::Denied)
        });
        if let Ok(published) = publish(&repository, &store) {
            versions.push((published.version.number, rows(&store)));
        }
        faulty.set_none();
        let numbers: Vec<u64> = repository.versions().unwrap().iter().map(|version| version.number).collect();
        assert_eq!(numbers, versions.iter().map(|(number, _)| *number).collect::<Vec<_>>(), "step {step}");
    }
    assert!(!versions.is_empty() && versions.len() < 12, "{} versions", versions.len());
    let repository = repository(&faulty);
    for (number, expected) in versions {
        assert_eq!(rows_of(&repository, Some(number)), expected);
    }
}
