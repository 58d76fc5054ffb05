//! Runs of a test under many schedules.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

/// The extent of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Schedules of each scheduler.
    pub schedules: usize,
    /// Steps after which a schedule fails, because a thread waits in a loop for an event that never comes.
    pub steps_max: usize,
}

impl Limits {
    /// This number of schedules, each with at most 200 000 steps.
    pub const fn schedules(schedules: usize) -> Limits {
        Limits { schedules, steps_max: 200_000 }
    }
}

/// Stack of each thread of a test, in bytes.
const STACK_BYTES: usize = 1 << 20;
/// One more than the number of priority changes in the schedules of the second scheduler.
const DEPTH: usize = 3;

/// Runs `test` under random schedules, and under schedules with few changes of priority, which find errors that need
/// one thread to rest for long. The environment variable `KEYAKI_SHUTTLE_SEED` sets the seed.
///
/// # Panics
/// If `test` panics, if all of its threads wait for each other, or if it exceeds the steps of `limits`, for any of the
/// schedules. Prints the schedule.
pub fn explore(limits: Limits, test: impl Fn() + Send + Sync + 'static) {
    let seed = std::env::var("KEYAKI_SHUTTLE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    println!("KEYAKI_SHUTTLE_SEED={seed}");
    let config = || {
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.max_steps = MaxSteps::FailAfter(limits.steps_max);
        config.silence_warnings = true;
        config
    };
    let test = std::sync::Arc::new(test);
    let random = RandomScheduler::new_from_seed(seed, limits.schedules);
    Runner::new(random, config()).run({
        let test = test.clone();
        move || test()
    });
    let few_changes = PctScheduler::new_from_seed(seed, DEPTH, limits.schedules);
    Runner::new(few_changes, config()).run(move || test());
}
