//! Directories of the program's own files (XDG base directories).

use std::path::PathBuf;

/// `$XDG_DATA_HOME/keyaki` or `~/.local/share/keyaki`; none without a home directory.
pub fn data() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share")
}

/// `$XDG_CONFIG_HOME/keyaki` or `~/.config/keyaki`; none without a home directory.
pub fn configuration() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config")
}

/// `$XDG_CACHE_HOME/keyaki` or `~/.cache/keyaki`; none without a home directory.
pub fn cache() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// The directory of an XDG variable. The specification ignores relative paths.
fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home))).map(|base| base.join("keyaki"))
}
