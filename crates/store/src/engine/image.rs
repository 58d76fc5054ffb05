//! The newest checkpoint as the image of a data file, for copies outside of a file system.
//!
//! The image of a data file has a superblock, the extents of the checkpoint at their positions, and a node table
//! behind them, with holes between. As a [backup](super::backup), it needs no log. It is made beside writers: as long
//! as it exists, the space of its extents is not used again.
//!
//! *Identities.* Each extent has a 64-bit identity: a hash of its position, tree, lengths, numbers of pages and rows,
//! first and last key, and the checksum of its index page, which covers the checksums of its pages. Extents never
//! change, so equal identities at one position mean equal bytes. Different bytes have equal identities only if
//! extents of equal shape and bounds were written to one position and their checksums of 32 bits collide; incremental
//! backups rely on the same.

use std::fmt;
use std::sync::Arc;

use keyaki_device::Buffer;
use xxhash_rust::xxh3::xxh3_64;

use super::backup::end_of;
use super::check::{Item, items_of};
use super::node_table::{self, Trained};
use crate::base::{Result, TreeId};
use crate::engine::Store;
use crate::log::LogPosition;
use crate::pages::{ExtentMeta, Superblock};
use crate::tree::StoreVersion;

/// The newest checkpoint of a store, see [`Store::checkpoint_image`].
pub struct CheckpointImage {
    store: Store,
    items: Vec<Item>,
    extents: Vec<ImageExtent>,
    superblock: Superblock,
    node_table: Vec<u8>,
}

/// A range of an image that has an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageExtent {
    /// First byte: a multiple of 4096, at least 65,536.
    pub offset: u64,
    /// Length in bytes: a positive multiple of 4096.
    pub len: u64,
    /// Extents of equal identities, offsets and lengths, in images of one database, have equal bytes.
    pub identity: u64,
    /// The tree that it belongs to.
    pub tree: TreeId,
}

impl Store {
    /// The image of a checkpoint. A store that is open for writing first writes a checkpoint with all commits so far;
    /// the commits of a store that is open read-only are those of the newest checkpoint, without later ones of the
    /// log. Keeps the store open. Blocks.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`]; [`Error::Corrupt`](crate::Error::Corrupt), device errors.
    pub fn checkpoint_image(&self) -> Result<CheckpointImage> {
        let shared = &self.shared;
        let (state, sequence, next_tree) = match &shared.follower {
            Some(follower) => follower.lock().checkpoint(self.files())?,
            None => shared.run_structural_change(|| {
                let mut checkpointed = shared.maintenance.lock();
                shared.advance_checkpoint(&mut checkpointed, false)?;
                Ok((checkpointed.state.clone(), checkpointed.sequence, shared.next_tree()))
            })?,
        };
        Ok(self.image_of(&state, sequence, next_tree))
    }

    fn image_of(&self, state: &Arc<StoreVersion>, sequence: u64, next_tree: TreeId) -> CheckpointImage {
        let dictionaries = &self.files().dictionaries;
        let node_table = node_table::encode(&state.counted_at(sequence), next_tree, dictionaries, Trained::All);
        let mut items: Vec<Item> = state.trees.values().flat_map(items_of).collect();
        items.sort_by_key(|item| item.extent.meta.offset);
        let extents = items.iter().map(|item| ImageExtent::of(&item.extent.meta)).collect();
        let superblock = Superblock {
            generation: 1,
            sequence,
            log: LogPosition::default(),
            node_table_offset: end_of(state),
            node_table_len: node_table.len() as u64,
            node_table_hash: xxh3_64(&node_table),
            page_bytes: self.files().page_bytes,
            database_id: self.shared.database_id,
        };
        CheckpointImage { store: self.clone(), items, extents, superblock, node_table }
    }
}

impl ImageExtent {
    fn of(meta: &ExtentMeta) -> ImageExtent {
        let mut shape = Vec::with_capacity(64 + meta.first.len() + meta.last.len());
        for number in [meta.offset, meta.len, meta.rows, meta.first.len() as u64] {
            shape.extend_from_slice(&number.to_le_bytes());
        }
        for number in [meta.tree.get(), meta.index_len, meta.index_checksum, meta.pages] {
            shape.extend_from_slice(&number.to_le_bytes());
        }
        shape.extend_from_slice(&meta.first);
        shape.extend_from_slice(&meta.last);
        ImageExtent { offset: meta.offset, len: meta.len, identity: xxh3_64(&shape), tree: meta.tree }
    }
}

impl CheckpointImage {
    /// The ranges of the extents, which ascend and do not overlap.
    pub fn extents(&self) -> &[ImageExtent] {
        &self.extents
    }

    /// Reads and verifies the extent with this index in [`CheckpointImage::extents`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) for the first damaged page, device errors.
    ///
    /// # Panics
    /// If there are not as many extents.
    pub fn read_extent(&self, index: usize) -> Result<Buffer> {
        self.store.read_verified(&self.items[index])
    }

    /// The offset of the node table, which is behind all extents, and its bytes with zeros up to a multiple of 4096.
    pub fn node_table(&self) -> (u64, Buffer) {
        let mut buffer = Buffer::zeroed(self.node_table.len().next_multiple_of(4096));
        buffer[..self.node_table.len()].copy_from_slice(&self.node_table);
        (self.superblock.node_table_offset, buffer)
    }

    /// The superblock, for the offsets 0 and 32,768. The other bytes before offset 65,536 are zeros. Equal
    /// superblocks, apart from hash collisions, mean equal images.
    pub fn superblock(&self) -> Buffer {
        self.superblock.encode()
    }

    /// Sequence number of the newest commit of the image.
    pub fn sequence(&self) -> u64 {
        self.superblock.sequence
    }

    /// The random number of the database and its copies; 0 if an older program has created the database.
    pub fn database_id(&self) -> u64 {
        self.superblock.database_id
    }

    /// Length of the image in bytes, with holes.
    pub fn data_bytes(&self) -> u64 {
        self.superblock.node_table_offset + self.superblock.node_table_len.next_multiple_of(4096)
    }
}

impl fmt::Debug for CheckpointImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointImage")
            .field("superblock", &self.superblock)
            .field("extents", &self.extents.len())
            .finish_non_exhaustive()
    }
}
