//! The conformance suite: tests that every device must pass, run against each of them.

mod files;
mod queues;

use std::path::PathBuf;
use std::sync::Arc;

use crate::interface::{Device, File, OpenMode};
use crate::memory::{BLOCK, Buffer};
pub(crate) use files::*;
pub(crate) use queues::*;

/// A device, and a directory on it for a test.
pub(crate) struct Fixture {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) dir: PathBuf,
    /// Removes `dir` when dropped, for devices of the operating system.
    pub(crate) _guard: Option<tempfile::TempDir>,
}

/// Instantiates the suite for the fixtures that the function `$fixture` creates.
macro_rules! conformance {
    ($fixture:path: $($test:ident),* $(,)?) => {
        $(#[test] fn $test() { $crate::conformance::$test(&$fixture()); })*
    };
    ($fixture:path) => {
        $crate::conformance::conformance!($fixture:
            names_and_directories, open_modes, lengths, locks, marks, read_back, errors, queue_round_trip,
            short_reads, backlog, invalid_requests, buffers, wakers, wake_storm, time_outs, drop_in_flight, sync_requests,
            many_requests, deep_queue, many_wakers, moved_queue, movable_queue, independent_queues);
    };
}
pub(crate) use conformance;

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A new file of `blocks` blocks, each filled by [`pattern`].
    fn file(&self, name: &str, blocks: u64) -> Arc<dyn File> {
        let file = self.device.open(&self.path(name), OpenMode::CreateNew).unwrap();
        let mut at = 0;
        while at < blocks {
            let step = (blocks - at).min(256);
            let mut buffer = Buffer::zeroed(step as usize * BLOCK);
            for (i, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
                pattern(at + i as u64, block);
            }
            file.write_at(at * BLOCK as u64, &buffer).unwrap();
            at += step;
        }
        file
    }
}

/// Fills a block with bytes derived from its number.
fn pattern(block: u64, bytes: &mut [u8]) {
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(block * 1_000_003 + i as u64).to_le_bytes());
    }
}

fn assert_blocks(first: u64, bytes: &[u8]) {
    let mut expected = [0; BLOCK];
    for (i, block) in bytes.chunks_exact(BLOCK).enumerate() {
        pattern(first + i as u64, &mut expected);
        assert!(block == expected, "block {} has wrong contents", first + i as u64);
    }
}

#[cfg(unix)]
mod os {
    use std::sync::Arc;

    use super::Fixture;
    use crate::interface::Device;

    pub(super) fn fixture(device: Arc<dyn Device>) -> Fixture {
        let guard = tempfile::tempdir().unwrap();
        Fixture { device, dir: guard.path().to_path_buf(), _guard: Some(guard) }
    }

    mod threads {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::threads().unwrap())
        }
        crate::conformance::conformance!(fixture);
    }

    #[cfg(target_os = "linux")]
    mod uring {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::uring().unwrap())
        }
        crate::conformance::conformance!(fixture);
    }

    /// The set-up of kernels from Linux 5.19 to 6.0.
    #[cfg(target_os = "linux")]
    mod uring_cooperative {
        fn fixture() -> super::Fixture {
            super::uring_fixture(crate::uring::Setup::Cooperative)
        }
        crate::conformance::conformance!(fixture);
    }

    #[cfg(target_os = "linux")]
    mod uring_plain {
        fn fixture() -> super::Fixture {
            super::uring_fixture(crate::uring::Setup::Plain)
        }
        crate::conformance::conformance!(fixture);
    }

    /// A fixture on a file system in memory, which may refuse direct I/O.
    #[cfg(target_os = "linux")]
    fn uring_fixture(setup: crate::uring::Setup) -> Fixture {
        let device = Arc::new(crate::os::OsDevice::new(setup, crate::os::Caching::Bypass));
        let guard = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Fixture { device, dir: guard.path().to_path_buf(), _guard: Some(guard) }
    }
}

/// Paced devices over those of the operating system, without and with the page cache.
#[cfg(unix)]
mod paced {
    use std::sync::Arc;

    use super::Fixture;
    use crate::interface::Device;
    use crate::model::Model;
    use crate::paced::Paced;

    /// 200 µs, without a limit of requests.
    const SLOW: Model = Model { latency_ns: 200_000, jitter: 0.5, ..Model::instant() };

    fn fixture(inner: Arc<dyn Device>, model: Model) -> Fixture {
        super::os::fixture(Arc::new(Paced::new(inner, model)))
    }

    mod threads_instant {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::threads().unwrap(), super::Model::instant())
        }
        crate::conformance::conformance!(fixture);
    }

    mod threads_slow {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::threads().unwrap(), super::SLOW)
        }
        crate::conformance::conformance!(fixture);
    }

    #[cfg(target_os = "linux")]
    mod uring_instant {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::uring().unwrap(), super::Model::instant())
        }
        crate::conformance::conformance!(fixture);
    }

    #[cfg(target_os = "linux")]
    mod uring_slow {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::uring().unwrap(), super::SLOW)
        }
        crate::conformance::conformance!(fixture);
    }

    mod cached {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::open_cached().unwrap(), super::Model::ssd_array_40())
        }
        crate::conformance::conformance!(fixture);
    }
}

/// Metered devices over those of the operating system.
#[cfg(unix)]
mod metered {
    use std::sync::Arc;

    use super::Fixture;
    use crate::interface::Device;
    use crate::metered::Metering;

    fn fixture(inner: Arc<dyn Device>) -> Fixture {
        super::os::fixture(Arc::new(Metering::new(inner, &["any"], |_| 0)))
    }

    mod threads {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::threads().unwrap())
        }
        crate::conformance::conformance!(fixture);
    }

    #[cfg(target_os = "linux")]
    mod uring {
        fn fixture() -> super::Fixture {
            super::fixture(crate::select::uring().unwrap())
        }
        crate::conformance::conformance!(fixture);
    }
}

mod simulated {
    use super::Fixture;
    use crate::simulated::{Model, Simulated, SimulatedOptions};

    fn fixture(model: Model) -> Fixture {
        let device = Simulated::new(SimulatedOptions { seed: 1, model, capacity_bytes: None }).device();
        device.create_dir("/db".as_ref()).unwrap();
        Fixture { device, dir: "/db".into(), _guard: None }
    }

    mod instant {
        fn fixture() -> super::Fixture {
            super::fixture(super::Model::instant())
        }
        crate::conformance::conformance!(fixture);
    }

    mod array {
        fn fixture() -> super::Fixture {
            super::fixture(super::Model::ssd_array_40())
        }
        crate::conformance::conformance!(fixture);
    }
}
