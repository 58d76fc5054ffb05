//! Options of the functions that read files, given as `name => value` or `name = value`.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, FunctionArg, FunctionArgExpr, UnaryOperator, Value};

use crate::base::syntax;
use crate::catalog::{SqlType, types};
use crate::sql::copy::{CopyOptions, Format, OptionValue, boolean, invalid, once, unknown};
use crate::sql::split;
use crate::{Error, Result};

/// Options of all formats.
const OF_ALL: [&str; 2] = ["union_by_name", "hive_partitioning"];
/// Further options of JSON files.
const OF_JSON: [&str; 4] = ["columns", "compression", "filename", "sample_size"];
/// Further options of CSV files. Names behind the first 23 are synonyms.
const OF_CSV: [&str; 28] = [
    "header",
    "delim",
    "quote",
    "escape",
    "nullstr",
    "types",
    "columns",
    "names",
    "all_varchar",
    "sample_size",
    "ignore_errors",
    "skip",
    "comment",
    "dateformat",
    "timestampformat",
    "allow_quoted_nulls",
    "filename",
    "compression",
    "encoding",
    "auto_detect",
    "sep",
    "delimiter",
    "dtypes",
    "column_types",
    "column_names",
    "null",
    "date_format",
    "timestamp_format",
];
/// Records from which the types of a text file's columns are inferred.
const SAMPLE: usize = 20_480;

/// Options of a function.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReadOptions {
    pub copy: CopyOptions,
    /// Types of columns by name, or by position.
    pub types: Option<Types>,
    /// Names and types of all columns.
    pub columns: Option<Vec<(String, SqlType)>>,
    /// Names of the first columns.
    pub names: Option<Vec<String>>,
    pub all_varchar: Option<bool>,
    sample_size: Option<usize>,
    pub union_by_name: Option<bool>,
    /// The values in the names of folders are columns.
    pub hive_partitioning: Option<bool>,
    /// A further column has the name of the file.
    pub filename: Option<bool>,
    /// Types are inferred.
    auto_detect: Option<bool>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Types {
    Named(Vec<(String, SqlType)>),
    Positional(Vec<SqlType>),
}

impl ReadOptions {
    pub fn of(format: Option<Format>) -> Self {
        ReadOptions { copy: CopyOptions { format, ..CopyOptions::default() }, ..ReadOptions::default() }
    }

    /// Records from which types are inferred.
    pub fn sample_size(&self) -> usize {
        self.sample_size.unwrap_or(SAMPLE)
    }

    /// All columns are texts, unless their types are given.
    pub fn are_texts(&self) -> bool {
        self.all_varchar.unwrap_or(false) || self.auto_detect == Some(false)
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `Syntax` for an argument of another form, and unknown and repeated options; `InvalidParameter` and `Unsupported` for
    /// values.
    pub fn set(&mut self, function: &str, arg: &FunctionArg) -> Result<()> {
        let wrong = || Error::syntax(format!("arguments of {function} have the form name => value, not {arg}"));
        let (name, value) = match arg {
            FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } => (name, value),
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg: FunctionArgExpr::Expr(value), .. } => {
                (name, value)
            }
            FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp { left, op: BinaryOperator::Eq, right })) => {
                match left.as_ref() {
                    Expr::Identifier(name) => (name, right.as_ref()),
                    _ => return Err(wrong()),
                }
            }
            _ => return Err(wrong()),
        };
        let known: Vec<&str> = match self.copy.format {
            Some(Format::Csv) => [&OF_CSV[..], &OF_ALL].concat(),
            Some(Format::Json) => [&OF_JSON[..], &OF_ALL].concat(),
            _ => OF_ALL.to_vec(),
        };
        let lower = name.value.to_ascii_lowercase();
        if !known.contains(&lower.as_str()) {
            return Err(unknown(&name.value, function, &known));
        }
        self.set_known(&lower, option_value(value).ok_or_else(wrong)?)
    }

    fn set_known(&mut self, name: &str, value: OptionValue) -> Result<()> {
        let flag = |value: OptionValue| boolean(name, &value.text(name)?);
        match name {
            "types" | "dtypes" | "column_types" => once(&mut self.types, name, types_of(name, parsed(value)?)?),
            "columns" => match parsed(value)? {
                OptionValue::Map(columns) if !columns.is_empty() => {
                    once(&mut self.columns, name, named_types(name, columns)?)
                }
                _ => Err(Error::syntax("option columns has the form {'name': 'TYPE', …}")),
            },
            "names" | "column_names" => once(&mut self.names, name, parsed(value)?.texts(name)?),
            "all_varchar" => once(&mut self.all_varchar, name, flag(value)?),
            "union_by_name" => once(&mut self.union_by_name, name, flag(value)?),
            "hive_partitioning" => once(&mut self.hive_partitioning, name, flag(value)?),
            "filename" => once(&mut self.filename, name, flag(value)?),
            "auto_detect" => once(&mut self.auto_detect, name, flag(value)?),
            "sample_size" => once(&mut self.sample_size, name, sample_size(&value.text(name)?)?),
            _ => self.copy.set_known(&name.to_ascii_uppercase(), Some(value)).map(drop),
        }
    }
}

/// The value of an expression of literals; `None` for other expressions.
fn option_value(expr: &Expr) -> Option<OptionValue> {
    Some(match expr {
        Expr::Value(value) => OptionValue::Text(match &value.value {
            Value::SingleQuotedString(text) => text.clone(),
            Value::Boolean(value) => value.to_string(),
            Value::Number(digits, _) => digits.clone(),
            _ => return None,
        }),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match option_value(expr)? {
            OptionValue::Text(digits) => OptionValue::Text(format!("-{digits}")),
            _ => return None,
        },
        Expr::Array(list) => OptionValue::List(list.elem.iter().map(option_value).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// Parses a text with a list or map, which the parser of statements does not have, or reads as a text.
fn parsed(value: OptionValue) -> Result<OptionValue> {
    match value {
        OptionValue::Text(text) if text.trim_start().starts_with(['{', '[']) => OptionValue::parse(&text),
        other => Ok(other),
    }
}

fn types_of(name: &str, value: OptionValue) -> Result<Types> {
    Ok(match value {
        OptionValue::Map(columns) => Types::Named(named_types(name, columns)?),
        list => Types::Positional(list.texts(name)?.iter().map(|text| column_type(text)).collect::<Result<_>>()?),
    })
}

fn named_types(name: &str, columns: Vec<(String, OptionValue)>) -> Result<Vec<(String, SqlType)>> {
    let columns = columns.into_iter().map(|(column, ty)| Ok((column, column_type(&ty.text(name)?)?)));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    match columns.iter().enumerate().find(|(i, (column, _))| columns[..*i].iter().any(|(other, _)| other == column)) {
        Some((_, (twice, _))) => Err(Error::DuplicateColumn(twice.clone())),
        None => Ok(columns),
    }
}

/// # Errors
/// `Syntax`; `Unsupported` for types whose values need further checks.
fn column_type(text: &str) -> Result<SqlType> {
    let mut parser = split::single(text)?.parser();
    let ty = types::from_sql(&parser.parse_data_type().map_err(syntax)?)?;
    if parser.peek_token_ref().token != datafusion::sql::sqlparser::tokenizer::Token::EOF {
        return Err(Error::syntax(format!("\"{text}\" is not the name of a type")));
    }
    match ty.max_chars.is_some() || ty.json.is_some() {
        true => Err(Error::Unsupported(format!("type {text} for a column of a file (use TEXT and a cast)"))),
        false => Ok(ty),
    }
}

/// A number of records; -1 stands for all.
fn sample_size(text: &str) -> Result<usize> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(count @ 1..) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        _ => Err(invalid("sample_size", text, "a number of records, or -1 for all")),
    }
}
