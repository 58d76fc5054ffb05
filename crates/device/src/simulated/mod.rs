//! A device in memory, for tests and experiments: deterministic, in virtual time, with crashes and faults.
//!
//! [`Simulated`] keeps files and directories with what is durable and what is not ([`Simulated::crash`] decides, from the
//! seed, what of the rest has survived), takes as long as its [`Model`] says (without making anybody wait: the clock
//! jumps), and does what its faults say. Used from one thread, a run depends on nothing but the seed and the calls made;
//! used from several, it is as random as they are, but the clock still waits for all of them.
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
//! assert!(file.len().is_err(), "handles die with the power");
//! assert_eq!(device.open(Path::new("f"), OpenMode::Read)?.len()?, BLOCK as u64);
//! # Ok::<(), keyaki_device::Error>(())
//! ```

mod extents;
mod faults;
mod handles;
mod inode;
mod model;
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

use parking_lot::{Condvar, Mutex};

pub use faults::FaultKind;
pub use model::Model;

use crate::{Device, Error, File, Lock, OpenMode, Queue, Result};
use handles::{SimulatedFile, SimulatedLock};
use namespace::Node;
use queue::SimulatedQueue;
use world::{World, is_down};

/// What a simulated device is like.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedOptions {
    /// Decides everything that is left to chance.
    pub seed: u64,
    pub model: Model,
    /// Room for file contents; `None`: no limit.
    pub capacity_bytes: Option<u64>,
}

impl Default for SimulatedOptions {
    /// Seed 0, no latency, no limit.
    fn default() -> Self {
        SimulatedOptions { seed: 0, model: Model::instant(), capacity_bytes: None }
    }
}

/// A simulated device. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Simulated {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    world: Mutex<World>,
    /// Rung when something has happened that a waiting queue may be interested in.
    changed: Condvar,
}

impl Simulated {
    pub fn new(options: SimulatedOptions) -> Self {
        Simulated { shared: Arc::new(Shared { world: Mutex::new(World::new(&options)), changed: Condvar::new() }) }
    }

    /// This device as others want it.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// Cuts the power and starts the machine again. Every write, truncation and allocation that is not synced, and every
    /// creation, removal and rename whose directory is not, has survived or is lost (a write may also be torn, into
    /// sectors of 512 bytes or blocks of 4096). All open handles, locks and requests fail from now on, planned
    /// faults are forgotten (unreadable ranges and flipped bits stay); new handles work.
    pub fn crash(&self) {
        self.change(World::crash);
    }

    /// Whether a planned fault has cut the power: everything fails until [`Simulated::crash`].
    pub fn is_down(&self) -> bool {
        self.shared.world.lock().is_down()
    }

    /// Data writes since the device was made (failed ones too).
    pub fn writes(&self) -> u64 {
        self.shared.world.lock().faults.writes()
    }

    /// Calls since the device was made that change or sync anything: data writes, syncs, truncations, allocations, and
    /// all that happens to directories.
    pub fn operations(&self) -> u64 {
        self.shared.world.lock().faults.operations()
    }

    /// After `successes` more data writes, one meets `kind`. Any number of faults may be planned.
    pub fn fail_after(&self, successes: u64, kind: FaultKind) {
        self.change(|world| world.faults.plan_write(successes, kind));
    }

    /// After `successes` more [operations](Simulated::operations) the power fails during the next one.
    pub fn crash_after_operations(&self, successes: u64) {
        self.change(|world| world.faults.plan_crash(successes));
    }

    /// After `successes` more syncs of files, one fails; what it should have made durable may be lost in a crash,
    /// whatever later syncs say.
    pub fn fail_sync(&self, successes: u64) {
        self.change(|world| world.faults.plan_sync(successes));
    }

    /// From now on syncs of files report success and make nothing durable (or no longer).
    pub fn set_lying_syncs(&self, lying: bool) {
        self.change(|world| world.faults.lying_syncs = lying);
    }

    /// Makes reads that touch this range of a file fail, until [`Simulated::clear_faults`].
    pub fn fail_reads(&self, path: &Path, range: Range<u64>) -> Result<()> {
        let result = self.change(|world| world.namespace.file(path).map(|inode| inode.lock().spoil(range.clone())));
        result
            .map_err(|error| Error::new("fail_reads", path, range.start, range.end.saturating_sub(range.start), error))
    }

    /// Turns over bit `bit` (0 to 7) of byte `byte` of a file, also in what is durable.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> Result<()> {
        let result = self.change(|world| world.namespace.file(path)?.lock().flip_bit(byte, bit));
        result.map_err(|error| Error::new("flip_bit", path, byte, 1, error))
    }

    /// Forgets all planned faults and unreadable ranges.
    pub fn clear_faults(&self) {
        self.change(World::heal);
    }

    /// Changes the room for file contents. Less than is used is allowed: then nothing more fits in.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.change(|world| world.space.set_capacity(bytes));
    }

    /// Room taken by file contents and reservations.
    pub fn used_bytes(&self) -> u64 {
        self.shared.world.lock().space.used_bytes()
    }

    /// Changes how long requests take that start from now on.
    pub fn set_model(&self, model: Model) {
        self.change(|world| world.set_model(model));
    }

    /// Lets time pass, for example for computations that should count.
    pub fn advance(&self, duration: Duration) {
        self.change(|world| {
            let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            world.advance(world.now_ns.saturating_add(nanoseconds));
        });
    }

    /// Puts the bytes of a file of the operating system at `path`, durably, with the directories above it. A file
    /// that was there is replaced.
    pub fn import(&self, path: &Path, from: &Path) -> Result<()> {
        let file = std::fs::File::open(from).map_err(|error| Error::on_path("import", from, error))?;
        self.insert(path, io::BufReader::with_capacity(1 << 20, file))
    }

    /// Puts a file with these bytes at `path`, as [`Simulated::import`].
    pub fn insert(&self, path: &Path, bytes: impl io::Read) -> Result<()> {
        self.change(|world| world.import(path, bytes)).map_err(|error| Error::on_path("import", path, error))
    }

    /// Runs `call` on the world and tells everybody.
    fn change<T>(&self, call: impl FnOnce(&mut World) -> T) -> T {
        let result = call(&mut self.shared.world.lock());
        self.shared.changed.notify_all();
        result
    }

    /// A call on a path.
    fn call<T>(&self, name: &'static str, path: &Path, call: impl FnOnce(&mut World) -> io::Result<T>) -> Result<T> {
        self.change(|world| {
            world.check(world.generation)?;
            call(world)
        })
        .map_err(|error| Error::on_path(name, path, error))
    }

    /// A call on a path that changes directories: it may be the one during which the power fails.
    fn alter(&self, name: &'static str, path: &Path, call: impl FnOnce(&mut World) -> io::Result<()>) -> Result<()> {
        self.call(name, path, |world| {
            let crashes = world.operation_crashes();
            call(world)?;
            if crashes { Err(is_down()) } else { Ok(()) }
        })
    }
}

impl Device for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if mode == OpenMode::CreateNew {
            self.alter("open", path, |world| {
                let inode = world.new_inode();
                world.namespace.create(path, Node::File(inode))
            })?;
        }
        let (inode, generation) =
            self.call("open", path, |world| Ok((world.namespace.file(path)?, world.generation)))?;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimulatedFile { shared: self.shared.clone(), inode, path: path.into(), writable, generation }))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(SimulatedQueue::new(self.shared.clone(), depth)))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.alter("create_dir", path, |world| world.namespace.create(path, Node::Dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.call("list", dir, |world| world.namespace.list(dir))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.call("exists", path, |world| Ok(world.namespace.get(path).is_some()))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.alter("remove", path, |world| world.namespace.remove(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.alter("rename", from, |world| world.namespace.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.call("sync_dir", dir, |world| {
            if world.operation_crashes() { Err(is_down()) } else { world.namespace.sync_dir(dir) }
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let number = self.call("lock", path, |world| world.lock(path))?;
        Ok(Box::new(SimulatedLock { shared: self.shared.clone(), number }))
    }

    fn now_ns(&self) -> u64 {
        self.shared.world.lock().now_ns
    }
}
