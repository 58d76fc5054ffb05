//! The intact pages of a damaged extent.
//!
//! ```text
//!   extent    | page 0 | page 1 | damaged | page 3 | index |
//!   groups    | page 0 | page 1 | index'  |        | page 3 | index' |
//! ```
//!
//! Each group of adjacent intact pages becomes an extent of its own, with a new index page in memory. The new index page
//! lies at the offset behind the group. The data file has other bytes there, which
//! [`SalvagedPages`](super::rows::SalvagedPages) never reads.
//!
//! If the index page is damaged, the pages are found by their headers, which state checksum, position, tree and length.
//! Their keys must ascend, and lie between the first and the last key of the extent. The checksums in the index page are
//! lost, which would detect that the write of the extent was lost and that its place still has pages of an older extent
//! of the tree. Therefore, the rows may be outdated unless the header of the index page is that of the reference: index
//! page and data pages are written together.

use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer};

use crate::base::{Error, Result};
use crate::codec::{IndexEntry, Page, PageRef, encode_index, seal};
use crate::engine::DamagedKeys;
use crate::engine::check::{Verifier, check_rows};
use crate::pages::{Extent, ExtentMeta};

/// The intact pages of a damaged extent, and the key ranges of its damaged pages.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// In key order.
    pub groups: Vec<Group>,
    /// In key order.
    pub lost: Vec<DamagedKeys>,
    /// The keys of the extent if its pages may be those of an older one.
    pub outdated: Option<DamagedKeys>,
}

/// Adjacent intact pages, as an extent.
#[derive(Debug)]
pub(super) struct Group {
    pub extent: Arc<Extent>,
    pub index: Arc<Page>,
}

/// An intact page with its first and last key.
struct Found {
    place: PageRef,
    rows: u32,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Remains {
    /// Reads the intact pages of an extent.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn of(verifier: &Verifier<'_>) -> Result<Remains> {
        let extent = &verifier.item.extent;
        if verifier.bounds().is_err() {
            // The reference is wrong, not the pages.
            return Ok(Remains { lost: vec![DamagedKeys::of(extent)], ..Remains::default() });
        }
        let bytes = verifier.read();
        match verifier.index(bytes.as_ref()) {
            Err(Error::Closed) => Err(Error::Closed),
            Ok(index) => Remains::by_index(verifier, bytes.as_ref(), &index),
            Err(_) => Remains::by_headers(verifier, bytes.as_ref()),
        }
    }

    /// The pages of an intact index page.
    fn by_index(verifier: &Verifier<'_>, bytes: Option<&Buffer>, index: &Page) -> Result<Remains> {
        let extent = &verifier.item.extent;
        let (mut remains, mut group) = (Remains::default(), Vec::new());
        let mut damaged: Option<usize> = None;
        for i in 0..index.rows() {
            let found = verifier.data_page(bytes, index, i).and_then(|page| Found::new(index.entry(i).0, &page));
            match found {
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_) => {
                    remains.close(verifier, &mut group)?;
                    damaged.get_or_insert(i);
                }
                Ok(found) => {
                    if let Some(first) = damaged.take() {
                        remains.lost.push(DamagedKeys::of_pages(extent, index, first..i));
                    }
                    group.push(found);
                }
            }
        }
        if let Some(first) = damaged {
            remains.lost.push(DamagedKeys::of_pages(extent, index, first..index.rows()));
        }
        remains.close(verifier, &mut group)?;
        Ok(remains)
    }

    /// The pages that have a valid header of their own.
    fn by_headers(verifier: &Verifier<'_>, bytes: Option<&Buffer>) -> Result<Remains> {
        let (extent, meta) = (&verifier.item.extent, &verifier.item.extent.meta);
        let (mut remains, mut group) = (Remains::default(), Vec::new());
        let (mut at, end) = (meta.offset, extent.index().offset);
        // The last key so far, and whether rows may be missing behind it.
        let (mut before, mut has_gap): (Option<Vec<u8>>, bool) = (None, true);
        while at < end {
            match Found::by_header(verifier, bytes, at, before.as_deref()) {
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_) => {
                    remains.close(verifier, &mut group)?;
                    (at, has_gap) = (at + BLOCK as u64, true);
                }
                Ok(found) => {
                    at += u64::from(found.place.len);
                    if std::mem::take(&mut has_gap) {
                        let low = before.map_or_else(|| meta.first.to_vec(), |last| behind(&last));
                        remains.lost.push(DamagedKeys { low, high: found.first.clone(), includes_high: false });
                    }
                    before = Some(found.last.clone());
                    group.push(found);
                }
            }
        }
        remains.close(verifier, &mut group)?;
        if before.as_deref() != Some(&*meta.last) {
            let low = before.map_or_else(|| meta.first.to_vec(), |last| behind(&last));
            remains.lost.push(DamagedKeys { low, high: meta.last.to_vec(), includes_high: true });
        }
        remains.lost.retain(|keys| !keys.range().is_empty());
        remains.outdated = (!is_written(verifier, bytes)).then(|| DamagedKeys::of(extent));
        Ok(remains)
    }

    /// Ends a group of pages.
    fn close(&mut self, verifier: &Verifier<'_>, group: &mut Vec<Found>) -> Result<()> {
        let pages = std::mem::take(group);
        if let (Some(head), Some(tail)) = (pages.first(), pages.last()) {
            self.groups.push(Group::new(verifier, &pages, head, tail)?);
        }
        Ok(())
    }
}

/// True if the device has the header of the index page of the extent.
fn is_written(verifier: &Verifier<'_>, bytes: Option<&Buffer>) -> bool {
    let (index, start) = (verifier.item.extent.index(), verifier.item.extent.meta.offset);
    let mut block = Buffer::zeroed(BLOCK);
    match bytes {
        Some(bytes) => block.copy_from_slice(&bytes[(index.offset - start) as usize..][..BLOCK]),
        None if verifier.files.read_at(index.offset, &mut block).is_err() => return false,
        None => {}
    }
    index.has_header(&block)
}

impl Found {
    fn new(place: PageRef, page: &Page) -> Result<Found> {
        let (first, last) = check_rows(page, |_, _| None)?;
        Ok(Found { place, rows: page.rows() as u32, first, last })
    }

    /// The page that begins at offset `at`, whose keys are greater than `before`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, [`Error::Closed`], device errors.
    fn by_header(verifier: &Verifier<'_>, bytes: Option<&Buffer>, at: u64, before: Option<&[u8]>) -> Result<Found> {
        let (extent, meta) = (&verifier.item.extent, &verifier.item.extent.meta);
        let mut block = Buffer::zeroed(BLOCK);
        match bytes {
            Some(bytes) => {
                let start = (at - meta.offset) as usize;
                block.copy_from_slice(&bytes[start..start + BLOCK]);
            }
            None => verifier.files.read_at(at, &mut block)?,
        }
        let place = PageRef::of_header(&block, at);
        let place = place.filter(|place| at + u64::from(place.len) <= extent.index().offset && place.tree == meta.tree);
        let place = place.ok_or_else(|| verifier.files.corrupt_tree(meta.tree))?;
        let page = verifier.open(bytes, place)?;
        page.check_rows(page.rows() as u32, verifier.is_leaf())?;
        let found = Found::new(place, &page)?;
        let is_expected = match before {
            None => *found.first >= *meta.first,
            Some(before) => *found.first > *before,
        };
        match is_expected && *found.last <= *meta.last {
            true => Ok(found),
            false => Err(page.damaged("its keys do not lie between those of its extent".into())),
        }
    }
}

impl Group {
    /// The extent of adjacent pages, of which `head` is the first and `tail` the last.
    fn new(verifier: &Verifier<'_>, pages: &[Found], head: &Found, tail: &Found) -> Result<Group> {
        let fence = |(i, page): (usize, &Found)| if i == 0 { Vec::new() } else { page.first.clone() };
        let fences = pages.iter().enumerate().map(fence);
        let entry = |(page, fence): (&Found, Vec<u8>)| IndexEntry { page: page.place, rows: page.rows, fence };
        let entries: Vec<IndexEntry> = pages.iter().zip(fences).map(entry).collect();
        let mut index = encode_index(&entries, &[]);
        let (tree, end) = (verifier.item.extent.meta.tree, tail.place.offset + u64::from(tail.place.len));
        let len = index.len() as u32;
        let place = seal(&mut index, PageRef { offset: end, len, tree, checksum: 0 });
        let rows: u64 = pages.iter().map(|page| u64::from(page.rows)).sum();
        let meta = ExtentMeta {
            tree,
            offset: head.place.offset,
            len: end - head.place.offset + u64::from(place.len),
            index_len: place.len,
            index_checksum: place.checksum,
            pages: pages.len() as u32,
            rows,
            net_rows: rows as i64,
            first: head.first.as_slice().into(),
            last: tail.last.as_slice().into(),
        };
        let index = verifier.files.open_page(&index, place, verifier.schema())?;
        Ok(Group { extent: Arc::new(Extent::new(meta, verifier.files.clone())), index })
    }
}

/// The smallest byte string above a key.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
