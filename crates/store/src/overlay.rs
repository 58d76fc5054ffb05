//! Combining messages: what the messages for each key of a range come to, over whatever a leaf says.

use std::sync::Arc;

use crate::buffer::{Message, RootBuffer};
use crate::codec::{MessageKind, Page};
use crate::tree::Key;
use crate::upsert::UpsertFunctions;
use crate::{KeyRange, Result};

/// What messages say of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The row is this value, whatever was before.
    Insert(Arc<[u8]>),
    /// There is no row.
    Delete,
    /// Functions to apply to what is below, oldest first.
    Upserts(Vec<(u32, Arc<[u8]>)>),
}

impl Change {
    /// The row's value after the change, given its value before.
    pub fn apply(&self, old: Option<&[u8]>, functions: &UpsertFunctions) -> Result<Option<Arc<[u8]>>> {
        match self {
            Change::Insert(value) => Ok(Some(value.clone())),
            Change::Delete => Ok(None),
            Change::Upserts(upserts) => {
                let mut value = old.map(<[u8]>::to_vec);
                for (function, operand) in upserts {
                    value = functions.apply(*function, value.as_deref(), operand)?;
                }
                Ok(value.map(Into::into))
            }
        }
    }

    /// This change over an older one.
    fn over(self, older: Change, functions: &UpsertFunctions) -> Result<Change> {
        match (self, older) {
            (Change::Upserts(newer), Change::Upserts(mut all)) => {
                all.extend(newer);
                Ok(Change::Upserts(all))
            }
            (newer @ Change::Upserts(_), older) => {
                let base = match &older {
                    Change::Insert(value) => Some(&**value),
                    _ => None,
                };
                Ok(newer.apply(base, functions)?.map_or(Change::Delete, Change::Insert))
            }
            (newer, _) => Ok(newer),
        }
    }
}

impl From<&Message> for Change {
    fn from(message: &Message) -> Self {
        match message {
            Message::Insert(value) => Change::Insert(value.clone()),
            Message::Delete => Change::Delete,
            Message::Upsert { function, operand } => Change::Upserts(vec![(*function, operand.clone())]),
        }
    }
}

/// Collects messages, newest source first, and resolves them to one change a key.
#[derive(Debug, Default)]
pub(crate) struct OverlayBuilder {
    /// Newest first among those of one key (a stable sort keeps it so).
    changes: Vec<(Key, Change)>,
}

impl OverlayBuilder {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn add_buffer(&mut self, buffer: &RootBuffer, range: &KeyRange, sequence: u64) {
        buffer.visit(range, sequence, |key, message| self.changes.push((key.clone(), message.into())));
    }

    /// Adds the rows `rows` of a run page.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`].
    pub fn add_page(&mut self, page: &Page, rows: std::ops::Range<usize>) -> Result<()> {
        page.check_all_columns()?;
        let mut key = Vec::new();
        for row in rows {
            key.clear();
            page.key(row, &mut key);
            self.changes.push((key.as_slice().into(), change_of(page, row)?));
        }
        Ok(())
    }

    /// Adds one change, older than all so far of its key.
    #[cfg(test)]
    fn add(&mut self, key: Key, change: Change) {
        self.changes.push((key, change));
    }

    /// One change a key, ascending.
    pub fn build(mut self, functions: &UpsertFunctions) -> Result<Vec<(Key, Change)>> {
        if !self.changes.is_sorted_by(|a, b| a.0 < b.0) {
            self.changes.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let mut resolved: Vec<(Key, Change)> = Vec::with_capacity(self.changes.len());
        for (key, change) in self.changes {
            match resolved.last_mut() {
                Some((last, newer)) if *last == key => {
                    let taken = std::mem::replace(newer, Change::Delete);
                    *newer = taken.over(change, functions)?;
                }
                _ => resolved.push((key, change)),
            }
        }
        Ok(resolved)
    }
}

fn change_of(page: &Page, row: usize) -> Result<Change> {
    let unsound = |what: &str| page.damaged(format!("the {what} of row {row} is not sound"));
    Ok(match page.message_kind(row).ok_or_else(|| unsound("kind"))? {
        MessageKind::Insert => {
            let mut value = Vec::new();
            page.value(row, &mut value);
            Change::Insert(value.into())
        }
        MessageKind::Delete => Change::Delete,
        MessageKind::Upsert => Change::Upserts(parse_operands(page.operands(row)).ok_or_else(|| unsound("operand"))?),
    })
}

/// Operands as run pages store them: repeated (function id: u32 LE, length: u32 LE, operand).
pub(crate) fn encode_operands(upserts: &[(u32, Arc<[u8]>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (function, operand) in upserts {
        bytes.extend_from_slice(&function.to_le_bytes());
        bytes.extend_from_slice(&(operand.len() as u32).to_le_bytes());
        bytes.extend_from_slice(operand);
    }
    bytes
}

/// `None` if `bytes` are not what [`encode_operands`] makes.
fn parse_operands(mut bytes: &[u8]) -> Option<Vec<(u32, Arc<[u8]>)>> {
    let mut upserts = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let function = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (operand, rest) = rest.split_at_checked(len)?;
        upserts.push((function, operand.into()));
        bytes = rest;
    }
    Some(upserts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> UpsertFunctions {
        UpsertFunctions::default().with(1, |old, operand| Ok(Some([old.unwrap_or_default(), operand].concat())))
    }

    fn upsert(operand: &str) -> Change {
        Change::Upserts(vec![(1, operand.as_bytes().into())])
    }

    #[test]
    fn resolves_newest_over_oldest() {
        let mut builder = OverlayBuilder::default();
        let insert = |value: &str| Change::Insert(value.as_bytes().into());
        for (key, change) in [
            ("a", upsert("3")),
            ("b", insert("new")),
            ("a", upsert("2")),
            ("b", insert("old")),
            ("a", insert("1")),
            ("c", upsert("y")),
            ("c", upsert("x")),
            ("d", upsert("z")),
            ("d", Change::Delete),
        ] {
            builder.add(key.as_bytes().into(), change);
        }
        let resolved = builder.build(&functions()).unwrap();
        let two = Change::Upserts(vec![(1, b"x".as_slice().into()), (1, b"y".as_slice().into())]);
        let expected = [("a", insert("123")), ("b", insert("new")), ("c", two), ("d", insert("z"))];
        assert_eq!(resolved, expected.map(|(key, change)| (Key::from(key.as_bytes()), change)));
    }

    #[test]
    fn operands_round_trip() {
        let upserts: Vec<(u32, Arc<[u8]>)> = vec![(7, b"abc".as_slice().into()), (8, b"".as_slice().into())];
        assert_eq!(parse_operands(&encode_operands(&upserts)), Some(upserts.clone()));
        assert_eq!(parse_operands(&encode_operands(&upserts)[..10]), None);
        assert_eq!(parse_operands(&encode_operands(&upserts)[..15]), None);
    }
}
