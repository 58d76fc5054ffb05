//! Models of devices, for the simulated device (virtual time) and the paced device (real time): the parameters of a
//! drive, the service times that follow from them, and the notation with which a user chooses one.

mod service;
mod spec;

pub use service::Model;
pub(crate) use service::Service;
pub use spec::{DeviceSpec, SpecError};
