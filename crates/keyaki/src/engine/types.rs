//! SQL types of literals and casts.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::error::Result;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{DataType as SqlType, TimezoneInfo};

use crate::base::intervals::INTERVAL;
use crate::base::uuids::UUID;
use crate::catalog::types::{from_sql, interval_fields};
use crate::values::zone::STORED;

/// Gives types the Arrow types of columns: DataFusion's TIMESTAMP has nanoseconds, and ends in the year 2262; its BYTEA is not
/// a view, and it has no UUID.
#[derive(Debug)]
pub(super) struct ColumnTypes;

impl TypePlanner for ColumnTypes {
    fn plan_type_field(&self, ty: &SqlType) -> Result<Option<FieldRef>> {
        let has_zone = match ty {
            SqlType::Interval { fields: None, precision: None | Some(6) } => {
                return Ok(Some(Arc::new(Field::new("", INTERVAL, true))));
            }
            SqlType::Interval { .. } => return Err(interval_fields(ty).into()),
            SqlType::Array(_) => {
                let ty = from_sql(ty)?.column.arrow();
                return Ok(Some(Arc::new(Field::new("", ty, true))));
            }
            SqlType::Uuid => return Ok(Some(Arc::new(Field::new("", UUID, true)))),
            SqlType::Time(None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
                return Ok(Some(Arc::new(Field::new("", DataType::Time64(TimeUnit::Microsecond), true))));
            }
            SqlType::Bytea | SqlType::Blob(None) | SqlType::Varbinary(None) => {
                return Ok(Some(Arc::new(Field::new("", DataType::BinaryView, true))));
            }
            SqlType::Timestamp(None | Some(6), zone) => {
                matches!(zone, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone)
            }
            SqlType::Datetime(None | Some(6)) => false,
            _ => return Ok(None),
        };
        let zone = has_zone.then(|| STORED.into());
        Ok(Some(Arc::new(Field::new("", DataType::Timestamp(TimeUnit::Microsecond, zone), true))))
    }
}
