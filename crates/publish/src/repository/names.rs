//! The names of the objects of a repository.

use object_store::path::Path;

use crate::format::ObjectId;
use crate::remote::STAGING;

/// The prefix of a repository.
#[derive(Debug, Clone)]
pub(crate) struct Names(Path);

impl Names {
    pub fn new(prefix: Path) -> Self {
        Names(prefix)
    }

    fn folder(&self, name: &str) -> Path {
        self.0.clone().join(name)
    }

    pub fn versions(&self) -> Path {
        self.folder("versions")
    }

    pub fn version(&self, number: u64) -> Path {
        self.versions().join(format!("{number:016x}"))
    }

    pub fn objects(&self) -> Path {
        self.folder("objects")
    }

    pub fn object(&self, id: ObjectId) -> Path {
        let name = id.to_string();
        self.objects().join(&name[..2]).join(name)
    }

    pub fn leases(&self) -> Path {
        self.folder("leases")
    }

    /// The name of a lease that began at this time of the store's clock.
    pub fn lease(&self, started_us: i64, random: u64) -> Path {
        self.leases().join(format!("{started_us:016x}-{random:016x}"))
    }

    /// When a lease began; `None` for other objects.
    pub fn lease_start_us(path: &Path) -> Option<i64> {
        i64::from_str_radix(path.filename()?.split_once('-')?.0, 16).ok()
    }

    pub fn retired(&self) -> Path {
        self.folder("retired")
    }

    /// The list of the objects of a retired version, whose manifest has a random number.
    pub fn retired_version(&self, number: u64, nonce: u64) -> Path {
        self.retired().join(format!("{number:016x}-{nonce:016x}"))
    }

    /// Files under construction, if the store is a directory.
    pub fn staging(&self) -> Path {
        self.folder(STAGING)
    }

    pub fn clock(&self) -> Path {
        self.folder("clock")
    }

    /// The number of a version or a fence; `None` for other objects.
    pub fn number(path: &Path) -> Option<u64> {
        let name = path.filename()?;
        let number = u64::from_str_radix(name, 16).ok()?;
        (format!("{number:016x}") == name).then_some(number)
    }

    /// The id of an object; `None` for other objects.
    pub fn id(path: &Path) -> Option<ObjectId> {
        ObjectId::parse(path.filename()?)
    }
}
