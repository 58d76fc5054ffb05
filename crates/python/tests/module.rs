//! The extension module as a file. This test also makes `cargo test --workspace` build the module.

use std::path::PathBuf;

/// The module that was built with this test.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [folder.join("libkeyaki_python.so"), folder.parent().unwrap().join("libkeyaki_python.so")];
    places.into_iter().find(|path| path.exists()).expect("the module was built")
}

/// The number of `N` bytes at a position of a file.
fn number<const N: usize>(file: &[u8], at: usize) -> usize {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&file[at..at + N]);
    u64::from_le_bytes(bytes) as usize
}

/// The names of dynamic linking: of the libraries that an ELF file needs, and of the symbols that it exports and imports.
fn linked_names(file: &[u8]) -> Vec<&str> {
    const STRINGS: usize = 3;
    const ALLOCATED: usize = 2;
    let (headers, length) = (number::<8>(file, 0x28), number::<2>(file, 0x3a));
    let mut sections = (0..number::<2>(file, 0x3c)).map(|index| headers + index * length);
    // The table of strings that is loaded with the program is that of dynamic linking.
    let header =
        sections.find(|&at| number::<4>(file, at + 4) == STRINGS && number::<8>(file, at + 8) & ALLOCATED != 0);
    let header = header.expect("a table of strings");
    let (start, bytes) = (number::<8>(file, header + 0x18), number::<8>(file, header + 0x20));
    file[start..start + bytes].split(|&byte| byte == 0).map(|name| std::str::from_utf8(name).unwrap()).collect()
}

/// Machines without the library of Python can build the module, and interpreters that contain it can load the module.
#[test]
#[cfg(target_os = "linux")]
fn it_exports_the_module_and_needs_no_library_of_python() {
    let file = std::fs::read(module()).unwrap();
    let names = linked_names(&file);
    assert!(names.contains(&"PyInit__keyaki"));
    assert!(names.contains(&"PyErr_CheckSignals"));
    let libraries: Vec<_> = names.iter().filter(|name| name.contains(".so")).collect();
    assert!(libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
    assert!(!libraries.iter().any(|name| name.contains("python")), "{libraries:?}");
}
