//! The measurements of a [`Calibration`]: random reads by size and depth, sequential writes, syncs.
//!
//! Time is the device's own clock, so that a simulated device is measured in virtual time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use keyaki_primitives::Random;

use super::{Calibration, CalibrationError, ReadRate, WriteRate, rounded};
use crate::interface::{Completion, Device, Error, File, Op, OpenMode, Operation, Queue, Request, Result, Wait};
use crate::memory::{BLOCK, Buffer};

/// Name of the scratch file in the measured directory.
const SCRATCH: &str = "keyaki-calibration.scratch";
/// Bytes of a sequential write.
const WRITE_BYTES: usize = 1 << 20;
/// Sequential writes in flight.
const WRITE_DEPTH: usize = 4;
/// Minimum number of reads of a measurement, even if they take longer than its duration.
const READS_MIN: u64 = 16;
/// Maximum number of reads of a measurement, even if they take less than its duration.
const READS_MAX: u64 = 1_000_000;
/// Maximum number of syncs of a measurement.
const SYNCS_MAX: u64 = 10_000;

/// Options of [`calibrate`].
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Bytes of the scratch file. It should exceed the drive's own cache.
    pub scratch_bytes: u64,
    /// Request sizes in bytes: positive multiples of [`BLOCK`].
    pub request_bytes: Vec<usize>,
    /// Queue depths: at least 1 each.
    pub depths: Vec<usize>,
    /// Time per measurement, by the device's clock.
    pub duration: Duration,
    /// Worker threads of the measurements with several workers; 0: one per core.
    pub workers: usize,
    /// Depths from this one on are also measured with several workers.
    pub workers_from_depth: usize,
}

impl Default for CalibrateOptions {
    /// 4 KiB to 1 MiB, depth 1 to 256; takes about 25 seconds.
    fn default() -> Self {
        CalibrateOptions {
            scratch_bytes: 1 << 30,
            request_bytes: (12..=20).map(|bits| 1 << bits).collect(),
            depths: (0..=8).map(|bits| 1 << bits).collect(),
            duration: Duration::from_millis(200),
            workers: 0,
            workers_from_depth: 32,
        }
    }
}

/// Progress of a calibration.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Measurements of reads that are done.
    pub done: usize,
    /// All measurements of reads.
    pub total: usize,
    /// Description of the next measurement, such as `"reads of 4 KiB, 8 in flight"`.
    pub next: String,
}

/// Measures the device at `path`: a directory, where a scratch file is created and finally removed, or a large file,
/// which is only read (so that writes are not measured). Calls `progress` before each measurement and at the end.
///
/// # Errors
/// If a request size is not a positive multiple of [`BLOCK`], a depth is 0, the file is shorter than the largest
/// request, or the device fails.
pub fn calibrate(
    device: &Arc<dyn Device>,
    path: &Path,
    options: &CalibrateOptions,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Calibration> {
    check(path, options)?;
    if device.list(path).is_err() {
        let file = device.open(path, OpenMode::Read)?;
        return measure_all(device, &file, None, options, progress);
    }
    let scratch = Scratch { device: device.as_ref(), path: path.join(SCRATCH) };
    if device.exists(&scratch.path)? {
        device.remove(&scratch.path)?;
    }
    let file = device.open(&scratch.path, OpenMode::CreateNew)?;
    let steps = options.request_bytes.len() * options.depths.len();
    progress(&Progress { done: 0, total: steps, next: "writes".into() });
    let writes = measure_writes(device.as_ref(), &file, options)?;
    measure_all(device, &file, Some(writes), options, progress)
}

fn check(path: &Path, options: &CalibrateOptions) -> Result<()> {
    let sizes_fit = options.request_bytes.iter().all(|&bytes| bytes > 0 && bytes.is_multiple_of(BLOCK));
    let error = if options.request_bytes.is_empty() || !sizes_fit {
        CalibrationError::RequestSizes
    } else if options.depths.is_empty() || options.depths.contains(&0) {
        CalibrationError::Depths
    } else {
        return Ok(());
    };
    Err(Error::new(Operation::Calibrate, path, error))
}

/// Removes the scratch file when dropped, also after an error.
struct Scratch<'a> {
    device: &'a dyn Device,
    path: PathBuf,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.device.remove(&self.path)
            && !error.is_not_found()
        {
            tracing::warn!(%error, "could not remove the scratch file of a calibration");
        }
    }
}

fn measure_all(
    device: &Arc<dyn Device>,
    file: &Arc<dyn File>,
    writes: Option<WriteRate>,
    options: &CalibrateOptions,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Calibration> {
    let len = file.len()?;
    let largest = options.request_bytes.iter().copied().max().unwrap_or(BLOCK);
    if len < largest as u64 {
        let error = CalibrationError::FileTooShort { file_bytes: len, request_bytes: largest as u64 };
        return Err(Error::new(Operation::Calibrate, file.path(), error));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if options.workers == 0 { cores } else { options.workers };
    let total = options.request_bytes.len() * options.depths.len();
    let mut rates = Vec::with_capacity(total);
    for &request_bytes in &options.request_bytes {
        for &depth in &options.depths {
            let next = format!("reads of {} KiB, {depth} in flight", request_bytes >> 10);
            progress(&Progress { done: rates.len(), total, next });
            let load = Load { file, slots: len / request_bytes as u64, request_bytes, duration: options.duration };
            let mut best = (measure_reads(device.as_ref(), &load, depth, 1)?, 1);
            if workers > 1 && depth >= options.workers_from_depth.max(workers) {
                let iops = measure_reads(device.as_ref(), &load, depth, workers)?;
                if iops > best.0 {
                    best = (iops, workers);
                }
            }
            let (iops, workers) = (rounded(best.0), best.1 as u32);
            rates.push(ReadRate { request_bytes: request_bytes as u64, depth: depth as u32, iops, workers });
        }
    }
    progress(&Progress { done: total, total, next: "nothing".into() });
    Calibration::new(device.name(), rates, writes).map_err(|error| Error::new(Operation::Calibrate, file.path(), error))
}

/// Reads of one size from random positions of a file.
struct Load<'a> {
    file: &'a Arc<dyn File>,
    /// Positions: multiples of the request size.
    slots: u64,
    request_bytes: usize,
    duration: Duration,
}

/// Requests per second with `depth` in flight, shared by `workers` threads.
fn measure_reads(device: &dyn Device, load: &Load<'_>, depth: usize, workers: usize) -> Result<f64> {
    if workers == 1 {
        return read_for_a_while(device, load, depth, 1, &Barrier::new(1));
    }
    let barrier = Barrier::new(workers);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let barrier = &barrier;
                let share = depth / workers + usize::from(worker < depth % workers);
                scope.spawn(move || read_for_a_while(device, load, share, worker as u64 + 1, barrier))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
    })
}

fn read_for_a_while(device: &dyn Device, load: &Load<'_>, depth: usize, seed: u64, barrier: &Barrier) -> Result<f64> {
    // Every thread must reach the barrier, also after an error.
    let prepared = Reader::prepare(device, load, depth, seed);
    barrier.wait();
    prepared?.run(device)
}

struct Reader<'a> {
    load: &'a Load<'a>,
    queue: Box<dyn Queue>,
    random: Random,
    depth: usize,
    completed: Vec<Completion>,
    /// Buffers for reuse, so that the measurement excludes allocations.
    spare: Vec<Buffer>,
}

impl<'a> Reader<'a> {
    /// Creates a queue and warms it and its buffers up.
    fn prepare(device: &dyn Device, load: &'a Load<'a>, depth: usize, seed: u64) -> Result<Self> {
        let (queue, random) = (device.queue(depth)?, Random::new(seed));
        let mut reader = Reader { load, queue, random, depth, completed: Vec::with_capacity(depth), spare: Vec::new() };
        reader.step()?;
        Ok(reader)
    }

    /// Fills the queue to its depth and collects completions. Returns their number.
    fn step(&mut self) -> Result<u64> {
        while self.queue.in_flight() < self.depth {
            let offset = self.random.below(self.load.slots) * self.load.request_bytes as u64;
            let buffer = self.spare.pop().unwrap_or_else(|| self.queue.buffer(self.load.request_bytes));
            self.queue.push(Request { file: self.load.file.clone(), offset, op: Op::Read(buffer), tag: 0 });
        }
        self.queue.complete(Wait::Until(None), &mut self.completed)?;
        let count = self.completed.len() as u64;
        take_back(&mut self.completed, &mut self.spare)?;
        Ok(count)
    }

    /// Reads for the load's duration; reads per second.
    fn run(mut self, device: &dyn Device) -> Result<f64> {
        let duration_ns = self.load.duration.as_nanos() as u64;
        let start_ns = device.now_ns();
        let mut reads = 0;
        loop {
            reads += self.step()?;
            let elapsed_ns = device.now_ns() - start_ns;
            if (elapsed_ns >= duration_ns && reads >= READS_MIN) || reads >= READS_MAX {
                return Ok(reads as f64 * 1e9 / elapsed_ns.max(1) as f64);
            }
        }
    }
}

/// Writes the scratch file from start to end, then measures syncs.
fn measure_writes(device: &dyn Device, file: &Arc<dyn File>, options: &CalibrateOptions) -> Result<WriteRate> {
    let largest = options.request_bytes.iter().copied().max().unwrap_or(BLOCK);
    let steps = options.scratch_bytes.max(largest as u64).div_ceil(WRITE_BYTES as u64);
    let mut random = Random::new(0);
    let mut queue = device.queue(WRITE_DEPTH)?;
    // Random bytes, which no drive can compress.
    let mut buffers: Vec<_> = (0..WRITE_DEPTH).map(|_| queue.buffer(WRITE_BYTES)).collect();
    for word in buffers.iter_mut().flat_map(|buffer| buffer.as_chunks_mut::<8>().0) {
        *word = random.next_u64().to_le_bytes();
    }
    let start_ns = device.now_ns();
    let mut completed = Vec::new();
    for step in 0..steps {
        while buffers.is_empty() {
            queue.complete(Wait::Until(None), &mut completed)?;
            take_back(&mut completed, &mut buffers)?;
        }
        if let Some(mut buffer) = buffers.pop() {
            buffer[..8].copy_from_slice(&step.to_le_bytes());
            queue.push(Request { file: file.clone(), offset: step << 20, op: Op::Write(buffer), tag: step });
        }
    }
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completed)?;
        take_back(&mut completed, &mut buffers)?;
    }
    file.sync_data()?;
    let elapsed_ns = (device.now_ns() - start_ns).max(1);
    let bytes_per_second = rounded((steps << 20) as f64 * 1e9 / elapsed_ns as f64);
    Ok(WriteRate { bytes_per_second, sync_ns: rounded(measure_syncs(device, file, options.duration)?) })
}

/// Moves the buffers of completions to `buffers`; fails if a request failed.
fn take_back(completed: &mut Vec<Completion>, buffers: &mut Vec<Buffer>) -> Result<()> {
    for completion in completed.drain(..) {
        completion.result?;
        buffers.extend(completion.buffer);
    }
    Ok(())
}

/// Nanoseconds for a write of one block and its sync.
fn measure_syncs(device: &dyn Device, file: &Arc<dyn File>, duration: Duration) -> Result<f64> {
    let block = Buffer::zeroed(BLOCK);
    let start_ns = device.now_ns();
    let mut syncs = 0;
    loop {
        file.write_at(syncs * BLOCK as u64 % WRITE_BYTES as u64, &block)?;
        file.sync_data()?;
        syncs += 1;
        let elapsed_ns = device.now_ns() - start_ns;
        if elapsed_ns >= duration.as_nanos() as u64 || syncs >= SYNCS_MAX {
            return Ok((elapsed_ns.max(1) as f64) / syncs as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{FaultKind, Model, Simulated, SimulatedOptions};

    fn options() -> CalibrateOptions {
        CalibrateOptions {
            scratch_bytes: 8 << 20,
            request_bytes: vec![4096, 16384, 1 << 20],
            depths: vec![1, 8, 256],
            duration: Duration::from_millis(5),
            workers: 1,
            workers_from_depth: 32,
        }
    }

    #[test]
    fn measurements_match_the_simulated_device() {
        let simulated = Simulated::new(SimulatedOptions { model: Model::nvme(), ..Default::default() });
        let mut steps = 0;
        let calibration =
            calibrate(&simulated.device(), Path::new("/"), &options(), &mut |progress| steps += progress.total)
                .unwrap();
        assert_eq!(steps, 9 * 11);
        assert!(simulated.list(Path::new("/")).unwrap().is_empty(), "the scratch file is gone");
        let about = |actual: f64, expected: f64| (actual / expected - 1.0).abs() < 0.1;
        assert!(about(calibration.iops(4096, 1), 12_400.0), "{calibration:#?}");
        assert!(about(calibration.iops(4096, 8), 8.0 * 12_400.0));
        assert!(about(calibration.iops(4096, 256), 800_000.0));
        assert!(about(calibration.bandwidth(), 7e9));
        let writes = calibration.writes().unwrap();
        assert!(about(writes.sync_ns, 160_000.0), "a write and a sync");
        assert!(writes.bytes_per_second < 7e9);
        assert_eq!(calibration.device(), "simulated");
    }

    #[test]
    fn existing_files_are_only_read() {
        let simulated = Simulated::new(SimulatedOptions { model: Model::cloud_volume(), ..Default::default() });
        simulated.insert(Path::new("big"), &vec![1; 4 << 20][..]).unwrap();
        simulated.insert(Path::new("small"), &[1; 4096][..]).unwrap();
        let device = simulated.device();
        let calibration = calibrate(&device, Path::new("big"), &options(), &mut |_| ()).unwrap();
        assert!(calibration.writes().is_none());
        assert_eq!(simulated.writes(), 0);
        assert!(calibrate(&device, Path::new("small"), &options(), &mut |_| ()).is_err());
        assert!(calibrate(&device, Path::new("none"), &options(), &mut |_| ()).unwrap_err().is_not_found());
    }

    #[test]
    fn failures_leave_no_scratch_file() {
        let simulated = Simulated::new(SimulatedOptions { capacity_bytes: Some(4 << 20), ..Default::default() });
        let device = simulated.device();
        assert!(calibrate(&device, Path::new("/"), &options(), &mut |_| ()).unwrap_err().is_no_space());
        assert!(simulated.list(Path::new("/")).unwrap().is_empty());
        simulated.set_capacity(None);
        simulated.fail_after(3, FaultKind::Eio);
        assert!(calibrate(&device, Path::new("/"), &options(), &mut |_| ()).is_err());
        assert!(simulated.list(Path::new("/")).unwrap().is_empty());
        for change in [
            |options: &mut CalibrateOptions| options.depths.push(0),
            |options: &mut CalibrateOptions| options.request_bytes = vec![100],
            |options: &mut CalibrateOptions| options.depths.clear(),
        ] {
            let mut options = options();
            change(&mut options);
            assert!(calibrate(&device, Path::new("/"), &options, &mut |_| ()).is_err());
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_real_device_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let options = CalibrateOptions {
            request_bytes: vec![4096, 65536],
            depths: vec![1, 32],
            duration: Duration::from_millis(5),
            workers: 2,
            ..options()
        };
        let device = crate::select::open_default().unwrap();
        let calibration = calibrate(&device, dir.path(), &options, &mut |_| ()).unwrap();
        assert_eq!(calibration.reads().len(), 4);
        assert!(calibration.is_measured());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
