//! Opens and uses forged bytes. The test `forged` and the fuzz target `vast` call this.

use keyaki_vast::{Index, Key, Packed, Tree, reseal};

/// Corrects the checksum of the bytes, opens them as an index, a tree and a column of every type of keys, and uses
/// those that open.
pub fn use_index(bytes: &mut Vec<u8>) {
    reseal(bytes);
    let all: bytes::Bytes = std::mem::take(bytes).into();
    use_as::<u32>(&all);
    use_as::<i32>(&all);
    use_as::<u64>(&all);
    use_as::<i64>(&all);
}

fn use_as<K: Key>(bytes: &bytes::Bytes) {
    let wanted = [0, 1, K::from_ordered(K::LAST).ordered(), K::LAST / 2, 1000, 70_000].map(K::from_ordered);
    if let Ok(index) = Index::<K>::from_bytes(bytes.clone()) {
        let mut rows = [0; 6];
        index.lower_bound_many(&wanted, &mut rows);
        for (key, row) in wanted.into_iter().zip(rows) {
            assert!(row <= index.len() && index.lower_bound(key) <= index.len());
        }
        let rows = index.rows(wanted[0]..wanted[3]);
        index.scan(rows.start..rows.end.min(rows.start + 500), |_, _| std::ops::ControlFlow::Continue(()));
        if !index.is_empty() {
            index.value(index.len() - 1);
        }
        // Forged summaries give wrong sums. The call must only return.
        let _ = index.aggregate(wanted[0]..);
    }
    if let Ok(tree) = Tree::<K>::from_bytes(bytes.clone()) {
        let mut windows = Vec::new();
        tree.window_many(&wanted, &mut windows);
        assert!(windows.iter().all(|window| window.start <= window.end.max(tree.len()) && window.end <= tree.len()));
    }
    if let Ok(column) = Packed::<K>::from_bytes(bytes.clone()) {
        if !column.is_empty() {
            column.get(column.len() - 1);
        }
        let _ = column.sum_by_scan(0, column.len().min(5000));
    }
}
