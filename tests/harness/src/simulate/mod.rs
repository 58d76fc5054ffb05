//! `keyaki-harness simulate`: the whole database on a simulated device, beside a model in memory.
//!
//! A seed determines a list of steps: statements of several sessions, transactions, open results, maintenance,
//! restarts, faults and damage of the device. The [runner](runner) executes them one after another on a database with
//! tiny pages, buffers and caches, and compares every result with the [model](model). A list that fails is reduced to
//! the steps that are needed, and printed.
//!
//! ```text
//! state < model                           tables in memory, transactions and their conflicts
//! steps < generate                        steps as data, the list of a seed
//! database < runner, recovery             statements, comparison of results, faults and restarts
//! shrink                                  reduction of a failing list
//! ```
//!
//! Statements run one at a time, so that one seed gives the same statements, faults and answers. There are exceptions.
//! Threads of the store flush buffers and sync the log between statements, which can move a fault to another operation.
//! Identifiers of logs are random. The watchdog, and retries after a full disk, use real time.

mod database;
mod generate;
mod model;
mod recovery;
mod runner;
mod shrink;
mod state;
mod steps;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use generate::Generator;
use runner::{Counts, Problem, Runner};
use steps::Step;

/// Steps of each seed, unless the caller chooses another number.
const STEPS: usize = 2000;
/// The watchdog ends the process if a step takes longer.
const STEP_MAX: Duration = Duration::from_secs(120);
/// Time for the reduction of a failing list.
const REDUCTION: Duration = Duration::from_secs(180);
/// Attempts to repeat a failure before the reduction is skipped.
const REPETITIONS: usize = 3;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Run one seed; without it, fresh seeds in a loop
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each seed
    #[arg(long, default_value_t = STEPS)]
    steps: usize,
    /// Start no new seed after this many seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Print each step before it is executed
    #[arg(long)]
    trace: bool,
    /// Print the failing steps as they are, without reducing them
    #[arg(long)]
    no_reduction: bool,
}

/// A problem and the number of the step that has found it.
#[derive(Debug, Clone)]
struct Failure {
    step: usize,
    problem: Problem,
}

/// Runs the simulation.
///
/// # Errors
/// A failure, which is printed before.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(seed) = arguments.seed {
        return simulate(seed, arguments).map(drop);
    }
    let (start, mut total) = (Instant::now(), 0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let mut seed = now % 1_000_000_007;
    while start.elapsed().as_secs() < arguments.seconds {
        total += simulate(seed, arguments)?.steps;
        seed += 1;
    }
    println!("{total} steps in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs one seed.
fn simulate(seed: u64, arguments: &Arguments) -> Result<Counts, String> {
    let steps = Generator::new(seed).steps(arguments.steps);
    let start = Instant::now();
    match execute(seed, &steps, arguments.trace) {
        Ok((counts, digest)) => {
            println!("seed {seed}: {counts}, {:.1} s, digest {digest:016x}", start.elapsed().as_secs_f64());
            Ok(counts)
        }
        Err(failure) => {
            report(seed, &steps, &failure, arguments);
            Err(format!("seed {seed} failed at step {}", failure.step))
        }
    }
}

/// Executes steps on a new database. Returns the counts and the digest of the results.
fn execute(seed: u64, steps: &[Step], trace: bool) -> Result<(Counts, u64), Failure> {
    let current = Arc::new(AtomicUsize::new(0));
    let _watchdog = Watchdog::start(seed, steps, current.clone());
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(seed).map_err(|problem| Failure { step: 0, problem })?;
        for (number, step) in steps.iter().enumerate() {
            current.store(number, Ordering::Relaxed);
            if trace {
                println!("{number:5} {step}");
            }
            runner.step(step).map_err(|problem| Failure { step: number, problem })?;
        }
        Ok((runner.counts.clone(), runner.digest()))
    }));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
        Err(Failure { step: current.load(Ordering::Relaxed), problem: Problem::new("panic", "no panic", text) })
    })
}

/// Prints a failure, with the steps that are needed for it.
fn report(seed: u64, steps: &[Step], failure: &Failure, arguments: &Arguments) {
    let Failure { step, problem } = failure;
    println!("seed {seed}, step {step}: {}", problem.kind);
    let shown = |steps: &[Step], step: usize| steps.get(step).map_or("a new database".into(), Step::to_string);
    println!("  operation: {}", shown(steps, *step));
    println!("  expected:  {}", problem.expected);
    println!("  found:     {}", problem.found);
    println!("  repeat:    cargo xtask simulate --seed {seed} --steps {}", step + 1);
    let steps = &steps[..steps.len().min(step + 1)];
    let fails = |steps: &[Step]| match execute(seed, steps, false) {
        Err(failure) => failure.problem.kind == problem.kind,
        Ok(_) => false,
    };
    if arguments.no_reduction {
        return;
    }
    if !(0..REPETITIONS).any(|_| fails(steps)) {
        println!("The steps did not fail again: the failure depends on the timing of background threads.");
        return;
    }
    let reduced = shrink::reduce(steps, REDUCTION, fails);
    println!("{} of {} steps are needed:", reduced.len(), steps.len());
    reduced.iter().for_each(|step| println!("  {step}"));
    if let Err(Failure { step, problem }) = execute(seed, &reduced, false) {
        println!("They fail at the step \"{}\":", shown(&reduced, step));
        println!("  expected:  {}", problem.expected);
        println!("  found:     {}", problem.found);
    }
}

/// Ends the process if a step hangs. Dropping it ends the watch.
struct Watchdog {
    _alive: Arc<()>,
}

impl Watchdog {
    fn start(seed: u64, steps: &[Step], current: Arc<AtomicUsize>) -> Self {
        let alive = Arc::new(());
        let watched = Arc::downgrade(&alive);
        let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
        std::thread::spawn(move || {
            let (mut seen, mut since) = (usize::MAX, Instant::now());
            while watched.strong_count() > 0 {
                let step = current.load(Ordering::Relaxed);
                if step != seen {
                    (seen, since) = (step, Instant::now());
                } else if since.elapsed() > STEP_MAX {
                    println!("seed {seed}, step {step}: hangs for {} s", STEP_MAX.as_secs());
                    println!("  operation: {}", steps.get(step).map_or("", String::as_str));
                    println!("  repeat:    cargo xtask simulate --seed {seed} --steps {}", step + 1);
                    std::process::exit(2);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watchdog { _alive: alive }
    }
}
