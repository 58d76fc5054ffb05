//! Rows of COPY FROM STDIN and COPY TO STDOUT.
//!
//! | module | contents |
//! |---|---|
//! | [`lines`] | the text formats: reading lines with backslashes as escapes, or with quotes |
//! | [`binary`] | reading the binary format |
//! | [`reader`] | reading rows of any format from pieces of any size |
//! | [`writer`] | writing rows |

mod binary;
mod lines;
pub mod reader;
pub mod writer;

/// The first bytes of the binary format.
const SIGNATURE: &[u8] = b"PGCOPY\n\xFF\r\n\0";
