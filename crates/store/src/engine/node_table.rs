//! The node table: the serialised form of all trees of a checkpoint with their schemas, nodes, runs and extents.
//!
//! ```text
//! tree count: u32, next tree id: u32, then for each tree
//!   id: u32, schema (see `codec::schema`), extent count: u32, extents, root node
//! extent  offset: u64, len: u64, index len: u32, index checksum: u32, pages: u32, rows: u64, first key, last key
//! node    tag: u8 = 0 empty leaf; 1 leaf: extent number: u32; 2 inner:
//!         pivot count: u32, pivots, children (nodes, one more), run count: u32,
//!         runs: part count: u32, parts: extent number: u32, flags: u8 (1 low, 2 high), bounds, bytes: u64, rows: u64
//! then, unless an older program wrote the table, for each tree
//!   live rows: u64 (2^64 - 1: unknown), then for each of its extents net rows: i64
//! then, unless an older program wrote the table, for each tree
//!   bounds: u64 for each value column of an integer or decimal type
//! then, unless an older program wrote the table, for each tree
//!   sample: u8 = 0 none; 1: level: u8, added rows: u64, missed upserts: u64, leaf count: u32, leaves: extent number: u32,
//!           for each column the registers of its sketch
//! then, if a tree has a dictionary, for each tree
//!   dictionary count: u16, dictionaries: column: u16, dictionary, by ascending column
//! ```
//! The extents of a tree include the leaves of its sample.
//! Names, keys, bounds and dictionaries are byte strings after their length (u32). Numbers are little endian.
//!
//! *Invariants.* Decoding checks everything that the store relies on, even for maliciously crafted bytes: counts do not
//! exceed the remaining bytes; extents consist of whole blocks after the superblock with space for their pages, and do
//! not overlap (checked by [`Space`](crate::pages::Space)); keys ascend and lie within the bounds of their node; an
//! extent is at most one leaf; sums of lengths and rows cannot overflow.

use std::collections::HashMap;
use std::sync::Arc;

use keyaki_device::{BLOCK, Lock};
use keyaki_primitives::HyperLogLog;

use crate::base::{Column, Key, Malformed, Reader, TreeId};
use crate::codec::{
    Codecs, DICTIONARY_BYTES_MAX, Dictionaries, ENTRIES_MAX, PAGE_BYTES_MAX, ROWS_MAX, decode_schema, encode_schema,
    is_bounded,
};
use crate::pages::{Extent, ExtentMeta, Files, RESERVED_BYTES};
use crate::tree::{
    InnerNode, LEVEL_MAX, Node, Part, RowCounts, Run, Sketches, StoreVersion, TreeSample, TreeVersion, ValueBounds,
};

type Result<T> = std::result::Result<T, Malformed>;

/// Maximum depth of nodes in a valid node table: the depth of 2^64 leaves with fan-out 2.
const DEPTH_LIMIT: usize = 64;
/// Minimum length of an encoded extent, in bytes.
const EXTENT_MIN: usize = 44;
/// Minimum length of an encoded part, in bytes.
const PART_MIN: usize = 21;
const _: () = {
    assert!(EXTENT_MIN == 8 + 8 + 4 + 4 + 4 + 8 + 4 + 4);
    assert!(PART_MIN == 4 + 1 + 8 + 8);
};

/// Stands for an unknown number of rows.
const UNKNOWN: u64 = u64::MAX;
/// Maximum number of rows of a tree.
const LIVE_ROWS_MAX: u64 = 1 << 62;

/// Maximum length of an extent in bytes, so that no sum over the parts of runs overflows.
const EXTENT_BYTES_MAX: u64 = 1 << 33;

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Which dictionaries a node table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trained {
    All,
    /// Those of earlier checkpoints, for a state without newer pages: the table is not longer than an earlier one.
    Stored,
}

/// The node table of a state, which has no buffers. `dictionaries` are those of the store.
pub(crate) fn encode(state: &StoreVersion, next_tree: TreeId, dictionaries: &Dictionaries, which: Trained) -> Vec<u8> {
    let (mut out, mut counts, mut bounds, mut samples) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut trained, mut has_trained) = (Vec::new(), false);
    out.extend_from_slice(&(state.trees.len() as u32).to_le_bytes());
    out.extend_from_slice(&next_tree.get().to_le_bytes());
    for (tree, version) in &state.trees {
        out.extend_from_slice(&tree.get().to_le_bytes());
        encode_schema(&version.codecs.schema, &mut out);
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut extents = Vec::new();
        version.visit_extents(&mut |extent: &Arc<Extent>| {
            numbers.entry(extent.meta.offset).or_insert_with(|| {
                extents.push(extent.clone());
                extents.len() as u32 - 1
            });
        });
        out.extend_from_slice(&(extents.len() as u32).to_le_bytes());
        for extent in &extents {
            encode_extent(&extent.meta, &mut out);
        }
        encode_inner(&version.root, &numbers, &mut out);
        counts.extend_from_slice(&version.counts.newest().unwrap_or(UNKNOWN).to_le_bytes());
        extents.iter().for_each(|extent| counts.extend_from_slice(&extent.meta.net_rows.to_le_bytes()));
        let values = version.bounds.get();
        let columns = version.codecs.row.value_columns().iter().zip(values).filter(|(column, _)| is_bounded(column.ty));
        columns.for_each(|(_, bound)| bounds.extend_from_slice(&bound.to_le_bytes()));
        encode_sample(version.sample.as_deref(), &numbers, &mut samples);
        // Without pages, there is no need for them.
        let mut of_tree = match which {
            _ if extents.is_empty() => Vec::new(),
            Trained::All => dictionaries.of(*tree).all(),
            Trained::Stored => dictionaries.of(*tree).stored(),
        };
        of_tree.retain(|(column, _)| version.codecs.schema.may_have_dictionary(usize::from(*column)));
        has_trained |= !of_tree.is_empty();
        trained.extend_from_slice(&(of_tree.len() as u16).to_le_bytes());
        for (column, dictionary) in of_tree {
            trained.extend_from_slice(&column.to_le_bytes());
            string(dictionary.bytes(), &mut trained);
        }
    }
    out.extend_from_slice(&counts);
    out.extend_from_slice(&bounds);
    out.extend_from_slice(&samples);
    if has_trained {
        out.extend_from_slice(&trained);
    }
    out
}

fn encode_sample(sample: Option<&TreeSample>, numbers: &HashMap<u64, u32>, out: &mut Vec<u8>) {
    let Some(TreeSample { level, leaves, sketches }) = sample else { return out.push(0) };
    out.extend_from_slice(&[1, *level as u8]);
    out.extend_from_slice(&sketches.added.min(LIVE_ROWS_MAX).to_le_bytes());
    out.extend_from_slice(&sketches.missed.min(LIVE_ROWS_MAX).to_le_bytes());
    out.extend_from_slice(&(leaves.len() as u32).to_le_bytes());
    for leaf in leaves {
        out.extend_from_slice(&numbers[&leaf.meta.offset].to_le_bytes());
    }
    sketches.columns.iter().for_each(|sketch| out.extend_from_slice(sketch.registers()));
}

fn encode_extent(meta: &ExtentMeta, out: &mut Vec<u8>) {
    out.extend_from_slice(&meta.offset.to_le_bytes());
    out.extend_from_slice(&meta.len.to_le_bytes());
    out.extend_from_slice(&meta.index_len.to_le_bytes());
    out.extend_from_slice(&meta.index_checksum.to_le_bytes());
    out.extend_from_slice(&meta.pages.to_le_bytes());
    out.extend_from_slice(&meta.rows.to_le_bytes());
    string(&meta.first, out);
    string(&meta.last, out);
}

fn encode_inner(inner: &InnerNode, numbers: &HashMap<u64, u32>, out: &mut Vec<u8>) {
    out.push(2);
    out.extend_from_slice(&(inner.pivots.len() as u32).to_le_bytes());
    for pivot in &inner.pivots {
        string(pivot, out);
    }
    for child in &inner.children {
        match &**child {
            Node::Leaf(None) => out.push(0),
            Node::Leaf(Some(extent)) => {
                out.push(1);
                out.extend_from_slice(&numbers[&extent.meta.offset].to_le_bytes());
            }
            Node::Inner(inner) => encode_inner(inner, numbers, out),
        }
    }
    out.extend_from_slice(&(inner.runs.len() as u32).to_le_bytes());
    for run in &inner.runs {
        out.extend_from_slice(&(run.parts().len() as u32).to_le_bytes());
        for part in run.parts() {
            out.extend_from_slice(&numbers[&part.extent.meta.offset].to_le_bytes());
            out.push(u8::from(part.low.is_some()) | u8::from(part.high.is_some()) << 1);
            for bound in [&part.low, &part.high].into_iter().flatten() {
                string(bound, out);
            }
            out.extend_from_slice(&part.bytes.to_le_bytes());
            out.extend_from_slice(&part.rows.to_le_bytes());
        }
    }
}

/// Offset and length of all extents of a node table, from which the free-space map is built before [`decode`] creates
/// the extents.
///
/// # Errors
/// [`Malformed`] if the bytes are not a node table.
pub(crate) fn used_space(bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut reader = Reader::new(bytes);
    let mut used = Vec::new();
    read_used(&mut reader, &mut used)?;
    Ok(used)
}

fn read_used(reader: &mut Reader<'_>, used: &mut Vec<(u64, u64)>) -> Result<()> {
    let (trees, _) = (reader.u32()?, reader.u32()?);
    (0..trees).try_for_each(|_| skip_tree(reader, used))
}

/// Reads a tree, and adds the offsets and lengths of its extents to `used`.
fn skip_tree(reader: &mut Reader<'_>, used: &mut Vec<(u64, u64)>) -> Result<()> {
    let tree = TreeId::new(reader.u32()?);
    decode_schema(reader)?;
    for _ in 0..reader.count(EXTENT_MIN)? {
        let meta = decode_extent(reader, tree)?;
        used.push((meta.offset, meta.len));
    }
    skip_node(reader, 0)
}

fn skip_node(reader: &mut Reader<'_>, depth: usize) -> Result<()> {
    match reader.u8()? {
        0 => {}
        1 => drop(reader.u32()?),
        2 if depth < DEPTH_LIMIT => {
            let pivots = reader.count(4)?;
            for _ in 0..pivots {
                reader.string()?;
            }
            for _ in 0..=pivots {
                skip_node(reader, depth + 1)?;
            }
            for _ in 0..reader.count(4)? {
                for _ in 0..reader.count(PART_MIN)? {
                    reader.u32()?;
                    let flags = reader.u8()?;
                    for _ in 0..(flags & 3).count_ones() {
                        reader.string()?;
                    }
                    reader.bytes(16)?;
                }
            }
        }
        tag => return Err(reader.malformed(format!("invalid node tag {tag} at depth {depth}"))),
    }
    Ok(())
}

/// The trees of a checkpoint, and the next tree id. The space of [`used_space`] must be marked as used.
///
/// # Errors
/// [`Malformed`] if the bytes are not a node table.
pub(crate) fn decode(bytes: &[u8], files: &Arc<Files>, pin: Option<&Arc<dyn Lock>>) -> Result<(StoreVersion, TreeId)> {
    let mut reader = Reader::new(bytes);
    read_state(&mut reader, files, pin)
}

fn read_state(
    reader: &mut Reader<'_>,
    files: &Arc<Files>,
    pin: Option<&Arc<dyn Lock>>,
) -> Result<(StoreVersion, TreeId)> {
    let (trees, next_tree) = (reader.u32()?, TreeId::new(reader.u32()?));
    if next_tree > TreeId::DISK_END {
        return Err(reader.malformed(format!("the next tree id, {next_tree}, is above the last id of a tree on disk")));
    }
    let mut counts = Counts::find(reader, trees)?;
    let (mut state, mut decoders) = (StoreVersion::default(), Vec::new());
    for _ in 0..trees {
        let tree = TreeId::new(reader.u32()?);
        if tree >= TreeId::DISK_END || state.trees.last_key_value().is_some_and(|(&before, _)| before >= tree) {
            return Err(reader.malformed(format!("tree id {tree} does not ascend, or is not the id of a tree on disk")));
        }
        let live_rows = counts.next_tree()?;
        let codecs = Arc::new(Codecs::new(decode_schema(reader)?));
        let mut decoder = Decoder { extents: Vec::new(), leaves: Vec::new() };
        for _ in 0..reader.count(EXTENT_MIN)? {
            let mut meta = decode_extent(reader, tree)?;
            meta.net_rows = counts.next_extent(&meta)?;
            decoder.extents.push(Arc::new(match pin {
                Some(pin) => {
                    let offset = meta.offset;
                    Extent::pinned(meta, files.clone(), pin.clone()).ok_or_else(|| {
                        reader.malformed(format!("the extent at {offset} overwrote another one that is in use"))
                    })?
                }
                None => Extent::new(meta, files.clone()),
            }));
        }
        decoder.leaves.resize(decoder.extents.len(), false);
        let Node::Inner(root) = decoder.node(reader, 0, (None, None))? else {
            return Err(reader.malformed("the root is a leaf"));
        };
        let live_rows = live_rows.or_else(|| root.is_settled().then(|| root.rows()));
        let bounds = ValueBounds::unknown(&codecs);
        let version = TreeVersion::new(codecs, Arc::new(root), RowCounts::new(0, live_rows), bounds);
        state.trees.insert(tree, Arc::new(version));
        decoders.push(decoder);
    }
    if let Some(mut rest) = counts.0.filter(|rest| !rest.is_empty()) {
        read_bounds(&mut rest, &mut state)?;
        if !rest.is_empty() {
            read_samples(&mut rest, &mut state, &decoders)?;
        }
        if !rest.is_empty() {
            read_dictionaries(&mut rest, &state, &files.dictionaries)?;
        }
        if !rest.is_empty() {
            return Err(rest.malformed("bytes after the last tree"));
        }
    }
    Ok((state, next_tree))
}

/// Reads the bounds of all trees, which are unknown so far.
fn read_bounds(reader: &mut Reader<'_>, state: &mut StoreVersion) -> Result<()> {
    for version in state.trees.values_mut() {
        let columns = version.codecs.row.value_columns().iter();
        let bound = |ty| if is_bounded(ty) { reader.u64() } else { Ok(0) };
        let bounds = columns.map(|column| column.ty).map(bound).collect::<Result<Vec<u64>>>()?;
        let (codecs, root, counts) = (version.codecs.clone(), version.root.clone(), version.counts.clone());
        *version = Arc::new(TreeVersion::new(codecs, root, counts, ValueBounds::new(bounds)));
    }
    Ok(())
}

/// Reads the samples of all trees. `decoders` have the extents of the trees.
fn read_samples(reader: &mut Reader<'_>, state: &mut StoreVersion, decoders: &[Decoder]) -> Result<()> {
    for (version, decoder) in state.trees.values_mut().zip(decoders) {
        match reader.u8()? {
            0 => continue,
            1 => {}
            tag => return Err(reader.malformed(format!("invalid tag {tag} of a sample"))),
        }
        let (level, added, missed) = (u32::from(reader.u8()?), reader.u64()?, reader.u64()?);
        if level > LEVEL_MAX || added.max(missed) > LIVE_ROWS_MAX {
            return Err(reader.malformed(format!("a sample of level {level} of {added} rows")));
        }
        let mut leaves: Vec<Arc<Extent>> = Vec::new();
        for _ in 0..reader.count(4)? {
            let (number, leaf) = decoder.extent(reader)?;
            let ascends = leaves.last().is_none_or(|before| before.meta.last < leaf.meta.first);
            if decoder.leaves[number as usize] || !ascends {
                return Err(reader.malformed("a leaf of a sample does not ascend, or is a leaf of the tree"));
            }
            leaves.push(leaf);
        }
        let sketch = |_: &Column| {
            let registers = reader.bytes(HyperLogLog::BYTES)?;
            HyperLogLog::from_registers(registers).ok_or_else(|| reader.malformed("invalid registers of a sketch"))
        };
        let columns = version.codecs.schema.columns().iter().map(sketch).collect::<Result<Vec<_>>>()?;
        let sample = TreeSample { level, leaves, sketches: Sketches { columns, added, missed } };
        if !sample.is_within_limits() {
            return Err(reader.malformed("a sample is too large"));
        }
        *version = Arc::new(version.with_root(version.root.clone(), Some(Arc::new(sample))));
    }
    Ok(())
}

/// Adds the dictionaries of all trees to those of the store.
fn read_dictionaries(reader: &mut Reader<'_>, state: &StoreVersion, dictionaries: &Dictionaries) -> Result<()> {
    for (&tree, version) in &state.trees {
        let (schema, mut before) = (&version.codecs.schema, None);
        for _ in 0..reader.u16()? {
            let (column, bytes) = (reader.u16()?, reader.string()?);
            if !schema.may_have_dictionary(usize::from(column)) || before >= Some(column) {
                return Err(reader.malformed(format!("column {column} of tree {tree} cannot have this dictionary")));
            }
            if !dictionaries.of(tree).set(column, bytes) {
                let limit = DICTIONARY_BYTES_MAX;
                return Err(reader.malformed(format!("invalid dictionary of {} bytes (at most {limit})", bytes.len())));
            }
            before = Some(column);
        }
    }
    Ok(())
}

/// The numbers after the last tree, read beside the trees and extents that they belong to. `None` if the table has none.
struct Counts<'a>(Option<Reader<'a>>);

impl<'a> Counts<'a> {
    /// The numbers of a table that `reader` has read up to the first of `trees` trees.
    fn find(reader: &Reader<'a>, trees: u32) -> Result<Self> {
        let mut reader = *reader;
        (0..trees).try_for_each(|_| skip_tree(&mut reader, &mut Vec::new()))?;
        Ok(Counts((!reader.is_empty()).then_some(reader)))
    }

    /// The number of rows of the next tree, if it is known.
    fn next_tree(&mut self) -> Result<Option<u64>> {
        let Some(reader) = &mut self.0 else { return Ok(None) };
        match reader.u64()? {
            UNKNOWN => Ok(None),
            rows if rows <= LIVE_ROWS_MAX => Ok(Some(rows)),
            rows => Err(reader.malformed(format!("a tree cannot have {rows} rows"))),
        }
    }

    /// The net rows of the tree's next extent. All messages count as inserts if the table has no numbers.
    fn next_extent(&mut self, meta: &ExtentMeta) -> Result<i64> {
        let Some(reader) = &mut self.0 else { return Ok(meta.rows as i64) };
        let net_rows = reader.u64()? as i64;
        if net_rows.unsigned_abs() > meta.rows {
            return Err(
                reader.malformed(format!("{} messages cannot change the number of rows by {net_rows}", meta.rows))
            );
        }
        Ok(net_rows)
    }
}

fn decode_extent(reader: &mut Reader<'_>, tree: TreeId) -> Result<ExtentMeta> {
    let meta = ExtentMeta {
        tree,
        offset: reader.u64()?,
        len: reader.u64()?,
        index_len: reader.u32()?,
        index_checksum: reader.u32()?,
        pages: reader.u32()?,
        rows: reader.u64()?,
        net_rows: 0,
        first: reader.string()?.into(),
        last: reader.string()?.into(),
    };
    let (pages, index_len) = (u64::from(meta.pages), u64::from(meta.index_len));
    let aligned = |bytes: u64| bytes.is_multiple_of(BLOCK as u64);
    let sound = aligned(meta.offset)
        && meta.offset >= RESERVED_BYTES
        && aligned(meta.len)
        && aligned(index_len)
        && (1..=PAGE_BYTES_MAX as u64).contains(&index_len)
        && meta.len <= EXTENT_BYTES_MAX
        && meta.offset.checked_add(meta.len).is_some()
        && (1..=ENTRIES_MAX as u64).contains(&pages)
        && pages * BLOCK as u64 + index_len <= meta.len
        && (pages..=pages * ROWS_MAX as u64).contains(&meta.rows)
        && meta.first <= meta.last;
    if sound {
        Ok(meta)
    } else {
        Err(reader.malformed(format!(
            "an extent of {} bytes at offset {} cannot have {pages} pages, {} rows and an index of {index_len} bytes",
            meta.len, meta.offset, meta.rows
        )))
    }
}

/// Decoder of the nodes of one tree.
struct Decoder {
    extents: Vec<Arc<Extent>>,
    /// True for each extent that is a leaf already.
    leaves: Vec<bool>,
}

/// Bounds of the keys of a node: low (included) and high (excluded); `None`: unbounded.
type Bounds<'k> = (Option<&'k Key>, Option<&'k Key>);

/// True if the keys from `first` to `last` lie within the bounds.
fn within((low, high): Bounds<'_>, first: &[u8], last: &[u8]) -> bool {
    low.is_none_or(|low| **low <= *first) && high.is_none_or(|high| *last < **high)
}

impl Decoder {
    fn extent(&self, reader: &mut Reader<'_>) -> Result<(u32, Arc<Extent>)> {
        let number = reader.u32()?;
        match self.extents.get(number as usize) {
            Some(extent) => Ok((number, extent.clone())),
            None => Err(reader.malformed(format!(
                "extent number {number} is out of range: the tree has {} extents",
                self.extents.len()
            ))),
        }
    }

    fn node(&mut self, reader: &mut Reader<'_>, depth: usize, bounds: Bounds<'_>) -> Result<Node> {
        match reader.u8()? {
            0 => Ok(Node::Leaf(None)),
            1 => {
                let (number, extent) = self.extent(reader)?;
                if std::mem::replace(&mut self.leaves[number as usize], true) {
                    return Err(reader.malformed(format!("extent {number} occurs as two leaves")));
                }
                if !within(bounds, &extent.meta.first, &extent.meta.last) {
                    return Err(reader.malformed("a leaf has keys outside the bounds of its node"));
                }
                Ok(Node::Leaf(Some(extent)))
            }
            2 if depth < DEPTH_LIMIT => self.inner(reader, depth, bounds).map(Node::Inner),
            tag => Err(reader.malformed(format!("invalid node tag {tag} at depth {depth}"))),
        }
    }

    fn inner(&mut self, reader: &mut Reader<'_>, depth: usize, bounds: Bounds<'_>) -> Result<InnerNode> {
        let count = reader.count(4)?;
        let mut pivots: Vec<Key> = Vec::with_capacity(count);
        for _ in 0..count {
            let pivot: Key = reader.string()?.into();
            let ascends = pivots.last().or(bounds.0).is_none_or(|before| *before < pivot);
            if !ascends || bounds.1.is_some_and(|high| *high <= pivot) {
                return Err(
                    reader.malformed("a pivot is not above the previous pivot, or is outside the bounds of its node")
                );
            }
            pivots.push(pivot);
        }
        let mut children = Vec::with_capacity(count + 1);
        for i in 0..=count {
            let low = i.checked_sub(1).map(|before| &pivots[before]).or(bounds.0);
            let child = self.node(reader, depth + 1, (low, pivots.get(i).or(bounds.1)))?;
            children.push(Arc::new(child));
        }
        let runs = (0..reader.count(4)?).map(|_| self.run(reader, bounds)).collect::<Result<_>>()?;
        Ok(InnerNode::new(pivots, children, runs))
    }

    fn run(&self, reader: &mut Reader<'_>, bounds: Bounds<'_>) -> Result<Run> {
        let count = reader.count(PART_MIN)?;
        let mut parts: Vec<Part> = Vec::with_capacity(count);
        for _ in 0..count {
            let (_, extent) = self.extent(reader)?;
            let flags = reader.u8()?;
            let low: Option<Key> = if flags & 1 != 0 { Some(reader.string()?.into()) } else { None };
            let high: Option<Key> = if flags & 2 != 0 { Some(reader.string()?.into()) } else { None };
            let part = Part { extent, low, high, bytes: reader.u64()?, rows: reader.u64()? };
            if flags > 3 || !is_part(&part, bounds) {
                return Err(reader.malformed("a part of a run is outside its extent or the bounds of its node"));
            }
            let before_ends = |before: &Part| match &before.high {
                Some(high) => **high <= *part.first(),
                None => *before.extent.meta.last < *part.first(),
            };
            if !parts.last().is_none_or(before_ends) {
                return Err(reader.malformed("a part of a run overlaps the previous part"));
            }
            parts.push(part);
        }
        Ok(Run::new(parts))
    }
}

/// True if the bounds of a part lie within its extent, the part lies within the bounds of the node, and the estimates
/// do not exceed the extent's size.
fn is_part(part: &Part, (low, high): Bounds<'_>) -> bool {
    let meta = &part.extent.meta;
    let inside = |key: &Key| meta.first < *key && *key <= meta.last;
    let ends_below = match (&part.high, high) {
        (Some(own), Some(high)) => own <= high,
        (None, Some(high)) => meta.last < *high,
        (_, None) => true,
    };
    part.low.as_ref().is_none_or(inside)
        && part.high.as_ref().is_none_or(inside)
        && part.high.as_ref().is_none_or(|high| *part.first() < **high)
        && low.is_none_or(|low| **low <= *part.first())
        && ends_below
        && part.bytes <= meta.len
        && part.rows <= meta.rows
}
