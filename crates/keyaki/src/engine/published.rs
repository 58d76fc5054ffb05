//! Published versions as databases: `s3://bucket/shop`, `file:///backups/shop@12`.
//!
//! A version is a device with one file ([`keyaki_publish::VersionDevice`]), on which a database is open read-only. The
//! speed of the store is measured by the reads that opening needs: it decides between scans and lookups, as that of a
//! local device does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keyaki_device::calibrate::Calibration;
use keyaki_device::model::Model;
use keyaki_exec::ExecutorOptions;
use keyaki_publish::{ReadOptions, Repository, RequestOptions, VersionDevice};

use crate::base::options::MEMORY_BYTES_MIN;
use crate::{Options, Result};

/// A part of the memory is for frames as they are in objects. The pages of these frames are in the page cache.
const FRAMES_PART: usize = 16;
/// The latency of a store from which nothing has been read, in nanoseconds.
const LATENCY_NS: u64 = 30_000_000;
/// The data rate of a store in bytes per second: a network of 10 Gbit/s.
const BYTES_PER_SECOND: u64 = 1_000_000_000;
/// Tasks for each request in flight: others wait for pages that are being read, or compute.
const TASKS_PER_REQUEST: usize = 4;

/// True if a path is the URL of an object store, as `s3://bucket/shop`.
pub(crate) fn is_url(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// The URL of a repository, and the number of a version after `@`.
pub(crate) fn split_version(url: &str) -> (&str, Option<u64>) {
    let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    match url.rsplit_once('@').map(|(repository, text)| (repository, number(text))) {
        Some((repository, Some(number))) => (repository, Some(number)),
        _ => (url, None),
    }
}

/// Opens a version as a device, with the options of a database on it.
///
/// # Errors
/// `ObjectStore`.
pub(super) fn open(url: &str, options: Options) -> Result<(Arc<VersionDevice>, Options)> {
    let (repository, number) = split_version(url);
    let memory_bytes = options.memory_bytes();
    let frames_bytes = memory_bytes / FRAMES_PART;
    let read = ReadOptions { memory_bytes: frames_bytes, disk: options.object_cache.clone() };
    let repository = Repository::from_url_with(repository, &options.object_store, RequestOptions::default())?;
    let device = repository.open_version(number, &read)?;
    // Less than the minimum remains an error.
    let memory_bytes = memory_bytes.min((memory_bytes - frames_bytes).max(MEMORY_BYTES_MIN));
    let threads = options.threads.unwrap_or_else(super::default_threads).max(1);
    let options = Options {
        device: Some(device.clone()),
        must_exist: true,
        read_only: true,
        memory_bytes: Some(memory_bytes),
        executor: Some(options.executor.clone().unwrap_or_else(|| executor(threads))),
        ..options
    };
    Ok((device, options))
}

/// Options of an executor whose workers together have as many requests in flight as the client permits.
fn executor(workers: usize) -> ExecutorOptions {
    let default = ExecutorOptions::default();
    let queue_depth = RequestOptions::default().requests_max.div_ceil(workers).max(default.queue_depth);
    let tasks_in_flight = (TASKS_PER_REQUEST * queue_depth).max(default.tasks_in_flight);
    ExecutorOptions { workers, queue_depth, tasks_in_flight, ..default }
}

/// The speed of the store, from the latencies of the reads so far.
pub(super) fn calibration(device: &VersionDevice) -> Calibration {
    let nanos = |latency: Duration| u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    // Below a microsecond, the model has no meaning.
    let latency_ns = device.latency().map_or(LATENCY_NS, nanos).max(1_000);
    let requests = RequestOptions::default().requests_max as u64;
    let requests_per_second = (u128::from(requests) * 1_000_000_000 / u128::from(latency_ns)) as u64;
    Calibration::of_model(Model::cloud(latency_ns, requests_per_second.max(1), BYTES_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_versions() {
        for url in ["s3://bucket/shop", "file:///a", "gs://b", "S3://b/@"] {
            assert!(is_url(Path::new(url)), "{url}");
        }
        for path in ["shop", "/a/b", "./s3://b", "://b", "a b://c", "c:\\d", ""] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
        assert_eq!(split_version("s3://b/shop@12"), ("s3://b/shop", Some(12)));
        for url in ["s3://b/shop", "s3://b/shop@", "s3://b/a@1/shop", "s3://b/shop@x", "s3://b/shop@+1"] {
            assert_eq!(split_version(url), (url, None));
        }
    }

    #[test]
    fn workers_share_the_requests_of_the_client() {
        let options = executor(2);
        assert_eq!((options.workers, options.queue_depth), (2, 256));
        assert!(options.tasks_in_flight >= 1024);
    }
}
