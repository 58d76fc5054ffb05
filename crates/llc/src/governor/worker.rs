//! Threads that tell what they run.

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
        self.inner.state.lock().threads.entry(thread).or_insert(None);
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

impl Inner {
    /// Counts a thread among another class, moves it there, and adjusts the masks. Gives the class that it was in.
    fn switch(&self, thread: u32, class: Option<WorkClass>) -> Option<WorkClass> {
        let mut state = self.state.lock();
        let before = state.threads.insert(thread, class).flatten();
        if before == class {
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
        if let (Ok(classes), Some(class)) = (&state.classes, class)
            && let Err(error) = classes.assign(class, thread)
        {
            self.recover(&mut state, &error);
        }
        before
    }
}

#[cfg(target_os = "linux")]
pub(super) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn thread_id() -> u32 {
    0
}
