//! The tables of files: formats, columns, and the providers that read them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::SessionState;
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::{StreamExt, TryStreamExt};

use super::FileTable;
use super::columns::{self, Setup};
use super::objects::ObjectTable;
use super::options::ReadOptions;
use super::partitions::Partitions;
use super::scan::{TextFiles, TextTable};
use super::text::{CsvFiles, JsonFiles, Opening, name_field};
use crate::base::notices::Notices;
use crate::sql::copy::{Compression, Dialect, Format, JsonText, Source, expand};
use crate::sql::files::{Files, local, object_url};
use crate::values::zone::Zone;
use crate::write::text::TimeFormats;
use crate::{Error, Result};

/// Files whose columns are inferred at a time.
const FILES_AT_A_TIME: usize = 16;
/// Rows of files whose number of rows is unknown.
pub(super) const ROWS: f64 = 1e6;

/// What reading files needs of a statement.
pub(in crate::sql) struct Reading<'a> {
    pub state: &'a SessionState,
    pub files: &'a Files,
    /// The time zone of texts without an offset.
    pub zone: Zone,
    /// Receives the numbers of rows that were left out.
    pub notices: Option<Arc<Notices>>,
}

/// The table of the files.
///
/// # Errors
/// `FileAccess`; `Io` if a file does not exist; `Syntax` and `Unsupported` for formats and options; `Context` with the file if its
/// columns cannot be inferred; `InvalidFile` if the columns of the files differ.
pub(in crate::sql) async fn provider(table: &FileTable, reading: &Reading<'_>) -> Result<Arc<dyn TableProvider>> {
    let mut files = Vec::new();
    for path in &table.paths {
        files.extend(expand(path, reading.files).await?);
    }
    let options = &table.options;
    if options.copy.lacks_format(&files[0]) {
        // A database, for example, is named as such.
        if let Err(other @ Error::Import { .. }) = Source::open(&files[0], reading.files, Compression::None) {
            return Err(other);
        }
        let file = files[0].display();
        let message =
            format!("the name of \"{file}\" has no known extension (use read_parquet, read_csv or read_json)");
        return Err(Error::syntax(message));
    }
    let (format, dialect) = options.copy.resolve(&files[0], false)?;
    for file in &files[1..] {
        if options.copy.resolve(file, false)? != (format, dialect.clone()) {
            let (first, file) = (files[0].display(), file.display());
            return Err(Error::Unsupported(format!("files of different formats: \"{first}\" and \"{file}\"")));
        }
    }
    if format != Format::Csv && options.union_by_name == Some(false) {
        return Err(Error::Unsupported("union_by_name => false except for csv".into()));
    }
    let partitions = Partitions::find(&files, options.hive_partitioning)?;
    let all: Vec<usize> = (0..files.len()).collect();
    let of_files = match format {
        Format::Parquet => parquet(files, reading).await?,
        Format::Csv => csv(files, options, dialect, reading).await?,
        Format::Json => json(files, options, reading).await?,
        Format::Tbl => return Err(Error::Unsupported("tbl files in a query (use COPY … FROM)".into())),
    };
    match partitions {
        Some(partitions) => partitions.table(of_files),
        None => of_files(&all),
    }
}

/// Makes a table of the files with these positions. All tables have the same columns.
type OfFiles = Box<dyn Fn(&[usize]) -> Result<Arc<dyn TableProvider>> + Send + Sync>;

fn no_columns(file: &Path) -> Error {
    Error::InvalidFile(format!("\"{}\" has no columns", file.display()))
}

async fn parquet(files: Vec<PathBuf>, reading: &Reading<'_>) -> Result<OfFiles> {
    let options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension("");
    let urls = files.iter().map(|file| url(file, reading)).collect::<Result<Vec<_>>>()?;
    // DataFusion would look for all files in the store of the first one.
    if let Some(other) = urls.iter().position(|url| url.object_store() != urls[0].object_store()) {
        let (first, other) = (files[0].display(), files[other].display());
        return Err(Error::Unsupported(format!("Parquet files of different stores: \"{first}\" and \"{other}\"")));
    }
    let bucket = object_url(&files[0]).map(|url| reading.files.bucket(url)).transpose()?.map(|(bucket, _)| bucket);
    let inferred = futures::stream::iter(urls.clone().into_iter().zip(files.clone()));
    let inferred = inferred.map(|(url, file)| inferred_schema(&options, reading.state, reading.files, url, file));
    let schemas: Vec<SchemaRef> = inferred.buffered(FILES_AT_A_TIME).try_collect().await?;
    let schema = merged(Format::Parquet, &files, &schemas)?;
    if schema.fields().is_empty() {
        return Err(no_columns(&files[0]));
    }
    Ok(Box::new(move |positions| {
        let urls = positions.iter().map(|position| urls[*position].clone()).collect();
        let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options.clone());
        let files = ListingTable::try_new(config.with_schema(schema.clone()))?;
        Ok(match &bucket {
            Some(bucket) => Arc::new(ObjectTable { files, bucket: bucket.clone() }) as Arc<dyn TableProvider>,
            None => Arc::new(files),
        })
    }))
}

async fn inferred_schema(
    options: &ListingOptions,
    state: &SessionState,
    files: &Files,
    url: ListingTableUrl,
    file: PathBuf,
) -> Result<SchemaRef> {
    let schema = options.infer_schema(state, &url).await;
    if schema.is_err() && object_url(&file).is_some() {
        // The store says more about a missing object or bucket.
        let files = files.clone();
        let open = tokio::task::spawn_blocking(move || files.open(&file));
        open.await.map_err(|error| Error::task(&error))??;
    }
    schema.map_err(|error| Error::from(error).within(format!("\"{}\"", shown(&url))))
}

async fn csv(files: Vec<PathBuf>, options: &ReadOptions, dialect: Dialect, reading: &Reading<'_>) -> Result<OfFiles> {
    // As in DuckDB, quoted texts are null, too.
    let dialect = Dialect { quoted_nulls: options.copy.quoted_nulls.unwrap_or(true), ..dialect };
    let formats =
        TimeFormats { date: options.copy.date_format.clone(), timestamp: options.copy.timestamp_format.clone() };
    let setup = Setup { options: options.clone(), dialect, formats: formats.clone(), files: reading.files.clone() };
    let (columns, dialect) = columns::infer(setup, &files).await?;
    if columns.names.is_empty() {
        return Err(no_columns(&files[0]));
    }
    let (rows, count) = (columns.rows.unwrap_or(ROWS), files.len());
    let csv = CsvFiles {
        opening: opening(options, reading),
        dialect,
        formats,
        columns: Arc::new(columns),
        files: Vec::new(),
        zone: reading.zone,
        sample_size: options.sample_size(),
        notices: reading.notices.clone(),
    };
    let schema = csv.schema();
    Ok(Box::new(move |positions| {
        let rows = rows * positions.len() as f64 / count as f64;
        text_table(schema.clone(), Arc::new(CsvFiles { files: positions.to_vec(), ..csv.clone() }), rows)
    }))
}

fn opening(options: &ReadOptions, reading: &Reading<'_>) -> Opening {
    let has_name = options.filename.unwrap_or(false);
    Opening { files: reading.files.clone(), options: options.copy.clone(), has_name }
}

fn text_table(schema: SchemaRef, files: Arc<dyn TextFiles>, rows: f64) -> Result<Arc<dyn TableProvider>> {
    let twice = schema.fields().iter().enumerate().find(|(i, field)| {
        schema.fields()[..*i].iter().any(|other| other.name() == field.name()) //
    });
    match twice {
        Some((_, field)) => Err(Error::DuplicateColumn(field.name().clone())),
        None => Ok(Arc::new(TextTable { schema, files, rows })),
    }
}

async fn json(files: Vec<PathBuf>, options: &ReadOptions, reading: &Reading<'_>) -> Result<OfFiles> {
    let opening = opening(options, reading);
    let schema = match &options.columns {
        Some(columns) => {
            let fields = columns.iter().map(|(name, ty)| Field::new(name, ty.column.arrow(), true));
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        }
        None => {
            let sample_size = options.sample_size();
            let inferred = futures::stream::iter(files.clone()).map(|path| {
                let opening = opening.clone();
                let infer = move || {
                    let source = Source::open(&path, &opening.files, opening.options.compression(&path))?;
                    JsonText::new(source).infer(sample_size).map(Arc::new)
                };
                async move { tokio::task::spawn_blocking(infer).await.map_err(|error| Error::task(&error))? }
            });
            let schemas: Vec<SchemaRef> = inferred.buffered(FILES_AT_A_TIME).try_collect().await?;
            merged(Format::Json, &files, &schemas)?
        }
    };
    if schema.fields().is_empty() {
        return Err(no_columns(&files[0]));
    }
    let fields = schema.fields().iter().cloned().chain(opening.has_name.then(|| Arc::new(name_field())));
    let with_name = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let zone = reading.zone;
    Ok(Box::new(move |positions| {
        let rows = ROWS * positions.len() as f64 / files.len() as f64;
        let files = positions.iter().map(|position| files[*position].clone()).collect();
        let json = JsonFiles { opening: opening.clone(), files, schema: schema.clone(), zone };
        text_table(with_name.clone(), Arc::new(json), rows)
    }))
}

/// The name of a file in messages.
fn shown(url: &ListingTableUrl) -> String {
    match url.scheme() {
        "file" => format!("/{}", url.prefix()),
        _ => format!("{}{}", url.object_store().as_str(), url.prefix()),
    }
}

/// The URL of a file, whose name may contain any characters. Makes the bucket of an object known to DataFusion.
fn url(file: &Path, reading: &Reading<'_>) -> Result<ListingTableUrl> {
    if let Some(url) = object_url(file) {
        let (bucket, name) = reading.files.bucket(url)?;
        let root = ObjectStoreUrl::parse(bucket.root())?;
        reading.state.runtime_env().register_object_store(root.as_ref(), bucket.store().clone());
        return Ok(ListingTableUrl::parse(format!("{}/{}", bucket.root(), encoded(name)))?);
    }
    let file = &local(file);
    let absolute = std::path::absolute(file).map_err(|error| Error::io("open", file, error))?;
    let Some(path) = absolute.to_str() else {
        return Err(Error::Unsupported(format!("\"{}\": a file name that is not UTF-8", file.display())));
    };
    Ok(ListingTableUrl::parse(format!("file://{}", encoded(path)))?)
}

/// A path as a part of a URL.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let encoded = path.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// The columns of all files, which are found by name.
fn merged(format: Format, files: &[PathBuf], schemas: &[SchemaRef]) -> Result<SchemaRef> {
    let differ = |file: &Path, what: &str| {
        Error::InvalidFile(format!("{what} of \"{}\" and \"{}\" differ", files[0].display(), file.display()))
    };
    let mut fields: Vec<Field> = schemas[0].fields().iter().map(|field| field.as_ref().clone()).collect();
    for (schema, file) in schemas.iter().zip(files).skip(1) {
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
