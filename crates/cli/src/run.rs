//! Runs statements and writes their results, for the shell and for scripts.
//!
//! Rows are streamed: each batch is formatted and written before the next one is requested. Ctrl-C interrupts the statement,
//! which then fails or, if its commit has started, succeeds. While rows are read, Ctrl-C drops the stream, which cancels the
//! query.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use keyaki::{Database, Outcome, RecordBatch, Session};

use crate::arguments::{ClusterArguments, OpenArguments};
use crate::bars::{Bars, Watch};
use crate::connection::{Connection, failure_of};
use crate::expert;
use crate::failure::{Failure, Result};
use crate::interrupt::{Active, Interrupts};
use crate::output::{Mode, Screen, Style};
use crate::pager::Pager;
use crate::program::Program;
use crate::remote::{CopySource, PlainWriter, Remote, has_password};
use crate::terminal;

/// The setting of estimated rows in plans.
const ESTIMATES: &str = "datafusion.explain.show_statistics";

/// Destination of results.
#[derive(Debug, Default)]
pub enum Target {
    #[default]
    Stdout,
    File(BufWriter<File>),
    Program(Program),
    /// Rows are formatted and dropped.
    Nowhere,
}

/// A connection and the output settings of its results.
pub struct Runner {
    pub connection: Connection,
    pub mode: Mode,
    pub style: Style,
    pub target: Target,
    /// The destination after the next statement, which has one of its own.
    pub next_target: Option<Target>,
    /// Values of parameters in statements, as literals.
    pub parameters: BTreeMap<String, String>,
    /// Print the number of rows that each statement changes, and that of all statements.
    pub changes: bool,
    rows_changed: u64,
    /// The user's next statement is not executed: indexes are suggested for it.
    pub suggests_indexes: bool,
    /// Receives each statement and its result.
    pub log: Option<File>,
    /// Print the elapsed time of each statement.
    pub timer: bool,
    /// Interactive use: confirm each statement, and page long results.
    pub interactive: bool,
    /// Options for databases that the shell opens.
    pub open: OpenArguments,
    /// The workers of published databases that the shell opens.
    pub cluster: Option<ClusterArguments>,
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
        Runner {
            connection,
            mode,
            style: Style::default(),
            target: Target::Stdout,
            next_target: None,
            parameters: BTreeMap::new(),
            changes: false,
            rows_changed: 0,
            suggests_indexes: false,
            log: None,
            timer: false,
            interactive: false,
            open: OpenArguments::default(),
            cluster: None,
            bars,
            interrupts,
        }
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

    /// The listener for Ctrl-C.
    pub fn interrupts(&self) -> Arc<Interrupts> {
        self.interrupts.clone()
    }

    /// The terminal, if it shows results.
    pub fn screen(&self) -> Option<Screen> {
        let (width, _) = matches!(self.target, Target::Stdout).then(terminal::size).flatten()?;
        Some(Screen { width, colours: terminal::colours() })
    }

    /// Runs one statement and writes its result.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] after Ctrl-C; errors of the statement and of the output.
    pub async fn statement(&mut self, sql: &str) -> Result<()> {
        let is_explain = sql.trim_start().get(..7).is_some_and(|word| word.eq_ignore_ascii_case("explain"));
        self.style.draws_plans = is_explain;
        let has_estimates = is_explain && self.turn_estimates_on().await;
        let start = Instant::now();
        let result = self.run_statement(sql, start).await;
        if has_estimates {
            self.set_estimates(false).await;
        }
        let logged = self.log_statement(sql, &result, start.elapsed());
        let redirected = self.end_once();
        result.and(logged).and(redirected)
    }

    /// Runs a statement of the user, or suggests indexes for it after `.expert`.
    ///
    /// # Errors
    /// As [`Runner::statement`].
    pub async fn typed(&mut self, sql: &str) -> Result<()> {
        match std::mem::take(&mut self.suggests_indexes) {
            true => self.suggest_indexes(sql).await,
            false => self.statement(sql).await,
        }
    }

    /// Shows indexes that would lower the cost of a statement, which is not executed.
    ///
    /// # Errors
    /// As [`Runner::statement`]; if the connection is one to a server.
    pub async fn suggest_indexes(&mut self, sql: &str) -> Result<()> {
        let interrupts = self.interrupts.clone();
        let mut active = interrupts.activate();
        let interrupter = self.connection.interrupter();
        let suggested = active.interrupting(|| interrupter.interrupt(), self.connection.suggest_indexes(sql)).await;
        let text = suggested.and_then(|suggested| expert::text(&suggested, &self.style, self.screen()));
        let shown = text.and_then(|text| self.show(&text));
        let redirected = self.end_once();
        shown.and(redirected)
    }

    /// After `.once`, returns to the destination before it.
    ///
    /// # Errors
    /// As [`Runner::redirect`].
    pub fn end_once(&mut self) -> Result<()> {
        match self.next_target.take() {
            Some(target) => self.redirect(target),
            None => Ok(()),
        }
    }

    /// Before EXPLAIN of an embedded database, adds the estimated rows to plans that are shown as trees. Returns true if the
    /// setting has changed.
    async fn turn_estimates_on(&mut self) -> bool {
        if !self.mode.is_boxed() || self.session().is_err() {
            return false;
        }
        let setting = self.collect(&format!("SHOW {ESTIMATES}")).await.unwrap_or_default();
        let is_off =
            setting.iter().filter(|batch| batch.num_rows() > 0).filter_map(|batch| batch.columns().last()).any(
                |column| arrow::util::display::array_value_to_string(column, 0).is_ok_and(|value| value == "false"),
            );
        is_off && self.set_estimates(true).await
    }

    /// True if the setting has changed. In a failed transaction, it does not, and EXPLAIN fails as well.
    async fn set_estimates(&mut self, is_on: bool) -> bool {
        self.collect(&format!("SET {ESTIMATES} = {is_on}")).await.is_ok()
    }

    /// Changes the destination of results.
    ///
    /// # Errors
    /// If the results so far cannot be written to their file, or their program fails.
    pub fn redirect(&mut self, target: Target) -> Result<()> {
        match std::mem::replace(&mut self.target, target) {
            Target::File(mut file) => file.flush().map_err(Failure::Output),
            Target::Program(program) => program.finish(),
            Target::Stdout | Target::Nowhere => Ok(()),
        }
    }

    /// Writes a statement and its result to the log.
    fn log_statement(&mut self, sql: &str, result: &Result<()>, elapsed: Duration) -> Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let sql = if has_password(sql) { "(a statement with a password)" } else { sql.trim() };
        let result = match result {
            Ok(()) => format!("-- {}", terminal::seconds(elapsed)),
            Err(failure) => format!("-- error: {}", failure.to_string().replace('\n', "\n-- ")),
        };
        writeln!(log, "{sql};\n{result}").map_err(Failure::Output)
    }

    async fn run_statement(&mut self, sql: &str, start: Instant) -> Result<()> {
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

    /// Loads rows of this machine into a table of a server. Returns their number.
    ///
    /// # Errors
    /// As [`Runner::statement`], and errors of the file.
    pub async fn copy_in(&mut self, sql: &str, source: CopySource) -> Result<u64> {
        let start = Instant::now();
        let Connection::Remote(remote) = &self.connection else {
            return Err(Failure::message("only servers load files from their clients"));
        };
        let interrupts = self.interrupts.clone();
        let mut active = interrupts.activate();
        let canceller = remote.canceller();
        match active.interrupting(|| canceller.interrupt(), remote.copy_in(sql, source)).await? {
            Outcome::Done { tag, rows } => {
                self.done(&tag, rows, start.elapsed())?;
                Ok(rows.unwrap_or(0))
            }
            Outcome::Rows(_) => Ok(0),
        }
    }

    /// Runs one statement and returns its rows.
    ///
    /// # Errors
    /// As [`Runner::statement`].
    pub async fn collect(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        Ok(self.outcome(sql).await?.0)
    }

    /// Runs one statement and returns the number of rows that it has changed; 0 for queries.
    ///
    /// # Errors
    /// As [`Runner::statement`].
    pub async fn changed(&mut self, sql: &str) -> Result<u64> {
        let changed = self.outcome(sql).await?.1;
        self.connection.show_messages();
        self.rows_changed += changed;
        Ok(changed)
    }

    /// The rows of a statement, and the number of rows that it has changed.
    async fn outcome(&mut self, sql: &str) -> Result<(Vec<RecordBatch>, u64)> {
        let mut active = self.interrupts.activate();
        let _watch = self.watch();
        let interrupter = self.connection.interrupter();
        let work = async {
            Ok(match self.connection.query(sql).await? {
                Outcome::Rows(stream) => (stream.map(|batch| batch.map_err(failure_of)).try_collect().await?, 0),
                Outcome::Done { rows, .. } => (Vec::new(), rows.unwrap_or(0)),
            })
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
        let mut format = self.mode.format(stream.schema(), &self.style, self.screen());
        let (mode, timer, footer) = (self.mode, self.timer, self.interactive || self.timer);
        let out = Out { writer: self.writer(to_terminal), watch };
        let mut out = PlainWriter::new(out, to_terminal.is_some() && !mode.is_safe());
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
            (Target::Program(program), _) => Writer::Program(program),
            (Target::Nowhere, _) => Writer::Nowhere(io::sink()),
            (Target::Stdout, Some((_, lines))) if self.interactive => {
                Writer::Pager(Pager::new(lines.saturating_sub(1)))
            }
            (Target::Stdout, _) => Writer::Stdout(BufWriter::with_capacity(64 << 10, stdout())),
        }
    }

    fn done(&mut self, tag: &str, rows: Option<u64>, elapsed: Duration) -> Result<()> {
        if self.interactive || self.timer {
            let shown = rows.map(|rows| format!(", {}", terminal::rows(rows))).unwrap_or_default();
            self.say(&format!("{tag}{shown}{}", time_suffix(self.timer, elapsed)))?;
        }
        self.rows_changed += rows.unwrap_or(0);
        if self.changes {
            let [changed, all] = [rows.unwrap_or(0), self.rows_changed].map(terminal::thousands);
            self.say(&format!("changes: {changed}, total: {all}"))?;
        }
        Ok(())
    }

    /// Writes a line to the destination of results.
    pub fn say(&mut self, line: &str) -> Result<()> {
        self.show(&format!("{line}\n"))
    }

    /// Writes text to the destination of results; in interactive use, long text through the pager.
    pub fn show(&mut self, text: &str) -> Result<()> {
        self.write_with(|out| out.write_all(text.as_bytes()))
    }

    /// As [`Runner::show`], for text of any length.
    pub fn write_with(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let to_terminal = matches!(self.target, Target::Stdout).then(terminal::size).flatten();
        let mut out = Out { writer: self.writer(to_terminal), watch: None };
        match write(&mut out).and_then(|()| out.flush()) {
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
    Program(&'a mut Program),
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
            Writer::Stdout(_) | Writer::File(_) | Writer::Program(_) | Writer::Nowhere(_) => Ok(()),
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
            Writer::Program(writer) => writer.write(bytes),
            Writer::Nowhere(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.writer {
            Writer::Stdout(writer) => writer.flush(),
            Writer::Pager(writer) => writer.flush(),
            Writer::File(writer) => writer.flush(),
            Writer::Program(writer) => writer.flush(),
            Writer::Nowhere(writer) => writer.flush(),
        }
    }
}
