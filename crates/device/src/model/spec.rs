//! The notation of devices on command lines: `array(40 ssd)`, `cloud(1ms, 64k iops)`, `disk(5ms)`, `nvme`.
//!
//! ```
//! use keyaki_device::model::{DeviceSpec, Model};
//!
//! let device: DeviceSpec = "array(40 ssd)".parse()?;
//! assert_eq!(device.model(), Model::ssd_array_40());
//! assert_eq!("cloud( 1000us,64000 iops, 1GB/s )".parse::<DeviceSpec>()?.to_string(), "cloud(1ms, 64k iops)");
//! # Ok::<(), keyaki_device::model::SpecError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use super::Model;

/// A kind of device, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSpec {
    /// `array(N ssd)`: an array of SATA drives; see [`Model::ssd_array`].
    Array {
        /// Number of drives.
        drives: u32,
    },
    /// `cloud(LATENCY, N iops[, RATE])`: a network volume with quotas; see [`Model::cloud`].
    Cloud {
        /// Latency of a request.
        latency_ns: u64,
        /// Requests per second.
        requests_per_second: u64,
        /// Data rate.
        bytes_per_second: u64,
    },
    /// `disk(LATENCY)`: a hard disk; see [`Model::disk_of`].
    Disk {
        /// Latency of a request.
        latency_ns: u64,
    },
    /// `nvme`: a local NVMe drive; see [`Model::nvme`].
    Nvme,
}

/// A text that is not a [`DeviceSpec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no such kind of device.
    #[error("unknown device \"{name}\": expected array(N ssd), cloud(LATENCY, N iops), disk(LATENCY) or nvme")]
    UnknownDevice {
        /// The text before the parameters.
        name: String,
    },
    /// The number of parameters is wrong, or a parenthesis is missing.
    #[error("invalid device \"{text}\": expected {form}")]
    Form {
        /// The whole text.
        text: String,
        /// The form of this kind of device.
        form: &'static str,
    },
    /// A parameter is invalid or out of range.
    #[error("invalid {parameter} \"{text}\": expected {expected}")]
    Parameter {
        /// `latency`, for example.
        parameter: &'static str,
        /// The parameter's text.
        text: String,
        /// Form and range.
        expected: &'static str,
    },
}

/// The default data rate of a cloud volume.
const CLOUD_BYTES_PER_SECOND: u64 = 1_000_000_000;

impl DeviceSpec {
    /// The performance of the device.
    pub const fn model(&self) -> Model {
        match *self {
            DeviceSpec::Array { drives } => Model::ssd_array(drives),
            DeviceSpec::Cloud { latency_ns, requests_per_second, bytes_per_second } => {
                Model::cloud(latency_ns, requests_per_second, bytes_per_second)
            }
            DeviceSpec::Disk { latency_ns } => Model::disk_of(latency_ns),
            DeviceSpec::Nvme => Model::nvme(),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        let (name, parameters) = match text.split_once('(') {
            None => (text, None),
            Some((name, rest)) => (name.trim_end(), rest.strip_suffix(')')),
        };
        let parameters: Vec<&str> = parameters.map_or(vec![], |inside| inside.split(',').map(str::trim).collect());
        let form = |form| SpecError::Form { text: text.into(), form };
        match (name, parameters.as_slice()) {
            ("array", &[drives]) => Ok(DeviceSpec::Array { drives: parse_drives(drives)? }),
            ("array", _) => Err(form("array(N ssd)")),
            ("cloud", &[latency, requests, ref rate @ ..]) if rate.len() <= 1 => Ok(DeviceSpec::Cloud {
                latency_ns: parse_latency(latency)?,
                requests_per_second: parse_requests(requests)?,
                bytes_per_second: rate.first().map_or(Ok(CLOUD_BYTES_PER_SECOND), |rate| parse_rate(rate))?,
            }),
            ("cloud", _) => Err(form("cloud(LATENCY, N iops[, N MB/s])")),
            ("disk", &[latency]) => Ok(DeviceSpec::Disk { latency_ns: parse_latency(latency)? }),
            ("disk", _) => Err(form("disk(LATENCY)")),
            ("nvme", []) if text == "nvme" => Ok(DeviceSpec::Nvme),
            ("nvme", _) => Err(form("nvme, without parameters")),
            _ => Err(SpecError::UnknownDevice { name: name.into() }),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DeviceSpec::Array { drives } => write!(f, "array({drives} ssd)"),
            DeviceSpec::Cloud { latency_ns, requests_per_second, bytes_per_second } => {
                write!(f, "cloud({}, ", Latency(latency_ns))?;
                match requests_per_second {
                    requests if requests.is_multiple_of(1000) => write!(f, "{}k iops", requests / 1000)?,
                    requests => write!(f, "{requests} iops")?,
                }
                match bytes_per_second {
                    CLOUD_BYTES_PER_SECOND => {}
                    rate => write!(f, ", {} MB/s", rate as f64 / 1e6)?,
                }
                write!(f, ")")
            }
            DeviceSpec::Disk { latency_ns } => write!(f, "disk({})", Latency(latency_ns)),
            DeviceSpec::Nvme => write!(f, "nvme"),
        }
    }
}

/// A latency in nanoseconds, for display.
struct Latency(u64);

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns >= 1_000_000 => write!(f, "{}ms", ns as f64 / 1e6),
            ns => write!(f, "{}us", ns as f64 / 1e3),
        }
    }
}

fn parse_drives(text: &str) -> Result<u32, SpecError> {
    const ONE: &[(&str, f64)] = &[("ssd", 1.0)];
    let expected = "1 to 1000 drives, such as \"40 ssd\"";
    Ok(parse("number of drives", text, expected, ONE, 1.0, 1000.0)? as u32)
}

fn parse_latency(text: &str) -> Result<u64, SpecError> {
    const UNITS: &[(&str, f64)] = &[("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let expected = "1us to 10s, such as 80us, 1ms or 1.5ms";
    parse("latency", text, expected, UNITS, 1e3, 1e10)
}

fn parse_requests(text: &str) -> Result<u64, SpecError> {
    const UNITS: &[(&str, f64)] = &[("iops", 1.0), ("k iops", 1e3), ("M iops", 1e6)];
    let expected = "1 to 100M requests per second, such as \"16000 iops\" or \"64k iops\"";
    parse("request rate", text, expected, UNITS, 1.0, 1e8)
}

fn parse_rate(text: &str) -> Result<u64, SpecError> {
    const UNITS: &[(&str, f64)] = &[("MB/s", 1e6), ("GB/s", 1e9)];
    let expected = "1 MB/s to 1000 GB/s, such as \"250 MB/s\" or \"1.5 GB/s\"";
    parse("data rate", text, expected, UNITS, 1e6, 1e12)
}

/// A number with one of the units, in the unit of factor 1. Whole numbers only if that is the only unit.
fn parse(
    parameter: &'static str,
    text: &str,
    expected: &'static str,
    units: &[(&str, f64)],
    min: f64,
    max: f64,
) -> Result<u64, SpecError> {
    let wrong = || SpecError::Parameter { parameter, text: text.into(), expected };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1;
    let value = (number.parse::<f64>().map_err(|_| wrong())? * factor).round();
    let whole = units.len() > 1 || !number.contains('.');
    if whole && (min..=max).contains(&value) { Ok(value as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DeviceSpec, SpecError> {
        text.parse()
    }

    #[test]
    fn devices_round_trip() {
        for text in [
            "array(40 ssd)",
            "array(1 ssd)",
            "cloud(1ms, 64k iops)",
            "cloud(1.5ms, 16500 iops, 250 MB/s)",
            "cloud(250us, 1000k iops)",
            "disk(5ms)",
            "disk(12.5ms)",
            "nvme",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for (text, same) in [
            (" array ( 8ssd ) ", "array(8 ssd)"),
            ("cloud(1000µs,0.064M iops,1 GB/s)", "cloud(1ms, 64k iops)"),
            ("cloud(2s, 5000IOPS, 2.5GB/s)", "cloud(2000ms, 5k iops, 2500 MB/s)"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), same);
        }
    }

    #[test]
    fn devices_have_models() {
        let model = |text| parse(text).unwrap().model();
        assert_eq!(model("array(40 ssd)"), Model::ssd_array_40());
        assert_eq!(model("array(10 ssd)").channels, 40);
        assert_eq!(model("cloud(1ms, 64k iops)"), Model::cloud_volume());
        assert_eq!(model("disk(8ms)"), Model::disk());
        assert_eq!(model("nvme"), Model::nvme());
    }

    #[test]
    fn errors_name_the_part_and_what_is_expected() {
        let message = |text| parse(text).unwrap_err().to_string();
        assert_eq!(
            message("arry(40 ssd)"),
            "unknown device \"arry\": expected array(N ssd), cloud(LATENCY, N iops), disk(LATENCY) or nvme"
        );
        assert_eq!(message("array"), "invalid device \"array\": expected array(N ssd)");
        assert_eq!(message("disk(5ms"), "invalid device \"disk(5ms\": expected disk(LATENCY)");
        assert_eq!(message("cloud(1ms)"), "invalid device \"cloud(1ms)\": expected cloud(LATENCY, N iops[, N MB/s])");
        assert_eq!(message("nvme(1)"), "invalid device \"nvme(1)\": expected nvme, without parameters");
        assert_eq!(message("disk(5)"), "invalid latency \"5\": expected 1us to 10s, such as 80us, 1ms or 1.5ms");
        assert_eq!(
            message("array(40)"),
            "invalid number of drives \"40\": expected 1 to 1000 drives, such as \"40 ssd\""
        );
        for wrong in [
            "",
            "()",
            "array()",
            "array(0 ssd)",
            "array(1.5 ssd)",
            "array(1001 ssd)",
            "array(-1 ssd)",
            "disk(0ms)",
            "disk(1h)",
            "disk(1..5ms)",
            "disk(ms)",
            "disk(5ms) x",
            "cloud(1ms, 64k)",
            "cloud(1ms, 0 iops)",
            "cloud(1ms, 64k iops, 100)",
            "cloud(1ms, 64k iops, 1 GB/s, 1)",
            "nvme()",
            "nvme(",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
