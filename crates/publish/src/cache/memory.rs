//! The cache in memory: the frames that were used last, up to a number of bytes.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use super::{Frame, FrameId};

/// Evicts the frame that was not used for the longest time.
#[derive(Debug)]
pub(crate) struct MemoryCache {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// With the time of the last use.
    frames: HashMap<FrameId, (Frame, u64)>,
    by_use: BTreeMap<u64, FrameId>,
    /// Number of uses.
    time: u64,
    bytes: usize,
}

impl MemoryCache {
    pub fn new(bytes_max: usize) -> Self {
        MemoryCache { bytes_max, state: Mutex::default() }
    }

    pub fn get(&self, id: FrameId) -> Option<Frame> {
        let state = &mut *self.state.lock();
        let (frame, used) = state.frames.get_mut(&id)?;
        state.time += 1;
        state.by_use.remove(used);
        *used = state.time;
        state.by_use.insert(state.time, id);
        Some(frame.clone())
    }

    pub fn insert(&self, id: FrameId, frame: Frame) {
        let state = &mut *self.state.lock();
        if frame.bytes() > self.bytes_max {
            return;
        }
        state.time += 1;
        state.bytes += frame.bytes();
        state.by_use.insert(state.time, id);
        if let Some((before, used)) = state.frames.insert(id, (frame, state.time)) {
            state.bytes -= before.bytes();
            state.by_use.remove(&used);
        }
        while state.bytes > self.bytes_max
            && let Some((_, oldest)) = state.by_use.pop_first()
            && let Some((frame, _)) = state.frames.remove(&oldest)
        {
            state.bytes -= frame.bytes();
        }
        assert_eq!(state.frames.len(), state.by_use.len(), "each frame has a time of use");
    }

    /// Bytes of the frames.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::frame;

    #[test]
    fn the_frames_used_last_stay() {
        let cache = MemoryCache::new(3 * 4104);
        let frames: Vec<_> = (0..5).map(frame).collect();
        for (id, frame) in &frames[..3] {
            cache.insert(*id, frame.clone());
        }
        assert_eq!(cache.get(frames[0].0).as_ref(), Some(&frames[0].1));
        cache.insert(frames[3].0, frames[3].1.clone());
        cache.insert(frames[3].0, frames[3].1.clone());
        assert_eq!(cache.bytes(), 3 * 4104);
        let there: Vec<bool> = frames.iter().map(|(id, _)| cache.get(*id).is_some()).collect();
        assert_eq!(there, [true, false, true, true, false]);
        let none = MemoryCache::new(100);
        none.insert(frames[0].0, frames[0].1.clone());
        assert_eq!((none.bytes(), none.get(frames[0].0)), (0, None));
    }
}
