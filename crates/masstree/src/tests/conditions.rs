//! Conditional changes of single keys, and retired values.

use std::sync::Arc;

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

#[test]
fn values_computed_from_the_current_one() {
    let map = Masstree::new();
    let guard = pin();
    assert_eq!(map.insert_with("k", |old| old.is_some().then_some(1u64), &guard), None);
    assert!(map.is_empty());
    assert_eq!(map.insert_with("k", |old| Some(old.unwrap_or(5) + 1), &guard), None);
    assert_eq!(map.insert_with("k", |old| old.map(|old| old + 1), &guard), Some(6));
    assert_eq!(map.insert_with("k", |_| None, &guard), Some(7));
    assert_eq!((map.get("k", &guard), map.len()), (Some(7), 1));
}

#[test]
fn retired_values_outlive_earlier_guards() {
    let value = Arc::new(());
    let seen = pin();
    pin().retire(value.clone());
    pin().flush();
    assert_eq!(Arc::strong_count(&value), 2);
    drop(seen);
    while Arc::strong_count(&value) > 1 {
        pin().flush();
        std::thread::yield_now();
    }
}
