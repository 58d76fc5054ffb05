//! The speed of a modelled device, without a measurement: closed loops of reads in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use keyaki_primitives::Random;

use super::{Calibration, ReadRate, VERSION, WriteRate, rounded};
use crate::memory::BLOCK;
use crate::model::{Model, Service};

/// Minimum and maximum of the greatest depth in the table.
const DEPTHS: (usize, usize) = (256, 32_768);
/// Minimum number of reads of a loop.
const READS_MIN: usize = 300;
/// Size and number of the writes in flight of a [`WriteRate`].
const WRITES: (u64, usize) = (1 << 20, 4);

impl Calibration {
    /// The performance of a model: 4 KiB to 1 MiB, from depth 1 to the depth that saturates the device.
    pub fn of_model(model: Model) -> Self {
        let depth_max = model.queue_depth().clamp(DEPTHS.0, DEPTHS.1);
        let depths = (0..).map(|bits| 1_usize << bits).take_while(|&depth| depth < 2 * depth_max);
        let sizes = (12..=20).map(|bits| 1_u64 << bits);
        let rate = |request_bytes, depth| ReadRate {
            request_bytes,
            depth: depth as u32,
            iops: rounded(requests_per_second(model, request_bytes, depth)),
            workers: 1,
        };
        let reads = sizes.flat_map(|bytes| depths.clone().map(move |depth| rate(bytes, depth))).collect();
        let writes = WriteRate {
            bytes_per_second: rounded(requests_per_second(model, WRITES.0, WRITES.1) * WRITES.0 as f64),
            sync_ns: rounded(2e9 / requests_per_second(model, BLOCK as u64, 1)),
        };
        Calibration { version: VERSION, device: "modelled".into(), reads, writes: Some(writes) }
    }
}

/// Requests of `bytes` per second at random positions, with `depth` in flight.
fn requests_per_second(model: Model, bytes: u64, depth: usize) -> f64 {
    let mut service = Service::new(model, 0);
    let mut random = Random::new(1);
    let mut request = |now_ns| Reverse(service.completion_ns(now_ns, random.below(1 << 40), bytes));
    let mut in_flight: BinaryHeap<_> = (0..depth).map(|_| request(0)).collect();
    let count = (2 * depth).max(READS_MIN);
    let (mut now_ns, mut start_ns) = (0, 0);
    // The first requests arrive all at once.
    for number in 0..depth + count {
        let Some(Reverse(end_ns)) = in_flight.pop() else { break };
        now_ns = end_ns;
        if number + 1 == depth {
            start_ns = now_ns;
        }
        in_flight.push(request(now_ns));
    }
    count as f64 * 1e9 / (now_ns - start_ns).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_their_published_rates() {
        let about = |actual: f64, expected: f64| (actual / expected - 1.0).abs() < 0.05;
        let array = Calibration::of_model(Model::ssd_array_40());
        array.check().unwrap();
        assert!(about(array.iops(4096, 1), 2_920.0), "{}", array.iops(4096, 1));
        assert!(about(array.iops(4096, 2_560), 454_000.0), "{}", array.iops(4096, 2_560));
        assert!(array.iops(8192, 256) > 80.0 * array.iops(8192, 1));
        let cloud = Calibration::of_model(Model::cloud_volume());
        assert!(about(cloud.iops(4096, 1), 1_000.0) && about(cloud.iops(4096, 256), 64_000.0));
        assert!(about(cloud.bandwidth(), 1e9), "{}", cloud.bandwidth());
        let disk = Calibration::of_model(Model::disk());
        assert!(about(disk.iops(4096, 256), disk.iops(4096, 1)));
        let writes = disk.writes().unwrap();
        assert!(about(writes.sync_ns, 16e6), "a write and a sync");
        assert_eq!(disk.device(), "modelled");
    }

    #[test]
    fn a_model_without_latency_is_finite() {
        Calibration::of_model(Model::instant()).check().unwrap();
    }
}
