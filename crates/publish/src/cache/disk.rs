//! The cache on disk: one file for each frame, in a directory that any number of processes share.
//!
//! ```text
//! DIRECTORY/<2 digits>/<hash>-<nonce>-<frame, 8 hexadecimal digits>     payload and checksum, as in the object
//! DIRECTORY/new/<random>                                               a file under construction
//! ```
//!
//! A file is written under another name and renamed, and then never changes; its name determines its bytes. Reads
//! verify the checksum, so a file that a crash has cut off, or a defect of the disk has changed, is removed and read
//! again from the store. Nothing is synced: the files are copies.
//!
//! *Slow disks.* Readers do not wait for writes. Frames queued for writing take at most [`QUEUED_BYTES_MAX`]; further
//! frames are not written, and counted.
//!
//! *Limit.* A process lists the directory when it has opened the cache, in the background, and counts the bytes that it
//! adds. When they may exceed the limit, it lists the directory again, and removes the files that were not used for the longest time, until they take seven eighths of it. A use sets the
//! time of a file, at most once in ten minutes. Several processes may exceed the limit together by an eighth for each
//! of them.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use keyaki_primitives::Random;
use parking_lot::Mutex;

use super::{Frame, FrameId};
use crate::error::{Error, Result};
use crate::remote::Counter;

/// A use within this time after the last one does not set the time of a file.
const USE_INTERVAL: Duration = Duration::from_secs(600);
/// Age at which a file under construction belongs to a process that has ended.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Limit of the frames that a handle queues for writing, in bytes.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// A cache of frames in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// The directory, which is created. Any number of processes may use it, also for different repositories. It has
    /// no other files.
    pub directory: PathBuf,
    /// Approximate limit of its files in bytes. Up to 64 MiB of frames in memory wait to be written.
    pub bytes_max: u64,
}

#[derive(Debug)]
pub(crate) struct DiskCache {
    options: DiskCacheOptions,
    /// Bytes at the last listing, and those added since.
    bytes: AtomicU64,
    /// Bytes of the frames that wait to be written, and their limit.
    queued: AtomicU64,
    queued_max: u64,
    skipped: Counter,
    /// Held while files are evicted.
    random: Mutex<Random>,
    evicting: Mutex<()>,
}

/// A file of the cache.
struct Cached {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// A frame that waits to be written. Leaves the queue when it is dropped.
#[derive(Debug)]
pub(crate) struct QueuedFrame {
    cache: Arc<DiskCache>,
    id: FrameId,
    frame: Frame,
}

impl QueuedFrame {
    /// Adds the frame to the cache.
    pub fn write(self) {
        self.cache.insert(self.id, &self.frame);
    }
}

impl Drop for QueuedFrame {
    fn drop(&mut self) {
        self.cache.queued.fetch_sub(self.frame.bytes() as u64, Ordering::Relaxed);
    }
}

impl DiskCache {
    /// Opens the cache. Its files are not listed before [`DiskCache::evict`].
    ///
    /// # Errors
    /// [`Error::CacheDirectory`].
    pub fn open(options: &DiskCacheOptions, random: Random) -> Result<DiskCache> {
        let unusable = |source| Error::CacheDirectory { path: options.directory.clone(), source: Arc::new(source) };
        fs::create_dir_all(options.directory.join("new")).map_err(unusable)?;
        Ok(DiskCache {
            options: options.clone(),
            bytes: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            queued_max: QUEUED_BYTES_MAX,
            skipped: Counter::default(),
            random: Mutex::new(random),
            evicting: Mutex::new(()),
        })
    }

    /// Reads a frame. A damaged file is removed.
    pub fn get(&self, id: FrameId) -> Option<Frame> {
        let path = self.path(id);
        let file = fs::File::open(&path).ok()?;
        let metadata = file.metadata().ok()?;
        // Before the allocation: the file may be another one.
        let is_frame = metadata.len() <= Frame::BYTES_MAX as u64;
        let bytes = if is_frame { fs::read(&path).ok()? } else { Vec::new() };
        let Some(frame) = Frame::verified(id, bytes.into()) else {
            tracing::warn!(path = %path.display(), "removing a damaged file of the cache");
            self.remove(&path);
            return None;
        };
        let now = SystemTime::now();
        if metadata.modified().is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > USE_INTERVAL)) {
            // Without permission, the file only seems older.
            let _ = file.set_modified(now);
        }
        Some(frame)
    }

    /// Queues a frame for writing. `None` if the disk is too slow: too many frames wait.
    pub fn enqueue(self: &Arc<Self>, id: FrameId, frame: &Frame) -> Option<QueuedFrame> {
        let added = |queued: u64| Some(queued + frame.bytes() as u64).filter(|&queued| queued <= self.queued_max);
        if self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).is_err() {
            self.skipped.add(1);
            return None;
        }
        Some(QueuedFrame { cache: self.clone(), id, frame: frame.clone() })
    }

    /// Frames that were not written because too many waited.
    pub fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    /// Adds a frame. An error is ignored: the frame is in the store.
    pub fn insert(&self, id: FrameId, frame: &Frame) {
        let path = self.path(id);
        if let Err(error) = self.write(&path, frame.stored()) {
            tracing::debug!(path = %path.display(), %error, "could not add a frame to the cache");
            return;
        }
        let added = frame.bytes() as u64;
        if self.bytes.fetch_add(added, Ordering::Relaxed) + added > self.options.bytes_max {
            self.evict();
        }
    }

    fn path(&self, id: FrameId) -> PathBuf {
        let object = id.object.to_string();
        self.options.directory.join(&object[..2]).join(format!("{object}-{:08x}", id.number))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let new = self.options.directory.join("new").join(format!("{:016x}", self.random.lock().next_u64()));
        let write = || {
            fs::write(&new, bytes)?;
            match fs::rename(&new, path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    path.parent().map_or(Ok(()), fs::create_dir_all)?;
                    fs::rename(&new, path)
                }
                renamed => renamed,
            }
        };
        let written = write();
        if written.is_err() {
            self.remove(&new);
        }
        written
    }

    /// Lists the files. If they exceed the limit, removes the least recently used files. Takes 1.5 seconds for 100,000
    /// files.
    pub fn evict(&self) {
        let Some(_evicting) = self.evicting.try_lock() else { return };
        let mut files = self.list();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        if bytes > self.options.bytes_max {
            files.sort_by_key(|file| file.used);
            let target = self.options.bytes_max / 8 * 7;
            for file in files {
                if bytes <= target {
                    break;
                }
                self.remove(&file.path);
                bytes -= file.bytes;
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn list(&self) -> Vec<Cached> {
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).collect::<Vec<_>>();
        let mut files = Vec::new();
        for folder in entries(&self.options.directory) {
            let is_new = folder.file_name() == "new";
            // Files of other programs stay.
            let ours =
                entries(&folder.path()).into_iter().filter(|entry| is_ours(&folder.file_name(), &entry.file_name()));
            for entry in ours {
                let Ok(metadata) = entry.metadata() else { continue };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                if is_new && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    self.remove(&entry.path());
                } else if !is_new {
                    files.push(Cached { path: entry.path(), bytes: metadata.len(), used });
                }
            }
        }
        files
    }

    /// Another process may have removed the file.
    fn remove(&self, path: &Path) {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "could not remove a file of the cache");
        }
    }
}

/// True for the names of the cache's files: `new/` and 16 hexadecimal digits, or the identifier of an object in the folder of its
/// first two digits, with the number of a frame.
fn is_ours(folder: &OsStr, file: &OsStr) -> bool {
    let (Some(folder), Some(file)) = (folder.to_str(), file.to_str()) else { return false };
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match file.rsplit_once('-') {
        None => folder == "new" && file.len() == 16 && is_hex(file),
        Some((object, frame)) => {
            let is_object = object.starts_with(folder) && object.split('-').all(is_hex);
            folder.len() == 2 && is_hex(folder) && is_object && frame.len() == 8 && is_hex(frame)
        }
    }
}

#[cfg(test)]
impl DiskCache {
    /// Limits the frames that wait to be written.
    pub fn with_queue(self, queued_max: u64) -> DiskCache {
        DiskCache { queued_max, ..self }
    }

    /// Stops writes until the guard is dropped.
    pub fn stall(&self) -> impl Drop + '_ {
        self.random.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::frame;

    fn open(directory: &Path, seed: u64) -> DiskCache {
        let options = DiskCacheOptions { directory: directory.into(), bytes_max: 8 * 4104 };
        DiskCache::open(&options, Random::new(seed)).unwrap()
    }

    #[test]
    fn processes_share_frames() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (open(directory.path(), 1), open(directory.path(), 2));
        let (id, frame) = frame(7);
        assert_eq!(first.get(id), None);
        first.insert(id, &frame);
        second.insert(id, &frame);
        assert_eq!((first.get(id).as_ref(), second.get(id).as_ref()), (Some(&frame), Some(&frame)));
        assert_eq!(fs::read_dir(directory.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn files_of_other_programs_stay() {
        let directory = tempfile::tempdir().unwrap();
        let others = ["letters/a.txt", "new/draft", "ab/ab.txt", "notes.txt"].map(|name| directory.path().join(name));
        for path in &others {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; 1 << 20]).unwrap();
            fs::File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let cache = open(directory.path(), 1);
        (0..40).for_each(|number| cache.insert(frame(number).0, &frame(number).1));
        assert!(others.iter().all(|path| path.exists()));
        let kept = (0..40).filter(|&number| cache.get(frame(number).0).is_some()).count();
        assert!((1..=8).contains(&kept), "{kept} frames");
    }

    #[test]
    fn damaged_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path(), 1);
        let (id, frame) = frame(7);
        let path = cache.path(id);
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut bytes = frame.stored().to_vec();
            change(&mut bytes);
            bytes
        };
        for bytes in [
            changed(|bytes| bytes[9] ^= 1),
            changed(|bytes| bytes.truncate(100)),
            changed(Vec::clear),
            changed(|bytes| bytes.resize(1 << 20, 0)),
        ] {
            cache.insert(id, &frame);
            fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get(id), None);
            assert!(!path.exists());
        }
        // A frame under the name of another one.
        let (other, _) = self::frame(8);
        cache.insert(id, &frame);
        fs::create_dir_all(cache.path(other).parent().unwrap()).unwrap();
        fs::copy(&path, cache.path(other)).unwrap();
        assert_eq!(cache.get(other), None);
    }

    #[test]
    fn the_files_used_last_stay() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path(), 1);
        let frames: Vec<_> = (0..8).map(frame).collect();
        for (age, (id, frame)) in (0..8).rev().zip(&frames) {
            cache.insert(*id, frame);
            let file = fs::File::options().write(true).open(cache.path(*id)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(3600 * (age + 1))).unwrap();
        }
        // The oldest file is used.
        assert!(cache.get(frames[0].0).is_some());
        let (id, frame) = frame(8);
        cache.insert(id, &frame);
        let there: Vec<bool> = frames.iter().map(|(id, _)| cache.path(*id).exists()).collect();
        assert_eq!(there, [true, false, false, true, true, true, true, true]);
        assert!(cache.get(id).is_some());
        // What an ended process has left.
        let left = directory.path().join("new").join("0123456789abcdef");
        fs::write(&left, b"part").unwrap();
        let file = fs::File::options().write(true).open(&left).unwrap();
        file.set_modified(SystemTime::now() - ABANDONED * 2).unwrap();
        let smaller = DiskCacheOptions { bytes_max: 3 * 4104, ..cache.options.clone() };
        let smaller = DiskCache::open(&smaller, Random::new(3)).unwrap();
        // Opening lists nothing.
        assert!(left.exists());
        smaller.evict();
        assert!(!left.exists());
        assert!(smaller.list().len() <= 3 && smaller.get(id).is_some());
    }
}
