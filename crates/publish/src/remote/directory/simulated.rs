//! A file system with power failures. Bytes and entries that were not synced may be lost, each by itself.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_primitives::Random;
use object_store::PutPayload;
use parking_lot::Mutex;

use super::files::Files;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Directory,
    /// The index of its bytes.
    File(usize),
}

type Entries = BTreeMap<OsString, Entry>;

#[derive(Debug, Default)]
struct State {
    /// The bytes of files, and whether they were synced.
    bodies: Vec<(Vec<u8>, bool)>,
    /// The entries of directories: the ones that programs see, and the ones that were synced.
    seen: HashMap<PathBuf, Entries>,
    synced: HashMap<PathBuf, Entries>,
    /// Calls until the power fails.
    left: usize,
}

/// `Clone` returns another handle.
#[derive(Debug, Clone)]
pub(super) struct SimulatedFiles(Arc<Mutex<State>>);

impl SimulatedFiles {
    /// An empty directory `/` whose power fails after `calls` calls.
    pub fn new(calls: usize) -> Self {
        let root = HashMap::from([(PathBuf::from("/"), Entries::new())]);
        SimulatedFiles(Arc::new(Mutex::new(State {
            seen: root.clone(),
            synced: root,
            left: calls,
            ..State::default()
        })))
    }

    /// The files after a power failure: each entry of a directory is the synced one or the one that programs saw.
    pub fn after_power_failure(&self, seed: u64) -> BTreeMap<PathBuf, Vec<u8>> {
        let (state, mut random) = (self.0.lock(), Random::new(seed));
        let (mut found, mut directories) = (BTreeMap::new(), vec![PathBuf::from("/")]);
        while let Some(directory) = directories.pop() {
            let entries = |of: &HashMap<PathBuf, Entries>| of.get(&directory).cloned().unwrap_or_default();
            let (seen, synced) = (entries(&state.seen), entries(&state.synced));
            let names: std::collections::BTreeSet<&OsString> = seen.keys().chain(synced.keys()).collect();
            for name in names {
                let entry = if random.one_in(2) { seen.get(name) } else { synced.get(name) };
                match entry {
                    Some(Entry::Directory) => directories.push(directory.join(name)),
                    Some(Entry::File(body)) => {
                        let (bytes, is_synced) = &state.bodies[*body];
                        let kept = if *is_synced { bytes.len() } else { random.index(bytes.len()) };
                        found.insert(directory.join(name), bytes[..kept].to_vec());
                    }
                    None => {}
                }
            }
        }
        found
    }

    /// Counts a call, which fails after the power failure.
    fn call<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.0.lock();
        state.left = state.left.checked_sub(1).ok_or_else(|| io::Error::other("the power has failed"))?;
        call(state)
    }
}

impl State {
    fn entries(&mut self, path: &Path) -> io::Result<(&mut Entries, OsString)> {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
        Ok((self.seen.get_mut(parent).ok_or(ErrorKind::NotFound)?, name.into()))
    }

    fn find(&mut self, path: &Path) -> io::Result<Entry> {
        let (entries, name) = self.entries(path)?;
        entries.get(&name).copied().ok_or(ErrorKind::NotFound.into())
    }

    fn add(&mut self, path: &Path, entry: Entry) -> io::Result<()> {
        let (entries, name) = self.entries(path)?;
        if entries.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        entries.insert(name, entry);
        Ok(())
    }
}

impl Files for SimulatedFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            state.add(path, Entry::Directory)?;
            state.seen.insert(path.into(), Entries::new());
            Ok(())
        })
    }

    fn create(&self, path: &Path, payload: &PutPayload) -> io::Result<()> {
        let body = self.call(|state| {
            let body = state.bodies.len();
            state.add(path, Entry::File(body))?;
            state.bodies.push((payload.iter().flatten().copied().collect(), false));
            Ok(body)
        })?;
        self.call(|state| {
            state.bodies[body].1 = true;
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|state| {
            let entry = state.find(from)?;
            let (entries, name) = state.entries(to)?;
            entries.insert(name, entry);
            let (entries, name) = state.entries(from)?;
            entries.remove(&name);
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|state| {
            let entry = state.find(from)?;
            state.add(to, entry)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            state.find(path)?;
            let (entries, name) = state.entries(path)?;
            entries.remove(&name);
            Ok(())
        })
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            let entries = state.seen.get(path).ok_or(ErrorKind::NotFound)?.clone();
            state.synced.insert(path.into(), entries);
            Ok(())
        })
    }
}
