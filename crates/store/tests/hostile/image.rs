//! The files of a database in memory, which tests copy, damage and open, and their serialised form (golden files,
//! fuzzing seeds).
//!
//! ```text
//! repeated: name length: u8, name, file length: u32, block count: u16, blocks: number: u16, length: u16, bytes
//! ```
//! A block has 4096 bytes. Missing blocks, and the bytes of a block after `length`, are zero. Numbers are little
//! endian.
//!
//! Damage to an image is text: lines `set FILE OFFSET HEXADECIMAL`, `cut FILE LENGTH` and `remove FILE`.

use std::collections::BTreeMap;
use std::path::Path;

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{BLOCK, Buffer, Device, OpenMode};

pub const DIR: &str = "/db";
/// Maximum length of a file of an image.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Bytes of the files by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Image {
    /// Copies the database files of a device. Trailing zeros of a file are cut at the next multiple of 64 KiB.
    pub fn take(device: &dyn Device) -> Image {
        let mut files = BTreeMap::new();
        for name in device.list(Path::new(DIR)).unwrap() {
            if name == "data" || name.starts_with("log-") {
                let file = device.open(&Path::new(DIR).join(&name), OpenMode::Read).unwrap();
                let mut bytes = Buffer::zeroed(file.len().unwrap() as usize);
                file.read_at(0, &mut bytes).unwrap();
                let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                let kept = used.next_multiple_of(64 << 10).min(bytes.len());
                files.insert(name, bytes[..kept].to_vec());
            }
        }
        Image { files }
    }

    /// A simulated device with these files.
    pub fn device(&self) -> Simulated {
        let device = Simulated::new(SimulatedOptions::default());
        device.create_dir(Path::new(DIR)).unwrap();
        device.sync_dir(Path::new("/")).unwrap();
        for (name, bytes) in &self.files {
            device.insert(&Path::new(DIR).join(name), &bytes[..]).unwrap();
        }
        device
    }

    pub fn data(&mut self) -> &mut Vec<u8> {
        self.files.entry("data".into()).or_default()
    }

    /// The damage, as text, that turns this image into `damaged`.
    pub fn damage(&self, damaged: &Image) -> String {
        let mut text = String::new();
        for (name, old) in &self.files {
            let Some(new) = damaged.files.get(name) else {
                text += &format!("remove {name}\n");
                continue;
            };
            assert!(new.len() <= old.len(), "{name} has grown");
            if new.len() < old.len() {
                text += &format!("cut {name} {}\n", new.len());
            }
            let mut at = 0;
            while let Some(next) = (at..new.len()).find(|&at| new[at] != old[at]) {
                let len = (next..new.len()).take_while(|&at| new[at] != old[at]).count();
                let hexadecimal: String = new[next..next + len].iter().map(|byte| format!("{byte:02x}")).collect();
                text += &format!("set {name} {next} {hexadecimal}\n");
                at = next + len;
            }
        }
        text
    }

    /// The image with damage applied.
    ///
    /// # Panics
    /// If the text is not valid damage.
    pub fn with_damage(&self, text: &str) -> Image {
        let mut image = self.clone();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let file = image.files.get_mut(words[1]);
            match (words[0], file, &words[2..]) {
                ("remove", Some(_), []) => drop(image.files.remove(words[1])),
                ("cut", Some(file), [len]) => file.truncate(len.parse().unwrap()),
                ("set", Some(file), [at, hexadecimal]) => {
                    let at: usize = at.parse().unwrap();
                    for (i, digits) in hexadecimal.as_bytes().chunks(2).enumerate() {
                        file[at + i] = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
                    }
                }
                _ => panic!("{line}"),
            }
        }
        image
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, bytes) in &self.files {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            let used = |block: &[u8]| block.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            let blocks: Vec<_> = bytes.chunks(BLOCK).enumerate().filter(|(_, block)| used(block) > 0).collect();
            out.extend_from_slice(&(blocks.len() as u16).to_le_bytes());
            for (number, block) in blocks {
                out.extend_from_slice(&(number as u16).to_le_bytes());
                out.extend_from_slice(&(used(block) as u16).to_le_bytes());
                out.extend_from_slice(&block[..used(block)]);
            }
        }
        out
    }

    /// The image serialised in `bytes`, up to the first invalid part.
    pub fn unpack(mut bytes: &[u8]) -> Image {
        let mut image = Image::default();
        while image.unpack_file(&mut bytes).is_some() {}
        image
    }

    fn unpack_file(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let name_len = *bytes.split_off_first()?;
        let name = std::str::from_utf8(bytes.split_off(..usize::from(name_len))?).ok()?;
        let is_log = name.starts_with("log-") && !name.contains('/');
        if name != "data" && !is_log {
            return None;
        }
        let len = u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?) as usize;
        let mut file = vec![0; len.min(FILE_BYTES_MAX)];
        let number = |bytes: &mut &[u8]| Some(usize::from(u16::from_le_bytes(*bytes.split_off(..2)?.first_chunk()?)));
        for _ in 0..number(bytes)? {
            let at = number(bytes)? * BLOCK;
            let len = number(bytes)?;
            let block = bytes.split_off(..len)?;
            if let Some(place) = file.get_mut(at..at + len) {
                place.copy_from_slice(block);
            }
        }
        self.files.insert(name.to_string(), file);
        Some(())
    }
}
