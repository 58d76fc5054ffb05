//! Progress of calls, for displays and callbacks.
//!
//! A *call* is a method of a connection or cursor that executes statements or reads rows. While it runs, [`Monitor::report`] passes
//! a report to the reporter of the connection (`keyaki._progress`) every [`REPORT_EVERY`]. The thread of the call does this itself:
//! in the hook of [`keyaki::Connection::on_wait`] while a statement waits, and between two statements or batches of rows. At the
//! end of the call, the reporter erases what it has shown.
//!
//! Reports have the phases of statements that report some (COPY, CREATE INDEX, ANALYZE, loads), and for all statements the pages
//! read. Reporters cannot affect a statement, except by an exception, which cancels it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyaki::StatsHandle;
use parking_lot::Mutex;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

use crate::process::thread_mark;

/// Time between two reports of a call.
const REPORT_EVERY: Duration = Duration::from_millis(250);
/// Progress of less time is not extrapolated.
const ESTIMATE_AFTER: Duration = Duration::from_millis(500);

/// An object of `keyaki._progress` with the methods `show` and `clear`.
#[derive(Debug)]
pub struct Reporter {
    object: Py<PyAny>,
    /// The call has run for this time before its first report.
    after: Duration,
    /// The argument of which it was made.
    given: Py<PyAny>,
}

impl Reporter {
    /// The reporter for the option `progress`. A reporter without object reports nothing.
    ///
    /// # Errors
    /// `ProgrammingError` for a value that is neither `None` nor a truth value nor callable.
    pub fn of(progress: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> PyResult<Option<Arc<Reporter>>> {
        let given = progress.cloned().unwrap_or_else(|| py.None().into_bound(py));
        let object = py.import(intern!(py, "keyaki._progress"))?.call_method1(intern!(py, "reporter"), (&given,))?;
        if object.is_none() {
            return Ok(None);
        }
        let after = Duration::try_from_secs_f64(object.getattr(intern!(py, "after"))?.extract()?).unwrap_or_default();
        Ok(Some(Arc::new(Reporter { object: object.unbind(), after, given: given.unbind() })))
    }
}

/// The phase of a statement.
#[derive(Debug, Clone)]
struct Phase {
    name: String,
    total: Option<u64>,
    rows: u64,
    started: Instant,
}

/// The phases that the statements of a connection report.
#[derive(Debug, Default)]
struct Phases(Mutex<Option<Phase>>);

impl keyaki::Progress for Phases {
    fn start(&self, phase: &str, total: Option<u64>) {
        *self.0.lock() = Some(Phase { name: phase.into(), total, rows: 0, started: Instant::now() });
    }

    fn advance(&self, rows: u64) {
        if let Some(phase) = &mut *self.0.lock() {
            phase.rows += rows;
        }
    }

    fn finish(&self) {
        *self.0.lock() = None;
    }
}

/// A call that runs.
#[derive(Debug)]
struct Running {
    thread: usize,
    started: Instant,
    /// The last report, and who has received it.
    reported: Option<(Instant, Arc<Reporter>)>,
}

/// The progress of the calls of a connection.
pub struct Monitor {
    phases: Arc<Phases>,
    stats: StatsHandle,
    reporter: Mutex<Option<Arc<Reporter>>>,
    /// One for each thread that is in a call.
    calls: Mutex<Vec<Running>>,
    /// The end and the start of the last call that was reported.
    last: Mutex<Option<(Instant, Instant)>>,
}

/// Reports the progress of a call until it is dropped.
#[derive(Debug)]
pub struct Call<'a> {
    /// `None` within another call of the same thread.
    monitor: Option<&'a Monitor>,
}

impl Monitor {
    /// A monitor of the statements of a connection, without a reporter.
    pub fn new(connection: &keyaki::Connection) -> Monitor {
        let phases = Arc::<Phases>::default();
        connection.session().set_progress(phases.clone());
        Monitor {
            phases,
            stats: connection.session().stats_handle(),
            reporter: Mutex::default(),
            calls: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Sets the reporter of later calls; `None` for none.
    pub fn set_reporter(&self, reporter: Option<Arc<Reporter>>) {
        let replaced = std::mem::replace(&mut *self.reporter.lock(), reporter);
        drop(replaced);
    }

    /// The reporter.
    pub fn reporter(&self) -> Option<Arc<Reporter>> {
        self.reporter.lock().clone()
    }

    /// The option `progress` of the connection.
    pub fn option(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.reporter() {
            Some(reporter) => Ok(reporter.given.clone_ref(py)),
            None => Ok(false.into_pyobject(py)?.to_owned().into_any().unbind()),
        }
    }

    /// Notes the start of a call of this thread.
    pub fn call(&self) -> Call<'_> {
        self.begin(false)
    }

    /// As [`Monitor::call`], for calls that read a result. A call that directly follows one that was reported continues its time.
    pub fn reading(&self) -> Call<'_> {
        self.begin(true)
    }

    fn begin(&self, continues: bool) -> Call<'_> {
        let (thread, now) = (thread_mark(), Instant::now());
        let mut calls = self.calls.lock();
        if calls.iter().any(|call| call.thread == thread) {
            return Call { monitor: None };
        }
        if calls.is_empty() {
            // A statement that has failed may have left a phase.
            keyaki::Progress::finish(&*self.phases);
        }
        let last = self.last.lock().filter(|(ended, _)| continues && now.duration_since(*ended) < REPORT_EVERY);
        calls.push(Running { thread, started: last.map_or(now, |(_, started)| started), reported: None });
        Call { monitor: Some(self) }
    }

    /// Notes that a call has processed `rows` of `total` rows, for calls that execute a statement for each row.
    pub fn reach(&self, phase: &str, rows: u64, total: Option<u64>) {
        let mut current = self.phases.0.lock();
        let started = current.as_ref().filter(|current| current.name == phase).map(|current| current.started);
        let started = started.unwrap_or_else(Instant::now);
        *current = Some(Phase { name: phase.into(), total, rows, started });
    }

    /// Reports the call of this thread if it is time.
    ///
    /// # Errors
    /// Exceptions of the reporter.
    pub fn report(&self) -> PyResult<()> {
        let Some(reporter) = self.reporter() else { return Ok(()) };
        let (thread, now) = (thread_mark(), Instant::now());
        // The reporter of the last report is dropped outside of the lock: this may run code of the program.
        let (elapsed, _replaced) = {
            let mut calls = self.calls.lock();
            let Some(call) = calls.iter_mut().find(|call| call.thread == thread) else { return Ok(()) };
            let elapsed = now.duration_since(call.started);
            let is_early = call.reported.as_ref().is_some_and(|(last, _)| now.duration_since(*last) < REPORT_EVERY);
            if is_early || elapsed < reporter.after {
                return Ok(());
            }
            (elapsed.as_secs_f64(), call.reported.replace((now, reporter.clone())))
        };
        let phase = self.phases.0.lock().clone();
        let (mut pages, mut reading) = (0, 0);
        for (_, stats) in self.stats.last_stats() {
            let now = stats.snapshot();
            pages += now.pages_read;
            reading += now.timeline.last().map_or(0, |sample| sample.in_flight);
        }
        let remaining = phase.as_ref().and_then(|phase| remaining(phase, now));
        let (name, rows, total) = phase.map_or((None, 0, None), |phase| (Some(phase.name), phase.rows, phase.total));
        let report = (name, rows, total, elapsed, remaining, pages, reading);
        let shown = Python::try_attach(|py| reporter.object.call_method1(py, intern!(py, "show"), report).map(drop));
        shown.unwrap_or(Ok(()))
    }

    /// Ends the call of this thread, and erases its report.
    fn end(&self) {
        let thread = thread_mark();
        let ended = {
            let mut calls = self.calls.lock();
            let place = calls.iter().position(|call| call.thread == thread);
            place.map(|place| calls.swap_remove(place))
        };
        let Some(Running { started, reported: Some((_, reporter)), .. }) = ended else { return };
        *self.last.lock() = Some((Instant::now(), started));
        Python::try_attach(|py| {
            let Err(error) = reporter.object.call_method0(py, intern!(py, "clear")) else { return };
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                // A signal handler has raised it. It is raised again after this call.
                // SAFETY: the thread is attached to the interpreter.
                unsafe { ffi::PyErr_SetInterrupt() }
            }
        });
    }
}

/// The estimated seconds until the end of a phase; `None` if it has no total.
fn remaining(phase: &Phase, now: Instant) -> Option<f64> {
    let elapsed = now.duration_since(phase.started);
    let left = phase.total?.checked_sub(phase.rows)?;
    (phase.rows > 0 && elapsed >= ESTIMATE_AFTER).then(|| elapsed.as_secs_f64() * left as f64 / phase.rows as f64)
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(monitor) = self.monitor {
            monitor.end();
        }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("calls", &self.calls).finish_non_exhaustive()
    }
}
