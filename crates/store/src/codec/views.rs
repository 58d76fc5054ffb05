//! A builder of Arrow view arrays: 16-byte views, and data buffers that hold long values.
//!
//! A view stores values of up to 12 bytes itself. Longer values are copied into the current data buffer, which is never
//! reallocated while it holds data: a full buffer is set aside and a new one of twice the size (at most 1 MiB, or the
//! length of the value) is started.

use arrow_buffer::{Buffer, ScalarBuffer};

/// Maximum length in bytes of a value that is stored in its view.
pub(crate) const INLINE_LEN: usize = 12;
const FIRST_BUFFER_BYTES: usize = 8 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct ViewBuilder {
    views: Vec<u128>,
    full: Vec<Buffer>,
    current: Vec<u8>,
}

impl ViewBuilder {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        ViewBuilder { views: Vec::with_capacity(capacity), ..Self::default() }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let full: usize = self.full.iter().map(Buffer::capacity).sum();
        self.views.capacity() * 16 + full + self.current.capacity()
    }

    pub(crate) fn reserve(&mut self, values: usize) {
        self.views.reserve(values);
    }

    /// The views so far.
    pub(crate) fn views_mut(&mut self) -> &mut Vec<u128> {
        &mut self.views
    }

    /// Appends the value `head` followed by `tail`.
    pub(crate) fn push(&mut self, head: &[u8], tail: &[u8]) {
        let view = self.store(head, tail);
        self.views.push(view);
    }

    /// Appends `count` empty values.
    pub(crate) fn push_empty(&mut self, count: usize) {
        self.views.resize(self.views.len() + count, 0);
    }

    /// Appends views returned by [`store`](Self::store) since the last [`finish`](Self::finish).
    pub(crate) fn extend_views(&mut self, views: impl Iterator<Item = u128>) {
        self.views.extend(views);
    }

    /// Returns a view of the value `head` followed by `tail`, without appending it. Long values are copied into the
    /// buffer.
    pub(crate) fn store(&mut self, head: &[u8], tail: &[u8]) -> u128 {
        let len = head.len() + tail.len();
        if len <= INLINE_LEN {
            let mut view = [0; 16];
            view[0] = len as u8;
            view[4..4 + head.len()].copy_from_slice(head);
            view[4 + head.len()..4 + len].copy_from_slice(tail);
            return u128::from_le_bytes(view);
        }
        let (buffer, offset) = self.reserve_data(len);
        self.current.extend_from_slice(head);
        self.current.extend_from_slice(tail);
        view(&self.current[offset..], buffer, offset)
    }

    /// Copies `data` into the buffer. Returns the number of the buffer and the offset of the data in it, for
    /// [`ViewBuilder::push_stored`].
    pub(crate) fn store_data(&mut self, data: &[u8]) -> (u32, usize) {
        let place = self.reserve_data(data.len());
        self.current.extend_from_slice(data);
        place
    }

    /// Appends the value `start..end` of the data that the last [`ViewBuilder::store_data`] stored at `place`.
    #[inline]
    pub(crate) fn push_stored(&mut self, place: (u32, usize), start: usize, end: usize) {
        let offset = place.1 + start;
        let value = &self.current[offset..place.1 + end];
        let view = if value.len() <= INLINE_LEN { inline(value) } else { view(value, place.0, offset) };
        self.views.push(view);
    }

    /// Reserves `len` bytes. Returns the number of their buffer and their offset in it.
    fn reserve_data(&mut self, len: usize) -> (u32, usize) {
        if self.current.len() + len > self.current.capacity() {
            let grown = (self.current.capacity() * 2).clamp(FIRST_BUFFER_BYTES, BUFFER_BYTES_MAX);
            let full = std::mem::replace(&mut self.current, Vec::with_capacity(grown.max(len)));
            if !full.is_empty() {
                self.full.push(Buffer::from_vec(full));
            }
        }
        (self.full.len() as u32, self.current.len())
    }

    /// Returns the views and the buffers, and leaves the builder empty.
    pub(crate) fn finish(&mut self) -> (ScalarBuffer<u128>, Vec<Buffer>) {
        let mut buffers = std::mem::take(&mut self.full);
        if !self.current.is_empty() {
            buffers.push(Buffer::from_vec(std::mem::take(&mut self.current)));
        }
        (std::mem::take(&mut self.views).into(), buffers)
    }
}

/// The view of a value of at most [`INLINE_LEN`] bytes.
#[inline]
fn inline(value: &[u8]) -> u128 {
    let mut view = [0; 16];
    view[0] = value.len() as u8;
    view[4..4 + value.len()].copy_from_slice(value);
    u128::from_le_bytes(view)
}

/// The view of a value of more than [`INLINE_LEN`] bytes that is stored at `offset` of buffer `buffer`.
#[inline]
fn view(value: &[u8], buffer: u32, offset: usize) -> u128 {
    let head = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
    (value.len() as u32 as u128) | u128::from(head) << 32 | u128::from(buffer) << 64 | (offset as u128) << 96
}
