//! The plan of a publication: the extents that the newest version has, and groups of the others, one for each new
//! object.
//!
//! *Kept extents.* An extent of the image is kept in its object if the newest version has one of the same position,
//! length and identity. Objects whose extents are replaced one by one would take space for their last ones. Objects
//! of which less than half is used are therefore given up, the least used ones first, and their extents uploaded
//! again: as many bytes at most as the publication uploads anyway. Every byte that is given up so frees at least one,
//! so the objects of a version are not more than twice as large as its extents in the long run, and uploads at most
//! double.
//!
//! *Groups.* Extents of a group are adjacent in the list of new extents, so that ranges of the data file stay
//! together. A group ends behind an extent whose identity is a multiple of [`END_IN`], or with [`GROUP_BYTES_MAX`].
//! Such ends depend on the extents around them only. So if a publisher was interrupted, and some extents have changed
//! since, most groups are the same again, and so are the hashes by which their objects are found.
//!
//! *First group.* Opening a version reads the node table, then the tree with the catalog. The extents of that tree are
//! behind the node table in its object, so that a reader needs one request for both, if they have at most
//! [`FIRST_TREE_BYTES_MAX`]. They are uploaded with each new node table, that is, with each version.

use std::collections::HashMap;

use keyaki_store::{CheckpointImage, ImageExtent, TreeId};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::{DataRange, Manifest, ObjectEntry, ObjectId};

/// A group that would become longer ends.
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// A shorter group does not end at an identity.
const GROUP_BYTES_MIN: u64 = 2 << 20;
/// One in so many identities ends a group.
const END_IN: u64 = 4;
/// Maximum length of the tree in the object of the node table.
const FIRST_TREE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Plan {
    /// The ranges of the image: its extents, then the node table.
    entries: Vec<Entry>,
    /// For each entry, the range of the newest version that it is kept in.
    kept: Vec<Option<DataRange>>,
    /// The entries of new objects. That of the node table is the last one.
    pub groups: Vec<Group>,
    /// Bytes of kept extents.
    pub kept_bytes: u64,
    /// Bytes of the groups.
    pub new_bytes: u64,
}

/// The entries of a new object: indices of extents, not all between its bounds.
pub(super) type Group = Vec<usize>;

/// A range of the image with the identity of its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub offset: u64,
    pub len: u64,
    pub identity: u64,
}

impl Plan {
    /// The plan for an image whose tree `first_tree` is read first.
    pub fn new(image: &CheckpointImage, first_tree: Option<TreeId>, base: Option<&Manifest>) -> Plan {
        let (offset, table) = image.node_table();
        let table = Entry { offset, len: table.len() as u64, identity: xxh3_64(&table) };
        let extents = image.extents();
        let entry = |extent: &ImageExtent| Entry { offset: extent.offset, len: extent.len, identity: extent.identity };
        let is_first = |&index: &usize| Some(extents[index].tree) == first_tree;
        let first: Group = (0..extents.len()).filter(is_first).collect();
        Plan::of(extents.iter().map(entry).chain([table]).collect(), first, base)
    }

    /// `first` are the extents of the tree that is read first.
    fn of(entries: Vec<Entry>, mut first: Group, base: Option<&Manifest>) -> Plan {
        let table = entries.len() - 1;
        let mut kept = vec![None; entries.len()];
        if let Some(base) = base {
            find_kept(&entries, base, &mut kept);
        }
        let is_short = first.iter().map(|&index| entries[index].len).sum::<u64>() <= FIRST_TREE_BYTES_MAX;
        if kept[table].is_some() || !is_short {
            first.clear();
        }
        first.iter().for_each(|&index| kept[index] = None);
        if let Some(base) = base {
            give_up(&entries, base, &mut kept);
        }
        let sum = |is_kept: bool| {
            let of = entries.iter().zip(&kept).filter(|(_, range)| range.is_some() == is_kept);
            of.map(|(entry, _)| entry.len).sum::<u64>()
        };
        let (kept_bytes, new_bytes) = (sum(true), sum(false));
        let mut groups = groups(&entries, (0..table).filter(|i| kept[*i].is_none() && first.binary_search(i).is_err()));
        if kept[table].is_none() {
            groups.push([table].into_iter().chain(first).collect());
        }
        Plan { entries, kept, groups, kept_bytes, new_bytes }
    }

    /// The index of the node table, as an entry.
    pub fn table(&self) -> usize {
        self.entries.len() - 1
    }

    pub fn entry(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    /// The ranges and objects of the manifest, given the objects of the groups.
    pub fn ranges(&self, base: Option<&Manifest>, uploaded: &[ObjectEntry]) -> (Vec<DataRange>, Vec<ObjectEntry>) {
        assert_eq!(uploaded.len(), self.groups.len(), "each group has an object");
        let mut places: Vec<Option<(ObjectEntry, u64)>> = self
            .kept
            .iter()
            .map(|range| range.zip(base).map(|(range, base)| (base.objects[range.object as usize], range.start)))
            .collect();
        for (group, object) in self.groups.iter().zip(uploaded) {
            let mut start = 0;
            for &index in group {
                places[index] = Some((*object, start));
                start += self.entries[index].len;
            }
            assert_eq!(start, object.payload_bytes, "the object of a group has its extents");
        }
        let (mut numbers, mut objects) = (HashMap::<ObjectId, u32>::new(), Vec::new());
        let ranges = self.entries.iter().zip(places).map(|(entry, place)| {
            let Some((object, start)) = place else { unreachable!("an entry is kept or in a group") };
            let number = *numbers.entry(object.id).or_insert_with(|| {
                objects.push(object);
                objects.len() as u32 - 1
            });
            DataRange { offset: entry.offset, len: entry.len, object: number, start, identity: entry.identity }
        });
        let ranges = ranges.collect();
        (ranges, objects)
    }
}

/// Finds the entries that a version has. Both are in the order of their positions.
fn find_kept(entries: &[Entry], base: &Manifest, kept: &mut [Option<DataRange>]) {
    let mut ranges = base.ranges.iter().peekable();
    for (entry, kept) in entries.iter().zip(kept) {
        while ranges.next_if(|range| range.offset < entry.offset).is_some() {}
        let is_same = |range: &&&DataRange| {
            (range.offset, range.len, range.identity) == (entry.offset, entry.len, entry.identity)
        };
        *kept = ranges.peek().filter(is_same).map(|range| **range);
    }
}

/// Gives up objects of which less than half is used.
fn give_up(entries: &[Entry], base: &Manifest, kept: &mut [Option<DataRange>]) {
    let new_bytes = entries.iter().zip(&*kept).filter(|(_, range)| range.is_none()).map(|(entry, _)| entry.len).sum();
    let mut used = vec![0_u64; base.objects.len()];
    for range in kept.iter().flatten() {
        used[range.object as usize] += range.len;
    }
    let is_sparse = |object: &usize| used[*object] > 0 && used[*object] < base.objects[*object].payload_bytes / 2;
    let mut sparse: Vec<usize> = (0..used.len()).filter(is_sparse).collect();
    // By the used part, in thousandths.
    sparse.sort_by_key(|&object| used[object] * 1000 / base.objects[object].payload_bytes);
    let (mut left, mut given_up): (u64, Vec<bool>) = (new_bytes, vec![false; used.len()]);
    for object in sparse {
        if used[object] <= left {
            left -= used[object];
            given_up[object] = true;
        }
    }
    for kept in kept {
        *kept = kept.filter(|range| !given_up[range.object as usize]);
    }
}

/// Groups new entries.
fn groups(entries: &[Entry], new: impl Iterator<Item = usize>) -> Vec<Group> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Group::new(), 0);
    for index in new {
        let entry = &entries[index];
        if bytes + entry.len > GROUP_BYTES_MAX && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group.push(index);
        bytes += entry.len;
        if bytes >= GROUP_BYTES_MIN && entry.identity.is_multiple_of(END_IN) {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use keyaki_primitives::Random;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Extents of 1 MiB, then a node table.
    fn entries(count: u64) -> Vec<Entry> {
        let mut random = Random::new(4);
        let extent = |i| Entry { offset: (i + 1) * MIB, len: MIB, identity: random.next_u64() };
        (0..=count).map(extent).collect()
    }

    fn published(plan: &Plan, base: Option<&Manifest>, nonce: u64) -> Manifest {
        let object = |(i, group): (usize, &Group)| ObjectEntry {
            id: ObjectId { hash: i as u128, nonce },
            payload_bytes: group.iter().map(|&index| plan.entries[index].len).sum(),
        };
        let uploaded: Vec<ObjectEntry> = plan.groups.iter().enumerate().map(object).collect();
        let (ranges, objects) = plan.ranges(base, &uploaded);
        let data_bytes = ranges.iter().map(|range| range.offset + range.len).max().unwrap_or(0);
        let manifest = Manifest {
            number: nonce,
            published_us: 0,
            nonce,
            database_id: 1,
            sequence: 1,
            data_bytes,
            superblock: vec![0; 4096],
            objects,
            ranges,
        };
        assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
        manifest
    }

    #[test]
    fn a_first_version_has_objects_of_a_few_mebibytes() {
        let plan = Plan::of(entries(1000), Group::new(), None);
        assert_eq!((plan.kept_bytes, plan.new_bytes), (0, 1001 * MIB));
        assert_eq!(plan.groups.concat(), (0..1001).collect::<Vec<_>>());
        let lengths: Vec<u64> = plan.groups.iter().map(|group| group.len() as u64 * MIB).collect();
        assert!(lengths.iter().all(|len| *len <= GROUP_BYTES_MAX));
        assert!((100..400).contains(&lengths.len()), "{} objects", lengths.len());
        assert_eq!(plan.groups.last(), Some(&vec![1000]));
    }

    #[test]
    fn further_versions_have_new_extents_only() {
        let mut entries = entries(1000);
        let first = published(&Plan::of(entries.clone(), Group::new(), None), None, 1);
        assert!(Plan::of(entries.clone(), Group::new(), Some(&first)).groups.is_empty());
        for i in (0..1000).step_by(100).chain([1000]) {
            entries[i].identity += 1;
        }
        let plan = Plan::of(entries.clone(), Group::new(), Some(&first));
        assert_eq!((plan.new_bytes, plan.kept_bytes), (11 * MIB, 990 * MIB));
        let second = published(&plan, Some(&first), 2);
        let new = second.ranges.iter().filter(|range| second.objects[range.object as usize].id.nonce == 2);
        assert_eq!(new.count(), 11);
        // Another length is another extent.
        entries[3].len = MIB / 2;
        assert_eq!(Plan::of(entries, Group::new(), Some(&second)).groups, [[3]]);
    }

    #[test]
    fn the_space_of_objects_is_bounded() {
        let (mut entries, mut random) = (entries(1000), Random::new(6));
        let mut base = published(&Plan::of(entries.clone(), Group::new(), None), None, 1);
        for round in 2..80 {
            for _ in 0..20 {
                entries[random.index(1000)].identity = random.next_u64();
            }
            entries[1000].identity = random.next_u64();
            let plan = Plan::of(entries.clone(), Group::new(), Some(&base));
            assert!(plan.new_bytes <= 2 * 21 * MIB, "round {round}: {} bytes", plan.new_bytes);
            base = published(&plan, Some(&base), round);
            let stored: u64 = base.objects.iter().map(|object| object.payload_bytes).sum();
            assert!(stored <= 2 * 1001 * MIB, "round {round}: {stored} bytes");
        }
    }

    #[test]
    fn the_first_tree_is_behind_the_node_table() {
        let mut entries = entries(100);
        let first = published(&Plan::of(entries.clone(), vec![4, 70], None), None, 1);
        let table = first.ranges[100].object;
        assert!(first.ranges.iter().enumerate().all(|(i, range)| (range.object == table) == [4, 70, 100].contains(&i)));
        assert_eq!([100, 4, 70].map(|i| first.ranges[i].start), [0, MIB, 2 * MIB]);
        // With each new node table.
        entries[100].identity += 1;
        let plan = Plan::of(entries.clone(), vec![4, 70], Some(&first));
        assert_eq!((&plan.groups[..], plan.new_bytes), (&[vec![100, 4, 70]][..], 3 * MIB));
        let second = published(&plan, Some(&first), 2);
        assert!(Plan::of(entries.clone(), vec![4, 70], Some(&second)).groups.is_empty());
        // A long tree has its own objects.
        let plan = Plan::of(entries, vec![4, 5, 6, 7, 8], Some(&first));
        assert_eq!(plan.groups, [vec![100]]);
    }

    #[test]
    fn groups_meet_again_behind_a_change() {
        let entries = entries(400);
        let all = groups(&entries, 0..400);
        let most = groups(&entries, (0..400).filter(|i| *i != 100));
        let same = all.iter().filter(|group| most.contains(group)).count();
        assert!(same + 12 >= all.len(), "{same} of {} groups", all.len());
    }
}
