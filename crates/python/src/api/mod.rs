//! The functions and classes that Python sees.

mod connection;
mod cursor;
mod opening;
mod transaction;

pub use connection::Connection;
pub use cursor::Cursor;
pub use opening::connect;
pub use transaction::Transaction;
