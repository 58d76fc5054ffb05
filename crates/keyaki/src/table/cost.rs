//! The cost model: elapsed seconds of an access path from device time and processor time.
//!
//! *Device time.* Random reads take `reads / IOPS(size, depth)`. `depth` is the number of reads in flight: the number
//! of lookups, up to the executor's queue depth, and 1 in in-order mode. `n` lookups touch `P (1 - (1 - 1/P)^n)`
//! distinct pages of `P` (Cardenas). The executor coalesces reads of neighbouring pages; the model's read size grows
//! with the density of the reads in flight among the pages, until access is sequential. Scans read at the device's
//! bandwidth.
//!
//! *Processor time.* Constants per lookup, row and value, measured on a warm database, divided by the number of
//! workers.
//!
//! *Elapsed time.* Out of order, device and processor time overlap: the larger one counts, plus one read latency for
//! every step of the pipeline, because no other work hides the reads of the first row. In order, all three add up.

use keyaki_device::calibrate::Calibration;

/// A lookup by key: task, search in the page, merge with the messages on the path.
const LOOKUP_SECONDS: f64 = 5.0e-6;
/// A row that a scan or a lookup returns.
const ROW_SECONDS: f64 = 4.0e-9;
/// A decoded value of such a row.
const VALUE_SECONDS: f64 = 4.0e-9;
/// Surcharge for a row from an in-memory index, which is decoded row by row instead of by page.
const MEMORY_ROW_SECONDS: f64 = 1.0e-7;
/// Assumed size of a row in a buffer, in bytes.
const BUFFERED_ROW_BYTES: f64 = 16.0;
/// A row inserted into a hash table.
const BUILD_SECONDS: f64 = 6.0e-8;
/// A row that probes a hash table.
const PROBE_SECONDS: f64 = 2.5e-8;
/// A comparison of a pair of rows in a join without keys.
const PAIR_SECONDS: f64 = 2.0e-9;
/// A page cache miss: registration, system call, checksum.
const MISS_SECONDS: f64 = 8.0e-6;
/// Start of an operator.
const START_SECONDS: f64 = 2.0e-5;

/// Speed and parallelism available to one query.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    calibration: std::sync::Arc<Calibration>,
    /// Maximum number of reads in flight.
    depth_max: f64,
    /// Maximum number of lookups in progress.
    tasks_max: f64,
    /// Maximum size of a coalesced read in bytes.
    coalesce_max_bytes: f64,
    workers: f64,
    in_order: bool,
}

/// Resources that an operator or a part of one uses.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Seconds of device time.
    pub io: f64,
    /// Seconds of processor time, summed over all workers.
    pub cpu: f64,
    /// Seconds of read latency that no other work overlaps.
    pub latency: f64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost { io: self.io + other.io, cpu: self.cpu + other.cpu, latency: self.latency + other.latency }
    }
}

/// Input of a scan: a tree or ranges of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readable {
    pub bytes: f64,
    /// Fraction of its pages in the page cache, 0 to 1.
    pub cached: f64,
    pub rows: f64,
    /// The tree is an in-memory index.
    pub in_memory: bool,
}

/// The lookups of one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookups {
    /// Number of lookups.
    pub count: f64,
    /// Number of distinct keys among them.
    pub distinct: f64,
    /// Rows that one lookup finds.
    pub matches: f64,
    /// Rows of the whole tree.
    pub tree_rows: f64,
    /// Pages of the whole tree.
    pub tree_pages: f64,
    /// Average size of a page.
    pub page_bytes: f64,
    /// Fraction of the tree's pages in the page cache, 0 to 1.
    pub cached: f64,
    /// Keys arrive approximately in the order of the tree.
    pub clustered: bool,
    /// Number of columns decoded per row.
    pub columns: f64,
}

impl Machine {
    /// In-order execution has one worker and one read in flight.
    pub fn new(
        calibration: std::sync::Arc<Calibration>,
        executor: &keyaki_exec::ExecutorOptions,
        in_order: bool,
    ) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if executor.workers == 0 { cores() } else { executor.workers };
        let all = |each: usize| (workers * each) as f64;
        Machine {
            calibration,
            depth_max: if in_order { 1.0 } else { all(executor.queue_depth) },
            tasks_max: if in_order { 1.0 } else { all(executor.tasks_in_flight) },
            coalesce_max_bytes: executor.coalesce_max_bytes as f64,
            workers: if in_order { 1.0 } else { workers as f64 },
            in_order,
        }
    }

    /// Elapsed seconds of a cost.
    pub fn seconds(&self, cost: Cost) -> f64 {
        let cpu = cost.cpu / self.workers;
        if self.in_order { cost.io + cpu + cost.latency } else { cost.io.max(cpu) + cost.latency }
    }

    /// Number of threads among which processor time is divided.
    pub fn workers(&self) -> f64 {
        self.workers
    }

    fn iops(&self, bytes: f64, depth: f64) -> f64 {
        self.calibration.iops(bytes.max(1.0) as u64, depth.max(1.0) as usize).max(1.0)
    }

    fn bandwidth(&self) -> f64 {
        self.calibration.bandwidth().max(1.0)
    }

    /// Cost of the lookups of one step.
    pub fn lookups(&self, lookups: &Lookups) -> Cost {
        let pages = lookups.tree_pages.max(1.0);
        let rows_per_page = (lookups.tree_rows / pages).max(1.0);
        let each = 1.0 + (lookups.matches - 1.0).max(0.0) / rows_per_page;
        let touched = if lookups.clustered {
            (lookups.distinct * lookups.matches.max(1.0) / rows_per_page + 1.0).min(lookups.distinct * each)
        } else {
            distinct_pages(pages, lookups.distinct * each)
        };
        let misses = touched.min(pages) * (1.0 - lookups.cached);
        let depth = lookups.count.clamp(1.0, self.depth_max);
        let found = lookups.count * lookups.matches;
        Cost {
            io: self.random_reads(misses, pages, lookups.page_bytes, depth, lookups.clustered),
            cpu: lookups.count * LOOKUP_SECONDS + self.decode_seconds(found, lookups.columns) + misses * MISS_SECONDS,
            latency: if misses > 0.0 { 1.0 / self.iops(lookups.page_bytes, 1.0) } else { 0.0 },
        }
    }

    /// Device seconds for `misses` random reads in a tree of `pages` pages, after coalescing.
    fn random_reads(&self, misses: f64, pages: f64, page_bytes: f64, depth: f64, clustered: bool) -> f64 {
        if misses <= 0.0 {
            return 0.0;
        }
        let density = if self.in_order {
            0.0
        } else if clustered {
            0.9
        } else {
            (self.tasks_max.min(misses) / pages).min(0.9)
        };
        let together =
            (1.0 / (1.0 - density)).min((self.coalesce_max_bytes / page_bytes).max(1.0)).min(misses.max(1.0));
        misses / together / self.iops(page_bytes * together, depth)
    }

    /// Processor seconds to decode `columns` columns of `rows` rows.
    fn decode_seconds(&self, rows: f64, columns: f64) -> f64 {
        rows * (ROW_SECONDS + VALUE_SECONDS * columns)
    }

    /// Cost of reading `bytes` in key order, of which the fraction `cached` is in the page cache, and decoding
    /// `columns` columns of `rows` rows.
    pub fn scan(&self, bytes: f64, cached: f64, rows: f64, columns: f64) -> Cost {
        let bytes = bytes * (1.0 - cached);
        let first = if bytes > 0.0 { 1.0 / self.iops(4096.0, 1.0) } else { 0.0 };
        Cost { io: bytes / self.bandwidth(), cpu: self.decode_seconds(rows, columns) + START_SECONDS, latency: first }
    }

    /// Cost of a scan of `readable` that decodes `columns` columns per row.
    pub fn scan_of(&self, readable: Readable, columns: f64) -> Cost {
        let Readable { bytes, cached, rows, in_memory } = readable;
        if !in_memory {
            return self.scan(bytes, cached, rows, columns);
        }
        self.scan(0.0, 1.0, rows, columns) + Cost { cpu: rows * MEMORY_ROW_SECONDS, ..Cost::default() }
    }

    /// Chooses the tree to scan among several with the same rows, as an index into `candidates`: the on-disk tree with
    /// the fewest bytes, or the fastest in-memory tree if it is faster. Returns `None` if there are no candidates.
    pub fn best_scan(&self, candidates: &[Readable], columns: f64) -> Option<usize> {
        let seconds = |&i: &usize| self.seconds(self.scan_of(candidates[i], columns));
        let places = |in_memory: bool| (0..candidates.len()).filter(move |&i| candidates[i].in_memory == in_memory);
        // Rows in buffers have no bytes on the device.
        let size = |i: usize| candidates[i].bytes.max(candidates[i].rows * BUFFERED_ROW_BYTES);
        let smaller = |&a: &usize, &b: &usize| {
            size(a).total_cmp(&size(b)).then(candidates[a].bytes.total_cmp(&candidates[b].bytes))
        };
        let stored = places(false).min_by(smaller);
        let fastest = |a: &usize, b: &usize| seconds(a).total_cmp(&seconds(b));
        stored.into_iter().chain(places(true).min_by(fastest)).min_by(fastest)
    }

    /// Cost of a hash join without its inputs, in rows of build side, probe side and output. If `keyless`, the join
    /// compares all pairs of rows.
    pub fn hash_join(&self, build: f64, probe: f64, output: f64, keyless: bool) -> Cost {
        let pairs = if keyless { build * probe * PAIR_SECONDS } else { 0.0 };
        let cpu = build * BUILD_SECONDS + probe * PROBE_SECONDS + output * ROW_SECONDS + pairs;
        Cost { cpu: cpu + START_SECONDS, ..Cost::default() }
    }
}

/// Expected number of distinct pages that `n` random reads touch among `pages` (Cardenas).
fn distinct_pages(pages: f64, n: f64) -> f64 {
    // (1 - 1/P)^n without loss of precision for large P.
    -pages * (n * (-1.0 / pages).ln_1p().max(-1e9)).exp_m1()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;

    pub fn machine(in_order: bool) -> Machine {
        Machine::new(Arc::new(Calibration::assumed()), &keyaki_exec::ExecutorOptions::default(), in_order)
    }

    fn lookups(count: f64) -> Lookups {
        Lookups {
            count,
            distinct: count,
            matches: 1.0,
            tree_rows: 1e7,
            tree_pages: 1e5,
            page_bytes: 8192.0,
            cached: 0.0,
            clustered: false,
            columns: 3.0,
        }
    }

    #[test]
    fn distinct_pages_follow_cardenas() {
        assert!((distinct_pages(1000.0, 1.0) - 1.0).abs() < 1e-6);
        assert!((distinct_pages(1e6, 1000.0) - 1000.0).abs() < 1.0);
        assert!((distinct_pages(1000.0, 1e6) - 1000.0).abs() < 1e-6);
        assert!((distinct_pages(1.0, 5.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn cost_grows_with_lookups_and_is_bounded_by_a_small_multiple_of_a_scan() {
        for in_order in [false, true] {
            let machine = machine(in_order);
            let mut last = 0.0;
            for exponent in 0..8 {
                let seconds = machine.seconds(machine.lookups(&lookups(10f64.powi(exponent))));
                assert!(seconds > last, "10^{exponent} lookups: {seconds} s after {last} s");
                last = seconds;
            }
        }
        let machine = machine(false);
        let all = machine.lookups(&lookups(1e7)).io;
        assert!(all < 20.0 * machine.scan(1e5 * 8192.0, 0.0, 1e7, 3.0).io, "{all}");
    }

    #[test]
    fn out_of_order_cached_and_clustered_lookups_cost_less() {
        let (ooo, in_order) = (machine(false), machine(true));
        let many = lookups(1e4);
        assert!(ooo.seconds(ooo.lookups(&many)) < in_order.seconds(in_order.lookups(&many)));
        let warm = Lookups { cached: 0.9, ..many };
        assert!(ooo.seconds(ooo.lookups(&warm)) < ooo.seconds(ooo.lookups(&many)));
        let clustered = Lookups { clustered: true, ..many };
        assert!(ooo.seconds(ooo.lookups(&clustered)) < ooo.seconds(ooo.lookups(&many)));
    }

    #[test]
    fn best_scan_compares_memory_and_disk_trees() {
        let machine = machine(false);
        let stored = |bytes, rows| Readable { bytes, cached: 0.5, rows, in_memory: false };
        let in_memory = |rows| Readable { bytes: 50.0 * rows, cached: 1.0, rows, in_memory: true };
        assert_eq!(machine.best_scan(&[stored(8192.0, 100.0), in_memory(100.0)], 2.0), Some(1));
        assert_eq!(machine.best_scan(&[stored(1e9, 1e7), stored(1e8, 1e7), in_memory(1e7)], 2.0), Some(1));
        assert_eq!(machine.best_scan(&[stored(0.0, 1e6), stored(0.0, 10.0)], 2.0), Some(1));
        assert_eq!(machine.best_scan(&[], 2.0), None);
    }

    #[test]
    fn a_scan_costs_more_than_few_lookups_and_less_than_many() {
        let machine = machine(false);
        let scan = machine.seconds(machine.scan(1e5 * 8192.0, 0.0, 1e7, 3.0));
        assert!(machine.seconds(machine.lookups(&lookups(100.0))) < scan);
        assert!(machine.seconds(machine.lookups(&lookups(1e7))) > scan);
    }
}
