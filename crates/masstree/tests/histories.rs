//! The fuzz target's function, with random bytes.

#[path = "bytes/history.rs"]
mod history;

#[test]
fn random_histories() {
    let mut random = 20_261_121u64;
    for length in 0..150 {
        let bytes: Vec<u8> = (0..length * 24)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            })
            .collect();
        history::run(&bytes);
    }
}
