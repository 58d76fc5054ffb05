//! Ranges: walks with an end.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};

use crate::guard::Guard;
use crate::key::AsKey;
use crate::scan::Walk;
use crate::tree::Tree;
use crate::value::Value;

macro_rules! range {
    ($(#[$doc:meta])* $name:ident, $forward:expr, ($low:ident, $high:ident), $first:ident to $last:ident) => {
        $(#[$doc])*
        ///
        /// While others write: a key that is in the map from the walk's start until it is passed is met exactly once, keys come
        /// strictly in order, and each border node's entries (up to 15) are of one moment; a key that is inserted or removed
        /// meanwhile may be met or not. The entries as a whole are of no single moment.
        ///
        /// [`next_entry`](Self::next_entry) lends the key; as an iterator it copies each key.
        pub struct $name<'g, V: Value> {
            walk: Walk<'g, $forward>,
            values: PhantomData<V>,
        }

        impl<'g, V: Value> $name<'g, V> {
            pub(crate) fn new<K: AsKey + ?Sized>(
                tree: &'g Tree,
                start: Bound<&K>,
                end: Bound<&K>,
                guard: &'g Guard,
            ) -> Self {
                let owned = |bound: Bound<&K>| bound.map(|key| key.with_key(<[u8]>::to_vec));
                let ($low, $high) = (owned(start), owned(end));
                $name { walk: Walk::new(tree, guard, $first, $last), values: PhantomData }
            }

            /// The next entry; the key is lent until the next call.
            #[inline]
            #[allow(clippy::should_implement_trait, reason = "it lends, which Iterator cannot")]
            pub fn next_entry(&mut self) -> Option<(&[u8], V::Ref<'g>)> {
                let (key, word) = self.walk.step()?;
                // SAFETY: the word was in the map under the guard.
                Some((key, unsafe { V::borrow(word) }))
            }
        }

        impl<'g, V: Value> $name<'g, V> {
            /// Gives the entries to come to `visit`, until it breaks off (then what it broke off with is returned, and the rest
            /// is still to come) or there are no more. Somewhat faster than one call for each entry.
            #[inline]
            pub fn visit<R>(&mut self, mut visit: impl FnMut(&[u8], V::Ref<'g>) -> ControlFlow<R>) -> Option<R> {
                while let Some((key, word)) = self.walk.step() {
                    // SAFETY: the word was in the map under the guard.
                    if let ControlFlow::Break(result) = visit(key, unsafe { V::borrow(word) }) {
                        return Some(result);
                    }
                }
                None
            }
        }

        impl<'g, V: Value> Iterator for $name<'g, V> {
            type Item = (Vec<u8>, V::Ref<'g>);

            fn next(&mut self) -> Option<Self::Item> {
                self.next_entry().map(|(key, value)| (key.to_vec(), value))
            }
        }

        impl<V: Value> fmt::Debug for $name<'_, V> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.debug_struct(stringify!($name)).field("end", self.walk.end()).finish_non_exhaustive()
            }
        }
    };
}

range!(
    /// Entries within bounds, in order.
    Range, true, (low, high), low to high
);
range!(
    /// Entries within bounds, from the highest key down.
    RangeRev, false, (low, high), high to low
);
