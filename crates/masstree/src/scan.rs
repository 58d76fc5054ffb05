//! Walking through the keys in order, in either direction, while others write.
//!
//! A walk copies one border node at a time, as of one moment (its version says so), and gives the copy's entries. Layers make a
//! stack of such copies. Nodes split only to the right, so that going on to the node that was next when the copy was made
//! leaves nothing out; going back, the left neighbour's copy must still have this node as its next. Where a node has been
//! unlinked meanwhile, or took over keys of an unlinked neighbour, the walk looks its place up again from the top.
//!
//! So every key that was there all the time is met exactly once, in order; keys that come or go meanwhile may be met or not.

use crate::descend::{Restart, descend_by};
use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{BAG, Border, Interior, LAYER, Node, Seen, Shape, WIDTH, prefetch_node, rank};
use crate::sync::{Acquire, Backoff, Relaxed};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

const TAIL_WORDS: usize = WIDTH * Shape::TAIL_MAX as usize;

/// Which border nodes come next, as the parent of one tells: only a hint, for prefetching.
#[derive(Clone, Copy)]
struct Siblings<'g> {
    parent: Interior<'g>,
    /// The child that was asked for last.
    position: usize,
    /// Moves since all children had been asked for.
    beyond: usize,
}

/// Siblings that are asked for ahead: copying one takes a third of the time that memory needs to deliver one.
const AHEAD: usize = 3;

/// A copy of a border node.
struct Frame<'g> {
    /// The layer's root, when the walk came into it.
    root: Node<'g>,
    siblings: Option<Siblings<'g>>,
    border: Border<'g>,
    next: u64,
    count: usize,
    /// Forward: the next entry. Backward: entries left.
    position: usize,
    /// Slice and rank of what is done in this layer, before the copied entries that are.
    done: Option<(u64, u8)>,
    slices: [u64; WIDTH],
    codes: [u8; WIDTH],
    words: [u64; WIDTH],
    tails: [u32; TAIL_WORDS],
    /// Suffixes of the entries that have them in the bag.
    bagged: [&'g [u8]; WIDTH],
}

impl<'g> Frame<'g> {
    fn new(border: Border<'g>) -> Self {
        Frame {
            root: Node::Border(border),
            siblings: None,
            border,
            next: 0,
            count: 0,
            position: 0,
            done: None,
            slices: [0; WIDTH],
            codes: [0; WIDTH],
            words: [0; WIDTH],
            tails: [0; TAIL_WORDS],
            bagged: [&[]; WIDTH],
        }
    }

    /// Copies a node as of one moment; fails if keys may have left it since `seen`.
    fn copy(&mut self, border: Border<'g>, mut seen: Seen) -> Result<(), Restart> {
        self.border = border;
        loop {
            if seen.is_deleted() {
                return Err(Restart);
            }
            self.copy_racily(border);
            if !border.version().changed(seen) {
                return Ok(());
            }
            let now = border.stable();
            if seen.moved_on(now) {
                return Err(Restart);
            }
            seen = now;
        }
    }

    #[inline]
    fn copy_racily(&mut self, border: Border<'g>) {
        self.next = border.next();
        let permutation = border.permutation();
        let shape = border.shape();
        self.count = permutation.count().min(WIDTH);
        for i in 0..self.count {
            let slot = permutation.slot(i);
            self.slices[i] = border.slice(slot).load(Relaxed);
            self.words[i] = border.value_of(shape, slot).load(Acquire);
            let code = border.code(slot);
            self.codes[i] = code;
            for index in 0..shape.tail as usize {
                self.tails[i * Shape::TAIL_MAX as usize + index] = border.tail_of(shape, slot, index).load(Relaxed);
            }
            if code == BAG {
                self.bagged[i] = border.bag().and_then(|bag| bag.suffix(slot)).unwrap_or_default();
            }
        }
    }

    /// Asks for the nodes that a walk comes to after that of a slice, whose parent is given.
    fn find_siblings(&mut self, parent: Option<Interior<'g>>, slice: u64, direction: Direction) {
        self.siblings = parent.map(|parent| {
            let position = parent.position(slice, parent.version().stable().count());
            Siblings { parent, position, beyond: 0 }
        });
        for _ in 0..AHEAD {
            self.prefetch_sibling(direction);
        }
    }

    /// Asks for one more of the nodes to come. False if the parent has no more.
    #[inline]
    fn prefetch_sibling(&mut self, direction: Direction) -> bool {
        let Some(siblings) = &mut self.siblings else { return false };
        let position = match direction {
            Direction::Forward => siblings.position + 1,
            Direction::Backward => siblings.position.wrapping_sub(1),
        };
        let word = if position <= WIDTH { siblings.parent.child(position) } else { 0 };
        if word == 0 {
            return false;
        }
        siblings.position = position;
        prefetch_node(word);
        true
    }

    /// After a move: asks for a node further on.
    #[inline]
    fn look_ahead(&mut self, direction: Direction) {
        if self.prefetch_sibling(direction) || self.siblings.is_none() {
            return;
        }
        // The nodes of the next parent are asked for when the walk has come there; until then, neighbours.
        let neighbour = if direction == Direction::Forward { self.next } else { self.border.previous() };
        if neighbour != 0 {
            prefetch_node(neighbour);
        }
        if let Some(siblings) = &mut self.siblings {
            siblings.beyond += 1;
            if siblings.beyond > AHEAD && self.count > 0 {
                let slice = self.slices[self.count - 1];
                let parent = descend_by(self.root, slice).ok().and_then(|(_, _, parent)| parent);
                self.find_siblings(parent, slice, direction);
            }
        }
    }

    /// Asks for the layers of the entries.
    #[inline]
    fn prefetch_layers(&self) {
        for entry in 0..self.count {
            if self.codes[entry] == LAYER {
                prefetch_node(self.words[entry]);
            }
        }
    }

    fn order(&self, entry: usize) -> (u64, u8) {
        (self.slices[entry], rank(self.codes[entry]))
    }

    /// Entries before a slice and rank.
    fn below(&self, order: (u64, u8)) -> usize {
        (0..self.count).take_while(|&entry| self.order(entry) < order).count()
    }

    /// Appends the suffix of an entry.
    #[inline]
    fn push_suffix(&self, entry: usize, key: &mut Vec<u8>) {
        if self.codes[entry] == BAG {
            key.extend_from_slice(self.bagged[entry]);
            return;
        }
        // A torn copy has been rejected: the length fits the tail.
        let end = key.len() + self.codes[entry] as usize - 8;
        for &word in &self.tails[entry * Shape::TAIL_MAX as usize..][..(end - key.len()).div_ceil(4)] {
            key.extend_from_slice(&word.to_be_bytes());
        }
        key.truncate(end);
    }
}

pub(crate) struct Walk<'g> {
    tree: &'g Tree,
    guard: &'g Guard,
    direction: Direction,
    /// The first `depth` are in use, one for each layer from the first.
    frames: Vec<Frame<'g>>,
    depth: usize,
    /// The last key given, or what was being looked for: with `mode`, where to look up the place again. The buffer is longer
    /// than the key: it has room for a slice and a tail in the deepest layer.
    key: Vec<u8>,
    key_len: usize,
    mode: Mode,
}

/// Bytes of a slice and the longest tail.
const ROOM: usize = 8 + 4 * Shape::TAIL_MAX as usize;

impl<'g> Walk<'g> {
    pub fn new(tree: &'g Tree, guard: &'g Guard, direction: Direction, key: &[u8], mode: Mode) -> Self {
        let mut walk = Walk {
            tree,
            guard,
            direction,
            frames: Vec::with_capacity(2),
            depth: 0,
            key: key.to_vec(),
            key_len: key.len(),
            mode,
        };
        walk.seek();
        walk
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
            let entry = match self.direction {
                Direction::Forward if frame.position < frame.count => {
                    frame.position += 1;
                    frame.position - 1
                }
                Direction::Backward if frame.position > 0 => {
                    frame.position -= 1;
                    frame.position
                }
                _ => {
                    self.move_on();
                    continue;
                }
            };
            let start = 8 * (depth - 1);
            let code = frame.codes[entry];
            // There is room in the layers that are open, see `make_room`; the test is for the compiler.
            let Some(room) = self.key[start..].first_chunk_mut::<ROOM>() else { unreachable!("room for a key") };
            room[..8].copy_from_slice(&frame.slices[entry].to_be_bytes());
            self.key_len = match code {
                0..=8 => start + code as usize,
                LAYER => {
                    self.key_len = start + 8;
                    let word = frame.words[entry];
                    self.mode = if self.direction == Direction::Forward { Mode::Excluded } else { Mode::Within };
                    self.enter(word);
                    continue;
                }
                BAG => {
                    let end = start + 8 + frame.bagged[entry].len();
                    if self.key.len() < end {
                        self.key.resize(end, 0);
                    }
                    self.key[start + 8..end].copy_from_slice(frame.bagged[entry]);
                    end
                }
                // A torn copy has been rejected: the length fits the tail.
                _ => {
                    let tail = entry * Shape::TAIL_MAX as usize;
                    room[8..12].copy_from_slice(&frame.tails[tail].to_be_bytes());
                    if code > 12 {
                        for index in 1..Shape::TAIL_MAX as usize {
                            let at = 8 + 4 * index;
                            room[at..at + 4].copy_from_slice(&frame.tails[tail + index].to_be_bytes());
                        }
                    }
                    start + code as usize
                }
            };
            self.mode = Mode::Excluded;
            let word = frame.words[entry];
            return Some((&self.key[..self.key_len], word));
        }
    }

    /// Copies the node of a layer that is responsible for a slice into the next frame.
    fn push(&mut self, root: Node<'g>, slice: u64) -> Result<&mut Frame<'g>, Restart> {
        let (border, seen, parent) = descend_by(root, slice)?;
        if self.frames.len() == self.depth {
            self.frames.push(Frame::new(border));
        }
        let frame = &mut self.frames[self.depth];
        frame.root = root;
        frame.find_siblings(parent, slice, self.direction);
        frame.copy(border, seen)?;
        frame.done = None;
        self.depth += 1;
        frame.prefetch_layers();
        Ok(frame)
    }

    /// Goes into the layer of an entry, at its first or last node.
    fn enter(&mut self, word: u64) {
        // SAFETY: the word was copied from a node of that moment; the guard keeps the layer's root allocated.
        let root = unsafe { Node::from_word(word) };
        let (slice, forward) = match self.direction {
            Direction::Forward => (0, true),
            Direction::Backward => (u64::MAX, false),
        };
        match self.push(root, slice) {
            Ok(frame) => {
                frame.position = if forward { 0 } else { frame.count };
                self.make_room();
            }
            Err(Restart) => self.seek(),
        }
    }

    /// From an exhausted node to the next, or back to the layer above.
    #[cold]
    fn move_on(&mut self) {
        let frame = &mut self.frames[self.depth - 1];
        if frame.count > 0 {
            let last = if self.direction == Direction::Forward { frame.count - 1 } else { 0 };
            frame.done = Some(frame.order(last));
        }
        let moved = match self.direction {
            Direction::Forward => forward(frame),
            Direction::Backward => backward(frame),
        };
        match moved {
            Ok(true) => {
                frame.look_ahead(self.direction);
                frame.prefetch_layers();
            }
            Ok(false) => self.depth -= 1,
            Err(Restart) => self.seek(),
        }
    }

    /// Looks up the place of `key` and `mode` from the top.
    fn seek(&mut self) {
        let key = std::mem::take(&mut self.key);
        while self.try_seek(&key[..self.key_len]).is_err() {}
        self.key = key;
        self.make_room();
    }

    /// The buffer must have room for the keys of the deepest layer.
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
            let (mode, direction) = (self.mode, self.direction);
            let frame = self.push(root, order.0)?;
            frame.done = (direction == Direction::Forward).then_some(order);
            let at = frame.below(order);
            frame.position = at;
            if at == frame.count || frame.order(at) != order {
                return Ok(());
            }
            // Whether the entry found comes before the place: strictly less, or equal and on the far side.
            let equal_is_before = (mode == Mode::Included) == (direction == Direction::Backward);
            let is_before = match frame.codes[at] {
                LAYER => {
                    let word = frame.words[at];
                    frame.position += usize::from(direction == Direction::Forward);
                    // SAFETY: as in `enter`.
                    root = unsafe { Node::from_word(word) };
                    cursor.advance();
                    continue;
                }
                0..=8 => equal_is_before,
                _ => {
                    let mut suffix = Vec::new();
                    frame.push_suffix(at, &mut suffix);
                    match suffix.as_slice().cmp(cursor.suffix()) {
                        std::cmp::Ordering::Less => true,
                        _ if mode == Mode::Within => suffix.starts_with(cursor.suffix()),
                        std::cmp::Ordering::Equal => equal_is_before,
                        std::cmp::Ordering::Greater => false,
                    }
                }
            };
            frame.position += usize::from(is_before);
            return Ok(());
        }
    }
}

/// Replaces the copy by that of the next node. False if there is none.
fn forward(frame: &mut Frame<'_>) -> Result<bool, Restart> {
    if frame.next == 0 {
        return Ok(false);
    }
    // SAFETY: the node was next when the copy was made, under the guard.
    let Node::Border(next) = (unsafe { Node::from_word(frame.next) }) else { return Err(Restart) };
    frame.copy(next, next.stable())?;
    frame.position = 0;
    // A node may take over keys of a left neighbour that was unlinked.
    if frame.count > 0 && frame.done.is_some_and(|done| frame.order(0) <= done) { Err(Restart) } else { Ok(true) }
}

/// Replaces the copy by that of the previous node. False if there is none.
fn backward(frame: &mut Frame<'_>) -> Result<bool, Restart> {
    let border = frame.border;
    let mut backoff = Backoff::default();
    loop {
        let seen = border.stable();
        if seen.is_deleted() {
            return Err(Restart);
        }
        let word = border.previous();
        if word == 0 {
            if border.version().changed(seen) {
                continue;
            }
            return Ok(false);
        }
        // SAFETY: the node was the left neighbour of one in the tree, under the guard.
        let Node::Border(left) = (unsafe { Node::from_word(word) }) else { return Err(Restart) };
        // If it is split or deleted, this node gets another neighbour.
        if frame.copy(left, left.stable()).is_ok() && frame.next == border.word() {
            break;
        }
        backoff.wait();
    }
    frame.position = frame.count;
    let too_far = |done| frame.count > 0 && frame.order(frame.count - 1) >= done;
    if frame.done.is_some_and(too_far) { Err(Restart) } else { Ok(true) }
}
