//! What the targets in `fuzz_targets/` call. The functions live with the tests of the store, which call them with the seeds,
//! so that they are built and run whenever tests are.

#[path = "../../crates/store/tests/hostile/fields.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod fields;
#[path = "../../crates/masstree/tests/bytes/history.rs"]
pub mod history;
#[path = "../../crates/store/tests/hostile/image.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod image;
#[path = "../../crates/store/tests/hostile/sample.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod sample;
#[path = "../../crates/store/tests/hostile/targets.rs"]
pub mod targets;
#[path = "../../crates/vast/tests/forged/forged.rs"]
pub mod vast;
