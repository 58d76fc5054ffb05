//! Measures pages in memory: encoding, opening, full decoding by column type, lookups.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example codec_bench -- [rows] [page_bytes]
//! ```
//! The first table resembles TPC-H's lineitem, the second has floats, timestamps and nulls, the third has random keys
//! and values.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, BinaryViewArray, StringViewArray};
use arrow_array::{
    BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, TimestampMicrosecondArray,
};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnBuilder, ColumnType, KeyCodec, Page, PageRef, PageWriter, RowCodec, Schema, TreeId, seal,
};

struct Table {
    name: &'static str,
    schema: Arc<Schema>,
    columns: Vec<ArrayRef>,
}

struct Sealed {
    bytes: Vec<u8>,
    place: PageRef,
    first_row: usize,
    rows: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rows: usize = arguments.next().map_or(Ok(300_000), |text| text.parse())?;
    let page_bytes: usize = arguments.next().map_or(Ok(8192), |text| text.parse())?;
    for table in [lineitem(rows), measurements(rows), key_value(rows)] {
        run(&table, rows, page_bytes)?;
    }
    Ok(())
}

fn run(table: &Table, rows: usize, page_bytes: usize) -> Result<(), Box<dyn Error>> {
    let Table { name, schema, columns } = table;
    let mut pages = Vec::new();
    let mut writer = PageWriter::new(schema.clone(), page_bytes);
    let mut offset = 0;
    let start = Instant::now();
    let mut row = 0;
    while row < rows {
        let written = writer.encode(columns, None, row)?;
        let place = PageRef { offset, len: written.bytes.len() as u32, tree: TreeId::new(1), checksum: 0 };
        offset += u64::from(place.len);
        pages.push(Sealed { bytes: written.bytes, place, first_row: row, rows: written.rows });
        row += written.rows;
    }
    let encoding = start.elapsed();
    pages.iter_mut().for_each(|page| page.place = seal(&mut page.bytes, page.place));
    println!(
        "{name}: {rows} rows, {} pages of {page_bytes} bytes, {:.1} bytes/row, encoding {:.2} M rows/s",
        pages.len(),
        (pages.len() * page_bytes) as f64 / rows as f64,
        rows as f64 / encoding.as_secs_f64() / 1e6,
    );

    let path: Arc<Path> = Path::new("bench").into();
    let start = Instant::now();
    let opened: Result<Vec<Page>, _> =
        pages.iter().map(|page| Page::open(&page.bytes, page.place, schema, &path)).collect();
    let opened = opened?;
    let fresh = start.elapsed();
    let start = Instant::now();
    for page in &pages {
        std::hint::black_box(Page::open(&page.bytes, page.place, schema, &path)?);
    }
    let nanoseconds = |elapsed: std::time::Duration| elapsed.as_secs_f64() * 1e9 / pages.len() as f64;
    println!("  open {:.0} ns ({:.0} into fresh memory)", nanoseconds(start.elapsed()), nanoseconds(fresh));
    decode(table, rows, &opened);
    decode_selected(table, &opened);
    look_up(table, rows, &pages, &opened);

    let (keys, values) = (KeyCodec::new(schema), RowCodec::new(schema));
    let start = Instant::now();
    let encoded = keys.encode_batch(&columns[..schema.key_columns()], 0..rows);
    println!("  encode_batch of keys {:.1} ns/row", start.elapsed().as_secs_f64() * 1e9 / rows as f64);
    std::hint::black_box(encoded);
    let (mut value, sample) = (Vec::new(), rows.min(100_000));
    let encoder = values.encoder(columns);
    let start = Instant::now();
    for row in 0..sample {
        value.clear();
        encoder.encode(row, &mut value);
        std::hint::black_box(&value);
    }
    println!("  encoding of message rows {:.0} ns/row", start.elapsed().as_secs_f64() * 1e9 / sample as f64);
    Ok(())
}

/// Decodes each column of all pages, in the batch sizes of a scan.
fn decode(table: &Table, rows: usize, pages: &[Page]) {
    let mut total = 0.0;
    for (i, column) in table.schema.columns().iter().enumerate() {
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let mut builder = ColumnBuilder::new(column.ty, 8192);
            let start = Instant::now();
            for page in pages {
                page.append_to(i, 0..page.rows(), &table.schema, &mut builder);
                if builder.len() >= 8192 {
                    std::hint::black_box(builder.finish());
                }
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        total += best;
        println!("  {:16} {:24} {:8.0} M values/s", column.name, format!("{:?}", column.ty), rows as f64 / best / 1e6);
    }
    println!("  all columns {:.1} M rows/s", rows as f64 / total / 1e6);
}

/// Decodes the rows of all pages that pass a filter.
fn decode_selected(table: &Table, pages: &[Page]) {
    for percent in [98, 50, 10, 2] {
        let mut random = Random::new(1);
        let mut select = |page: &Page| (0..page.rows() as u32).filter(|_| random.below(100) < percent).collect();
        let selections: Vec<Vec<u32>> = pages.iter().map(&mut select).collect();
        let selected: usize = selections.iter().map(Vec::len).sum();
        print!("  ns/value of {percent} % of the rows:");
        for (i, column) in table.schema.columns().iter().enumerate() {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let mut builder = ColumnBuilder::new(column.ty, 8192);
                let start = Instant::now();
                for (page, rows) in pages.iter().zip(&selections) {
                    page.append_selected(i, rows, &table.schema, &mut builder);
                    if builder.len() >= 8192 {
                        std::hint::black_box(builder.finish());
                    }
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            print!(" {:.1}", best * 1e9 / selected as f64);
        }
        println!();
    }
}

/// Finds a key in a page and appends five rows of five columns.
fn look_up(table: &Table, rows: usize, sealed: &[Sealed], pages: &[Page]) {
    let codec = KeyCodec::new(&table.schema);
    let lookups = 200_000;
    let mut random = Random::new(1);
    let (mut keys, mut places) = (Vec::new(), Vec::new());
    for _ in 0..lookups {
        let row = random.below(rows as u64) as usize;
        let page = sealed.partition_point(|page| page.first_row + page.rows <= row);
        let mut key = Vec::new();
        codec.encode(&table.columns[..1], row, &mut key);
        keys.push(key);
        places.push(page);
    }
    let columns: Vec<usize> = (0..table.schema.columns().len().min(8)).step_by(2).collect();
    let mut builders: Vec<ColumnBuilder> =
        columns.iter().map(|&column| ColumnBuilder::new(table.schema.columns()[column].ty, 8192)).collect();
    // The best of several repetitions excludes disturbance by other processes.
    let (mut searching, mut appending, mut hot) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    let mut found = 0;
    for _ in 0..7 {
        let start = Instant::now();
        for (key, &page) in keys.iter().zip(&places) {
            found += pages[page].lower_bound(key, false);
        }
        searching = searching.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for key in &keys {
            found += pages[places[0]].lower_bound(key, false);
        }
        hot = hot.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for (key, &page) in keys.iter().zip(&places) {
            let page = &pages[page];
            let first = page.lower_bound(key, false);
            for (&column, builder) in columns.iter().zip(&mut builders) {
                page.append_to(column, first..(first + 5).min(page.rows()), &table.schema, builder);
            }
            if builders[0].len() >= 8192 {
                builders.iter_mut().for_each(|builder| drop(std::hint::black_box(builder.finish())));
            }
        }
        appending = appending.min(start.elapsed().as_secs_f64());
    }
    let [searching, hot, appending] = [searching, hot, appending].map(|s| s * 1e9 / f64::from(lookups));
    println!(
        "  lower_bound {hot:.0} ns in one page, {searching:.0} ns in random ones; with 5 rows of {} columns {appending:.0} ns ({})",
        columns.len(),
        found % 10
    );
}

const WORDS: [&str; 40] = [
    "furiously",
    "quickly",
    "carefully",
    "blithely",
    "slyly",
    "express",
    "regular",
    "final",
    "ironic",
    "pending",
    "bold",
    "special",
    "even",
    "silent",
    "unusual",
    "deposits",
    "packages",
    "requests",
    "accounts",
    "instructions",
    "foxes",
    "theodolites",
    "pinto beans",
    "dependencies",
    "platelets",
    "asymptotes",
    "courts",
    "sleep",
    "haggle",
    "nag",
    "wake",
    "cajole",
    "are",
    "use",
    "boost",
    "among the",
    "above the",
    "after the",
    "across the",
    "according to",
];

fn comment(random: &mut Random) -> String {
    let len = 10 + random.below(34) as usize;
    let mut text = String::new();
    while text.len() < len {
        text.push_str(WORDS[random.index(WORDS.len())]);
        text.push(' ');
    }
    text.truncate(len);
    text
}

fn column(name: &str, ty: ColumnType, nullable: bool) -> Column {
    Column { name: name.into(), ty, nullable }
}

fn lineitem(rows: usize) -> Table {
    let mut random = Random::new(42);
    let money = ColumnType::Decimal { precision: 15, scale: 2 };
    let decimal = |values: Vec<i128>| -> ArrayRef {
        Arc::new(Decimal128Array::from(values).with_data_type(ColumnType::Decimal { precision: 15, scale: 2 }.arrow()))
    };
    let (mut order, mut line, mut lines) = (1i64, 0i32, 4);
    let mut keys = (Vec::new(), Vec::new());
    for _ in 0..rows {
        line += 1;
        if line > lines {
            // Eight of every 32 order keys are used.
            order += if order % 8 == 7 { 25 } else { 1 };
            line = 1;
            lines = 1 + random.below(7) as i32;
        }
        keys.0.push(order);
        keys.1.push(line);
    }
    let mut ints = |limit: u64| (0..rows).map(|_| 1 + random.below(limit) as i64).collect::<Vec<_>>();
    let (parts, suppliers, quantities) = (ints(2_000_000), ints(100_000), ints(50));
    let (discounts, taxes, prices) = (ints(11), ints(9), ints(110_000));
    let ship: Vec<i32> = (0..rows).map(|_| 8036 + random.below(2500) as i32).collect();
    let mut later = |days: u64| ship.iter().map(|day| day + random.below(days) as i32).collect::<Vec<i32>>();
    let (commit, receipt) = (later(90), later(30));
    let mut texts = |of: &'static [&'static str]| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values((0..rows).map(|_| random.pick(of))))
    };
    let (flags, status) = (texts(&["A", "N", "R"]), texts(&["F", "O"]));
    let instructions = texts(&["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]);
    let modes = texts(&["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]);
    let comments = StringViewArray::from_iter_values((0..rows).map(|_| comment(&mut random)));
    let price = |i: usize| i128::from(quantities[i]) * i128::from(90_000 + prices[i]);
    let columns: Vec<(Column, ArrayRef)> = vec![
        (column("l_orderkey", ColumnType::Int64, false), Arc::new(Int64Array::from(keys.0))),
        (column("l_linenumber", ColumnType::Int32, false), Arc::new(Int32Array::from(keys.1))),
        (column("l_partkey", ColumnType::Int64, false), Arc::new(Int64Array::from(parts))),
        (column("l_suppkey", ColumnType::Int64, false), Arc::new(Int64Array::from(suppliers))),
        (column("l_quantity", money, false), decimal(quantities.iter().map(|&q| i128::from(q) * 100).collect())),
        (column("l_extendedprice", money, false), decimal((0..rows).map(price).collect())),
        (column("l_discount", money, false), decimal(discounts.iter().map(|&d| i128::from(d) - 1).collect())),
        (column("l_tax", money, false), decimal(taxes.iter().map(|&t| i128::from(t) - 1).collect())),
        (column("l_returnflag", ColumnType::Text, false), flags),
        (column("l_linestatus", ColumnType::Text, false), status),
        (column("l_shipdate", ColumnType::Date, false), Arc::new(Date32Array::from(ship.clone()))),
        (column("l_commitdate", ColumnType::Date, false), Arc::new(Date32Array::from(commit))),
        (column("l_receiptdate", ColumnType::Date, false), Arc::new(Date32Array::from(receipt))),
        (column("l_shipinstruct", ColumnType::Text, false), instructions),
        (column("l_shipmode", ColumnType::Text, false), modes),
        (column("l_comment", ColumnType::Text, false), Arc::new(comments)),
    ];
    let (named, columns) = columns.into_iter().unzip();
    Table { name: "lineitem", schema: Arc::new(Schema::new(named, 2)), columns }
}

/// Rows with random keys of 16 bytes and values of 100 bytes.
fn key_value(rows: usize) -> Table {
    let mut random = Random::new(3);
    let mut keys: Vec<[u8; 16]> = (0..rows)
        .map(|_| (u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())).to_be_bytes())
        .collect();
    keys.sort_unstable();
    let keys = BinaryViewArray::from_iter_values(keys);
    let mut value = || (0..13).flat_map(|_| random.next_u64().to_le_bytes()).take(100).collect::<Vec<u8>>();
    let values = BinaryViewArray::from_iter_values((0..rows).map(|_| value()));
    Table { name: "key-value", schema: Arc::new(Schema::key_value()), columns: vec![Arc::new(keys), Arc::new(values)] }
}

fn measurements(rows: usize) -> Table {
    let mut random = Random::new(7);
    let mut time = 1_700_000_000_000_000i64;
    let times: Vec<i64> = (0..rows)
        .map(|_| {
            time += 900_000 + random.below(200_000) as i64;
            time
        })
        .collect();
    let tenths: Vec<f64> = (0..rows).map(|_| (random.below(600) as f64 - 100.0) / 10.0).collect();
    let exact: Vec<f64> = (0..rows).map(|_| (random.below(1 << 40) as f64).sqrt()).collect();
    let some: Vec<Option<i32>> = (0..rows).map(|_| Some(random.below(1000) as i32).filter(|v| v % 10 != 0)).collect();
    let booleans: Vec<bool> = (0..rows).map(|_| random.below(5) == 0).collect();
    let names = StringViewArray::from_iter_values((0..rows).map(|_| format!("sensor-{:03}", random.below(100))));
    let columns: Vec<(Column, ArrayRef)> = vec![
        (column("time", ColumnType::Timestamp { utc: false }, false), Arc::new(TimestampMicrosecondArray::from(times))),
        (column("sensor", ColumnType::Text, false), Arc::new(names)),
        (column("temperature", ColumnType::Float64, false), Arc::new(Float64Array::from(tenths))),
        (column("exact", ColumnType::Float64, false), Arc::new(Float64Array::from(exact))),
        (column("some", ColumnType::Int32, true), Arc::new(Int32Array::from(some))),
        (column("alarm", ColumnType::Boolean, false), Arc::new(BooleanArray::from(booleans))),
    ];
    let (named, columns) = columns.into_iter().unzip();
    Table { name: "measurements", schema: Arc::new(Schema::new(named, 1)), columns }
}
