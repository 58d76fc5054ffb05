//! Detection of hardware partitioning: hardware, kernel support, mount, permission, a free class of service.
//!
//! The checks run in this order, and the first missing condition is the reason returned.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::process::Command;
use std::sync::Arc;

use super::capabilities::groups;
use super::{Capabilities, Control, OsTree, Processes, SystemProcesses, Tree, Unavailable};

/// Treatment of a machine where resctrl is not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mount {
    /// Mounting is left to the administrator.
    #[default]
    Respect,
    /// Mounts resctrl, and unmounts it at the end unless there are groups of others.
    IfAbsent {
        /// Enables code and data prioritisation.
        cdp: bool,
    },
}

/// Options of [`detect`].
#[derive(Debug, Clone)]
pub struct DetectOptions {
    /// Treatment of a missing mount.
    pub mount: Mount,
    /// Root of the process file system.
    pub proc: PathBuf,
    /// Mount point for [`Mount::IfAbsent`].
    pub mount_point: PathBuf,
}

impl Default for DetectOptions {
    fn default() -> Self {
        DetectOptions { mount: Mount::Respect, proc: "/proc".into(), mount_point: "/sys/fs/resctrl".into() }
    }
}

/// Opens control of the machine's caches.
///
/// # Errors
/// The reason why caches cannot be partitioned.
pub fn detect(options: &DetectOptions) -> Result<Control, Unavailable> {
    if !cfg!(target_os = "linux") {
        return Err(Unavailable::NotLinux);
    }
    let mounts = fs::read_to_string(options.proc.join("self/mounts")).unwrap_or_default();
    let processes = Arc::new(SystemProcesses);
    if let Some((path, read_only)) = find_mount(&mounts) {
        if read_only {
            return Err(Unavailable::ReadOnly(path));
        }
        return open(Arc::new(OsTree::new(&path)), processes);
    }
    let filesystems = fs::read_to_string(options.proc.join("filesystems")).unwrap_or_default();
    if !filesystems.lines().any(|line| line.split_whitespace().last() == Some("resctrl")) {
        // The kernel lists resctrl only if the hardware can control or monitor a resource.
        return Err(if processor_partitions() { Unavailable::NoKernelSupport } else { Unavailable::NoHardware });
    }
    match options.mount {
        Mount::Respect => Err(Unavailable::NotMounted),
        Mount::IfAbsent { cdp } => {
            mount(&options.mount_point, cdp)?;
            let guard = Unmount(options.mount_point.clone());
            let control = open(Arc::new(OsTree::new(&options.mount_point)), processes)?;
            Ok(control.with_mount(guard))
        }
    }
}

/// Opens control through a tree: removes groups of dead processes, reads the capabilities, and creates a group as a
/// probe.
///
/// # Errors
/// The reason why caches cannot be partitioned.
pub fn open(tree: Arc<dyn Tree>, processes: Arc<dyn Processes>) -> Result<Control, Unavailable> {
    super::control::remove_stale(tree.as_ref(), processes.as_ref());
    let capabilities = Capabilities::read(tree.as_ref())?;
    let (me, threads) = (processes.me(), processes.my_threads());
    for group in groups(tree.as_ref()) {
        let tasks = tree.read(&format!("{group}/tasks")).unwrap_or_default();
        let ours = super::Owner::of_group(&group) == Some(me);
        if !ours && tasks.lines().any(|line| line.trim().parse().is_ok_and(|task| threads.contains(&task))) {
            return Err(Unavailable::ForeignGroup(group));
        }
    }
    let (location, classes) = (tree.location(), capabilities.classes);
    let control = Control::new(tree, me, capabilities);
    match control.create("probe") {
        Ok(_) => Ok(control),
        Err(error) => Err(match error.kind {
            std::io::ErrorKind::PermissionDenied => Unavailable::NoPermission(location),
            std::io::ErrorKind::ReadOnlyFilesystem => Unavailable::ReadOnly(location),
            std::io::ErrorKind::StorageFull => Unavailable::NoClass(classes),
            _ => Unavailable::Unexpected(error.to_string()),
        }),
    }
}

/// The mount point of resctrl, and true if it is read-only, from the text of `/proc/self/mounts`.
fn find_mount(mounts: &str) -> Option<(PathBuf, bool)> {
    let mut found = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(_), Some(path), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if kind == "resctrl" {
            let read_only = options.split(',').any(|option| option == "ro");
            // Prefer a writable mount. Of several such, the last one hides the others.
            if found.as_ref().is_none_or(|(_, other_read_only)| *other_read_only || !read_only) {
                found = Some((PathBuf::from(unescape(path)), read_only));
            }
        }
    }
    found
}

/// Replaces octal escapes such as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// True if CPUID reports cache allocation (leaf 7: the feature; leaf 16: its levels).
#[cfg(target_arch = "x86_64")]
fn processor_partitions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let leaves = __cpuid(0).eax;
    leaves >= 0x10 && __cpuid_count(7, 0).ebx & (1 << 15) != 0 && __cpuid_count(0x10, 0).ebx & 0b110 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn processor_partitions() -> bool {
    false
}

/// Mounts resctrl by the `mount` program.
#[cfg(target_os = "linux")]
fn mount(at: &Path, cdp: bool) -> Result<(), Unavailable> {
    let options = if cdp { "nosuid,nodev,noexec,cdp" } else { "nosuid,nodev,noexec" };
    let output = Command::new("mount").args(["-t", "resctrl", "-o", options, "resctrl"]).arg(at).output();
    let why = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => format!("mount: {error}"),
    };
    Err(Unavailable::MountFailed { path: at.to_path_buf(), why })
}

#[cfg(not(target_os = "linux"))]
fn mount(_: &Path, _: bool) -> Result<(), Unavailable> {
    Err(Unavailable::NotLinux)
}

/// A mount made by this process. Dropping it unmounts, unless there are groups of others.
#[derive(Debug)]
pub(super) struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if groups(&OsTree::new(&self.0)).is_empty() {
            let _ = Command::new("umount").arg(&self.0).output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found() {
        let line = |path: &str, options: &str| format!("resctrl {path} resctrl {options} 0 0\n");
        assert_eq!(find_mount("proc /proc proc rw 0 0\n"), None);
        assert_eq!(find_mount(&line("/sys/fs/resctrl", "rw,nosuid,cdp")), Some(("/sys/fs/resctrl".into(), false)));
        assert_eq!(find_mount(&line("/a\\040b\\", "ro,nosuid")), Some(("/a b\\".into(), true)));
        let two = line("/a", "rw") + &line("/b", "ro");
        assert_eq!(find_mount(&two), Some(("/a".into(), false)));
        assert_eq!(find_mount("garbage\n\nx y"), None);
    }

    #[test]
    fn the_first_missing_condition_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let options = DetectOptions { proc: directory.path().into(), ..DetectOptions::default() };
        let write = |file: &str, text: &str| {
            fs::create_dir_all(directory.path().join("self")).unwrap();
            fs::write(directory.path().join(file), text).unwrap();
        };
        let reason = || detect(&options).unwrap_err();
        if !cfg!(target_os = "linux") {
            return assert_eq!(reason(), Unavailable::NotLinux);
        }
        assert!(matches!(reason(), Unavailable::NoHardware | Unavailable::NoKernelSupport));
        write("filesystems", "nodev\tproc\nnodev\tresctrl\n");
        assert_eq!(reason(), Unavailable::NotMounted);
        write("self/mounts", "resctrl /nowhere/at-all resctrl ro 0 0\n");
        assert_eq!(reason(), Unavailable::ReadOnly("/nowhere/at-all".into()));
        write("self/mounts", "resctrl /nowhere/at-all resctrl rw 0 0\n");
        assert!(matches!(reason(), Unavailable::Unexpected(_)));
    }

    /// Uses a real mount, if the machine has one: creates a group, narrows its masks, and removes it.
    #[test]
    fn a_real_mount_if_there_is_one() {
        match detect(&DetectOptions::default()) {
            Err(reason) => println!("no real resctrl on this machine, only the fake tree is tested: {reason}"),
            Ok(control) => {
                println!("real resctrl: {:#?}", control.capabilities());
                let group = control.create("test").unwrap();
                group.set(&super::super::ClassMasks { l3: Some((0, 1)), l2: Some((0, 1)) }).unwrap();
                println!("{:?} {:?}", group.schemata().unwrap(), group.usage());
            }
        }
    }
}
