//! The speed of the device: what no store can exceed.

use std::path::Path;
use std::time::Duration;

use keyaki_device::calibrate::{CalibrateOptions, calibrate};

use crate::Result;

/// Page length of Keyaki's stores.
const PAGE_BYTES: u64 = 8192;
/// Length of long reads.
const LONG_BYTES: u64 = 1 << 20;
/// Gets and page reads in flight.
pub const IN_FLIGHT: usize = 64;

/// Direct reads from the device.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// Reads of 8 KiB per second, 64 in flight.
    pub reads: f64,
    /// Bytes per second of reads of 1 MiB, 8 in flight.
    pub bandwidth: f64,
}

impl Device {
    /// Measures the device of a directory with a scratch file of 1 GiB.
    pub fn measure(directory: &Path) -> Result<Device> {
        let options = CalibrateOptions {
            request_bytes: vec![PAGE_BYTES as usize, LONG_BYTES as usize],
            depths: vec![8, IN_FLIGHT],
            duration: Duration::from_secs(1),
            workers_from_depth: 8,
            ..CalibrateOptions::default()
        };
        let measured = calibrate(&keyaki_device::open_default()?, directory, &options, &mut |_| {})?;
        let bandwidth = measured.iops(LONG_BYTES, 8) * LONG_BYTES as f64;
        Ok(Device { reads: measured.iops(PAGE_BYTES, IN_FLIGHT), bandwidth })
    }
}
