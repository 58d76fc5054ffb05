//! Objects as files, in a server with the protocol of S3.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use keyaki_object_server::{Faults, Server};
use keyaki_primitives::Random;
use keyaki_publish::{Bucket, Buckets};
use object_store::memory::InMemory;

fn server(faults: Faults) -> (tempfile::TempDir, Server, Buckets) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bucket")).unwrap();
    let server = Server::start(root.path(), "127.0.0.1:0", faults).unwrap();
    let buckets = Buckets::new(server.variables());
    (root, server, buckets)
}

fn bytes(len: usize) -> Vec<u8> {
    let mut random = Random::new(len as u64);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
    words.take(len).collect()
}

fn write(bucket: &Bucket, name: &str, bytes: &[u8]) {
    let mut writer = bucket.create(name, Arc::new(|| false)).unwrap();
    for part in bytes.chunks(1_000_003) {
        writer.write_all(part).unwrap();
    }
    writer.finish().unwrap();
}

fn read(bucket: &Bucket, name: &str) -> std::io::Result<Vec<u8>> {
    let (file, mut read) = (bucket.open(name)?, Vec::new());
    file.reader().read_to_end(&mut read)?;
    assert_eq!(read.len() as u64, file.len());
    Ok(read)
}

#[test]
fn objects_are_read_as_they_were_written() {
    let faults = [Faults::default(), Faults { refused_one_in: 10, truncated_one_in: 20, seed: 3, ..Faults::default() }];
    for faults in faults {
        let are_refused = faults.refused_one_in > 0;
        let (_root, server, buckets) = server(faults);
        let (bucket, name) = buckets.find("s3://bucket/a folder/b=1/ü.bin").unwrap();
        assert_eq!(name, "a folder/b=1/ü.bin");
        assert_eq!(bucket.root(), "s3://bucket");
        // In one part, in whole parts, and with a short last part; each replaces the one before.
        for len in [0, 1, 5_000_000, 16 << 20, 40_000_001] {
            let bytes = bytes(len);
            write(&bucket, name, &bytes);
            assert!(read(&bucket, name).unwrap() == bytes, "{len} bytes");
        }
        write(&bucket, "c.bin", b"c");
        let mut listed = block_on(bucket.list("")).unwrap();
        listed.sort_by(|a, b| a.url.cmp(&b.url));
        let listed: Vec<_> = listed.iter().map(|file| (file.url.as_str(), file.len)).collect();
        assert_eq!(listed, [("s3://bucket/a folder/b=1/ü.bin", 40_000_001), ("s3://bucket/c.bin", 1)]);
        assert_eq!(block_on(bucket.list("a folder")).unwrap().len(), 1);
        assert_eq!(block_on(bucket.list("a")).unwrap(), []);
        assert_eq!(are_refused, server.stats().refused > 0);
    }
}

/// A reader that is dropped early has not requested much, and objects that nothing has finished do not exist.
#[test]
fn parts_of_objects() {
    let (_root, server, buckets) = server(Faults::default());
    let (bucket, _) = buckets.find("s3://bucket").unwrap();
    write(&bucket, "long", &bytes(50_000_000));
    let gets = server.stats().gets;
    let mut start = [0; 100];
    bucket.open("long").unwrap().reader().read_exact(&mut start).unwrap();
    assert_eq!(start[..], bytes(50_000_000)[..100]);
    assert_eq!(server.stats().gets, gets + 1);
    for len in [5, 20 << 20] {
        let mut writer = bucket.create("unfinished", Arc::new(|| false)).unwrap();
        writer.write_all(&bytes(len)).unwrap();
        drop(writer);
        assert_eq!(bucket.open("unfinished").unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(block_on(bucket.list("")).unwrap().len(), 1);
}

#[test]
fn errors_say_what_is_wrong() {
    let (_root, _server, buckets) = server(Faults::default());
    let (bucket, _) = buckets.find("s3://bucket/x").unwrap();
    let error = bucket.open("missing").unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::NotFound, "no such object".into()));
    for (url, message) in [
        ("bucket/x", "no URL"),
        ("file:///a/b", "no bucket"),
        ("s3:///a", "no bucket"),
        ("ftp://host/a", "is not supported (use s3://"),
    ] {
        let error = buckets.find(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(message), "{url}: {error}");
    }
    for name in ["", "a/", "a//b", "../a", "a/./b"] {
        assert_eq!(bucket.create(name, Arc::new(|| false)).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
    }
    let unknown = Buckets::new(vec![("AWS_RETGION".into(), "x".into())]);
    assert!(unknown.find("s3://bucket/x").unwrap_err().to_string().contains("unknown setting"));
}

#[test]
fn objects_that_are_replaced_are_not_mixed() {
    let bucket = Bucket::of_store("memory://", Arc::new(InMemory::new())).unwrap();
    write(&bucket, "a", &bytes(20_000_000));
    let mut reader = bucket.open("a").unwrap().reader();
    let mut start = [0; 100];
    reader.read_exact(&mut start).unwrap();
    write(&bucket, "a", &bytes(20_000_001));
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("was replaced"), "{error}");
}

/// A store that answers slowly does not hold up who has given up.
#[test]
fn writers_can_be_stopped() {
    let (_root, server, buckets) = server(Faults::default());
    let (bucket, _) = buckets.find("s3://bucket").unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = stopped.clone();
    let mut writer = bucket.create("slow", Arc::new(move || stop.load(Ordering::SeqCst))).unwrap();
    server.set(Faults { latency_ms: 3_000, ..Faults::default() });
    stopped.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let error = writer.write_all(&bytes(20_000_000)).unwrap_err();
    assert!(error.to_string().contains("given up") && start.elapsed() < Duration::from_secs(3), "{error}");
    server.set(Faults::default());
    drop(writer);
    assert_eq!(bucket.open("slow").unwrap_err().kind(), ErrorKind::NotFound);
}
