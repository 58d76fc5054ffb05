//! Generates the golden files of the current version of the file format.
//!
//! ```sh
//! cargo run -p keyaki-store --example golden -- crates/store/tests/golden/v1 [crates/store/tests/fuzz]
//! ```
//! The files of a released version must not be generated again; see `docs/format.md`. With a second directory, the
//! example also generates fuzzing seeds.

#[path = "../tests/hostile/fields.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod fields;
#[path = "../tests/hostile/image.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod image;
#[path = "../tests/hostile/sample.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod sample;

use std::error::Error;
use std::path::Path;

use image::Image;
use keyaki_store::Direction;
use sample::{Samples, lines};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: golden DIRECTORY [SEEDS]")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let samples = sample::samples();
    let mut rows = String::new();
    for (tree, content) in &samples.model {
        rows += &format!("tree {tree}\n");
        lines(content).iter().for_each(|line| rows += &format!("{line}\n"));
    }
    for (name, image) in [("crashed", &samples.crashed), ("closed", &samples.closed)] {
        std::fs::write(directory.join(name).with_extension("image"), image.pack())?;
    }
    std::fs::write(directory.join("sound.rows"), &rows)?;
    for (name, base, image) in damaged(&samples) {
        let error = first_error(&image).ok_or_else(|| format!("{name} gives no error"))?;
        println!("{name}: {error}");
        let original = if base == "crashed" { &samples.crashed } else { &samples.closed };
        let text = format!("{base}.image\n{error}\n{}", original.damage(&image));
        std::fs::write(directory.join(name).with_extension("damaged"), text)?;
    }
    arguments.next().map_or(Ok(()), |seeds| make_seeds(Path::new(&seeds), &samples))
}

/// Writes a few small seeds for each fuzz target (`tests/hostile/targets.rs`).
fn make_seeds(directory: &Path, samples: &Samples) -> Result<()> {
    let put = |target: &str, name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(directory.join(target))?;
        std::fs::write(directory.join(target).join(name), bytes)
    };
    let trimmed = |bytes: &[u8]| bytes[..bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)].to_vec();
    for (name, image) in ["new", "crashed", "closed"].iter().zip(sample::small_samples()) {
        put("open_file", name, &image.pack())?;
        if let Some(log) = image.files.get("log-0000000000000000") {
            put("log", name, &trimmed(log))?;
        }
    }
    let data = &samples.closed.files["data"];
    let extents = fields::metadata(data).extents;
    for (choice, tree) in [sample::MAP, sample::TYPES, sample::LOADED].into_iter().enumerate() {
        let own: Vec<_> = extents.iter().filter(|extent| extent.tree == tree.get()).collect();
        for (name, extent) in [("leaf", own.first()), ("run", own.last())] {
            for (i, (at, len)) in
                extent.map(|extent| fields::pages(data, extent)).unwrap_or_default().iter().enumerate()
            {
                let page = [&[choice as u8][..], &trimmed(&data[*at..at + len])].concat();
                put("page", &format!("{tree}-{name}-{i}"), &page)?;
            }
        }
    }
    for (i, key) in sample::types_keys().iter().enumerate() {
        put("key", &i.to_string(), &[&[1], &key[..]].concat())?;
    }
    put("key", "map", &[0, b'a', 0, 0xff, b'b', 0, 0])?;
    put("key", "nulls", &[3, 0, 0, 0, 0, b'x', 0, 0, 0])?;
    Ok(())
}

fn first_error(image: &Image) -> Option<keyaki_store::Error> {
    let device = image.device();
    let store = match sample::open(device.device()) {
        Ok(store) => store,
        Err(error) => return Some(error),
    };
    let errors = sample::TREES.iter().filter_map(|&tree| sample::read(&store, tree, Direction::Ascending).err());
    errors.into_iter().find(|error| !matches!(error, keyaki_store::Error::TreeNotFound(_)))
}

/// One damaged image for each kind of error: its name, the sample it derives from, the image.
fn damaged(samples: &Samples) -> Vec<(&'static str, &'static str, Image)> {
    let extents = fields::metadata(&samples.closed.files["data"]).extents;
    // An extent of the last tree, so that all other trees are read before the damage.
    let extent = *extents.last().unwrap_or_else(|| panic!("the sample has no extents"));
    let index = extent.offset + extent.len - extent.index_len;
    let with = |base: &Image, change: &dyn Fn(&mut Vec<u8>)| {
        let mut image = base.clone();
        change(image.data());
        image
    };
    let closed = &samples.closed;
    let mut version = with(closed, &|data| fields::SLOTS.iter().for_each(|at| data[at + 8] = 99));
    fields::reseal(&mut version);
    // An extent with an offset that is one byte too high, with valid checksums.
    let mut hostile = closed.clone();
    let metadata = fields::metadata(hostile.data());
    if let Some(field) = metadata.fields.iter().find(|field| field.name == "extent offset") {
        fields::set_number(hostile.data(), field.at, field.width, extent.offset as u64 + 1);
    }
    fields::reseal(&mut hostile);
    let mut log = samples.crashed.clone();
    if let Some((_, bytes)) = log.files.iter_mut().rfind(|(name, _)| name.starts_with("log-")) {
        bytes[4096 + 100] ^= 1;
    }
    let mut no_log = samples.crashed.clone();
    no_log.files.retain(|name, _| name == "data");
    let of_closed = |name: &'static str, change: &dyn Fn(&mut Vec<u8>)| (name, "closed", with(closed, change));
    vec![
        of_closed("page", &|data| data[extent.offset + 500] ^= 1),
        of_closed("index", &|data| data[index..index + 4096].fill(0)),
        of_closed("superblock", &|data| fields::SLOTS.iter().for_each(|at| data[at + 20] ^= 1)),
        of_closed("foreign", &|data| fields::SLOTS.iter().for_each(|at| data[at + 1] ^= 1)),
        of_closed("metadata", &|data| damage_metadata(data)),
        of_closed("truncated", &|data| data.truncate(extent.offset + 4096)),
        ("version", "closed", version),
        ("hostile", "closed", hostile),
        ("log", "crashed", log),
        ("no-log", "crashed", no_log),
    ]
}

fn damage_metadata(data: &mut [u8]) {
    if let Some(field) = fields::metadata(data).fields.first() {
        data[field.at] ^= 1;
    }
}
