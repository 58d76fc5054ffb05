//! The functions that the targets in `fuzz_targets/` call. They are files of the crates' tests, which build them and
//! run them with the seeds.

#[path = "../../crates/store/tests/hostile/fields.rs"]
#[allow(dead_code, reason = "only tests use all of it")]
mod fields;
#[path = "../../crates/masstree/tests/bytes/history.rs"]
pub mod history;
#[path = "../../crates/store/tests/hostile/image.rs"]
#[allow(dead_code, reason = "only tests use all of it")]
mod image;
#[path = "../../crates/store/tests/hostile/sample.rs"]
#[allow(dead_code, reason = "only tests use all of it")]
mod sample;
#[path = "../../crates/server/tests/hostile/targets.rs"]
pub mod protocol;
#[path = "../../crates/store/tests/hostile/targets.rs"]
pub mod targets;
#[path = "../../crates/vast/tests/forged/forged.rs"]
pub mod vast;
