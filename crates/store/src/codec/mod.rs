//! Encodings: keys that sort as bytes, rows of messages, columns of pages. Pure functions; no I/O.

mod bits;
mod builder;
mod column;
mod filter;
mod key;
mod page;
mod row;
mod scalar;

pub use builder::ColumnBuilder;
pub use key::KeyCodec;
pub use page::{
    IndexEntry, MessageKind, Page, PageKind, PageRef, PageWriter, RunColumns, WrittenPage, encode_index, seal,
};
pub use row::RowCodec;
