//! A schema together with its key and row codecs.

use std::sync::Arc;

use super::{KeyCodec, RowCodec};
use crate::base::Schema;

/// A schema with the codecs derived from it. Made once per tree and shared.
#[derive(Debug)]
pub(crate) struct Codecs {
    pub schema: Arc<Schema>,
    pub key: KeyCodec,
    pub row: RowCodec,
}

impl Codecs {
    pub fn new(schema: Schema) -> Self {
        let (key, row) = (KeyCodec::new(&schema), RowCodec::new(&schema));
        Codecs { schema: Arc::new(schema), key, row }
    }
}
