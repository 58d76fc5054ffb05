//! Hardware partitioning of caches, through Linux's resctrl file system (Intel CAT, AMD QoS).
//!
//! A *class of service* is a directory in the file system: its `schemata` file holds a [capacity mask](crate::CapacityMask) for
//! each domain (instance) of each cache, its `tasks` file the threads in it. A thread may *allocate* only in the parts of the
//! cache that its mask names; it *hits* anywhere. So what was brought in under one class stays while others stream past.
//!
//! ```text
//! /sys/fs/resctrl/                     the default class: everybody at first
//! ├── info/L3/{cbm_mask, min_cbm_bits, shareable_bits, num_closids, sparse_masks}
//! ├── info/last_cmd_status             why the last command failed
//! ├── schemata                         L3:0=fffff;1=fffff
//! ├── tasks
//! ├── mon_data/mon_L3_00/{llc_occupancy, mbm_total_bytes, mbm_local_bytes}
//! └── keyaki-4026531836-812-90211-streaming/{schemata, tasks, mon_data/…}     one of ours
//! ```
//!
//! - [`detect`] looks whether there is such hardware, a kernel that knows it and a mount that may be written to; if not, an
//!   [`Unavailable`] says why in a line. Nothing is mounted unless that is asked for.
//! - [`Control`] makes and removes [`Group`]s. Their names tell the process they belong to (by PID namespace, process id and start
//!   time), so that those of dead processes are recognised and removed; all others are foreign and never touched.
//! - [`Tree`] is the file system as a trait; [`FakeTree`] behaves as the kernel does, for tests.
//!
//! What holds: masks written are valid for the machine (contiguous unless it allows others, with its minimum of bits), keep within
//! what the default class may use, and keep off what groups in exclusive mode own. Whatever is made is removed when the
//! [`Control`] is dropped, and at the exit of the process; after a crash, by the next one that starts.

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
pub use error::{Error, Result, Unavailable};
pub use fake::{FakeOptions, FakeTree};
pub use monitor::Usage;
pub use owner::{Owner, Processes, SystemProcesses};
pub use schemata::{Schemata, SchemataLine};
pub use tree::{OsTree, Tree};
