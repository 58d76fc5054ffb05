//! Upper bounds of the absolute values of numbers in a tree, so that sums can be written without reading: a commit with
//! row upserts is refused if a sum could leave the range of its column.
//!
//! The bound of a column is at least the magnitude of each value that it has ever had: rows raise it to their values, and
//! a sum raises it by its argument. It never falls. Deleted rows and sums of different rows make it larger than
//! necessary.
//!
//! *Invariant.* Bounds change under the commit lock, together with the buffers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use keyaki_primitives::sync::{Mutex, MutexGuard};

use crate::base::{ColumnType, Error, Result, TreeId};
use crate::codec::{Codecs, ColumnChange, ROW_UPSERT, RowUpsert, is_bounded, limit, magnitude};
use crate::message::{MessageBytes, Operation, decode};
use crate::tree::StoreVersion;

/// Stands for an unknown bound.
const UNKNOWN_BOUND: u64 = u64::MAX;

/// The bounds of the value columns of a tree; 0 for columns that are not integers or decimals. Shared by the versions of
/// the tree.
#[derive(Debug)]
pub(crate) struct ValueBounds(Mutex<Vec<u64>>);

impl ValueBounds {
    /// The bounds of a tree without rows.
    pub fn empty(codecs: &Codecs) -> Arc<ValueBounds> {
        Arc::new(ValueBounds(Mutex::new(vec![0; codecs.row.value_columns().len()])))
    }

    /// The bounds of a tree whose values are not known.
    pub fn unknown(codecs: &Codecs) -> Arc<ValueBounds> {
        Self::new(codecs.row.value_columns().iter().map(|column| unknown(column.ty)).collect())
    }

    pub fn new(bounds: Vec<u64>) -> Arc<ValueBounds> {
        Arc::new(ValueBounds(Mutex::new(bounds)))
    }

    /// The bounds of the tree with further columns, which have their missing values.
    pub fn extended(&self, codecs: &Codecs) -> Arc<ValueBounds> {
        let mut bounds = self.get();
        for column in codecs.schema.key_columns() + bounds.len()..codecs.schema.columns().len() {
            bounds.push(magnitude(codecs.schema.columns()[column].ty, &codecs.schema.missing_value(column)));
        }
        Self::new(bounds)
    }

    /// A copy of the bounds.
    pub fn get(&self) -> Vec<u64> {
        self.0.lock().clone()
    }

    /// Access for raising the bounds by messages.
    pub fn lock<'a>(&'a self, codecs: &'a Codecs) -> LockedBounds<'a> {
        LockedBounds { bounds: self.0.lock(), codecs }
    }

    /// Raises the bounds to others.
    pub fn raise_to(&self, others: &[u64]) {
        let mut bounds = self.0.lock();
        assert_eq!(bounds.len(), others.len(), "bounds of trees with different columns");
        bounds.iter_mut().zip(others).for_each(|(bound, other)| *bound = (*bound).max(*other));
    }
}

/// The bounds of a tree while a commit changes them.
#[derive(Debug)]
pub(crate) struct LockedBounds<'a> {
    bounds: MutexGuard<'a, Vec<u64>>,
    codecs: &'a Codecs,
}

impl LockedBounds<'_> {
    /// Raises the bounds by a message of a commit.
    #[inline]
    pub fn raise(&mut self, message: &MessageBytes<'_>) {
        raise(&mut self.bounds, self.codecs, message);
    }
}

fn unknown(ty: ColumnType) -> u64 {
    if is_bounded(ty) { UNKNOWN_BOUND } else { 0 }
}

/// Raises `bounds` by a message. An upsert that is not a row upsert makes them unknown.
fn raise(bounds: &mut [u64], codecs: &Codecs, message: &MessageBytes<'_>) {
    let codec = &codecs.row;
    match message {
        MessageBytes::Delete => {}
        MessageBytes::Insert(row) => codec.raise_bounds(row, bounds),
        MessageBytes::Upsert { function: ROW_UPSERT, operand } => {
            let Some(upsert) = RowUpsert::decode(codec, operand) else { return forget(bounds, codecs) };
            codec.raise_bounds(upsert.new, bounds);
            for (i, change) in upsert.changes().enumerate() {
                let Some((change, argument)) = change else { return forget(bounds, codecs) };
                let size = magnitude(codec.value_columns()[i].ty, &argument);
                bounds[i] = match change {
                    ColumnChange::Keep => bounds[i],
                    ColumnChange::Add => bounds[i].saturating_add(size),
                    _ => bounds[i].max(size),
                };
            }
        }
        MessageBytes::Upsert { .. } => forget(bounds, codecs),
    }
}

fn forget(bounds: &mut [u64], codecs: &Codecs) {
    for (bound, column) in bounds.iter_mut().zip(codecs.row.value_columns()) {
        *bound = unknown(column.ty);
    }
}

/// The bounds that trees will have after the commit of a batch, or of a transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchBounds(HashMap<TreeId, Raised>);

/// The bounds of a tree, raised by the messages of a batch.
#[derive(Debug, Clone)]
struct Raised {
    codecs: Arc<Codecs>,
    /// The bounds without the messages.
    before: Vec<u64>,
    bounds: Vec<u64>,
    /// There are row upserts among the messages.
    has_upserts: bool,
}

impl Raised {
    fn new(codecs: Arc<Codecs>, bounds: Vec<u64>) -> Raised {
        Raised { codecs, before: bounds.clone(), bounds, has_upserts: false }
    }
}

impl BatchBounds {
    /// Raises the bounds by the operations of a part of a checked batch.
    ///
    /// # Errors
    /// [`Error::UpsertRange`] if a sum of a row upsert could leave the range of its column.
    pub fn admit(&mut self, state: &StoreVersion, payload: &[u8]) -> Result<()> {
        decode(payload, |operation| {
            match operation {
                Operation::Message { tree, message, .. } => {
                    let Raised { codecs, bounds, has_upserts, .. } = match self.0.entry(tree) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => {
                            let version = state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                            new.insert(Raised::new(version.codecs.clone(), version.bounds.get()))
                        }
                    };
                    raise(bounds, codecs, &message);
                    *has_upserts |= matches!(message, MessageBytes::Upsert { function: ROW_UPSERT, .. });
                    if !sums_fit(bounds, codecs, &message) {
                        return Err(Error::UpsertRange { tree });
                    }
                }
                Operation::CreateTree { tree, schema } => {
                    let codecs = Arc::new(Codecs::new(schema));
                    let bounds = ValueBounds::empty(&codecs).get();
                    self.0.insert(tree, Raised::new(codecs, bounds));
                }
                Operation::ExtendTree { tree, schema } => {
                    let known = state.trees.get(&tree).map(|version| version.bounds.clone());
                    let before = match self.0.remove(&tree) {
                        Some(raised) => ValueBounds::new(raised.bounds),
                        None => known.ok_or(Error::TreeNotFound(tree))?,
                    };
                    let codecs = Arc::new(Codecs::new(schema));
                    let bounds = before.extended(&codecs).get();
                    self.0.insert(tree, Raised::new(codecs, bounds));
                }
                Operation::DropTree { tree } => drop(self.0.remove(&tree)),
            }
            Ok(())
        })
    }

    /// The bounds of a tree after the batch, on top of a state in which they may be higher than when the messages were
    /// admitted. An upsert raises a bound by at most as much as that. `None` without messages of the tree.
    ///
    /// # Errors
    /// [`Error::UpsertRange`] if a sum could leave the range of its column because other commits have raised its bound.
    pub fn on_top_of(&self, tree: TreeId, current: &ValueBounds) -> Result<Option<Vec<u64>>> {
        let Some(Raised { codecs, before, bounds, has_upserts }) = self.0.get(&tree) else { return Ok(None) };
        let current = current.get();
        assert_eq!(current.len(), bounds.len(), "bounds of trees with different columns");
        let mut found = Vec::with_capacity(bounds.len());
        for (i, column) in codecs.row.value_columns().iter().enumerate() {
            let others = current[i].saturating_sub(before[i]);
            let bound = match *has_upserts {
                true => bounds[i].saturating_add(others),
                false => bounds[i].max(current[i]),
            };
            if *has_upserts && others > 0 && is_bounded(column.ty) && bound > limit(column.ty) {
                return Err(Error::UpsertRange { tree });
            }
            found.push(bound);
        }
        Ok(Some(found))
    }
}

/// Returns false if a sum of a message could leave the range of its column. `bounds` include the message.
fn sums_fit(bounds: &[u64], codecs: &Codecs, message: &MessageBytes<'_>) -> bool {
    let MessageBytes::Upsert { function: ROW_UPSERT, operand } = message else { return true };
    let Some(upsert) = RowUpsert::decode(&codecs.row, operand) else { return false };
    upsert.changes().enumerate().all(|(i, change)| match change {
        Some((ColumnChange::Add, _)) => {
            let ty = codecs.row.value_columns()[i].ty;
            !is_bounded(ty) || bounds[i] <= limit(ty)
        }
        Some(_) => true,
        None => false,
    })
}
