//! Measures a device.

/// What was measured.
#[derive(Debug, Clone)]
pub struct Calibration {}
