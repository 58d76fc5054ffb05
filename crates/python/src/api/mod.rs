//! The functions and classes that Python sees.

mod connection;
mod cursor;
mod opening;
mod transaction;

pub use connection::Connection;
pub use cursor::Cursor;
pub use opening::{Refusal, connect, open_database, parse_durability, parse_memory};
pub use transaction::Transaction;
