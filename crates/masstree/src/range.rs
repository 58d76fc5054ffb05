//! Ranges: scans of the entries within bounds, as iterators.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};

use crate::guard::Guard;
use crate::key::AsKey;
use crate::scan::Scan;
use crate::tree::Tree;
use crate::value::Value;

macro_rules! range {
    ($(#[$doc:meta])* $name:ident, $forward:expr, ($low:ident, $high:ident), $first:ident to $last:ident) => {
        $(#[$doc])*
        ///
        /// While other threads write, keys come strictly in order. A key that is in the map from the start of the scan
        /// until the scan passes it is returned exactly once. A key that is inserted or removed meanwhile may be
        /// returned or not. The entries of one border node (up to 15) are of one moment; the entries as a whole are not
        /// a snapshot.
        ///
        /// [`next_entry`](Self::next_entry) lends the key. The iterator copies each key.
        pub struct $name<'g, V: Value> {
            scan: Scan<'g, $forward>,
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
                $name { scan: Scan::new(tree, guard, $first, $last), values: PhantomData }
            }

            /// The next entry. The key is borrowed until the next call.
            #[inline]
            pub fn next_entry(&mut self) -> Option<(&[u8], V::Ref<'g>)> {
                let (key, word) = self.scan.step()?;
                // SAFETY: the word was in the map under the guard.
                Some((key, unsafe { V::borrow(word) }))
            }
        }

        impl<'g, V: Value> $name<'g, V> {
            /// Calls `visit` with the remaining entries until it breaks, and returns the value it breaks with. The
            /// entries after that one remain. This is faster than one call for each entry.
            #[inline]
            pub fn visit<R>(&mut self, mut visit: impl FnMut(&[u8], V::Ref<'g>) -> ControlFlow<R>) -> Option<R> {
                while let Some((key, word)) = self.scan.step() {
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
                formatter.debug_struct(stringify!($name)).field("end", self.scan.end()).finish_non_exhaustive()
            }
        }
    };
}

range!(
    /// The entries within bounds, in ascending order of their keys.
    Range, true, (low, high), low to high
);
range!(
    /// The entries within bounds, in descending order of their keys.
    RangeRev, false, (low, high), high to low
);
