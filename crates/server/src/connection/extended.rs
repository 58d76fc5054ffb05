//! The extended protocol: statements are prepared, bound to values and executed by separate requests.

use std::sync::Arc;
use std::time::Instant;

use keyaki::{Outcome, TransactionStatus};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended,
};
use pgwire::messages::response::EmptyQueryResponse;

use super::client::{Client, Work};
use super::statements::{
    Body, Names, Portal, ResultColumn, Rows, State, Statement, are_alike, columns, describes_itself, description,
    first_word, formats_of_cursor, returns_changes, returns_rows, rows_tag, tag,
};
use super::{copying, record};
use crate::failure::{Failure, Result};
use crate::types::{self, Oid};
use crate::values::{Format, parameters};

/// Maximum number of prepared statements of a connection.
const STATEMENTS_MAX: usize = 10_000;
/// Maximum number of portals of a connection.
const PORTALS_MAX: usize = 1_000;
/// Maximum bytes of the values of all portals of a connection.
const PORTAL_BYTES_MAX: usize = 512 << 20;
/// The type of requests that end a series.
const SYNC: u8 = b'S';

/// Tells the client about a failed request, and skips all others up to the next Sync.
///
/// # Errors
/// Errors that end the connection.
pub async fn failed(client: &mut Client, failure: &Failure) -> Result<()> {
    client.is_skipping = true;
    client.fail(failure);
    let text = std::mem::take(&mut client.parsing);
    client.put_notices()?;
    client.wire.put(&failure.message(&text, 0))?;
    client.end_implicit(true).await?;
    // The client may wait for it before it sends a Sync.
    client.flush().await
}

/// Ends a series of requests.
///
/// # Errors
/// Errors that end the connection.
pub async fn sync(client: &mut Client) -> Result<()> {
    client.is_skipping = false;
    if let Err(failure) = client.end_implicit(false).await {
        if failure.is_fatal() {
            return Err(failure);
        }
        client.wire.put(&failure.message("", 0))?;
    }
    client.ready().await
}

/// Prepares a statement.
///
/// # Errors
/// 42P05 for the name of another statement; errors of the statement.
pub async fn parse(client: &mut Client, request: Parse) -> Result<()> {
    let name = request.name.unwrap_or_default();
    client.follow_removals();
    if !name.is_empty() && client.session.has_prepared(&name) {
        return Err(Failure::sql("42P05", format!("prepared statement \"{name}\" already exists")));
    }
    if client.statements.len() >= STATEMENTS_MAX && !name.is_empty() {
        return Err(Failure::sql("53400", format!("a connection has at most {STATEMENTS_MAX} prepared statements")));
    }
    client.statements.remove(&name);
    client.start();
    if name.is_empty()
        && client.session.transaction_status() != TransactionStatus::Failed
        && let Some(statement) = client.recent.find(&request.query, &request.type_oids)
        && let Body::Prepared(prepared) = &statement.body
        && client.is_current(prepared).await.unwrap_or(false)
    {
        client.statements.insert(name, statement);
        return client.wire.put(&Message::ParseComplete(ParseComplete::new()));
    }
    client.parsing.clone_from(&request.query);
    let body = match client.session.statements(&request.query)?.as_slice() {
        [] => Body::Empty,
        [text] => match first_word(text).as_str() {
            "COPY" => match client.session.program_copy(text)? {
                Some(copy) => {
                    // For its errors: some drivers do not expect them from the execution.
                    if copy.to_program {
                        client.prepare(&copy.query, &[]).await.map_err(Failure::without_position)?;
                    }
                    Body::Copy(copy)
                }
                None => Body::Prepared(client.prepare(&request.query, &request.type_oids).await?),
            },
            _ => Body::Prepared(client.prepare(&request.query, &request.type_oids).await?),
        },
        _ => return Err(Failure::sql("42601", "cannot insert multiple commands into a prepared statement")),
    };
    let statement = Arc::new(described_statement(request.query, body, request.type_oids));
    if name.is_empty() {
        client.recent.add(&statement);
    } else {
        let types = statement.parameters.iter().map(|oid| oid.0).collect();
        let prepared = match &statement.body {
            Body::Prepared(prepared) => Some(prepared),
            Body::Empty | Body::Copy(_) => None,
        };
        client.session.keep_prepared(&name, &statement.text, types, prepared)?;
    }
    client.statements.insert(name, statement);
    client.parsing.clear();
    client.wire.put(&Message::ParseComplete(ParseComplete::new()))
}

/// A statement with the types of its parameters.
fn described_statement(text: String, body: Body, declared: Vec<u32>) -> Statement {
    let (inferred, documents) = match &body {
        Body::Prepared(prepared) => (prepared.parameters(), prepared.document_parameters()),
        Body::Empty | Body::Copy(_) => Default::default(),
    };
    let declared_type = |index: usize| declared.get(index).map(|oid| Oid(*oid));
    let parameters = inferred.iter().enumerate().map(|(index, inferred)| {
        match declared_type(index).filter(|oid| *oid != Oid::UNSPECIFIED && *oid != Oid::UNKNOWN) {
            Some(oid) => oid,
            None => {
                let json = documents.get(index).copied().flatten();
                inferred.as_ref().map_or(Oid::TEXT, |ty| types::of_documents(ty, json))
            }
        }
    });
    Statement { parameters: parameters.collect(), declared, text, body, names: Names::default() }
}

/// The statement with a name: one of the protocol, or of PREPARE.
async fn statement(client: &mut Client, name: Option<&str>) -> Result<Arc<Statement>> {
    let name = name.unwrap_or_default();
    client.follow_removals();
    if let Some(known) = client.statements.get(name) {
        return Ok(known.clone());
    }
    if name.is_empty() {
        return Err(Failure::sql("26000", "unnamed prepared statement does not exist"));
    }
    let missing = || Failure::sql("26000", format!("prepared statement \"{name}\" does not exist"));
    let prepared = client.session.kept_prepared(name).await?.ok_or_else(missing)?;
    let statement = Arc::new(described_statement(prepared.sql().into(), Body::Prepared(prepared), Vec::new()));
    client.statements.insert(name.into(), statement.clone());
    Ok(statement)
}

fn no_portal(name: &str) -> Failure {
    Failure::sql("34000", format!("portal \"{name}\" does not exist"))
}

/// Binds a statement to values.
///
/// # Errors
/// 26000 for an unknown statement, 42P03 for the name of another portal or a cursor, 54000 for too many values, 08P01 for a wrong number of values or formats; errors
/// of values.
pub async fn bind(client: &mut Client, request: Bind) -> Result<()> {
    let statement = statement(client, request.statement_name.as_deref()).await?;
    let name = request.portal_name.unwrap_or_default();
    let is_cursor = || client.session.cursor_columns(&name).is_some();
    if !name.is_empty() && (client.portals.contains_key(&name) || is_cursor()) {
        return Err(Failure::sql("42P03", format!("portal \"{name}\" already exists")));
    }
    if client.portals.len() >= PORTALS_MAX && !name.is_empty() {
        return Err(Failure::sql("53400", format!("a connection has at most {PORTALS_MAX} portals")));
    }
    let (given, expected) = (request.parameters.len(), statement.parameters.len());
    if given != expected {
        let statement = request.statement_name.unwrap_or_default();
        return Err(Failure::protocol(format!(
            "bind message supplies {given} parameters, but prepared statement \"{statement}\" requires {expected}"
        )));
    }
    let bytes: usize = request.parameters.iter().flatten().map(|value| value.len()).sum();
    let others: usize = client.portals.iter().filter(|(of, _)| **of != name).map(|(_, portal)| portal.bytes).sum();
    if others + bytes > PORTAL_BYTES_MAX {
        let limit = PORTAL_BYTES_MAX >> 20;
        return Err(Failure::sql(
            "54000",
            format!("the values of the portals of a connection have at most {limit} MiB"),
        ));
    }
    let formats = Format::for_each(&request.parameter_format_codes, given, "parameter")?;
    let given = request.parameters.iter().zip(&statement.parameters).zip(formats).enumerate();
    let values = given.map(|(index, ((bytes, oid), format))| {
        parameters::value(bytes.as_deref(), *oid, format, index + 1) //
    });
    let values = values.collect::<Result<_>>()?;
    if let Body::Prepared(prepared) = &statement.body
        && let Some(schema) = prepared.columns()
    {
        // Before the statement is executed.
        columns(schema, &request.result_column_format_codes)?;
    }
    let formats = request.result_column_format_codes;
    let portal = Portal { statement, values, bytes, formats, state: State::Bound };
    client.portals.insert(name, portal);
    client.wire.put(&Message::BindComplete(BindComplete::new()))
}

/// Describes a statement or a portal.
///
/// # Errors
/// 26000 and 34000 for unknown names; errors of statements that are executed to describe their results.
pub async fn describe(client: &mut Client, request: Describe) -> Result<()> {
    let name = request.name.unwrap_or_default();
    if request.target_type == b'S' {
        let statement = statement(client, Some(&name)).await?;
        let oids = statement.parameters.iter().map(|oid| oid.0).collect();
        client.wire.put(&Message::ParameterDescription(ParameterDescription::new(oids)))?;
        let described = described(client, &statement).await?;
        return put_columns(client, described.as_deref());
    }
    let Some(portal) = client.portals.get(&name) else {
        // A cursor of DECLARE is a portal, too.
        let schema = client.session.cursor_columns(&name).ok_or_else(|| no_portal(&name))?;
        let described = columns(&schema, formats_of_cursor(&schema))?;
        return put_columns(client, Some(described.as_slice()));
    };
    let statement = portal.statement.clone();
    let known = match (&portal.state, &statement.body) {
        (State::Reading(rows), _) => Some(rows.columns.clone()),
        (_, Body::Prepared(prepared)) => match prepared.columns() {
            Some(schema) => Some(columns(&statement.shown(schema), &portal.formats)?),
            None => None,
        },
        _ => None,
    };
    let may_have_rows = matches!(&statement.body, Body::Prepared(_)) && returns_rows(&statement.text);
    if known.is_none() && may_have_rows && matches!(portal.state, State::Bound) {
        // The columns are known when the statement is executed.
        if let Some(complete) = start(client, &name).await? {
            set_state(client, &name, State::Complete(complete));
        }
        let portal = client.portals.get(&name);
        let columns = portal.and_then(|portal| match &portal.state {
            State::Reading(rows) => Some(rows.columns.clone()),
            _ => None,
        });
        return put_columns(client, columns.as_deref());
    }
    put_columns(client, known.as_deref())
}

/// The columns of a statement, with values as text.
async fn described(client: &mut Client, statement: &Statement) -> Result<Option<Vec<ResultColumn>>> {
    let Body::Prepared(prepared) = &statement.body else { return Ok(None) };
    match prepared.columns() {
        Some(schema) => columns(&statement.shown(schema), &[]).map(Some),
        None if describes_itself(&statement.text) && statement.parameters.is_empty() => {
            client.start();
            match client.run(Work::Prepared(prepared, &[])).await? {
                Outcome::Rows(stream) => columns(&stream.schema(), &[]).map(Some),
                Outcome::Done { .. } => Ok(None),
            }
        }
        None => Ok(None),
    }
}

fn put_columns(client: &mut Client, columns: Option<&[ResultColumn]>) -> Result<()> {
    match columns {
        Some(columns) => client.wire.put(&description(columns)),
        None => client.wire.put(&Message::NoData(NoData::new())),
    }
}

/// Executes the statement of a portal. Returns its tag, unless it returns rows.
async fn start(client: &mut Client, name: &str) -> Result<Option<String>> {
    let Some(portal) = client.portals.get_mut(name) else { return Err(no_portal(name)) };
    let (statement, values) = (portal.statement.clone(), std::mem::take(&mut portal.values));
    portal.bytes = 0;
    let formats = std::mem::take(&mut portal.formats);
    // Also after an error.
    portal.state = State::Ended;
    client.start();
    let prepared = match &statement.body {
        Body::Prepared(prepared) => prepared,
        Body::Empty => return Ok(None),
        Body::Copy(copy) => {
            let complete = copying::run(client, copy.clone()).await?;
            set_state(client, name, State::Ended);
            return Ok(Some(complete));
        }
    };
    let outcome = client.run(Work::Prepared(prepared, &values)).await?;
    let (state, complete) = match outcome {
        Outcome::Rows(stream) => {
            let columns = columns(&statement.shown(&stream.schema()), &formats)?;
            // The client relies on the description, if there is one.
            let described = prepared.columns().map(|schema| self::columns(&statement.shown(schema), &formats));
            let described = described.transpose()?;
            if described.as_ref().is_some_and(|described| !are_alike(described, &columns)) {
                // The next preparation describes the statement anew.
                client.recent.clear();
                return Err(Failure::sql("0A000", "cached plan must not change result type"));
            }
            let columns = described.unwrap_or(columns);
            (State::Reading(Rows::new(stream, columns, client.cancels())), None)
        }
        outcome => (State::Ended, Some(tag(&outcome))),
    };
    set_state(client, name, state);
    Ok(complete)
}

fn set_state(client: &mut Client, name: &str, state: State) {
    // The end of a transaction has removed it.
    if let Some(portal) = client.portals.get_mut(name) {
        portal.state = state;
    }
}

/// Executes a portal, or continues with its rows.
///
/// # Errors
/// 34000 for an unknown portal, 55000 for one that was executed; errors of the statement.
pub async fn execute(client: &mut Client, request: Execute) -> Result<()> {
    let name = request.name.unwrap_or_default();
    let started = Instant::now();
    let Some(portal) = client.portals.get(&name) else {
        if client.session.cursor_columns(&name).is_none() {
            return Err(no_portal(&name));
        }
        let count = if request.max_rows > 0 { request.max_rows.to_string() } else { "ALL".into() };
        let text = format!("FETCH FORWARD {count} FROM \"{}\"", name.replace('"', "\"\""));
        let result = execute_cursor(client, &text, request.max_rows).await;
        record::executed(client, &text, started, &result);
        return result;
    };
    let statement = portal.statement.clone();
    let result = execute_portal(client, name, request.max_rows, &statement).await;
    record::executed(client, &statement.text, started, &result);
    result
}

/// Executes FETCH for a request that names a cursor of DECLARE as its portal. The rows are not described.
async fn execute_cursor(client: &mut Client, text: &str, max_rows: i32) -> Result<()> {
    client.start();
    let Outcome::Rows(stream) = client.run(Work::Text(text)).await? else {
        return Err(Failure::sql("XX000", "FETCH has returned no rows"));
    };
    let schema = stream.schema();
    let mut rows = Rows::new(stream, columns(&schema, formats_of_cursor(&schema))?, client.cancels());
    client.send(&mut rows, 0).await?;
    match u64::try_from(max_rows) {
        Ok(limit @ 1..) if rows.sent == limit => {
            client.wire.put(&Message::PortalSuspended(PortalSuspended::new())) //
        }
        _ => client.put_complete(rows_tag("SELECT", rows.sent)),
    }
}

async fn execute_portal(client: &mut Client, name: String, max_rows: i32, statement: &Statement) -> Result<()> {
    let Some(portal) = client.portals.get(&name) else { return Err(no_portal(&name)) };
    if matches!(statement.body, Body::Empty) {
        return client.wire.put(&Message::EmptyQueryResponse(EmptyQueryResponse::new()));
    }
    match &portal.state {
        State::Bound => {
            // One statement is a transaction of its own. Several ones before a Sync are one transaction.
            // A change whose rows are returned is committed after they are encoded.
            if client.wire.peek().await? != Some(SYNC) || returns_changes(&statement.text) {
                client.begin_implicit(&statement.text).await?;
            }
            let complete = match client.without_execution(&statement.text)? {
                Some(tag) => Some(tag),
                None => start(client, &name).await?,
            };
            if let Some(complete) = complete {
                return client.put_complete(complete);
            }
        }
        State::Reading(_) => client.start(),
        State::Read => return client.put_complete(rows_tag(&statement.text, 0)),
        State::Complete(tag) => {
            let tag = tag.clone();
            set_state(client, &name, State::Ended);
            return client.put_complete(tag);
        }
        State::Ended => return Err(Failure::sql("55000", format!("portal \"{name}\" cannot be run"))),
    }
    let Some(portal) = client.portals.get_mut(&name) else { return Err(no_portal(&name)) };
    let state = std::mem::replace(&mut portal.state, State::Read);
    let State::Reading(mut rows) = state else { return Ok(()) };
    rows.cancels = client.cancels();
    let before = rows.sent;
    let has_more = client.send(&mut rows, u64::try_from(max_rows).unwrap_or(0)).await?;
    if has_more {
        set_state(client, &name, State::Reading(rows));
        return client.wire.put(&Message::PortalSuspended(PortalSuspended::new()));
    }
    client.put_complete(rows_tag(&statement.text, rows.sent - before))
}

/// Closes a statement or a portal. Unknown names are no error.
///
/// # Errors
/// None but for bugs.
pub fn close(client: &mut Client, request: &Close) -> Result<()> {
    let name = request.name.as_deref().unwrap_or_default();
    match request.target_type {
        b'S' => {
            client.statements.remove(name);
            client.session.forget_prepared(name);
        }
        _ if client.portals.contains_key(name) => drop(client.portals.remove(name)),
        _ => client.session.close_cursor(name),
    }
    client.wire.put(&Message::CloseComplete(CloseComplete::new()))
}
