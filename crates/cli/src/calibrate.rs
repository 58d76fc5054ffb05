//! `keyaki calibrate`: measures the device under a database or directory and stores the result there for the planner. With
//! `--device`, it measures the files at the speed of that device, and stores nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use keyaki::Options;
use keyaki_device::calibrate::{CalibrateOptions, Calibration, calibrate};
use keyaki_device::{Device, open_default};

use crate::arguments::CalibrateArguments;
use crate::bars::Bars;
use crate::database;
use crate::device::paced;
use crate::failure::{Failure, Result};
use crate::terminal::{bytes, seconds, thousands};

const FILE: &str = "calibration.json";

pub fn run(arguments: &CalibrateArguments) -> Result<()> {
    if arguments.cache {
        return crate::caches::calibrate(arguments.path.as_deref());
    }
    let path = arguments.path.as_ref().ok_or_else(|| Failure::Usage("a directory is missing".into()))?;
    if !path.is_dir() {
        return Err(Failure::Message(format!("{} is not a directory", path.display())));
    }
    let mut options = options(arguments.quick);
    let calibration = if let Some(device) = arguments.device {
        let model = device.model();
        options.depths.extend((9..).map(|bits| 1 << bits).take_while(|&depth| depth < 2 * model.queue_depth()));
        measure(&paced(model)?, path, &options)?
    } else if database::is_database(path) {
        let database = database::open(path, Options { must_exist: true, ..Default::default() })?;
        let calibration = measure(database.store().device(), path, &options)?;
        database.set_calibration(calibration.clone())?;
        calibration
    } else {
        let calibration = measure(&open_default()?, path, &options)?;
        calibration.save(&path.join(FILE))?;
        calibration
    };
    println!("{}", table(&calibration).trim_fmt());
    if let Some(writes) = calibration.writes() {
        let sync = Duration::from_nanos(writes.sync_ns as u64);
        let rate = bytes(writes.bytes_per_second as u64);
        println!("sequential writes: {rate}/s; small write with sync: {}", seconds(sync));
    }
    if arguments.device.is_none() {
        println!("stored in {}", path.join(FILE).display());
    }
    Ok(())
}

/// Options of a full or a quick measurement.
pub fn options(quick: bool) -> CalibrateOptions {
    if !quick {
        return CalibrateOptions::default();
    }
    CalibrateOptions {
        scratch_bytes: 512 << 20,
        request_bytes: vec![4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
        depths: vec![1, 4, 16, 64, 256],
        duration: Duration::from_millis(60),
        ..CalibrateOptions::default()
    }
}

/// Measures a device, with progress on the terminal.
pub fn measure(device: &Arc<dyn Device>, path: &Path, options: &CalibrateOptions) -> Result<Calibration> {
    let bars = Bars::new();
    let result = calibrate(device, path, options, &mut |progress| {
        bars.status(format!("calibrating, step {} of {}: {}", progress.done, progress.total, progress.next));
    });
    bars.clear();
    Ok(result?)
}

/// Requests and bytes per second by request size (rows) and queue depth (columns).
fn table(calibration: &Calibration) -> Table {
    let reads = calibration.reads();
    let mut depths: Vec<u32> = reads.iter().map(|rate| rate.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut sizes: Vec<u64> = reads.iter().map(|rate| rate.request_bytes).collect();
    sizes.dedup();
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let headings = depths.iter().map(|depth| format!("depth {depth}"));
    table.set_header(std::iter::once("random reads".to_string()).chain(headings));
    for size in sizes {
        let mut row = vec![Cell::new(bytes(size))];
        for &depth in &depths {
            let rate = reads.iter().find(|rate| rate.request_bytes == size && rate.depth == depth);
            let text = rate.map(|rate| {
                let megabytes = rate.iops * size as f64 / 1e6;
                format!("{} IOPS\n{} MB/s", thousands(rate.iops as u64), thousands(megabytes as u64))
            });
            row.push(Cell::new(text.unwrap_or_default()).set_alignment(CellAlignment::Right));
        }
        table.add_row(row);
    }
    table
}
