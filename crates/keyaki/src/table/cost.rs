//! Costs in seconds of device and processor time.
//!
//! I/O: reads of a page at random take `reads / IOPS(size, depth)`, where `depth` is how many reads the pipeline keeps in
//! flight: what its rows can ask for, within the executor's credits; 1 when executing in order. The number of *different*
//! pages that `n` lookups touch follows Cardenas: `P (1 - (1 - 1/P)^n)`. The denser the reads in flight lie among the
//! pages, the more of them are neighbours and become one larger read, until the access is sequential: that is the
//! executor's coalescing. Scans read at the device's bandwidth.
//!
//! Processor: fixed charges per lookup, row and value, measured on a warm database, divided by the workers. Out of order,
//! I/O and processor time overlap: the greater counts, plus one latency for every step of the pipeline, as nothing hides
//! the first row's reads. In order they add up.

use keyaki_device::calibrate::Calibration;

/// A lookup by key: task, search in the page, messages on the path.
const LOOKUP_SECONDS: f64 = 5.0e-6;
/// A row that a scan or a lookup yields, and each of its values.
const ROW_SECONDS: f64 = 5.0e-9;
const VALUE_SECONDS: f64 = 9.0e-9;
/// A row that a scan of an index in memory yields, more than one of a page: it is put together on its own.
const MEMORY_ROW_SECONDS: f64 = 1.0e-7;
/// A row put into a hash table, a row that looks for its partners in one.
const BUILD_SECONDS: f64 = 6.0e-8;
const PROBE_SECONDS: f64 = 2.5e-8;
/// A comparison of every pair of rows, where no column equals another.
const PAIR_SECONDS: f64 = 2.0e-9;
/// A request for a page that is not in the cache: registration, system call, verification.
const MISS_SECONDS: f64 = 8.0e-6;
/// Starting an operator.
const START_SECONDS: f64 = 2.0e-5;

/// What the machine can do for one query.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    calibration: std::sync::Arc<Calibration>,
    /// Reads in flight at the most.
    depth_max: f64,
    /// Lookups in progress at the most.
    tasks_max: f64,
    coalesce_max_bytes: f64,
    workers: f64,
    in_order: bool,
}

/// What an operator or a part of one takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Seconds that the device is busy.
    pub io: f64,
    /// Seconds of processor time, over all workers.
    pub cpu: f64,
    /// Seconds in which neither can be used.
    pub latency: f64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost { io: self.io + other.io, cpu: self.cpu + other.cpu, latency: self.latency + other.latency }
    }
}

/// A tree, or ranges of it, that could be scanned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readable {
    pub bytes: f64,
    /// Share of its pages that are in the cache.
    pub cached: f64,
    pub rows: f64,
    pub in_memory: bool,
}

/// Lookups of one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookups {
    pub count: f64,
    /// How many of them differ in their key.
    pub distinct: f64,
    /// Rows found by one.
    pub matches: f64,
    /// Of the tree.
    pub tree_rows: f64,
    pub tree_pages: f64,
    pub page_bytes: f64,
    /// Share of the tree's pages that are in the cache.
    pub cached: f64,
    /// The keys come about in the tree's order.
    pub clustered: bool,
    /// Columns decoded.
    pub columns: f64,
}

impl Machine {
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

    /// Elapsed seconds.
    pub fn seconds(&self, cost: Cost) -> f64 {
        let cpu = cost.cpu / self.workers;
        if self.in_order { cost.io + cpu + cost.latency } else { cost.io.max(cpu) + cost.latency }
    }

    fn iops(&self, bytes: f64, depth: f64) -> f64 {
        self.calibration.iops(bytes.max(1.0) as u64, depth.max(1.0) as usize).max(1.0)
    }

    fn bandwidth(&self) -> f64 {
        self.calibration.bandwidth().max(1.0)
    }

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
            cpu: lookups.count * LOOKUP_SECONDS + self.rows(found, lookups.columns) + misses * MISS_SECONDS,
            latency: if misses > 0.0 { 1.0 / self.iops(lookups.page_bytes, 1.0) } else { 0.0 },
        }
    }

    /// Seconds for `misses` reads among `pages`.
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

    fn rows(&self, rows: f64, columns: f64) -> f64 {
        rows * (ROW_SECONDS + VALUE_SECONDS * columns)
    }

    /// Reading `bytes` in key order, the share `cached` of which is there, from which `rows` are decoded; `columns` of each.
    pub fn scan(&self, bytes: f64, cached: f64, rows: f64, columns: f64) -> Cost {
        let bytes = bytes * (1.0 - cached);
        let first = if bytes > 0.0 { 1.0 / self.iops(4096.0, 1.0) } else { 0.0 };
        Cost { io: bytes / self.bandwidth(), cpu: self.rows(rows, columns) + START_SECONDS, latency: first }
    }

    /// Reading what is `readable`.
    pub fn scan_of(&self, readable: Readable, columns: f64) -> Cost {
        let Readable { bytes, cached, rows, in_memory } = readable;
        if !in_memory {
            return self.scan(bytes, cached, rows, columns);
        }
        self.scan(0.0, 1.0, rows, columns) + Cost { cpu: rows * MEMORY_ROW_SECONDS, ..Cost::default() }
    }

    /// Which of several trees to scan that have the same rows: on the device the one with the fewest bytes to read; one in
    /// memory if it is quicker than that.
    pub fn best_scan(&self, candidates: &[Readable], columns: f64) -> Option<usize> {
        let seconds = |&i: &usize| self.seconds(self.scan_of(candidates[i], columns));
        let places = |in_memory: bool| (0..candidates.len()).filter(move |&i| candidates[i].in_memory == in_memory);
        let stored = places(false).min_by(|&a, &b| candidates[a].bytes.total_cmp(&candidates[b].bytes));
        let fastest = |a: &usize, b: &usize| seconds(a).total_cmp(&seconds(b));
        stored.into_iter().chain(places(true).min_by(fastest)).min_by(fastest)
    }

    /// A hash join whose inputs are there; `keyless`: there is nothing to hash.
    pub fn hash_join(&self, build: f64, probe: f64, output: f64, keyless: bool) -> Cost {
        let pairs = if keyless { build * probe * PAIR_SECONDS } else { 0.0 };
        let cpu = build * BUILD_SECONDS + probe * PROBE_SECONDS + output * ROW_SECONDS + pairs;
        Cost { cpu: cpu + START_SECONDS, ..Cost::default() }
    }
}

/// How many of `pages` pages are touched by `n` reads of random ones (Cardenas).
fn distinct_pages(pages: f64, n: f64) -> f64 {
    // (1 - 1/P)^n without loss for large P.
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
    fn pages_touched() {
        assert!((distinct_pages(1000.0, 1.0) - 1.0).abs() < 1e-6);
        assert!((distinct_pages(1e6, 1000.0) - 1000.0).abs() < 1.0);
        assert!((distinct_pages(1000.0, 1e6) - 1000.0).abs() < 1e-6);
        assert!((distinct_pages(1.0, 5.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn more_lookups_cost_more_but_never_much_more_than_reading_everything() {
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
    fn out_of_order_and_cached_and_clustered_are_cheaper() {
        let (ooo, in_order) = (machine(false), machine(true));
        let many = lookups(1e4);
        assert!(ooo.seconds(ooo.lookups(&many)) < in_order.seconds(in_order.lookups(&many)));
        let warm = Lookups { cached: 0.9, ..many };
        assert!(ooo.seconds(ooo.lookups(&warm)) < ooo.seconds(ooo.lookups(&many)));
        let clustered = Lookups { clustered: true, ..many };
        assert!(ooo.seconds(ooo.lookups(&clustered)) < ooo.seconds(ooo.lookups(&many)));
    }

    #[test]
    fn an_index_in_memory_is_for_few_rows() {
        let machine = machine(false);
        let stored = |bytes, rows| Readable { bytes, cached: 0.5, rows, in_memory: false };
        let in_memory = |rows| Readable { bytes: 50.0 * rows, cached: 1.0, rows, in_memory: true };
        assert_eq!(machine.best_scan(&[stored(8192.0, 100.0), in_memory(100.0)], 2.0), Some(1));
        assert_eq!(machine.best_scan(&[stored(1e9, 1e7), stored(1e8, 1e7), in_memory(1e7)], 2.0), Some(1));
        assert_eq!(machine.best_scan(&[], 2.0), None);
    }

    #[test]
    fn few_lookups_beat_the_scan_and_many_do_not() {
        let machine = machine(false);
        let scan = machine.seconds(machine.scan(1e5 * 8192.0, 0.0, 1e7, 3.0));
        assert!(machine.seconds(machine.lookups(&lookups(100.0))) < scan);
        assert!(machine.seconds(machine.lookups(&lookups(1e7))) > scan);
    }
}
