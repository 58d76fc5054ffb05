//! Images of checkpoints have the bytes of copies: a data file made from one is a database.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::simulated::Simulated;
use keyaki_device::{Buffer, Device, OpenMode};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{CheckpointImage, Direction, Options, Store, TreeId};

const TREE: TreeId = TreeId::new(2);

fn options() -> Options {
    Options { buffer_bytes: 40_000, page_bytes: 4096, leaf_bytes: 32_768, fan_out: 4, ..Options::default() }
}

fn value(key: u32, round: u64) -> Vec<u8> {
    let mut random = Random::new(u64::from(key) << 8 | round);
    (0..100).map(|_| random.below(256) as u8).collect()
}

fn insert(tree: &KeyValue, keys: std::ops::Range<u32>, round: u64) {
    keys.for_each(|key| tree.insert(&key.to_be_bytes(), &value(key, round)).unwrap());
}

/// Writes the image as the data file of a new database.
fn write(device: &dyn Device, dir: &Path, image: &CheckpointImage) {
    device.create_dir(dir).unwrap();
    let file = device.open(&dir.join("data"), OpenMode::CreateNew).unwrap();
    file.allocate(0, image.data_bytes()).unwrap();
    for (i, extent) in image.extents().iter().enumerate() {
        let bytes = image.read_extent(i).unwrap();
        assert_eq!(bytes.len() as u64, extent.len);
        file.write_at(extent.offset, &bytes).unwrap();
    }
    let (offset, table) = image.node_table();
    file.write_at(offset, &table).unwrap();
    for slot in [0, 32_768] {
        file.write_at(slot, &image.superblock()).unwrap();
    }
}

fn rows(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let tree = KeyValue::open(store, TREE).unwrap();
    tree.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect()
}

#[test]
fn an_image_is_a_database() {
    let device = Simulated::new(Default::default()).device();
    let store = Store::open(device.clone(), Path::new("/db"), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    insert(&tree, 0..2_000, 0);
    let image = store.checkpoint_image().unwrap();
    let expected = rows(&store);
    // Later changes do not reach the image, and do not overwrite its extents.
    for round in 1..4 {
        insert(&tree, 0..2_000, round);
        store.checkpoint().unwrap();
    }
    assert!(image.extents().windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset));
    write(&*device, Path::new("/copy"), &image);
    let copy = Store::open(device, Path::new("/copy"), options()).unwrap();
    assert_eq!(rows(&copy), expected);
    let tree = KeyValue::open(&copy, TREE).unwrap();
    insert(&tree, 2_000..3_000, 0);
    assert!(copy.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
    assert_eq!(rows(&copy).len(), 3_000);
}

#[test]
fn a_read_only_store_has_the_image_of_its_checkpoint() {
    let device = Simulated::new(Default::default()).device();
    let store = Store::open(device.clone(), Path::new("/db"), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    insert(&tree, 0..1_000, 0);
    store.checkpoint().unwrap();
    let expected = rows(&store);
    // In the log only.
    insert(&tree, 1_000..1_010, 0);
    let reader = Store::open_read_only(device.clone(), Path::new("/db"), options()).unwrap();
    assert_eq!(rows(&reader).len(), 1_010);
    let image = reader.checkpoint_image().unwrap();
    for round in 1..4 {
        insert(&tree, 0..1_000, round);
        store.checkpoint().unwrap();
    }
    write(&*device, Path::new("/copy"), &image);
    drop((image, reader));
    assert_eq!(rows(&Store::open(device, Path::new("/copy"), options()).unwrap()), expected);
}

#[test]
fn identities_change_with_the_extents() {
    let device: Arc<dyn Device> = Simulated::new(Default::default()).device();
    let store = Store::open(device, Path::new("/db"), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    insert(&tree, 0..2_000, 0);
    let before = store.checkpoint_image().unwrap();
    let again = store.checkpoint_image().unwrap();
    assert_eq!((before.extents(), &before.superblock()[..]), (again.extents(), &again.superblock()[..]));
    drop(again);
    insert(&tree, 0..20, 1);
    let after = store.checkpoint_image().unwrap();
    let kept = after.extents().iter().filter(|extent| before.extents().contains(extent)).count();
    assert!(kept > 0 && kept < after.extents().len(), "{kept} of {}", after.extents().len());
    for (i, extent) in after.extents().iter().enumerate() {
        if let Some(same) = before.extents().iter().position(|earlier| earlier == extent) {
            let bytes: [Buffer; 2] = [before.read_extent(same).unwrap(), after.read_extent(i).unwrap()];
            assert_eq!(bytes[0][..], bytes[1][..]);
        }
    }
}
