//! Merge resolution: combines the messages of one key into one change, and applies a change to an older row.
//!
//! Messages are added newest first. Upserts accumulate until an insert or a delete is found, which hides all older
//! messages. The upserts are then applied to it, oldest first.

use std::sync::Arc;

use crate::base::{Prior, Result};
use crate::codec::{MessageKind, Page, ROW_UPSERT, RowCodec, RowUpsert};
use crate::message::{MessageBytes, Upserts};

/// The combined effect of the messages of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The row has this value, independent of older data.
    Insert(Arc<[u8]>),
    /// The row is one of a run page, independent of older data.
    Row(PageRow),
    /// The row does not exist.
    Delete,
    /// Functions with their operands, to be applied to the older row, oldest first.
    Upserts(Vec<(u32, Arc<[u8]>)>),
}

/// A complete row of a page, all of whose columns are checked.
#[derive(Debug, Clone)]
pub(crate) struct PageRow {
    pub page: Arc<Page>,
    pub row: u32,
}

impl PartialEq for PageRow {
    fn eq(&self, other: &PageRow) -> bool {
        Arc::ptr_eq(&self.page, &other.page) && self.row == other.row
    }
}

impl Eq for PageRow {}

impl PageRow {
    /// The value, encoded by `codec`.
    fn value(&self, codec: &RowCodec) -> Arc<[u8]> {
        let mut value = Vec::new();
        self.page.value(self.row as usize, codec, &mut value);
        value.into()
    }
}

impl Change {
    /// Change of the number of rows, given the knowledge of the row before; `None` if it is unknown.
    pub fn delta(&self, prior: Prior) -> Option<i64> {
        match self {
            Change::Insert(_) | Change::Row(_) => Some(1 - prior.rows()?),
            Change::Delete => Some(-prior.rows()?),
            Change::Upserts(_) => None,
        }
    }

    /// Length of values and operands in bytes. A row of a page has none of its own, but keeps the page.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Insert(value) => value.len(),
            Change::Row(_) | Change::Delete => 0,
            Change::Upserts(upserts) => upserts.iter().map(|(_, operand)| operand.len() + 8).sum(),
        }
    }

    /// The value of the row after the change, given its value before.
    ///
    /// # Errors
    /// [`crate::Error::UnknownUpsert`], [`crate::Error::Upsert`].
    pub fn apply(&self, old: Option<&[u8]>, functions: Upserts<'_>) -> Result<Option<Arc<[u8]>>> {
        match self {
            Change::Insert(value) => Ok(Some(value.clone())),
            Change::Row(row) => Ok(Some(row.value(functions.rows()))),
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
}

/// Accumulates the messages of one key, newest first, and resolves them to one [`Change`].
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// Upserts so far, newest first.
    upserts: Vec<(u32, Arc<[u8]>)>,
    /// The newest insert or delete. It hides all older messages.
    base: Option<Change>,
    /// Knowledge of the row below the oldest message so far.
    prior: Prior,
    /// Inserts resolve to empty values unless an upsert needs them, because only their number matters.
    counts: bool,
}

impl Resolver {
    /// A resolver whose changes are only counted: values of inserts may be empty.
    pub fn counting() -> Resolver {
        Resolver { counts: true, ..Resolver::default() }
    }

    /// Records the knowledge of the row below the messages added last. Messages below a settling one count, too.
    pub fn set_prior(&mut self, prior: Prior) {
        self.prior = prior;
    }

    /// True if the value of an insert does not matter.
    fn skips_values(&self) -> bool {
        self.counts && self.upserts.is_empty()
    }

    /// Returns true once older messages have no effect.
    pub fn is_settled(&self) -> bool {
        self.base.is_some()
    }

    pub fn add_message(&mut self, message: MessageBytes<'_>) {
        if self.is_settled() {
            return;
        }
        match message {
            MessageBytes::Insert(_) if self.skips_values() => self.base = Some(Change::Insert(Arc::default())),
            MessageBytes::Insert(value) => self.base = Some(Change::Insert(value.into())),
            MessageBytes::Delete => self.base = Some(Change::Delete),
            MessageBytes::Upsert { function, operand } => self.upserts.push((function, operand.into())),
        }
    }

    /// Adds the message in row `row` of a run page of a tree with the codec `codec`. An insert resolves to a reference
    /// to this row, unless upserts are applied to it. Requires a successful [`Page::check_all_columns`].
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the message is invalid.
    pub fn add_row(&mut self, page: &Arc<Page>, row: usize, codec: &RowCodec) -> Result<()> {
        let unsound = |what: &str| page.damaged(format!("invalid {what} in row {row}"));
        let (kind, prior) = page.message(row).ok_or_else(|| unsound("kind"))?;
        self.prior = prior;
        if self.is_settled() {
            return Ok(());
        }
        match kind {
            MessageKind::Insert if !page.is_complete(row) => return Err(unsound("value")),
            MessageKind::Insert if self.skips_values() => self.base = Some(Change::Insert(Arc::default())),
            MessageKind::Insert => self.base = Some(Change::Row(PageRow { page: page.clone(), row: row as u32 })),
            MessageKind::Delete => self.base = Some(Change::Delete),
            MessageKind::Upsert => {
                let operands = widened_operands(page, row, codec).ok_or_else(|| unsound("operand"))?;
                let upserts = parse_operands(&operands).ok_or_else(|| unsound("operand"))?;
                self.upserts.extend(upserts.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Adds the upserts of a message, as [`encode_operands`] encodes them.
    ///
    /// # Panics
    /// If they are invalid.
    pub fn add_operands(&mut self, operands: &[u8]) {
        if !self.is_settled() {
            let upserts = parse_operands(operands).unwrap_or_else(|| panic!("invalid operands"));
            self.upserts.extend(upserts.into_iter().rev());
        }
    }

    /// Resolves the messages and resets the resolver. Returns the change with the knowledge of the row below it; `None`
    /// if there were no messages.
    ///
    /// # Errors
    /// [`crate::Error::UnknownUpsert`], [`crate::Error::Upsert`].
    pub fn finish(&mut self, functions: Upserts<'_>) -> Result<Option<(Change, Prior)>> {
        let prior = std::mem::take(&mut self.prior);
        Ok(self.resolve(functions)?.map(|change| (change, prior)))
    }

    fn resolve(&mut self, functions: Upserts<'_>) -> Result<Option<Change>> {
        let mut upserts = std::mem::take(&mut self.upserts);
        upserts.reverse();
        let Some(base) = self.base.take() else {
            return Ok((!upserts.is_empty()).then(|| Change::Upserts(functions.combined(upserts))));
        };
        if upserts.is_empty() {
            return Ok(Some(base));
        }
        let old = base.apply(None, functions)?;
        Ok(Some(Change::Upserts(upserts).apply(old.as_deref(), functions)?.map_or(Change::Delete, Change::Insert)))
    }
}

/// Operands as run pages store them: repeated (function id: u32 LE, length: u32 LE, operand).
pub(super) fn encode_operands(upserts: &[(u32, Arc<[u8]>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (function, operand) in upserts {
        bytes.extend_from_slice(&function.to_le_bytes());
        bytes.extend_from_slice(&(operand.len() as u32).to_le_bytes());
        bytes.extend_from_slice(operand);
    }
    bytes
}

/// The operands of the upsert in row `row` of a run page of a tree with the codec `codec`, also if the page was written
/// before the tree got all its columns; `None` if they are invalid.
pub(super) fn widened_operands(page: &Page, row: usize, codec: &RowCodec) -> Option<Vec<u8>> {
    let operands = page.operands(row);
    let mut upserts = parse_operands(operands)?;
    if page.columns() == codec.schema().columns().len() {
        return Some(operands.to_vec());
    }
    let old = codec.prefix(page.columns());
    for (_, operand) in upserts.iter_mut().filter(|(function, _)| *function == ROW_UPSERT) {
        *operand = RowUpsert::decode(&old, operand).and_then(|upsert| upsert.widened(codec))?.into();
    }
    Some(encode_operands(&upserts))
}

/// Decodes operands; `None` if `bytes` are not the encoding of at least one upsert.
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
    // A message without upserts would resolve to no message at all.
    (!upserts.is_empty()).then_some(upserts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Schema, UpsertFunctions};
    use crate::codec::Codecs;

    fn functions() -> UpsertFunctions {
        UpsertFunctions::default().with(1, |old, operand| Ok(Some([old.unwrap_or_default(), operand].concat())))
    }

    fn resolve(messages: &[MessageBytes<'_>]) -> Option<Change> {
        let mut resolver = Resolver::default();
        messages.iter().for_each(|message| resolver.add_message(*message));
        let codecs = Codecs::new(Schema::key_value());
        resolver.finish(Upserts::new(&functions(), &codecs)).unwrap().map(|(change, _)| change)
    }

    #[test]
    fn resolves_newest_over_oldest() {
        let bytes = |text: &str| -> Arc<[u8]> { text.as_bytes().into() };
        let insert = |value: &'static str| MessageBytes::Insert(value.as_bytes());
        let upsert = |operand: &'static str| MessageBytes::Upsert { function: 1, operand: operand.as_bytes() };
        assert_eq!(resolve(&[]), None);
        assert_eq!(resolve(&[upsert("3"), upsert("2"), insert("1"), insert("0")]), Some(Change::Insert(bytes("123"))));
        assert_eq!(resolve(&[insert("new"), upsert("x")]), Some(Change::Insert(bytes("new"))));
        let two = Change::Upserts(vec![(1, bytes("x")), (1, bytes("y"))]);
        assert_eq!(resolve(&[upsert("y"), upsert("x")]), Some(two));
        assert_eq!(resolve(&[upsert("z"), MessageBytes::Delete]), Some(Change::Insert(bytes("z"))));
        assert_eq!(resolve(&[MessageBytes::Delete, insert("1")]), Some(Change::Delete));
    }

    #[test]
    fn operands_round_trip() {
        let upserts: Vec<(u32, Arc<[u8]>)> = vec![(7, b"abc".as_slice().into()), (8, b"".as_slice().into())];
        assert_eq!(parse_operands(&encode_operands(&upserts)), Some(upserts.clone()));
        assert_eq!(parse_operands(&encode_operands(&upserts)[..10]), None);
        assert_eq!(parse_operands(&encode_operands(&upserts)[..15]), None);
        assert_eq!(parse_operands(&[]), None);
    }
}
