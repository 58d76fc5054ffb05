//! Choosing a block's line and packing its residuals.
//!
//! Three lines are tried: a level one, the one through the first and the last value, and the one of least squares. The
//! one with the smallest range of residuals is stored. Its slope is rounded to an integer and a power of two, and
//! residuals are computed with integers, so that decoding is exact on every machine.

use super::{BLOCK, WIDTH_MAX};
use crate::header::Header;
use crate::key::Key;

/// Packs values block by block. Returns the headers, with offsets from the beginning of the residuals, and the
/// residuals.
pub(crate) fn pack<V: Key>(values: &[V]) -> (Vec<Header>, Vec<u8>) {
    let mut headers = Vec::with_capacity(values.len().div_ceil(BLOCK));
    let mut residuals = Vec::with_capacity(values.len() * 2);
    for block in values.chunks(BLOCK) {
        let mut ordered = [0; BLOCK];
        for (ordered, value) in ordered.iter_mut().zip(block) {
            *ordered = value.ordered();
        }
        let mut header = fit(&ordered[..block.len()]);
        let width = u32::from(header.width);
        assert!(width <= WIDTH_MAX || width == u64::BITS, "residuals of {width} bits");
        header.offset = (residuals.len() / 16) as u32;
        write(&header, &ordered[..block.len()], &mut residuals);
        header.base &= V::LAST;
        headers.push(header);
    }
    (headers, residuals)
}

/// The best header for values, with offset 0.
fn fit(values: &[u64]) -> Header {
    let level = Header { base: 0, offset: 0, slope: 0, exponent: 0, width: 0 };
    let candidates = [Some(level), chord(values), least_squares(values)];
    let fitted = candidates.into_iter().flatten().map(|header| measured(header, values));
    // Among candidates with equal widths, the first is the simplest.
    let best = fitted.min_by_key(|header| header.width).unwrap_or(level);
    if best.width as u32 > WIDTH_MAX { Header { width: 64, ..level } } else { best }
}

/// Completes a line by the base and the width that fit the values.
fn measured(header: Header, values: &[u64]) -> Header {
    let residual = |(index, &value): (usize, &u64)| value as i128 - header.line(index) as i64 as i128;
    let all = || values.iter().enumerate().map(residual);
    let (least, greatest) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    let range = greatest - least;
    let width = (128 - range.leading_zeros()).min(64) as u8;
    Header { base: least as u64, width, ..header }
}

/// The line through the first and the last value.
fn chord(values: &[u64]) -> Option<Header> {
    let (first, last) = (*values.first()?, *values.last()?);
    let steps = values.len().checked_sub(1).filter(|&steps| steps > 0)?;
    rising((last as f64 - first as f64) / steps as f64)
}

/// The line of least squares.
fn least_squares(values: &[u64]) -> Option<Header> {
    let first = *values.first()?;
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let (mut above, mut below) = (0.0, 0.0);
    for (index, &value) in values.iter().enumerate() {
        let distance = index as f64 - middle;
        above += distance * value.wrapping_sub(first) as i64 as f64;
        below += distance * distance;
    }
    if below > 0.0 { rising(above / below) } else { None }
}

/// A header with a slope, rounded to 15 bits. `None` if the slope is almost level or too steep.
fn rising(slope: f64) -> Option<Header> {
    if !slope.is_finite() || slope.abs() < 1.0 / 1024.0 {
        return None;
    }
    // The slope is a number of 15 bits times a power of two.
    let mut exponent = slope.abs().log2().floor() as i32 - 14;
    let mut mantissa = (slope * (-exponent as f64).exp2()).round();
    if mantissa.abs() > i16::MAX as f64 {
        exponent += 1;
        mantissa = (slope * (-exponent as f64).exp2()).round();
    }
    // The product of 128 and 15 bits, shifted by the exponent, must fit into 63 bits.
    let fits = (-40..=40).contains(&exponent);
    fits.then_some(Header { base: 0, offset: 0, slope: mantissa as i16, exponent: exponent as i8, width: 0 })
}

/// Appends the residuals of a block, padded to the length of a full block.
fn write(header: &Header, values: &[u64], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    let width = header.width as usize;
    bytes.resize(start + 16 * width, 0);
    let block = &mut bytes[start..];
    for (index, value) in values.iter().enumerate() {
        let residual = value.wrapping_sub(header.base).wrapping_sub(header.line(index));
        let bit = index * width;
        // At most 56 bits after at most 7 others, or 64 bits on a byte boundary.
        for (at, byte) in (residual << (bit % 8)).to_le_bytes().iter().enumerate() {
            if let Some(place) = block.get_mut(bit / 8 + at) {
                *place |= byte;
            }
        }
    }
}
