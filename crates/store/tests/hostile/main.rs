//! Truncated, overwritten, foreign and maliciously crafted files: opening and reading them gives the rows written or a
//! typed error that names the damage, and never a panic. A seed determines all random choices and is printed on
//! failure; `KEYAKI_SEEDS` sets the number of seeds.

mod fields;
#[allow(dead_code, reason = "golden files need more of it")]
mod image;
#[allow(dead_code, reason = "golden files need more of it")]
mod sample;
mod targets;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use keyaki_device::simulated::{FaultKind, Simulated};
use keyaki_device::{BLOCK, Operation};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Error, Result, Store, TreeId};

use fields::Field;
use image::Image;
use sample::{Cell, Samples, TREES, lines, mix, read};

static SAMPLES: LazyLock<Samples> = LazyLock::new(sample::samples);

/// The rows of each tree, or the error of reading it.
type Contents = BTreeMap<TreeId, Result<Vec<String>>>;

fn contents(image: &Image) -> Result<Contents> {
    let device = image.device();
    let store = sample::open(device.device())?;
    let mut contents = Contents::new();
    for tree in TREES {
        let rows = read(&store, tree, Direction::Ascending).and_then(|up| {
            let mut down = read(&store, tree, Direction::Descending)?;
            down.reverse();
            // Rows of a damaged page may be out of order; the comparison with the expected rows then fails.
            Ok(if up == down { up } else { [up, down].concat() })
        });
        contents.insert(tree, rows);
    }
    Ok(contents)
}

fn expected() -> BTreeMap<TreeId, Vec<String>> {
    SAMPLES.model.iter().map(|(&tree, rows)| (tree, lines(rows))).collect()
}

/// True if damaged files may give this error.
fn is_clear(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::FormatVersion { .. } => true,
        Error::Device(error) => matches!(error.operation, Operation::Read | Operation::Open),
        // A damaged page length that is valid in itself but contradicts the options.
        Error::InvalidArgument { argument: "leaf_bytes", detail } => detail.contains("\"/db/data\" has pages of"),
        _ => false,
    }
}

/// Checks that a damaged image gives the rows written or allowed errors. Returns the readable trees and the errors.
fn check(image: &Image, what: &str) -> (Vec<TreeId>, Vec<Error>) {
    let contents = match contents(image) {
        Ok(contents) => contents,
        Err(error) => {
            assert!(is_clear(&error), "{what}: {error}");
            return (Vec::new(), vec![error]);
        }
    };
    let expected = expected();
    let (mut trees, mut errors) = (Vec::new(), Vec::new());
    for (tree, rows) in contents {
        match (rows, expected.get(&tree)) {
            (Ok(rows), Some(expected)) => {
                assert!(rows == *expected, "{what}: tree {tree} has other rows without an error");
                trees.push(tree);
            }
            (Err(Error::TreeNotFound(_)), None) => {}
            (Err(error), Some(_)) if is_clear(&error) => errors.push(error),
            (Ok(_), None) => panic!("{what}: the dropped tree {tree} exists"),
            (Err(error), _) => panic!("{what}: tree {tree}: {error}"),
        }
    }
    (trees, errors)
}

/// The fuzz targets accept all files of `tests/fuzz` (the fuzzer's seeds and recorded findings) without a panic.
#[test]
fn fuzz_targets_accept_their_seeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    for (name, target) in targets::TARGETS {
        let mut files = 0;
        for entry in std::fs::read_dir(root.join(name)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
            files += 1;
        }
        target(&[]);
        assert!(files > 0, "no seeds for {name}");
    }
}

fn with_seeds(standard: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let seeds = std::env::var("KEYAKI_SEEDS").map_or(standard, |text| text.parse().unwrap());
    for seed in 0..seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("failing seed: {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn the_sample_is_complete_and_readable() {
    for image in [&SAMPLES.crashed, &SAMPLES.closed] {
        let (trees, errors) = check(image, "undamaged");
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(trees.len(), SAMPLES.model.len());
        assert_eq!(Image::unpack(&image.pack()), *image);
        let mut sealed = image.clone();
        fields::reseal(&mut sealed);
        assert!(sealed == *image, "the checksums differ from those of docs/format.md");
    }
    let metadata = fields::metadata(&SAMPLES.crashed.clone().data()[..]);
    let fields::Metadata { inner_nodes, leaves, runs, parts, .. } = metadata;
    println!("{inner_nodes} inner nodes, {leaves} leaves, {runs} runs of {parts} parts");
    assert!(inner_nodes > 5 && leaves > 5 && runs > 2 && parts > runs);
    assert!(!fields::log_fields("", log(&SAMPLES.crashed).1).is_empty());
}

fn log(image: &Image) -> (&str, &[u8]) {
    let (name, bytes) = image.files.iter().rfind(|(name, _)| name.starts_with("log-")).unwrap();
    (name, bytes)
}

#[test]
fn truncated_files() {
    for image in [&SAMPLES.crashed, &SAMPLES.closed] {
        for (name, bytes) in &image.files {
            let blocks = (0..bytes.len()).step_by(BLOCK);
            let lengths = blocks.flat_map(|at| [at, at + 1, at + 71, at + 2048, at + BLOCK - 1]);
            for len in lengths.filter(|&len| len < bytes.len()) {
                let mut cut = image.clone();
                cut.files.get_mut(name).unwrap().truncate(len);
                let (trees, errors) = check_cut(&cut, name, &format!("{name} cut to {len} bytes"));
                assert!(name != "data" || len > 65_536 || (trees.is_empty() && !errors.is_empty()), "{len}");
            }
        }
    }
}

/// Like [`check`], but allows missing commits at the end if the log of a crashed database is cut.
fn check_cut(image: &Image, name: &str, what: &str) -> (Vec<TreeId>, Vec<Error>) {
    if name == "data" {
        return check(image, what);
    }
    match contents(image) {
        Err(error) => {
            assert!(is_clear(&error), "{what}: {error}");
            (Vec::new(), vec![error])
        }
        Ok(contents) => (contents.into_keys().collect(), Vec::new()),
    }
}

#[test]
fn foreign_files() {
    let text = b"Ceci n'est pas une base.\n".repeat(9000);
    let mut sqlite = b"SQLite format 3\0".to_vec();
    sqlite.resize(200_000, 7);
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("one byte", vec![b'K']),
        ("text", text),
        ("SQLite", sqlite),
        ("zeros", vec![0; 200_000]),
        ("a log", log(&SAMPLES.crashed).1.to_vec()),
    ] {
        for alone in [true, false] {
            let mut image = if alone { Image::default() } else { SAMPLES.crashed.clone() };
            *image.data() = bytes.clone();
            match contents(&image) {
                Err(Error::NotADatabase { path, .. }) => assert!(path.ends_with("data"), "{what}"),
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    let mut image = SAMPLES.crashed.clone();
    for at in fields::SLOTS {
        image.data()[at + 8] = 2;
    }
    fields::reseal(&mut image);
    assert!(matches!(contents(&image), Err(Error::FormatVersion { found: 2, .. })));
    let mut image = SAMPLES.crashed.clone();
    let name = log(&image).0.to_string();
    image.files.get_mut(&name).unwrap()[8] = 2;
    fields::reseal(&mut image);
    assert!(matches!(contents(&image), Err(Error::FormatVersion { found: 2, .. })));
}

#[test]
fn missing_files() {
    let mut image = SAMPLES.crashed.clone();
    image.files.retain(|name, _| name == "data");
    assert!(matches!(contents(&image), Err(Error::Corrupt { what: "log", .. })));

    // Log segments without a data file are an error, not a new database.
    let mut image = SAMPLES.crashed.clone();
    image.files.remove("data");
    let device = image.device();
    let open = || Store::open(device.device(), Path::new(image::DIR), sample::options());
    assert!(matches!(open(), Err(Error::Corrupt { what: "database", .. })));
    assert_eq!(Image::take(&device), image);
}

/// Overwrites a block with zeros, ones, random bytes, or a block of `others`, the same file. Returns a description.
fn overwrite(block: &mut [u8], random: &mut Random, others: &[u8]) -> String {
    match random.index(5) {
        0 => block.fill(0),
        1 => block.fill(0xff),
        2 => block.iter_mut().for_each(|byte| *byte = random.next_u64() as u8),
        _ => {
            let from = random.index(others.len() / BLOCK) * BLOCK;
            block.copy_from_slice(&others[from..from + BLOCK]);
            return format!("copy of the block at {from}");
        }
    }
    format!("{:02x} {:02x} …", block[0], block[1])
}

/// Offsets of the blocks of a file with a nonzero byte.
fn used_blocks(bytes: &[u8]) -> Vec<usize> {
    let used = |at: &usize| bytes[*at..].iter().take(BLOCK).any(|&byte| byte != 0);
    (0..bytes.len() / BLOCK).map(|block| block * BLOCK).filter(used).collect()
}

#[test]
fn overwritten_blocks() {
    let detected = std::cell::Cell::new(0);
    let images = [&SAMPLES.crashed, &SAMPLES.closed];
    let detected = std::panic::AssertUnwindSafe(&detected);
    with_seeds(150, |seed| {
        let detected = &detected;
        let (mut random, image) = (Random::new(seed), images[seed as usize % 2]);
        let sound = &image.files["data"];
        let at = *used_blocks(sound).get(seed as usize / 2).unwrap_or(&0);
        let mut damaged = image.clone();
        let how = overwrite(&mut damaged.data()[at..at + BLOCK], &mut random, sound);
        let (trees, errors) = check(&damaged, &format!("block at {at} of data: {how}"));
        let changed = damaged != *image;
        let in_superblock = at < 65_536;
        assert!(!in_superblock || trees.len() == SAMPLES.model.len(), "one valid slot of the superblock is enough");
        detected.set(detected.get() + usize::from(changed && !errors.is_empty()));
    });
    assert!(detected.get() > 30, "only {} runs detected the damage", detected.get());
}

/// All damage to the log is detected, except in the newest group of a database that was not closed: no later group
/// proves that it was durable, so it may be a torn write.
#[test]
fn damaged_logs() {
    let (name, sound) = log(&SAMPLES.crashed);
    let blocks = used_blocks(sound);
    let newest = *blocks.last().unwrap();
    with_seeds(120, |seed| {
        let mut random = Random::new(seed);
        let at = blocks[seed as usize % (blocks.len() - 1)];
        let mut damaged = SAMPLES.crashed.clone();
        let bytes = damaged.files.get_mut(name).unwrap();
        let how = if random.index(2) == 0 {
            overwrite(&mut bytes[at..at + BLOCK], &mut random, sound)
        } else {
            let bit = random.index(72 * 8);
            bytes[at + bit / 8] ^= 1 << (bit % 8);
            format!("bit {bit}")
        };
        check(&damaged, &format!("block at {at} of {name}: {how}"));
    });
    let mut torn = SAMPLES.crashed.clone();
    torn.files.get_mut(name).unwrap()[newest] ^= 1;
    assert!(contents(&torn).is_ok());
    let mut renamed = SAMPLES.crashed.clone();
    let bytes = renamed.files.remove(name).unwrap();
    let number = u64::from_str_radix(&name[4..], 16).unwrap();
    renamed.files.insert(format!("log-{:016x}", number + 1), bytes.clone());
    assert!(matches!(contents(&renamed), Err(Error::Corrupt { what: "log", .. })));
    renamed.files.insert(name.into(), bytes.clone());
    // A copy of a segment under the next number is not its continuation.
    check(&renamed, "a segment twice");
    let mut other = SAMPLES.crashed.clone();
    other.files.insert(name.into(), sample::samples().crashed.files[name].clone());
    // The log of another database with the same steps has another log id.
    check(&other, "another database's log");
}

#[test]
fn flipped_bits() {
    with_seeds(200, |seed| {
        let (mut random, image) = (Random::new(seed), [&SAMPLES.crashed, &SAMPLES.closed][seed as usize % 2]);
        let mut damaged = image.clone();
        let blocks = used_blocks(&image.files["data"]);
        let mut flipped = Vec::new();
        for _ in 0..1 + random.index(3) {
            let block = blocks[random.index(blocks.len())];
            let range = if random.index(2) == 0 { 100 } else { BLOCK };
            let at = block + random.index(range);
            damaged.data()[at] ^= 1 << random.index(8);
            flipped.push(at);
        }
        check(&damaged, &format!("bits flipped at {flipped:?} of data"));
    });
}

#[test]
fn damage_to_a_tree_spares_the_others() {
    let metadata = fields::metadata(&SAMPLES.closed.files["data"]);
    for extent in &metadata.extents {
        let mut damaged = SAMPLES.closed.clone();
        damaged.data()[extent.offset..extent.offset + extent.len].fill(0x55);
        let (trees, errors) = check(&damaged, &format!("{extent:?}"));
        let others: Vec<TreeId> =
            SAMPLES.model.keys().copied().filter(|&tree| tree != TreeId::new(extent.tree)).collect();
        assert_eq!(trees, others);
        let place = format!("data: corrupt page at offset {}", extent.offset + extent.len - extent.index_len);
        assert!(errors.iter().all(|error| error.to_string().contains(&place)), "{errors:?}");
    }
}

/// The space of the superblock belongs to no extent, not even to one that covers all of it.
#[test]
fn extents_in_the_superblock_are_corrupt() {
    let closed = &SAMPLES.closed.files["data"];
    for extent in fields::metadata(closed).extents {
        let mut damaged = SAMPLES.closed.clone();
        let data = damaged.data();
        fields::set_number(data, extent.checksum_at - 20, 8, 0);
        fields::set_number(data, extent.checksum_at - 12, 8, 64 << 10);
        fields::reseal(&mut damaged);
        let (trees, errors) = check(&damaged, &format!("{extent:?} in the superblock"));
        assert!(trees.is_empty() && errors.iter().any(|error| error.to_string().contains("node table")), "{errors:?}");
    }
}

/// A valid but stale page, as a lost write leaves it.
#[test]
fn stale_pages() {
    let metadata = fields::metadata(&SAMPLES.closed.files["data"]);
    for extent in &metadata.extents {
        let pages = fields::pages(&SAMPLES.closed.files["data"], extent);
        for &(at, len) in &pages {
            let mut stale = SAMPLES.closed.clone();
            let page = &mut stale.data()[at..at + len];
            // The last byte is unused, so that the page differs in its checksum only.
            page[len - 1] ^= 0x80;
            let checksum = crc32c::crc32c(&page[8..]);
            page[4..8].copy_from_slice(&checksum.to_le_bytes());
            let (trees, _) = check(&stale, &format!("stale page at {at}"));
            assert!(!trees.contains(&TreeId::new(extent.tree)), "a stale page at {at} was read");
        }
    }
}

/// Runs steps of inserts and checkpoints. Returns the rows after each step that was started, and the result.
fn steps(device: &Simulated) -> (Vec<Vec<String>>, Result<()>) {
    let mut states = vec![Vec::new()];
    let mut model = BTreeMap::new();
    let mut run = || -> Result<()> {
        let store = Store::open(device.device(), Path::new(image::DIR), sample::options())?;
        let map = KeyValue::open(&store, sample::MAP)?;
        for step in 0..10 {
            let mut batch = KeyValueBatch::default();
            for i in 0..40 {
                let (key, value) = (mix(step * 40 + i) % 200, mix(step + i * 50) % 1_000_000);
                let (key, value) = (format!("{key:03}").into_bytes(), format!("{value}").into_bytes());
                batch.insert(&map, &key, &value);
                model.insert(vec![Cell::Bytes(key)], vec![Cell::Bytes(value)]);
            }
            states.push(lines(&model));
            map.commit(batch)?;
            if step % 2 == 1 {
                store.checkpoint()?;
            }
        }
        Ok(())
    };
    let done = run();
    (states, done)
}

/// Writes that the device acknowledges but loses or misdirects: a read after closing returns the rows written or an
/// error.
#[test]
fn lost_and_misdirected_writes() {
    let sound = Image::default().device();
    let (_, done) = steps(&sound);
    done.unwrap();
    let writes = sound.writes();
    let detected = std::panic::AssertUnwindSafe(std::cell::Cell::new(0));
    with_seeds(3 * writes, |seed| {
        let detected = &detected;
        let device = Image::default().device();
        let blocks = [0, -3, 1 + (seed / 3 % 20) as i64][seed as usize % 3];
        let fault = if blocks == 0 { FaultKind::Lose } else { FaultKind::Misdirect { blocks } };
        device.fail_after(seed / 3 % writes, fault);
        let (states, done) = steps(&device);
        let what = format!("write {}: {fault:?}", seed / 3 % writes);
        if let Err(error) = &done {
            assert!(is_clear(error), "{what}: {error}");
        }
        device.clear_faults();
        // If the failure prevented the rename of the data file, the database does not exist; `open` creates an empty
        // one.
        let read = || {
            let store = sample::open(device.device())?;
            read(&store, sample::MAP, Direction::Ascending)
        };
        match read() {
            Ok(rows) => {
                let newest = if done.is_ok() { states.len() - 1 } else { states.len().saturating_sub(2) };
                assert!(states[newest..].contains(&rows), "{what}: {} rows without an error", rows.len());
            }
            Err(error) => {
                detected.set(detected.get() + 1);
                assert!(
                    is_clear(&error) || matches!(error, Error::TreeNotFound(_)) && done.is_err(),
                    "{what}: {error}"
                );
            }
        }
    });
    assert!(detected.get() as u64 > writes / 2, "only {} runs detected the damage", detected.get());
}

/// All fields of an image.
fn all_fields(image: &Image) -> Vec<Field> {
    let data = &image.files["data"];
    let metadata = fields::metadata(data);
    let mut all = fields::superblock_fields();
    for extent in &metadata.extents {
        for (at, _) in fields::pages(data, extent) {
            all.extend(fields::page_fields(data, at, extent.tree));
        }
    }
    all.extend(metadata.fields);
    for (name, bytes) in image.files.iter().filter(|(name, _)| name.starts_with("log-")) {
        all.extend(fields::log_fields(name, bytes));
    }
    all
}

fn other_value(old: u64, width: usize, random: &mut Random) -> u64 {
    match random.index(9) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << random.index(width * 8),
        5 => 1 << random.index(width * 8),
        6 => (old ^ 4096).wrapping_add(4096 * random.index(20) as u64),
        7 => random.next_u64() % 256,
        _ => random.next_u64(),
    }
}

/// Changes each field and recomputes the checksums. The result may be a valid database; otherwise reads give an allowed
/// error. Trees other than the field's own keep their rows, and no call panics or runs forever.
#[test]
fn hostile_fields() {
    let images = [&SAMPLES.crashed, &SAMPLES.closed];
    let fields = images.map(all_fields);
    let expected = expected();
    let count = fields[0].len().max(fields[1].len()) as u64;
    println!("{} and {} fields", fields[0].len(), fields[1].len());
    with_seeds(1500, |seed| {
        let mut random = Random::new(seed);
        let of = seed as usize % 2;
        // Covers each field once, in mixed order, if there are enough seeds.
        let field = &fields[of][(seed / 2 * 7919 % count) as usize % fields[of].len()];
        let mut hostile = images[of].clone();
        let bytes = hostile.files.get_mut(&field.file).unwrap();
        let Some(old) = fields::number(bytes, field.at, field.width) else { return };
        let value = other_value(old, field.width, &mut random);
        fields::set_number(bytes, field.at, field.width, value);
        fields::reseal(&mut hostile);
        let what = format!("{field:?}: {value} instead of {old}");
        let contents = match contents(&hostile) {
            Err(error) => return assert!(is_clear(&error), "{what}: {error}"),
            Ok(contents) => contents,
        };
        for (tree, rows) in contents {
            match rows {
                Err(Error::TreeNotFound(_) | Error::UnknownUpsert(_)) => {}
                // The result of an upsert function for a row whose column types were changed.
                Err(Error::InvalidRow { .. }) => {}
                Err(error) => assert!(is_clear(&error), "{what}: {tree}: {error}"),
                Ok(rows) if field.tree.is_some_and(|own| own != tree.get()) => {
                    assert!(rows == expected[&tree], "{what}: tree {tree} has other rows");
                }
                Ok(_) => {}
            }
        }
    });
}

/// Ids of memory trees in a file are damage, because memory trees are not stored.
#[test]
fn ids_of_memory_trees() {
    let mut found = [0; 3];
    for image in [&SAMPLES.crashed, &SAMPLES.closed] {
        for field in all_fields(image) {
            let Some(kind) = ["tree id", "next tree", "operation tree"].iter().position(|&name| name == field.name)
            else {
                continue;
            };
            let old = fields::number(&image.files[&field.file], field.at, field.width).unwrap();
            for value in [old | 1 << 31, (1 << 31) - u64::from(field.name != "next tree"), 1 << 31 | 1] {
                let mut hostile = image.clone();
                fields::set_number(hostile.files.get_mut(&field.file).unwrap(), field.at, field.width, value);
                fields::reseal(&mut hostile);
                match contents(&hostile) {
                    Err(error) => assert!(is_clear(&error), "{field:?}: {error}"),
                    Ok(_) => panic!("{field:?}: {value} instead of {old} gives no error"),
                }
                found[kind] += 1;
            }
        }
    }
    println!("{found:?} fields");
    assert!(found.iter().all(|&found| found >= 6), "{found:?}");
}
