//! Errors of the database as exceptions of DB-API 2.0.
//!
//! The class of an exception follows from the SQLSTATE of the error, which the exception has as its attribute `sqlstate`.

use pyo3::prelude::*;

use crate::classes;

/// The name of the exception class for a SQLSTATE.
fn class(sqlstate: &str) -> &'static str {
    match (&sqlstate[..2], sqlstate) {
        ("0A", _) => "NotSupportedError",
        ("21" | "22", _) => "DataError",
        ("23" | "44", _) => "IntegrityError",
        ("02" | "07" | "26" | "34" | "3B" | "3F" | "42", _) | (_, "25001" | "25P01") => "ProgrammingError",
        ("XX", _) => "InternalError",
        ("0L" | "25" | "2B" | "3D" | "40" | "53" | "54" | "55" | "57" | "58", _) => "OperationalError",
        _ => "DatabaseError",
    }
}

/// The exception for an error.
pub fn raised(py: Python<'_>, error: &keyaki::Error) -> PyErr {
    let sqlstate = error.sqlstate();
    exception(py, class(sqlstate.code()), &error.to_string(), Some(sqlstate.code()))
}

/// An exception of a class of DB-API 2.0.
pub fn exception(py: Python<'_>, class: &str, message: &str, sqlstate: Option<&str>) -> PyErr {
    let made = classes::exception(py, class).and_then(|class| {
        let exception = class.call1((message,))?;
        exception.setattr("sqlstate", sqlstate)?;
        Ok(exception)
    });
    // An error of the import says more than the one that it replaces.
    made.map_or_else(|error| error, PyErr::from_value)
}

/// An error in the use of the interface, as a closed connection.
pub fn interface(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "InterfaceError", message, None)
}

/// An error in the arguments of a call.
pub fn programming(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "ProgrammingError", message, None)
}

/// A value that cannot be converted.
pub fn data(py: Python<'_>, message: &str, sqlstate: &str) -> PyErr {
    exception(py, "DataError", message, Some(sqlstate))
}
