//! The file of a text format, compressed if the statement says so.

use std::io::{Result, Write};

use flate2::write::GzEncoder;

use crate::sql::copy::options::Compression;
use crate::sql::copy::output::Target;

/// Shorter parts are collected: batches of selective queries are short.
const BUFFER_BYTES: usize = 128 << 10;

pub(in crate::sql::copy) enum TextFile {
    Plain { file: Target, buffer: Vec<u8> },
    Gzip(GzEncoder<Target>),
    Zstd(zstd::Encoder<'static, Target>),
}

impl TextFile {
    /// `compression` is one that [`CopyOptions::resolve`](crate::sql::copy::options::CopyOptions::resolve) permits.
    pub fn new(file: Target, compression: Compression) -> Result<TextFile> {
        Ok(match compression {
            Compression::Gzip => TextFile::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                TextFile::Zstd(encoder)
            }
            _ => TextFile::Plain { file, buffer: Vec::new() },
        })
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            TextFile::Plain { file, buffer } => {
                if buffer.len() + bytes.len() > BUFFER_BYTES {
                    file.write_all(buffer)?;
                    buffer.clear();
                }
                match bytes.len() < BUFFER_BYTES {
                    true => buffer.extend_from_slice(bytes),
                    false => file.write_all(bytes)?,
                }
                Ok(())
            }
            TextFile::Gzip(encoder) => encoder.write_all(bytes),
            TextFile::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    /// Writes buffered bytes or the end of the compressed data, and returns the target.
    pub fn finish(self) -> Result<Target> {
        match self {
            TextFile::Plain { mut file, buffer } => {
                file.write_all(&buffer)?;
                Ok(file)
            }
            TextFile::Gzip(encoder) => encoder.finish(),
            TextFile::Zstd(encoder) => encoder.finish(),
        }
    }
}
