//! Runs the function of the fuzz target `masstree` with random bytes.

#[path = "bytes/history.rs"]
mod history;

use keyaki_primitives::Random;

#[test]
fn random_histories() {
    let mut random = Random::new(20_261_121);
    for length in 0..150 {
        let bytes: Vec<u8> = (0..length * 24).map(|_| random.below(256) as u8).collect();
        history::run(&bytes);
    }
}
