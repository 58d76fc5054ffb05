//! Statements: parsed here, then either run here (DDL, DML, COPY …) or planned by DataFusion.

pub(crate) mod analyze;
pub(crate) mod copy;
