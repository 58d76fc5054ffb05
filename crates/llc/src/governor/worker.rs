//! Threads that tell what they run.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{Governor, Inner, WorkClass};

/// A registered thread. Belongs to the thread that registered it.
#[derive(Debug)]
pub struct Worker {
    inner: Arc<Inner>,
    thread: u32,
    _not_send: PhantomData<*const ()>,
}

/// While it lives, the worker runs work of a class; then again what it ran before.
#[derive(Debug)]
pub struct Running<'w> {
    worker: &'w Worker,
    class: WorkClass,
    before: Option<WorkClass>,
}

impl Governor {
    /// Registers the thread that calls this. It counts as idle until it announces something.
    pub fn register(&self) -> Worker {
        let thread = thread_id();
        self.inner.state.lock().threads.entry(thread).or_default();
        Worker { inner: self.inner.clone(), thread, _not_send: PhantomData }
    }
}

impl Worker {
    /// From now on this thread runs work of this class. Announcements may be nested; the innermost one counts.
    pub fn announce(&self, class: WorkClass) -> Running<'_> {
        let before = self.inner.switch(self.thread, Some(class));
        Running { worker: self, class, before }
    }
}

impl Worker {
    /// Announces for good: until the next call, or the end of the worker. `None`: idle. For workers that run many small pieces of work.
    pub fn switch(&self, class: Option<WorkClass>) {
        self.inner.switch(self.thread, class);
    }
}

impl Running<'_> {
    pub fn class(&self) -> WorkClass {
        self.class
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.worker.inner.switch(self.worker.thread, self.before);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inner.switch(self.thread, None);
        let mut state = self.inner.state.lock();
        state.threads.remove(&self.thread);
        if let Ok(classes) = &state.classes {
            // What the thread runs next is none of our business.
            let _ = classes.control.release(self.thread);
        }
    }
}

/// While it lives, the thread that made it runs work of a class.
#[derive(Debug)]
pub struct Entered {
    inner: Arc<Inner>,
    thread: u32,
    before: Option<WorkClass>,
    _not_send: PhantomData<*const ()>,
}

impl Governor {
    /// As [`Worker::announce`], for threads that are not registered: those of somebody else's pool, which run a piece of work now and
    /// then. Without a change of class it costs a lock, no system call.
    pub fn enter(&self, class: WorkClass) -> Entered {
        let thread = thread_id();
        let before = self.inner.switch(thread, Some(class));
        Entered { inner: self.inner.clone(), thread, before, _not_send: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.inner.switch(self.thread, self.before);
    }
}

thread_local! {
    /// The governor to which this thread has announced something last.
    static ANNOUNCED_TO: Cell<u64> = const { Cell::new(0) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

impl Inner {
    /// Counts a thread, the calling one, among another class, moves it there, and adjusts the masks. Gives the class that it was in.
    fn switch(&self, thread: u32, class: Option<WorkClass>) -> Option<WorkClass> {
        // A new thread may have the number of one that has ended.
        let is_new = ANNOUNCED_TO.replace(self.id) != self.id;
        let mut state = self.state.lock();
        let known = state.threads.entry(thread).or_default();
        if is_new {
            known.group = None;
        }
        let before = std::mem::replace(&mut known.runs, class);
        let moves = class.is_some() && class != known.group;
        if before == class && !moves {
            return before;
        }
        if let Some(before) = before {
            let count = state.mix.of(before);
            *count = count.saturating_sub(1);
        }
        if let Some(class) = class {
            *state.mix.of(class) += 1;
        }
        // First the narrower masks, then the work.
        self.decide(&mut state, self.now_ms(), None);
        if let (Ok(classes), Some(class), true) = (&state.classes, class, moves) {
            match classes.assign(class, thread) {
                Ok(()) => state.threads.entry(thread).or_default().group = Some(class),
                Err(error) => self.recover(&mut state, &error),
            }
        }
        before
    }
}

/// The thread's number, as the kernel has it.
pub(super) fn thread_id() -> u32 {
    if THREAD.get() == 0 {
        THREAD.set(ask_thread_id());
    }
    THREAD.get()
}

#[cfg(target_os = "linux")]
fn ask_thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(not(target_os = "linux"))]
fn ask_thread_id() -> u32 {
    0
}
