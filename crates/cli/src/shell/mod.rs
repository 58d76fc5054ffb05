//! The interactive shell.
//!
//! An input is either a command of the shell (`.help`, `help`, psql's `\?`) or SQL that ends with a semicolon. Enter on an
//! incomplete input begins another line of it, with a prompt of its own. Ctrl-C at a prompt discards the input; during a
//! statement it cancels the statement. Ctrl-D leaves the shell. The prompt shows an open transaction. What is typed while
//! a statement runs is the beginning of the next input.

mod aliases;
mod catalog;
pub mod commands;
mod complete;
mod dump;
mod files;
mod helper;
mod lexer;
pub mod parameters;
pub mod report;
pub mod script;
mod server;
mod settings;
pub mod stats;
mod words;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use commands::Next;
use complete::Names;
use helper::{Leave, LeaveKey, ShellHelper};
use keyaki::TransactionStatus::Failed;
use keyaki::{Session, TransactionStatus};
use rustyline::error::ReadlineError;
use rustyline::hint::HistoryHinter;
use rustyline::history::FileHistory;
use rustyline::{ColorMode, CompletionType, Config, Editor, EventHandler, KeyCode, KeyEvent, Modifiers};
use tokio::runtime::Runtime;

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::remote::has_password;
use crate::run::Runner;
use crate::{directories, terminal};

const HISTORY_LINES: usize = 10_000;

/// Closing a database is announced if it takes longer.
const CLOSES_SILENTLY: Duration = Duration::from_millis(500);

type Line = Editor<ShellHelper, FileHistory>;

/// Reads and runs inputs until the user leaves.
pub fn run(runtime: &Runtime, runner: &mut Runner) -> Result<()> {
    println!(
        "Keyaki {}. End statements with a semicolon. Type help for the commands of the shell, quit to leave.",
        env!("CARGO_PKG_VERSION")
    );
    let names = runtime.block_on(names(runner));
    let mut editor = editor(names).map_err(unusable)?;
    let upwards = Arc::new(Leave::default());
    for key in [KeyEvent(KeyCode::Up, Modifiers::NONE), KeyEvent::ctrl('P')] {
        editor.bind_sequence(key, EventHandler::Conditional(Box::new(LeaveKey(upwards.clone()))));
    }
    let history = history_file();
    if let Some(path) = &history {
        // The file does not exist at the first start.
        let _ = editor.load_history(path);
    }
    loop {
        match read_input(&mut editor, &upwards, prompt(runner)) {
            Ok(input) => {
                let next = runtime.block_on(input_line(runner, &mut editor, &input, history.as_ref()));
                if next == Next::Quit {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(unusable(error)),
        }
    }
    leave(runner);
    Ok(())
}

/// Reads lines until they are a complete input. The key that leads upwards in a further line opens all lines for editing.
fn read_input(editor: &mut Line, upwards: &Leave, prompt: &str) -> rustyline::Result<String> {
    let mut input = editor.readline(prompt)?;
    let further = format!("{:>1$}", "...> ", prompt.len());
    while !helper::is_complete(&input) {
        input.push('\n');
        set_before(editor, input.clone());
        upwards.applies.store(true, Ordering::Relaxed);
        let line = editor.readline(&further);
        upwards.applies.store(false, Ordering::Relaxed);
        set_before(editor, String::new());
        input.push_str(&line?);
        if upwards.left.swap(false, Ordering::Relaxed) {
            input = editor.readline_with_initial(prompt, (&input, ""))?;
        }
    }
    Ok(input)
}

fn set_before(editor: &mut Line, before: String) {
    if let Some(helper) = editor.helper_mut() {
        helper.before = before;
    }
}

/// Says that the end of the program rolls an open transaction back.
pub fn warn_of_rollback(runner: &Runner) {
    if runner.connection.transaction_status() != TransactionStatus::Idle {
        eprintln!("the open transaction is rolled back");
    }
}

/// Says what the end of the shell does: an open transaction is rolled back, and closing the database may take time.
fn leave(runner: &Runner) {
    warn_of_rollback(runner);
    if runner.session().is_ok() {
        // Ends with the program.
        std::thread::spawn(|| {
            std::thread::sleep(CLOSES_SILENTLY);
            eprintln!("closing the database: writing changes to its files (Ctrl-C leaves them to the next start)");
        });
    }
}

/// Runs the user's init.sql, if there is one. Its errors do not end the shell.
pub async fn run_init(runner: &mut Runner) -> Next {
    let file = directories::configuration().map(|directory| directory.join("init.sql"));
    let Some(file) = file.filter(|file| file.exists()) else { return Next::Continue };
    match script::run_file(runner, &file, script::OnError::Continue).await {
        Ok(next) => next,
        Err(failure) => {
            report::show(&failure, "", None);
            Next::Continue
        }
    }
}

/// The prompt: with `*` in a transaction, with `!` in one that has failed, as in psql.
fn prompt(runner: &Runner) -> &'static str {
    match runner.connection.transaction_status() {
        TransactionStatus::Idle => "keyaki> ",
        TransactionStatus::Open => "keyaki*> ",
        Failed => "keyaki!> ",
    }
}

fn unusable(error: ReadlineError) -> Failure {
    Failure::message(format!("cannot use the terminal: {error}"))
}

/// The names that completion offers. Those of a server are read once, and again after definitions.
async fn names(runner: &mut Runner) -> Rc<dyn Names> {
    match &runner.connection {
        Connection::Embedded(session) => Rc::new(session.database().clone()),
        // Without names, for example after the connection was lost, the shell completes keywords only.
        Connection::Remote(_) => Rc::new(server::names(runner).await.unwrap_or_default()),
    }
}

fn editor(names: Rc<dyn Names>) -> rustyline::Result<Line> {
    let colours = terminal::colours();
    let config = Config::builder()
        .max_history_size(HISTORY_LINES)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .color_mode(if colours { ColorMode::Enabled } else { ColorMode::Disabled })
        .build();
    let mut editor = Line::with_config(config)?;
    editor.set_helper(Some(ShellHelper { names, colours, history: HistoryHinter::new(), before: String::new() }));
    Ok(editor)
}

/// The history file in the user's data directory, which is created if missing; none if it cannot be created.
fn history_file() -> Option<PathBuf> {
    let directory = directories::data()?;
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("history"))
}

/// Runs one input and reports its errors.
async fn input_line(runner: &mut Runner, editor: &mut Line, input: &str, history: Option<&PathBuf>) -> Next {
    if input.trim().is_empty() {
        return Next::Continue;
    }
    if !has_password(input) {
        // Errors of the history are ignored: the shell works without it.
        let _ = editor.add_history_entry(input.trim());
        if let Some(path) = history {
            let _ = editor.append_history(path);
        }
    }
    let word = aliases::word(input);
    if word.is_some() || input.trim_start().starts_with(['.', '\\']) {
        let result = commands::run(runner, word.unwrap_or(input)).await;
        if [".o", "\\c"].iter().any(|opens| input.trim_start().starts_with(opens)) {
            refresh(runner, editor).await;
        }
        return result.unwrap_or_else(|failure| {
            report::show(&failure, "", None);
            Next::Continue
        });
    }
    if let Err((failure, statement)) = statements(runner, input).await {
        report::show(&failure, &statement, None);
    }
    if server::defines(input) && runner.session().is_err() && runner.connection.transaction_status() != Failed {
        refresh(runner, editor).await;
    }
    Next::Continue
}

/// Reads the names for completion again.
async fn refresh(runner: &mut Runner, editor: &mut Line) {
    let names = names(runner).await;
    if let Some(helper) = editor.helper_mut() {
        helper.names = names;
    }
}

/// Runs the statements of one input until one fails. The error comes with the failed statement.
pub async fn statements(runner: &mut Runner, input: &str) -> std::result::Result<(), (Failure, String)> {
    let statements = Session::split(input).map_err(|error| (error.into(), input.to_string()))?;
    for statement in statements {
        let statement = parameters::apply(&statement, &runner.parameters).into_owned();
        if let Err(failure) = runner.typed(&statement).await {
            return Err((failure, statement));
        }
    }
    Ok(())
}
