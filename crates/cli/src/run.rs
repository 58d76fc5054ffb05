//! Runs statements and writes their results, for the shell and for scripts.
//!
//! Rows are streamed: each batch is formatted and written before the next one is requested. Ctrl-C interrupts the statement,
//! which then fails or, if its commit has started, succeeds. While rows are read, Ctrl-C drops the stream, which cancels the
//! query.

use std::fs::File;
use std::io::{self, BufWriter, Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use keyaki::{Database, Outcome, RecordBatch, Session};

use crate::arguments::OpenArguments;
use crate::bars::{Bars, Watch};
use crate::connection::{Connection, failure_of};
use crate::failure::{Failure, Result};
use crate::interrupt::{Active, Interrupts};
use crate::output::Mode;
use crate::pager::Pager;
use crate::remote::{CopySource, PlainWriter, Remote};
use crate::terminal;

/// Destination of results.
#[derive(Debug, Default)]
pub enum Target {
    #[default]
    Stdout,
    File(BufWriter<File>),
    /// Rows are formatted and dropped.
    Nowhere,
}

/// A connection and the output settings of its results.
pub struct Runner {
    pub connection: Connection,
    pub mode: Mode,
    pub target: Target,
    /// Print the elapsed time of each statement.
    pub timer: bool,
    /// Interactive use: confirm each statement, and page long results.
    pub interactive: bool,
    /// Options for databases that the shell opens.
    pub open: OpenArguments,
    bars: Arc<Bars>,
    interrupts: Arc<Interrupts>,
}

impl Runner {
    pub fn new(database: &Database, mode: Mode, interrupts: Arc<Interrupts>) -> Runner {
        let bars = Bars::new();
        Runner::connected(embedded(database, &bars), mode, interrupts, bars)
    }

    /// Runs statements on a server.
    pub fn remote(remote: Remote, mode: Mode, interrupts: Arc<Interrupts>) -> Runner {
        Runner::connected(Connection::Remote(remote), mode, interrupts, Bars::new())
    }

    fn connected(connection: Connection, mode: Mode, interrupts: Arc<Interrupts>, bars: Arc<Bars>) -> Runner {
        let open = OpenArguments::default();
        Runner { connection, mode, target: Target::Stdout, timer: false, interactive: false, open, bars, interrupts }
    }

    /// The session of an embedded database.
    ///
    /// # Errors
    /// If the connection is one to a server.
    pub fn session(&self) -> Result<&Arc<Session>> {
        self.connection.session()
    }

    /// Continues on another database with the same output settings.
    pub fn switch(&mut self, database: &Database) {
        self.connection = embedded(database, &self.bars);
    }

    /// Shows the progress of the statement that is about to start. That of a server is unknown.
    fn watch(&self) -> Option<Watch> {
        self.session().ok().map(|session| self.bars.watch(session))
    }

    /// Runs one statement and writes its result.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] after Ctrl-C; errors of the statement and of the output.
    pub async fn statement(&mut self, sql: &str) -> Result<()> {
        let start = Instant::now();
        let interrupts = self.interrupts.clone();
        let mut active = interrupts.activate();
        let watch = self.watch();
        let interrupter = self.connection.interrupter();
        let outcome = active.interrupting(|| interrupter.interrupt(), self.connection.query(sql)).await;
        self.connection.show_messages();
        let outcome = match outcome? {
            Outcome::Rows(stream) => self.rows(stream, &mut active, watch, start).await,
            Outcome::Done { tag, rows } => {
                drop(watch);
                self.done(&tag, rows, start.elapsed())
            }
        };
        if matches!(outcome, Err(Failure::Cancelled)) {
            self.connection.settle().await;
        }
        self.connection.show_messages();
        outcome
    }

    /// Loads rows of this machine into a table of a server.
    ///
    /// # Errors
    /// As [`Runner::statement`], and errors of the file.
    pub async fn copy_in(&mut self, sql: &str, source: CopySource) -> Result<()> {
        let start = Instant::now();
        let Connection::Remote(remote) = &self.connection else {
            return Err(Failure::message("only servers load files from their clients"));
        };
        let interrupts = self.interrupts.clone();
        let mut active = interrupts.activate();
        let canceller = remote.canceller();
        match active.interrupting(|| canceller.interrupt(), remote.copy_in(sql, source)).await? {
            Outcome::Done { tag, rows } => self.done(&tag, rows, start.elapsed()),
            Outcome::Rows(_) => Ok(()),
        }
    }

    /// Runs one statement and returns its rows.
    ///
    /// # Errors
    /// As [`Runner::statement`].
    pub async fn collect(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        let mut active = self.interrupts.activate();
        let _watch = self.watch();
        let interrupter = self.connection.interrupter();
        let work = async {
            match self.connection.query(sql).await? {
                Outcome::Rows(stream) => stream.map(|batch| batch.map_err(failure_of)).try_collect().await,
                Outcome::Done { .. } => Ok(Vec::new()),
            }
        };
        active.interrupting(|| interrupter.interrupt(), work).await
    }

    async fn rows(
        &mut self,
        mut stream: datafusion::execution::SendableRecordBatchStream,
        active: &mut Active<'_>,
        watch: Option<Watch>,
        start: Instant,
    ) -> Result<()> {
        let to_terminal = matches!(self.target, Target::Stdout).then(terminal::size).flatten();
        let mut format = self.mode.format(stream.schema(), to_terminal.map(|(columns, _)| columns));
        let (mode, timer, footer) = (self.mode, self.timer, self.interactive || self.timer);
        let out = Out { writer: self.writer(to_terminal), watch };
        let mut out = PlainWriter::new(out, to_terminal.is_some());
        let mut rows = 0;
        while let Some(batch) = active.unless_pressed(stream.next()).await.ok_or(Failure::Cancelled)? {
            let batch = batch.map_err(failure_of)?;
            rows += batch.num_rows() as u64;
            if let Err(error) = format.batch(&batch, &mut out) {
                return out.into_inner().closed_early(error);
            }
        }
        // The time that the user spends in the pager does not count.
        let elapsed = start.elapsed();
        let ended = format.end(&mut out).and_then(|()| {
            let text = format!("({}{})", terminal::rows(rows), time_suffix(timer, elapsed));
            match (footer, mode.has_footer()) {
                (true, true) => writeln!(out, "{text}")?,
                // On standard error, because formats for programs have no footer.
                (true, false) => eprintln!("{text}"),
                (false, _) => {}
            }
            out.flush()
        });
        let out = out.into_inner();
        match ended {
            Ok(()) => out.finish(),
            Err(error) => out.closed_early(error),
        }
    }

    fn writer(&mut self, to_terminal: Option<(usize, usize)>) -> Writer<'_> {
        match (&mut self.target, to_terminal) {
            (Target::File(file), _) => Writer::File(file),
            (Target::Nowhere, _) => Writer::Nowhere(io::sink()),
            (Target::Stdout, Some((_, lines))) if self.interactive => {
                Writer::Pager(Pager::new(lines.saturating_sub(1)))
            }
            (Target::Stdout, _) => Writer::Stdout(BufWriter::with_capacity(64 << 10, stdout())),
        }
    }

    fn done(&mut self, tag: &str, rows: Option<u64>, elapsed: Duration) -> Result<()> {
        if self.interactive || self.timer {
            let rows = rows.map(|rows| format!(", {}", terminal::rows(rows))).unwrap_or_default();
            self.say(&format!("{tag}{rows}{}", time_suffix(self.timer, elapsed)))?;
        }
        Ok(())
    }

    /// Writes a line to the destination of results.
    pub fn say(&mut self, line: &str) -> Result<()> {
        self.show(&format!("{line}\n"))
    }

    /// Writes text to the destination of results; in interactive use, long text through the pager.
    pub fn show(&mut self, text: &str) -> Result<()> {
        let to_terminal = matches!(self.target, Target::Stdout).then(terminal::size).flatten();
        let mut out = Out { writer: self.writer(to_terminal), watch: None };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => out.finish(),
            Err(error) => out.closed_early(error),
        }
    }
}

fn embedded(database: &Database, bars: &Arc<Bars>) -> Connection {
    let session = Arc::new(database.session());
    session.set_progress(bars.clone());
    Connection::Embedded(session)
}

fn time_suffix(timer: bool, elapsed: Duration) -> String {
    if timer { format!(", {}", terminal::seconds(elapsed)) } else { String::new() }
}

enum Writer<'a> {
    Stdout(BufWriter<io::Stdout>),
    Pager(Pager),
    File(&'a mut BufWriter<File>),
    Nowhere(io::Sink),
}

/// The writer of one result. Erases the progress line before the first byte.
struct Out<'a> {
    writer: Writer<'a>,
    watch: Option<Watch>,
}

impl Out<'_> {
    fn finish(self) -> Result<()> {
        match self.writer {
            Writer::Pager(pager) => pager.finish().or_else(|error| ignore_broken_pipe(error).map_err(Failure::Output)),
            Writer::Stdout(_) | Writer::File(_) | Writer::Nowhere(_) => Ok(()),
        }
    }

    /// Handles a failed write. A broken pipe to the pager is no error: the user left the pager.
    fn closed_early(self, error: io::Error) -> Result<()> {
        let pager = matches!(self.writer, Writer::Pager(_));
        // Dropping the buffer would try to write it again.
        if let Writer::Stdout(writer) = self.writer {
            let _ = writer.into_parts();
        }
        if pager { ignore_broken_pipe(error).map_err(Failure::Output) } else { Err(Failure::Output(error)) }
    }
}

fn ignore_broken_pipe(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.watch.take();
        match &mut self.writer {
            Writer::Stdout(writer) => writer.write(bytes),
            Writer::Pager(writer) => writer.write(bytes),
            Writer::File(writer) => writer.write(bytes),
            Writer::Nowhere(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.writer {
            Writer::Stdout(writer) => writer.flush(),
            Writer::Pager(writer) => writer.flush(),
            Writer::File(writer) => writer.flush(),
            Writer::Nowhere(writer) => writer.flush(),
        }
    }
}
