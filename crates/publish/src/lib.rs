//! Checkpoints in object stores: S3, Google Cloud Storage, Azure Blob Storage, or a directory.
//!
//! A [`Repository`] is a prefix in an object store that holds *versions* of one database. A version is a checkpoint:
//! a data file with holes, whose extents lie in immutable objects, and a manifest that maps ranges of the data file
//! to ranges of objects. [`Repository::publish`] adds a version, [`Repository::open_version`] opens one as a
//! [`VersionDevice`], on which [`keyaki_store::Store::open_read_only`] works as on any other device,
//! [`Repository::clone_version`] makes a local database of one, and [`Repository::collect`] removes old ones.
//! Apart from that, [`Buckets`] have the objects that statements read and write as files.
//!
//! ```
//! use keyaki_device::open_default;
//! use keyaki_publish::{PublishOptions, ReadOptions, Repository};
//! use keyaki_store::{Options, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! # let (database, bucket) = (dir.path().join("shop"), dir.path().join("bucket"));
//! let store = Store::open(open_default()?, &database, Options::default())?;
//! # std::fs::create_dir(&bucket)?;
//! let url = format!("file://{}", bucket.display());
//! let repository = Repository::from_url(&url)?;
//! let published = repository.publish(&store, &PublishOptions::default(), &|_done, _total| true)?;
//! assert_eq!(published.map(|published| published.version.number), Some(1));
//!
//! let device = repository.open_version(None, &ReadOptions::default())?;
//! let reader = Store::open_read_only(device.clone(), device.directory(), Options::default())?;
//! assert_eq!(reader.snapshot().sequence(), store.snapshot().sequence());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The features `aws`, `azure` and `gcp` add the clients of these stores.
//!
//! The modules are layers, lowest first; a module uses its own layer and the layers before it:
//! `error < format, parallel, random < remote < cache, repository < collector, files, publisher, reader < copy`.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod cache;
mod collector;
mod copy;
mod error;
mod files;
mod format;
mod parallel;
mod publisher;
mod random;
mod reader;
mod remote;
mod repository;

pub use cache::DiskCacheOptions;
pub use collector::{CollectOptions, Collected};
pub use copy::Cloned;
pub use error::{Error, Result};
pub use files::{Bucket, Buckets, ListedFile, ObjectFile, ObjectReader, ObjectWriter, Stop};
pub use publisher::{PublishOptions, Published};
pub use reader::{ReadOptions, ReadStats, VersionDevice};
pub use remote::{RequestOptions, RequestStats};
pub use repository::{Repository, Version};
