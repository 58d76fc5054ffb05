//! Creation, configuration and removal of groups.
//!
//! Every group that may exist in the tree is listed in `created`, from before its creation until after the decision to
//! remove it. An exit handler removes the listed groups, because `std::process::exit` drops nothing.
//!
//! Invariant: only the newest group of a path is removed, and only by the process that created it, not by a forked
//! child.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

use super::capabilities::groups;
use super::detect::Unmount;
use super::{Capabilities, Error, Operation, Owner, Processes, Resource, Result, Schemata, Tree, Usage, monitor};

/// Control of the machine's caches. Cheap to clone. Groups exist until they are dropped.
#[derive(Debug, Clone)]
pub struct Control {
    core: Arc<ControlCore>,
}

struct ControlCore {
    tree: Arc<dyn Tree>,
    owner: Owner,
    /// The operating system's id of this process. (In tests the owner is a simulated process.)
    process: u32,
    capabilities: Capabilities,
    /// Existing groups: path, and generation among the groups of that path.
    created: Mutex<BTreeMap<String, u64>>,
    /// Unmounts after the groups are gone.
    _mount: Mutex<Option<Unmount>>,
}

/// The parts in which a class may allocate, by level: the first position and the number of parts, counted from the end
/// that is shared with other hardware (see [`Resource::place`]). `None`: all usable parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassMasks {
    /// Parts of L3.
    pub l3: Option<(u32, u32)>,
    /// Parts of L2.
    pub l2: Option<(u32, u32)>,
}

/// A class of service, or a monitoring group, that this process created. Dropping it removes it; its threads return to
/// the default class.
#[derive(Debug)]
pub struct Group {
    core: Arc<ControlCore>,
    path: String,
    /// A vanished group may have a successor with the same name.
    generation: u64,
    /// A command found that the group no longer exists.
    vanished: AtomicBool,
}

impl Control {
    pub(super) fn new(tree: Arc<dyn Tree>, owner: Owner, capabilities: Capabilities) -> Self {
        let (created, mount) = (Mutex::default(), Mutex::default());
        let process = std::process::id();
        let core = Arc::new(ControlCore { tree, owner, process, capabilities, created, _mount: mount });
        exit::register(&core);
        Control { core }
    }

    /// Unmounts with the last clone.
    pub(super) fn with_mount(self, mount: Unmount) -> Self {
        *self.core._mount.lock() = Some(mount);
        self
    }

    /// The capabilities of the machine.
    pub fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    /// The root of the resctrl tree.
    pub fn location(&self) -> std::path::PathBuf {
        self.core.tree.location()
    }

    /// Creates a class of service that may allocate in all usable parts. `class`: its name, of ASCII letters and
    /// digits.
    ///
    /// # Errors
    /// If no class is free ([`Error::is_exhausted`]), or the kernel refuses for another reason. No group remains then.
    ///
    /// # Panics
    /// If `class` is empty or has other characters.
    pub fn create(&self, class: &str) -> Result<Group> {
        let group = self.create_in("", class)?;
        group.set(&ClassMasks::default())?;
        Ok(group)
    }

    /// Creates a group that monitors threads of the default class.
    ///
    /// # Errors
    /// If the hardware cannot monitor, or no monitoring id is free.
    ///
    /// # Panics
    /// As [`Control::create`].
    pub fn monitor(&self, name: &str) -> Result<Group> {
        self.create_in("mon_groups/", name)
    }

    /// Creates a group in the directory `parent`.
    fn create_in(&self, parent: &str, class: &str) -> Result<Group> {
        let plain = !class.is_empty() && class.chars().all(|letter| letter.is_ascii_alphanumeric());
        assert!(plain, "{class:?} is not a valid class name");
        let core = &self.core;
        let path = format!("{parent}{}", core.owner.group(class));
        // Registered before it exists, so that an exit in between removes it too.
        let before = core.created.lock().get(&path).copied();
        let generation = before.unwrap_or(0) + 1;
        core.created.lock().insert(path.clone(), generation);
        if let Err(error) = core.tree.create_dir(&path) {
            let mut created = core.created.lock();
            match before {
                Some(before) => created.insert(path.clone(), before),
                None => created.remove(&path),
            };
            drop(created);
            return Err(core.failed(Operation::CreateGroup, &path, &error));
        }
        Ok(Group { core: core.clone(), path, generation, vanished: AtomicBool::new(false) })
    }

    /// Moves a thread to the default class.
    ///
    /// # Errors
    /// If the thread has ended, or belongs to another user.
    pub fn release(&self, thread: u32) -> Result<()> {
        self.core.write(Operation::ReleaseThread, "tasks", &format!("{thread}\n"))
    }

    /// Usage of the default class.
    ///
    /// # Errors
    /// If the hardware cannot monitor.
    pub fn usage(&self) -> Result<Usage> {
        monitor::read(self.core.tree.as_ref(), "")
    }
}

impl Group {
    /// The group's directory, relative to the root of the tree.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the parts in which the group may allocate: `masks` for data, all usable parts for code if that is separate.
    ///
    /// # Errors
    /// If the kernel refuses. The masks are unchanged then.
    pub fn set(&self, masks: &ClassMasks) -> Result<()> {
        let mut schemata = Schemata::default();
        for resource in &self.core.capabilities.resources {
            let wish = if resource.kind.level() == 3 { masks.l3 } else { masks.l2 };
            let (first, bits) = wish.filter(|_| resource.kind.holds_data()).unwrap_or((0, u32::MAX));
            let place = |domain| resource.place(domain, first, bits);
            schemata.push(resource.kind.name(), resource.domains.iter().map(|domain| (domain.id, place(domain))));
        }
        self.write(Operation::SetMasks, "schemata", &schemata.to_string())
    }

    /// The masks in force.
    ///
    /// # Errors
    /// If the group has vanished.
    pub fn schemata(&self) -> Result<Schemata> {
        let path = format!("{}/schemata", self.path);
        let text = self.core.tree.read(&path).map_err(|error| self.failed(Operation::ReadMasks, &path, &error))?;
        Schemata::parse(&text).map_err(|line| Error::unexpected(Operation::ReadMasks, &path, &line))
    }

    /// Moves a thread to the group. Threads that it starts later begin in the group too.
    ///
    /// # Errors
    /// If the thread has ended or belongs to another user, or the group has vanished.
    pub fn assign(&self, thread: u32) -> Result<()> {
        self.write(Operation::AssignThread, "tasks", &format!("{thread}\n"))
    }

    /// Ids of the threads in the group.
    ///
    /// # Errors
    /// If the group has vanished.
    pub fn threads(&self) -> Result<Vec<u32>> {
        let path = format!("{}/tasks", self.path);
        let text = self.core.tree.read(&path).map_err(|error| self.failed(Operation::ReadThreads, &path, &error))?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Usage of the group's threads.
    ///
    /// # Errors
    /// If the hardware cannot monitor, or the group has vanished.
    pub fn usage(&self) -> Result<Usage> {
        monitor::read(self.core.tree.as_ref(), &self.path)
    }

    /// True if a command has found that another program removed the group.
    pub fn is_vanished(&self) -> bool {
        self.vanished.load(Ordering::Relaxed)
    }

    fn write(&self, operation: Operation, file: &str, text: &str) -> Result<()> {
        let result = self.core.write(operation, &format!("{}/{file}", self.path), text);
        if result.as_ref().is_err_and(Error::is_vanished) {
            self.vanished.store(true, Ordering::Relaxed);
        }
        result
    }

    fn failed(&self, operation: Operation, path: &str, error: &std::io::Error) -> Error {
        let error = self.core.failed(operation, path, error);
        self.vanished.fetch_or(error.is_vanished(), Ordering::Relaxed);
        error
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.core.remove(&self.path, self.generation);
    }
}

impl ControlCore {
    fn write(&self, operation: Operation, path: &str, text: &str) -> Result<()> {
        self.tree.write(path, text).map_err(|error| self.failed(operation, path, &error))
    }

    fn failed(&self, operation: Operation, path: &str, error: &std::io::Error) -> Error {
        let status = self.tree.read("info/last_cmd_status").unwrap_or_default();
        let status = if status.trim() == "ok" { String::new() } else { status.trim().to_string() };
        Error::new(operation, path, error, status)
    }

    fn remove(&self, path: &str, generation: u64) {
        let mut created = self.created.lock();
        if created.get(path) != Some(&generation) {
            return;
        }
        created.remove(path);
        drop(created);
        // A forked child has a copy of this value, but the groups belong to its parent.
        if self.process != std::process::id() {
            return;
        }
        match self.tree.remove_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path, "could not remove a resctrl group"),
        }
    }
}

impl fmt::Debug for ControlCore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ControlCore").field("tree", &self.tree).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Removes the groups of dead processes. Returns their paths.
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
            // Another process has removed it first.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path, "could not remove the resctrl group of a dead process"),
        }
    }
    removed
}

impl Resource {
    /// Bytes of one part of a cache of `cache_bytes` bytes.
    pub fn part_bytes(&self, cache_bytes: u64) -> u64 {
        cache_bytes / u64::from(self.cbm_mask.count().max(1))
    }
}

mod exit {
    //! Removal of groups at the exit of the process.

    use super::*;

    static ALL: Mutex<Vec<Weak<ControlCore>>> = Mutex::new(Vec::new());
    static REGISTERED: Once = Once::new();

    pub(super) fn register(core: &Arc<ControlCore>) {
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(core));
        drop(all);
        #[cfg(unix)]
        REGISTERED.call_once(|| {
            unsafe extern "C" {
                fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
            }
            // SAFETY: `atexit` of the C library stores the pointer and calls it without arguments; `undo` never
            // unwinds, because its calls return errors.
            unsafe { atexit(undo) };
        });
        #[cfg(not(unix))]
        let _ = &REGISTERED;
    }

    extern "C" fn undo() {
        // A lock that is held now may never be released. The next process that starts then removes the groups.
        let Some(all) = ALL.try_lock() else { return };
        for core in all.iter().filter_map(Weak::upgrade) {
            if core.process != std::process::id() {
                continue;
            }
            let Some(created) = core.created.try_lock() else { continue };
            for path in created.keys() {
                let _ = core.tree.remove_dir(path);
            }
        }
    }
}
