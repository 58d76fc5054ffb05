//! A device in memory for the log's tests: counts calls, loses power at a chosen one, and forgets a random part of what was
//! not synced, sector by sector.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{Buffer, Device, Error, File, Lock, OpenMode, Queue, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Len(usize),
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, data) => {
            grow(bytes, offset + data.len());
            bytes[*offset..offset + data.len()].copy_from_slice(data);
        }
        Change::Len(len) => {
            bytes.truncate(*len);
            grow(bytes, *len);
        }
    }
}

/// Zeros up to `len` (faster than `resize` without optimisation).
fn grow(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.extend_from_slice(&vec![0; len - bytes.len()]);
    }
}

#[derive(Debug, Default, Clone)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

type Names = BTreeMap<PathBuf, usize>;

#[derive(Debug, Default)]
struct State {
    contents: Vec<Content>,
    names: Names,
    durable_names: Names,
    /// Calls that change something, so far; from `power_off_at` on they fail.
    calls: u64,
    power_off_at: u64,
    off: bool,
    syncs: u64,
    /// Syncs wait while this is set; how many do.
    hold_syncs: bool,
    held_syncs: u64,
    /// Bytes that all files together may have.
    space: usize,
}

impl State {
    fn change(&mut self, operation: &'static str, path: &Path) -> Result<()> {
        self.calls += 1;
        self.off |= self.calls > self.power_off_at;
        self.check(operation, path)
    }

    fn check(&self, operation: &'static str, path: &Path) -> Result<()> {
        if self.off { Err(failure(operation, path, std::io::ErrorKind::BrokenPipe)) } else { Ok(()) }
    }

    fn used(&self) -> usize {
        self.names.values().map(|&id| self.contents[id].now.len()).sum()
    }
}

fn failure(operation: &'static str, path: &Path, kind: std::io::ErrorKind) -> Error {
    Error::new(operation, path, 0, 0, kind.into())
}

#[derive(Debug, Clone)]
pub(crate) struct Medium(Arc<Mutex<State>>, Arc<Condvar>);

impl Medium {
    pub(crate) fn new() -> Medium {
        let state = State { power_off_at: u64::MAX, space: usize::MAX, ..State::default() };
        Medium(Arc::new(Mutex::new(state)), Arc::default())
    }
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }
    pub(crate) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }
    /// Lets syncs wait, or go on.
    pub(crate) fn hold_syncs(&self, hold: bool) {
        self.0.lock().hold_syncs = hold;
        self.1.notify_all();
    }
    /// Waits until so many syncs wait.
    pub(crate) fn wait_for_held_syncs(&self, count: u64) {
        self.1.wait_while(&mut self.0.lock(), |state| state.held_syncs < count);
    }
    fn pass_gate(&self, state: &mut MutexGuard<'_, State>) {
        state.held_syncs += 1;
        self.1.notify_all();
        self.1.wait_while(state, |state| state.hold_syncs);
        state.held_syncs -= 1;
    }
    /// The power fails at the `calls`th changing call from now (1: the next one).
    pub(crate) fn power_off_after(&self, calls: u64) {
        let mut state = self.0.lock();
        state.power_off_at = state.calls + calls - 1;
    }
    /// From now on every call fails, until [`Medium::power_on`].
    pub(crate) fn power_off(&self) {
        self.0.lock().off = true;
    }
    /// As after the death of the process alone: nothing is lost, nothing becomes durable.
    pub(crate) fn power_on(&self) {
        let mut state = self.0.lock();
        state.off = false;
        state.power_off_at = u64::MAX;
    }
    pub(crate) fn set_space(&self, bytes: usize) {
        self.0.lock().space = bytes;
    }
    pub(crate) fn used(&self) -> usize {
        self.0.lock().used()
    }
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.0.lock();
        state.contents[state.names[path]].now.clone()
    }
    /// Replaces a file's bytes, durably.
    pub(crate) fn set_bytes(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let id = state.contents.len();
        state.contents.push(Content { now: bytes.clone(), durable: bytes, unsynced: Vec::new() });
        state.names.insert(path.to_path_buf(), id);
        state.durable_names.insert(path.to_path_buf(), id);
    }
    /// What the medium has after the power came back: everything synced, and what `keep` says of the rest.
    pub(crate) fn after_crash(&self, keep: &mut dyn FnMut() -> bool) -> Medium {
        let state = self.0.lock();
        let mut names = state.durable_names.clone();
        let changed: Vec<&PathBuf> = state
            .names
            .keys()
            .chain(state.durable_names.keys())
            .filter(|path| state.names.get(*path) != state.durable_names.get(*path))
            .collect();
        for path in changed {
            if keep() {
                match state.names.get(path) {
                    Some(&id) => names.insert(path.clone(), id),
                    None => names.remove(path),
                };
            }
        }
        let medium = Medium::new();
        for (path, id) in names {
            let content = &state.contents[id];
            let mut bytes = content.durable.clone();
            for change in &content.unsynced {
                match change {
                    Change::Len(_) if keep() => apply(&mut bytes, change),
                    Change::Len(_) => {}
                    Change::Write(offset, data) => {
                        for (i, sector) in data.chunks(SECTOR).enumerate() {
                            if keep() {
                                apply(&mut bytes, &Change::Write(offset + i * SECTOR, sector.to_vec()));
                            }
                        }
                    }
                }
            }
            medium.set_bytes(&path, bytes);
        }
        medium
    }
}

impl Device for Medium {
    fn name(&self) -> &'static str {
        "test"
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let mut state = self.0.lock();
        let id = match (state.names.get(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(failure("open", path, std::io::ErrorKind::AlreadyExists)),
            (Some(&id), _) => id,
            (None, OpenMode::CreateNew) => {
                state.change("open", path)?;
                let id = state.contents.len();
                state.contents.push(Content::default());
                state.names.insert(path.to_path_buf(), id);
                id
            }
            (None, _) => return Err(failure("open", path, std::io::ErrorKind::NotFound)),
        };
        Ok(Arc::new(MediumFile { medium: self.clone(), path: path.to_path_buf(), id }))
    }
    fn queue(&self, _depth: usize) -> Result<Box<dyn Queue>> {
        Err(failure("queue", Path::new(""), std::io::ErrorKind::Unsupported))
    }
    fn create_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let state = self.0.lock();
        let inside = state.names.keys().filter_map(|path| path.strip_prefix(dir).ok());
        Ok(inside.map(|name| name.display().to_string()).collect())
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.0.lock().names.contains_key(path))
    }
    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.0.lock();
        state.change("remove", path)?;
        state.names.remove(path).map(|_| ()).ok_or_else(|| failure("remove", path, std::io::ErrorKind::NotFound))
    }
    fn rename(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(failure("rename", from, std::io::ErrorKind::Unsupported))
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let mut state = self.0.lock();
        state.change("sync", dir)?;
        state.durable_names = state.names.clone();
        Ok(())
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        Err(failure("lock", path, std::io::ErrorKind::Unsupported))
    }
    fn now_ns(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
struct MediumFile {
    medium: Medium,
    path: PathBuf,
    id: usize,
}

impl MediumFile {
    fn change(&self, operation: &'static str, change: Change) -> Result<()> {
        let mut state = self.medium.0.lock();
        let was_off = state.off;
        let result = state.change(operation, &self.path);
        if let Change::Write(offset, data) = &change {
            let end = offset + data.len();
            assert!(end <= state.contents[self.id].now.len(), "write beyond the allocated bytes");
        }
        // The call during which the power fails may have had its effect.
        if !was_off {
            let content = &mut state.contents[self.id];
            apply(&mut content.now, &change);
            content.unsynced.push(change);
        }
        result
    }
}

impl File for MediumFile {
    fn path(&self) -> &Path {
        &self.path
    }
    fn len(&self) -> Result<u64> {
        Ok(self.medium.0.lock().contents[self.id].now.len() as u64)
    }
    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let state = self.medium.0.lock();
        state.check("read", &self.path)?;
        let end = offset as usize + buffer.len();
        let bytes = state.contents[self.id].now.get(offset as usize..end);
        buffer.copy_from_slice(bytes.ok_or_else(|| failure("read", &self.path, std::io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }
    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        self.change("write", Change::Write(offset as usize, buffer.to_vec()))
    }
    fn sync_data(&self) -> Result<()> {
        let mut state = self.medium.0.lock();
        self.medium.pass_gate(&mut state);
        state.change("sync", &self.path)?;
        state.syncs += 1;
        let content = &mut state.contents[self.id];
        for change in std::mem::take(&mut content.unsynced) {
            apply(&mut content.durable, &change);
        }
        Ok(())
    }
    fn truncate(&self, len: u64) -> Result<()> {
        self.change("truncate", Change::Len(len as usize))
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let now = self.len()?;
        let end = (offset + len).max(now);
        if self.medium.used() + (end - now) as usize > self.medium.0.lock().space {
            return Err(failure("allocate", &self.path, std::io::ErrorKind::StorageFull));
        }
        self.change("allocate", Change::Len(end as usize))
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
