#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keyaki_fuzz::vast::use_index(&mut bytes.to_vec()));
