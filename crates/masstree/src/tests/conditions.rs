//! Conditional changes.

use crate::{Masstree, pin};

#[test]
fn conditional_changes() {
    let map = Masstree::new();
    let guard = pin();
    assert!(map.compare_exchange("k", |old| old.is_none(), Some(1u64), &guard).unwrap().is_none());
    let refused = map.compare_exchange("k", |old| old.is_none(), Some(2), &guard).unwrap_err();
    assert_eq!((refused.current, refused.rejected), (Some(1), Some(2)));
    assert_eq!(map.compare_exchange("k", |old| old == Some(&1), Some(3), &guard).unwrap(), Some(1));
    assert_eq!(map.update_with("k", |old| old.map(|old| old + 1), &guard), Some(3));
    assert_eq!(map.compare_exchange("k", |old| old == Some(&4), None, &guard).unwrap(), Some(4));
    assert!(map.is_empty() && map.get("k", &guard).is_none());
}
