//! The version of the file format.

/// Version of the data file and of the log. A database with another version is refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
