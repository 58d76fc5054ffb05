//! Files as tables of a query: `FROM 'a.parquet'`, and the functions `read_parquet`, `read_csv` and `read_json`.
//!
//! [`take`] replaces them in a statement by names. Each name is registered as a table of the statement. DataFusion reads Parquet
//! files; CSV and JSON files are read by the readers of COPY FROM ([`text`]), whose formats and patterns are the same, too. Values in
//! the names of folders are columns ([`partitions`]).
//! The columns and their types are inferred when the statement is planned: no state is kept between statements.

mod columns;
mod guess;
mod objects;
mod options;
mod partitions;
mod provider;
mod scan;
mod text;

use std::ops::ControlFlow;
use std::path::Path;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart, TableAlias, TableFactor, Value, Visit,
    VisitMut, Visitor, VisitorMut,
};

use super::copy::{Compression, CopyOptions, Format};
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, Result};
use options::ReadOptions;

pub(super) use provider::{Reading, provider};

/// Prefix of the names that stand for files in a statement.
const PREFIX: &str = "__file_";
/// The functions, and their formats.
const FUNCTIONS: [(&str, Format); 8] = [
    ("read_parquet", Format::Parquet),
    ("parquet_scan", Format::Parquet),
    ("read_csv", Format::Csv),
    ("read_csv_auto", Format::Csv),
    ("read_json", Format::Json),
    ("read_json_auto", Format::Json),
    ("read_ndjson", Format::Json),
    ("read_ndjson_auto", Format::Json),
];

/// Files that stand for a table.
#[derive(Debug)]
pub(super) struct FileTable {
    /// The name in the statement.
    pub name: String,
    /// Paths or patterns.
    paths: Vec<String>,
    options: ReadOptions,
}

/// Replaces the files of a statement by names, which contain numbers from `first` on.
///
/// # Errors
/// `Syntax` for arguments of another form.
pub(super) fn take(statement: &mut impl VisitMut, first: usize) -> Result<Vec<FileTable>> {
    let mut take = Take { first, found: Vec::new() };
    match walk_mut(statement, &mut take) {
        ControlFlow::Continue(()) => Ok(take.found),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Refuses files in the query of a view, which would become invalid without a change of the database.
///
/// # Errors
/// `Unsupported`.
pub(super) fn refuse(query: &impl Visit) -> Result<()> {
    struct Find;
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            match source(factor) {
                Ok(None) => ControlFlow::Continue(()),
                Ok(Some(_)) | Err(_) => ControlFlow::Break(()),
            }
        }
    }
    match walk(query, &mut Find) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Unsupported("files in a view (use CREATE TABLE … AS)".into())),
    }
}

struct Take {
    first: usize,
    found: Vec<FileTable>,
}

impl VisitorMut for Take {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let (shown, paths, options) = match source(factor) {
            Ok(None) => return ControlFlow::Continue(()),
            Ok(Some(source)) => source,
            Err(error) => return ControlFlow::Break(error),
        };
        let number = self.first + self.found.len();
        if let TableFactor::Table { name, alias, args, .. } = factor {
            let table = format!("{PREFIX}{number}");
            *name = ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', table.clone()))]);
            *args = None;
            let shown = Ident::with_quote('"', shown);
            alias.get_or_insert_with(|| TableAlias { explicit: true, name: shown, columns: Vec::new(), at: None });
            self.found.push(FileTable { name: table, paths, options });
        }
        ControlFlow::Continue(())
    }
}

/// The name of a file as a table: without extensions.
fn shown_name(path: &Path) -> String {
    let stem = match CopyOptions::default().compression(path) {
        Compression::None => path.file_stem(),
        _ => path.file_stem().and_then(|stem| Path::new(stem).file_stem()),
    };
    stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The files that a table factor names: the table's name in the query, the paths, and the options.
fn source(factor: &TableFactor) -> Result<Option<(String, Vec<String>, ReadOptions)>> {
    let TableFactor::Table { name, args, .. } = factor else { return Ok(None) };
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return Ok(None) };
    match args {
        None if name.quote_style == Some('\'') => {
            Ok(Some((shown_name(Path::new(&name.value)), vec![name.value.clone()], ReadOptions::default())))
        }
        Some(args) if name.quote_style.is_none() => {
            let function = name.value.to_ascii_lowercase();
            let Some((_, format)) = FUNCTIONS.iter().find(|(known, _)| *known == function) else { return Ok(None) };
            let mut options = ReadOptions::of(Some(*format));
            let Some((FunctionArg::Unnamed(FunctionArgExpr::Expr(files)), others)) = args.args.split_first() else {
                return Err(Error::syntax(format!("{function} needs the name of a file, or a list of names")));
            };
            let paths = paths(&function, files)?;
            others.iter().try_for_each(|arg| options.set(&function, arg))?;
            Ok(Some((function, paths, options)))
        }
        _ => Ok(None),
    }
}

/// The first argument of a function: a text, or a list of texts.
fn paths(function: &str, files: &Expr) -> Result<Vec<String>> {
    let text = |expr: &Expr| match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(path) => Some(path.clone()),
            _ => None,
        },
        _ => None,
    };
    let paths = match files {
        Expr::Array(list) => list.elem.iter().map(text).collect::<Option<Vec<_>>>(),
        one => text(one).map(|path| vec![path]),
    };
    let paths = paths.filter(|paths| !paths.is_empty());
    paths.ok_or_else(|| Error::syntax(format!("{function} needs the name of a file, or a list of names, not {files}")))
}
