//! Memory for measurements and hot data: from huge pages where the system has them, so that caches are seen and not the tables by
//! which addresses are translated.

use std::io;

/// Zeroed memory, aligned to 2 MiB where the system allows.
#[derive(Debug)]
pub struct Memory {
    #[cfg(target_os = "linux")]
    mapping: (*mut u8, usize),
    start: *mut u64,
    words: usize,
    #[cfg(not(target_os = "linux"))]
    _owner: Vec<u64>,
}

// SAFETY: the memory belongs to this value alone; it is reached through `&self` only to be read.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const HUGE: usize = 2 << 20;

impl Memory {
    /// At least `bytes` bytes, in whole words.
    ///
    /// # Errors
    /// If there is not that much.
    #[cfg(target_os = "linux")]
    pub fn new(bytes: usize) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let words = bytes.div_ceil(8).max(1);
        let total = (words * 8).checked_next_multiple_of(HUGE).and_then(|bytes| bytes.checked_add(HUGE));
        let total = total.filter(|total| *total < isize::MAX as usize);
        let total = total.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new private mapping anywhere touches nothing that exists.
        let mapping = unsafe {
            mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let mapping = mapping.cast::<u8>();
        let aligned = mapping.wrapping_add(mapping.align_offset(HUGE));
        // SAFETY: the range is within the mapping; advice changes no contents. If it is not taken, pages are small.
        let _ = unsafe { madvise(aligned.cast(), total - HUGE, Advice::LinuxHugepage) };
        Ok(Memory { mapping: (mapping, total), start: aligned.cast(), words })
    }

    /// At least `bytes` bytes, in whole words.
    ///
    /// # Errors
    /// Never: without the memory the process ends.
    #[cfg(not(target_os = "linux"))]
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mut owner = vec![0_u64; bytes.div_ceil(8).max(1)];
        Ok(Memory { start: owner.as_mut_ptr(), words: owner.len(), _owner: owner })
    }

    pub fn words(&self) -> &[u64] {
        // SAFETY: `words` words from `start` on are ours, initialised, and changed only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`; `&mut self` excludes all others.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.words) }
    }

    /// Bytes of it that are in huge pages by now; `None` if the system does not tell.
    pub fn huge_bytes(&self) -> Option<u64> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let address = self.start as u64;
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.and_then(|(first, end)| {
                Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
            });
            if let Some((first, end)) = range {
                inside = (first..end).contains(&address);
            } else if let Some(rest) = line.strip_prefix("AnonHugePages:")
                && inside
            {
                return Some(rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10);
            }
        }
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives this value. A failure would only leak it.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.cast(), self.mapping.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_writable() {
        let mut memory = Memory::new(5_000_001).unwrap();
        assert_eq!(memory.words().len(), 625_001);
        assert!(memory.words().iter().all(|word| *word == 0));
        memory.words_mut()[625_000] = 7;
        assert_eq!(memory.words()[625_000], 7);
        if cfg!(target_os = "linux") {
            assert!(memory.words().as_ptr().addr().is_multiple_of(HUGE));
            assert!(memory.huge_bytes().is_some());
            assert!(Memory::new(usize::MAX - 7).is_err());
        }
        assert_eq!(Memory::new(0).unwrap().words().len(), 1);
    }
}
