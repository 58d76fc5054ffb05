//! The ALTER statements that sqlparser does not parse.
//!
//! | statement | actions |
//! |---|---|
//! | `ALTER SEQUENCE` | options, RENAME TO, SET SCHEMA, OWNER TO |
//! | `ALTER VIEW` | RENAME TO, RENAME COLUMN, SET SCHEMA, OWNER TO |
//! | `ALTER TABLE` | SET SCHEMA, OWNER TO; ALTER COLUMN with SET, RESTART and DROP IDENTITY of an identity column |
//!
//! An action of ALTER TABLE that is parsed here stands alone in its statement.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use keyaki_store::WriteBatch;

use super::ddl::redefine;
use super::names::{new_sibling, plain_ident};
use super::roles::words::{accept, role_name};
use super::roles::{Owned, RoleName, change_owner};
use super::sequence_options::{Form, Options};
use super::split::Statement;
use super::{Outcome, SqlSession, access, notices, renames, views};
use crate::base::interrupt::Execution;
use crate::base::syntax;
use crate::catalog::{Catalog, DocumentKind, Privileges, RelationName, SequenceDef, TEMPORARY_PREFIX, Table, put};
use crate::engine::Engine;
use crate::{Error, ObjectKind, Result};

/// A parsed statement.
#[derive(Debug)]
pub(super) struct Alter {
    kind: Kind,
    if_exists: bool,
    name: ObjectName,
    action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Table,
    View,
    Sequence,
}

#[derive(Debug)]
enum Action {
    Rename(ObjectName),
    RenameColumn(Ident, Ident),
    SetSchema(Ident),
    Owner(RoleName),
    /// Options of a sequence.
    Options(Options),
    /// Options of the identity column, and `always` for SET GENERATED.
    Identity {
        column: Ident,
        always: Option<bool>,
        options: Options,
    },
    DropIdentity {
        column: Ident,
        if_exists: bool,
    },
}

impl Kind {
    fn tag(self) -> &'static str {
        match self {
            Kind::Table => "ALTER TABLE",
            Kind::View => "ALTER VIEW",
            Kind::Sequence => "ALTER SEQUENCE",
        }
    }
}

/// Parses the ALTER statements that sqlparser does not parse; `None` for other statements.
///
/// # Errors
/// `Syntax`, and others as [`Options::parse`].
pub(super) fn parse(statement: &Statement<'_>) -> Result<Option<Alter>> {
    let mut parser = statement.parser();
    parser.expect_keyword(Keyword::ALTER).map_err(syntax)?;
    let kinds = [Keyword::TABLE, Keyword::VIEW, Keyword::SEQUENCE];
    let kind = match parser.parse_one_of_keywords(&kinds) {
        Some(Keyword::TABLE) => Kind::Table,
        Some(Keyword::VIEW) => Kind::View,
        Some(_) => Kind::Sequence,
        None => return Ok(None),
    };
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let _ = kind == Kind::Table && parser.parse_keyword(Keyword::ONLY);
    let name = parser.parse_object_name(false).map_err(syntax)?;
    let action = match kind {
        _ if parser.parse_keywords(&[Keyword::SET, Keyword::SCHEMA]) => {
            Some(Action::SetSchema(parser.parse_identifier().map_err(syntax)?))
        }
        _ if accept(&mut parser, &["OWNER", "TO"]) => Some(Action::Owner(role_name(&mut parser)?)),
        Kind::Table => parse_identity(&mut parser)?,
        Kind::View | Kind::Sequence if parser.parse_keywords(&[Keyword::RENAME, Keyword::TO]) => {
            Some(Action::Rename(parser.parse_object_name(false).map_err(syntax)?))
        }
        Kind::View if parser.parse_keyword(Keyword::RENAME) => {
            let _ = parser.parse_keyword(Keyword::COLUMN);
            let old = parser.parse_identifier().map_err(syntax)?;
            parser.expect_keyword(Keyword::TO).map_err(syntax)?;
            Some(Action::RenameColumn(old, parser.parse_identifier().map_err(syntax)?))
        }
        Kind::View => None,
        Kind::Sequence => Some(parse_options(&mut parser)?),
    };
    let Some(action) = action else { return Ok(None) };
    super::expect_end(&mut parser)?;
    Ok(Some(Alter { kind, if_exists, name, action }))
}

fn parse_options(parser: &mut Parser<'_>) -> Result<Action> {
    let next = parser.peek_token();
    match next.token {
        Token::EOF => parser.expected("an option of the sequence", next).map_err(syntax),
        _ => Options::parse(parser, Form::Alter).map(Action::Options),
    }
}

/// Parses `ALTER [COLUMN] c` with actions of an identity column; `None` for others.
fn parse_identity(parser: &mut Parser<'_>) -> Result<Option<Action>> {
    if !parser.parse_keyword(Keyword::ALTER) {
        return Ok(None);
    }
    let _ = parser.parse_keyword(Keyword::COLUMN);
    let column = parser.parse_identifier().map_err(syntax)?;
    if parser.parse_keywords(&[Keyword::DROP, Keyword::IDENTITY]) {
        let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
        return Ok(Some(Action::DropIdentity { column, if_exists }));
    }
    let (mut always, mut options, mut found) = (None, Options::default(), false);
    loop {
        if !parser.parse_keyword(Keyword::SET) {
            // Only RESTART has no SET.
            let restarts = parser.peek_keyword(Keyword::RESTART) && options.parse_one(parser, Form::Column)?;
            if !restarts {
                break;
            }
        } else if parser.parse_keyword(Keyword::GENERATED) {
            let by_default = parser.parse_keywords(&[Keyword::BY, Keyword::DEFAULT]);
            if !by_default {
                parser.expect_keyword(Keyword::ALWAYS).map_err(syntax)?;
            }
            if always.replace(!by_default).is_some() {
                return Err(Error::syntax("conflicting or redundant options: GENERATED"));
            }
        } else if !options.parse_one(parser, Form::Column)? {
            return match found {
                true => parser.expected("an option of the identity column after SET", parser.peek_token()),
                // SET DEFAULT and others.
                false => return Ok(None),
            }
            .map_err(syntax);
        }
        found = true;
    }
    Ok(found.then_some(Action::Identity { column, always, options }))
}

/// Executes a statement.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, alter: Alter) -> Result<Outcome> {
    let Alter { kind, if_exists, name, action } = alter;
    let writer = session.writer(execution, kind.tag()).await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let name = session.relation(&catalog, &name)?;
    let done = Ok(Outcome::done(kind.tag()));
    match check_exists(&catalog, kind, &name) {
        Err(Error::NotFound { .. }) if if_exists => {
            notices::missing(session, "relation", &name.to_string());
            return done;
        }
        found => found?,
    }
    access::owner(session, &catalog, &name)?;
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    match action {
        Action::Rename(new) => {
            let new = new_sibling(&new, &name)?;
            access::creation(session, &catalog, &new)?;
            catalog.check_free(&new)?;
            renames::apply(&mut changed, &mut batch, &|old| (*old == name).then(|| new.clone()))?;
        }
        Action::RenameColumn(old, new) => {
            let state = super::state::StatementState::new(session, catalog.clone(), snapshot)?;
            views::rename_column(session, &state, &mut changed, &mut batch, &name, (&old, &new)).await?;
        }
        Action::SetSchema(schema) => {
            access::schema(
                &session.authority(&catalog)?,
                &catalog,
                &session.path().schema(&schema),
                Privileges::CREATE,
            )?;
            let moves = moves(&catalog, kind, &name, &session.path().schema(&schema))?;
            renames::apply(&mut changed, &mut batch, &|old| moves.get(old).cloned())?;
        }
        Action::Owner(role) => {
            change_owner(session, &catalog, &mut changed, &mut batch, &Owned::Relation(name), &role)?;
        }
        Action::Options(options) => {
            let (old, owner) = sequence(&catalog, &name)?;
            let of_column = owner.is_some();
            let new = changed_sequence(&session.engine, old, &options, of_column)?;
            match owner {
                Some((table, column)) => redefine(&mut changed, &mut batch, catalog.table(table)?, |def| {
                    let column = def.columns.iter_mut().find(|other| other.name == *column);
                    column.and_then(|column| column.identity.as_mut()).into_iter().for_each(|identity| {
                        identity.sequence = new.clone();
                    });
                })?,
                None => {
                    put(&mut batch, DocumentKind::Sequence, &name, &new)?;
                    changed.sequences.insert(name, Arc::new(new));
                }
            }
        }
        Action::Identity { column, always, options } => {
            let table = catalog.table(&name)?;
            let column = table.column(&plain_ident(&column))?;
            let Some(mut identity) = table.def.columns[column].identity.clone() else {
                return Err(no_identity(table, column));
            };
            identity.always = always.unwrap_or(identity.always);
            identity.sequence = changed_sequence(&session.engine, &identity.sequence, &options, true)?;
            redefine(&mut changed, &mut batch, table, |def| def.columns[column].identity = Some(identity))?;
        }
        Action::DropIdentity { column, if_exists } => {
            let table = catalog.table(&name)?;
            let column = table.column(&plain_ident(&column))?;
            if table.def.columns[column].identity.is_none() {
                return if if_exists { done } else { Err(no_identity(table, column)) };
            }
            redefine(&mut changed, &mut batch, table, |def| def.columns[column].identity = None)?;
        }
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    done
}

/// Checks that there is a relation of a kind.
///
/// # Errors
/// `NotFound`, `WrongObjectType`.
fn check_exists(catalog: &Catalog, kind: Kind, name: &RelationName) -> Result<()> {
    match kind {
        Kind::Table => catalog.table(name).map(|_| ()),
        Kind::View => views::existing(catalog, name).map(|_| ()),
        Kind::Sequence => sequence(catalog, name).map(|_| ()),
    }
}

/// A sequence, with its table and column if it is that of an identity column.
///
/// # Errors
/// `NotFound`, `WrongObjectType`.
fn sequence<'a>(
    catalog: &'a Catalog,
    name: &RelationName,
) -> Result<(&'a SequenceDef, Option<(&'a RelationName, &'a str)>)> {
    catalog.sequences().find(|(def, _)| def.name == *name).ok_or_else(|| super::sequences::missing(catalog, name))
}

/// Changes the options of a sequence. With RESTART, it gets a new position.
///
/// # Errors
/// `InvalidDefinition`, `Unsupported`, errors of the store.
fn changed_sequence(engine: &Engine, old: &SequenceDef, options: &Options, of_column: bool) -> Result<SequenceDef> {
    if of_column && options.has_owner() {
        return Err(Error::Unsupported(format!(
            "changing the owner of sequence \"{}\" of an identity column",
            old.name
        )));
    }
    if of_column && options.has_type() {
        let problem = format!(
            "AS for sequence \"{}\" of an identity column (it has the type of the column: use ALTER TABLE … ALTER COLUMN \
             … TYPE)",
            old.name
        );
        return Err(Error::Unsupported(problem));
    }
    let new = options.change(old)?;
    if !options.restarts() {
        super::sequences::check_position(engine, old, &new)?;
    }
    Ok(new)
}

fn no_identity(table: &Table, column: usize) -> Error {
    let column = &table.def.columns[column].name;
    let problem = format!("column \"{column}\" of relation \"{}\" is not an identity column", table.def.name);
    Error::PrerequisiteState(problem)
}

/// The new names of the relations that move into a schema: an object, and the sequences of its identity columns.
///
/// # Errors
/// `NotFound` for the schema, `AlreadyExists` for a name there, `Unsupported` for temporary schemas and sequences of identity
/// columns.
fn moves(
    catalog: &Catalog,
    kind: Kind,
    name: &RelationName,
    schema: &str,
) -> Result<BTreeMap<RelationName, RelationName>> {
    if !catalog.has_schema(schema) {
        return Err(Error::NotFound { kind: ObjectKind::Schema, name: schema.into() });
    }
    if name.is_temporary() || schema.starts_with(TEMPORARY_PREFIX) {
        return Err(Error::Unsupported("moving objects into or out of the schemas of temporary objects".into()));
    }
    if *name.schema == *schema {
        return Ok(BTreeMap::new());
    }
    let mut moves = BTreeMap::new();
    let mut add = |old: &RelationName| -> Result<()> {
        let new = RelationName::new(schema, old.name.clone());
        catalog.check_free(&new)?;
        moves.insert(old.clone(), new);
        Ok(())
    };
    add(name)?;
    if kind == Kind::Sequence
        && let (_, Some((table, column))) = sequence(catalog, name)?
    {
        let problem =
            format!("moving sequence \"{name}\" without its table (column \"{column}\" of \"{table}\" owns it)");
        return Err(Error::Unsupported(problem));
    }
    if kind == Kind::Table {
        let def = &catalog.table(name)?.def;
        let identities = def.columns.iter().filter_map(|column| column.identity.as_ref());
        identities.map(|identity| &identity.sequence.name).try_for_each(&mut add)?;
        let indexes = def.indexes.iter().map(|index| RelationName::new(schema, index.name.clone()));
        indexes.into_iter().try_for_each(|index| catalog.check_free(&index))?;
    }
    Ok(moves)
}
