//! Runs the futures of statements for callers without async code.
//!
//! A database has one runtime, which starts with the first [`Connection`](super::Connection). The calling thread polls
//! the future of its statement; the threads of the runtime execute the tasks that the future spawns.
//!
//! A thread must not block in `block_on` while it runs async code of another runtime: tokio panics there. In such a
//! thread, a new thread polls the future instead, and the calling thread waits for it. This costs the start of a thread
//! for each statement that has to wait.

use std::path::Path;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::{Error, Result};

/// The runtime of a database, created when it is first needed.
#[derive(Debug, Default)]
pub(super) struct BlockingRuntime {
    runtime: OnceLock<Runtime>,
}

impl BlockingRuntime {
    /// Starts the runtime, unless it runs, with `threads` worker threads.
    ///
    /// # Errors
    /// `Io` if the threads cannot be started.
    pub fn start(&self, threads: usize) -> Result<()> {
        if self.runtime.get().is_some() {
            return Ok(());
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("keyaki-blocking")
            .enable_all()
            .build()
            .map_err(|error| Error::io("start", Path::new("worker threads"), error))?;
        if let Err(second) = self.runtime.set(runtime) {
            // Another thread was faster.
            shut_down(second);
        }
        Ok(())
    }

    fn runtime(&self) -> Result<&Runtime> {
        self.runtime.get().ok_or_else(|| Error::Internal("the runtime of the connections is not started".into()))
    }

    /// Runs a future to its end. Blocks.
    ///
    /// # Errors
    /// Those of the future; `Io` if a thread cannot be started.
    pub fn run<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let runtime = self.runtime()?;
        if Handle::try_current().is_err() {
            return runtime.block_on(work);
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("keyaki-caller".into());
            let thread = thread.spawn_scoped(scope, || runtime.block_on(work));
            let thread = thread.map_err(|error| Error::io("start", Path::new("a thread"), error))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Polls a future once, and continues with `run` if it is not ready. For futures that are usually ready, and that
    /// execute nothing long before they first wait.
    ///
    /// # Errors
    /// As [`BlockingRuntime::run`].
    pub fn poll_then<F: Future<Output = Result<T>> + Send, T>(
        &self,
        work: F,
        run: impl FnOnce(std::pin::Pin<&mut F>) -> Result<T>,
    ) -> Result<T> {
        let mut work = pin!(work);
        {
            let _context = self.runtime()?.enter();
            if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return result;
            }
        }
        run(work)
    }
}

impl Drop for BlockingRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            shut_down(runtime);
        }
    }
}

/// Ends a runtime. Waits for its tasks, which refer to the database, so that the database is closed when its last handle
/// is gone. Async code must not wait.
fn shut_down(runtime: Runtime) {
    match Handle::try_current() {
        Ok(_) => runtime.shutdown_background(),
        Err(_) => drop(runtime),
    }
}
