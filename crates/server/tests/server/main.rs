//! Tests of servers through their interfaces. They are one program, because each program links DataFusion: `cargo test
//! -p keyaki-server --test server NAME` runs the tests whose path contains NAME. Tests that count the memory or the files of
//! their process are programs of their own.

mod auth;
mod compatibility;
mod copy;
mod cursors;
mod http;
mod locks;
mod messages;
mod protocol;
mod sessions;
mod statements;
#[path = "../support/mod.rs"]
mod support;
mod tls;
