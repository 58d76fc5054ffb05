//! The columns of CSV files: their names and types, from the first records of each file and from options.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::Array;
use futures::{StreamExt, TryStreamExt};
use keyaki_store::ColumnType;

use super::guess::Guess;
use super::options::{ReadOptions, Types};
use crate::catalog::SqlType;
use crate::sql::copy::{DelimitedReader, Dialect, FileRows, Source};
use crate::sql::files::Files;
use crate::write::text::TimeFormats;
use crate::{Error, Result};

/// Files whose columns are inferred at a time.
const FILES_AT_A_TIME: usize = 16;
/// Records from which the delimiter is inferred.
const DELIMITER_RECORDS: usize = 100;
/// Delimiters that are recognised.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// The columns of the files of a table.
#[derive(Debug)]
pub(super) struct Columns {
    pub names: Vec<String>,
    pub types: Vec<SqlType>,
    /// The types that were inferred.
    pub are_inferred: Vec<bool>,
    /// The first record of each file is a header.
    pub header: bool,
    pub files: Vec<FileColumns>,
    /// Estimated number of rows of all files, if it is known.
    pub rows: Option<f64>,
}

/// The columns of one file.
#[derive(Debug)]
pub(super) struct FileColumns {
    pub path: PathBuf,
    /// Fields of each record; 0 for an empty file.
    pub width: usize,
    /// The field of each column of the table; `None` if the file does not have the column.
    pub fields: Vec<Option<usize>>,
}

/// How files are read for their columns.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub options: ReadOptions,
    pub dialect: Dialect,
    pub formats: TimeFormats,
    pub files: Files,
}

/// The first records of a file.
struct Sample {
    path: PathBuf,
    /// The first record.
    first: Vec<Option<String>>,
    /// The types of the values of the other records.
    rest: Vec<Guess>,
    rows: Option<f64>,
}

/// Ends a thread when the statement that waits for it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Setup {
    fn reader(&self, path: &Path) -> Result<DelimitedReader> {
        let source = Source::open(path, &self.files, self.options.copy.compression(path))?;
        DelimitedReader::open(source, self.dialect.clone())
    }

    /// The delimiter with which all of the first records have the same number of fields.
    fn delimiter(&self, path: &Path) -> Result<u8> {
        let mut best = (self.dialect.delimiter, 1);
        for delimiter in DELIMITERS {
            let dialect = Dialect { delimiter, ..self.dialect.clone() };
            if Some(delimiter) == dialect.quote || Some(delimiter) == dialect.comment {
                continue;
            }
            let other = Setup { dialect, ..self.clone() };
            let widths = other.reader(path)?.widths(DELIMITER_RECORDS)?;
            let width = widths.first().copied().unwrap_or(0);
            if widths.iter().all(|other| *other == width) && width > best.1 {
                best = (delimiter, width);
            }
            if best.0 == DELIMITERS[0] && best.1 > 1 {
                break;
            }
        }
        Ok(best.0)
    }

    fn sample(&self, path: &Path, stop: &AtomicBool) -> Result<Sample> {
        let mut reader = self.reader(path)?;
        let first = reader.peek()?.unwrap_or_default();
        let mut sample = Sample { path: path.to_path_buf(), rest: vec![Guess::Null; first.len()], first, rows: None };
        if sample.first.is_empty() {
            return Ok(sample);
        }
        reader.skip_header()?;
        let needs_types = !self.options.are_texts() && self.options.columns.is_none();
        let mut left = if needs_types { self.options.sample_size() } else { 1 };
        let (mut records, mut bytes) = (1, reader.progress().1);
        while left > 0 && !stop.load(Ordering::Relaxed) {
            let Some(FileRows::Text(columns)) = reader.next(sample.first.len())? else { break };
            (records, bytes) = reader.progress();
            for (guess, column) in sample.rest.iter_mut().zip(&columns) {
                for text in column.iter().take(left).flatten() {
                    if *guess == Guess::Text {
                        break;
                    }
                    *guess = guess.join(Guess::of(text, &self.formats));
                }
            }
            left = left.saturating_sub(columns.first().map_or(0, Array::len));
        }
        if !reader.is_compressed()
            && let Ok(metadata) = path.metadata()
        {
            sample.rows = Some(metadata.len() as f64 * records as f64 / bytes.max(1) as f64);
        }
        Ok(sample)
    }
}

impl Sample {
    /// True if the first record is a header: it has no numbers or times, and it has different names, or columns whose values
    /// are no texts.
    fn has_header(&self, formats: &TimeFormats, given: Option<&Vec<String>>) -> bool {
        let names: Vec<&str> = self.first.iter().map(|name| name.as_deref().unwrap_or_default()).collect();
        let are_texts = names.iter().all(|name| name.is_empty() || Guess::of(name, formats) == Guess::Text);
        let are_names = names.iter().enumerate().all(|(i, name)| !name.is_empty() && !names[..i].contains(name));
        let is_typed = |(name, guess): (&&str, &Guess)| !name.is_empty() && !matches!(guess, Guess::Null | Guess::Text);
        // With names for all columns, the first record needs another reason to be one.
        let are_names = match given.filter(|given| given.len() >= names.len()) {
            Some(given) => names.iter().zip(given).all(|(name, given)| name.eq_ignore_ascii_case(given)),
            None => are_names,
        };
        are_texts && (are_names || names.iter().zip(&self.rest).any(is_typed))
    }

    /// The names of the columns. Columns without a name get their number, and equal names a number as suffix.
    fn names(&self, header: bool) -> Vec<String> {
        let mut taken: HashSet<String> = self.first.iter().flatten().filter(|_| header).cloned().collect();
        let mut used = HashSet::new();
        let name = |(i, name): (usize, &Option<String>)| {
            let given = name.clone().filter(|name| header && !name.is_empty());
            let given = given.unwrap_or_else(|| format!("column_{}", i + 1));
            let mut name = given.clone();
            let mut suffix = 0;
            while !used.insert(name.clone()) {
                suffix += 1;
                let other = format!("{given}_{suffix}");
                if taken.insert(other.clone()) {
                    name = other;
                }
            }
            name
        };
        self.first.iter().enumerate().map(name).collect()
    }

    fn guess(&self, column: usize, header: bool, formats: &TimeFormats) -> Guess {
        let first = self.first[column].as_deref().filter(|_| !header);
        self.rest[column].join(first.map_or(Guess::Null, |text| Guess::of(text, formats)))
    }
}

/// The columns of the files, and the dialect with the delimiter that was found.
///
/// # Errors
/// Those of the files; `InvalidFile` if their columns differ, or differ from those of the options; `UndefinedColumn`,
/// `DuplicateColumn`.
pub(super) async fn infer(mut setup: Setup, files: &[PathBuf]) -> Result<(Columns, Dialect)> {
    if setup.options.copy.lacks_delimiter(&files[0]) {
        let (first, with) = (files[0].clone(), setup.clone());
        setup.dialect.delimiter = blocking(move |_| with.delimiter(&first)).await?;
    }
    let setup = Arc::new(setup);
    let samples = futures::stream::iter(files.to_vec()).map(|path| {
        let setup = setup.clone();
        blocking(move |stop| setup.sample(&path, stop))
    });
    let samples: Vec<Sample> = samples.buffered(FILES_AT_A_TIME).try_collect().await?;
    Ok((columns(&setup, samples)?, setup.dialect.clone()))
}

/// Runs `work` on the blocking pool. The flag tells that its result is not needed any more.
async fn blocking<T: Send + 'static>(work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) -> Result<T> {
    let stop = StopOnDrop(Arc::default());
    let flag = stop.0.clone();
    tokio::task::spawn_blocking(move || work(&flag)).await.map_err(|error| Error::task(&error))?
}

fn columns(setup: &Setup, samples: Vec<Sample>) -> Result<Columns> {
    let (options, formats) = (&setup.options, &setup.formats);
    let mut filled = samples.iter().filter(|sample| !sample.first.is_empty()).peekable();
    let has_any = filled.peek().is_some();
    let given = options.columns.as_ref().map(|columns| columns.iter().map(|(name, _)| name.clone()).collect());
    let given: Option<Vec<String>> = given.or_else(|| options.names.clone());
    let by_first = || has_any && filled.all(|sample| sample.has_header(formats, given.as_ref()));
    let header = options.copy.header.unwrap_or_else(by_first);
    let (mut names, mut guesses): (Vec<String>, Vec<Guess>) = (Vec::new(), Vec::new());
    let mut of_file: Option<PathBuf> = None;
    let mut files = Vec::new();
    for sample in &samples {
        let own = sample.names(header);
        match &of_file {
            _ if own.is_empty() || options.union_by_name == Some(true) => {}
            None => of_file = Some(sample.path.clone()),
            Some(_) if own == names => {}
            Some(first) => return Err(differ(first, &sample.path)),
        }
        for (field, name) in own.iter().enumerate() {
            let guess = sample.guess(field, header, formats);
            match names.iter().position(|other| other == name) {
                Some(column) => guesses[column] = guesses[column].join(guess),
                None => {
                    names.push(name.clone());
                    guesses.push(guess);
                }
            }
        }
        files.push((sample.path.clone(), own));
    }
    let files = files.into_iter().map(|(path, own)| FileColumns {
        path,
        width: own.len(),
        fields: names.iter().map(|name| own.iter().position(|other| other == name)).collect(),
    });
    let files = files.collect();
    let guessed = |guess: &Guess| if options.are_texts() { ColumnType::Text } else { guess.column() };
    let types = guesses.iter().map(|guess| guessed(guess).into()).collect();
    let rows = samples.iter().map(|sample| if sample.first.is_empty() { Some(0.0) } else { sample.rows }).sum();
    let are_inferred = vec![!options.are_texts(); names.len()];
    let mut columns = Columns { names, types, are_inferred, header, files, rows };
    columns.apply(options)?;
    Ok(columns)
}

fn differ(first: &Path, file: &Path) -> Error {
    let (first, file) = (first.display(), file.display());
    let hint = "union_by_name => true finds columns by name";
    Error::InvalidFile(format!("the columns of \"{first}\" and \"{file}\" differ ({hint})"))
}

impl Columns {
    /// Applies the names and types of the options.
    fn apply(&mut self, options: &ReadOptions) -> Result<()> {
        let count = self.names.len();
        let wrong_count = |option: &str, given: usize| {
            let message = format!("the files have {count} columns, but option {option} has {given}");
            Err(Error::InvalidFile(message))
        };
        if let Some(columns) = &options.columns {
            // Files without any record have these columns, too.
            if columns.len() != count && count > 0 {
                return wrong_count("columns", columns.len());
            }
            (self.names, self.types) = columns.iter().cloned().unzip();
            self.are_inferred = vec![false; columns.len()];
            if count == 0 {
                self.files.iter_mut().for_each(|file| file.fields = vec![None; columns.len()]);
            }
        }
        if let Some(names) = &options.names {
            if names.len() > self.names.len() {
                return wrong_count("names", names.len());
            }
            self.names[..names.len()].clone_from_slice(names);
        }
        let given: Vec<(usize, SqlType)> = match &options.types {
            None => Vec::new(),
            Some(Types::Positional(types)) if types.len() > self.names.len() => {
                return wrong_count("types", types.len());
            }
            Some(Types::Positional(types)) => types.iter().copied().enumerate().collect(),
            Some(Types::Named(types)) => {
                types.iter().map(|(name, ty)| Ok((self.column(name)?, *ty))).collect::<Result<_>>()?
            }
        };
        for (column, ty) in given {
            self.types[column] = ty;
            self.are_inferred[column] = false;
        }
        let twice = self.names.iter().enumerate().find(|(i, name)| self.names[..*i].contains(name));
        twice.map_or(Ok(()), |(_, name)| Err(Error::DuplicateColumn(name.clone())))
    }

    fn column(&self, name: &str) -> Result<usize> {
        let exact = self.names.iter().position(|other| other == name);
        let found = exact.or_else(|| self.names.iter().position(|other| other.eq_ignore_ascii_case(name)));
        found.ok_or_else(|| {
            let names = self.names.join(", ");
            Error::InvalidFile(format!("option types names column \"{name}\", but the files have {names}"))
        })
    }
}
