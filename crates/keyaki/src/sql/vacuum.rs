//! `VACUUM [FULL] [VERBOSE] [ANALYZE] [t, …]`: moves all changes to the leaves of tables and indexes, and returns free
//! space to the file system.
//!
//! The statement runs beside readers and writers, in small steps. It always shortens the data file, as VACUUM FULL of
//! other systems does. A role vacuums the tables that it owns; a superuser without names of tables also the trees of none.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use keyaki_store::{Store, TreeId};

use super::check::{over_pages, table_of};
use super::transaction::check_outside;
use super::{Outcome, SqlSession, access, analyze, syntax};
use crate::base::interrupt::Execution;
use crate::catalog::Table;
use crate::{Error, Result};

const OPTIONS: [Keyword; 4] = [Keyword::FULL, Keyword::FREEZE, Keyword::VERBOSE, Keyword::ANALYZE];

/// A parsed statement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Vacuum {
    /// Without names, all tables.
    tables: Vec<ObjectName>,
    is_verbose: bool,
    /// Statistics are collected, too.
    analyzes: bool,
}

/// Parses a statement whose first word is VACUUM.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Vacuum> {
    parser.next_token();
    let mut vacuum = Vacuum::default();
    if parser.consume_token(&Token::LParen) {
        loop {
            let option = parser.expect_one_of_keywords(&OPTIONS).map_err(syntax)?;
            let is_off = parser.parse_one_of_keywords(&[Keyword::TRUE, Keyword::FALSE]) == Some(Keyword::FALSE);
            vacuum.set(option, !is_off);
            if !parser.consume_token(&Token::Comma) {
                break;
            }
        }
        parser.expect_token(&Token::RParen).map_err(syntax)?;
    } else {
        while let Some(option) = parser.parse_one_of_keywords(&OPTIONS) {
            vacuum.set(option, true);
        }
    }
    if parser.peek_keyword(Keyword::INTO) {
        return Err(Error::Unsupported("VACUUM INTO (use BACKUP DATABASE TO 'directory')".into()));
    }
    if parser.peek_token().token != Token::EOF {
        vacuum.tables = parser.parse_comma_separated(|parser| parser.parse_object_name(false)).map_err(syntax)?;
    }
    Ok(vacuum)
}

impl Vacuum {
    fn set(&mut self, option: Keyword, value: bool) {
        match option {
            Keyword::VERBOSE => self.is_verbose = value,
            Keyword::ANALYZE => self.analyzes = value,
            // Every VACUUM is a full one, and there are no transaction numbers to freeze.
            _ => {}
        }
    }
}

/// Executes the statement. With VERBOSE, the result is one row: the length of the data file before and afterwards.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, vacuum: Vacuum) -> Result<Outcome> {
    check_outside(session, "VACUUM")?;
    session.engine.check_read_write("VACUUM")?;
    let (catalog, _) = session.moment()?;
    let authority = session.authority(&catalog)?;
    let mut tables = vacuum.tables.iter().map(|name| table_of(session, name)).collect::<Result<Vec<_>>>()?;
    tables.iter().try_for_each(|table| access::owner(session, &catalog, &table.def.name))?;
    let is_whole = tables.is_empty() && authority.is_all();
    if tables.is_empty() {
        tables.extend(catalog.tables.values().filter(|table| authority.owns(&table.def.access)).cloned());
    }
    let trees: Option<HashSet<TreeId>> = (!is_whole).then(|| {
        let own = |table: &Arc<Table>| {
            let indexes: Vec<TreeId> = table.def.indexes.iter().map(|index| index.tree).collect();
            [table.def.tree].into_iter().chain(indexes)
        };
        tables.iter().flat_map(own).collect()
    });
    let work = move |store: &Store, progress: &(dyn Fn(u64, u64) -> bool + Sync)| {
        store.vacuum(|tree| trees.as_ref().is_none_or(|trees| trees.contains(&tree)), progress)
    };
    let vacuumed = over_pages(session, execution, "compacting", work).await?;
    session.progress.lock().finish();
    if !vacuumed.is_complete {
        execution.decision().check()?;
        return Err(Error::Cancelled);
    }
    if vacuum.analyzes {
        match vacuum.tables.as_slice() {
            [] => drop(analyze::run(session, execution, None).await?),
            names => {
                for name in names {
                    analyze::run(session, execution, Some(name)).await?;
                }
            }
        }
    }
    if !vacuum.is_verbose {
        return Ok(Outcome::done("VACUUM"));
    }
    let bytes = |bytes: u64| Arc::new(Int64Array::from(vec![bytes as i64])) as ArrayRef;
    Outcome::of_columns([("bytes_before", bytes(vacuumed.bytes_before)), ("bytes_after", bytes(vacuumed.bytes_after))])
}
