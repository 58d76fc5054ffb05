//! Opening forged bytes gives an error, or a structure with wrong answers that are within the rows. The fuzz target
//! `vast` generates further inputs.

#[path = "forged/forged.rs"]
mod forged;

use keyaki_primitives::Random;
use keyaki_vast::{Goal, IndexBuilder, Options, Parameters};

#[test]
fn forged_bytes_cause_no_panic() {
    let keys: Vec<u64> = (0..3000u64).map(|row| row * row / 7 + (row / 500) * (1 << 40)).collect();
    for packed in [false, true] {
        let mut builder = IndexBuilder::new(Options { parameters: Parameters::new(Goal::Fastest), packed });
        builder.push(&keys, &keys).unwrap();
        let bytes = builder.finish().unwrap().to_bytes();
        let mut random = Random::new(8);
        for round in 0..1500 {
            let mut forged = bytes.clone();
            for _ in 0..=random.below(3) {
                // Two thirds of the changes are in the numbers at the beginning.
                let end = if round % 3 == 0 { forged.len() } else { 400 };
                forged[32 + random.index(end - 32)] = random.below(256) as u8;
            }
            forged::use_index(&mut forged);
        }
    }
}
