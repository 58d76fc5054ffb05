//! The two ways of executing a query that the OoODE paper compares.

use std::fmt;
use std::str::FromStr;

/// How the executor runs the tasks of a query.
///
/// The text form is `in_order` or `out_of_order`; parsing ignores case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecutionMode {
    /// One task at a time, with blocking reads: the baseline. At most one read is in flight.
    InOrder,
    /// Many tasks at a time, each resumed when its read completes; reads fill the queue depth of the device.
    #[default]
    OutOfOrder,
}

impl fmt::Display for ExecutionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExecutionMode::InOrder => "in_order",
            ExecutionMode::OutOfOrder => "out_of_order",
        })
    }
}

impl FromStr for ExecutionMode {
    /// The accepted names, each in single quotes and followed by a space.
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name.to_ascii_lowercase().as_str() {
            "in_order" => Ok(ExecutionMode::InOrder),
            "out_of_order" => Ok(ExecutionMode::OutOfOrder),
            _ => Err("'out_of_order' 'in_order' "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for mode in [ExecutionMode::InOrder, ExecutionMode::OutOfOrder] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(mode.to_string().to_uppercase().parse(), Ok(mode));
        }
        assert!("auto".parse::<ExecutionMode>().is_err());
    }
}
