//! Tests of the database through its public interfaces. They are one program, because each program links DataFusion and
//! programs run one after another: `cargo test -p keyaki --test database NAME` runs the tests whose path contains NAME.
//! Tests that count the memory or the caches of their process are programs of their own.

mod api;
mod attach;
mod blind;
mod cancel;
mod changes;
mod check;
mod computed_indexes;
mod concurrent_index;
mod copy;
mod deferred;
mod definitions;
mod errors;
mod export;
mod files;
mod foreign_keys;
mod generated;
mod hints;
mod large_transactions;
mod locking_queries;
mod memory;
mod memory_indexes;
mod open;
mod ownership;
mod plans;
mod prepared;
mod privileges;
mod publish;
mod queries;
mod read_only;
mod repair;
mod roles;
mod row_locks;
mod schemas;
mod sequences;
mod shown_definitions;
mod slt;
mod storage;
mod suggestions;
mod temporary;
mod timeouts;
mod transactions;
mod upstream;
mod vacuum;
mod vast_indexes;
