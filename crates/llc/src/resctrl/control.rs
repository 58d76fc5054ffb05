//! Making, filling and removing groups.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

use super::capabilities::groups;
use super::detect::Unmount;
use super::{Capabilities, Error, Owner, Processes, Resource, Result, Schemata, Tree, Usage, monitor};

/// Control of the machine's caches. Groups live until they are dropped; cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

struct Inner {
    tree: Arc<dyn Tree>,
    owner: Owner,
    /// This process, by the operating system's number. (The owner may be a made-up one, in tests.)
    process: u32,
    capabilities: Capabilities,
    /// The groups that are there: path, and which of those of that path it is.
    made: Mutex<BTreeMap<String, u64>>,
    /// Given back after the groups are gone.
    _mount: Mutex<Option<Unmount>>,
}

/// Where a class may allocate, level by level: the first position and the number of parts, counted from the end that is shared
/// with other hardware (see [`Resource::place`]). `None`: wherever we may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassMasks {
    pub l3: Option<(u32, u32)>,
    pub l2: Option<(u32, u32)>,
}

/// A class of service of ours (or a monitoring group); removed when dropped, its threads going back to the default class.
#[derive(Debug)]
pub struct Group {
    inner: Arc<Inner>,
    path: String,
    /// A group that has vanished may have a successor of the same name.
    generation: u64,
    vanished: AtomicBool,
}

impl Control {
    pub(super) fn new(tree: Arc<dyn Tree>, owner: Owner, capabilities: Capabilities) -> Self {
        let (made, mount) = (Mutex::default(), Mutex::default());
        let process = std::process::id();
        let inner = Arc::new(Inner { tree, owner, process, capabilities, made, _mount: mount });
        exit::remember(&inner);
        Control { inner }
    }

    pub(super) fn with_mount(self, mount: Unmount) -> Self {
        *self.inner._mount.lock() = Some(mount);
        self
    }

    pub fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    /// Where the tree is.
    pub fn location(&self) -> std::path::PathBuf {
        self.inner.tree.location()
    }

    /// A new class of service that may allocate wherever we may. `class`: a few letters or digits.
    ///
    /// # Errors
    /// If no class is left ([`Error::is_exhausted`]), or the kernel refuses for another reason; then nothing is left behind.
    ///
    /// # Panics
    /// If `class` has other characters.
    pub fn create(&self, class: &str) -> Result<Group> {
        let group = self.make("", class)?;
        group.set(&ClassMasks::default())?;
        Ok(group)
    }

    /// A group that monitors threads of the default class.
    ///
    /// # Errors
    /// If the hardware cannot monitor, or no monitoring id is left.
    ///
    /// # Panics
    /// As [`Control::create`].
    pub fn monitor(&self, name: &str) -> Result<Group> {
        self.make("mon_groups/", name)
    }

    fn make(&self, parent: &str, class: &str) -> Result<Group> {
        let plain = !class.is_empty() && class.chars().all(|letter| letter.is_ascii_alphanumeric());
        assert!(plain, "{class:?} is no name for a class");
        let inner = &self.inner;
        let path = format!("{parent}{}", inner.owner.group(class));
        // Known before it is there, so that the end of the process in between leaves nothing behind.
        let before = inner.made.lock().get(&path).copied();
        let generation = before.unwrap_or(0) + 1;
        inner.made.lock().insert(path.clone(), generation);
        if let Err(error) = inner.tree.create_dir(&path) {
            let mut made = inner.made.lock();
            match before {
                Some(before) => made.insert(path.clone(), before),
                None => made.remove(&path),
            };
            drop(made);
            return Err(inner.failed("make group", &path, &error));
        }
        Ok(Group { inner: inner.clone(), path, generation, vanished: AtomicBool::new(false) })
    }

    /// Gives a thread back to the default class.
    ///
    /// # Errors
    /// If the thread is gone, or belongs to somebody else.
    pub fn release(&self, thread: u32) -> Result<()> {
        self.inner.write("release thread", "tasks", &format!("{thread}\n"))
    }

    /// What the default class uses.
    ///
    /// # Errors
    /// If the hardware cannot monitor.
    pub fn usage(&self) -> Result<Usage> {
        monitor::read(self.inner.tree.as_ref(), "")
    }
}

impl Group {
    /// Its directory in the tree.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets where it may allocate: data by `masks`, code (where that is separate) anywhere we may.
    ///
    /// # Errors
    /// If the kernel refuses; then the masks are as they were.
    pub fn set(&self, masks: &ClassMasks) -> Result<()> {
        let mut schemata = Schemata::default();
        for resource in &self.inner.capabilities.resources {
            let wish = if resource.kind.level() == 3 { masks.l3 } else { masks.l2 };
            let (first, bits) = wish.filter(|_| resource.kind.holds_data()).unwrap_or((0, u32::MAX));
            let place = |domain| resource.place(domain, first, bits);
            schemata.push(resource.kind.name(), resource.domains.iter().map(|domain| (domain.id, place(domain))));
        }
        self.write("set masks", "schemata", &schemata.to_string())
    }

    /// The masks that are in force.
    ///
    /// # Errors
    /// If the group is gone.
    pub fn schemata(&self) -> Result<Schemata> {
        let path = format!("{}/schemata", self.path);
        let text = self.inner.tree.read(&path).map_err(|error| self.failed("read masks", &path, &error))?;
        Schemata::parse(&text).map_err(|line| Error::unexpected("read masks", &path, &line))
    }

    /// Moves a thread here. Threads that it starts from now on begin here too.
    ///
    /// # Errors
    /// If the thread is gone, belongs to somebody else, or the group has vanished.
    pub fn assign(&self, thread: u32) -> Result<()> {
        self.write("assign thread", "tasks", &format!("{thread}\n"))
    }

    /// The threads that are here.
    ///
    /// # Errors
    /// If the group is gone.
    pub fn threads(&self) -> Result<Vec<u32>> {
        let path = format!("{}/tasks", self.path);
        let text = self.inner.tree.read(&path).map_err(|error| self.failed("read threads", &path, &error))?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// What its threads use.
    ///
    /// # Errors
    /// If the hardware cannot monitor, or the group is gone.
    pub fn usage(&self) -> Result<Usage> {
        monitor::read(self.inner.tree.as_ref(), &self.path)
    }

    /// Whether somebody else has removed it, as far as is known.
    pub fn is_vanished(&self) -> bool {
        self.vanished.load(Ordering::Relaxed)
    }

    fn write(&self, operation: &'static str, file: &str, text: &str) -> Result<()> {
        let result = self.inner.write(operation, &format!("{}/{file}", self.path), text);
        if result.as_ref().is_err_and(Error::is_vanished) {
            self.vanished.store(true, Ordering::Relaxed);
        }
        result
    }

    fn failed(&self, operation: &'static str, path: &str, error: &std::io::Error) -> Error {
        let error = self.inner.failed(operation, path, error);
        self.vanished.fetch_or(error.is_vanished(), Ordering::Relaxed);
        error
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.inner.remove(&self.path, self.generation);
    }
}

impl Inner {
    fn write(&self, operation: &'static str, path: &str, text: &str) -> Result<()> {
        self.tree.write(path, text).map_err(|error| self.failed(operation, path, &error))
    }

    fn failed(&self, operation: &'static str, path: &str, error: &std::io::Error) -> Error {
        let status = self.tree.read("info/last_cmd_status").unwrap_or_default();
        let status = if status.trim() == "ok" { String::new() } else { status.trim().to_string() };
        Error::new(operation, path, error, status)
    }

    fn remove(&self, path: &str, generation: u64) {
        let mut made = self.made.lock();
        if made.get(path) != Some(&generation) {
            return;
        }
        made.remove(path);
        drop(made);
        // A forked child has our memory, but the groups are its parent's.
        if self.process != std::process::id() {
            return;
        }
        match self.tree.remove_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path, "a resctrl group stays behind"),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Inner").field("tree", &self.tree).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Removes groups of processes that are certainly dead. Returns their paths.
pub(super) fn remove_stale(tree: &dyn Tree, processes: &dyn Processes) -> Vec<String> {
    let monitors = tree.directories("mon_groups").unwrap_or_default();
    let all = groups(tree).into_iter().chain(monitors.into_iter().map(|name| format!("mon_groups/{name}")));
    let stale = all.filter(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        Owner::of_group(name).is_some_and(|owner| owner.is_dead(processes))
    });
    let mut removed = Vec::new();
    for path in stale.collect::<Vec<_>>() {
        match tree.remove_dir(&path) {
            Ok(()) => {
                tracing::info!(path, "removed the resctrl group of a dead process");
                removed.push(path);
            }
            // Another process was quicker.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path, "the resctrl group of a dead process stays"),
        }
    }
    removed
}

impl Resource {
    /// Bytes of one part of a cache of `cache_bytes`.
    pub fn part_bytes(&self, cache_bytes: u64) -> u64 {
        cache_bytes / u64::from(self.cbm_mask.count().max(1))
    }
}

/// `std::process::exit` drops nothing: whatever is left then goes here.
mod exit {
    use super::*;

    static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
    static REGISTERED: Once = Once::new();

    pub(super) fn remember(inner: &Arc<Inner>) {
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(inner));
        drop(all);
        #[cfg(unix)]
        REGISTERED.call_once(|| {
            unsafe extern "C" {
                fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
            }
            // SAFETY: C's `atexit` keeps a pointer to a function that takes nothing and never unwinds.
            unsafe { atexit(undo) };
        });
        #[cfg(not(unix))]
        let _ = &REGISTERED;
    }

    extern "C" fn undo() {
        // Whoever holds a lock now will not let go of it any more; then the next start removes what is left.
        let Some(all) = ALL.try_lock() else { return };
        for inner in all.iter().filter_map(Weak::upgrade) {
            if inner.process != std::process::id() {
                continue;
            }
            let Some(made) = inner.made.try_lock() else { continue };
            for path in made.keys() {
                let _ = inner.tree.remove_dir(path);
            }
        }
    }
}
