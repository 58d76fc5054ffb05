//! Bytes that somebody may have forged: an error, or answers that are wrong but within the rows. The fuzz target `vast` goes on.

#[path = "forged/forged.rs"]
mod forged;

use keyaki_vast::{Goal, IndexBuilder, Options, Settings};

#[test]
fn forged_bytes_do_no_harm() {
    let keys: Vec<u64> = (0..3000u64).map(|row| row * row / 7 + (row / 500) * (1 << 40)).collect();
    for packed in [false, true] {
        let mut builder = IndexBuilder::new(Options { settings: Settings::new(Goal::Fastest), packed });
        builder.push(&keys, &keys).unwrap();
        let bytes = builder.finish().unwrap().to_bytes();
        let mut random = 8u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            ((random >> 33) as usize) % bound
        };
        for round in 0..1500 {
            let mut forged = bytes.clone();
            for _ in 0..=below(3) {
                // Mostly in the numbers at the beginning.
                let end = if round % 3 == 0 { forged.len() } else { 400 };
                forged[32 + below(end - 32)] = below(256) as u8;
            }
            forged::use_index(&mut forged);
        }
    }
}
