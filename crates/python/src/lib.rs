//! Python package of Keyaki: the extension module `keyaki._keyaki`.
//!
//! The module has the classes [`Connection`](api::Connection) and [`Cursor`](api::Cursor) of DB-API 2.0. The Python
//! files in `python/keyaki` have everything that need not be fast: exceptions, types, conversions of whole results.
//!
//! | module | contents |
//! |---|---|
//! | [`classes`] | Python classes that conversions use |
//! | [`failure`] | errors of the database as exceptions of DB-API 2.0 |
//! | [`parameters`] | named parameters |
//! | [`batches`] | INSERT of one row as a statement of several rows |
//! | [`process`] | forks and the end of the process |
//! | [`statements`] | statements that begin a transaction |
//! | [`progress`] | progress of calls, for displays and callbacks |
//! | [`encode`], [`decode`] | Python objects as values of parameters, values of results as Python objects |
//! | [`registry`] | databases that are open in this process |
//! | [`shelves`] | results that keep a database open |
//! | [`source`], [`frames`] | Arrow data of other libraries, such data as tables of statements |
//! | [`handle`] | an open connection, shared with its cursors; waiting without the GIL; signals |
//! | [`extensions`] | extension types of Arrow in results |
//! | [`result`], [`stream`] | rows of results, results as Arrow streams |
//! | [`api`] | `connect`, connections, cursors, transactions |
//! | [`adbc`] | the ADBC driver |
//!
//! *The GIL.* Every call that may wait or compute releases it ([`handle::Handle::run`]). No lock of this crate is waited for
//! with the GIL held, except those of results, which are only held while rows are converted or by a thread that uses the same
//! cursor.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod adbc;
mod api;
mod batches;
mod classes;
mod decode;
mod encode;
mod extensions;
mod failure;
mod frames;
mod handle;
mod parameters;
mod process;
mod progress;
mod registry;
mod result;
mod shelves;
mod source;
mod statements;
mod stream;

/// The extension module.
#[pyo3::pymodule(gil_used = false)]
mod _keyaki {
    #[pymodule_export]
    use super::api::{Connection, Cursor, Transaction, connect};
    #[pymodule_export]
    use super::process::after_fork;
    #[pymodule_export]
    use super::registry::close_all;

    /// Version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
