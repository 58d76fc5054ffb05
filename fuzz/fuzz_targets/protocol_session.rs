#![no_main]

use std::sync::LazyLock;

use keyaki_fuzz::protocol::{Target, session};

static TARGET: LazyLock<Target> = LazyLock::new(|| Target::new(false));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| session(&TARGET, bytes));
