//! Values: one machine word each, which readers and writers exchange atomically.
//!
//! Numbers are stored in the node itself. Other values are stored by pointer, as `Box<T>` or `Arc<T>`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// A type whose values can be stored as one word.
///
/// # Safety
/// `from_word` and `borrow` must be sound for words made by `into_word`, and `borrow` for any number of threads at
/// once. If `OWNED` is false, dropping a word without `from_word` must leak nothing.
pub unsafe trait Value: Send + Sync + 'static {
    /// The type that readers get: the value itself, or a reference that lasts as long as the guard.
    type Ref<'g>: 'g;

    /// True if a word owns memory or other resources that must be dropped.
    const OWNED: bool;

    /// Converts the value into a word, which takes over the ownership of its resources.
    fn into_word(self) -> u64;

    /// Converts a word back into the value it was made from.
    ///
    /// # Safety
    /// The word comes from `into_word` and is not used afterwards.
    unsafe fn from_word(word: u64) -> Self;

    /// Borrows the value behind a word.
    ///
    /// # Safety
    /// The word comes from `into_word`, and `from_word` is not called with it during `'g`.
    unsafe fn borrow<'g>(word: u64) -> Self::Ref<'g>;
}

macro_rules! inline {
    ($($value:ty: $into:expr, $from:expr;)*) => {$(
        // SAFETY: the word owns nothing, and the two functions are each other's inverse.
        unsafe impl Value for $value {
            type Ref<'g> = $value;
            const OWNED: bool = false;

            #[inline]
            fn into_word(self) -> u64 {
                let into: fn($value) -> u64 = $into;
                into(self)
            }

            #[inline]
            unsafe fn from_word(word: u64) -> Self {
                let from: fn(u64) -> $value = $from;
                from(word)
            }

            #[inline]
            unsafe fn borrow<'g>(word: u64) -> Self::Ref<'g> {
                let from: fn(u64) -> $value = $from;
                from(word)
            }
        }
    )*};
}

inline! {
    u8: u64::from, |word| word as u8;
    u16: u64::from, |word| word as u16;
    u32: u64::from, |word| word as u32;
    u64: |value| value, |word| word;
    usize: |value| value as u64, |word| word as usize;
    i8: |value| value as u64, |word| word as i8;
    i16: |value| value as u64, |word| word as i16;
    i32: |value| value as u64, |word| word as i32;
    i64: |value| value as u64, |word| word as i64;
    isize: |value| value as u64, |word| word as isize;
    f32: |value| u64::from(value.to_bits()), |word| f32::from_bits(word as u32);
    f64: f64::to_bits, f64::from_bits;
    bool: u64::from, |word| word != 0;
    (): |()| 0, |_| ();
}

// SAFETY: the word is the box's pointer. Any thread may have a shared reference to its content, since T is Sync.
unsafe impl<T: Send + Sync + 'static> Value for Box<T> {
    type Ref<'g> = &'g T;
    const OWNED: bool = true;

    fn into_word(self) -> u64 {
        Box::into_raw(self).expose_provenance() as u64
    }

    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: the pointer comes from into_raw, and the caller gives up the word.
        unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut(word as usize)) }
    }

    #[inline]
    unsafe fn borrow<'g>(word: u64) -> Self::Ref<'g> {
        // SAFETY: the box lives during 'g by the caller's promise.
        unsafe { &*std::ptr::with_exposed_provenance(word as usize) }
    }
}

// SAFETY: as for boxes; the content is shared with the other owners of the `Arc`.
unsafe impl<T: Send + Sync + 'static> Value for Arc<T> {
    type Ref<'g> = ArcRef<'g, T>;
    const OWNED: bool = true;

    fn into_word(self) -> u64 {
        Arc::into_raw(self).expose_provenance() as u64
    }

    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: the pointer comes from into_raw, and the caller gives up the word.
        unsafe { Arc::from_raw(std::ptr::with_exposed_provenance(word as usize)) }
    }

    #[inline]
    unsafe fn borrow<'g>(word: u64) -> Self::Ref<'g> {
        ArcRef { pointer: std::ptr::with_exposed_provenance(word as usize), lifetime: PhantomData }
    }
}

/// A borrowed `Arc`. It dereferences to the content; [`to_arc`](ArcRef::to_arc) makes a further owner.
pub struct ArcRef<'g, T> {
    /// Pointer from `Arc::into_raw` of an `Arc` that lives during `'g`.
    pointer: *const T,
    lifetime: PhantomData<&'g T>,
}

impl<T> ArcRef<'_, T> {
    /// A further owner of the content.
    pub fn to_arc(&self) -> Arc<T> {
        // SAFETY: the pointer comes from `Arc::into_raw` of an `Arc` that is alive (see the field).
        unsafe {
            Arc::increment_strong_count(self.pointer);
            Arc::from_raw(self.pointer)
        }
    }
}

impl<T> Deref for ArcRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the `Arc` of the pointer is alive (see the field).
        unsafe { &*self.pointer }
    }
}

impl<T: fmt::Debug> fmt::Debug for ArcRef<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T: PartialEq> PartialEq<T> for ArcRef<'_, T> {
    fn eq(&self, other: &T) -> bool {
        **self == *other
    }
}
