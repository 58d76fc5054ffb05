//! The positions of all fields of a database, implemented from `docs/format.md` independently of the store's code.
//! Tests change one field at a time and recompute all checksums.

use keyaki_device::BLOCK;

use crate::image::Image;

/// A numeric field of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub file: String,
    pub at: usize,
    /// Width in bytes.
    pub width: usize,
    pub name: &'static str,
    /// The tree, if the field belongs to a single tree.
    pub tree: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
pub struct ExtentPlace {
    pub tree: u32,
    pub offset: usize,
    pub len: usize,
    pub index_len: usize,
    /// Offset in `data` of the checksum of the extent's index page.
    pub checksum_at: usize,
}

/// Contents of a node table.
#[derive(Debug, Default)]
pub struct Metadata {
    pub fields: Vec<Field>,
    pub extents: Vec<ExtentPlace>,
    /// Number of extents of each tree.
    pub trees: Vec<usize>,
    pub leaves: usize,
    pub inner_nodes: usize,
    pub runs: usize,
    pub parts: usize,
}

pub fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

pub fn set_number(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// Offsets of the slots of the superblock.
pub const SLOTS: [usize; 2] = [0, 32 << 10];

/// Offset and length of the node table of the slot with the higher generation.
fn meta_place(data: &[u8]) -> Option<(usize, usize)> {
    let slots = SLOTS.iter().filter(|&&at| data.get(at..at + 8) == Some(b"KEYAKI\0\0"));
    let newest = slots.max_by_key(|&&at| number(data, at + 16, 8))?;
    let (at, len) = (number(data, newest + 48, 8)? as usize, number(data, newest + 56, 8)? as usize);
    (at.checked_add(len)? <= data.len()).then_some((at, len))
}

pub fn superblock_fields() -> Vec<Field> {
    let layout = [
        ("superblock magic", 0, 8),
        ("superblock version", 8, 4),
        ("page length", 12, 4),
        ("generation", 16, 8),
        ("sequence", 24, 8),
        ("log segment", 32, 8),
        ("log offset", 40, 8),
        ("metadata offset", 48, 8),
        ("metadata length", 56, 8),
    ];
    let field =
        |&(name, at, width): &(&'static str, usize, usize)| Field { file: "data".into(), at, width, name, tree: None };
    layout.iter().map(field).collect()
}

struct Walk<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
    found: Metadata,
}

impl Walk<'_> {
    fn skip(&mut self, len: usize) -> Option<usize> {
        let at = self.at;
        self.at = at.checked_add(len).filter(|&end| end <= self.end)?;
        Some(at)
    }

    fn take(&mut self, name: &'static str, width: usize) -> Option<usize> {
        let at = self.skip(width)?;
        self.found.fields.push(Field { file: "data".into(), at, width, name, tree: None });
        number(self.data, at, width).map(|value| value as usize)
    }

    fn string(&mut self, name: &'static str) -> Option<()> {
        let len = self.take(name, 4)?;
        let at = self.skip(len)?;
        if len > 0 {
            let (at, file) = (at + len - 1, "data".into());
            self.found.fields.push(Field { file, at, width: 1, name: "last byte of a string", tree: None });
        }
        Some(())
    }

    fn tree(&mut self) -> Option<()> {
        let tree = self.take("tree id", 4)? as u32;
        self.take("key columns", 2)?;
        for _ in 0..self.take("columns", 2)? {
            self.string("name length")?;
            self.take("column type", 1)?;
            self.take("precision", 1)?;
            self.take("scale", 1)?;
            self.take("nullable", 1)?;
        }
        let extents = self.take("extents", 4)?;
        self.found.trees.push(extents);
        for _ in 0..extents {
            let (offset, len) = (self.take("extent offset", 8)?, self.take("extent length", 8)?);
            let index_len = self.take("index length", 4)?;
            let checksum_at = self.skip(4)?;
            self.found.extents.push(ExtentPlace { tree, offset, len, index_len, checksum_at });
            self.take("pages of an extent", 4)?;
            self.take("rows of an extent", 8)?;
            self.string("first key length")?;
            self.string("last key length")?;
        }
        self.node(0)
    }

    fn node(&mut self, depth: usize) -> Option<()> {
        match self.take("node tag", 1)? {
            0 => {}
            1 => {
                self.found.leaves += 1;
                self.take("extent of a leaf", 4)?;
            }
            2 if depth < 70 => {
                self.found.inner_nodes += 1;
                let pivots = self.take("pivots", 4)?;
                for _ in 0..pivots {
                    self.string("pivot length")?;
                }
                for _ in 0..=pivots {
                    self.node(depth + 1)?;
                }
                for _ in 0..self.take("runs", 4)? {
                    self.found.runs += 1;
                    for _ in 0..self.take("parts", 4)? {
                        self.part()?;
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn part(&mut self) -> Option<()> {
        self.found.parts += 1;
        self.take("extent of a part", 4)?;
        let flags = self.take("bounds of a part", 1)?;
        for _ in 0..(flags & 3).count_ones() {
            self.string("bound length")?;
        }
        self.take("bytes of a part", 8)?;
        self.take("rows of a part", 8)?;
        Some(())
    }
}

/// The node table of the superblock, up to the first invalid field.
pub fn metadata(data: &[u8]) -> Metadata {
    let Some((at, len)) = meta_place(data) else { return Metadata::default() };
    let mut walk = Walk { data, at, end: at + len, found: Metadata::default() };
    let _: Option<()> = (|| {
        let trees = walk.take("trees", 4)?;
        walk.take("next tree", 4)?;
        for _ in 0..trees {
            walk.tree()?;
        }
        let mut trees = walk.found.trees.clone().into_iter();
        trees.try_for_each(|extents| {
            walk.take("live rows of a tree", 8)?;
            (0..extents).try_for_each(|_| walk.take("net rows of an extent", 8).map(drop))
        })?;
        Some(())
    })();
    walk.found
}

/// Offsets and lengths of the pages of an extent, the index page last.
pub fn pages(data: &[u8], extent: &ExtentPlace) -> Vec<(usize, usize)> {
    let mut pages = Vec::new();
    let Some(index) = extent.offset.checked_add(extent.len).and_then(|end| end.checked_sub(extent.index_len)) else {
        return pages;
    };
    let mut at = extent.offset;
    while at < index && data.get(at..at + 4) == Some(b"KYPG") {
        let len = number(data, at + 20, 4).unwrap_or(0) as usize;
        if len < BLOCK || at.checked_add(len).is_none_or(|end| end > index.min(data.len())) {
            break;
        }
        pages.push((at, len));
        at += len;
    }
    if extent.index_len >= BLOCK && index.checked_add(extent.index_len).is_some_and(|end| end <= data.len()) {
        pages.push((index, extent.index_len));
    }
    pages
}

/// The fields of the header and directory of a page.
pub fn page_fields(data: &[u8], at: usize, tree: u32) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut push = |name, at, width| fields.push(Field { file: "data".into(), at, width, name, tree: Some(tree) });
    for (name, offset, width) in [
        ("page magic", 0, 4),
        ("page offset", 8, 8),
        ("page tree", 16, 4),
        ("page length", 20, 4),
        ("page kind", 24, 1),
        ("page format", 25, 1),
        ("page columns", 26, 2),
        ("page rows", 28, 4),
    ] {
        push(name, at + offset, width);
    }
    let columns = number(data, at + 26, 2).unwrap_or(0) as usize;
    for column in 0..=columns {
        push("directory", at + 32 + column * 4, 4);
        // A column starts with its null bitmap, scheme, widths and varints.
        if let Some(start) = number(data, at + 32 + column * 4, 4).filter(|_| column < columns) {
            (0..6).for_each(|byte| push("head of a column", at + start as usize + byte, 1));
        }
    }
    fields
}

/// The fields of headers, records and operations of all groups of a log segment.
pub fn log_fields(name: &str, log: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    for at in (0..log.len()).step_by(BLOCK).filter(|&at| log[at..].starts_with(b"KEYAKLOG")) {
        let mut push = |name_of, at, width| {
            fields.push(Field { file: name.into(), at, width, name: name_of, tree: None });
            number(log, at, width).unwrap_or(0) as usize
        };
        push("group version", at + 8, 4);
        let records = push("group records", at + 12, 4);
        for (i, name) in
            ["log id", "segment", "offset", "first sequence", "synced through", "body length"].iter().enumerate()
        {
            push(name, at + 16 + i * 8, 8);
        }
        let mut record = at + 72;
        for _ in 0..records.min(1000) {
            let len = push("record length", record, 4);
            push("record sequence", record + 4, 8);
            let (mut operation, end) = (record + 12, record + 12 + len);
            while operation < end.min(log.len()) {
                let tag = push("operation", operation, 1);
                push("operation tree", operation + 1, 4);
                let numbers = [0, 2, 1, 3, 1, 0, 2, 2, 1].get(tag).copied().unwrap_or(0);
                let lengths: Vec<usize> =
                    (0..numbers).map(|i| push("operation length", operation + 5 + i * 4, 4)).collect();
                // The first number of an upsert is its function, not a length.
                let bytes: usize = lengths[usize::from(tag == 3).min(lengths.len())..].iter().sum();
                operation += 5 + numbers * 4;
                if bytes > 0 {
                    push("last byte of an operation", operation + bytes - 1, 1);
                }
                operation += bytes;
                if tag == 0 || tag > 8 {
                    break;
                }
            }
            record = end;
        }
    }
    fields
}

/// Recomputes all checksums from the leaves up, except where an invalid field hides them.
pub fn reseal(image: &mut Image) {
    for (name, bytes) in &mut image.files {
        if name == "data" { reseal_data(bytes) } else { reseal_log(bytes) }
    }
}

fn reseal_data(data: &mut [u8]) {
    for extent in metadata(data).extents {
        let pages = pages(data, &extent);
        let index = extent.offset.wrapping_add(extent.len).wrapping_sub(extent.index_len);
        for (i, &(at, len)) in pages.iter().enumerate() {
            let checksum = u64::from(crc32c::crc32c(&data[at + 8..at + len]));
            set_number(data, at + 4, 4, checksum);
            if at == index {
                set_number(data, extent.checksum_at, 4, checksum);
            } else if 32 + i * 4 + 4 <= extent.index_len && index < data.len() {
                set_number(data, index + 32 + i * 4, 4, checksum);
            }
        }
    }
    let hash = meta_place(data).map(|(at, len)| xxhash_rust::xxh3::xxh3_64(&data[at..at + len]));
    let len = data.len();
    for at in SLOTS.into_iter().filter(|&at| at + BLOCK <= len) {
        if let Some(hash) = hash {
            set_number(data, at + 64, 8, hash);
        }
        let checksum = crc32c::crc32c(&data[at..at + BLOCK - 4]);
        set_number(data, at + BLOCK - 4, 4, checksum.into());
    }
}

fn reseal_log(log: &mut [u8]) {
    for at in (0..log.len() / BLOCK).map(|block| block * BLOCK) {
        if !log[at..].starts_with(b"KEYAKLOG") {
            continue;
        }
        let body_len = number(log, at + 56, 8).unwrap_or(0) as usize;
        if let Some(end) = (at + 72).checked_add(body_len).filter(|&end| end <= log.len()) {
            let checksum = crc32c::crc32c(&log[at + 72..end]);
            set_number(log, at + 64, 4, checksum.into());
        }
        let checksum = crc32c::crc32c(&log[at..at + 68]);
        set_number(log, at + 68, 4, checksum.into());
    }
}
