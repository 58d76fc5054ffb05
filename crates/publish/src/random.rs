//! Random numbers that no other process has.

use keyaki_primitives::Random;

/// A generator of names that are used once: seeded by the operating system and the process.
pub(crate) fn unique_random() -> Random {
    let hasher = std::collections::hash_map::RandomState::new();
    Random::new(std::hash::BuildHasher::hash_one(&hasher, std::process::id()))
}
