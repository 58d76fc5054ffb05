//! The continuation of an entry's key after its slice: none, a suffix in the tail or in the bag, or a layer.

use super::{BAG, Border, LAYER, TAIL_BYTES_MAX};
use crate::key::Cursor;
use crate::sync::Relaxed;

/// The continuation of an entry's key after its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuation<'s> {
    /// None: the key ends within the slice, after so many bytes.
    Ends(u8),
    /// A suffix that only this key has.
    Suffix(&'s [u8]),
    /// Several keys continue, in the next layer.
    Layer,
}

impl<'k> Continuation<'k> {
    /// The continuation of a key in the cursor's layer.
    #[inline]
    pub fn of(key: &Cursor<'k>) -> Self {
        match key.remaining() {
            length @ 0..=8 => Continuation::Ends(length as u8),
            _ => Continuation::Suffix(key.suffix()),
        }
    }

    pub fn suffix(self) -> &'k [u8] {
        if let Continuation::Suffix(suffix) = self { suffix } else { &[] }
    }

    #[inline]
    pub fn rank(self) -> u8 {
        if let Continuation::Ends(length) = self { length } else { 9 }
    }
}

/// Up to four bytes, zero padded, in memory order.
#[inline]
pub(super) fn tail_word(chunk: &[u8]) -> u32 {
    // Spelt out, because the compiler turns a copy of so few bytes into a function call.
    u32::from_ne_bytes(match *chunk {
        [a, b, c, d, ..] => [a, b, c, d],
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        [] => [0; 4],
    })
}

impl<'g> Border<'g> {
    /// Returns whether an entry with this suffix needs the bag.
    #[inline]
    pub fn needs_bag(self, suffix: &[u8]) -> bool {
        suffix.len() > self.layout().tail_bytes()
    }

    /// The continuation of a slot's key. `tail` receives a short suffix. While other threads may change the node, the
    /// result is valid only if the version has not changed afterwards.
    pub fn continuation<'a>(self, slot: usize, tail: &'a mut [u8; TAIL_BYTES_MAX]) -> Continuation<'a>
    where
        'g: 'a,
    {
        match self.code(slot) {
            LAYER => Continuation::Layer,
            length @ 0..=8 => Continuation::Ends(length),
            BAG => Continuation::Suffix(self.bag().and_then(|bag| bag.suffix(slot)).unwrap_or_default()),
            code => {
                let layout = self.layout();
                let length = code as usize - 8;
                assert!(
                    slot < self.width() && length <= layout.tail_bytes(),
                    "code {code} in slot {slot} of {layout:?}"
                );
                for index in 0..length.div_ceil(4) {
                    // SAFETY: the slot is below the width, and the suffix is at most as long as the tail.
                    let word = unsafe { self.tail_at(layout, slot, index) }.load(Relaxed).to_ne_bytes();
                    tail[4 * index..4 * index + 4].copy_from_slice(&word);
                }
                Continuation::Suffix(&tail[..length])
            }
        }
    }

    /// Length in bytes of a slot's suffix, in a node that no other thread changes; zero if it has none.
    pub fn suffix_bytes(self, slot: usize) -> usize {
        match self.code(slot) {
            0..=8 | LAYER => 0,
            BAG => self.bag().and_then(|bag| bag.suffix(slot)).map_or(0, <[u8]>::len),
            code => code as usize - 8,
        }
    }
}
