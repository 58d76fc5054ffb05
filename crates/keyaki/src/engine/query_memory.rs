//! The memory pool of queries.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use parking_lot::Mutex;

/// Consumers that use less than this fraction of the pool have no part of their own.
const SMALL: usize = 64;
/// Reservations of operators that can spill, but not at that moment, may exceed the pool by this fraction of it.
const EXCESS: usize = 4;

/// A pool that limits operators that can spill, so that the other operators of a query do not fail.
///
/// DataFusion's `FairSpillPool` gives all memory to the operators that ask first. To it, joins cannot spill, although
/// [`SpillingJoinExec`](crate::plan) executes them in parts when the pool refuses memory. It divides memory among all
/// registered operators that can spill, including those without rows. `QueryPool` distinguishes consumers by [`Kind`]:
///
/// | consumers | limit |
/// |---|---|
/// | sorts | ⅜ of a share. A share is an equal part of the memory without joins, materialized rows and all others. |
/// | merges of the runs of a sort | ⅝ of a share |
/// | aggregations, repartitionings | half of a share |
/// | further reservations of a merge or an aggregation | the free memory and a quarter of the pool |
/// | build sides of joins | ¾ of the pool for all consumers; above it, an equal part of ⅛ of the pool |
/// | materialized rows, rows of windows | the same, and ⅜ of the pool for all of them |
/// | merges of partitions | none; not counted |
/// | all others | the free memory, at least 1/64 of the pool |
///
/// Parts are equal among the consumers that use at least 1/64 of the pool. The free memory bounds all limits, with two
/// exceptions. A consumer without rows, and the further reservations of a merge or an aggregation, cannot spill: they may
/// exceed the pool, by a quarter of it for all consumers together. Other operators may have 1/64 of the pool in any case.
///
/// A sort keeps sorted rows while a merge in memory has them in their old order: together they need a share. Merges of
/// runs read as many runs at once as their memory permits. Further reservations of the same consumer are those for
/// the cursors and rows of merges in memory, and for the groups that an aggregation returns while it merges runs.
///
/// Merges of partitions hold two batches of each partition. Sorted batches refer to values of many unsorted batches,
/// whose memory the sorts count: the size of each sorted batch would include all of these.
#[derive(Debug)]
pub(crate) struct QueryPool {
    size: usize,
    used: Mutex<Used>,
}

/// Kinds of consumers, distinguished by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Buffered rows of a sort.
    Sort,
    /// Merge of sorted rows, in memory or of the runs of a sort.
    Merge,
    /// Aggregation, or any other operator that can spill.
    Spilling,
    /// Build side of a join.
    Join,
    /// Rows of an outer query, or of a window.
    Materialized,
    /// Merge of sorted partitions.
    Partitions,
    /// An operator that fails if the pool refuses memory.
    Other,
}

impl Kind {
    fn of(consumer: &MemoryConsumer) -> Kind {
        let starts = [
            ("ExternalSorterMerge", Kind::Merge),
            ("ExternalSorter", Kind::Sort),
            ("HashJoinInput", Kind::Join),
            ("NestedLoopJoinLoad", Kind::Join),
            ("MaterializedRows", Kind::Materialized),
            ("WindowExec", Kind::Materialized),
            ("SortPreservingMergeExec", Kind::Partitions),
        ];
        let known = starts.into_iter().find(|(start, _)| consumer.name().starts_with(start));
        match known {
            Some((_, kind)) => kind,
            None if consumer.can_spill() => Kind::Spilling,
            None => Kind::Other,
        }
    }
}

/// The consumers that use memory, by their id, with the bytes of each.
#[derive(Debug, Default)]
struct Used(HashMap<usize, (Kind, usize)>);

impl Used {
    /// Bytes of the consumers of the kinds that satisfy a condition.
    fn bytes(&self, condition: impl Fn(Kind) -> bool) -> usize {
        self.0.values().filter(|(kind, _)| condition(*kind)).map(|&(_, bytes)| bytes).sum()
    }

    /// Bytes by which a reservation may grow.
    fn available(&self, size: usize, reservation: &MemoryReservation) -> usize {
        let (id, kind) = (reservation.consumer().id(), Kind::of(reservation.consumer()));
        let own = self.0.get(&id).map_or(0, |&(_, bytes)| bytes);
        let total = self.bytes(|kind| kind != Kind::Partitions);
        let left = size.saturating_sub(total);
        let with_excess = (size + size / EXCESS).saturating_sub(total);
        // The consumers of a kind that have their own part, without this one: their bytes and their number.
        let others = |kind: Kind| {
            let all =
                self.0.iter().filter(|(other, (of, bytes))| **other != id && *of == kind && *bytes >= size / SMALL);
            all.fold((0, 0), |(sum, count), (_, (_, bytes))| (sum + bytes, count + 1))
        };
        let eighths = |n: usize| {
            let [sorts, merges, aggregations] = [Kind::Sort, Kind::Merge, Kind::Spilling].map(others);
            let not_shared = total - own - sorts.0 - merges.0 - aggregations.0;
            // A sort and its merge have one share.
            let paired = (sorts.1 + usize::from(kind == Kind::Sort)).max(merges.1 + usize::from(kind == Kind::Merge));
            let shares = paired + aggregations.1 + usize::from(kind == Kind::Spilling);
            (size.saturating_sub(not_shared) / shares / 8 * n).max(size / 8 / shares).saturating_sub(own)
        };
        // Other reservations of the consumer have memory.
        let is_further = own.saturating_sub(reservation.size()) >= size / SMALL;
        let below_limit = (size - size / 4).saturating_sub(total);
        let granted = || (size / 8 / (others(kind).1 + 1)).saturating_sub(own);
        match kind {
            Kind::Sort | Kind::Merge | Kind::Spilling if own == 0 => return with_excess,
            Kind::Merge | Kind::Spilling if is_further => return with_excess,
            Kind::Sort => eighths(3),
            Kind::Merge => eighths(5),
            Kind::Spilling => eighths(4),
            Kind::Join => below_limit.max(granted()),
            Kind::Materialized => {
                let rows = self.bytes(|of| of == kind);
                below_limit.min((size / 8 * 3).saturating_sub(rows)).max(granted())
            }
            Kind::Partitions => return usize::MAX,
            Kind::Other => return left.max((size / SMALL).saturating_sub(own)),
        }
        .min(left)
    }

    fn grow(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if bytes > 0 {
            self.0.entry(consumer.id()).or_insert((Kind::of(consumer), 0)).1 += bytes;
        }
    }

    /// # Panics
    /// If the consumer does not use as many bytes.
    fn shrink(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let Some((_, own)) = self.0.get_mut(&consumer.id()) else { panic!("{} uses no memory", consumer.name()) };
        assert!(*own >= bytes, "{} uses {own} bytes, not {bytes}", consumer.name());
        *own -= bytes;
        if *own == 0 {
            self.0.remove(&consumer.id());
        }
    }
}

impl QueryPool {
    /// A pool of `size` bytes.
    pub fn new(size: usize) -> QueryPool {
        QueryPool { size, used: Mutex::default() }
    }
}

impl Display for QueryPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(pool_size: {})", self.name(), human_readable_size(self.size))
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "queries"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.used.lock().grow(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.used.lock().shrink(reservation.consumer(), shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let mut used = self.used.lock();
        let available = used.available(self.size, reservation);
        if additional > available {
            // The form of the errors of DataFusion's pools.
            return Err(DataFusionError::ResourcesExhausted(format!(
                "Failed to allocate additional {} for {} with {} already allocated for this reservation - {} remain \
                 available for the total memory pool: {self}",
                human_readable_size(additional),
                consumer.name(),
                human_readable_size(reservation.size()),
                human_readable_size(available),
            )));
        }
        used.grow(consumer, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used.lock().bytes(|_| true)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Error;

    fn consumer(pool: &Arc<dyn MemoryPool>, name: &str, can_spill: bool) -> MemoryReservation {
        MemoryConsumer::new(name).with_can_spill(can_spill).register(pool)
    }

    #[test]
    fn joins_leave_memory_to_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        let join = consumer(&pool, "HashJoinInput[1]", false);
        join.try_grow(5900).unwrap();
        let error = Error::from(join.try_grow(101).unwrap_err()).to_string();
        assert!(
            error.starts_with("out of memory: the hash join needs 101 B, 100 B of the budget of 7.8 KiB"),
            "{error}"
        );
        // A second join exceeds the limit of the first one.
        let nested = consumer(&pool, "NestedLoopJoinLoad[0]", false);
        nested.try_grow(501).unwrap_err();
        nested.try_grow(500).unwrap();
        join.try_grow(1).unwrap_err();
        let sort = consumer(&pool, "ExternalSorter[0]", true);
        sort.try_grow(600).unwrap();
        let top = consumer(&pool, "TopK[0]", false);
        top.try_grow(1000).unwrap();
        top.try_grow(1).unwrap_err();
        drop((join, nested, sort));
        top.try_grow(7000).unwrap();
        assert_eq!(pool.reserved(), 8000);
        drop(top);
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn materialized_rows_leave_memory_to_joins() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        let rows = consumer(&pool, "MaterializedRows[0]", false);
        rows.try_grow(3001).unwrap_err();
        rows.try_grow(3000).unwrap();
        let join = consumer(&pool, "HashJoinInput", false);
        join.try_grow(3001).unwrap_err();
        join.try_grow(3000).unwrap();
    }

    #[test]
    fn consumers_that_spill_share_and_leave_memory_to_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        // Consumers without rows have no share, and cannot spill.
        let [first, second, third] = ["a", "b", "c"].map(|name| consumer(&pool, name, true));
        first.try_grow(1000).unwrap();
        first.try_grow(3001).unwrap_err();
        first.try_grow(1000).unwrap();
        second.try_grow(2000).unwrap();
        second.try_grow(1).unwrap_err();
        first.try_grow(1).unwrap_err();
        third.try_grow(6001).unwrap_err();
        // Groups beside a merge.
        let groups = second.new_empty();
        groups.try_grow(6001).unwrap_err();
        groups.try_grow(2500).unwrap();
        // A join reserves an eighth.
        let join = consumer(&pool, "HashJoinInput", false);
        join.try_grow(1001).unwrap_err();
        join.try_grow(1000).unwrap();
        let other = consumer(&pool, "TopK[0]", false);
        other.try_grow(501).unwrap_err();
        other.try_grow(500).unwrap();
        drop((join, second, groups));
        first.try_grow(1748).unwrap();
        first.try_grow(1).unwrap_err();
    }

    #[test]
    fn sorts_leave_memory_to_their_merges() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        let sorts = ["ExternalSorter[0]", "ExternalSorter[1]"].map(|name| consumer(&pool, name, true));
        let merges = ["ExternalSorterMerge[0]", "ExternalSorterMerge[1]"].map(|name| consumer(&pool, name, false));
        sorts.iter().for_each(|sort| sort.try_grow(1000).unwrap());
        sorts.iter().for_each(|sort| sort.try_grow(500).unwrap());
        sorts[0].try_grow(1).unwrap_err();
        // Merges in memory: a reservation for each cursor.
        merges[0].try_grow(200).unwrap();
        let cursor = merges[0].new_empty();
        cursor.try_grow(6801).unwrap_err();
        cursor.try_grow(4300).unwrap();
        drop((sorts, cursor));
        // Merges of runs.
        merges[0].try_grow(2300).unwrap();
        merges[1].try_grow(1000).unwrap();
        merges[1].try_grow(1500).unwrap();
        merges.iter().for_each(|merge| drop(merge.try_grow(1).unwrap_err()));
        let partitions = consumer(&pool, "SortPreservingMergeExec[0]", false);
        partitions.try_grow(9000).unwrap();
        assert_eq!(pool.reserved(), 14_000);
        consumer(&pool, "TopK[0]", false).try_grow(3000).unwrap();
    }

    #[test]
    fn sorts_begin_beside_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        let merge = |number: usize| consumer(&pool, &format!("ExternalSorterMerge[{number}]"), false);
        let merges: Vec<MemoryReservation> = (0..8).map(merge).collect();
        merges.iter().for_each(|merge| merge.try_grow(1000).unwrap());
        // No memory is left, but operators without rows cannot spill.
        let [first, second] = ["ExternalSorter[0]", "AggregateStream[0]"].map(|name| consumer(&pool, name, true));
        first.try_grow(2001).unwrap_err();
        first.try_grow(600).unwrap();
        first.try_grow(1).unwrap_err();
        second.try_grow(1401).unwrap_err();
        second.try_grow(1400).unwrap();
        let other = consumer(&pool, "TopK[0]", false);
        other.try_grow(126).unwrap_err();
        other.try_grow(125).unwrap();
        other.try_grow(1).unwrap_err();
    }
}
