//! The tree of small files: the same in every run, computed from the number of files.
//!
//! Directories form a tree in which each inner directory has [`FAN_OUT`] subdirectories. A directory has 1 to 31 files,
//! 16 on average, as in the source of an operating system. Names are random, so that the order of creation is not the
//! order of paths. Sizes are distributed log-uniformly between [`FILE_BYTES_MIN`] and a maximum. Contents are random
//! bytes, which do not compress. One of [`FILES_PER_MATCH`] files contains [`NEEDLE`].

use clap::ValueEnum;
use keyaki_primitives::Random;

use crate::Result;

/// The string to search for.
pub const NEEDLE: &[u8] = b"cpu_to_be64";
const FILES_PER_MATCH: u64 = 1_000;
pub const FILE_BYTES_MIN: u64 = 200;
const FAN_OUT: usize = 12;
const DIRECTORY_FILES_MAX: u64 = 31;
/// The directory whose subtree is searched and deleted: one of the twelve of the root. It has 2 to 12 % of all files.
const SUBTREE: usize = 5;

/// Seeds of names, sizes and contents, and of the random order.
const NAMES: u64 = 1 << 60;
const SIZES: u64 = 2 << 60;
const CONTENTS: u64 = 3 << 60;
const SHUFFLE: u64 = 4 << 60;

const SYLLABLES: [&str; 32] = [
    "ac", "ba", "be", "bo", "ca", "co", "da", "de", "di", "en", "fa", "fi", "ga", "ha", "in", "ka", "ki", "la", "li",
    "ma", "me", "mo", "na", "ne", "or", "pa", "ra", "re", "sa", "ta", "ti", "us",
];
const EXTENSIONS: [&str; 4] = ["c", "h", "rs", "txt"];

/// The order in which files are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Depth first, the files of a directory together, as a program unpacks an archive.
    Archive,
    /// All directories, then the files of the whole tree in random order.
    Random,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

pub struct Tree {
    directories: Vec<Directory>,
    files: u64,
    file_bytes_max: u64,
}

struct Directory {
    /// Without a separator at the end. The root has an empty path.
    path: String,
    /// Number of its first file.
    first: u64,
}

/// Something to create.
pub enum Entry<'a> {
    Directory(&'a str),
    File(&'a File),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub number: u64,
    pub bytes: u64,
}

/// What `find` returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listing {
    pub files: u64,
    pub directories: u64,
    pub path_bytes: u64,
}

/// What `grep` reads and finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    pub files: u64,
    pub bytes: u64,
    pub matches: u64,
    /// Sum of the first eight bytes of all files.
    pub checksum: u64,
}

impl Tree {
    /// A tree of `files` files, each with at most `file_bytes_max` bytes.
    pub fn new(files: u64, file_bytes_max: u64) -> Tree {
        let (mut directories, mut first) = (Vec::<Directory>::new(), 0);
        while first < files {
            let at = directories.len();
            let mut random = Random::new(NAMES | (at as u64) << 32);
            let path = match at.checked_sub(1) {
                None => String::new(),
                Some(before) => {
                    let parent = &directories[before / FAN_OUT].path;
                    let separator = if parent.is_empty() { "" } else { "/" };
                    format!("{parent}{separator}{}{}", word(&mut random), before % FAN_OUT)
                }
            };
            directories.push(Directory { path, first });
            first += 1 + random.below(DIRECTORY_FILES_MAX);
        }
        Tree { directories, files, file_bytes_max }
    }

    /// Path of the subtree to search and to delete.
    pub fn subtree(&self) -> &str {
        &self.directories[SUBTREE.min(self.directories.len() - 1)].path
    }

    /// Bytes of the contents of all files.
    pub fn bytes(&self) -> u64 {
        (0..self.files).map(|number| self.file_bytes(number)).sum()
    }

    /// Passes directories and files to `visit`; directories before their contents, without the root.
    pub fn visit(&self, order: Order, visit: &mut dyn FnMut(Entry<'_>) -> Result) -> Result {
        match order {
            Order::Archive => {
                let mut stack = vec![0];
                while let Some(at) = stack.pop() {
                    if at > 0 {
                        visit(Entry::Directory(&self.directories[at].path))?;
                    }
                    for number in self.files_of(at) {
                        visit(Entry::File(&self.file(at, number)))?;
                    }
                    let children = at * FAN_OUT + 1..at * FAN_OUT + 1 + FAN_OUT;
                    stack.extend(children.rev().filter(|&child| child < self.directories.len()));
                }
            }
            Order::Random => {
                for directory in &self.directories[1..] {
                    visit(Entry::Directory(&directory.path))?;
                }
                let mut numbers: Vec<u64> = (0..self.files).collect();
                let mut random = Random::new(SHUFFLE);
                for at in (1..numbers.len()).rev() {
                    numbers.swap(at, random.index(at + 1));
                }
                for number in numbers {
                    let at = self.directories.partition_point(|directory| directory.first <= number) - 1;
                    visit(Entry::File(&self.file(at, number)))?;
                }
            }
        }
        Ok(())
    }

    /// What `find` and `grep` must return below a directory.
    pub fn expected(&self, directory: &str) -> (Listing, Contents) {
        let (mut listing, mut contents) = (Listing::default(), Contents::default());
        let is_below =
            |path: &str| directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        for (at, Directory { path, .. }) in self.directories.iter().enumerate() {
            if at > 0 && is_below(path) {
                listing.add(path.as_bytes(), true);
            }
            if is_below(path) || path == directory {
                for number in self.files_of(at) {
                    let file = self.file(at, number);
                    listing.add(file.path.as_bytes(), false);
                    contents.files += 1;
                    contents.bytes += file.bytes;
                    contents.matches += u64::from(has_match(number));
                    contents.checksum = contents.checksum.wrapping_add(Random::new(CONTENTS | number).next_u64());
                }
            }
        }
        (listing, contents)
    }

    /// Numbers of the files of a directory.
    fn files_of(&self, at: usize) -> std::ops::Range<u64> {
        let end = self.directories.get(at + 1).map_or(self.files, |next| next.first);
        self.directories[at].first..end
    }

    fn file(&self, at: usize, number: u64) -> File {
        let Directory { path, first } = &self.directories[at];
        let mut random = Random::new(NAMES | number);
        let name = word(&mut random);
        let extension = random.pick(&EXTENSIONS);
        let separator = if path.is_empty() { "" } else { "/" };
        let path = format!("{path}{separator}{name}_{}.{extension}", number - first);
        File { path, number, bytes: self.file_bytes(number) }
    }

    fn file_bytes(&self, number: u64) -> u64 {
        let share = Random::new(SIZES | number).below(1 << 32) as f64 / 2f64.powi(32);
        let min = FILE_BYTES_MIN as f64;
        (min * (self.file_bytes_max as f64 / min).powf(share)).round() as u64
    }
}

impl File {
    /// Replaces `contents` by the contents of the file.
    pub fn contents(&self, contents: &mut Vec<u8>) {
        contents.clear();
        contents.resize(self.bytes as usize, 0);
        let mut random = Random::new(CONTENTS | self.number);
        for chunk in contents.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
        if has_match(self.number) {
            let at = contents.len() / 2;
            contents[at..at + NEEDLE.len()].copy_from_slice(NEEDLE);
        }
    }
}

impl Listing {
    pub fn add(&mut self, path: &[u8], is_directory: bool) {
        *(if is_directory { &mut self.directories } else { &mut self.files }) += 1;
        self.path_bytes += path.len() as u64;
    }
}

impl Contents {
    pub fn add(&mut self, contents: &[u8], needle: &memchr::memmem::Finder<'_>) {
        self.files += 1;
        self.bytes += contents.len() as u64;
        self.matches += u64::from(needle.find(contents).is_some());
        let head = contents.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
        self.checksum = self.checksum.wrapping_add(head);
    }
}

fn has_match(number: u64) -> bool {
    number % FILES_PER_MATCH == FILES_PER_MATCH / 2
}

/// Two to four syllables.
fn word(random: &mut Random) -> String {
    (0..2 + random.below(3)).map(|_| *random.pick(&SYLLABLES)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn paths(tree: &Tree, order: Order) -> Vec<String> {
        let mut paths = Vec::new();
        tree.visit(order, &mut |entry| {
            paths.push(match entry {
                Entry::Directory(path) => path.to_string(),
                Entry::File(file) => file.path.clone(),
            });
            Ok(())
        })
        .unwrap();
        paths
    }

    #[test]
    fn orders_contain_the_same_distinct_paths_after_their_directories() {
        let tree = Tree::new(10_000, 4096);
        let (archive, random) = (paths(&tree, Order::Archive), paths(&tree, Order::Random));
        assert_ne!(archive, random);
        assert!(archive.len() > 10_300, "{} directories", archive.len() - 10_000);
        for paths in [&archive, &random] {
            let mut seen = HashSet::from([""]);
            for path in paths {
                assert!(seen.contains(path.rsplit_once('/').map_or("", |(parent, _)| parent)), "{path}");
                assert!(seen.insert(path), "{path}");
            }
        }
        let sorted = |mut paths: Vec<String>| {
            paths.sort_unstable();
            paths
        };
        assert_ne!(sorted(archive.clone()), archive);
        assert_eq!(sorted(archive), sorted(random));
    }

    #[test]
    fn sizes_and_matches_are_as_specified() {
        let tree = Tree::new(20_000, 4096);
        assert!((0..20_000).all(|number| (200..=4096).contains(&tree.file_bytes(number))));
        let mean = tree.bytes() / 20_000;
        assert!((1_250..1_330).contains(&mean), "{mean}");
        assert_eq!(Tree::new(100, 200).bytes(), 20_000);

        let (needle, mut found) = (memchr::memmem::Finder::new(NEEDLE), Contents::default());
        let mut bytes = Vec::new();
        tree.visit(Order::Archive, &mut |entry| {
            if let Entry::File(file) = entry {
                file.contents(&mut bytes);
                found.add(&bytes, &needle);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(found, tree.expected("").1);
        assert_eq!(found.matches, 20);
    }

    #[test]
    fn a_subtree_has_a_part_of_the_files() {
        let tree = Tree::new(100_000, 4096);
        let (listing, contents) = tree.expected(tree.subtree());
        assert!((2_000..12_000).contains(&listing.files), "{listing:?}");
        assert_eq!(contents.files, listing.files);
        assert_eq!(tree.expected("").0.files, 100_000);
    }
}
