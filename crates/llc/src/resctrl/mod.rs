//! Hardware partitioning of caches by Linux's resctrl file system (Intel CAT, AMD QoS).
//!
//! A *class of service* (CLOS) is a directory in the file system. Its `schemata` file contains a [capacity bit
//! mask](crate::CapacityMask) for each domain (instance) of each cache, its `tasks` file the threads in it. A thread
//! *allocates* only in the parts of the cache that its mask names; it *hits* lines anywhere. Lines loaded under one
//! class therefore stay in the cache while other classes stream past.
//!
//! ```text
//! /sys/fs/resctrl/                     the default class: everybody at first
//! ├── info/L3/{cbm_mask, min_cbm_bits, shareable_bits, num_closids, sparse_masks}
//! ├── info/last_cmd_status             reason for the failure of the last command
//! ├── schemata                         L3:0=fffff;1=fffff
//! ├── tasks
//! ├── mon_data/mon_L3_00/{llc_occupancy, mbm_total_bytes, mbm_local_bytes}
//! └── keyaki-4026531836-812-90211-streaming/{schemata, tasks, mon_data/…}     a group of Keyaki
//! ```
//!
//! - [`detect`] checks for the hardware, kernel support and a writable mount. If one is missing, [`Unavailable`] gives
//!   the reason in one line. Nothing is mounted unless [`Mount::IfAbsent`] is set.
//! - [`Control`] creates and removes [`Group`]s. Group names contain the owning process (PID namespace, process id and
//!   start time), so groups of dead processes are recognised and removed. All other groups are foreign and never
//!   touched.
//! - [`Tree`] is the file system as a trait. [`FakeTree`] behaves like the kernel, for tests.
//!
//! Invariants: written masks are valid for the machine (contiguous unless it allows sparse masks, with its minimum of
//! bits), lie within the mask of the default class, and do not overlap parts that groups in exclusive mode own. Groups
//! are removed when they are dropped, at the exit of the process, and after a crash by the next process that starts.

mod capabilities;
mod control;
mod detect;
mod error;
mod fake;
mod monitor;
mod owner;
mod schemata;
#[cfg(test)]
mod tests;
mod tree;

pub use capabilities::{Capabilities, Domain, Monitoring, Resource, ResourceKind};
pub use control::{ClassMasks, Control, Group};
pub use detect::{DetectOptions, Mount, detect, open};
pub use error::{Error, Operation, Result, Unavailable};
pub use fake::{FakeOptions, FakeTree};
pub use monitor::Usage;
pub use owner::{Owner, Processes, SystemProcesses};
pub use schemata::{Schemata, SchemataLine};
pub use tree::{OsTree, Tree};
