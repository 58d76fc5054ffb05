//! Files as tables of a query: `FROM 'a.parquet'`, and the functions `read_parquet`, `read_csv` and `read_json`.
//!
//! [`take`] replaces them in a statement by names. Each name is registered as a table of the statement, which DataFusion
//! reads. Formats, options and patterns are those of COPY FROM. The columns and their types are inferred when the
//! statement is planned: no state is kept between statements.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart, TableAlias, TableFactor,
    Value, Visit, VisitMut, Visitor, VisitorMut,
};
use futures::{StreamExt, TryStreamExt};

use super::copy::{CopyOptions, Dialect, Format, expand, first_record, is_json_array};
use super::file_access::FileAccess;
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, Result};

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
/// Options of text files.
const OPTIONS: [&str; 6] = ["HEADER", "DELIM", "DELIMITER", "SEP", "QUOTE", "ESCAPE"];
/// Records from which the types of a text file's columns are inferred.
const INFERRED_RECORDS: usize = 20_480;
/// Files whose columns are inferred at a time.
const FILES_AT_A_TIME: usize = 16;

/// Files that stand for a table.
#[derive(Debug)]
pub(super) struct FileTable {
    /// The name in the statement.
    pub name: String,
    /// Paths or patterns.
    paths: Vec<String>,
    options: CopyOptions,
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

/// The files that a table factor names: the table's name in the query, the paths, and the options.
fn source(factor: &TableFactor) -> Result<Option<(String, Vec<String>, CopyOptions)>> {
    let TableFactor::Table { name, args, .. } = factor else { return Ok(None) };
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return Ok(None) };
    match args {
        None if name.quote_style == Some('\'') => {
            let stem = Path::new(&name.value).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            Ok(Some((stem.unwrap_or_default(), vec![name.value.clone()], CopyOptions::default())))
        }
        Some(args) if name.quote_style.is_none() => {
            let function = name.value.to_ascii_lowercase();
            let Some((_, format)) = FUNCTIONS.iter().find(|(known, _)| *known == function) else { return Ok(None) };
            let mut options = CopyOptions { format: Some(*format), ..CopyOptions::default() };
            let Some((FunctionArg::Unnamed(FunctionArgExpr::Expr(files)), others)) = args.args.split_first() else {
                return Err(Error::syntax(format!("{function} needs the name of a file, or a list of names")));
            };
            let paths = paths(&function, files)?;
            others.iter().try_for_each(|arg| set_option(&mut options, &function, arg))?;
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

/// Sets an option given as `name => value` or `name = value`.
fn set_option(options: &mut CopyOptions, function: &str, arg: &FunctionArg) -> Result<()> {
    let wrong = || Error::syntax(format!("arguments of {function} have the form name => value, not {arg}"));
    let (name, value) = match arg {
        FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } => (name, value),
        FunctionArg::ExprNamed { name: Expr::Identifier(name), arg: FunctionArgExpr::Expr(value), .. } => (name, value),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp { left, op: BinaryOperator::Eq, right })) => {
            match left.as_ref() {
                Expr::Identifier(name) => (name, right.as_ref()),
                _ => return Err(wrong()),
            }
        }
        _ => return Err(wrong()),
    };
    let upper = name.value.to_ascii_uppercase();
    if !OPTIONS.contains(&upper.as_str()) {
        let known = OPTIONS.map(str::to_ascii_lowercase).join(", ");
        return Err(Error::syntax(format!("option {name} not recognized by {function} (it has {known})")));
    }
    let Expr::Value(value) = value else { return Err(wrong()) };
    let text = match &value.value {
        Value::SingleQuotedString(text) => text.clone(),
        Value::Boolean(value) => value.to_string(),
        Value::Number(digits, _) => digits.clone(),
        _ => return Err(wrong()),
    };
    options.set(&upper, Some(text))
}

/// The table of the files.
///
/// # Errors
/// `FileAccess`; `Io` if a file does not exist; `Syntax` and `Unsupported` for formats and options; `Context` with the file if its
/// columns cannot be inferred; `InvalidFile` if the columns of the files differ.
pub(super) async fn provider(
    table: &FileTable,
    state: &SessionState,
    access: &FileAccess,
) -> Result<Arc<dyn TableProvider>> {
    let mut files = Vec::new();
    for path in &table.paths {
        files.extend(expand(path, access)?);
    }
    if table.options.lacks_format(&files[0]) {
        let file = files[0].display();
        let message =
            format!("the name of \"{file}\" has no known extension (use read_parquet, read_csv or read_json)");
        return Err(Error::syntax(message));
    }
    let (format, dialect) = table.options.resolve(&files[0], false)?;
    for file in &files[1..] {
        if table.options.resolve(file, false)? != (format, dialect.clone()) {
            let (first, file) = (files[0].display(), file.display());
            return Err(Error::Unsupported(format!("files of different formats: \"{first}\" and \"{file}\"")));
        }
    }
    let options = ListingOptions::new(file_format(format, &dialect, table.options.header, &files)?);
    let options = options.with_file_extension("");
    let urls = files.iter().map(|file| url(file)).collect::<Result<Vec<_>>>()?;
    let inferred = futures::stream::iter(urls.clone()).map(|url| inferred_schema(&options, state, url));
    let schemas: Vec<SchemaRef> = inferred.buffered(FILES_AT_A_TIME).try_collect().await?;
    let schema = merged(format, &files, &schemas)?;
    if schema.fields().is_empty() {
        return Err(Error::InvalidFile(format!("\"{}\" has no columns", files[0].display())));
    }
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options).with_schema(schema);
    Ok(Arc::new(ListingTable::try_new(config)?))
}

async fn inferred_schema(options: &ListingOptions, state: &SessionState, url: ListingTableUrl) -> Result<SchemaRef> {
    let schema = options.infer_schema(state, &url).await;
    schema.map_err(|error| Error::from(error).within(format!("\"/{}\"", url.prefix())))
}

fn file_format(
    format: Format,
    dialect: &Dialect,
    header: Option<bool>,
    files: &[PathBuf],
) -> Result<Arc<dyn FileFormat>> {
    Ok(match format {
        Format::Parquet => Arc::new(ParquetFormat::default()),
        Format::Csv => {
            let headers = files.iter().map(|file| has_header(file, dialect)).collect::<Result<Vec<_>>>()?;
            let header = header.unwrap_or_else(|| headers.iter().all(|header| *header));
            let mut csv = CsvFormat::default()
                .with_has_header(header)
                .with_delimiter(dialect.delimiter)
                .with_schema_infer_max_rec(INFERRED_RECORDS)
                // A record of several lines cannot be found in the middle of a file.
                .with_newlines_in_values(true);
            if let Some(quote) = dialect.quote {
                csv = csv.with_quote(quote).with_escape(Some(dialect.escape).filter(|escape| *escape != quote));
            }
            Arc::new(csv)
        }
        Format::Json => {
            let is_array = files.iter().map(|file| is_json_array(file)).collect::<Result<Vec<_>>>()?;
            if is_array.iter().any(|other| *other != is_array[0]) {
                return Err(Error::Unsupported("JSON files with arrays and with lines together".into()));
            }
            let json = JsonFormat::default().with_newline_delimited(!is_array[0]);
            Arc::new(json.with_schema_infer_max_rec(INFERRED_RECORDS))
        }
        Format::Tbl => return Err(Error::Unsupported("tbl files in a query (use COPY … FROM)".into())),
    })
}

/// True if the first record of a file consists of different names.
fn has_header(file: &Path, dialect: &Dialect) -> Result<bool> {
    let fields = first_record(file, dialect)?;
    let is_name =
        |text: &String| !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let are_distinct = (1..fields.len()).all(|i| !fields[..i].contains(&fields[i]));
    Ok(!fields.is_empty() && are_distinct && fields.iter().all(is_name))
}

/// The URL of a file, whose name may contain any characters.
fn url(file: &Path) -> Result<ListingTableUrl> {
    let absolute = std::path::absolute(file).map_err(|error| Error::io("open", file, error))?;
    let Some(path) = absolute.to_str() else {
        return Err(Error::Unsupported(format!("\"{}\": a file name that is not UTF-8", file.display())));
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let encoded = path.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    Ok(ListingTableUrl::parse(format!("file://{}", encoded.collect::<String>()))?)
}

/// The columns of all files. Those of text files have the same names in the same order; those of others are found by name.
fn merged(format: Format, files: &[PathBuf], schemas: &[SchemaRef]) -> Result<SchemaRef> {
    let differ = |file: &Path, what: &str| {
        Error::InvalidFile(format!("{what} of \"{}\" and \"{}\" differ", files[0].display(), file.display()))
    };
    let mut fields: Vec<Field> = schemas[0].fields().iter().map(|field| field.as_ref().clone()).collect();
    for (schema, file) in schemas.iter().zip(files).skip(1) {
        let names = |schema: &Schema| -> Vec<String> { schema.fields().iter().map(|f| f.name().clone()).collect() };
        if format == Format::Csv && names(schema) != names(&schemas[0]) {
            return Err(differ(file, "the columns"));
        }
        for other in schema.fields() {
            let Some(field) = fields.iter_mut().find(|field| field.name() == other.name()) else {
                fields.push(other.as_ref().clone());
                continue;
            };
            let ty = common_type(format, field.data_type(), other.data_type());
            let ty = ty.ok_or_else(|| differ(file, &format!("the types of column \"{}\"", field.name())))?;
            field.set_data_type(ty);
        }
    }
    let fields = fields.into_iter().map(|field| {
        let ty = match field.data_type() {
            // The types of columns.
            DataType::Timestamp(_, zone) if format != Format::Parquet => {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            DataType::Utf8 => DataType::Utf8View,
            // A column without any value.
            DataType::Null => DataType::Utf8View,
            ty => ty.clone(),
        };
        // A file may lack the column.
        field.with_data_type(ty).with_nullable(true)
    });
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// A type for the values of both types. Texts that are inferred as different types are texts.
fn common_type(format: Format, a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Float64, Int64, Null, Utf8};
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (Null, other) | (other, Null) => Some(other.clone()),
        _ if format == Format::Parquet => None,
        (Int64, Float64) | (Float64, Int64) => Some(Float64),
        (DataType::Timestamp(..), DataType::Timestamp(..)) => Some(DataType::Timestamp(TimeUnit::Microsecond, None)),
        (a, b) if a.is_nested() || b.is_nested() => None,
        _ => Some(Utf8),
    }
}
