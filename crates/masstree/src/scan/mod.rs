//! Range scans in either direction, while other threads write.
//!
//! A scan takes a consistent copy of one border node at a time, checked by the node's version, and returns the copy's
//! entries. The layers on the way make a stack of such copies, the *frames*. Nodes split only to the right. A forward
//! scan therefore misses nothing when it continues with the node that was next when the copy was made. A backward scan
//! checks that the copy of the left neighbour still has the current node as its next. If a node has been unlinked, or
//! has taken over the key range of an unlinked neighbour, the scan seeks its position again from the root.
//!
//! Every key that is in the map during the whole scan is therefore returned exactly once, in order. Keys that are
//! inserted or removed meanwhile may be returned or not.

mod frame;
mod prefetch;

use std::cmp::Ordering;
use std::ops::Bound;

use self::frame::{Frame, LayerBound};
use self::prefetch::SiblingPrefetch;
use crate::descend::{Restart, descend_with_ancestors};
use crate::guard::Guard;
use crate::key::{Cursor, slice_at};
use crate::node::{BAG, LAYER, Node, TAIL_BYTES_MAX};
use crate::tree::Tree;

/// The position, relative to a key, at which a scan starts or resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeekMode {
    /// At the key itself.
    Included,
    /// Beyond the key.
    Excluded,
    /// Backward only: at the last of all keys with this prefix, the length of which is a multiple of eight.
    Within,
}

/// A scan, forward or backward.
pub(crate) struct Scan<'g, const FORWARD: bool> {
    tree: &'g Tree,
    guard: &'g Guard,
    /// The frame of the deepest open layer. At the end of the scan no layer is open and the frame has no entries left.
    top: Box<Frame<'g>>,
    /// The frames of the layers above, first layer first.
    #[allow(clippy::vec_box, reason = "frames have a thousand bytes and move between the vectors")]
    above: Vec<Box<Frame<'g>>>,
    /// Unused frames.
    #[allow(clippy::vec_box, reason = "frames have a thousand bytes and move between the vectors")]
    spare: Vec<Box<Frame<'g>>>,
    /// Number of open layers.
    depth: usize,
    /// The last key returned, or the key that is being sought: together with `mode`, the position to seek again. The
    /// buffer is longer than the key, with room for a slice and a tail in the deepest layer.
    key: Vec<u8>,
    key_len: usize,
    mode: SeekMode,
    /// The end of the range, in the direction of the scan.
    end: Bound<Vec<u8>>,
}

/// Result of a step that was not on the fast path.
enum SlowStep {
    /// The word of an entry, whose key is in the buffer.
    Entry(u64),
    /// The scan has moved and continues.
    Continue,
    End,
}

/// Bytes of a slice and the longest tail.
const ROOM: usize = 8 + TAIL_BYTES_MAX;

impl<'g, const FORWARD: bool> Scan<'g, FORWARD> {
    pub fn new(tree: &'g Tree, guard: &'g Guard, start: Bound<Vec<u8>>, end: Bound<Vec<u8>>) -> Self {
        let (key, mode) = match start {
            Bound::Included(key) => (key, SeekMode::Included),
            Bound::Excluded(key) => (key, SeekMode::Excluded),
            Bound::Unbounded if FORWARD => (Vec::new(), SeekMode::Included),
            Bound::Unbounded => (Vec::new(), SeekMode::Within),
        };
        let key_len = key.len();
        let top = Box::new(Frame::new());
        let (above, spare) = (Vec::new(), Vec::new());
        let mut scan = Scan { tree, guard, top, above, spare, depth: 0, key, key_len, mode, end };
        scan.seek();
        scan
    }

    pub fn end(&self) -> &Bound<Vec<u8>> {
        &self.end
    }

    /// The next entry in the direction of the scan: its key and its value's word.
    #[inline(always)]
    pub fn step(&mut self) -> Option<(&[u8], u64)> {
        loop {
            // Fast path: the entry is known to be in the range, and the node has its whole key.
            if let Some(slot) = self.top.next_in_range::<FORWARD>() {
                let code = self.top.copy.code(slot);
                if code < BAG {
                    let word = self.top.copy.word(slot);
                    self.assemble(slot, code);
                    return Some((&self.key[..self.key_len], word));
                }
                self.top.put_back::<FORWARD>();
            }
            match self.step_slowly() {
                SlowStep::Entry(word) => return Some((&self.key[..self.key_len], word)),
                SlowStep::Continue => {}
                SlowStep::End => return None,
            }
        }
    }

    /// Copies the key of a slot, which is completely in the node, into the buffer.
    #[inline(always)]
    fn assemble(&mut self, slot: usize, code: u8) {
        let start = 8 * (self.depth - 1);
        // `make_room` has made the room; the test saves bounds checks below.
        let Some(room) = self.key[start..].first_chunk_mut::<ROOM>() else { unreachable!("room for a key") };
        room[..8].copy_from_slice(&self.top.copy.slice(slot).to_be_bytes());
        if code > 8 {
            // Inconsistent copies have been rejected, so that the length fits the tail.
            room[8..].copy_from_slice(self.top.copy.tail(slot));
        }
        self.key_len = start + code as usize;
        self.mode = SeekMode::Excluded;
    }

    /// A step to an entry that leads to a layer, has its suffix in the bag, or may be beyond the end; or to the next
    /// node.
    #[inline(never)]
    fn step_slowly(&mut self) -> SlowStep {
        if self.depth == 0 {
            return SlowStep::End;
        }
        let Some((entry, slot)) = self.top.next::<FORWARD>() else {
            self.next_node();
            return SlowStep::Continue;
        };
        let (code, word) = (self.top.copy.code(slot), self.top.copy.word(slot));
        let start = 8 * (self.depth - 1);
        match code {
            LAYER => {
                self.key[start..start + 8].copy_from_slice(&self.top.copy.slice(slot).to_be_bytes());
                self.key_len = start + 8;
                self.mode = if FORWARD { SeekMode::Excluded } else { SeekMode::Within };
                self.enter(word);
                return SlowStep::Continue;
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
                self.mode = SeekMode::Excluded;
            }
            _ => self.assemble(slot, code),
        }
        let is_in_range = if FORWARD { entry < self.top.range_limit } else { entry >= self.top.range_limit };
        if !is_in_range && self.is_beyond_end() {
            self.depth = 0;
            self.top.clear();
            return SlowStep::End;
        }
        SlowStep::Entry(word)
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

    /// The bound that the scan's end puts on the slices of a layer whose keys begin with the first `bytes` bytes of
    /// `path`.
    fn bound_of_layer(&self, bytes: usize, path: &[u8]) -> LayerBound {
        let (Bound::Included(end) | Bound::Excluded(end)) = &self.end else { return LayerBound::None };
        if bytes == 0 {
            return LayerBound::Slice(slice_at(end, 0));
        }
        let above = &end[..end.len().min(bytes)];
        match path[..bytes].cmp(above) {
            Ordering::Equal => LayerBound::Slice(slice_at(end, bytes)),
            Ordering::Less if FORWARD => LayerBound::None,
            Ordering::Greater if !FORWARD => LayerBound::None,
            _ => LayerBound::Unknown,
        }
    }

    /// Opens a layer: copies its node that is responsible for a slice into a new frame. `path` is a key in the layer.
    fn push(&mut self, root: Node<'g>, slice: u64, path: &[u8]) -> Result<&mut Frame<'g>, Restart> {
        let (border, observed, ancestors) = descend_with_ancestors(root, slice)?;
        let bound = self.bound_of_layer(8 * self.depth, path);
        if self.depth > 0 {
            let next = self.spare.pop().unwrap_or_else(|| Box::new(Frame::new()));
            self.above.push(std::mem::replace(&mut self.top, next));
        }
        self.depth += 1;
        let frame = &mut *self.top;
        frame.root = Some(root);
        frame.bound = bound;
        frame.siblings = SiblingPrefetch::start::<FORWARD>(ancestors, slice);
        frame.passed = None;
        if frame.take(border, observed).is_err() {
            self.pop();
            return Err(Restart);
        }
        let frame = &mut *self.top;
        frame.find_range_limit::<FORWARD>();
        frame.prefetch_layers();
        Ok(frame)
    }

    /// Closes the deepest layer.
    fn pop(&mut self) {
        assert!(self.depth > 0, "a layer is open");
        self.depth -= 1;
        match self.above.pop() {
            Some(above) => self.spare.push(std::mem::replace(&mut self.top, above)),
            None => self.top.clear(),
        }
    }

    /// Opens the layer of an entry at its first node, or its last node if the scan is backward.
    fn enter(&mut self, word: u64) {
        // SAFETY: the word is from a consistent copy of a node. The guard keeps the layer's root allocated.
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

    /// Moves from an exhausted node to the next one, or back to the layer above.
    fn next_node(&mut self) {
        match self.top.advance::<FORWARD>() {
            Ok(true) => {}
            Ok(false) => self.pop(),
            Err(Restart) => self.seek(),
        }
    }

    /// Seeks the position of `key` and `mode` from the root.
    #[cold]
    fn seek(&mut self) {
        let key = std::mem::take(&mut self.key);
        while self.try_seek(&key[..self.key_len]).is_err() {}
        self.key = key;
        self.make_room();
    }

    /// Makes room in the buffer for the keys of the deepest layer.
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
            let within = self.mode == SeekMode::Within && cursor.remaining() <= 8;
            // Slice and rank of the position. Rank 10 is beyond all entries of a slice.
            let order = match (within, cursor.remaining()) {
                (true, 0) => (u64::MAX, 10),
                (true, _) => (cursor.slice(), 10),
                (false, _) => (cursor.slice(), cursor.rank()),
            };
            let mode = self.mode;
            let frame = self.push(root, order.0, key)?;
            frame.passed = FORWARD.then_some(order);
            let at = frame.count_before(order);
            frame.position = at;
            if at == frame.count || frame.order(at) != order {
                return Ok(());
            }
            // True if an entry with the key itself comes before the position.
            let equal_is_before = (mode == SeekMode::Included) != FORWARD;
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
                    (_, has_prefix) if mode == SeekMode::Within => has_prefix,
                    (Ordering::Equal, _) => equal_is_before,
                    (Ordering::Greater, _) => false,
                },
            };
            frame.position += usize::from(is_before);
            return Ok(());
        }
    }
}
