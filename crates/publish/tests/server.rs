//! Publishing to a server with the protocol of S3, and reading from it, through a network that fails.

mod common;

use std::time::Duration;

use common::*;
use keyaki_device::{Buffer, Device, OpenMode};
use keyaki_object_server::{Faults, Server};
use keyaki_publish::{CollectOptions, Error, PublishOptions, Repository, RequestOptions};

const BUCKET: &str = "bucket";

fn server(faults: Faults) -> (tempfile::TempDir, Server) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(BUCKET)).unwrap();
    let server = Server::start(root.path(), "127.0.0.1:0", faults).unwrap();
    (root, server)
}

fn connect(server: &Server, url: &str) -> Repository {
    Repository::from_url_with(url, &server.variables(), requests(1)).unwrap()
}

/// One in four reads and one in eight other requests has a fault.
fn faults(seed: u64) -> Faults {
    Faults {
        refused_one_in: 8,
        truncated_one_in: 12,
        wrong_one_in: 16,
        slow_one_in: 50,
        slow_ms: 20,
        seed,
        ..Faults::default()
    }
}

#[test]
fn versions_are_the_local_databases() {
    let (_root, server) = server(faults(1));
    let repository = connect(&server, "s3://bucket/shop/eu");
    assert_eq!(repository.versions().unwrap(), []);
    let device = device();
    let (store, tree) = database(&device, "/db");
    let mut contents = Vec::new();
    for round in 0..3 {
        insert(&tree, (0..20_000).step_by(1 + 50 * round as usize), round);
        let published = publish(&repository, &store).unwrap();
        assert_eq!(published.version.number, round + 1);
        assert_eq!(round > 0, published.kept_bytes > 0, "{published:?}");
        contents.push(rows(&store));
    }
    let numbers: Vec<u64> = repository.versions().unwrap().iter().map(|version| version.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    for (number, expected) in (1..).zip(&contents) {
        assert!(rows_of(&repository, Some(number)) == *expected, "version {number}");
    }
    let stats = server.stats();
    assert!(stats.refused > 20 && stats.truncated > 5 && stats.wrong > 5, "{stats:?}");
    let ours = repository.request_stats();
    assert!(ours.damaged >= stats.wrong && ours.retries >= ours.damaged + stats.refused, "{ours:?} {stats:?}");
}

#[test]
fn clones_have_the_same_rows_and_can_change() {
    let (_root, server) = server(faults(2));
    let (repository, device) = (connect(&server, "s3://bucket/shop"), device());
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..5_000, 0);
    publish(&repository, &store).unwrap();
    let cloned = repository.clone_version(None, &device, "/clone".as_ref(), &|_, _| true).unwrap().unwrap();
    assert_eq!(cloned.number, 1);
    let (clone, changed) = database(&device, "/clone");
    assert_eq!(rows(&clone), rows(&store));
    insert(&changed, 0..10, 7);
    assert_ne!(rows(&clone), rows(&store));
}

#[test]
fn old_versions_are_removed() {
    let (_root, server) = server(faults(3));
    let (repository, device) = (connect(&server, "s3://bucket/shop"), device());
    let (store, tree) = database(&device, "/db");
    for round in 0..4 {
        insert(&tree, 0..200, round);
        publish(&repository, &store).unwrap();
    }
    // Versions of the second that now is are not old yet: dates of S3 are whole seconds.
    std::thread::sleep(Duration::from_millis(1_100));
    repository.collect(&CollectOptions { keep: 2, ..CollectOptions::default() }).unwrap();
    let numbers: Vec<u64> = repository.versions().unwrap().iter().map(|version| version.number).collect();
    assert_eq!(numbers, [3, 4]);
    assert_eq!(rows_of(&repository, None), rows(&store));
}

#[test]
fn concurrent_publishers_make_different_versions() {
    let (_root, server) = server(Faults::default());
    let (store, tree) = database(&device(), "/db");
    insert(&tree, 0..100, 0);
    let published = std::thread::scope(|scope| {
        let publish_one = || {
            let repository = connect(&server, "s3://bucket/shop");
            match repository.publish(&store, &PublishOptions::default(), &|_, _| true) {
                Ok(published) => Some(published.unwrap().version.number),
                Err(Error::Conflict { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        };
        let publishers: Vec<_> = (0..4).map(|_| scope.spawn(publish_one)).collect();
        publishers.into_iter().filter_map(|publisher| publisher.join().unwrap()).collect::<Vec<_>>()
    });
    let repository = connect(&server, "s3://bucket/shop");
    let versions: Vec<u64> = repository.versions().unwrap().iter().map(|version| version.number).collect();
    assert!(!versions.is_empty() && published.iter().all(|number| versions.contains(number)));
    versions.iter().for_each(|&number| assert_eq!(rows_of(&repository, Some(number)), rows(&store)));
}

#[test]
fn refusals_are_final_and_clear() {
    let (root, server) = server(Faults::default());
    let missing = connect(&server, "s3://nobodys/shop");
    let Err(Error::Request { attempts: 1, source, .. }) = missing.versions() else {
        panic!("{:?}", missing.versions())
    };
    assert!(format!("{source:?}").contains("NoSuchBucket"), "{source:?}");
    let mut variables = server.variables();
    variables.push(("AWS_SECRET_ACCESS_KEY".into(), "wrong".into()));
    let stranger = Repository::from_url_with("s3://bucket/shop", &variables, requests(1)).unwrap();
    let Err(Error::Request { attempts: 1, source, .. }) = stranger.versions() else {
        panic!("{:?}", stranger.versions())
    };
    assert!(format!("{source:?}").contains("SignatureDoesNotMatch"), "{source:?}");
    let nobody = Server::start(root.path(), "127.0.0.1:0", Faults::default()).unwrap();
    let variables = nobody.variables();
    drop(nobody);
    let options = RequestOptions { attempts_max: 2, ..requests(1) };
    let gone = Repository::from_url_with("s3://bucket/shop", &variables, options).unwrap();
    let Err(Error::Request { attempts: 2, .. }) = gone.versions() else { panic!("there is no server") };
}

/// Slow answers of a few requests do not delay reads as much as the answers.
#[test]
fn requests_wait_at_the_same_time() {
    let (_root, server) = server(Faults::default());
    let (repository, device) = (connect(&server, "s3://bucket/shop"), device());
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..40_000, 0);
    publish(&repository, &store).unwrap();
    let version = open_uncached(&repository, None);
    let file = version.open(&version.directory().join("data"), OpenMode::Read).unwrap();
    server.set(Faults { latency_ms: 100, ..Faults::default() });
    let before = server.stats();
    std::thread::scope(|scope| {
        for read in 0..12 {
            let file = &file;
            // Frames that are too far apart for one request.
            scope.spawn(move || file.read_at((1 + 6 * read) * (64 << 10), &mut Buffer::zeroed(4096)).unwrap());
        }
    });
    let stats = server.stats();
    assert!(stats.gets - before.gets >= 10, "{stats:?}");
    assert!(stats.concurrent_max >= 6, "{stats:?}");
}
