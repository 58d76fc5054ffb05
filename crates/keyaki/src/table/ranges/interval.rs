//! Sets of values of one key column, as sorted lists of intervals.
//!
//! A value carries its encoding as a key of one column, so that values compare as bytes. Null counts as a value that
//! sorts before all others; the set of all values includes it.
//!
//! Invariant: the intervals of a set are sorted, disjoint, non-empty and not adjacent.

use std::cmp::Ordering;
use std::ops::Bound;

use arrow::array::ArrayRef;

/// A value of a column: an array of one element (possibly null) of the column's Arrow type, and its key encoding.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub sort: Vec<u8>,
    pub array: ArrayRef,
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.sort == other.sort
    }
}

/// An interval of values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Interval {
    pub low: Bound<Value>,
    pub high: Bound<Value>,
}

impl Interval {
    /// The value of an interval that contains exactly one.
    pub fn point(&self) -> Option<&Value> {
        match (&self.low, &self.high) {
            (Bound::Included(low), Bound::Included(high)) if low == high => Some(low),
            _ => None,
        }
    }

    fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(low), Bound::Included(high)) => low.sort > high.sort,
            (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
                low.sort >= high.sort
            }
        }
    }
}

/// Orders lower bounds: the bound that admits more values is less.
fn compare_low(a: &Bound<Value>, b: &Bound<Value>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Less,
        (_, Bound::Unbounded) => Ordering::Greater,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            let strict = |bound: &Bound<Value>| matches!(bound, Bound::Excluded(_));
            x.sort.cmp(&y.sort).then(strict(a).cmp(&strict(b)))
        }
    }
}

/// Orders upper bounds: the bound that admits more values is greater.
fn compare_high(a: &Bound<Value>, b: &Bound<Value>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Greater,
        (_, Bound::Unbounded) => Ordering::Less,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            let strict = |bound: &Bound<Value>| matches!(bound, Bound::Excluded(_));
            x.sort.cmp(&y.sort).then(strict(b).cmp(&strict(a)))
        }
    }
}

/// True if an interval that ends at `high` overlaps or touches one that starts at `low`, given that it starts at or
/// before `low`.
fn connects(high: &Bound<Value>, low: &Bound<Value>) -> bool {
    match (high, low) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Excluded(x), Bound::Excluded(y)) => x.sort > y.sort,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => x.sort >= y.sort,
    }
}

/// A set of values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ValueSet {
    intervals: Vec<Interval>,
}

impl ValueSet {
    /// All values and null.
    pub fn all() -> Self {
        ValueSet { intervals: vec![Interval { low: Bound::Unbounded, high: Bound::Unbounded }] }
    }

    pub fn empty() -> Self {
        ValueSet { intervals: Vec::new() }
    }

    /// A set of one interval; empty if the bounds contain no value.
    pub fn interval(low: Bound<Value>, high: Bound<Value>) -> Self {
        let interval = Interval { low, high };
        ValueSet { intervals: if interval.is_empty() { Vec::new() } else { vec![interval] } }
    }

    /// A set of one value.
    pub fn point(value: Value) -> Self {
        ValueSet::interval(Bound::Included(value.clone()), Bound::Included(value))
    }

    /// The intervals in ascending order.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// True if the set has no bounds.
    pub fn is_all(&self) -> bool {
        matches!(self.intervals.as_slice(), [Interval { low: Bound::Unbounded, high: Bound::Unbounded }])
    }

    /// True if every interval is a single value. True for the empty set.
    pub fn is_points(&self) -> bool {
        self.intervals.iter().all(|interval| interval.point().is_some())
    }

    /// The union of any number of sets.
    pub fn union(sets: impl IntoIterator<Item = ValueSet>) -> ValueSet {
        let mut all: Vec<Interval> = sets.into_iter().flat_map(|set| set.intervals).collect();
        all.sort_by(|a, b| compare_low(&a.low, &b.low));
        let mut intervals: Vec<Interval> = Vec::with_capacity(all.len());
        for next in all {
            match intervals.last_mut() {
                Some(last) if connects(&last.high, &next.low) => {
                    if compare_high(&next.high, &last.high) == Ordering::Greater {
                        last.high = next.high;
                    }
                }
                _ => intervals.push(next),
            }
        }
        ValueSet { intervals }
    }

    /// The intersection of two sets, in linear time.
    pub fn intersect(&self, other: &ValueSet) -> ValueSet {
        let (mut i, mut j) = (0, 0);
        let mut intervals = Vec::new();
        while let (Some(a), Some(b)) = (self.intervals.get(i), other.intervals.get(j)) {
            let low = if compare_low(&a.low, &b.low) == Ordering::Less { &b.low } else { &a.low };
            let a_ends_first = compare_high(&a.high, &b.high) == Ordering::Less;
            let high = if a_ends_first { &a.high } else { &b.high };
            let both = Interval { low: low.clone(), high: high.clone() };
            if !both.is_empty() {
                intervals.push(both);
            }
            if a_ends_first {
                i += 1;
            } else {
                j += 1;
            }
        }
        ValueSet { intervals }
    }

    /// Replaces a lower bound `> least` by no bound. `least` is the minimum of the domain and not in the set.
    pub fn unbounded_above(mut self, least: &Value) -> ValueSet {
        if let Some(first) = self.intervals.first_mut()
            && first.low == Bound::Excluded(least.clone())
        {
            first.low = Bound::Unbounded;
        }
        self
    }

    /// All values, including null, that are not in the set.
    pub fn complement(&self) -> ValueSet {
        let mut intervals = Vec::new();
        let mut low = Bound::Unbounded;
        for interval in &self.intervals {
            match &interval.low {
                Bound::Unbounded => {}
                Bound::Included(value) => {
                    intervals.push(Interval { low: low.clone(), high: Bound::Excluded(value.clone()) });
                }
                Bound::Excluded(value) => {
                    intervals.push(Interval { low: low.clone(), high: Bound::Included(value.clone()) });
                }
            }
            low = match &interval.high {
                Bound::Unbounded => return ValueSet { intervals },
                Bound::Included(value) => Bound::Excluded(value.clone()),
                Bound::Excluded(value) => Bound::Included(value.clone()),
            };
        }
        intervals.push(Interval { low, high: Bound::Unbounded });
        ValueSet { intervals }
    }

    /// The smallest interval that contains the set; empty for the empty set.
    pub fn hull(&self) -> ValueSet {
        match (self.intervals.first(), self.intervals.last()) {
            (Some(first), Some(last)) => ValueSet::interval(first.low.clone(), last.high.clone()),
            _ => ValueSet::empty(),
        }
    }

    #[cfg(test)]
    pub fn contains(&self, sort: &[u8]) -> bool {
        self.intervals.iter().any(|interval| {
            let above = match &interval.low {
                Bound::Unbounded => true,
                Bound::Included(low) => sort >= low.sort.as_slice(),
                Bound::Excluded(low) => sort > low.sort.as_slice(),
            };
            above
                && match &interval.high {
                    Bound::Unbounded => true,
                    Bound::Included(high) => sort <= high.sort.as_slice(),
                    Bound::Excluded(high) => sort < high.sort.as_slice(),
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use proptest::prelude::*;

    use super::*;

    fn value(v: u8) -> Value {
        Value { sort: vec![v], array: Arc::new(Int64Array::from(vec![i64::from(v)])) }
    }

    fn bound(kind: u8, v: u8) -> Bound<Value> {
        match kind % 3 {
            0 => Bound::Unbounded,
            1 => Bound::Included(value(v)),
            _ => Bound::Excluded(value(v)),
        }
    }

    fn sets() -> impl Strategy<Value = ValueSet> {
        prop::collection::vec((0u8..3, 0u8..12, 0u8..3, 0u8..12), 0..5).prop_map(|list| {
            ValueSet::union(list.into_iter().map(|(a, low, b, high)| ValueSet::interval(bound(a, low), bound(b, high))))
        })
    }

    proptest! {
        #[test]
        fn set_operations_agree_with_membership(a in sets(), b in sets()) {
            let (or, and, not) = (ValueSet::union([a.clone(), b.clone()]), a.intersect(&b), a.complement());
            for v in 0..=12u8 {
                let (in_a, in_b) = (a.contains(&[v]), b.contains(&[v]));
                prop_assert_eq!(or.contains(&[v]), in_a || in_b);
                prop_assert_eq!(and.contains(&[v]), in_a && in_b);
                prop_assert_eq!(not.contains(&[v]), !in_a);
                prop_assert!(!in_a || a.hull().contains(&[v]));
            }
            for set in [or, and, not] {
                for pair in set.intervals().windows(2) {
                    prop_assert!(!connects(&pair[0].high, &pair[1].low), "{:?}", set);
                }
            }
        }
    }
}
