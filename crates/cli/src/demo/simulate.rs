//! The demonstration on a simulated device, in virtual time.
//!
//! The database's files are copied into the simulated device's memory. One worker keeps [`QUEUE_DEPTH`] reads in flight, as the
//! paper's experiment did. Computation takes no virtual time, so the figures are those of the device alone.

use std::fs;
use std::path::Path;

use keyaki::{Database, Options};
use keyaki_device::Device;
use keyaki_device::calibrate::{CalibrateOptions, calibrate};
use keyaki_device::simulated::{Model, Simulated, SimulatedOptions};
use keyaki_exec::ExecutorOptions;

use super::Setup;
use crate::arguments::SimulatedDevice;
use crate::failure::{Failure, Result};

/// Reads in flight, 64 for each of the 40 drives.
const QUEUE_DEPTH: usize = 2560;

/// Moves the setup's database to a simulated device.
pub fn setup(setup: Setup, device: SimulatedDevice) -> Result<Setup> {
    let SimulatedDevice::SsdArray = device;
    let path = setup.database.path().to_path_buf();
    let data_file = setup.database.store().data_file().path().to_path_buf();
    let page_bytes = setup.database.store().options().page_bytes;
    // Closing the database writes everything to its files.
    drop(setup);
    let simulated = Simulated::new(SimulatedOptions { model: Model::ssd_array_40(), ..Default::default() });
    import(&simulated, &path)?;
    let options = CalibrateOptions {
        request_bytes: vec![page_bytes],
        depths: vec![1, 16, 256, 1024, QUEUE_DEPTH],
        workers: 1,
        ..CalibrateOptions::default()
    };
    let calibration = calibrate(&simulated.device(), &data_file, &options, &mut |_| {})?;
    let executor = ExecutorOptions {
        workers: 1,
        queue_depth: QUEUE_DEPTH,
        tasks_in_flight: 4 * QUEUE_DEPTH,
        ..Default::default()
    };
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
    let description =
        format!("Device: simulated array of 40 SSDs, {QUEUE_DEPTH} reads in flight, virtual time, cold caches");
    Ok(Setup { database, calibration, description })
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
