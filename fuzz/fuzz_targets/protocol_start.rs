#![no_main]

use std::sync::LazyLock;

use keyaki_fuzz::protocol::{Target, start};

static TARGET: LazyLock<Target> = LazyLock::new(|| Target::new(true));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| start(&TARGET, bytes));
