//! A version of a tree without its damaged pages, which the ordinary cursors read.
//!
//! A damaged leaf is replaced by one leaf for each group of intact pages, and a damaged part of a run by one part for each
//! group. Keys between the groups have no row or message there.

use std::collections::HashMap;
use std::sync::Arc;

use super::remains::Remains;
use crate::base::Key;
use crate::codec::Page;
use crate::engine::DamagedKeys;
use crate::tree::{InnerNode, Node, Part, Run, TreeVersion};

/// The tree without its damaged pages.
pub(super) struct Pruned {
    pub version: TreeVersion,
    /// The new index pages, by their offset.
    pub indexes: HashMap<u64, Arc<Page>>,
    /// Keys whose rows in leaves are lost, in key order. They do not overlap. Each lies within one leaf.
    pub lost: Vec<DamagedKeys>,
    /// Keys whose messages in runs are lost, or whose pages may be older ones, in key order. They do not overlap.
    pub outdated: Vec<DamagedKeys>,
}

/// Removes the damaged pages of a tree. `remains` has the intact pages of each damaged extent, by the offset of the extent.
pub(super) fn prune(version: &TreeVersion, remains: &HashMap<u64, Remains>) -> Pruned {
    let mut pruner = Pruner { remains, lost: Vec::new(), outdated: Vec::new() };
    let root = if remains.is_empty() { version.root.clone() } else { Arc::new(pruner.inner(&version.root)) };
    let groups = remains.values().flat_map(|remains| &remains.groups);
    let indexes = groups.map(|group| (group.extent.index().offset, group.index.clone())).collect();
    let version = TreeVersion { root, sample: None, ..version.clone() };
    Pruned { version, indexes, lost: pruner.lost, outdated: united(pruner.outdated) }
}

struct Pruner<'a> {
    remains: &'a HashMap<u64, Remains>,
    lost: Vec<DamagedKeys>,
    outdated: Vec<DamagedKeys>,
}

impl Pruner<'_> {
    fn inner(&mut self, node: &InnerNode) -> InnerNode {
        let (mut pivots, mut children) = (Vec::new(), Vec::new());
        for (i, child) in node.children.iter().enumerate() {
            pivots.extend(i.checked_sub(1).map(|before| node.pivots[before].clone()));
            match &**child {
                Node::Inner(inner) => children.push(Arc::new(Node::Inner(self.inner(inner)))),
                Node::Leaf(Some(extent)) if let Some(remains) = self.remains.get(&extent.meta.offset) => {
                    self.lost.extend(remains.lost.iter().cloned());
                    self.outdated.extend(remains.outdated.clone());
                    let groups = &remains.groups;
                    pivots.extend(groups.iter().skip(1).map(|group| Key::from(&*group.extent.meta.first)));
                    children.extend(groups.iter().map(|group| Arc::new(Node::Leaf(Some(group.extent.clone())))));
                    if groups.is_empty() {
                        children.push(Arc::new(Node::Leaf(None)));
                    }
                }
                Node::Leaf(_) => children.push(child.clone()),
            }
        }
        let runs = node.runs.iter().map(|run| self.run(run)).filter(|run| !run.is_empty());
        InnerNode::new(pivots, children, runs.collect())
    }

    fn run(&mut self, run: &Run) -> Run {
        let mut parts = Vec::new();
        for part in run.parts() {
            let Some(remains) = self.remains.get(&part.extent.meta.offset) else {
                parts.push(part.clone());
                continue;
            };
            let keys = remains.lost.iter().chain(&remains.outdated);
            self.outdated.extend(keys.filter_map(|keys| within(keys, part)));
            parts.extend(remains.groups.iter().filter_map(|group| {
                let meta = &group.extent.meta;
                let low = part.low.clone().filter(|low| **low > *meta.first);
                let high = part.high.clone().filter(|high| **high <= *meta.last);
                let is_empty = low.as_ref().is_some_and(|low| **low > *meta.last)
                    || high.as_ref().is_some_and(|high| **high <= *meta.first);
                let part = Part { low, high, ..Part::whole(group.extent.clone()) };
                (!is_empty).then_some(part)
            }));
        }
        Run::new(parts)
    }
}

/// The keys that lie within a part of a run; `None` if there are none.
fn within(keys: &DamagedKeys, part: &Part) -> Option<DamagedKeys> {
    let mut keys = keys.clone();
    if let Some(low) = part.low.as_ref().filter(|low| ***low > *keys.low) {
        keys.low = low.to_vec();
    }
    if let Some(high) = part.high.as_ref().filter(|high| ***high <= *keys.high) {
        (keys.high, keys.includes_high) = (high.to_vec(), false);
    }
    (!keys.range().is_empty()).then_some(keys)
}

/// The same keys in order, without overlaps.
fn united(mut keys: Vec<DamagedKeys>) -> Vec<DamagedKeys> {
    keys.sort_by(|a, b| a.low.cmp(&b.low));
    let mut united: Vec<DamagedKeys> = Vec::new();
    for next in keys {
        match united.last_mut() {
            Some(last) if next.low <= last.high => {
                let end = (last.high.clone(), last.includes_high).max((next.high, next.includes_high));
                (last.high, last.includes_high) = end;
            }
            _ => united.push(next),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(low: &str, high: &str, includes_high: bool) -> DamagedKeys {
        DamagedKeys { low: low.into(), high: high.into(), includes_high }
    }

    #[test]
    fn overlapping_keys_are_united() {
        let all = vec![keys("m", "p", false), keys("a", "c", false), keys("b", "f", true), keys("f", "f", true)];
        assert_eq!(united(all), [keys("a", "f", true), keys("m", "p", false)]);
        let touching = vec![keys("a", "c", false), keys("c", "c", true), keys("c", "d", false)];
        assert_eq!(united(touching), [keys("a", "d", false)]);
        assert_eq!(united(Vec::new()), []);
    }
}
