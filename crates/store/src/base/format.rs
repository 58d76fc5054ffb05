//! The version of the file format.

/// Version of everything in the data file and the log.
pub(crate) const FORMAT_VERSION: u32 = 1;
