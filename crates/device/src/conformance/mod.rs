//! What every device must do: one suite of tests, run over each of them.

mod files;
mod queues;

use std::path::PathBuf;
use std::sync::Arc;

use crate::{BLOCK, Buffer, Device, File, OpenMode};
pub(crate) use files::*;
pub(crate) use queues::*;

/// A device and a directory of it to work in.
pub(crate) struct Place {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) dir: PathBuf,
    /// Removes `dir` at the end, where that is needed.
    pub(crate) _guard: Option<tempfile::TempDir>,
}

/// Instantiates the suite for the places that `$place` (a function) makes.
macro_rules! conformance {
    ($place:path: $($test:ident),* $(,)?) => {
        $(#[test] fn $test() { $crate::conformance::$test(&$place()); })*
    };
    ($place:path) => {
        $crate::conformance::conformance!($place:
            names_and_directories, open_modes, lengths, locks, read_back, errors, queue_round_trip, short_reads,
            backlog, invalid_requests, buffers, wakers, wake_storm, time_outs, drop_in_flight, sync_requests,
            many_requests, deep_queue, many_wakers, moved_queue, independent_queues);
    };
}
pub(crate) use conformance;

impl Place {
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

/// Fills a block with bytes that tell its number.
fn pattern(block: u64, bytes: &mut [u8]) {
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(block * 1_000_003 + i as u64).to_le_bytes());
    }
}

fn assert_blocks(first: u64, bytes: &[u8]) {
    let mut expected = [0; BLOCK];
    for (i, block) in bytes.chunks_exact(BLOCK).enumerate() {
        pattern(first + i as u64, &mut expected);
        assert!(block == expected, "block {} has other contents", first + i as u64);
    }
}

#[cfg(unix)]
mod os {
    use super::Place;

    fn place(device: std::sync::Arc<dyn crate::Device>) -> Place {
        let guard = tempfile::tempdir().unwrap();
        Place { device, dir: guard.path().to_path_buf(), _guard: Some(guard) }
    }

    mod threads {
        fn place() -> super::Place {
            super::place(crate::threads().unwrap())
        }
        crate::conformance::conformance!(place);
    }

    #[cfg(target_os = "linux")]
    mod uring {
        fn place() -> super::Place {
            super::place(crate::uring().unwrap())
        }
        crate::conformance::conformance!(place);
    }

    /// As on older kernels.
    #[cfg(target_os = "linux")]
    mod uring_cooperative {
        fn place() -> super::Place {
            super::uring_place(crate::uring::Setup::Cooperative)
        }
        crate::conformance::conformance!(place);
    }

    #[cfg(target_os = "linux")]
    mod uring_plain {
        fn place() -> super::Place {
            super::uring_place(crate::uring::Setup::Plain)
        }
        crate::conformance::conformance!(place);
    }

    /// On a file system in memory, which may refuse direct I/O.
    #[cfg(target_os = "linux")]
    fn uring_place(setup: crate::uring::Setup) -> Place {
        let device = std::sync::Arc::new(crate::os::OsDevice::new(crate::os::Backend::Uring(setup)));
        let guard = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Place { device, dir: guard.path().to_path_buf(), _guard: Some(guard) }
    }
}

mod simulated {
    use super::Place;
    use crate::simulated::{Model, Simulated, SimulatedOptions};

    fn place(model: Model) -> Place {
        let device = Simulated::new(SimulatedOptions { seed: 1, model, capacity_bytes: None }).device();
        device.create_dir("/db".as_ref()).unwrap();
        Place { device, dir: "/db".into(), _guard: None }
    }

    mod instant {
        fn place() -> super::Place {
            super::place(super::Model::instant())
        }
        crate::conformance::conformance!(place);
    }

    mod array {
        fn place() -> super::Place {
            super::place(super::Model::ssd_array_40())
        }
        crate::conformance::conformance!(place);
    }
}
