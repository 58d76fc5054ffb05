//! Message chains: the messages of one key, newest first, behind one machine word. The word is the key's value in the
//! map of a root buffer.
//!
//! ```text
//!   word ─┬─ delete, or insert without value bytes: sequence number, prior and kind, in the word itself
//!         └─ pointer ──> references, length, sequence, function, kind, prior │ value or operand
//!                        older ──> word of the next older message, or none
//! ```
//!
//! Messages are reference-counted. The map holds a reference to the newest message of a key, and each message holds one
//! to the next older message. A word replaced in the map is retired: its reference is released once no guard remains
//! that a reader held when the word was replaced.
//!
//! Value and operand bytes never change. Garbage collection removes messages from the middle or the end of a chain by
//! storing another word into `older`, which is atomic; the old word is retired like a word of the map. Readers whose
//! snapshot needs a message always find it (see [`garbage`](super::garbage)).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use keyaki_masstree::{Guard, Value};
use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};

use crate::base::Prior;
use crate::message::MessageBytes;

/// The lowest bits of a word hold the kind; they are zero in a pointer.
const KIND_MASK: u64 = 3;
const INSERT: u64 = 1;
const DELETE: u64 = 2;
/// Occurs in headers only, never in a word.
const UPSERT: u64 = 3;

/// Position in a word of the knowledge of the row below the message, and of the sequence number.
const PRIOR_SHIFT: u32 = 2;
const SEQUENCE_SHIFT: u32 = 4;
/// Sequence numbers below this one fit into a word beside kind and knowledge.
const SEQUENCE_END: u64 = 1 << (64 - SEQUENCE_SHIFT);

/// Estimated overhead of the allocator for each message, in bytes.
const ALLOCATOR_BYTES: usize = 8;

/// The messages of a key, newest first; at least one. Owns a reference to the newest message.
pub(crate) struct MessageChain(u64);

/// A message chain borrowed by a reader under a guard.
#[derive(Clone, Copy)]
pub(crate) struct MessageChainRef<'g> {
    word: u64,
    lifetime: PhantomData<&'g Header>,
}

#[repr(C)]
struct Header {
    references: AtomicU32,
    /// Length in bytes of the value or operand, which follows the header.
    len: u32,
    sequence: u64,
    /// Word of the older messages; 0: none.
    older: AtomicU64,
    function: u32,
    kind: u16,
    /// Knowledge of the row below the oldest message of the chain.
    prior: AtomicU16,
}

const _: () = {
    assert!(
        size_of::<Header>() == 32 && align_of::<Header>() as u64 > KIND_MASK,
        "the kind bits of a pointer must be zero"
    );
    assert!(KIND_MASK >> PRIOR_SHIFT == 0 && (Prior::Present as u64) << PRIOR_SHIFT < 1 << SEQUENCE_SHIFT);
};

impl Header {
    fn layout(len: u32) -> Layout {
        let bytes = size_of::<Header>() + len as usize;
        // Less than 2^33 bytes: the layout is always valid.
        Layout::from_size_align(bytes, align_of::<Header>()).unwrap_or(Layout::new::<Header>())
    }
}

fn pointer(word: u64) -> Option<NonNull<Header>> {
    if word & KIND_MASK != 0 {
        return None;
    }
    NonNull::new(std::ptr::with_exposed_provenance_mut(word as usize))
}

impl MessageChain {
    /// A chain of a new message followed by the older ones. `prior` is the knowledge of the row below the message; that of
    /// the oldest message is kept.
    ///
    /// # Panics
    /// If the message has 4 GiB or more; batches refuse values and operands above 64 MiB.
    pub fn new(sequence: u64, message: &MessageBytes<'_>, prior: Prior, older: Option<MessageChain>) -> MessageChain {
        let prior = older.as_ref().map_or(prior, |older| older.as_ref().prior());
        let (kind, function, bytes) = match *message {
            MessageBytes::Insert(value) => (INSERT, 0, value),
            MessageBytes::Delete => (DELETE, 0, [].as_slice()),
            MessageBytes::Upsert { function, operand } => (UPSERT, function, operand),
        };
        if older.is_none() && bytes.is_empty() && kind != UPSERT && sequence < SEQUENCE_END {
            return MessageChain(sequence << SEQUENCE_SHIFT | u64::from(prior.to_number()) << PRIOR_SHIFT | kind);
        }
        let len =
            u32::try_from(bytes.len()).unwrap_or_else(|_| panic!("message of {} bytes exceeds 4 GiB", bytes.len()));
        let layout = Header::layout(len);
        // SAFETY: the layout has at least a header.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory.cast::<Header>()) else { handle_alloc_error(layout) };
        let header = Header {
            references: AtomicU32::new(1),
            len,
            sequence,
            older: AtomicU64::new(older.map_or(0, Value::into_word)),
            function,
            kind: kind as u16,
            prior: AtomicU16::new(prior.to_number().into()),
        };
        // SAFETY: fresh memory for a header and `len` bytes behind it, aligned for the header.
        unsafe {
            memory.write(header);
            memory.add(1).cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        MessageChain(memory.as_ptr().expose_provenance() as u64)
    }

    /// Puts this chain of one message, of which no reader has a reference, on top of older messages.
    ///
    /// # Panics
    /// If the chain has more than one message.
    pub fn put_on(self, older: MessageChain) -> MessageChain {
        let alone = self.as_ref();
        match alone.header() {
            Some(header) => {
                header.prior.store(older.as_ref().prior().to_number().into(), Ordering::Relaxed);
                let below = header.older.swap(older.into_word(), Ordering::Release);
                assert_eq!(below, 0, "the message already has older messages");
                self
            }
            None => MessageChain::new(alone.sequence(), &alone.message(), alone.prior(), Some(older)),
        }
    }

    /// The chain, borrowed from its owner.
    pub fn as_ref(&self) -> MessageChainRef<'_> {
        MessageChainRef { word: self.0, lifetime: PhantomData }
    }

    /// Heap bytes of the newest message; 0 if the message is in the word.
    pub fn heap_bytes(&self) -> usize {
        self.as_ref().heap_bytes()
    }

    /// Heap bytes that [`MessageChain::new`] allocates for a message; `on_top` if the message has older ones.
    pub fn heap_bytes_of(message: &MessageBytes<'_>, on_top: bool) -> usize {
        match message {
            MessageBytes::Delete if !on_top => 0,
            MessageBytes::Insert([]) if !on_top => 0,
            MessageBytes::Delete => allocated(0),
            MessageBytes::Insert(bytes) | MessageBytes::Upsert { operand: bytes, .. } => allocated(bytes.len()),
        }
    }
}

fn allocated(len: usize) -> usize {
    (size_of::<Header>() + len + ALLOCATOR_BYTES).next_multiple_of(16)
}

impl Drop for MessageChain {
    fn drop(&mut self) {
        let mut word = self.0;
        // Iterative: recursion over a long chain would overflow the stack.
        while let Some(header) = pointer(word) {
            // SAFETY: the word owns a reference, taken over from `self` or from the message freed last: the header is
            // alive.
            let references = unsafe { &header.as_ref().references };
            if references.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
            // SAFETY: that was the last reference, so no other thread accesses the header. It was allocated with this
            // layout. Its reference to the older messages passes to `word`.
            unsafe {
                word = header.as_ref().older.load(Ordering::Relaxed);
                let layout = Header::layout(header.as_ref().len);
                dealloc(header.cast().as_ptr(), layout);
            }
        }
    }
}

impl fmt::Debug for MessageChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

// SAFETY: a word is `MessageChain` without its destructor. Any number of threads may read a header, because after
// construction only its atomic fields change. `OWNED` is true, so the map retires every word.
unsafe impl Value for MessageChain {
    type Ref<'g> = MessageChainRef<'g>;
    const OWNED: bool = true;

    fn into_word(self) -> u64 {
        std::mem::ManuallyDrop::new(self).0
    }

    unsafe fn from_word(word: u64) -> Self {
        MessageChain(word)
    }

    #[inline]
    unsafe fn borrow<'g>(word: u64) -> MessageChainRef<'g> {
        MessageChainRef { word, lifetime: PhantomData }
    }
}

impl<'g> MessageChainRef<'g> {
    #[inline]
    fn header(self) -> Option<&'g Header> {
        // SAFETY: the word was read from the map, or from `older` below such a word, under a guard that lasts for 'g. A
        // replaced word is retired, so it is not dropped while the guard exists.
        pointer(self.word).map(|header| unsafe { header.as_ref() })
    }

    /// Prefetches the memory of the newest message.
    #[inline]
    pub fn prefetch(self) {
        if self.word & KIND_MASK == 0 {
            // The first 64 bytes of the message lie in at most two cache lines.
            let start = std::ptr::with_exposed_provenance::<u8>(self.word as usize);
            prefetch(start);
            prefetch(start.wrapping_add(CACHE_LINE_BYTES - 1));
        }
    }

    /// Sequence number of the newest message.
    #[inline]
    pub fn sequence(self) -> u64 {
        self.header().map_or(self.word >> SEQUENCE_SHIFT, |header| header.sequence)
    }

    /// The newest message.
    #[inline]
    pub fn message(self) -> MessageBytes<'g> {
        let Some(header) = self.header() else {
            return if self.word & KIND_MASK == DELETE { MessageBytes::Delete } else { MessageBytes::Insert(&[]) };
        };
        // SAFETY: `len` bytes follow the header in the same allocation and never change. The pointer is derived from
        // the word, so its provenance covers the whole allocation.
        let bytes = unsafe {
            let start = std::ptr::with_exposed_provenance::<Header>(self.word as usize).add(1).cast::<u8>();
            std::slice::from_raw_parts(start, header.len as usize)
        };
        match u64::from(header.kind) {
            INSERT => MessageBytes::Insert(bytes),
            DELETE => MessageBytes::Delete,
            _ => MessageBytes::Upsert { function: header.function, operand: bytes },
        }
    }

    /// The messages below the newest one.
    #[inline]
    pub fn older(self) -> Option<MessageChainRef<'g>> {
        let word = self.header()?.older.load(Ordering::Acquire);
        (word != 0).then_some(MessageChainRef { word, lifetime: PhantomData })
    }

    /// The chain from the newest message with a sequence number of at most `sequence`.
    #[inline]
    pub fn up_to(mut self, sequence: u64) -> Option<MessageChainRef<'g>> {
        while self.sequence() > sequence {
            self = self.older()?;
        }
        Some(self)
    }

    /// Knowledge of the row below the oldest message of the chain.
    #[inline]
    pub fn prior(self) -> Prior {
        let number = match self.header() {
            Some(header) => header.prior.load(Ordering::Relaxed).into(),
            None => self.word >> PRIOR_SHIFT & 3,
        };
        Prior::from_number(number).unwrap_or_default()
    }

    /// Estimated change of the number of rows by the messages of the chain. The changes of the messages between the
    /// newest and the oldest cancel out.
    pub fn net_rows(self) -> i64 {
        let newest = self.message();
        match self.prior() {
            Prior::Unknown => {
                let mut oldest = self;
                while let Some(older) = oldest.older() {
                    oldest = older;
                }
                let oldest = oldest.message();
                oldest.net_rows(None, Prior::Unknown) + newest.net_rows(Some(oldest), Prior::Unknown)
            }
            prior => newest.net_rows(None, prior),
        }
    }

    /// Heap bytes of the newest message; 0 if the message is in the word.
    pub fn heap_bytes(self) -> usize {
        self.header().map_or(0, |header| allocated(header.len as usize))
    }

    /// True if both words are equal: the same allocation, or equal messages within the word.
    pub fn is_same(self, other: MessageChainRef<'_>) -> bool {
        self.word == other.word
    }

    /// An owned chain with the same messages: takes a reference to the newest message.
    pub fn to_owned(self) -> MessageChain {
        if let Some(header) = self.header() {
            // Cannot overflow: each message of the key, live or retired, holds at most one reference, the map and a
            // writer at work hold two more, and fewer than 2^31 messages fit into memory.
            header.references.fetch_add(1, Ordering::Relaxed);
        }
        MessageChain(self.word)
    }

    /// Replaces the messages below the newest one; the old ones are retired. No effect if the newest message is the
    /// only one. The caller holds the commit lock: only one thread may change the chains of a map.
    pub fn replace_older(self, older: Option<MessageChain>, guard: &Guard) {
        let Some(header) = self.header().filter(|_| self.older().is_some()) else { return };
        let old = header.older.swap(older.map_or(0, Value::into_word), Ordering::AcqRel);
        // SAFETY: the header owned the word. It was not 0 above, and no other thread changes it, because the caller
        // holds the commit lock.
        guard.retire(unsafe { MessageChain::from_word(old) });
    }
}

impl fmt::Debug for MessageChainRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        let mut next = Some(*self);
        while let Some(chain) = next {
            list.entry(&(chain.sequence(), chain.message()));
            next = chain.older();
        }
        list.entry(&self.prior());
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use keyaki_masstree::pin;

    use super::*;

    fn seen(chain: &MessageChain) -> MessageChainRef<'_> {
        chain.as_ref()
    }

    #[test]
    fn messages_newest_first() {
        let upsert = MessageBytes::Upsert { function: 7, operand: b"xyz" };
        let mut chain = MessageChain::new(3, &MessageBytes::Insert(b""), Prior::Unknown, None);
        assert_eq!(seen(&chain).heap_bytes(), 0);
        chain = MessageChain::new(5, &upsert, Prior::Unknown, Some(chain));
        chain = MessageChain::new(8, &MessageBytes::Delete, Prior::Unknown, Some(chain));
        chain = MessageChain::new(8, &MessageBytes::Insert(b"value"), Prior::Unknown, Some(chain));
        let top = seen(&chain);
        assert_eq!((top.sequence(), top.message()), (8, MessageBytes::Insert(b"value")));
        let below = top.older().unwrap();
        assert_eq!((below.sequence(), below.message()), (8, MessageBytes::Delete));
        assert_eq!(top.up_to(7).unwrap().message(), upsert);
        let last = top.up_to(4).unwrap();
        assert_eq!((last.sequence(), last.message(), last.older().is_none()), (3, MessageBytes::Insert(b""), true));
        assert!(top.up_to(2).is_none());
    }

    #[test]
    fn sequence_numbers_too_large_for_a_word() {
        let chain = MessageChain::new(SEQUENCE_END, &MessageBytes::Delete, Prior::Unknown, None);
        assert_eq!((seen(&chain).sequence(), seen(&chain).message()), (SEQUENCE_END, MessageBytes::Delete));
        let chain = MessageChain::new(SEQUENCE_END - 1, &MessageBytes::Delete, Prior::Unknown, None);
        assert_eq!((seen(&chain).sequence(), seen(&chain).message()), (SEQUENCE_END - 1, MessageBytes::Delete));
    }

    #[test]
    fn removed_messages_remain_readable_under_a_guard() {
        let guard = pin();
        let mut chain = MessageChain::new(0, &MessageBytes::Insert(b"oldest"), Prior::Unknown, None);
        for sequence in 1..200_000 {
            chain = MessageChain::new(sequence, &MessageBytes::Insert(b"old"), Prior::Unknown, Some(chain));
        }
        let top = seen(&chain);
        let middle = top.up_to(100_000).unwrap();
        let oldest = top.up_to(0).unwrap();
        top.replace_older(Some(oldest.to_owned()), &guard);
        assert_eq!(top.older().unwrap().message(), MessageBytes::Insert(b"oldest"));
        assert_eq!(middle.older().unwrap().sequence(), 99_999);
        top.replace_older(None, &guard);
        assert_eq!(oldest.message(), MessageBytes::Insert(b"oldest"));
        assert!(top.older().is_none());
    }
}
