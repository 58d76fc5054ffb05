//! Walking through the keys in order, in either direction, while others write.
//!
//! A walk copies one border node at a time, as of one moment (its version says so), and gives the copy's entries. Layers make a
//! stack of such copies. Nodes split only to the right, so that going on to the node that was next when the copy was made
//! leaves nothing out; going back, the left neighbour's copy must still have this node as its next. Where a node has been
//! unlinked meanwhile, or took over keys of an unlinked neighbour, the walk looks its place up again from the top.
//!
//! So every key that was there all the time is met exactly once, in order; keys that come or go meanwhile may be met or not.

mod frame;

use std::cmp::Ordering;
use std::ops::Bound;

use self::frame::{End, Frame};
use crate::descend::{Restart, descend_by};
use crate::guard::Guard;
use crate::key::{Cursor, slice_at};
use crate::node::{BAG, LAYER, Node, TAIL_BYTES};
use crate::tree::Tree;

/// Where a walk starts, or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// At the key itself.
    Included,
    /// Beyond the key.
    Excluded,
    /// Backwards: before the end of all keys that begin with these bytes, a multiple of eight; all keys if there are none.
    Within,
}

/// A walk forward, or backward.
pub(crate) struct Walk<'g, const FORWARD: bool> {
    tree: &'g Tree,
    guard: &'g Guard,
    /// The first `depth` are in use, one for each layer from the first.
    frames: Vec<Frame<'g>>,
    depth: usize,
    /// The last key given, or what was being looked for: with `mode`, where to look up the place again. The buffer is longer
    /// than the key: it has room for a slice and a tail in the deepest layer.
    key: Vec<u8>,
    key_len: usize,
    mode: Mode,
    /// The last key that is given, or the first that is not.
    end: Bound<Vec<u8>>,
}

/// Bytes of a slice and the longest tail.
const ROOM: usize = 8 + TAIL_BYTES;

impl<'g, const FORWARD: bool> Walk<'g, FORWARD> {
    pub fn new(tree: &'g Tree, guard: &'g Guard, start: Bound<Vec<u8>>, end: Bound<Vec<u8>>) -> Self {
        let (key, mode) = match start {
            Bound::Included(key) => (key, Mode::Included),
            Bound::Excluded(key) => (key, Mode::Excluded),
            Bound::Unbounded if FORWARD => (Vec::new(), Mode::Included),
            Bound::Unbounded => (Vec::new(), Mode::Within),
        };
        let key_len = key.len();
        let mut walk = Walk { tree, guard, frames: Vec::with_capacity(2), depth: 0, key, key_len, mode, end };
        walk.seek();
        walk
    }

    pub fn end(&self) -> &Bound<Vec<u8>> {
        &self.end
    }

    /// The next key (or the previous one) and its value's word.
    #[inline]
    pub fn step(&mut self) -> Option<(&[u8], u64)> {
        loop {
            let depth = self.depth;
            if depth == 0 {
                return None;
            }
            let frame = &mut self.frames[depth - 1];
            let entry = if FORWARD && frame.position < frame.count {
                frame.position += 1;
                frame.position - 1
            } else if !FORWARD && frame.position > 0 {
                frame.position -= 1;
                frame.position
            } else {
                self.move_on();
                continue;
            };
            let is_free = if FORWARD { entry < frame.free } else { entry >= frame.free };
            let slot = frame.slot(entry);
            let start = 8 * (depth - 1);
            let code = frame.copy.code(slot);
            let word = frame.copy.word(slot);
            // There is room in the layers that are open, see `make_room`; the test is for the compiler.
            let Some(room) = self.key[start..].first_chunk_mut::<ROOM>() else { unreachable!("room for a key") };
            room[..8].copy_from_slice(&frame.copy.slice(slot).to_be_bytes());
            self.key_len = match code {
                0..=8 => start + code as usize,
                LAYER => {
                    self.key_len = start + 8;
                    self.mode = if FORWARD { Mode::Excluded } else { Mode::Within };
                    self.enter(word);
                    continue;
                }
                BAG => {
                    let suffix = frame.copy.bagged(slot);
                    let end = start + 8 + suffix.len();
                    if self.key.len() < end {
                        self.key.resize(end, 0);
                    }
                    self.key[start + 8..end].copy_from_slice(suffix);
                    end
                }
                // A torn copy has been rejected: the length fits the tail.
                _ => {
                    room[8..].copy_from_slice(&frame.copy.tail(slot));
                    start + code as usize
                }
            };
            self.mode = Mode::Excluded;
            if !is_free && self.is_beyond_end() {
                self.depth = 0;
                return None;
            }
            return Some((&self.key[..self.key_len], word));
        }
    }

    #[cold]
    fn is_beyond_end(&self) -> bool {
        let key = &self.key[..self.key_len];
        let beyond = if FORWARD { Ordering::Greater } else { Ordering::Less };
        match &self.end {
            Bound::Unbounded => false,
            Bound::Included(end) => key.cmp(end.as_slice()) == beyond,
            Bound::Excluded(end) => {
                matches!(key.cmp(end.as_slice()), Ordering::Equal) || key.cmp(end.as_slice()) == beyond
            }
        }
    }

    /// How the keys that begin with the first `bytes` bytes of the present one compare with the end.
    fn end_of_layer(&self, bytes: usize, path: &[u8]) -> End {
        let (Bound::Included(end) | Bound::Excluded(end)) = &self.end else { return End::Beyond };
        if bytes == 0 {
            return End::Slice(slice_at(end, 0));
        }
        let above = &end[..end.len().min(bytes)];
        match path[..bytes].cmp(above) {
            Ordering::Equal => End::Slice(slice_at(end, bytes)),
            Ordering::Less if FORWARD => End::Beyond,
            Ordering::Greater if !FORWARD => End::Beyond,
            _ => End::Unknown,
        }
    }

    /// Copies the node of a layer that is responsible for a slice into the next frame. The layers above are those of `path`.
    fn push(&mut self, root: Node<'g>, slice: u64, path: &[u8]) -> Result<&mut Frame<'g>, Restart> {
        let (border, seen, parent) = descend_by(root, slice)?;
        let end = self.end_of_layer(8 * self.depth, path);
        if self.frames.len() == self.depth {
            self.frames.push(Frame::new(border));
        }
        let frame = &mut self.frames[self.depth];
        frame.root = root;
        frame.end = end;
        frame.find_siblings::<FORWARD>(parent, slice);
        frame.take(border, seen)?;
        frame.find_free::<FORWARD>();
        frame.done = None;
        self.depth += 1;
        frame.prefetch_layers();
        Ok(frame)
    }

    /// Goes into the layer of an entry, at its first or last node.
    fn enter(&mut self, word: u64) {
        // SAFETY: the word was copied from a node of that moment; the guard keeps the layer's root allocated.
        let root = unsafe { Node::from_word(word) };
        let key = std::mem::take(&mut self.key);
        let pushed = self.push(root, if FORWARD { 0 } else { u64::MAX }, &key);
        let entered = match pushed {
            Ok(frame) => {
                frame.position = if FORWARD { 0 } else { frame.count };
                true
            }
            Err(Restart) => false,
        };
        self.key = key;
        if entered { self.make_room() } else { self.seek() }
    }

    /// From an exhausted node to the next, or back to the layer above.
    fn move_on(&mut self) {
        match self.frames[self.depth - 1].advance::<FORWARD>() {
            Ok(true) => {}
            Ok(false) => self.depth -= 1,
            Err(Restart) => self.seek(),
        }
    }

    /// Looks up the place of `key` and `mode` from the top.
    #[cold]
    fn seek(&mut self) {
        let key = std::mem::take(&mut self.key);
        while self.try_seek(&key[..self.key_len]).is_err() {}
        self.key = key;
        self.make_room();
    }

    /// The buffer must have room for the keys of the deepest layer.
    #[inline]
    fn make_room(&mut self) {
        let bytes = 8 * self.depth + ROOM;
        if self.key.len() < bytes {
            self.key.resize(bytes, 0);
        }
    }

    fn try_seek(&mut self, key: &[u8]) -> Result<(), Restart> {
        self.depth = 0;
        let mut cursor = Cursor::new(key);
        let mut root = self.tree.root(self.guard);
        loop {
            let within = self.mode == Mode::Within && cursor.remaining() <= 8;
            // Beyond all entries of the slice, or of the layer.
            let order = match (within, cursor.remaining()) {
                (true, 0) => (u64::MAX, 10),
                (true, _) => (cursor.slice(), 10),
                (false, _) => (cursor.slice(), cursor.rank()),
            };
            let mode = self.mode;
            let frame = self.push(root, order.0, key)?;
            frame.done = FORWARD.then_some(order);
            let at = frame.below(order);
            frame.position = at;
            if at == frame.count || frame.order(at) != order {
                return Ok(());
            }
            // Whether the entry found comes before the place: strictly less, or equal and on the far side.
            let equal_is_before = (mode == Mode::Included) != FORWARD;
            let slot = frame.slot(at);
            let is_before = match frame.copy.code(slot) {
                LAYER => {
                    let word = frame.copy.word(slot);
                    frame.position += usize::from(FORWARD);
                    // SAFETY: as in `enter`.
                    root = unsafe { Node::from_word(word) };
                    cursor.advance();
                    continue;
                }
                0..=8 => equal_is_before,
                _ => match frame.compare_suffix(at, cursor.suffix()) {
                    (Ordering::Less, _) => true,
                    (_, begins_with) if mode == Mode::Within => begins_with,
                    (Ordering::Equal, _) => equal_is_before,
                    (Ordering::Greater, _) => false,
                },
            };
            frame.position += usize::from(is_before);
            return Ok(());
        }
    }
}
