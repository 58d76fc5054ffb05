//! A device in memory for tests and experiments: deterministic, in virtual time, with crashes and faults.
//!
//! [`Simulated`] keeps files and directories in a current and a durable state; [`Simulated::crash`] decides from the
//! seed which unsynced changes survive. Calls take the virtual time of its [`Model`]: the clock jumps, and no call waits
//! in real time. Faults are planned by the caller. If one thread uses the device, a run depends only on the seed and the
//! calls. With several threads the order of their calls is as random as their scheduling, but the clock waits for all
//! of them.
//!
//! ```
//! use keyaki_device::simulated::{Simulated, SimulatedOptions};
//! use keyaki_device::{BLOCK, Buffer, Device, OpenMode};
//! use std::path::Path;
//!
//! let device = Simulated::new(SimulatedOptions { seed: 1, ..Default::default() });
//! let file = device.open(Path::new("f"), OpenMode::CreateNew)?;
//! device.sync_dir(Path::new("/"))?;
//! file.write_at(0, &Buffer::zeroed(BLOCK))?;
//! file.sync_data()?;
//! device.crash();
//! assert!(file.len().is_err(), "a power failure invalidates handles");
//! assert_eq!(device.open(Path::new("f"), OpenMode::Read)?.len()?, BLOCK as u64);
//! # Ok::<(), keyaki_device::Error>(())
//! ```

mod extents;
mod faults;
mod handles;
mod inode;
mod namespace;
mod queue;
#[cfg(test)]
mod tests;
mod world;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keyaki_primitives::sync::{Condvar, Mutex};

pub use crate::model::Model;
pub use faults::FaultKind;

use crate::interface::{Device, Error, ErrorKind, File, Lock, OpenMode, Operation, Queue, Result};
use handles::{SimulatedFile, SimulatedLock};
use namespace::Node;
use queue::SimulatedQueue;
use world::World;

/// Options of a simulated device.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedOptions {
    /// Seed of all random decisions: latencies, and the outcome of crashes.
    pub seed: u64,
    /// The device's performance.
    pub model: Model,
    /// Space for file contents, in bytes; `None`: no limit.
    pub capacity_bytes: Option<u64>,
}

impl Default for SimulatedOptions {
    /// Seed 0, no latency, no limit.
    fn default() -> Self {
        SimulatedOptions { seed: 0, model: Model::instant(), capacity_bytes: None }
    }
}

/// A simulated device. Clones are handles to the same device.
#[derive(Debug, Clone)]
pub struct Simulated {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    world: Mutex<World>,
    /// Notified after every change that may end the wait of a queue.
    changed: Condvar,
}

impl Simulated {
    /// An empty device at virtual time 0.
    pub fn new(options: SimulatedOptions) -> Self {
        Simulated { shared: Arc::new(Shared { world: Mutex::new(World::new(&options)), changed: Condvar::new() }) }
    }

    /// A handle of this device for code that takes any device.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// Cuts the power and restarts the machine. Every unsynced write, truncation and allocation, and every creation,
    /// removal and rename in an unsynced directory, survives or is lost. A write may also be torn into sectors of 512
    /// bytes or blocks of 4096. Open handles, locks and requests fail from now on; new handles work. Planned faults are
    /// cleared; unreadable ranges and flipped bits remain.
    pub fn crash(&self) {
        self.change(World::crash);
    }

    /// True if a planned fault has cut the power: every call fails until [`Simulated::crash`].
    pub fn is_down(&self) -> bool {
        self.shared.world.lock().is_down()
    }

    /// Data writes since the device was created, including failed ones.
    pub fn writes(&self) -> u64 {
        self.shared.world.lock().faults.writes()
    }

    /// Calls since the device was created that change or sync anything: data writes, syncs, truncations, allocations,
    /// and changes and syncs of directories.
    pub fn operations(&self) -> u64 {
        self.shared.world.lock().faults.operations()
    }

    /// Plans a fault for the data write after `successes` more data writes. Any number of faults may be planned.
    pub fn fail_after(&self, successes: u64, kind: FaultKind) {
        self.change(|world| world.faults.plan_write(successes, kind));
    }

    /// Plans a power failure during the [operation](Simulated::operations) after `successes` more operations.
    pub fn crash_after_operations(&self, successes: u64) {
        self.change(|world| world.faults.plan_crash(successes));
    }

    /// Plans a failure of the file sync after `successes` more file syncs. The changes that it covers may be lost in a
    /// crash, even if later syncs succeed.
    pub fn fail_sync(&self, successes: u64) {
        self.change(|world| world.faults.plan_sync(successes, ErrorKind::Injected));
    }

    /// As [`Simulated::fail_sync`], but the sync fails for lack of space, as on file systems that allocate space when they
    /// write back, and under quotas.
    pub fn fail_sync_without_space(&self, successes: u64) {
        self.change(|world| world.faults.plan_sync(successes, ErrorKind::NoSpace));
    }

    /// Switches lying syncs on or off: file syncs that report success and make nothing durable.
    pub fn set_lying_syncs(&self, lying: bool) {
        self.change(|world| world.faults.lying_syncs = lying);
    }

    /// Makes reads that overlap this byte range of a file fail, until [`Simulated::clear_faults`].
    ///
    /// # Errors
    /// If there is no file at `path`.
    pub fn fail_reads(&self, path: &Path, range: Range<u64>) -> Result<()> {
        self.fail_next_reads(path, range, u64::MAX)
    }

    /// Makes the next `reads` reads that overlap this byte range of a file fail.
    ///
    /// # Errors
    /// If there is no file at `path`.
    pub fn fail_next_reads(&self, path: &Path, range: Range<u64>, reads: u64) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let spoil =
            |world: &mut World| world.namespace.file(path).map(|inode| inode.lock().spoil(range.clone(), reads));
        let result = self.change(spoil);
        result.map_err(|kind| Error::in_range(Operation::FailReads, path, range.start, len, kind))
    }

    /// Flips bit `bit` (0 to 7) of byte `byte` of a file, in the current and the durable state.
    ///
    /// # Errors
    /// If there is no file at `path`, it ends before that byte, or `bit` is above 7.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> Result<()> {
        let result = self.change(|world| world.namespace.file(path)?.lock().flip_bit(byte, bit));
        result.map_err(|kind| Error::in_range(Operation::FlipBit, path, byte, 1, kind))
    }

    /// Clears all planned faults and unreadable ranges, and switches lying syncs off.
    pub fn clear_faults(&self) {
        self.change(World::heal);
    }

    /// Changes the space for file contents. If it is less than the used space, nothing more can be written.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.change(|world| world.space.set_capacity(bytes));
    }

    /// Space used by file contents and reservations, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.shared.world.lock().space.used_bytes()
    }

    /// Changes the performance for requests that start from now on.
    pub fn set_model(&self, model: Model) {
        self.change(|world| world.set_model(model));
    }

    /// Advances the clock, for example by the time of a computation.
    pub fn advance(&self, duration: Duration) {
        self.change(|world| {
            let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            world.advance(world.now_ns.saturating_add(nanoseconds));
        });
    }

    /// Copies a file of the operating system to `path`, durably, and creates the directories above it. An existing file
    /// is replaced.
    ///
    /// # Errors
    /// If `from` cannot be read, or the device is full.
    pub fn import(&self, path: &Path, from: &Path) -> Result<()> {
        let file = std::fs::File::open(from).map_err(|error| Error::new(Operation::Import, from, error))?;
        self.insert(path, io::BufReader::with_capacity(1 << 20, file))
    }

    /// Creates a file with these bytes at `path`, as [`Simulated::import`] does.
    ///
    /// # Errors
    /// If `bytes` cannot be read, or the device is full.
    pub fn insert(&self, path: &Path, bytes: impl io::Read) -> Result<()> {
        self.change(|world| world.import(path, bytes)).map_err(|kind| Error::new(Operation::Import, path, kind))
    }

    /// Runs `call` on the world and notifies waiting queues.
    fn change<T>(&self, call: impl FnOnce(&mut World) -> T) -> T {
        let result = call(&mut self.shared.world.lock());
        self.shared.changed.notify_all();
        result
    }

    /// Runs a call on a path, if the power is on.
    fn call<T>(
        &self,
        operation: Operation,
        path: &Path,
        call: impl FnOnce(&mut World) -> Result<T, ErrorKind>,
    ) -> Result<T> {
        self.change(|world| {
            world.check(world.generation)?;
            call(world)
        })
        .map_err(|kind| Error::new(operation, path, kind))
    }

    /// Runs a call that changes directories, which a planned power failure may interrupt.
    fn alter(
        &self,
        operation: Operation,
        path: &Path,
        call: impl FnOnce(&mut World) -> Result<(), ErrorKind>,
    ) -> Result<()> {
        self.call(operation, path, |world| {
            let crashes = world.operation_crashes();
            call(world)?;
            if crashes { Err(ErrorKind::PowerLost) } else { Ok(()) }
        })
    }
}

impl Device for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if mode == OpenMode::CreateNew {
            self.alter(Operation::Open, path, |world| {
                let inode = world.new_inode();
                world.namespace.create(path, Node::File(inode))
            })?;
        }
        let (inode, generation) =
            self.call(Operation::Open, path, |world| Ok((world.namespace.file(path)?, world.generation)))?;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimulatedFile { shared: self.shared.clone(), inode, path: path.into(), writable, generation }))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(SimulatedQueue::new(self.shared.clone(), depth)))
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.queue(depth)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.alter(Operation::CreateDir, path, |world| world.namespace.create(path, Node::Dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.call(Operation::List, dir, |world| world.namespace.list(dir))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.call(Operation::Exists, path, |world| Ok(world.namespace.get(path).is_some()))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.alter(Operation::Remove, path, |world| world.namespace.remove(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.alter(Operation::Rename, from, |world| world.namespace.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.call(Operation::SyncDir, dir, |world| {
            if world.operation_crashes() { Err(ErrorKind::PowerLost) } else { world.namespace.sync_dir(dir) }
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let number = self.call(Operation::Lock, path, |world| world.lock(path))?;
        Ok(Box::new(SimulatedLock { shared: self.shared.clone(), number }))
    }

    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let number = self.call(Operation::Lock, path, |world| world.lock_existing(path))?;
        Ok(Box::new(SimulatedLock { shared: self.shared.clone(), number }))
    }

    fn mark(&self, path: &Path, number: u64) -> Result<Box<dyn Lock>> {
        let id = self.call(Operation::Mark, path, |world| world.mark(path, number))?;
        Ok(Box::new(SimulatedLock { shared: self.shared.clone(), number: id }))
    }

    fn marks(&self, path: &Path) -> Result<Vec<u64>> {
        self.call(Operation::Mark, path, |world| world.marks(path))
    }

    fn now_ns(&self) -> u64 {
        self.shared.world.lock().now_ns
    }
}
