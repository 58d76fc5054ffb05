//! Encodings: keys that sort as bytes, rows of messages, and pages of columns. Pure functions without I/O.
//!
//! ```text
//! key, row         encoded keys and message rows, the form used by the log, the root buffers and searches
//! row_upsert       changes of columns that are applied without reading the row first
//! page             pages of rows (leaves, runs) and of index entries: headers, verification, search
//! column           columns of a page: integers, floats, decimals, text and bytes
//! heap, dictionary compression of texts and bytes in columns
//! builder, views   builders of Arrow columns, filled from all of these
//! chunk            rows found by a read and not yet decoded
//! missing          values of rows that lack a column
//! scalar           a single value of any type
//! compact          batches of views without buffers of others
//! bits, varint     bit packing, variable-length integers
//! ```

mod bits;
mod builder;
mod chunk;
mod codecs;
mod column;
mod compact;
mod dictionary;
mod heap;
mod key;
mod lists;
mod missing;
mod page;
mod row;
mod row_upsert;
mod scalar;
mod schema;
#[cfg(test)]
mod tests;
mod varint;
mod views;

pub use builder::ColumnBuilder;
pub use chunk::{Chunk, ChunkPart, RowBatch};
pub(crate) use codecs::Codecs;
pub use compact::{compact, compact_array};
pub(crate) use dictionary::{DICTIONARY_BYTES_MAX, Dictionaries, TreeDictionaries};
pub use key::{KeyCodec, KeyEncoder};
pub(crate) use key::{invalid as invalid_key, take_escaped};
pub(crate) use lists::encode as encode_lists;
pub(crate) use page::{ENTRIES_MAX, PAGE_BYTES_MAX, ROWS_MAX, filter_bytes, head_of, key_hash};
pub use page::{
    IndexEntry, MessageKind, Page, PageKind, PageRef, PageWriter, Projection, RunColumns, WrittenPage, encode_index,
    seal, set_checksum,
};
pub use row::{RowCodec, RowEncoder};
pub use row_upsert::ColumnChange;
pub(crate) use row_upsert::{ROW_UPSERT, RowUpsert, is_bounded, limit, magnitude, put_row_upsert};
pub(crate) use schema::{COLUMNS_MAX, decode_schema, encode_schema};
