//! The memory pool of queries.

use std::fmt::{self, Display, Formatter};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use parking_lot::Mutex;

/// Starts of the names of the consumers that hold the build sides of joins, and the rows of outer queries.
const BUILD_SIDES: [&str; 3] = ["HashJoinInput", "NestedLoopJoinLoad", "MaterializedRows"];

/// A pool in which operators that can do with less memory leave some to those that cannot.
///
/// DataFusion's `FairSpillPool` gives all memory to the operators that ask first. To it, joins cannot spill, although
/// [`SpillingJoinExec`](crate::plan) executes them in parts when they are refused memory. So that no query fails while one
/// of its operators could spill, the pool knows three kinds of consumers:
///
/// | consumers | may use |
/// |---|---|
/// | sorts, aggregations | together what the others leave, at most ¾ of the pool; each the same share |
/// | build sides of joins, materialized rows | what keeps the whole use below ¾ of the pool, and always ⅛ of it |
/// | all others | what is left |
#[derive(Debug)]
pub(super) struct QueryPool {
    size: usize,
    used: Mutex<Used>,
}

/// Bytes that each kind of consumer uses.
#[derive(Debug, Default)]
struct Used {
    spilling: usize,
    joins: usize,
    others: usize,
    /// Number of consumers that can spill.
    spilling_consumers: usize,
}

impl Used {
    fn total(&self) -> usize {
        self.spilling + self.joins + self.others
    }

    fn of(&mut self, consumer: &MemoryConsumer) -> &mut usize {
        match consumer {
            spilling if spilling.can_spill() => &mut self.spilling,
            join if is_join(join) => &mut self.joins,
            _ => &mut self.others,
        }
    }

    /// Bytes by which a reservation may grow.
    fn available(&self, size: usize, reservation: &MemoryReservation) -> usize {
        let shared = size - size / 4;
        let left = size.saturating_sub(self.total());
        match reservation.consumer() {
            spilling if spilling.can_spill() => {
                let all = size.saturating_sub(self.joins + self.others).min(shared);
                (all / self.spilling_consumers.max(1)).saturating_sub(reservation.size()).min(left)
            }
            join if is_join(join) => {
                let granted = (size / 8).saturating_sub(self.joins);
                shared.saturating_sub(self.total()).max(granted).min(left)
            }
            _ => left,
        }
    }
}

fn is_join(consumer: &MemoryConsumer) -> bool {
    BUILD_SIDES.iter().any(|start| consumer.name().starts_with(start))
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

    fn register(&self, consumer: &MemoryConsumer) {
        self.used.lock().spilling_consumers += usize::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.used.lock().spilling_consumers -= usize::from(consumer.can_spill());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        *self.used.lock().of(reservation.consumer()) += additional;
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        *self.used.lock().of(reservation.consumer()) -= shrink;
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used.lock();
        let available = used.available(self.size, reservation);
        if additional > available {
            // The form of the errors of DataFusion's pools.
            return Err(DataFusionError::ResourcesExhausted(format!(
                "Failed to allocate additional {} for {} with {} already allocated for this reservation - {} remain \
                 available for the total memory pool: {self}",
                human_readable_size(additional),
                reservation.consumer().name(),
                human_readable_size(reservation.size()),
                human_readable_size(available),
            )));
        }
        *used.of(reservation.consumer()) += additional;
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used.lock().total()
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
        let nested = consumer(&pool, "NestedLoopJoinLoad[0]", false);
        nested.try_grow(101).unwrap_err();
        nested.try_grow(100).unwrap();
        let sort = consumer(&pool, "ExternalSorter[0]", true);
        sort.try_grow(1000).unwrap();
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
    fn consumers_that_spill_share_and_leave_memory_to_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(8000));
        let [first, second] = ["a", "b"].map(|name| consumer(&pool, name, true));
        first.try_grow(3001).unwrap_err();
        first.try_grow(3000).unwrap();
        second.try_grow(3000).unwrap();
        second.try_grow(1).unwrap_err();
        // A join always has an eighth.
        let join = consumer(&pool, "HashJoinInput", false);
        join.try_grow(1001).unwrap_err();
        join.try_grow(1000).unwrap();
        let other = consumer(&pool, "TopK[0]", false);
        other.try_grow(1001).unwrap_err();
        other.try_grow(1000).unwrap();
        drop(join);
        drop(second);
        first.try_grow(3000).unwrap();
        first.try_grow(1).unwrap_err();
    }
}
