//! `--device`: the database's files on a device of a chosen speed, in real time.

use std::sync::Arc;

use keyaki::Options;
use keyaki_device::calibrate::Calibration;
use keyaki_device::model::{DeviceSpec, Model};
use keyaki_device::paced::Paced;
use keyaki_device::{Device, open_cached};
use keyaki_exec::ExecutorOptions;

use crate::failure::Result;

/// Fibers for each read in flight: others wait for pages that are being read, or compute.
const TASKS_PER_READ: usize = 4;

/// The operating system's files, as slow as the model says. They use the page cache, so that only the model limits the
/// speed once they are cached.
pub fn paced(model: Model) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(Paced::new(open_cached()?, model)))
}

/// Options of a database on such a device, whose planner and executor know the model's speed.
pub fn on_device(options: Options, device: DeviceSpec) -> Result<Options> {
    let model = device.model();
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let workers = options.threads.unwrap_or_else(cores).max(1);
    Ok(Options {
        device: Some(paced(model)?),
        calibration: Some(Calibration::of_model(model)),
        executor: Some(executor(model, workers)),
        ..options
    })
}

/// Options of an executor whose workers together saturate the device.
pub fn executor(model: Model, workers: usize) -> ExecutorOptions {
    let default = ExecutorOptions::default();
    let queue_depth = model.queue_depth().div_ceil(workers).max(default.queue_depth);
    let tasks_in_flight = (TASKS_PER_READ * queue_depth).max(default.tasks_in_flight);
    ExecutorOptions { workers, queue_depth, tasks_in_flight, ..default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_the_depth_of_the_device() {
        let options = executor(Model::ssd_array_40(), 2);
        assert_eq!((options.queue_depth, options.tasks_in_flight), (1280, 5120));
        let (options, default) = (executor(Model::disk(), 2), ExecutorOptions::default());
        assert_eq!((options.queue_depth, options.tasks_in_flight), (default.queue_depth, default.tasks_in_flight));
    }
}
