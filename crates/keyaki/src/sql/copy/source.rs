//! Files that are read: opened within the permitted directories, recognised by their first bytes, and decompressed.
//!
//! Memory is bounded: decoders refuse data whose dictionary or window exceeds [`WINDOW_BYTES_MAX`], and decompressed bytes are
//! read in blocks. Data that ends early or is damaged is an error.

use std::fs::File;
use std::io::{BufReader, Cursor, Error as IoError, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::options::Compression;
use super::read::bad;
use crate::sql::files::Files;
use crate::{Error, Result};

/// Maximum size of the dictionary or window of a decoder: that of `zstd -19 --long=27` and `xz -9`, with its overhead.
const WINDOW_BYTES_MAX: u64 = 136 << 20;
/// The logarithm of the maximum window of Zstandard.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Bytes of a file that show its format.
const SIGNATURE_BYTES: usize = 16;
const BUFFER_BYTES: usize = 1 << 16;
/// The standard input, which COPY FROM reads also from a pipe.
pub(super) const STDIN: &str = "/dev/stdin";

/// An open file.
pub(in crate::sql) struct Source {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    compression: Compression,
}

impl Source {
    /// Opens a text file.
    ///
    /// # Errors
    /// `FileAccess`, `Io`; `Import` if the file is compressed in another way, or a database, or in Parquet format.
    pub fn open(path: &Path, files: &Files, compression: Compression) -> Result<Source> {
        Source::of(path, files.open(path)?.into_reader(), compression)
    }

    /// The standard input of the process, which can be read once.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn stdin(files: &Files, compression: Compression) -> Result<Source> {
        let path = Path::new(STDIN);
        files.check(path)?;
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let input = File::from(input.map_err(|error| Error::io("open", path, error))?);
        Source::of(path, Box::new(input), compression)
    }

    fn of(path: &Path, mut file: Box<dyn Read + Send>, compression: Compression) -> Result<Source> {
        let failed = |error: IoError| Error::io("read", path, error);
        let signature = signature(&mut file).map_err(failed)?;
        check(path, &signature, compression)?;
        let file = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(signature).chain(file));
        let reader: Box<dyn Read + Send> = match compression {
            Compression::Gzip => Box::new(MultiGzDecoder::new(file)),
            Compression::Bzip2 => Box::new(MultiBzDecoder::new(file)),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(file).map_err(failed)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(failed)?;
                Box::new(decoder)
            }
            Compression::Xz => {
                let stream = Stream::new_stream_decoder(WINDOW_BYTES_MAX, CONCATENATED);
                Box::new(XzDecoder::new_stream(file, stream.map_err(|error| failed(error.into()))?))
            }
            Compression::None | Compression::Snappy | Compression::Lz4 => Box::new(file.into_inner()),
        };
        Ok(Source { path: path.to_path_buf(), reader, compression })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_compressed(&self) -> bool {
        self.compression != Compression::None
    }

    /// Appends at most `count` bytes to `bytes`, fewer only at the end of the file. Returns their number.
    ///
    /// # Errors
    /// `Io`; `Import` for damaged compressed data.
    pub fn read(&mut self, count: usize, bytes: &mut Vec<u8>) -> Result<usize> {
        bytes.reserve(count);
        let read = (&mut self.reader).take(count as u64).read_to_end(bytes);
        read.map_err(|error| match (self.compression, error.raw_os_error()) {
            (Compression::None, _) | (_, Some(_)) => Error::io("read", &self.path, error),
            (compression, None) => {
                let name = compression.name();
                let message = match error.kind() {
                    ErrorKind::UnexpectedEof => format!("the {name} data ends early (the file may be incomplete)"),
                    _ => format!("the {name} data cannot be decompressed: {error}"),
                };
                bad(&self.path, None, message)
            }
        })
    }
}

/// Reads the first bytes of a file; fewer if it is shorter.
fn signature(file: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(SIGNATURE_BYTES);
    file.take(SIGNATURE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// # Errors
/// `Import` if a file with this beginning is no text, or not compressed as expected.
fn check(path: &Path, signature: &[u8], expected: Compression) -> Result<()> {
    let found = match signature {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        [b'B', b'Z', b'h', b'1'..=b'9', ..] if expected == Compression::Bzip2 => Compression::Bzip2,
        _ => Compression::None,
    };
    if found != expected {
        let message = match found {
            Compression::None => format!("the file is not compressed with {}", expected.name()),
            found => {
                let (name, extension) = (found.name(), found.extension());
                format!(
                    "the file is compressed with {name} (add the extension .{extension}, or the option compression '{name}')"
                )
            }
        };
        return Err(bad(path, None, message));
    }
    let of_other = match signature {
        _ if found != Compression::None => None,
        _ if signature.starts_with(b"SQLite format 3\0") => Some("an SQLite database (export its tables as CSV files)"),
        _ if signature.get(8..12) == Some(b"DUCK") => Some("a DuckDB database (export its tables as Parquet files)"),
        _ if signature.starts_with(b"PAR1") => Some("in Parquet format (use read_parquet, or FORMAT parquet)"),
        _ if signature.starts_with(b"PK\x03\x04") => Some("a ZIP archive (extract it first)"),
        _ if signature.starts_with(b"ARROW1") => Some("in Arrow format, which cannot be read"),
        _ => None,
    };
    match of_other {
        Some(what) => Err(bad(path, None, format!("the file is {what}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const ALL: [Compression; 4] = [Compression::Gzip, Compression::Bzip2, Compression::Zstd, Compression::Xz];

    fn packed(text: &[u8], compression: Compression) -> Vec<u8> {
        let mut packed = Vec::new();
        match compression {
            Compression::Gzip => {
                flate2::read::GzEncoder::new(text, flate2::Compression::fast()).read_to_end(&mut packed)
            }
            Compression::Bzip2 => {
                bzip2::read::BzEncoder::new(text, bzip2::Compression::fast()).read_to_end(&mut packed)
            }
            Compression::Xz => liblzma::read::XzEncoder::new(text, 1).read_to_end(&mut packed),
            _ => {
                packed = zstd::encode_all(text, 1).expect("compression");
                Ok(0)
            }
        }
        .expect("compression");
        packed
    }

    fn read(bytes: &[u8], compression: Compression) -> Result<Vec<u8>> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("write");
        let mut source = Source::open(file.path(), &Files::default(), compression)?;
        let mut text = Vec::new();
        while source.read(1000, &mut text)? == 1000 {}
        Ok(text)
    }

    #[test]
    fn compressed_files_are_read() {
        let text: Vec<u8> =
            (0..20_000).flat_map(|i: u32| format!("{i},{}\n", i.wrapping_mul(i)).into_bytes()).collect();
        for compression in ALL {
            let one = packed(&text, compression);
            assert!(read(&one, compression).expect("one part") == text, "{compression:?}");
            // Parts one after the other, as parallel compressors write them.
            let two = [one.clone(), packed(b"end", compression)].concat();
            assert!(read(&two, compression).expect("two parts") == [text.clone(), b"end".to_vec()].concat());
            assert_eq!(read(&packed(b"", compression), compression).expect("no bytes"), b"");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let text: Vec<u8> =
            (0..20_000).flat_map(|i: u32| format!("{i},{}\n", i.wrapping_mul(i)).into_bytes()).collect();
        for compression in ALL {
            let whole = packed(&text, compression);
            for length in [0, 1, 5, 12, whole.len() / 2, whole.len() - 5, whole.len() - 1] {
                let error = read(&whole[..length], compression).expect_err("a part").to_string();
                assert!(error.contains(compression.name()), "{compression:?} {length}: {error}");
            }
            for at in (0..whole.len()).step_by(whole.len() / 50) {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x55;
                // A few bytes are not protected by a checksum, for example the time in the header of gzip.
                if let Ok(read) = read(&bytes, compression) {
                    assert!(read == text || compression == Compression::Zstd, "{compression:?} {at}");
                }
            }
        }
        for compression in ALL {
            let error = read(b"a,b\n1,2\n", compression).expect_err("a text").to_string();
            assert!(error.ends_with(&format!("the file is not compressed with {}", compression.name())), "{error}");
        }
    }

    #[test]
    fn windows_are_limited() {
        // A frame of Zstandard with a window of 1 GiB.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, (30 - 10) << 3, 1, 0, 0];
        assert!(
            read(&frame, Compression::Zstd).expect_err("a large window").to_string().contains("cannot be decompressed")
        );
    }

    #[test]
    fn other_files_are_recognised() {
        let message = |bytes: &[u8]| read(bytes, Compression::None).expect_err("no text").to_string();
        assert!(message(b"SQLite format 3\0rest").contains("an SQLite database"));
        assert!(message(b"01234567DUCK0000").contains("a DuckDB database"));
        assert!(message(b"PAR1....").contains("in Parquet format"));
        assert!(message(b"\x1f\x8b\x08\0").contains("compressed with gzip (add the extension .gz"));
        assert!(message(&packed(b"a", Compression::Zstd)).contains("compression 'zstd'"));
        assert_eq!(read(b"BZh9,a\n", Compression::None).expect("a text"), b"BZh9,a\n");
    }
}
