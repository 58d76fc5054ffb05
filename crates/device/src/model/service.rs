//! The service times of a modelled device.
//!
//! A device has a number of channels, each of which serves one request at a time, and one link that transfers all
//! bytes. A quota may limit the rate at which it admits requests:
//!
//! ```text
//! request ──> waits for the quota ──> waits for its channel ──> latency ──> its bytes over the link ──> completion
//! ```
//!
//! One request in flight therefore achieves `1 / latency` requests per second. No depth achieves more than
//! `channels / latency`, more requests than the quota, or more bytes than the link's data rate.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use keyaki_primitives::Random;

/// The performance of a modelled device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Service time of a request without its transfer.
    pub latency_ns: u64,
    /// Maximum number of requests served at the same time. 0: no limit.
    pub channels: u32,
    /// Data rate of the link, which all channels share. 0: no limit.
    pub bytes_per_second: u64,
    /// Quota of requests per second, as that of a cloud volume. 0: no limit.
    pub requests_per_second: u64,
    /// Each latency is uniform in `latency_ns * (1 ± jitter)`. From 0 to 1.
    pub jitter: f64,
    /// The offset of a request determines its channel, as in an array of drives. Otherwise a request takes the channel
    /// that is free first, as in a single drive. With striping, channels idle while others have a queue, so only a
    /// great depth keeps all of them busy.
    pub striped: bool,
}

/// Consecutive bytes on one channel, if striped.
const STRIPE_BYTES: u64 = 16 << 10;

const NS_PER_SECOND: u128 = 1_000_000_000;

impl Model {
    /// No call takes any time.
    pub const fn instant() -> Self {
        Model { latency_ns: 0, channels: 0, bytes_per_second: 0, requests_per_second: 0, jitter: 0.0, striped: false }
    }

    /// An array of SATA drives, each with 342 µs, 4 channels and 400 MB/s.
    pub const fn ssd_array(drives: u32) -> Self {
        Model {
            latency_ns: 342_000,
            channels: 4 * drives,
            bytes_per_second: 400_000_000 * drives as u64,
            jitter: 0.2,
            striped: true,
            ..Model::instant()
        }
    }

    /// 40 SATA drives: 342 µs and 2,920 reads/s one at a time, about 454,000 reads/s at 2,560 in flight.
    pub const fn ssd_array_40() -> Self {
        Model::ssd_array(40)
    }

    /// A local NVMe drive: 80 µs, 800,000 reads/s, 7 GB/s.
    pub const fn nvme() -> Self {
        Model { latency_ns: 80_000, channels: 64, bytes_per_second: 7_000_000_000, jitter: 0.2, ..Model::instant() }
    }

    /// A network volume with quotas of requests and bytes per second.
    pub const fn cloud(latency_ns: u64, requests_per_second: u64, bytes_per_second: u64) -> Self {
        Model { latency_ns, requests_per_second, bytes_per_second, jitter: 0.3, ..Model::instant() }
    }

    /// A network volume: 1 ms, 64,000 reads/s, 1 GB/s.
    pub const fn cloud_volume() -> Self {
        Model::cloud(1_000_000, 64_000, 1_000_000_000)
    }

    /// A hard disk: one request at a time, 200 MB/s.
    pub const fn disk_of(latency_ns: u64) -> Self {
        Model { latency_ns, channels: 1, bytes_per_second: 200_000_000, jitter: 0.5, ..Model::instant() }
    }

    /// A hard disk: 8 ms, one request at a time, 200 MB/s.
    pub const fn disk() -> Self {
        Model::disk_of(8_000_000)
    }

    /// The number of requests in flight that keeps the device busy: 16 for each channel of an array, whose load is
    /// uneven, and four times the requests in service of other devices.
    pub fn queue_depth(&self) -> usize {
        let in_service = u128::from(self.latency_ns) * u128::from(self.requests_per_second) / NS_PER_SECOND;
        let each = if self.striped { 16 } else { 4 };
        usize::try_from(in_service.max(u128::from(self.channels)).max(1) * each).unwrap_or(usize::MAX)
    }

    /// Time of a request of `bytes` on the link.
    fn transfer_ns(&self, bytes: u64) -> u64 {
        let transfer_ns = (u128::from(bytes) * NS_PER_SECOND).checked_div(u128::from(self.bytes_per_second));
        u64::try_from(transfer_ns.unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

/// The state of the quota, the channels and the link.
#[derive(Debug)]
pub(crate) struct Service {
    model: Model,
    random: Random,
    /// Time at which the quota admits the next request.
    quota_free_ns: u64,
    channels: Channels,
    /// Time at which the link becomes free.
    link_free_ns: u64,
}

/// The time at which each channel becomes free.
#[derive(Debug)]
enum Channels {
    Unlimited,
    /// By the number of the channel.
    Striped(Vec<u64>),
    /// The earliest first.
    Shared(BinaryHeap<Reverse<u64>>),
}

impl Service {
    pub(crate) fn new(model: Model, seed: u64) -> Self {
        let channels = match (model.channels as usize, model.striped) {
            (0, _) => Channels::Unlimited,
            (count, true) => Channels::Striped(vec![0; count]),
            (count, false) => Channels::Shared(vec![Reverse(0); count].into()),
        };
        Service { model, random: Random::new(seed), quota_free_ns: 0, channels, link_free_ns: 0 }
    }

    /// The completion time, not before `now_ns`, of a request that arrives now. `address` is its position on the
    /// medium.
    pub(crate) fn completion_ns(&mut self, now_ns: u64, address: u64, bytes: u64) -> u64 {
        let (latency_ns, transfer_ns) = (self.latency_ns(), self.model.transfer_ns(bytes));
        // Requests reserve the link in order of arrival, so transfers before `served` are not delayed.
        let link_ns = self.link_free_ns;
        self.link_free_ns = link_ns.max(now_ns).saturating_add(transfer_ns);
        let admitted_ns = self.quota_free_ns.max(now_ns);
        self.quota_free_ns = admitted_ns + 1_000_000_000_u64.checked_div(self.model.requests_per_second).unwrap_or(0);
        let end_after = |start_ns: u64| start_ns.saturating_add(latency_ns).max(link_ns).saturating_add(transfer_ns);
        match &mut self.channels {
            Channels::Unlimited => end_after(admitted_ns),
            Channels::Striped(free_ns) => {
                let channel = Random::new(address / STRIPE_BYTES).below(free_ns.len() as u64) as usize;
                free_ns[channel] = end_after(free_ns[channel].max(admitted_ns));
                free_ns[channel]
            }
            Channels::Shared(free_ns) => {
                let first_ns = free_ns.pop().map_or(0, |Reverse(free)| free);
                let end_ns = end_after(first_ns.max(admitted_ns));
                free_ns.push(Reverse(end_ns));
                end_ns
            }
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
        assert_about(iops(Model::cloud_volume(), 1, 4096), 1_000.0);
        assert_about(iops(Model::cloud(1_000_000, 100, 1_000_000_000), 1, 4096), 100.0);
        assert_about(iops(Model::cloud(2_000_000, 1_500, 1_000_000_000), 32, 4096), 1_500.0);
        assert_about(iops(Model::ssd_array(10), 640, 4096), 113_500.0);
        assert_about(iops(Model::disk(), 32, 4096), 125.0);
        let mut instant = Service::new(Model::instant(), 0);
        assert_eq!(instant.completion_ns(5, 0, 1 << 30), 5);
    }

    #[test]
    fn the_queue_depth_saturates_the_device() {
        assert_eq!(Model::ssd_array_40().queue_depth(), 2_560);
        assert_eq!(Model::instant().queue_depth(), 4);
        for (model, best) in [(Model::nvme(), 800_000.0), (Model::cloud_volume(), 64_000.0), (Model::disk(), 125.0)] {
            assert_about(iops(model, model.queue_depth(), 4096), best);
        }
    }
}
