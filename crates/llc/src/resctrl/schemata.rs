//! The grammar of `schemata` files.
//!
//! ```text
//!     L3:0=fffff;1=ff         a resource, and the value for each domain: masks in hexadecimal
//!     MB:0=100;1=100          other resources (here memory bandwidth) have other values, which are kept as text
//! L2DATA:uninitialized        a group that is being set up for pseudo-locking
//! ```

use std::fmt;

use crate::CapacityMask;

/// The lines of a `schemata` file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schemata {
    /// The lines, in order.
    pub lines: Vec<SchemataLine>,
}

/// A line of a `schemata` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemataLine {
    /// Name of the resource.
    pub resource: String,
    /// Domain and value; empty for `uninitialized`.
    pub domains: Vec<(u32, String)>,
}

impl Schemata {
    /// Parses the text of a `schemata` file.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines = lines.map(|line| SchemataLine::parse(line).ok_or_else(|| line.to_string()));
        Ok(Schemata { lines: lines.collect::<Result<_, _>>()? })
    }

    /// Domains and masks of a resource; empty if the resource has no line, or a line without masks.
    pub fn masks(&self, resource: &str) -> Vec<(u32, CapacityMask)> {
        let line = self.lines.iter().find(|line| line.resource == resource);
        let domains = line.map_or(&[][..], |line| &line.domains);
        domains.iter().filter_map(|(domain, value)| Some((*domain, value.parse().ok()?))).collect()
    }

    /// Adds a line of masks.
    pub fn push(&mut self, resource: &str, masks: impl IntoIterator<Item = (u32, CapacityMask)>) {
        let domains = masks.into_iter().map(|(domain, mask)| (domain, mask.to_string())).collect();
        self.lines.push(SchemataLine { resource: resource.into(), domains });
    }
}

impl SchemataLine {
    fn parse(line: &str) -> Option<Self> {
        let (resource, values) = line.split_once(':')?;
        let (resource, values) = (resource.trim().to_string(), values.trim());
        if resource.is_empty() {
            return None;
        }
        if values == "uninitialized" {
            return Some(SchemataLine { resource, domains: Vec::new() });
        }
        let domain = |part: &str| {
            let (domain, value) = part.split_once('=')?;
            let value = value.trim();
            if value.is_empty() { None } else { Some((domain.trim().parse().ok()?, value.to_string())) }
        };
        let domains = values.split(';').map(domain).collect::<Option<Vec<_>>>()?;
        Some(SchemataLine { resource, domains })
    }
}

/// The format that the kernel accepts: every line ends with a newline.
impl fmt::Display for Schemata {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            let domains = line.domains.iter().map(|(domain, value)| format!("{domain}={value}"));
            writeln!(out, "{}:{}", line.resource, domains.collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}
