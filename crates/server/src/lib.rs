//! Keyaki databases for clients of PostgreSQL.
//!
//! [`Server`] listens on TCP addresses and a Unix socket, and speaks version 3 of PostgreSQL's protocol: simple and extended
//! queries with text and binary values, portals with row limits, pipelines, COPY from and to the client, and cancellation.
//! Each connection has a [`keyaki::Session`] of its own.
//!
//! The messages are those of the crate `pgwire`. Its handlers are not used: rows are encoded from Arrow arrays directly into
//! the buffer of the connection, and statements, portals and transactions are those of the session.
//!
//! Modules are layered (`cargo xtask layers`):
//!
//! | module | contents |
//! |---|---|
//! | [`failure`] | errors as messages of the protocol |
//! | [`socket`] | sockets of TCP, with or without TLS, and Unix sockets |
//! | [`tls`] | encryption: certificates, keys, handshakes |
//! | [`types`] | PostgreSQL's types of Arrow columns |
//! | [`values`] | values of parameters and results, as text and binary |
//! | [`frames`] | messages of a connection: framing, validation, buffers |
//! | [`options`], [`registry`] | addresses and limits; the open connections and their cancellation |
//! | [`auth`] | authentication: SCRAM, certificates |
//! | [`metrics`] | figures for monitoring |
//! | [`copy`] | rows of COPY from and to the client |
//! | [`shared`] | what all connections share |
//! | [`connection`] | the life of a connection |
//! | [`http`] | figures and states over HTTP |
//! | [`server`] | listeners and shutdown |

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod auth;
mod connection;
mod copy;
mod failure;
mod frames;
mod http;
mod metrics;
mod options;
mod registry;
mod server;
mod shared;
mod socket;
mod tls;
mod types;
mod values;

pub use options::ServerOptions;
pub use server::{Server, ServerError, ServerHandle};
pub use tls::certificate::end_point as tls_server_end_point;
pub use tls::{TlsError, TlsOptions};
