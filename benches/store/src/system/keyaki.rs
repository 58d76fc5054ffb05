//! Keyaki's key-value trees, with the default options of a store except for memory and durability.

use std::path::Path;
use std::sync::Arc;

use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Durability, Options, Store, TreeId, UpsertFunctions};

use super::{Change, Memory, System, Trees};
use crate::Result;
use crate::keys::{Key, Row, add, operand};

const TREE: TreeId = TreeId::new(1);
const ADD: u32 = 1;

pub struct Keyaki {
    store: Store,
    map: KeyValue,
}

impl Keyaki {
    pub fn open(directory: &Path, memory: Memory) -> Result<Self> {
        let store = open_store(directory, memory)?;
        let map = KeyValue::open(&store, TREE)?;
        Ok(Keyaki { store, map })
    }
}

fn open_store(directory: &Path, memory: Memory) -> Result<Store> {
    let add = |old: Option<&[u8]>, bytes: &[u8]| Ok(Some(add(old, operand(bytes))));
    let options = Options {
        durability: Durability::Off,
        cache_bytes: memory.cache_bytes,
        buffer_bytes: memory.buffer_bytes,
        upserts: Arc::new(UpsertFunctions::default().with(ADD, add)),
        ..Options::default()
    };
    Ok(Store::open(keyaki_device::open_default()?, directory, options)?)
}

impl System for Keyaki {
    fn insert(&self, rows: &[Row]) -> Result {
        let mut batch = KeyValueBatch::default();
        rows.iter().for_each(|(key, value)| batch.insert(&self.map, key, value));
        Ok(self.map.commit(batch)?)
    }

    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result {
        found(self.map.get(key)?.as_deref());
        Ok(())
    }

    fn get_many(&self, keys: &[Key], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<bool> {
        let values = self.map.get_many(keys)?;
        values.iter().enumerate().for_each(|(at, value)| found(at, value.as_deref()));
        Ok(true)
    }

    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result {
        let mut range = self.map.range(from.as_slice().., Direction::Ascending)?;
        for _ in 0..limit {
            let Some((key, value)) = range.next_row()? else { break };
            visit(key, value);
        }
        Ok(())
    }

    fn upsert(&self, keys: &[Key]) -> Result<bool> {
        let mut batch = KeyValueBatch::default();
        keys.iter().for_each(|key| batch.upsert(&self.map, key, ADD, &1_u64.to_le_bytes()));
        self.map.commit(batch)?;
        Ok(true)
    }

    fn settle(&self) -> Result {
        Ok(self.store.checkpoint()?)
    }

    fn page_reads(&self) -> Option<u64> {
        Some(self.store.stats().pages_read)
    }
}

pub struct KeyakiTrees {
    store: Store,
    maps: Vec<KeyValue>,
}

impl KeyakiTrees {
    pub fn open(directory: &Path, memory: Memory, count: usize) -> Result<Self> {
        let store = open_store(directory, memory)?;
        let maps = (1..).take(count).map(|id| Ok(KeyValue::open(&store, TreeId::new(id))?)).collect::<Result<_>>()?;
        Ok(KeyakiTrees { store, maps })
    }
}

impl Trees for KeyakiTrees {
    fn commit(&self, changes: &[Change<'_>]) -> Result {
        let mut batch = KeyValueBatch::default();
        for Change { tree, key, value } in changes {
            match value {
                Some(value) => batch.insert(&self.maps[*tree], key, value),
                None => batch.delete(&self.maps[*tree], key),
            }
        }
        Ok(self.maps[0].commit(batch)?)
    }

    fn scan(&self, tree: usize, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> Result) -> Result {
        let mut range = self.maps[tree].range(from..to, Direction::Ascending)?;
        while let Some((key, value)) = range.next_row()? {
            visit(key, value)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result {
        Ok(self.store.checkpoint()?)
    }

    fn settle(&self) -> Result {
        Ok(())
    }
}
