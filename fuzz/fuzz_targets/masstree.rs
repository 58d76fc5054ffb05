#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keyaki_fuzz::history::run(bytes));
