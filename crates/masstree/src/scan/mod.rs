//! Walking through the keys in order, in either direction, while others write.
//!
//! A walk copies one border node at a time, as of one moment (its version says so), and gives the copy's entries. Layers make a
//! stack of such copies. Nodes split only to the right, so that going on to the node that was next when the copy was made
//! leaves nothing out; going back, the left neighbour's copy must still have this node as its next. Where a node has been
//! unlinked meanwhile, or took over keys of an unlinked neighbour, the walk looks its place up again from the top.
//!
//! So every key that was there all the time is met exactly once, in order; keys that come or go meanwhile may be met or not.

mod ahead;
mod frame;

use std::cmp::Ordering;
use std::ops::Bound;

use self::ahead::Siblings;
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
    /// The deepest layer that is open, and those above it. At the end none is, and nothing is left in the frame.
    top: Box<Frame<'g>>,
    #[allow(clippy::vec_box, reason = "a frame is a thousand bytes, and changes places")]
    above: Vec<Box<Frame<'g>>>,
    #[allow(clippy::vec_box, reason = "as above")]
    spare: Vec<Box<Frame<'g>>>,
    depth: usize,
    /// The last key given, or what was being looked for: with `mode`, where to look up the place again. The buffer is longer
    /// than the key: it has room for a slice and a tail in the deepest layer.
    key: Vec<u8>,
    key_len: usize,
    mode: Mode,
    /// The last key that is given, or the first that is not.
    end: Bound<Vec<u8>>,
}

/// What a step with something in its way came to.
enum Slow {
    /// The word of an entry, whose key is in the buffer.
    Entry(u64),
    Again,
    End,
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
        let top = Box::new(Frame::new());
        let (above, spare) = (Vec::new(), Vec::new());
        let mut walk = Walk { tree, guard, top, above, spare, depth: 0, key, key_len, mode, end };
        walk.seek();
        walk
    }

    pub fn end(&self) -> &Bound<Vec<u8>> {
        &self.end
    }

    /// The next key (or the previous one) and its value's word.
    #[inline(always)]
    pub fn step(&mut self) -> Option<(&[u8], u64)> {
        loop {
            // Entries that need not be compared with the end, with the whole key in the node: the usual ones.
            if let Some(slot) = self.top.next_free::<FORWARD>() {
                let code = self.top.copy.code(slot);
                if code < BAG {
                    let word = self.top.copy.word(slot);
                    self.assemble(slot, code);
                    return Some((&self.key[..self.key_len], word));
                }
                self.top.put_back::<FORWARD>();
            }
            match self.step_slowly() {
                Slow::Entry(word) => return Some((&self.key[..self.key_len], word)),
                Slow::Again => {}
                Slow::End => return None,
            }
        }
    }

    /// The key of a slot, of which all is in the node.
    #[inline(always)]
    fn assemble(&mut self, slot: usize, code: u8) {
        let start = 8 * (self.depth - 1);
        // There is room in the layers that are open, see `make_room`; the test is for the compiler.
        let Some(room) = self.key[start..].first_chunk_mut::<ROOM>() else { unreachable!("room for a key") };
        room[..8].copy_from_slice(&self.top.copy.slice(slot).to_be_bytes());
        if code > 8 {
            // A torn copy has been rejected: the length fits the tail.
            room[8..].copy_from_slice(self.top.copy.tail(slot));
        }
        self.key_len = start + code as usize;
        self.mode = Mode::Excluded;
    }

    /// The next entry where something is in the way: a layer, the bag, the end, or the node is done.
    #[inline(never)]
    fn step_slowly(&mut self) -> Slow {
        if self.depth == 0 {
            return Slow::End;
        }
        let Some((entry, slot)) = self.top.next::<FORWARD>() else {
            self.move_on();
            return Slow::Again;
        };
        let (code, word) = (self.top.copy.code(slot), self.top.copy.word(slot));
        let start = 8 * (self.depth - 1);
        match code {
            LAYER => {
                self.key[start..start + 8].copy_from_slice(&self.top.copy.slice(slot).to_be_bytes());
                self.key_len = start + 8;
                self.mode = if FORWARD { Mode::Excluded } else { Mode::Within };
                self.enter(word);
                return Slow::Again;
            }
            BAG => {
                let suffix = self.top.copy.bagged(slot);
                let end = start + 8 + suffix.len();
                if self.key.len() < end {
                    self.key.resize(end, 0);
                }
                self.key[start..start + 8].copy_from_slice(&self.top.copy.slice(slot).to_be_bytes());
                self.key[start + 8..end].copy_from_slice(suffix);
                self.key_len = end;
                self.mode = Mode::Excluded;
            }
            _ => self.assemble(slot, code),
        }
        let is_free = if FORWARD { entry < self.top.free } else { entry >= self.top.free };
        if !is_free && self.is_beyond_end() {
            self.depth = 0;
            self.top.clear();
            return Slow::End;
        }
        Slow::Entry(word)
    }

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
        let (border, seen, ancestors) = descend_by(root, slice)?;
        let end = self.end_of_layer(8 * self.depth, path);
        if self.depth > 0 {
            let next = self.spare.pop().unwrap_or_else(|| Box::new(Frame::new()));
            self.above.push(std::mem::replace(&mut self.top, next));
        }
        self.depth += 1;
        let frame = &mut *self.top;
        frame.root = Some(root);
        frame.end = end;
        frame.siblings = Siblings::find::<FORWARD>(ancestors, slice);
        frame.done = None;
        if frame.take(border, seen).is_err() {
            self.pop();
            return Err(Restart);
        }
        let frame = &mut *self.top;
        frame.find_free::<FORWARD>();
        frame.prefetch_layers();
        Ok(frame)
    }

    /// Leaves the deepest layer.
    fn pop(&mut self) {
        self.depth -= 1;
        match self.above.pop() {
            Some(above) => self.spare.push(std::mem::replace(&mut self.top, above)),
            None => self.top.clear(),
        }
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
        match self.top.advance::<FORWARD>() {
            Ok(true) => {}
            Ok(false) => self.pop(),
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
        while self.depth > 0 {
            self.pop();
        }
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
