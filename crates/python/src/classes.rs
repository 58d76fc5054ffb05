//! Python classes and functions that conversions use, imported when they are first needed.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Defines a function that returns an attribute of a module.
macro_rules! imported {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $module:literal, $attribute:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(py: Python<'_>) -> PyResult<&Bound<'_, $type>> {
            static OBJECT: PyOnceLock<Py<$type>> = PyOnceLock::new();
            OBJECT.import(py, $module, $attribute)
        }
    )*};
}

imported! {
    decimal: PyType = "decimal", "Decimal";
    uuid: PyType = "uuid", "UUID";
    zone_info: PyType = "zoneinfo", "ZoneInfo";
    json_loads: PyAny = "json", "loads";
    json_dumps: PyAny = "json", "dumps";
    /// An interval with months.
    interval: PyType = "keyaki._types", "Interval";
    /// A document, for values that are not dicts.
    json: PyType = "keyaki._types", "Json";
}

/// A class of `keyaki._exceptions`.
pub fn exception<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("keyaki._exceptions")?.getattr(name)
}
