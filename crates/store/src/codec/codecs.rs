//! A schema together with its encoders.

use std::sync::Arc;

use super::{KeyCodec, RowCodec};
use crate::base::Schema;

/// A schema with the encoders made from it.
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
