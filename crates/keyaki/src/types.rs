//! SQL types, column types and Arrow types.

/// How [`keyaki_store::ColumnType`] is written in the catalog.
pub mod column_type_text {
    use keyaki_store::ColumnType;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(_ty: &ColumnType, _serializer: S) -> Result<S::Ok, S::Error> {
        todo!()
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(_deserializer: D) -> Result<ColumnType, D::Error> {
        todo!()
    }
}
