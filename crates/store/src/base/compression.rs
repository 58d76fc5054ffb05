//! Methods of compression.

use std::fmt;

/// How the pages of a tree compress texts, bytes and lists outside the key. Other values, and all keys, have encodings with
/// access to each value. A change concerns the pages that are written from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: fast, and the default.
    #[default]
    Lz4,
    /// Zstandard: about half of the bytes of LZ4, and half of its speed when pages are written. The store trains a
    /// dictionary for each column where this saves space.
    Zstd,
}

impl Compression {
    /// All methods.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// The name in SQL and in options.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// The method with this name, in any case.
    pub fn of_name(name: &str) -> Option<Compression> {
        Compression::ALL.into_iter().find(|method| method.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
