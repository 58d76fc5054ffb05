//! Measures the methods of compression: space, bulk loads, full scans and point reads.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example compression -- DIRECTORY [rows]
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringViewArray};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnType, Compression, Direction, KeyRange, Options, Schema, Store, TreeId, WriteBatch, block_on,
};

/// As in the `keyaki` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A table: its name and the texts of a row.
type Data = (&'static str, fn(u64) -> Vec<String>);

const TABLES: [Data; 3] = [("comments", comments), ("log lines", log_lines), ("documents", documents)];
const BATCH_ROWS: u64 = 8192;
const POINT_READS: u64 = 20_000;

const WORDS: &str = "the quick final furiously regular deposits sleep above express packages carefully ironic requests \
                     haggle slyly pending accounts bold theodolites nag blithely even instructions among unusual foxes \
                     across special silent platelets cajole daringly";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: compression DIRECTORY [rows]")?;
    let rows: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    std::fs::create_dir_all(&directory)?;
    println!("{rows} rows; MB of values; scans and point reads from a cache without the pages");
    for (name, texts) in TABLES {
        for method in Compression::ALL {
            let path = Path::new(&directory).join(format!("{}-{method}", name.replace(' ', "-")));
            measure(&path, name, texts, method, rows)?;
            std::fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

fn measure(
    path: &Path,
    name: &str,
    texts: fn(u64) -> Vec<String>,
    method: Compression,
    rows: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open(keyaki_device::open_default()?, path, Options::default())?;
    let tree = TreeId::new(20);
    let text = |i| Column { name: format!("text {i}"), ty: ColumnType::Text, nullable: false };
    let id = Column { name: "id".into(), ty: ColumnType::Int64, nullable: false };
    let columns: Vec<Column> = std::iter::once(id).chain((0..texts(0).len()).map(text)).collect();
    let schema = Schema::new(columns, 1).compressed(method);
    let mut writer = store.bulk_writer(tree, &schema);
    let (mut plain, mut seconds) = (0, 0.0);
    for first in (0..rows).step_by(BATCH_ROWS as usize) {
        let batch = batch(&schema, texts, first..(first + BATCH_ROWS).min(rows));
        plain += batch.columns()[1..].iter().map(value_bytes).sum::<usize>();
        let start = Instant::now();
        writer.push(&batch)?;
        seconds += start.elapsed().as_secs_f64();
    }
    let mut create = WriteBatch::new();
    create.create_tree(tree, &schema);
    store.install(create, vec![(tree, writer.finish()?)])?;
    let megabytes = plain as f64 / 1e6;

    store.drop_caches();
    let view = store.latest().tree(tree)?;
    let (source, all) = (store.blocking(), (0..schema.columns().len()).collect::<Vec<_>>());
    let start = Instant::now();
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
    let mut found = 0;
    while let Some(chunk) = block_on(cursor.next())? {
        found += chunk.to_arrays(&all)?[0].len() as u64;
    }
    assert_eq!(found, rows, "rows of a scan");
    let scan = start.elapsed().as_secs_f64();

    store.drop_caches();
    let (mut random, reads) = (Random::new(1), POINT_READS.min(rows));
    let start = Instant::now();
    for _ in 0..reads {
        let id: ArrayRef = Arc::new(Int64Array::from(vec![random.below(rows) as i64]));
        let mut key = Vec::new();
        view.key_codec().encode(&[id], 0, &mut key);
        let mut cursor = view.cursor(&source, KeyRange::point(key), Direction::Ascending);
        let chunk = block_on(cursor.next())?.ok_or("a row is missing")?;
        assert_eq!(chunk.to_arrays(&all)?[1].len(), 1, "rows of a point read");
    }
    println!(
        "{name:10} {:5} {megabytes:5.0} MB as {:4.0} MB ({:4.2}), dictionaries {:2} KiB; load {:4.0} MB/s, scan {:4.0} MB/s, \
         {:5.0} reads/s",
        method.name(),
        store.tree_bytes(tree) as f64 / 1e6,
        plain as f64 / store.tree_bytes(tree) as f64,
        view.dictionary_bytes() >> 10,
        megabytes / seconds,
        megabytes / scan,
        reads as f64 / start.elapsed().as_secs_f64(),
    );
    Ok(())
}

fn batch(schema: &Schema, texts: fn(u64) -> Vec<String>, rows: std::ops::Range<u64>) -> RecordBatch {
    let ids = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row as i64))) as ArrayRef;
    let values: Vec<Vec<String>> = rows.map(texts).collect();
    let column = |column: usize| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values(values.iter().map(|row| row[column].as_str())))
    };
    let columns = std::iter::once(ids).chain((0..values[0].len()).map(column)).collect();
    RecordBatch::try_new(schema.arrow().clone(), columns).unwrap_or_else(|error| panic!("a batch: {error}"))
}

fn value_bytes(array: &ArrayRef) -> usize {
    let texts = array.as_any().downcast_ref::<StringViewArray>();
    texts.map_or(0, |texts| texts.lengths().map(|len| len as usize).sum())
}

fn pick<'a>(random: &mut Random, items: &[&'a str]) -> &'a str {
    items[random.below(items.len() as u64) as usize]
}

/// One text of three to nine words.
fn comments(row: u64) -> Vec<String> {
    let (mut random, words) = (Random::new(row), WORDS.split_whitespace().collect::<Vec<_>>());
    let count = 3 + random.below(7);
    vec![(0..count).map(|_| pick(&mut random, &words)).collect::<Vec<_>>().join(" ")]
}

/// Six short texts: a request, an address, an agent, an identifier, a referrer, a message.
fn log_lines(row: u64) -> Vec<String> {
    let mut random = Random::new(row);
    let path = pick(&mut random, &["/api/v1/orders", "/api/v1/customers", "/static/app.js", "/login"]);
    let agent = pick(&mut random, &["Mozilla/5.0 (X11; Linux x86_64)", "curl/8.4.0", "python-requests/2.31"]);
    let mut number = |below| random.below(below);
    let address = format!("10.{}.{}.{}", number(4), number(256), number(256));
    vec![
        format!("GET {path}/{}?page={}", number(1_000_000), number(9)),
        address,
        format!("{agent} build {}", number(10_000)),
        format!("{:016x}", number(u64::MAX)),
        format!("https://www.example.com/items/{}/reviews", number(100_000)),
        format!("request finished in {} ms with status 200, {} bytes", number(2000), number(100_000)),
    ]
}

/// One document with the values of [`log_lines`].
fn documents(row: u64) -> Vec<String> {
    let [request, address, agent, id, referrer, message] = <[String; 6]>::try_from(log_lines(row))
        .unwrap_or_else(|values| panic!("{} values of a log line", values.len()));
    vec![format!(
        "{{\"id\": \"{id}\", \"request\": \"{request}\", \"address\": \"{address}\", \"agent\": \"{agent}\", \"referrer\": \
         \"{referrer}\", \"message\": \"{message}\"}}"
    )]
}
