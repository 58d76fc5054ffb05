//! Reads of a version return the bytes of the local database, whatever the store answers, or a clear error.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use keyaki_device::{Buffer, Device, File, Op, OpenMode, Request, Wait};
use keyaki_primitives::Random;
use keyaki_publish::{DiskCacheOptions, Error, PublishOptions, ReadOptions, Repository, RequestOptions, VersionDevice};
use keyaki_store::key_value::KeyValue;
use keyaki_store::{CheckpointImage, Direction, Store, TreeId};

/// A published database, and the bytes of its data file.
struct Shop {
    faulty: Arc<Faulty>,
    repository: Repository,
    store: Store,
    data: Vec<u8>,
}

fn shop(keys: u32) -> Shop {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..keys, 0);
    publish(&repository, &store).unwrap();
    insert(&tree, (0..keys).step_by(100), 1);
    publish(&repository, &store).unwrap();
    let data = bytes(&store.checkpoint_image().unwrap());
    faulty.requested.lock().clear();
    Shop { faulty, repository, store, data }
}

fn bytes(image: &CheckpointImage) -> Vec<u8> {
    let mut data = vec![0; image.data_bytes() as usize];
    let mut put = |offset: u64, bytes: &[u8]| data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    for (i, extent) in image.extents().iter().enumerate() {
        put(extent.offset, &image.read_extent(i).unwrap());
    }
    let (offset, table) = image.node_table();
    put(offset, &table);
    put(0, &image.superblock());
    put(32_768, &image.superblock());
    data
}

fn data_file(device: &VersionDevice) -> Arc<dyn File> {
    device.open(&device.directory().join("data"), OpenMode::Read).unwrap()
}

/// Random reads through a queue, all of which must succeed.
fn check_reads(device: &VersionDevice, data: &[u8], seed: u64, reads: u64) {
    let (file, mut random) = (data_file(device), Random::new(seed));
    let mut queue = device.queue(64).unwrap();
    let (blocks, mut pending) = (data.len() as u64 / 4096, Vec::new());
    for tag in 0..reads {
        let len = (1 + random.below(40)).min(blocks);
        let offset = random.below(blocks - len + 1) * 4096;
        let op = Op::Read(queue.buffer(len as usize * 4096));
        queue.push(Request { file: file.clone(), offset, op, tag });
        pending.push(offset as usize);
    }
    queue.submit().unwrap();
    let (mut completions, mut done) = (Vec::new(), BTreeSet::new());
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completions).unwrap();
        for completion in completions.drain(..) {
            completion.result.unwrap();
            let (offset, buffer) = (pending[completion.tag as usize], completion.buffer.unwrap());
            assert!(buffer[..] == data[offset..offset + buffer.len()], "{} bytes at {offset}", buffer.len());
            done.insert(completion.tag);
        }
    }
    assert_eq!(done.len() as u64, reads);
}

#[test]
fn every_read_has_the_local_bytes() {
    let Shop { repository, data, .. } = shop(20_000);
    for memory_bytes in [0, 300_000, 64 << 20] {
        let device = repository.open_version(None, &ReadOptions { memory_bytes, disk: None }).unwrap();
        let file = data_file(&device);
        assert_eq!(file.len().unwrap(), data.len() as u64);
        let mut whole = Buffer::zeroed(data.len());
        file.read_at(0, &mut whole).unwrap();
        assert!(whole[..] == data[..]);
        (0..5).for_each(|seed| check_reads(&device, &data, seed, 100));
        let stats = device.stats();
        assert!(stats.memory_bytes <= memory_bytes as u64, "{stats:?}");
        assert_eq!(stats.memory_hits > 0, memory_bytes > 0, "{stats:?}");
    }
}

#[test]
fn wrong_reads_are_refused() {
    let Shop { repository, data, .. } = shop(1_000);
    let device = open_version(&repository, None);
    let file = data_file(&device);
    let mut buffer = Buffer::zeroed(8192);
    assert!(file.read_at(data.len() as u64 - 4096, &mut buffer).unwrap_err().is_end_of_file());
    assert!(file.read_at(u64::MAX - 4095, &mut buffer).unwrap_err().is_end_of_file());
    assert!(file.read_at(100, &mut buffer).unwrap_err().to_string().contains("multiple of 4096"));
    let foreign = device_with_file();
    let mut queue = device.queue(4).unwrap();
    queue.push(Request { file: foreign, offset: 0, op: Op::Read(Buffer::zeroed(4096)), tag: 1 });
    queue.push(Request { file: file.clone(), offset: 0, op: Op::Write(Buffer::zeroed(4096)), tag: 2 });
    queue.push(Request { file: file.clone(), offset: 0, op: Op::Sync, tag: 3 });
    queue.push(Request { file: file.clone(), offset: data.len() as u64, op: Op::Read(Buffer::zeroed(4096)), tag: 4 });
    let mut completions = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completions).unwrap();
    }
    assert_eq!(completions.len(), 4);
    assert!(completions.iter().all(|completion| completion.result.is_err()));
    assert!(completions.iter().all(|completion| completion.buffer.is_some() == (completion.tag != 3)));
    assert!(file.write_at(0, &buffer).is_err() && file.truncate(0).is_err() && file.sync_data().is_err());
    let directory = device.directory();
    assert_eq!(device.list(directory).unwrap(), ["data"]);
    assert!(device.exists(&directory.join("data")).unwrap() && !device.exists(&directory.join("LOCK")).unwrap());
    assert!(device.open(&directory.join("log-0"), OpenMode::Read).unwrap_err().is_not_found());
    assert!(device.remove(&directory.join("data")).is_err() && device.lock(&directory.join("LOCK")).is_err());
    let writable = Store::open(device.clone(), directory, options());
    assert!(writable.is_err(), "a version cannot be opened for writing");
}

fn device_with_file() -> Arc<dyn File> {
    device().open("/f".as_ref(), OpenMode::CreateNew).unwrap()
}

#[test]
fn transient_faults_are_repaired() {
    let Shop { faulty, repository, store, data, .. } = shop(20_000);
    for seed in 0..3 {
        let faults = &[Fault::Unavailable, Fault::Truncated, Fault::Flipped, Fault::Shifted, Fault::LostAnswer];
        faulty.set_random(seed, "get", 5, faults);
        let device = repository.open_version(None, &ReadOptions { memory_bytes: 200_000, disk: None }).unwrap();
        check_reads(&device, &data, seed, 300);
        assert_eq!(rows(&reader(&device).unwrap()), rows(&store));
        let stats = device.stats().requests;
        assert!(stats.damaged > 0 && stats.retries > stats.damaged, "{stats:?}");
    }
}

#[test]
fn a_damaged_object_fails_only_the_reads_of_its_damaged_frames() {
    let Shop { faulty, repository, data, .. } = shop(20_000);
    let objects = faulty.paths("objects");
    let whole = |path: &str| futures::executor::block_on(faulty.body(path));
    let (path, body) =
        objects.iter().map(|path| (path.clone(), whole(path))).max_by_key(|(_, body)| body.len()).unwrap();
    assert!(body.len() > 3 * 65_544, "the longest object has {} bytes", body.len());
    let mut damaged = body.to_vec();
    damaged[65_544 + 5000] ^= 1;
    futures::executor::block_on(faulty.replace(&path, damaged));
    let device = open_uncached(&repository, None);
    let file = data_file(&device);
    let (mut failed, mut sound) = (0, 0);
    for block in 0..data.len() / 4096 {
        let mut buffer = Buffer::zeroed(4096);
        match file.read_at(block as u64 * 4096, &mut buffer) {
            Ok(()) => {
                assert!(buffer[..] == data[block * 4096..][..4096]);
                sound += 1;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("is damaged at offset") && text.contains(&path), "{text}");
                failed += 1;
            }
        }
    }
    assert!(failed <= 16 && failed > 0 && sound > 100, "{failed} blocks failed, {sound} did not");
    // A read of several frames fails as a whole, its neighbours in the batch do not.
    let mut queue = device.queue(1000).unwrap();
    for block in 0..(data.len() / 4096) as u64 {
        let op = Op::Read(queue.buffer(4096));
        queue.push(Request { file: file.clone(), offset: block * 4096, op, tag: block });
    }
    let mut completions = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completions).unwrap();
    }
    assert_eq!(completions.iter().filter(|completion| completion.result.is_err()).count(), failed);
}

#[test]
fn final_errors_are_not_repeated() {
    let Shop { faulty, repository, data, .. } = shop(1_000);
    let device = open_uncached(&repository, None);
    let file = data_file(&device);
    // In the node table.
    let offset = data.len() as u64 - 4096;
    let mut buffer = Buffer::zeroed(4096);
    file.read_at(offset, &mut buffer).unwrap();
    let before = device.stats().requests;
    faulty.set(|kind, _| (kind == "get").then_some(Fault::Denied));
    let error = file.read_at(offset, &mut buffer).unwrap_err();
    assert!(error.to_string().contains("after 1 attempts"), "{error}");
    assert_eq!(device.stats().requests.reads, before.reads + 1);
    faulty.set(|kind, _| (kind == "get").then_some(Fault::Unavailable));
    let error = file.read_at(offset, &mut buffer).unwrap_err();
    assert!(error.to_string().contains("after 12 attempts") && error.to_string().contains("503"), "{error}");
    // A failed read is not final.
    faulty.set_none();
    file.read_at(offset, &mut buffer).unwrap();
}

#[test]
fn a_version_opens_with_few_requests() {
    let Shop { faulty, repository, store, .. } = shop(20_000);
    faulty.lists.store(0, Ordering::Relaxed);
    faulty.gets.store(0, Ordering::Relaxed);
    let device = open_version(&repository, None);
    let reader = reader(&device).unwrap();
    let requests = faulty.lists.load(Ordering::Relaxed) + faulty.gets.load(Ordering::Relaxed);
    assert!(requests <= 5, "{requests} requests: {:?}", faulty.requested.lock());
    assert_eq!(rows(&reader), rows(&store));
}

/// One listing, the manifest, and the object with the node table, which has the tree that is read first.
#[test]
fn a_version_with_its_first_tree_opens_with_three_requests() {
    let (faulty, device) = (Faulty::in_memory(), device());
    let repository = repository(&faulty);
    let (store, tree) = database(&device, "/db");
    insert(&tree, 0..20_000, 0);
    let first_tree = TreeId::new(77);
    let first = KeyValue::open(&store, first_tree).unwrap();
    insert(&first, 0..3_000, 0);
    let options = PublishOptions { first_tree: Some(first_tree), ..PublishOptions::default() };
    let publish = || repository.publish(&store, &options, &|_, _| true).unwrap().unwrap();
    publish();
    for round in 1..4 {
        faulty.requested.lock().clear();
        let requests_before = (faulty.lists.load(Ordering::Relaxed), faulty.gets.load(Ordering::Relaxed));
        let version = open_version(&repository, None);
        let reader = reader(&version).unwrap();
        let rows: Vec<_> = KeyValue::open(&reader, first_tree)
            .unwrap()
            .range(.., Direction::Ascending)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 3_000);
        assert_eq!(rows[8].1, value(8, round - 1));
        let requests = (faulty.lists.load(Ordering::Relaxed), faulty.gets.load(Ordering::Relaxed));
        let requests = (requests.0 - requests_before.0, requests.1 - requests_before.1);
        assert_eq!(requests, (1, 2), "{:?}", faulty.requested.lock());
        insert(&first, [8], round);
        assert!(publish().is_new);
    }
    assert_eq!(rows(&reader(&open_version(&repository, None)).unwrap()), rows(&store));
}

/// As that of the node table of a large database.
#[test]
fn a_long_read_takes_three_requests() {
    let bytes = 20 << 20;
    let payload: Vec<u8> = (0..bytes / 8).flat_map(|i: u64| (i.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect();
    let faulty = Faulty::in_memory();
    let repository = repository(&faulty);
    let device = published_payload(&faulty, &repository, &payload);
    faulty.requested.lock().clear();
    let file = data_file(&device);
    let mut buffer = Buffer::zeroed(payload.len());
    file.read_at(65_536, &mut buffer).unwrap();
    assert!(buffer[..] == payload[..]);
    assert_eq!(faulty.requested.lock().len(), 3);
}

/// Transfers of long manifests take longer than the time after which a response must have begun.
#[test]
fn long_manifests_have_time_to_arrive() {
    let faulty = Faulty::in_memory();
    write_version(&faulty, &[1; 4096], 60_000);
    let options = RequestOptions { timeout: Duration::from_millis(100), ..requests(3) };
    let store: Arc<dyn object_store::ObjectStore> = faulty.clone();
    let repository = Repository::open(store, "bucket/shop", "shop", options).unwrap();
    let delay = Fault::SlowBody(Duration::from_millis(300));
    faulty.set(move |kind, path| (kind == "get" && path.contains("versions")).then_some(delay));
    repository.open_version(None, &ReadOptions::default()).unwrap();
    // A short one has only that time.
    write_version(&faulty, &[1; 4096], 0);
    let error = repository.open_version(None, &ReadOptions::default());
    assert!(matches!(error, Err(Error::TimedOut { .. })), "{error:?}");
}

/// A version whose data file has one object, opened.
fn published_payload(faulty: &Arc<Faulty>, repository: &Repository, payload: &[u8]) -> Arc<VersionDevice> {
    write_version(faulty, payload, 0);
    repository.open_version(None, &ReadOptions::default()).unwrap()
}

/// Writes a version whose data file has one object, and whose manifest lists `unused` others. Made from the
/// documentation of the format.
fn write_version(faulty: &Faulty, payload: &[u8], unused: u32) {
    use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};
    let (hash, nonce) = (xxh3_128(payload), 5_u64);
    let mut object = Vec::new();
    for (frame, bytes) in (0_u64..).zip(payload.chunks(65_536)) {
        object.extend_from_slice(bytes);
        object.extend_from_slice(&xxh3_64_with_seed(bytes, (hash as u64).wrapping_add(frame)).to_le_bytes());
    }
    let name = format!("{hash:032x}-{nonce:016x}");
    let path = format!("bucket/shop/objects/{}/{name}", &name[..2]);
    let varint = |mut number: u64| {
        let mut out = Vec::new();
        while number >= 128 {
            out.push(number as u8 | 128);
            number >>= 7;
        }
        out.push(number as u8);
        out
    };
    let mut manifest = b"KEYAKIPV".to_vec();
    manifest.extend_from_slice(&1_u32.to_le_bytes());
    manifest.extend_from_slice(&65_536_u32.to_le_bytes());
    for number in [1, 0, 9, 0, 0, 65_536 + payload.len() as u64] {
        manifest.extend_from_slice(&u64::to_le_bytes(number));
    }
    manifest.extend_from_slice(&(1 + unused).to_le_bytes());
    manifest.extend_from_slice(&[1, 0, 0, 0]);
    manifest.extend_from_slice(&[0; 4096]);
    let blocks = payload.len() as u64 / 4096;
    for number in 0..=unused {
        manifest.extend_from_slice(&(hash + u128::from(number)).to_le_bytes());
        manifest.extend_from_slice(&nonce.to_le_bytes());
        manifest.extend(varint(blocks));
    }
    manifest.extend([varint(16), varint(blocks), varint(0), varint(0), vec![7; 8]].concat());
    let checksum = xxh3_64(&manifest);
    manifest.extend_from_slice(&checksum.to_le_bytes());
    futures::executor::block_on(async {
        faulty.replace(&path, object).await;
        faulty.replace("bucket/shop/versions/0000000000000001", manifest).await;
    });
}

#[test]
fn neighbouring_reads_share_requests() {
    let Shop { faulty, repository, data, .. } = shop(40_000);
    let device = open_version(&repository, None);
    let file = data_file(&device);
    faulty.requested.lock().clear();
    let mut queue = device.queue(10_000).unwrap();
    let blocks = (data.len() as u64 - 65_536) / 4096;
    for block in 0..blocks {
        let op = Op::Read(queue.buffer(4096));
        queue.push(Request { file: file.clone(), offset: 65_536 + block * 4096, op, tag: block });
    }
    let mut completions = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completions).unwrap();
    }
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    let requested = faulty.requested.lock();
    let distinct: BTreeSet<&String> = requested.iter().map(|(path, _)| path).collect();
    // At most one request for each 4 MiB of an object, without one twice.
    let most = distinct.len() as u64 + (data.len() as u64 >> 22);
    assert!(requested.len() as u64 <= most, "{} requests for {} objects", requested.len(), distinct.len());
    let stats = device.stats();
    assert_eq!(stats.ranges, requested.len() as u64);
    assert!(stats.shared > 4 * stats.fetched, "{stats:?}");
}

#[test]
fn concurrent_reads_of_a_frame_share_a_request() {
    let Shop { faulty, repository, data, .. } = shop(1_000);
    let device = open_version(&repository, None);
    faulty.requested.lock().clear();
    faulty.set(|kind, _| (kind == "get").then_some(Fault::Slow(Duration::from_millis(20))));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut buffer = Buffer::zeroed(4096);
                let start = data.len() - 4096;
                data_file(&device).read_at(start as u64, &mut buffer).unwrap();
                assert!(buffer[..] == data[start..]);
            });
        }
    });
    assert_eq!(faulty.requested.lock().len(), 1);
}

#[test]
fn slow_reads_get_second_requests() {
    let Shop { faulty, data, .. } = shop(20_000);
    let options =
        RequestOptions { hedge_after: Some(Duration::from_millis(50)), timeout: Duration::from_secs(5), ..requests(3) };
    let store: Arc<dyn object_store::ObjectStore> = faulty.clone();
    let repository = Repository::open(store, "bucket/shop", "shop", options).unwrap();
    let device = open_uncached(&repository, None);
    let file = data_file(&device);
    let read = |block: u64| {
        let mut buffer = Buffer::zeroed(4096);
        file.read_at(65_536 + block * 4096, &mut buffer).unwrap();
        assert!(buffer[..] == data[65_536 + block as usize * 4096..][..4096]);
    };
    (0..40).for_each(read);
    // One in twenty requests never gets an answer.
    let reads = Arc::new(AtomicU64::new(0));
    faulty.set(move |kind, _| {
        let number = reads.fetch_add(u64::from(kind == "get"), Ordering::Relaxed);
        (kind == "get" && number % 20 == 19).then_some(Fault::Hangs)
    });
    (0..100).for_each(read);
    let stats = device.stats().requests;
    assert!(stats.hedges > 0, "{stats:?}");
}

#[test]
fn reads_without_an_answer_time_out() {
    let Shop { faulty, .. } = shop(500);
    let options = RequestOptions { timeout: Duration::from_millis(5), attempts_max: 3, ..requests(3) };
    let store: Arc<dyn object_store::ObjectStore> = faulty.clone();
    let repository = Repository::open(store, "bucket/shop", "shop", options).unwrap();
    faulty.set(|kind, path| (kind == "get" && path.contains("versions")).then_some(Fault::Hangs));
    let error = repository.open_version(None, &ReadOptions::default());
    assert!(matches!(error, Err(Error::TimedOut { attempts: 3, .. })), "{error:?}");
}

#[test]
fn processes_share_the_cache_on_disk() {
    let Shop { repository, store, data, .. } = shop(20_000);
    let directory = tempfile::tempdir().unwrap();
    let disk = DiskCacheOptions { directory: directory.path().join("cache"), bytes_max: 64 << 20 };
    let options = ReadOptions { memory_bytes: 0, disk: Some(disk.clone()) };
    let first = repository.open_version(None, &options).unwrap();
    assert_eq!(rows(&reader(&first).unwrap()), rows(&store));
    drop(first);
    let (expected, mut attempts) = (rows(&store), 0..100);
    loop {
        let device = repository.open_version(None, &options).unwrap();
        check_reads(&device, &data, 1, 50);
        assert_eq!(rows(&reader(&device).unwrap()), expected);
        let stats = device.stats();
        assert!(stats.disk_hits > 0, "{stats:?}");
        // The writes of earlier ones may still be under way.
        if stats.fetched == 0 {
            break;
        }
        assert!(attempts.next().is_some(), "{stats:?}");
    }
    // Damage of files is found, and repaired from the store.
    for folder in std::fs::read_dir(&disk.directory).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[77] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let fourth = repository.open_version(None, &options).unwrap();
    assert_eq!(rows(&reader(&fourth).unwrap()), expected);
    assert!(fourth.stats().fetched > 0);
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let disk = Some(DiskCacheOptions { directory: file, bytes_max: 1 });
    let error = repository.open_version(None, &ReadOptions { memory_bytes: 0, disk });
    assert!(matches!(error, Err(Error::CacheDirectory { .. })), "{error:?}");
}

#[test]
fn opening_a_version_cleans_its_cache_up_in_the_background() {
    let Shop { repository, .. } = shop(500);
    let directory = tempfile::tempdir().unwrap();
    let left = directory.path().join("new").join("0123456789abcdef");
    std::fs::create_dir(directory.path().join("new")).unwrap();
    std::fs::File::create(&left).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let disk = Some(DiskCacheOptions { directory: directory.path().into(), bytes_max: 64 << 20 });
    let _device = repository.open_version(None, &ReadOptions { memory_bytes: 0, disk }).unwrap();
    while left.exists() {
        std::thread::yield_now();
    }
}

#[test]
fn damaged_manifests_are_refused() {
    let Shop { faulty, repository, .. } = shop(500);
    let path = faulty.paths("versions").pop().unwrap();
    let body = futures::executor::block_on(faulty.body(&path)).to_vec();
    let mut random = Random::new(4);
    for _ in 0..50 {
        let mut damaged = body.clone();
        match random.below(2) {
            0 => damaged.truncate(random.index(body.len())),
            _ => damaged[random.index(body.len())] ^= 1 << random.below(8),
        }
        futures::executor::block_on(faulty.replace(&path, damaged));
        let error = repository.open_version(None, &ReadOptions::default());
        assert!(matches!(error, Err(Error::Damaged { .. })), "{error:?}");
    }
    // A manifest under the name of another version.
    futures::executor::block_on(faulty.replace(&path.replace("02", "03"), body));
    let error = repository.open_version(None, &ReadOptions::default());
    assert!(matches!(error, Err(Error::Malformed { .. })), "{error:?}");
}
