//! The simple protocol: a text of any number of statements.

use std::time::Instant;

use keyaki::Outcome;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;

use super::client::{Client, Work};
use super::statements::{
    Names, Rows, columns, description, first_word, formats_of_cursor, returns_changes, rows_tag, tag,
};
use super::{copying, record};
use crate::failure::Result;

/// Executes the statements of a text one after another, up to the first error. Several statements are one transaction, unless
/// they begin and end others.
///
/// # Errors
/// Errors that end the connection.
pub async fn query(client: &mut Client, text: &str) -> Result<()> {
    // A failure of the protocol before has closed its portals, if it was in a transaction.
    client.portals.remove("");
    client.statements.remove("");
    client.start();
    let mut at = Place { text, skipped: 0 };
    let started = Instant::now();
    let result = run(client, text, &mut at).await;
    record::executed(client, text, started, &result);
    if let Err(failure) = result {
        if failure.is_fatal() {
            return Err(failure);
        }
        client.fail(&failure);
        client.put_notices()?;
        client.wire.put(&failure.message(at.text, at.skipped))?;
        client.end_implicit(true).await?;
    }
    // Also of requests of the extended protocol before it.
    if let Err(failure) = client.end_implicit(false).await {
        if failure.is_fatal() {
            return Err(failure);
        }
        client.wire.put(&failure.message("", 0))?;
    }
    client.ready().await
}

/// The running statement in the text of the request.
struct Place<'a> {
    text: &'a str,
    /// Characters before it.
    skipped: usize,
}

async fn run<'a>(client: &mut Client, text: &'a str, at: &mut Place<'a>) -> Result<()> {
    // Most texts are one statement: they are not split, because execution looks them up in the plan cache first.
    if !text.contains(';') && !first_word(text).as_str().is_empty() {
        if returns_changes(text) {
            // It is committed after its rows are encoded.
            client.begin_implicit(text).await?;
        }
        let complete = match client.without_execution(text)? {
            Some(tag) => tag,
            None => execute(client, text).await?,
        };
        client.end_implicit(false).await?;
        return client.put_complete(complete);
    }
    let statements = client.session.statements(text)?;
    if statements.is_empty() {
        return client.wire.put(&PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
    }
    let (mut rest, mut skipped, count) = (0, 0, statements.len());
    for (index, statement) in statements.iter().enumerate() {
        let start = text[rest..].find(statement.as_str()).map_or(rest, |found| rest + found);
        skipped += text[rest..start].chars().count();
        *at = Place { text: &text[start..start + statement.len()], skipped };
        rest = start + statement.len();
        skipped += statement.chars().count();
        if count > 1 || returns_changes(statement) {
            client.start();
            client.begin_implicit(statement).await?;
        }
        let complete = match client.without_execution(statement)? {
            Some(tag) => tag,
            None => execute(client, statement).await?,
        };
        if index + 1 == count {
            client.end_implicit(false).await?;
        }
        client.put_complete(complete)?;
        client.flush_if_large().await?;
    }
    Ok(())
}

/// Executes a statement and sends its rows. Returns its tag.
async fn execute(client: &mut Client, text: &str) -> Result<String> {
    if first_word(text).as_str() == "COPY"
        && let Some(copy) = client.session.program_copy(text)?
    {
        return copying::run(client, copy).await;
    }
    match client.run(Work::Text(text)).await? {
        Outcome::Rows(stream) => {
            let schema = stream.schema();
            let columns = columns(&Names::default().shown(text, &schema), formats_of_cursor(&schema))?;
            client.wire.put(&description(&columns))?;
            let mut rows = Rows::new(stream, columns, client.cancels());
            client.send(&mut rows, 0).await?;
            Ok(rows_tag(text, rows.sent))
        }
        outcome => Ok(tag(&outcome)),
    }
}
