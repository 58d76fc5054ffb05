//! Prepared statements, portals, and what their commands are called.

use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::BufMut;
use keyaki::{
    Outcome, Prepared, ProgramCopy, ResultNames, SendableRecordBatchStream, Session, TransactionStatus, Value,
};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{FieldDescription, RowDescription};

use crate::failure::Result;
use crate::frames::put_message;
use crate::types::{self, Oid};
use crate::values::Format;
use crate::values::columns::Column;
use crate::values::messages::{self, Messages};

/// A prepared statement.
#[derive(Debug)]
pub struct Statement {
    /// The text of the request.
    pub text: String,
    pub body: Body,
    /// The types of the parameters.
    pub parameters: Vec<Oid>,
    /// The types that the client has declared.
    pub declared: Vec<u32>,
    pub names: Names,
}

impl Statement {
    /// The schema of a result with PostgreSQL's names.
    pub fn shown(&self, schema: &SchemaRef) -> SchemaRef {
        self.names.shown(&self.text, schema)
    }
}

/// PostgreSQL's names of the columns of a statement, determined when a result needs them.
#[derive(Debug, Default)]
pub struct Names(OnceLock<ResultNames>);

impl Names {
    /// The schema of a result of the statement `text` with PostgreSQL's names.
    pub fn shown(&self, text: &str, schema: &SchemaRef) -> SchemaRef {
        match ResultNames::are_needed(schema) {
            true => self.0.get_or_init(|| ResultNames::of(text)).apply(schema),
            false => schema.clone(),
        }
    }
}

/// What a statement does.
#[derive(Debug)]
pub enum Body {
    /// The text has no statement.
    Empty,
    /// Rows are copied from or to the client.
    Copy(ProgramCopy),
    /// Any other statement.
    Prepared(Prepared),
}

/// The last unnamed prepared statements of a connection. Drivers send their texts again for each execution.
#[derive(Debug, Default)]
pub struct Recent {
    /// The most recently used one last.
    statements: Vec<Arc<Statement>>,
}

/// Maximum number of statements in [`Recent`].
const RECENT_MAX: usize = 32;
/// Maximum length of their texts in bytes.
const RECENT_BYTES_MAX: usize = 8 << 10;

impl Recent {
    /// The statement with a text and declared types.
    pub fn find(&mut self, text: &str, declared: &[u32]) -> Option<Arc<Statement>> {
        let is_same = |statement: &Arc<Statement>| statement.text == text && statement.declared == declared;
        let place = self.statements.iter().rposition(is_same)?;
        self.statements[place..].rotate_left(1);
        self.statements.last().cloned()
    }

    /// Forgets all statements.
    pub fn clear(&mut self) {
        self.statements.clear();
    }

    /// Adds a statement, unless it is long or no query.
    pub fn add(&mut self, statement: &Arc<Statement>) {
        if statement.text.len() > RECENT_BYTES_MAX || !matches!(statement.body, Body::Prepared(_)) {
            return;
        }
        // A statement of the same text was prepared for another state of the catalog.
        self.statements.retain(|known| known.text != statement.text || known.declared != statement.declared);
        if self.statements.len() >= RECENT_MAX {
            self.statements.remove(0);
        }
        self.statements.push(statement.clone());
    }
}

/// A statement with values of its parameters.
pub struct Portal {
    pub statement: Arc<Statement>,
    pub values: Vec<Value>,
    /// Bytes of the values as the client has sent them.
    pub bytes: usize,
    /// Formats of the result as the client has given them: none, one, or one for each column.
    pub formats: Vec<i16>,
    pub state: State,
}

/// The state of a portal.
pub enum State {
    /// It was not executed.
    Bound,
    /// The statement is executed, and its rows are read.
    Reading(Rows),
    /// All rows were read.
    Read,
    /// A statement without rows was executed to describe it: its tag was not sent.
    Complete(String),
    /// A statement without rows was executed.
    Ended,
}

/// The rows of a result.
pub struct Rows {
    stream: SendableRecordBatchStream,
    pub columns: Vec<ResultColumn>,
    batch: Option<Batch>,
    messages: Messages,
    /// Number of rows that were sent.
    pub sent: u64,
    /// Requests to cancel the statement that have been made before it.
    pub cancels: u64,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultColumn {
    name: String,
    oid: Oid,
    modifier: i32,
    format: Format,
}

struct Batch {
    columns: Vec<Column>,
    /// The rows can be encoded together.
    has_lengths: bool,
    rows: usize,
    /// Position of the next row.
    next: usize,
}

/// The columns of a result with this schema.
///
/// # Errors
/// If the number of formats is wrong.
pub fn columns(schema: &SchemaRef, formats: &[i16]) -> Result<Vec<ResultColumn>> {
    let formats = Format::for_each(formats, schema.fields().len(), "result")?;
    let columns = schema.fields().iter().zip(formats).map(|(field, format)| ResultColumn {
        name: field.name().clone(),
        oid: types::of_field(field),
        modifier: types::modifier(field.data_type()),
        format,
    });
    Ok(columns.collect())
}

/// The formats of the rows of a cursor that a client reads without choosing formats.
pub fn formats_of_cursor(schema: &SchemaRef) -> &'static [i16] {
    if Session::is_of_binary_cursor(schema) { &[1] } else { &[] }
}

/// The description of columns.
pub fn description(columns: &[ResultColumn]) -> PgWireBackendMessage {
    let field = |column: &ResultColumn| {
        FieldDescription::new(
            column.name.clone(),
            0,
            0,
            column.oid.0,
            column.oid.size(),
            column.modifier,
            column.format.code(),
        )
    };
    PgWireBackendMessage::RowDescription(RowDescription::new(columns.iter().map(field).collect()))
}

impl Rows {
    pub fn new(stream: SendableRecordBatchStream, columns: Vec<ResultColumn>, cancels: u64) -> Rows {
        Rows { stream, columns, batch: None, messages: Messages::default(), sent: 0, cancels }
    }

    /// The stream of further batches.
    pub fn stream(&mut self) -> &mut SendableRecordBatchStream {
        &mut self.stream
    }

    /// True if there is a row to be sent without further batches.
    pub fn has_row(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.next < batch.rows)
    }

    /// The columns of a batch, to be encoded.
    ///
    /// # Errors
    /// Errors of conversions.
    pub fn encoded(&self, session: &Session, batch: &RecordBatch) -> Result<Vec<Column>> {
        let columns = batch.columns().iter().zip(&self.columns);
        columns.map(|(array, column)| Column::new(session, array, column.oid, column.format)).collect()
    }

    /// Continues with the rows of a batch.
    ///
    /// # Errors
    /// Errors of conversions.
    pub fn set_batch(&mut self, session: &Session, batch: &RecordBatch) -> Result<()> {
        let columns = self.encoded(session, batch)?;
        let has_lengths = columns.iter().all(Column::has_lengths);
        self.batch = Some(Batch { columns, has_lengths, rows: batch.num_rows(), next: 0 });
        Ok(())
    }

    /// Appends rows to the output: at most `rows`, and until it has about `bytes`. Returns their number.
    ///
    /// # Errors
    /// As [`Failure::message_len`](crate::failure::Failure::message_len).
    pub fn put(&mut self, output: &mut Vec<u8>, rows: u64, bytes: usize) -> Result<u64> {
        let Some(batch) = &mut self.batch else { return Ok(0) };
        let start = batch.next;
        let left = (batch.rows - start).min(usize::try_from(rows).unwrap_or(usize::MAX));
        if batch.has_lengths && left >= messages::ROWS_MIN && output.len() < bytes {
            let bytes = bytes - output.len();
            batch.next += self.messages.put(&batch.columns, start..start + left, bytes, output)?;
        } else {
            while batch.next < start + left && output.len() < bytes {
                put_message(output, b'D', |output| {
                    output.put_u16(batch.columns.len() as u16);
                    batch.columns.iter().for_each(|column| column.put(batch.next, output));
                })?;
                batch.next += 1;
            }
        }
        let put = (batch.next - start) as u64;
        self.sent += put;
        Ok(put)
    }
}

/// A word in upper case. What is behind its first 16 characters is lost.
#[derive(Debug, Clone, Copy)]
pub struct Word {
    characters: [u8; 16],
    len: usize,
}

impl Word {
    fn new(text: &str) -> Word {
        let mut characters = [0; 16];
        let len = text.len().min(characters.len());
        characters[..len].copy_from_slice(&text.as_bytes()[..len]);
        characters.make_ascii_uppercase();
        Word { characters, len }
    }

    /// The word; empty unless it consists of ASCII characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.characters[..self.len]).unwrap_or_default()
    }
}

/// The leading word of a statement; empty for a statement that begins otherwise.
pub fn first_word(text: &str) -> Word {
    let mut text = text;
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        if let Some(comment) = text.strip_prefix("--") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(comment) = text.strip_prefix("/*") {
            text = comment.split_once("*/").map_or("", |(_, rest)| rest);
        } else {
            break;
        }
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    Word::new(&text[..end])
}

/// The tag of a statement that has returned rows.
pub fn rows_tag(text: &str, rows: u64) -> String {
    match first_word(text).as_str() {
        "INSERT" | "REPLACE" => format!("INSERT 0 {rows}"),
        word @ ("UPDATE" | "DELETE" | "MERGE" | "FETCH") => format!("{word} {rows}"),
        word @ ("SHOW" | "EXPLAIN") => word.into(),
        _ => format!("SELECT {rows}"),
    }
}

/// The tag of a statement without rows.
pub fn tag(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done { tag, rows: Some(rows) } if tag == "INSERT" => format!("INSERT 0 {rows}"),
        Outcome::Done { tag, rows: Some(rows) } if tag.starts_with("CREATE TABLE") => format!("SELECT {rows}"),
        Outcome::Done { tag, rows: Some(rows) } => format!("{tag} {rows}"),
        Outcome::Done { tag, rows: None } => tag.clone(),
        Outcome::Rows(_) => "SELECT 0".into(),
    }
}

/// True for statements whose results have columns that are known only when they are executed, and that change nothing.
pub fn describes_itself(text: &str) -> bool {
    matches!(first_word(text).as_str(), "SHOW" | "EXPLAIN" | "DESCRIBE" | "DESC")
}

/// True for statements that may return rows whose columns are known only when they are executed.
pub fn returns_rows(text: &str) -> bool {
    const WORDS: [&str; 14] = [
        "BACKUP", "CHECK", "EXECUTE", "EXPORT", "FETCH", "IMPORT", "PIN", "PUBLISH", "SELECT", "TABLE", "VACUUM",
        "VALUES", "WARM", "WITH",
    ];
    describes_itself(text) || WORDS.contains(&first_word(text).as_str())
}

/// True if results with these columns can be encoded as the first ones were described.
pub fn are_alike(described: &[ResultColumn], columns: &[ResultColumn]) -> bool {
    let is_alike = |(described, column): (&ResultColumn, &ResultColumn)| {
        // A column whose type depends on the values of parameters was described as text.
        let is_same = described.oid.representation() == column.oid.representation();
        described.name == column.name && (is_same || described.oid == Oid::TEXT)
    };
    described.len() == columns.len() && described.iter().zip(columns).all(is_alike)
}

/// True for SET LOCAL, also behind comments.
fn is_set_local(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.any(|word| word.eq_ignore_ascii_case("SET"))
        && words.next().is_some_and(|word| word.eq_ignore_ascii_case("LOCAL"))
}

/// True for a statement that begins or ends a transaction, or cannot run inside one.
pub fn is_outside_transactions(text: &str) -> bool {
    match first_word(text).as_str() {
        // It holds for the statements that are sent together with it.
        "SET" if is_set_local(text) => false,
        "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE" | "PREPARE"
        | "DEALLOCATE" | "DISCARD" | "SET" | "RESET" | "SHOW" | "VACUUM" | "ANALYZE" | "CHECKPOINT" | "BACKUP"
        | "EXPORT" | "IMPORT" | "CHECK" | "WARM" | "PIN" | "UNPIN" | "PUBLISH" | "ATTACH" | "DETACH" => true,
        "CREATE" | "DROP" => text.to_ascii_uppercase().contains("CONCURRENTLY"),
        _ => false,
    }
}

/// The tag of a statement that controls transactions and has no effect in this state; `None` for others.
pub fn no_effect(text: &str, status: TransactionStatus) -> Option<(&'static str, &'static str, &'static str)> {
    const BEGINNINGS: [&str; 6] = ["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT"];
    let first = text.split_whitespace().next()?;
    if !BEGINNINGS.iter().any(|word| word.eq_ignore_ascii_case(first)) {
        return None;
    }
    let words: Vec<String> = text.split_whitespace().map(str::to_ascii_uppercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = words.strip_suffix(&["WORK"]).or(words.strip_suffix(&["TRANSACTION"])).unwrap_or(&words);
    let none = "there is no transaction in progress";
    match (words, status) {
        (["COMMIT" | "END"], TransactionStatus::Idle) => Some(("COMMIT", "25P01", none)),
        (["ROLLBACK" | "ABORT"], TransactionStatus::Idle) => Some(("ROLLBACK", "25P01", none)),
        (["BEGIN" | "START"], TransactionStatus::Open) => {
            Some(("BEGIN", "25001", "there is already a transaction in progress"))
        }
        _ => None,
    }
}

/// True for statements that change rows and return them.
pub fn returns_changes(text: &str) -> bool {
    matches!(first_word(text).as_str(), "INSERT" | "REPLACE" | "UPDATE" | "DELETE" | "MERGE" | "WITH")
        && text.as_bytes().windows(9).any(|window| window.eq_ignore_ascii_case(b"RETURNING"))
}

/// True for statements that begin a transaction without further words about it.
pub fn is_plain_begin(text: &str) -> bool {
    let words: Vec<String> = text.split_whitespace().map(str::to_ascii_uppercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    matches!(words.as_slice(), ["BEGIN"] | ["BEGIN", "WORK" | "TRANSACTION"] | ["START", "TRANSACTION"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words() {
        assert_eq!(first_word("  -- x\n /* y */ (select 1)").as_str(), "SELECT");
        assert_eq!(first_word("insert into t").as_str(), "INSERT");
        assert_eq!(first_word("-- only a comment").as_str(), "");
        assert_eq!(first_word("").as_str(), "");
        assert_eq!(first_word("concurrently_behind x").as_str(), "CONCURRENTLY_BEH");
    }

    #[test]
    fn tags() {
        assert_eq!(rows_tag("INSERT INTO t VALUES (1) RETURNING a", 1), "INSERT 0 1");
        assert_eq!(rows_tag("WITH q AS (SELECT 1) SELECT * FROM q", 7), "SELECT 7");
        assert_eq!(rows_tag("show timezone", 1), "SHOW");
        assert_eq!(rows_tag("fetch 2 from c", 2), "FETCH 2");
        let done = |tag: &str, rows| tag_of(&Outcome::Done { tag: tag.into(), rows });
        assert_eq!(done("INSERT", Some(3)), "INSERT 0 3");
        assert_eq!(done("CREATE TABLE", None), "CREATE TABLE");
        assert_eq!(done("CREATE TABLE AS", Some(3)), "SELECT 3");
        assert_eq!(done("DELETE", Some(0)), "DELETE 0");
    }

    use super::tag as tag_of;

    #[test]
    fn statements_without_effect() {
        let tag = |text, status| no_effect(text, status).map(|(tag, ..)| tag);
        assert_eq!(tag("commit work", TransactionStatus::Idle), Some("COMMIT"));
        assert_eq!(tag("ROLLBACK", TransactionStatus::Idle), Some("ROLLBACK"));
        assert_eq!(tag("ROLLBACK", TransactionStatus::Failed), None);
        assert_eq!(tag("ROLLBACK TO s", TransactionStatus::Idle), None);
        assert_eq!(tag("start transaction", TransactionStatus::Open), Some("BEGIN"));
        assert!(
            returns_changes("insert into t values (1) returning *") && !returns_changes("INSERT INTO t VALUES (1)")
        );
    }

    #[test]
    fn transactions() {
        assert!(is_plain_begin("begin transaction") && !is_plain_begin("BEGIN ISOLATION LEVEL SERIALIZABLE"));
        assert!(is_outside_transactions("CREATE INDEX CONCURRENTLY i ON t (a)"));
        assert!(!is_outside_transactions("CREATE INDEX i ON t (a)"));
        assert!(is_outside_transactions("SET a = 1") && !is_outside_transactions("set  local a = 1"));
    }
}
