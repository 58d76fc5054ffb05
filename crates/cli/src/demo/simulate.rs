//! The demonstration on a simulated device, in virtual time.
//!
//! The database's files are copied into the simulated device's memory. One worker keeps as many reads in flight as the device
//! needs: 2,560 for an array of 40 drives, as in the paper's experiment. Computation takes no virtual time, so the figures are
//! those of the device alone.

use std::fs;
use std::path::Path;

use keyaki::{Database, Options};
use keyaki_device::Device;
use keyaki_device::calibrate::{CalibrateOptions, calibrate};
use keyaki_device::model::DeviceSpec;
use keyaki_device::simulated::{Simulated, SimulatedOptions};

use super::Setup;
use crate::device::executor;
use crate::failure::{Failure, Result};

/// Moves the database to a simulated device.
pub fn setup(database: Database, device: DeviceSpec) -> Result<Setup> {
    let model = device.model();
    let path = database.path().to_path_buf();
    let data_file = database.store().data_file().path().to_path_buf();
    let page_bytes = database.store().options().page_bytes;
    // Closing the database writes everything to its files.
    drop(database);
    let simulated = Simulated::new(SimulatedOptions { model, ..Default::default() });
    import(&simulated, &path)?;
    let executor = executor(model, 1);
    let options = CalibrateOptions {
        request_bytes: vec![page_bytes],
        depths: vec![1, 16, 256, 1024, executor.queue_depth],
        workers: 1,
        ..CalibrateOptions::default()
    };
    let calibration = calibrate(&simulated.device(), &data_file, &options, &mut |_| {})?;
    let depth = executor.queue_depth;
    let database = Database::open(
        &path,
        Options {
            must_exist: true,
            threads: Some(1),
            device: Some(simulated.device()),
            executor: Some(executor),
            ..Default::default()
        },
    )?;
    let description = format!("Device: {device}, {depth} reads in flight, virtual time, cold caches");
    Ok(Setup { database, calibration, device: format!("{device}, virtual time"), description })
}

/// Copies the files of a directory, under the same paths.
fn import(simulated: &Simulated, directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(Failure::file(directory))? {
        let path = entry.map_err(Failure::file(directory))?.path();
        if path.is_file() {
            simulated.import(&path, &path)?;
        }
    }
    if !simulated.exists(directory)? {
        return Err(Failure::Message(format!("{} is empty", directory.display())));
    }
    Ok(())
}
