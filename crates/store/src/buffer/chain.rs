//! The messages of one key, newest first, behind one machine word: what a root buffer's map holds for the key.
//!
//! ```text
//!   word ─┬─ delete, or insert without value bytes: sequence number and kind, in the word itself
//!         └─ pointer ──> references, length, sequence, function, kind │ value or operand
//!                        older ──> word of the next older message, or none
//! ```
//!
//! A message that is put on top of others holds a reference to them, and so does the map to the newest: replacing the word in
//! the map gives up the map's reference when no reader is left that may have seen it. What lies below a message never
//! changes for its readers, but what none of them asks for may be cut out: `older` is atomic, and what it led to is retired
//! like a word of the map.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use keyaki_masstree::{Guard, Value};

use crate::message::MessageBytes;

/// Kinds in the lowest bits of a word; a pointer has none of them.
const KIND_MASK: u64 = 3;
const INSERT: u64 = 1;
const DELETE: u64 = 2;
/// Only behind pointers.
const UPSERT: u64 = 3;

/// Sequence numbers below this one fit into a word beside the kind.
const SEQUENCE_END: u64 = 1 << 62;

/// What the allocator adds to a message, about.
const ALLOCATOR_BYTES: usize = 8;

/// The messages of a key, newest first: at least one.
pub(crate) struct Versions(u64);

/// The same, as readers see them while they hold a guard.
#[derive(Clone, Copy)]
pub(crate) struct VersionsRef<'g> {
    word: u64,
    lifetime: PhantomData<&'g Header>,
}

#[repr(C)]
struct Header {
    references: AtomicU32,
    /// Bytes of value or operand, which follow.
    len: u32,
    sequence: u64,
    /// Word of the older messages; 0: none.
    older: AtomicU64,
    function: u32,
    kind: u32,
}

const _: () = {
    assert!(
        size_of::<Header>() == 32 && align_of::<Header>() as u64 > KIND_MASK,
        "a pointer has none of the kind bits"
    );
    assert!(SEQUENCE_END << 2 >> 2 == 0, "a sequence number and a kind fill a word");
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

impl Versions {
    /// One message on top of older ones.
    pub fn new(sequence: u64, message: &MessageBytes<'_>, older: Option<Versions>) -> Versions {
        let (kind, function, bytes) = match *message {
            MessageBytes::Insert(value) => (INSERT, 0, value),
            MessageBytes::Delete => (DELETE, 0, [].as_slice()),
            MessageBytes::Upsert { function, operand } => (UPSERT, function, operand),
        };
        if older.is_none() && bytes.is_empty() && kind != UPSERT && sequence < SEQUENCE_END {
            return Versions(sequence << 2 | kind);
        }
        // Batches refuse values and operands of more than 64 MiB.
        let len = u32::try_from(bytes.len()).unwrap_or_else(|_| panic!("a message of {} bytes", bytes.len()));
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
            kind: kind as u32,
        };
        // SAFETY: fresh memory for a header and `len` bytes behind it, aligned for the header.
        unsafe {
            memory.write(header);
            memory.add(1).cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Versions(memory.as_ptr().expose_provenance() as u64)
    }

    /// The same message, which is alone and which nobody else has, on top of older ones.
    pub fn put_on(self, older: Versions) -> Versions {
        let alone = VersionsRef { word: self.0, lifetime: PhantomData };
        match alone.header() {
            Some(header) => {
                let below = header.older.swap(older.into_word(), Ordering::Release);
                assert_eq!(below, 0, "the message has older ones already");
                self
            }
            None => Versions::new(alone.sequence(), &alone.message(), Some(older)),
        }
    }

    /// Bytes that the newest message takes beside its word.
    pub fn behind_bytes(&self) -> usize {
        VersionsRef { word: self.0, lifetime: PhantomData }.bytes()
    }

    /// Bytes that such a message takes beside its word.
    pub fn bytes_of(message: &MessageBytes<'_>, on_top: bool) -> usize {
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

impl Drop for Versions {
    fn drop(&mut self) {
        let mut word = self.0;
        // Not by recursion: a key may have very many messages.
        while let Some(header) = pointer(word) {
            // SAFETY: `self`, or the message above, which is being dropped, has a reference: the header is alive.
            let references = unsafe { &header.as_ref().references };
            if references.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
            // SAFETY: that was the last reference: nobody else uses the header any more. It was allocated with this
            // layout; its reference to the older messages goes over to `word`.
            unsafe {
                word = header.as_ref().older.load(Ordering::Relaxed);
                let layout = Header::layout(header.as_ref().len);
                dealloc(header.cast().as_ptr(), layout);
            }
        }
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        VersionsRef { word: self.0, lifetime: PhantomData }.fmt(f)
    }
}

// SAFETY: a word is `Versions` without its drop; any number of threads may look at a header, which only its atomic fields
// change. Words always own something as far as the map is concerned.
unsafe impl Value for Versions {
    type Ref<'g> = VersionsRef<'g>;
    const OWNED: bool = true;

    fn into_word(self) -> u64 {
        std::mem::ManuallyDrop::new(self).0
    }

    unsafe fn from_word(word: u64) -> Self {
        Versions(word)
    }

    #[inline]
    unsafe fn borrow<'g>(word: u64) -> VersionsRef<'g> {
        VersionsRef { word, lifetime: PhantomData }
    }
}

impl<'g> VersionsRef<'g> {
    #[inline]
    fn header(self) -> Option<&'g Header> {
        // SAFETY: the word was found in the map, or below such a word, under a guard that lasts as long as 'g: it is
        // retired, not dropped, when it is replaced there.
        pointer(self.word).map(|header| unsafe { header.as_ref() })
    }

    /// Asks for the newest message's memory, which will be looked at soon.
    #[inline]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        if self.word & KIND_MASK == 0 {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = std::ptr::with_exposed_provenance::<i8>(self.word as usize);
            // SAFETY: prefetching reads nothing that could be seen, and never faults; the header and the first bytes behind it are
            // in two lines at most.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(start);
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(63));
            }
        }
    }

    /// The newest message's number.
    #[inline]
    pub fn sequence(self) -> u64 {
        self.header().map_or(self.word >> 2, |header| header.sequence)
    }

    /// The newest message.
    #[inline]
    pub fn message(self) -> MessageBytes<'g> {
        let Some(header) = self.header() else {
            return if self.word & KIND_MASK == DELETE { MessageBytes::Delete } else { MessageBytes::Insert(&[]) };
        };
        // SAFETY: as many bytes follow the header, in the same allocation (the pointer is made from the word anew), and
        // never change.
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
    pub fn older(self) -> Option<VersionsRef<'g>> {
        let word = self.header()?.older.load(Ordering::Acquire);
        (word != 0).then_some(VersionsRef { word, lifetime: PhantomData })
    }

    /// From the newest one up to a sequence number on.
    #[inline]
    pub fn up_to(mut self, sequence: u64) -> Option<VersionsRef<'g>> {
        while self.sequence() > sequence {
            self = self.older()?;
        }
        Some(self)
    }

    /// Bytes that the newest message takes beside its word.
    pub fn bytes(self) -> usize {
        self.header().map_or(0, |header| allocated(header.len as usize))
    }

    /// Whether it is the same message, in the same place.
    pub fn is_same(self, other: VersionsRef<'_>) -> bool {
        self.word == other.word
    }

    /// Shares ownership.
    pub fn to_owned(self) -> Versions {
        if let Some(header) = self.header() {
            // A key has fewer than 2^31 messages, each with a reference or two.
            header.references.fetch_add(1, Ordering::Relaxed);
        }
        Versions(self.word)
    }

    /// Puts other messages in the place of those below the newest one, which are dropped when nobody sees them any more.
    /// Only one thread at a time may do so in a map. No effect if there are none below.
    pub fn replace_older(self, older: Option<Versions>, guard: &Guard) {
        let Some(header) = self.header().filter(|_| self.older().is_some()) else { return };
        let old = header.older.swap(older.map_or(0, Value::into_word), Ordering::AcqRel);
        // SAFETY: the header owned the word, which was not 0 just before, and nobody else changes it.
        guard.retire(unsafe { Versions::from_word(old) });
    }
}

impl fmt::Debug for VersionsRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        let mut next = Some(*self);
        while let Some(versions) = next {
            list.entry(&(versions.sequence(), versions.message()));
            next = versions.older();
        }
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use keyaki_masstree::pin;

    use super::*;

    fn seen(versions: &Versions) -> VersionsRef<'_> {
        VersionsRef { word: versions.0, lifetime: PhantomData }
    }

    #[test]
    fn messages_newest_first() {
        let upsert = MessageBytes::Upsert { function: 7, operand: b"xyz" };
        let mut versions = Versions::new(3, &MessageBytes::Insert(b""), None);
        assert_eq!(seen(&versions).bytes(), 0);
        versions = Versions::new(5, &upsert, Some(versions));
        versions = Versions::new(8, &MessageBytes::Delete, Some(versions));
        versions = Versions::new(8, &MessageBytes::Insert(b"value"), Some(versions));
        let top = seen(&versions);
        assert_eq!((top.sequence(), top.message()), (8, MessageBytes::Insert(b"value")));
        let below = top.older().unwrap();
        assert_eq!((below.sequence(), below.message()), (8, MessageBytes::Delete));
        assert_eq!(top.up_to(7).unwrap().message(), upsert);
        let last = top.up_to(4).unwrap();
        assert_eq!((last.sequence(), last.message(), last.older().is_none()), (3, MessageBytes::Insert(b""), true));
        assert!(top.up_to(2).is_none());
    }

    #[test]
    fn numbers_that_do_not_fit_into_a_word() {
        let versions = Versions::new(SEQUENCE_END, &MessageBytes::Delete, None);
        assert_eq!((seen(&versions).sequence(), seen(&versions).message()), (SEQUENCE_END, MessageBytes::Delete));
        let versions = Versions::new(SEQUENCE_END - 1, &MessageBytes::Delete, None);
        assert_eq!((seen(&versions).sequence(), seen(&versions).message()), (SEQUENCE_END - 1, MessageBytes::Delete));
    }

    #[test]
    fn what_is_cut_out_stays_for_its_readers() {
        let guard = pin();
        let mut versions = Versions::new(0, &MessageBytes::Insert(b"oldest"), None);
        for sequence in 1..200_000 {
            versions = Versions::new(sequence, &MessageBytes::Insert(b"old"), Some(versions));
        }
        let top = seen(&versions);
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
