//! The threads on which requests run, for callers that block.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Result};

/// Threads that handle requests. Most of the work is verification of bodies, at more than 10 GB/s.
const THREADS: usize = 2;

/// A tokio runtime. Dropping it does not wait, so it may be dropped anywhere.
#[derive(Debug)]
pub(crate) struct Tasks(Option<Runtime>);

impl Tasks {
    pub fn new() -> Result<Tasks> {
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("keyaki-object").enable_all().build();
        runtime.map(|runtime| Tasks(Some(runtime))).map_err(|error| Error::StartThread(Arc::new(error)))
    }

    pub fn handle(&self) -> &Handle {
        match &self.0 {
            Some(runtime) => runtime.handle(),
            None => unreachable!("the runtime is taken by drop only"),
        }
    }

    /// Runs a future to its end. Blocks; a caller in a task of another runtime blocks the thread of that runtime.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.handle().spawn(async move {
            // The caller waits, unless it panicked.
            let _ = sender.send(future.await);
        });
        receiver.recv().unwrap_or(Err(Error::Cancelled))
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
