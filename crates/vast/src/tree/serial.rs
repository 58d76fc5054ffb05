//! The serialised form of a tree: its plan, its displacement, and its bytes as one section.

use bytes::Bytes;

use super::{Displacement, Plan, RegionDisplacement, Shape, Tree};
use crate::error::Error;
use crate::key::Key;
use crate::serial::{Kind, Reader, Writer};
use crate::simd::Instructions;

/// Most levels, and most regions, of a tree. A tree has fewer than 64, because each level has several times as many
/// blocks as the one above.
const LEVELS_MAX: usize = 64;

impl<K: Key> Tree<K> {
    /// Serialises the tree.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::Tree, K::TAG);
        self.write(&mut writer);
        writer.finish()
    }

    /// Opens a serialised tree, which is used in place. `Bytes::from_owner` takes a mapped file.
    ///
    /// # Errors
    /// If the bytes are no valid serialised tree over keys of this type.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes, Kind::Tree, K::TAG)?;
        let tree = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(tree)
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        for number in [self.rows, self.slot_rows, self.levels.len()] {
            writer.number(number as u64);
        }
        for level in &self.levels {
            let Shape { width, simd_bytes, depth, line } = level.shape;
            writer.number(u64::from_le_bytes([width, simd_bytes, depth, line as u8, 0, 0, 0, 0]));
        }
        let Displacement { max, mean, regions } = &self.displacement;
        writer.number(*max as u64);
        writer.number(mean.to_bits());
        writer.number(regions.len() as u64);
        for region in regions {
            let RegionDisplacement { bits, levels, bytes, max, mean, share } = region;
            let numbers = [*bits as u64, *levels as u64, *bytes, *max as u64, mean.to_bits(), share.to_bits()];
            numbers.into_iter().for_each(|number| writer.number(number));
        }
        writer.section(&self.bytes);
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Self, Error> {
        let (rows, slot_rows) = (reader.size()?, reader.size()?);
        let shapes = (0..count(reader)?).map(|_| Ok(shape(reader.number()?))).collect::<Result<_, Error>>()?;
        let plan = Plan { slot_rows, shapes };
        let layout = Self::lay_out(&plan, rows).map_err(Error::Damaged)?;
        // Searches add up row numbers without overflow checks.
        let last = layout.slots.checked_mul(slot_rows).and_then(|rows| rows.checked_add(slot_rows));
        if last.is_none_or(|last| last > isize::MAX as usize) {
            return Err(Error::Damaged("rows exceed the address space"));
        }
        let (max, mean) = (reader.size()?.min(rows), f64::from_bits(reader.number()?));
        let regions = (0..count(reader)?).map(|_| {
            Ok(RegionDisplacement {
                bits: reader.number()? as u32,
                levels: reader.number()? as u32,
                bytes: reader.number()?,
                max: reader.size()?,
                mean: f64::from_bits(reader.number()?),
                share: f64::from_bits(reader.number()?),
            })
        });
        let regions = regions.collect::<Result<_, Error>>()?;
        let bytes = reader.section()?;
        if bytes.len() != layout.bytes {
            return Err(Error::Damaged("size of the tree differs from that of its levels"));
        }
        Ok(Tree {
            levels: layout.levels,
            bytes,
            rows,
            slot_rows,
            slots: layout.slots,
            window_lines: layout.window_lines,
            whole_levels: layout.whole_levels,
            reach: max,
            displacement: Displacement { max, mean, regions },
            instructions: Instructions::best(),
            _keys: std::marker::PhantomData,
        })
    }
}

/// Reads a number of levels or regions.
fn count(reader: &mut Reader) -> Result<usize, Error> {
    let count = reader.size()?;
    if count <= LEVELS_MAX { Ok(count) } else { Err(Error::Damaged("too many levels")) }
}

/// Decodes a shape. It is checked when the tree is laid out.
fn shape(number: u64) -> Shape {
    let [width, simd_bytes, depth, line, ..] = number.to_le_bytes();
    Shape { width, simd_bytes, depth, line: line != 0 }
}
