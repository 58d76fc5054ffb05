//! The metadata of a checkpoint: every tree with its schema, nodes, runs and extents, as one sequence of bytes.
//!
//! ```text
//! tree count: u32, next tree id: u32, then for each tree
//!   id: u32, schema, extent count: u32, extents, root node
//! schema  key columns: u16, column count: u16, columns: name, type: u8, precision: u8, scale: u8, nullable: u8
//! extent  offset: u64, len: u64, index len: u32, pages: u32, rows: u64, first key, last key
//! node    tag: u8 = 0 empty leaf; 1 leaf: extent number: u32; 2 inner:
//!         pivot count: u32, pivots, children (nodes, one more), run count: u32,
//!         runs: part count: u32, parts: extent number: u32, flags: u8 (1 low, 2 high), bounds, bytes: u64, rows: u64
//! ```
//! Names, keys and bounds are byte strings with their length (u32) before them; numbers are little endian.

use std::collections::HashMap;
use std::sync::Arc;

use crate::bytes::Reader;
use crate::extent::{Extent, ExtentMeta};
use crate::read::{State, Version};
use crate::store::Files;
use crate::tree::{Codecs, Inner, Node, Part, Run};
use crate::{Column, ColumnType, Error, Result, Schema};

/// Nodes nest no deeper than this in sound metadata (a tree of 2^64 leaves with fan-out 2 would).
const DEPTH_LIMIT: usize = 64;
/// Bytes of the shortest extent, node and part.
const EXTENT_MIN: usize = 40;
const PART_MIN: usize = 21;

pub(crate) fn encode_schema(schema: &Schema, out: &mut Vec<u8>) {
    out.extend_from_slice(&(schema.key_columns() as u16).to_le_bytes());
    out.extend_from_slice(&(schema.columns().len() as u16).to_le_bytes());
    for column in schema.columns() {
        string(column.name.as_bytes(), out);
        let (tag, precision, scale) = match column.ty {
            ColumnType::Boolean => (1, 0, 0),
            ColumnType::Int8 => (2, 0, 0),
            ColumnType::Int16 => (3, 0, 0),
            ColumnType::Int32 => (4, 0, 0),
            ColumnType::Int64 => (5, 0, 0),
            ColumnType::Float32 => (6, 0, 0),
            ColumnType::Float64 => (7, 0, 0),
            ColumnType::Decimal { precision, scale } => (8, precision, scale as u8),
            ColumnType::Text => (9, 0, 0),
            ColumnType::Bytes => (10, 0, 0),
            ColumnType::Date => (11, 0, 0),
            ColumnType::Timestamp { utc: false } => (12, 0, 0),
            ColumnType::Timestamp { utc: true } => (13, 0, 0),
        };
        out.extend_from_slice(&[tag, precision, scale, u8::from(column.nullable)]);
    }
}

pub(crate) fn decode_schema(reader: &mut Reader<'_>) -> Result<Schema> {
    let key_columns = usize::from(reader.u16()?);
    let count = usize::from(reader.u16()?);
    let mut columns = Vec::with_capacity(count.min(1024));
    for _ in 0..count {
        let name = String::from_utf8(reader.string()?.to_vec()).map_err(|_| invalid("a column's name is not UTF-8"))?;
        let (tag, precision, scale) = (reader.u8()?, reader.u8()?, reader.u8()? as i8);
        let ty = match tag {
            1 => ColumnType::Boolean,
            2 => ColumnType::Int8,
            3 => ColumnType::Int16,
            4 => ColumnType::Int32,
            5 => ColumnType::Int64,
            6 => ColumnType::Float32,
            7 => ColumnType::Float64,
            8 if (1..=38).contains(&precision) => ColumnType::Decimal { precision, scale },
            9 => ColumnType::Text,
            10 => ColumnType::Bytes,
            11 => ColumnType::Date,
            12 => ColumnType::Timestamp { utc: false },
            13 => ColumnType::Timestamp { utc: true },
            _ => return Err(invalid("unknown column type")),
        };
        columns.push(Column { name, ty, nullable: reader.u8()? != 0 });
    }
    if key_columns == 0 || key_columns > columns.len() {
        return Err(invalid("wrong number of key columns"));
    }
    Ok(Schema::new(columns, key_columns))
}

fn invalid(detail: &str) -> Error {
    Error::Invalid(detail.into())
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(crate) fn encode(state: &State, next_tree: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(state.trees.len() as u32).to_le_bytes());
    out.extend_from_slice(&next_tree.to_le_bytes());
    for (tree, version) in &state.trees {
        out.extend_from_slice(&tree.to_le_bytes());
        encode_schema(&version.codecs.schema, &mut out);
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut extents = Vec::new();
        version.root.visit_extents(&mut |extent: &Arc<Extent>| {
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
    }
    out
}

fn encode_extent(meta: &ExtentMeta, out: &mut Vec<u8>) {
    out.extend_from_slice(&meta.offset.to_le_bytes());
    out.extend_from_slice(&meta.len.to_le_bytes());
    out.extend_from_slice(&meta.index_len.to_le_bytes());
    out.extend_from_slice(&meta.pages.to_le_bytes());
    out.extend_from_slice(&meta.rows.to_le_bytes());
    string(&meta.first, out);
    string(&meta.last, out);
}

fn encode_inner(inner: &Inner, numbers: &HashMap<u64, u32>, out: &mut Vec<u8>) {
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
        out.extend_from_slice(&(run.parts.len() as u32).to_le_bytes());
        for part in &run.parts {
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

/// A tree as a checkpoint has it. Its extents are not yet extents in use: see [`decode`].
struct Decoder<'f> {
    extents: Vec<Arc<Extent>>,
    files: &'f Arc<Files>,
}

/// All extents that metadata names, without making them extents in use: for the free-space map, which must exist first.
///
/// # Errors
/// [`Error::Invalid`] if the bytes are not metadata.
pub(crate) fn used_space(bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut reader = Reader::new(bytes);
    let (trees, _) = (reader.u32()?, reader.u32()?);
    let mut used = Vec::new();
    for _ in 0..trees {
        reader.u32()?;
        decode_schema(&mut reader)?;
        for _ in 0..reader.count(EXTENT_MIN)? {
            let meta = decode_extent(&mut reader, 0)?;
            used.push((meta.offset, meta.len));
        }
        skip_node(&mut reader, 0)?;
    }
    Ok(used)
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
        _ => return Err(invalid("not a node")),
    }
    Ok(())
}

/// The trees of a checkpoint, and the next tree id.
///
/// # Errors
/// [`Error::Invalid`] if the bytes are not metadata.
pub(crate) fn decode(bytes: &[u8], files: &Arc<Files>) -> Result<(State, u32)> {
    let mut reader = Reader::new(bytes);
    let (trees, next_tree) = (reader.u32()?, reader.u32()?);
    let mut state = State::default();
    for _ in 0..trees {
        let tree = reader.u32()?;
        let schema = decode_schema(&mut reader)?;
        let mut decoder = Decoder { extents: Vec::new(), files };
        for _ in 0..reader.count(EXTENT_MIN)? {
            let meta = decode_extent(&mut reader, tree)?;
            decoder.extents.push(Arc::new(Extent::new(meta, decoder.files.clone())));
        }
        let Node::Inner(root) = decoder.node(&mut reader, 0)? else { return Err(invalid("the root is a leaf")) };
        let version = Version::new(Arc::new(Codecs::new(schema)), Arc::new(root));
        if state.trees.insert(tree, Arc::new(version)).is_some() {
            return Err(invalid("two trees with one id"));
        }
    }
    if !reader.is_empty() {
        return Err(invalid("bytes after the last tree"));
    }
    Ok((state, next_tree))
}

fn decode_extent(reader: &mut Reader<'_>, tree: u32) -> Result<ExtentMeta> {
    Ok(ExtentMeta {
        tree,
        offset: reader.u64()?,
        len: reader.u64()?,
        index_len: reader.u32()?,
        pages: reader.u32()?,
        rows: reader.u64()?,
        first: reader.string()?.into(),
        last: reader.string()?.into(),
    })
}

impl Decoder<'_> {
    fn extent(&self, number: u32) -> Result<Arc<Extent>> {
        self.extents.get(number as usize).cloned().ok_or_else(|| invalid("no such extent"))
    }

    fn node(&self, reader: &mut Reader<'_>, depth: usize) -> Result<Node> {
        match reader.u8()? {
            0 => Ok(Node::Leaf(None)),
            1 => Ok(Node::Leaf(Some(self.extent(reader.u32()?)?))),
            2 if depth < DEPTH_LIMIT => {
                let count = reader.count(4)?;
                let pivots = (0..count).map(|_| Ok(reader.string()?.into())).collect::<Result<_>>()?;
                let child = |_| Ok(Arc::new(self.node(reader, depth + 1)?));
                let children = (0..=count).map(child).collect::<Result<_>>()?;
                let runs = (0..reader.count(4)?).map(|_| self.run(reader)).collect::<Result<_>>()?;
                Ok(Node::Inner(Inner::new(pivots, children, runs)))
            }
            _ => Err(invalid("not a node")),
        }
    }

    fn run(&self, reader: &mut Reader<'_>) -> Result<Run> {
        let count = reader.count(PART_MIN)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let extent = self.extent(reader.u32()?)?;
            let flags = reader.u8()?;
            let low = if flags & 1 != 0 { Some(reader.string()?.into()) } else { None };
            let high = if flags & 2 != 0 { Some(reader.string()?.into()) } else { None };
            parts.push(Part { extent, low, high, bytes: reader.u64()?, rows: reader.u64()? });
        }
        Ok(Run { parts })
    }
}
