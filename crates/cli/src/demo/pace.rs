//! The demonstration at the speed of another device, in real time.

use keyaki::{Database, Options};
use keyaki_device::model::DeviceSpec;

use super::Setup;
use crate::arguments::DemoArguments;
use crate::device;
use crate::failure::Result;

/// Opens the database again, on the device.
pub fn setup(database: Database, device: DeviceSpec, arguments: &DemoArguments) -> Result<Setup> {
    let path = database.path().to_path_buf();
    // The database can be open only once.
    drop(database);
    let options = device::on_device(Options { must_exist: true, ..arguments.open.options() }, device)?;
    let depth = options.executor.as_ref().map_or(0, |executor| executor.workers * executor.queue_depth);
    let database = Database::open(&path, options)?;
    let calibration = (*database.calibration()).clone();
    let description = format!("Device: {device}, at most {depth} reads in flight, real time, cold caches");
    Ok(Setup { database, calibration, device: format!("{device}, real time"), description })
}
