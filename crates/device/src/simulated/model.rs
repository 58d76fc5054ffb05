//! The service times of a simulated device.
//!
//! A device has a number of channels, each of which serves one request at a time, and one link that transfers all
//! bytes:
//!
//! ```text
//! request ──> waits for its channel ──> latency ──> its bytes over the link ──> completion
//! ```
//!
//! One request in flight therefore achieves `1 / latency` requests per second. No depth achieves more than
//! `channels / latency`, or more bytes than the link's data rate.

use keyaki_primitives::Random;

/// The performance of a simulated device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Service time of a request without its transfer.
    pub latency_ns: u64,
    /// Maximum number of requests served at the same time. 0: no limit.
    pub channels: u32,
    /// Data rate of the link, which all channels share. 0: no limit.
    pub bytes_per_second: u64,
    /// Each latency is uniform in `latency_ns * (1 ± jitter)`. From 0 to 1.
    pub jitter: f64,
    /// The offset of a request determines its channel, as in an array of drives. Otherwise a request takes the channel
    /// that is free first, as in a single drive. With striping, channels idle while others have a queue, so only a
    /// great depth keeps all of them busy.
    pub striped: bool,
}

/// Consecutive bytes on one channel, if striped.
const STRIPE_BYTES: u64 = 16 << 10;

impl Model {
    /// No call takes any time.
    pub const fn instant() -> Self {
        Model { latency_ns: 0, channels: 0, bytes_per_second: 0, jitter: 0.0, striped: false }
    }

    /// 40 SATA drives: 342 µs and 2,920 reads/s one at a time, about 454,000 reads/s at 2,560 in flight.
    pub const fn ssd_array_40() -> Self {
        Model { latency_ns: 342_000, channels: 160, bytes_per_second: 16_000_000_000, jitter: 0.2, striped: true }
    }

    /// A local NVMe drive: 80 µs, 800,000 reads/s, 7 GB/s.
    pub const fn nvme() -> Self {
        Model { latency_ns: 80_000, channels: 64, bytes_per_second: 7_000_000_000, jitter: 0.2, striped: false }
    }

    /// A network volume: 1 ms, 64,000 reads/s, 1 GB/s.
    pub const fn cloud_volume() -> Self {
        Model { latency_ns: 1_000_000, channels: 64, bytes_per_second: 1_000_000_000, jitter: 0.3, striped: false }
    }

    /// A hard disk: 8 ms, one request at a time, 200 MB/s.
    pub const fn disk() -> Self {
        Model { latency_ns: 8_000_000, channels: 1, bytes_per_second: 200_000_000, jitter: 0.5, striped: false }
    }
}

/// The state of the channels and the link.
#[derive(Debug)]
pub(super) struct Service {
    model: Model,
    random: Random,
    /// Time at which each channel becomes free; empty if their number is unlimited.
    channels_free_ns: Vec<u64>,
    /// Time at which the link becomes free.
    link_free_ns: u64,
}

impl Service {
    pub(super) fn new(model: Model, seed: u64) -> Self {
        let channels_free_ns = vec![0; model.channels as usize];
        Service { model, random: Random::new(seed), channels_free_ns, link_free_ns: 0 }
    }

    /// The completion time, not before `now_ns`, of a request that arrives now. `address` is its position on the
    /// medium.
    pub(super) fn completion_ns(&mut self, now_ns: u64, address: u64, bytes: u64) -> u64 {
        let channel = self.channel(address);
        let start = channel.map_or(now_ns, |channel| self.channels_free_ns[channel].max(now_ns));
        let transfer = match self.model.bytes_per_second {
            0 => 0,
            rate => u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        let served = start.saturating_add(self.latency_ns());
        let end = served.max(self.link_free_ns).saturating_add(transfer);
        // Requests reserve the link in order of arrival, so transfers before `served` are not delayed.
        self.link_free_ns = self.link_free_ns.max(now_ns).saturating_add(transfer);
        if let Some(channel) = channel {
            self.channels_free_ns[channel] = end;
        }
        end
    }

    fn channel(&mut self, address: u64) -> Option<usize> {
        if self.channels_free_ns.is_empty() {
            None
        } else if self.model.striped {
            Some((Random::new(address / STRIPE_BYTES).below(self.channels_free_ns.len() as u64)) as usize)
        } else {
            // The channel that becomes free first; ties: the lowest number.
            (0..self.channels_free_ns.len()).min_by_key(|&channel| self.channels_free_ns[channel])
        }
    }

    fn latency_ns(&mut self) -> u64 {
        if self.model.jitter == 0.0 {
            return self.model.latency_ns;
        }
        let factor = 1.0 + self.model.jitter.clamp(0.0, 1.0) * (2.0 * self.random.unit() - 1.0);
        (self.model.latency_ns as f64 * factor) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests per second with `depth` in flight.
    fn iops(model: Model, depth: usize, bytes: u64) -> f64 {
        let mut service = Service::new(model, 1);
        let mut random = Random::new(2);
        let mut in_flight: std::collections::BinaryHeap<_> =
            (0..depth).map(|_| std::cmp::Reverse(service.completion_ns(0, random.below(1 << 40), bytes))).collect();
        let requests = 40 * depth.max(100);
        let mut now = 0;
        for _ in 0..requests {
            now = in_flight.pop().unwrap().0;
            in_flight.push(std::cmp::Reverse(service.completion_ns(now, random.below(1 << 40), bytes)));
        }
        requests as f64 * 1e9 / now as f64
    }

    fn assert_about(actual: f64, expected: f64) {
        assert!((actual / expected - 1.0).abs() < 0.05, "{actual:.0} is not about {expected:.0}");
    }

    #[test]
    fn the_array_matches_the_published_figures() {
        assert_about(iops(Model::ssd_array_40(), 1, 4096), 2_920.0);
        assert_about(iops(Model::ssd_array_40(), 2_560, 4096), 454_000.0);
        assert!(iops(Model::ssd_array_40(), 256, 4096) < 350_000.0, "saturates late");
    }

    #[test]
    fn limits_hold() {
        assert_about(iops(Model::nvme(), 1, 0), 12_500.0);
        assert_about(iops(Model::nvme(), 256, 4096), 800_000.0);
        assert_about(iops(Model::nvme(), 256, 1 << 20), 7e9 / (1 << 20) as f64);
        assert_about(iops(Model::cloud_volume(), 1000, 4096), 64_000.0);
        assert_about(iops(Model::disk(), 32, 4096), 125.0);
        let mut instant = Service::new(Model::instant(), 0);
        assert_eq!(instant.completion_ns(5, 0, 1 << 30), 5);
    }
}
