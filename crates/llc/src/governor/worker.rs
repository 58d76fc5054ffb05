//! Workers: threads that announce the class of their work.
//!
//! An announcement changes the mix, and moves the thread to another class of service if its class changes. An idle
//! thread stays in the class of its last work, because its next work is most likely of the same class.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{Governor, GovernorCore, WorkClass};

/// A registered thread. Not `Send`: it belongs to the thread that registered it.
#[derive(Debug)]
pub struct Worker {
    core: Arc<GovernorCore>,
    thread: u32,
    _not_send: PhantomData<*const ()>,
}

/// An announcement. When it is dropped, the worker runs its previous work again.
#[derive(Debug)]
pub struct Running<'w> {
    worker: &'w Worker,
    class: WorkClass,
    before: Option<WorkClass>,
}

impl Governor {
    /// Registers the calling thread, which counts as idle until its first announcement.
    pub fn register(&self) -> Worker {
        let thread = thread_id();
        self.core.state.lock().threads.entry(thread).or_default();
        Worker { core: self.core.clone(), thread, _not_send: PhantomData }
    }
}

impl Worker {
    /// Announces that this thread runs work of a class until the result is dropped. Announcements may be nested; the
    /// innermost counts.
    pub fn announce(&self, class: WorkClass) -> Running<'_> {
        let before = self.core.switch(self.thread, Some(class));
        Running { worker: self, class, before }
    }

    /// Announces that this thread runs work of a class (`None`: is idle) until the next announcement or the end of the
    /// worker. For workers that run many small pieces of work.
    pub fn switch(&self, class: Option<WorkClass>) {
        self.core.switch(self.thread, class);
    }
}

impl Running<'_> {
    /// The announced class.
    pub fn class(&self) -> WorkClass {
        self.class
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.worker.core.switch(self.worker.thread, self.before);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.core.switch(self.thread, None);
        let mut state = self.core.state.lock();
        state.threads.remove(&self.thread);
        if let Ok(classes) = &state.classes {
            // Fails if the thread has been moved to a foreign group, which then keeps it.
            let _ = classes.control.release(self.thread);
        }
    }
}

/// An announcement of an unregistered thread, made by [`Governor::enter`]. When it is dropped, the thread runs its
/// previous work again.
#[derive(Debug)]
pub struct Entered {
    core: Arc<GovernorCore>,
    thread: u32,
    before: Option<WorkClass>,
    _not_send: PhantomData<*const ()>,
}

impl Governor {
    /// As [`Worker::announce`], for unregistered threads, such as those of a foreign pool that occasionally run a piece
    /// of work. Without a change of class it takes a lock but makes no system call.
    pub fn enter(&self, class: WorkClass) -> Entered {
        let thread = thread_id();
        let before = self.core.switch(thread, Some(class));
        Entered { core: self.core.clone(), thread, before, _not_send: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.core.switch(self.thread, self.before);
    }
}

thread_local! {
    /// Id of the governor to which this thread made its last announcement.
    static ANNOUNCED_TO: Cell<u64> = const { Cell::new(0) };
    /// Kernel id of this thread; 0 if not known yet.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

impl GovernorCore {
    /// Changes the class of the calling thread's work, adjusts the masks, and moves the thread. Returns the previous
    /// class.
    fn switch(&self, thread: u32, class: Option<WorkClass>) -> Option<WorkClass> {
        // A new thread may have the id of one that has ended.
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
            assert!(*count > 0, "a thread ends {before} work that it has not announced");
            *count -= 1;
        }
        if let Some(class) = class {
            *state.mix.of(class) += 1;
        }
        // Narrow the masks before the work starts.
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

/// The kernel's id of the calling thread.
pub(super) fn thread_id() -> u32 {
    if THREAD.get() == 0 {
        THREAD.set(query_thread_id());
    }
    THREAD.get()
}

#[cfg(target_os = "linux")]
fn query_thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(not(target_os = "linux"))]
fn query_thread_id() -> u32 {
    0
}
