//! The machine's caches: sizes, ways, and the processors that share them.
//!
//! Linux describes them in `/sys/devices/system/cpu/cpu*/cache`. If that is missing, x86 processors describe them by
//! CPUID. On a virtual machine both may report more than is available, because the last level is often shared with
//! other virtual machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The contents of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

/// One instance of a cache, shared by a set of logical processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 for L1, and so on.
    pub level: u32,
    /// The contents.
    pub kind: CacheKind,
    /// Capacity.
    pub bytes: u64,
    /// Bytes of a cache line; 0 if unknown.
    pub line_bytes: u32,
    /// Associativity; 0 if unknown.
    pub ways: u32,
    /// The number of the cache's domain in resctrl.
    pub id: u32,
    /// Logical processors that use the cache; empty if unknown.
    pub processors: Vec<u32>,
}

/// All caches of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Caches {
    /// Sorted by level, kind and id.
    pub all: Vec<Cache>,
}

impl Caches {
    /// The caches as described by the operating system, else by the processor; empty if neither describes them.
    pub fn detect() -> Self {
        let from_system = Self::from_sysfs(Path::new("/sys/devices/system/cpu"));
        if from_system.all.is_empty() { Self::from_processor() } else { from_system }
    }

    /// Reads a directory with the layout of `/sys/devices/system/cpu`. Unreadable caches are omitted.
    pub fn from_sysfs(directory: &Path) -> Self {
        let mut all: Vec<Cache> = Vec::new();
        for cpu in entries(directory, "cpu") {
            for index in entries(&directory.join(format!("cpu{cpu}/cache")), "index") {
                let at = directory.join(format!("cpu{cpu}/cache/index{index}"));
                let Some(cache) = read_cache(&at, cpu) else { continue };
                let same = |other: &&mut Cache| {
                    (other.level, other.kind, other.id) == (cache.level, cache.kind, cache.id)
                        && (other.processors.contains(&cpu) || cache.processors.is_empty())
                };
                match all.iter_mut().find(same) {
                    Some(known) if !known.processors.contains(&cpu) => known.processors.push(cpu),
                    Some(_) => {}
                    None => all.push(cache),
                }
            }
        }
        all.sort_by_key(|cache| (cache.level, cache.kind != CacheKind::Data, cache.id));
        Caches { all }
    }

    /// One cache of each level and kind, as CPUID describes those of the current processor.
    #[cfg(target_arch = "x86_64")]
    fn from_processor() -> Self {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let amd = __cpuid(0x8000_0000).eax >= 0x8000_001d && __cpuid(0x8000_0001).ecx & (1 << 22) != 0;
        let leaf = if amd { 0x8000_001d } else { 4 };
        if !amd && __cpuid(0).eax < 4 {
            return Caches::default();
        }
        let describe = |index: u32| {
            let leaf = __cpuid_count(leaf, index);
            let kind = match leaf.eax & 31 {
                1 => CacheKind::Data,
                2 => CacheKind::Instruction,
                3 => CacheKind::Unified,
                _ => return None,
            };
            let (line, ways) = ((leaf.ebx & 0xfff) + 1, (leaf.ebx >> 22) + 1);
            let partitions = ((leaf.ebx >> 12) & 0x3ff) + 1;
            let bytes = u64::from(line) * u64::from(ways) * u64::from(partitions) * (u64::from(leaf.ecx) + 1);
            let level = (leaf.eax >> 5) & 7;
            Some(Cache { level, kind, bytes, line_bytes: line, ways, id: 0, processors: Vec::new() })
        };
        Caches { all: (0..16).map_while(describe).collect() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn from_processor() -> Self {
        Caches::default()
    }

    /// The first cache of a level that holds data.
    pub fn data(&self, level: u32) -> Option<&Cache> {
        self.all.iter().find(|cache| cache.level == level && cache.kind != CacheKind::Instruction)
    }

    /// The first cache of the highest level that holds data.
    pub fn last_level(&self) -> Option<&Cache> {
        self.all.iter().map(|cache| cache.level).max().and_then(|level| self.data(level))
    }

    /// Bytes of the first data cache of a level; if unknown, an assumed 32 KiB, 512 KiB or 8 MiB for levels 1 to 3.
    pub fn bytes(&self, level: u32) -> u64 {
        const ASSUMED: [u64; 3] = [32 << 10, 512 << 10, 8 << 20];
        let assumed = ASSUMED[(level.clamp(1, 3) - 1) as usize];
        self.data(level).map_or(assumed, |cache| cache.bytes)
    }
}

/// The numbers after `prefix` in the names of a directory's entries, sorted.
fn entries(directory: &Path, prefix: &str) -> BTreeSet<u32> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

fn read_cache(directory: &Path, cpu: u32) -> Option<Cache> {
    let text = |name: &str| fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_string());
    let number = |name: &str| text(name).and_then(|text| text.parse::<u32>().ok());
    let kind = match text("type")?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        "Unified" => CacheKind::Unified,
        _ => return None,
    };
    Some(Cache {
        level: number("level")?,
        kind,
        bytes: parse_size(&text("size")?)?,
        line_bytes: number("coherency_line_size").unwrap_or(0),
        ways: number("ways_of_associativity").unwrap_or(0),
        id: number("id").unwrap_or(0),
        processors: text("shared_cpu_list").and_then(|list| parse_list(&list)).unwrap_or_else(|| vec![cpu]),
    })
}

/// A size such as `32768K`, `4M` or `1000` (bytes).
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A list such as `0-3,8,10-11`.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    const LONGEST: u32 = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if last < first || last - first > LONGEST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes() {
        assert_eq!(parse_list("0-2,7, 9-9\n"), Some(vec![0, 1, 2, 7, 9]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert!(parse_list("3-1").is_none() && parse_list("a").is_none() && parse_list("0-4294967295").is_none());
        assert_eq!((parse_size("32K"), parse_size("4M"), parse_size("17")), (Some(32 << 10), Some(4 << 20), Some(17)));
        assert!(
            parse_size("K").is_none() && parse_size("1T").is_none() && parse_size("99999999999999999999K").is_none()
        );
    }

    #[test]
    fn two_sockets_of_two_processors() {
        let directory = tempfile::tempdir().unwrap();
        for cpu in 0..4 {
            let make = |index: u32, level: u32, kind: &str, size: &str, id: u32, shared: &str| {
                let at = directory.path().join(format!("cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&at).unwrap();
                let files = [("level", level.to_string()), ("type", kind.into()), ("size", size.into())];
                for (name, text) in files {
                    fs::write(at.join(name), text + "\n").unwrap();
                }
                fs::write(at.join("id"), id.to_string()).unwrap();
                fs::write(at.join("shared_cpu_list"), shared).unwrap();
                fs::write(at.join("ways_of_associativity"), "20").unwrap();
            };
            make(0, 1, "Data", "32K", cpu, &cpu.to_string());
            make(1, 1, "Instruction", "32K", cpu, &cpu.to_string());
            make(3, 3, "Unified", "10240K", cpu / 2, if cpu < 2 { "0-1" } else { "2-3" });
        }
        fs::create_dir(directory.path().join("cpufreq")).unwrap();
        let caches = Caches::from_sysfs(directory.path());
        assert_eq!(caches.all.len(), 4 + 4 + 2);
        let last = caches.last_level().unwrap();
        assert_eq!((last.level, last.bytes, last.ways, last.id), (3, 10 << 20, 20, 0));
        assert_eq!(last.processors, [0, 1]);
        assert_eq!(caches.all.last().unwrap().processors, [2, 3]);
        assert_eq!((caches.bytes(1), caches.bytes(2)), (32 << 10, 512 << 10));
    }

    #[test]
    fn the_caches_of_this_machine_are_printed() {
        assert_eq!(Caches::from_sysfs(Path::new("/nowhere")), Caches::default());
        println!("{:#?}", Caches::detect());
        println!("by CPUID: {:#?}", Caches::from_processor());
    }
}
