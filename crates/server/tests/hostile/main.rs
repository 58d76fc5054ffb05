//! Random inputs for the functions of the fuzz targets. `KEYAKI_FUZZ_ROUNDS` sets their number, `KEYAKI_FUZZ_SEED` the first one.

mod targets;

use std::time::Instant;

use keyaki_primitives::Random;
use targets::Target;

const ROUNDS: u64 = 2_000;
/// Lengths of inputs in bytes.
const INPUT_BYTES_MAX: u64 = 200;
/// The process may grow by this much after the first fifth of the inputs: allocators keep memory that was freed.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Resident bytes of this process.
fn resident() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
}

fn run(target: &Target, function: fn(&Target, &[u8])) {
    let rounds = number("KEYAKI_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("KEYAKI_FUZZ_SEED").unwrap_or(1);
    let started = Instant::now();
    let mut before = 0;
    for round in 0..rounds {
        if round == rounds / 5 {
            before = resident();
        }
        // Each input has a seed of its own, which reproduces it alone.
        let mut random = Random::new(seed + round);
        let input: Vec<u8> = (0..random.below(INPUT_BYTES_MAX)).map(|_| random.below(256) as u8).collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| function(target, &input)));
        if let Err(panic) = outcome {
            eprintln!("failed: KEYAKI_FUZZ_SEED={} KEYAKI_FUZZ_ROUNDS=1", seed + round);
            std::panic::resume_unwind(panic);
        }
    }
    let grown = resident().saturating_sub(before);
    eprintln!("{rounds} inputs in {:.1} s, {} KiB more memory", started.elapsed().as_secs_f64(), grown >> 10);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes are not freed");
}

#[test]
fn messages_before_authentication() {
    run(&Target::new(true), targets::start);
}

#[test]
fn messages_of_sessions() {
    run(&Target::new(false), targets::session);
}
