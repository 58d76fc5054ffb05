//! The `keyaki` program: the SQL shell for databases and servers, the server, the demonstration, backups, dumps, checks, repairs, calibration, figures and traces of
//! queries.
//!
//! Modules are layered (`cargo xtask layers`): terminal and output helpers at the bottom, then the command line and the runner
//! of statements, then one module per command.

#![warn(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

/// As the standard library's, but a closed pipe ends the program silently.
macro_rules! println {
    ($($argument:tt)*) => { $crate::terminal::print_line(format_args!($($argument)*)) };
}

mod allocator;
mod arguments;
mod backup;
mod bars;
mod caches;
mod calibrate;
mod check;
mod cluster;
mod configuration;
mod connection;
mod database;
mod demo;
mod device;
mod directories;
mod dump;
mod events;
mod expert;
mod failure;
mod figure;
mod interrupt;
mod intervals;
mod log;
mod manual;
mod misspelt;
mod new_database;
mod notify;
mod output;
mod pager;
mod plot;
mod program;
mod publish;
mod remote;
mod repair;
mod restore;
mod run;
mod serve;
mod shell;
mod similar;
mod terminal;
mod trace;

use std::io::{IsTerminal, stdin};
use std::process::ExitCode;
use std::sync::Arc;

use arguments::{Arguments, Command, InputArguments, ShellArguments, SqlArguments};
use failure::{Failure, Result};
use interrupt::Interrupts;
use remote::{Address, Remote};
use run::{Runner, Target};
use shell::commands::Next;
use shell::script::{self, OnError};
use shell::{parameters, report};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Stack of the thread that runs statements: the main thread's 8 MiB do not suffice for long chains of operators. Pages that
/// are not used take no memory.
const STACK_BYTES: usize = 256 << 20;

/// Stack of the other threads, which run the statements of a server's connections.
const WORKER_STACK_BYTES: usize = 32 << 20;

fn main() -> ExitCode {
    let arguments = configuration::arguments(std::env::args_os().collect());
    log::start(arguments.as_ref().ok());
    match arguments.and_then(with_stack) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            report::show(&failure, "", None);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn with_stack(arguments: Arguments) -> Result<()> {
    let thread = std::thread::Builder::new().name("statements".into()).stack_size(STACK_BYTES);
    let thread = thread.spawn(move || start(arguments));
    let thread = thread.map_err(|error| Failure::message(format!("cannot start a thread: {error}")))?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn start(arguments: Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(WORKER_STACK_BYTES)
        .build()
        .map_err(|error| Failure::message(format!("cannot start threads: {error}")))?;
    let interrupts = {
        let _runtime = runtime.enter();
        Interrupts::listen()
    };
    match arguments.command {
        None => shell(&runtime, arguments.shell, interrupts),
        Some(Command::Demo(arguments)) => runtime.block_on(demo::run(&arguments)),
        Some(Command::Calibrate(arguments)) => calibrate::run(&arguments),
        Some(Command::Backup(arguments)) => runtime.block_on(backup::run(&arguments, interrupts)),
        Some(Command::Publish(arguments)) => runtime.block_on(publish::publish(&arguments, interrupts)),
        Some(Command::Versions(arguments)) => publish::versions(&arguments),
        Some(Command::Clone(arguments)) => runtime.block_on(publish::clone(&arguments, interrupts)),
        Some(Command::Dump(arguments)) => runtime.block_on(dump::run(&arguments, interrupts)),
        Some(Command::Restore(arguments)) => runtime.block_on(restore::run(&arguments, interrupts)),
        Some(Command::Check(arguments)) => runtime.block_on(check::run(&arguments, interrupts)),
        Some(Command::Repair(arguments)) => runtime.block_on(repair::run(&arguments, &interrupts)),
        Some(Command::Serve(arguments)) => runtime.block_on(serve::run(&arguments, interrupts)),
        Some(Command::Worker(arguments)) => runtime.block_on(cluster::worker(&arguments, interrupts)),
        Some(Command::Sql(arguments)) => sql(&runtime, &arguments, interrupts),
        Some(Command::Plot(arguments)) => runtime.block_on(figure::run(&arguments, interrupts)),
        Some(Command::Trace(arguments)) => runtime.block_on(trace::run(&arguments, interrupts)),
        Some(Command::Completions(arguments)) => manual::completions(arguments.shell),
        Some(Command::Man(arguments)) => manual::page(arguments.command.as_deref()),
    }
}

/// `keyaki [FILE]`: commands, a script on standard input, or the interactive shell.
fn shell(runtime: &Runtime, arguments: ShellArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    if arguments.open.readonly && arguments.file.is_none() {
        return Err(Failure::Usage("--readonly requires the directory of a database".into()));
    }
    let is_local = arguments.file.as_ref().is_some_and(|file| !keyaki::is_url(file));
    if let Some(file) = arguments.file.as_ref().filter(|_| is_local) {
        misspelt::check(file)?;
    }
    let transient = if arguments.file.is_none() { Some(transient()?) } else { None };
    let path = arguments.file.as_deref().or(transient.as_ref().map(TempDir::path));
    let path = path.ok_or_else(|| Failure::Usage("a database is missing".into()))?;
    let _runtime = runtime.enter();
    let options = arguments.open.options()?;
    allocator::fit(options.memory_bytes());
    let is_new = is_local && !path.exists();
    let database = cluster::attached(database::open(path, options)?, &arguments.cluster)?;
    if is_new && arguments.input.commands.is_empty() && stdin().is_terminal() {
        eprintln!("new database \"{}\"", path.display());
    }
    let mut runner = Runner::new(&database, arguments.input.mode, interrupts);
    runner.timer = arguments.input.timer;
    (runner.open, runner.cluster) = (arguments.open, Some(arguments.cluster));
    drop(database);
    let result = run_input(runtime, &mut runner, &arguments.input);
    // A program that receives results ends first.
    result.and(runner.redirect(Target::Stdout))
}

/// `keyaki sql ADDRESS`: the same on a server.
fn sql(runtime: &Runtime, arguments: &SqlArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let address = Address::parse(&arguments.address)?;
    let remote = runtime.block_on(Remote::connect(address))?;
    let mut runner = Runner::remote(remote, arguments.input.mode, interrupts);
    runner.timer = arguments.input.timer;
    let result = run_input(runtime, &mut runner, &arguments.input);
    // A program that receives results ends first.
    result.and(runner.redirect(Target::Stdout))
}

fn run_input(runtime: &Runtime, runner: &mut Runner, arguments: &InputArguments) -> Result<()> {
    let on_error = if arguments.continue_on_error { OnError::Continue } else { OnError::Stop };
    for (name, value) in &arguments.parameters {
        let name = parameters::name(name).map_err(|failure| Failure::Usage(failure.to_string()))?;
        runner.parameters.insert(name.into(), parameters::literal(value));
    }
    let is_interactive = arguments.commands.is_empty() && stdin().is_terminal();
    // The file can change both.
    (runner.interactive, runner.timer) = (is_interactive, runner.timer || is_interactive);
    if let Some(file) = &arguments.init
        && runtime.block_on(script::run_file(runner, file, on_error))? == Next::Quit
    {
        return Ok(());
    }
    if is_interactive {
        let is_init_read = arguments.init.is_some() || arguments.no_init;
        if !is_init_read && runtime.block_on(shell::run_init(runner)) == Next::Quit {
            return Ok(());
        }
        shell::run(runtime, runner)
    } else {
        let result = match arguments.commands.is_empty() {
            true => runtime.block_on(script::run(runner, stdin().lock(), "stdin", on_error)).map(drop),
            false => runtime.block_on(commands(runner, &arguments.commands, on_error)),
        };
        // Other errors are not shown yet.
        if matches!(result, Ok(()) | Err(Failure::Reported)) {
            shell::warn_of_rollback(runner);
        }
        result
    }
}

async fn commands(runner: &mut Runner, commands: &[String], on_error: OnError) -> Result<()> {
    let mut result = Ok(());
    for command in commands {
        match script::run(runner, command.as_bytes(), script::COMMAND, on_error).await {
            Ok(Next::Quit) => break,
            Ok(Next::Continue) => {}
            Err(Failure::Reported) if on_error == OnError::Continue => result = Err(Failure::Reported),
            Err(failure) => return Err(failure),
        }
    }
    result
}

/// The directory of a database without a name. Removed with its contents on drop.
fn transient() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("keyaki-").tempdir();
    made.map_err(Failure::file(std::env::temp_dir()))
}
