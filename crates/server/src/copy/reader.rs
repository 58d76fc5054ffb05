//! Reads rows from pieces of any size.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringViewBuilder};
use arrow::datatypes::{Field, Schema, SchemaRef};
use bytes::{Buf, BytesMut};
use keyaki::{CopyFormat, ProgramCopy, Value};

use super::binary::{self, Builder};
use super::lines::{self, Fields, Line};
use crate::failure::{Failure, Result};
use crate::types::{self, Oid};

/// Rows of a batch.
const ROWS: usize = 8192;

/// A reader of rows.
pub struct Reader {
    copy: ProgramCopy,
    schema: SchemaRef,
    oids: Vec<Oid>,
    /// Bytes that were not read.
    rest: BytesMut,
    /// Rows before the next one.
    rows: u64,
    /// The next bytes are the line of names, or the header of the binary format.
    at_start: bool,
    /// The end mark was read.
    has_ended: bool,
}

impl Reader {
    /// A reader of rows with these columns.
    pub fn new(copy: ProgramCopy, schema: SchemaRef) -> Reader {
        let oids = schema.fields().iter().map(|field| types::of_field(field)).collect();
        let at_start = copy.header || copy.format == CopyFormat::Binary;
        Reader { copy, schema, oids, rest: BytesMut::new(), rows: 0, at_start, has_ended: false }
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
    }

    /// Bytes that were not read.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// The next complete rows; `None` if further pieces are needed. After the last piece, `is_last`, all rows must be complete.
    ///
    /// # Errors
    /// 22P04 with the number of the row for malformed rows; 22021 for text that is not UTF-8.
    pub fn batch(&mut self, is_last: bool) -> Result<Option<RecordBatch>> {
        if self.has_ended {
            self.rest.clear();
            return Ok(None);
        }
        match self.copy.format {
            CopyFormat::Binary => self.binary(is_last),
            _ => self.lines(is_last),
        }
    }

    fn lines(&mut self, is_last: bool) -> Result<Option<RecordBatch>> {
        let width = self.schema.fields().len();
        let mut columns: Vec<_> = (0..width).map(|_| StringViewBuilder::new()).collect();
        let (mut at, mut rows, mut fields) = (0, 0, Fields::default());
        while rows < ROWS {
            let line = lines::read(&self.copy, &self.rest, at, is_last, &mut fields);
            match line.map_err(|failure| self.in_row(failure, rows))? {
                Line::Complete(next) => at = next,
                Line::Incomplete => break,
                Line::End => {
                    self.has_ended = true;
                    break;
                }
            }
            if std::mem::take(&mut self.at_start) {
                continue;
            }
            if fields.len() != width {
                let problem = if fields.len() < width {
                    format!("missing data for column \"{}\"", self.schema.field(fields.len()).name())
                } else {
                    "extra data after last expected column".into()
                };
                return Err(self.in_row(Failure::sql("22P04", problem), rows));
            }
            fields.append(&mut columns).map_err(|failure| self.in_row(failure, rows))?;
            rows += 1;
        }
        self.rest.advance(at);
        let columns = columns.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        self.finish(columns.collect(), rows)
    }

    fn binary(&mut self, is_last: bool) -> Result<Option<RecordBatch>> {
        let truncated = || Failure::sql("22P04", "unexpected end of data");
        if self.at_start {
            match binary::header(&self.rest)? {
                Some(len) => self.rest.advance(len),
                None if is_last => return Err(truncated()),
                None => return Ok(None),
            }
            self.at_start = false;
        }
        let mut columns: Vec<_> = self.oids.iter().map(|oid| Builder::new(*oid)).collect();
        let (mut at, mut rows, mut values) = (0, 0, Vec::<Value>::new());
        while rows < ROWS {
            let row = binary::row(&self.rest[at..], &self.oids, &mut values);
            match row.map_err(|failure| self.in_row(failure, rows))? {
                binary::Row::Complete(len) => at += len,
                // Some drivers end the data without a mark.
                binary::Row::Incomplete if is_last && at == self.rest.len() => {
                    self.has_ended = true;
                    break;
                }
                binary::Row::Incomplete if is_last => return Err(self.in_row(truncated(), rows)),
                binary::Row::Incomplete => break,
                binary::Row::End => {
                    self.has_ended = true;
                    break;
                }
            }
            for (column, value) in columns.iter_mut().zip(&values) {
                column.push(value).map_err(|failure| self.in_row(failure, rows))?;
            }
            rows += 1;
        }
        self.rest.advance(at);
        let columns = columns.iter_mut().map(Builder::finish).collect();
        self.finish(columns, rows)
    }

    fn finish(&mut self, columns: Vec<ArrayRef>, rows: usize) -> Result<Option<RecordBatch>> {
        if rows == 0 {
            return Ok(None);
        }
        self.rows += rows as u64;
        let fields = self.schema.fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| Field::new(field.name(), column.data_type().clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let batch = RecordBatch::try_new(schema, columns);
        batch.map(Some).map_err(|error| Failure::Sql(keyaki::Error::Internal(error.to_string())))
    }

    /// Adds the number of a row to a failure.
    fn in_row(&self, failure: Failure, rows: usize) -> Failure {
        match failure {
            Failure::Request { code, message } => {
                Failure::Request { code, message: format!("row {}: {message}", self.rows + rows as u64 + 1) }
            }
            failure => failure,
        }
    }
}
