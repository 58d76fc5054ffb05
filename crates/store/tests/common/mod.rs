//! A device that wraps another one and calls a hook before every file operation, except for the reads of queues. The hook
//! may wait or count.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryViewArray, RecordBatch};
use keyaki_device::{Buffer, Completion, Device, File, Lock, Op, OpenMode, Queue, Request, Result, Wait, Waker};
use keyaki_store::{Column, ColumnType, Direction, KeyRange, Schema, Store, TreeView, block_on};
use parking_lot::{Condvar, Mutex};

/// A file operation that is about to start, with the name of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Read(String),
    Write(String),
    Sync(String),
    Truncate(String),
    Allocate(String),
    /// The lock has been released.
    Unlock,
}

type Hook = dyn Fn(&Call) + Send + Sync;

#[derive(Clone)]
pub struct Hooked {
    inner: Arc<dyn Device>,
    hook: Arc<Hook>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:?})", self.inner)
    }
}

impl Hooked {
    pub fn device(inner: Arc<dyn Device>, hook: impl Fn(&Call) + Send + Sync + 'static) -> Arc<dyn Device> {
        Arc::new(Hooked { inner, hook: Arc::new(hook) })
    }

    fn hooked(&self, inner: Box<dyn Queue>) -> Box<dyn Queue> {
        Box::new(HookedQueue { inner, hook: self.hook.clone() })
    }
}

struct HookedFile {
    inner: Arc<dyn File>,
    name: String,
    hook: Arc<Hook>,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookedFile({:?})", self.inner)
    }
}

impl File for HookedFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        (self.hook)(&Call::Read(self.name.clone()));
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        (self.hook)(&Call::Write(self.name.clone()));
        self.inner.write_at(offset, buffer)
    }
    fn sync_data(&self) -> Result<()> {
        (self.hook)(&Call::Sync(self.name.clone()));
        self.inner.sync_data()
    }
    fn truncate(&self, len: u64) -> Result<()> {
        (self.hook)(&Call::Truncate(self.name.clone()));
        self.inner.truncate(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        (self.hook)(&Call::Allocate(self.name.clone()));
        self.inner.allocate(offset, len)
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

struct HookedQueue {
    inner: Box<dyn Queue>,
    hook: Arc<Hook>,
}

impl Queue for HookedQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        self.inner.buffer(len)
    }
    fn push(&mut self, request: Request) {
        let name = request.file.path().file_name().unwrap().to_string_lossy().into_owned();
        match request.op {
            Op::Read(_) => {}
            Op::Write(_) => (self.hook)(&Call::Write(name)),
            Op::Sync => (self.hook)(&Call::Sync(name)),
        }
        self.inner.push(request);
    }
    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }
    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        self.inner.complete(wait, out)
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}

struct HookedLock {
    inner: Option<Box<dyn Lock>>,
    hook: Arc<Hook>,
}

impl fmt::Debug for HookedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookedLock({:?})", self.inner)
    }
}

impl Lock for HookedLock {}

impl Drop for HookedLock {
    fn drop(&mut self) {
        self.inner = None;
        (self.hook)(&Call::Unlock);
    }
}

impl Device for Hooked {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let inner = self.inner.open(path, mode)?;
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Ok(Arc::new(HookedFile { inner, name, hook: self.hook.clone() }))
    }
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(self.hooked(self.inner.queue(depth)?))
    }
    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(self.hooked(self.inner.movable_queue(depth)?))
    }
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.inner.create_dir(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        Ok(Box::new(HookedLock { inner: Some(self.inner.lock(path)?), hook: self.hook.clone() }))
    }
    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>> {
        Ok(Box::new(HookedLock { inner: Some(self.inner.lock_existing(path)?), hook: self.hook.clone() }))
    }
    fn mark(&self, path: &Path, number: u64) -> Result<Box<dyn Lock>> {
        self.inner.mark(path, number)
    }
    fn marks(&self, path: &Path) -> Result<Vec<u64>> {
        self.inner.marks(path)
    }
    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }
}

/// A gate at which hooks wait while it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    pub fn close(&self) {
        *self.closed.lock() = true;
    }
    pub fn open(&self) {
        *self.closed.lock() = false;
        self.changed.notify_all();
    }
    pub fn pass(&self) {
        let mut closed = self.closed.lock();
        if *closed {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while *closed {
                self.changed.wait(&mut closed);
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
    /// Waits until a thread waits at the gate.
    pub fn wait_for_one(&self) {
        eventually("no thread reached the gate", || self.waiting.load(Ordering::SeqCst) > 0);
    }
}

/// Waits up to 60 seconds for a condition that background threads establish; panics with `otherwise` after that.
pub fn eventually(otherwise: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A batch of rows of a key-value tree, in the given order.
pub fn key_value_rows<'a>(rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> RecordBatch {
    let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) = rows.unzip();
    let column = |values: Vec<&[u8]>| Arc::new(BinaryViewArray::from_iter_values(values)) as ArrayRef;
    RecordBatch::try_new(Schema::key_value().arrow().clone(), vec![column(keys), column(values)]).unwrap()
}

/// A key and a value, both 64-bit integers.
pub fn number_schema() -> Schema {
    let column = |name: &str| Column { name: name.into(), ty: ColumnType::Int64, nullable: false };
    Schema::new(vec![column("key"), column("value")], 1)
}

/// The rows of a view of a tree with [`number_schema`].
pub fn number_rows(store: &Store, view: &TreeView) -> BTreeMap<i64, i64> {
    let source = store.blocking();
    let (mut cursor, mut rows) = (view.cursor(&source, KeyRange::all(), Direction::Ascending), BTreeMap::new());
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let arrays = chunk.to_arrays(&[0, 1]).unwrap();
        let [keys, values] = [0, 1].map(|column| arrays[column].as_primitive::<Int64Type>().values());
        rows.extend(keys.iter().copied().zip(values.iter().copied()));
    }
    rows
}

/// The encoded key of a row of [`number_schema`].
pub fn number_key(number: i64) -> Vec<u8> {
    (number ^ i64::MIN).to_be_bytes().to_vec()
}
