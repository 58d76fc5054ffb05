//! Golden files: databases of every version of the file format, sound and damaged, in `tests/golden/v<version>`. The
//! files of a released version are never generated again; every later program must read them.
//!
//! `<name>.image` is a database (see [`image`]). `sound.rows` has the expected rows of all trees, the same for each
//! image. `<name>.damaged` has three parts: the name of the image, the expected error of opening the database or
//! reading a tree, and the damage. `cargo run -p keyaki-store --example golden -- DIRECTORY` generates the files.

#[path = "hostile/image.rs"]
#[allow(dead_code, reason = "other tests use the rest of the module")]
mod image;
#[path = "hostile/sample.rs"]
#[allow(dead_code, reason = "other tests use the rest of the module")]
mod sample;

use std::fs;
use std::path::{Path, PathBuf};

use image::Image;
use keyaki_store::{Direction, Error};

/// The rows of all trees of a database in the form of `sound.rows`, or the first error.
fn read_all(image: &Image) -> Result<String, Error> {
    let device = image.device();
    let store = sample::open(device.device())?;
    let mut all = String::new();
    for tree in sample::TREES {
        match sample::read(&store, tree, Direction::Ascending) {
            Err(Error::TreeNotFound(_)) => {}
            Err(error) => return Err(error),
            Ok(lines) => {
                let down = sample::read(&store, tree, Direction::Descending)?;
                assert!(lines.iter().eq(down.iter().rev()), "tree {tree}: the descending scan differs");
                all += &format!("tree {tree}\n");
                lines.iter().for_each(|line| all += &format!("{line}\n"));
            }
        }
    }
    Ok(all)
}

/// The golden files of all versions with this extension, sorted.
fn golden_files(end: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let versions = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let files = versions.flat_map(|version| fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path()));
    let mut found: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|own| own == end)).collect();
    found.sort();
    found
}

fn read_image(path: &Path) -> Image {
    Image::unpack(&fs::read(path).unwrap())
}

#[test]
fn sound_golden_files_are_readable() {
    let images = golden_files("image");
    assert!(images.len() >= 2, "only {} golden files", images.len());
    for path in images {
        let found = read_all(&read_image(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let expected = fs::read_to_string(path.with_file_name("sound.rows")).unwrap();
        let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
        assert!(found == expected, "{}: {differs:?}", path.display());
    }
}

#[test]
fn damaged_golden_files_give_their_errors() {
    let files = golden_files("damaged");
    assert!(files.len() >= 10, "only {} damaged golden files", files.len());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.splitn(3, '\n');
        let (base, expected, damage) = (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
        let image = read_image(&path.with_file_name(base)).with_damage(damage);
        match read_all(&image) {
            Err(found) => assert_eq!(found.to_string(), expected, "{}", path.display()),
            Ok(_) => panic!("{}: the damage was not detected", path.display()),
        }
    }
}

/// A sound golden file is recovered, changed, closed, and opened again.
#[test]
fn sound_golden_files_are_writable() {
    for path in golden_files("image") {
        let device = read_image(&path).device();
        let rows = |store: &keyaki_store::Store| sample::read(store, sample::MAP, Direction::Ascending).unwrap().len();
        let before = {
            let store = sample::open(device.device()).unwrap();
            let map = keyaki_store::key_value::KeyValue::open(&store, sample::MAP).unwrap();
            let before = rows(&store);
            for i in 0..300_u32 {
                map.insert(format!("new {i}").as_bytes(), &i.to_le_bytes()).unwrap();
            }
            store.checkpoint().unwrap();
            before
        };
        assert_eq!(rows(&sample::open(device.device()).unwrap()), before + 300, "{}", path.display());
    }
}
