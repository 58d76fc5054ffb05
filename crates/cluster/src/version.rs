//! The version of the protocol.

/// What a coordinator and its workers have in common: the version of the program, and that of the protocol between them.
pub const VERSION: &str = concat!("keyaki ", env!("CARGO_PKG_VERSION"), ", cluster protocol 1");
