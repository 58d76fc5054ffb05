//! The capabilities of the hardware, from `info/`, and the usable parts of each cache: the parts in the default class's
//! mask that no group in exclusive mode owns.

use serde::Serialize;

use super::{Schemata, Tree, Unavailable};
use crate::CapacityMask;

/// A resource of resctrl: a cache level. With code and data prioritisation (CDP) a level has two resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ResourceKind {
    /// L3 without CDP.
    L3,
    /// Code in L3.
    L3Code,
    /// Data in L3.
    L3Data,
    /// L2 without CDP.
    L2,
    /// Code in L2.
    L2Code,
    /// Data in L2.
    L2Data,
}

impl ResourceKind {
    /// All kinds.
    pub const ALL: [ResourceKind; 6] = [Self::L3, Self::L3Code, Self::L3Data, Self::L2, Self::L2Code, Self::L2Data];

    /// The name in `info/` and in `schemata`.
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "L3",
            Self::L3Code => "L3CODE",
            Self::L3Data => "L3DATA",
            Self::L2 => "L2",
            Self::L2Code => "L2CODE",
            Self::L2Data => "L2DATA",
        }
    }

    /// The cache level: 2 or 3.
    pub fn level(self) -> u32 {
        if matches!(self, Self::L3 | Self::L3Code | Self::L3Data) { 3 } else { 2 }
    }

    /// True if masks of this resource govern the allocation of data.
    pub fn holds_data(self) -> bool {
        !matches!(self, Self::L3Code | Self::L2Code)
    }
}

/// An instance of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Domain {
    /// The domain's number in `schemata`.
    pub id: u32,
    /// The parts that Keyaki's groups may use: one run of bits, unless the machine allows sparse masks.
    pub usable: CapacityMask,
}

/// A partitioned cache level, with the values of its directory in `info/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The cache level.
    pub kind: ResourceKind,
    /// All parts.
    pub cbm_mask: CapacityMask,
    /// Minimum number of bits of a mask; 0 if empty masks are allowed.
    pub min_cbm_bits: u32,
    /// Parts that other hardware (graphics, devices) also uses: the first choice for streaming work.
    pub shareable_bits: CapacityMask,
    /// Number of classes of service, including the default class.
    pub num_closids: u32,
    /// True if masks need not be contiguous.
    pub sparse_masks: bool,
    /// The instances of the cache.
    pub domains: Vec<Domain>,
}

/// Monitoring capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Monitoring {
    /// Number of monitoring ids.
    pub num_rmids: u32,
    /// Names of counters: `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
    pub features: Vec<String>,
}

/// The capabilities of the machine. At least one resource holds data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The partitioned cache levels.
    pub resources: Vec<Resource>,
    /// Number of classes of service that all resources have, including the default class.
    pub classes: u32,
    /// `None` if the hardware cannot monitor.
    pub monitoring: Option<Monitoring>,
}

impl Resource {
    /// Minimum number of bits of a mask that Keyaki writes: at least one, even if the machine allows empty masks.
    pub fn bits_min(&self) -> u32 {
        self.min_cbm_bits.max(1)
    }

    /// Number of usable parts that every domain has.
    pub fn bits_usable(&self) -> u32 {
        self.domains.iter().map(|domain| domain.usable.count()).min().unwrap_or(0)
    }

    /// The mask of `bits` consecutive usable parts of a domain from position `first` on. Position 0 is at the end with
    /// the parts that are shared with other hardware. `bits` is limited to the range from the minimum to all usable
    /// parts, and `first` so that they fit.
    pub fn place(&self, domain: &Domain, first: u32, bits: u32) -> CapacityMask {
        let count = domain.usable.count();
        let bits = bits.clamp(self.bits_min().min(count), count);
        let first = first.min(count - bits);
        let from_low = if self.shared_end_is_low(domain) { first } else { count - bits - first };
        // With sparse masks the usable bits need not be consecutive: positions count usable bits only.
        let mut rest = domain.usable.0;
        let mut mask = 0;
        for position in 0..count {
            let bit = rest & rest.wrapping_neg();
            rest &= !bit;
            if (from_low..from_low + bits).contains(&position) {
                mask |= bit;
            }
        }
        CapacityMask(mask)
    }

    /// True if the parts shared with other hardware are nearer to the low end of the usable parts than to the high end.
    fn shared_end_is_low(&self, domain: &Domain) -> bool {
        let shared = (self.shareable_bits & domain.usable).0;
        let usable = domain.usable.0;
        let from_low = (shared.trailing_zeros()).saturating_sub(usable.trailing_zeros());
        let from_high = shared.leading_zeros().saturating_sub(usable.leading_zeros());
        shared != 0 && from_low < from_high
    }
}

impl Capabilities {
    /// Reads `info/`, the masks of the default class, and the masks of exclusive groups.
    ///
    /// # Errors
    /// If no data cache can be partitioned, too few parts are usable, or a file has unexpected contents.
    pub fn read(tree: &dyn Tree) -> Result<Self, Unavailable> {
        let unexpected =
            |what: &str, error: &dyn std::fmt::Display| Unavailable::Unexpected(format!("{what}: {error}"));
        let info = tree.directories("info").map_err(|error| unexpected("info", &error))?;
        let text = tree.read("schemata").map_err(|error| unexpected("schemata", &error))?;
        let schemata = Schemata::parse(&text).map_err(|line| unexpected("schemata", &line))?;
        let mut resources = Vec::new();
        for kind in ResourceKind::ALL.into_iter().filter(|kind| info.iter().any(|name| name == kind.name())) {
            resources.push(read_resource(tree, kind, &schemata)?);
        }
        if !resources.iter().any(|resource| resource.kind.holds_data()) {
            return Err(Unavailable::NoAllocation);
        }
        let owned = owned_by_others(tree);
        for resource in &mut resources {
            resource.exclude(&owned);
            let usable = resource.bits_usable();
            let needed = 2 * resource.bits_min();
            if usable < needed {
                return Err(Unavailable::TooFewWays { usable, total: resource.cbm_mask.count(), needed });
            }
        }
        let closids = info.iter().filter_map(|name| number(tree, &format!("info/{name}/num_closids")).ok());
        let classes = closids.min().unwrap_or(1);
        let monitoring = info.iter().any(|name| name == "L3_MON").then(|| read_monitoring(tree));
        Ok(Capabilities { resources, classes, monitoring })
    }

    /// The resource that governs data of a level.
    pub fn data(&self, level: u32) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.kind.level() == level && resource.kind.holds_data())
    }

    /// The resource that governs data of the highest partitioned level.
    pub fn last_level(&self) -> Option<&Resource> {
        self.data(3).or_else(|| self.data(2))
    }

    /// True if the hardware has the counter `feature`.
    pub fn monitors(&self, feature: &str) -> bool {
        self.monitoring.as_ref().is_some_and(|monitoring| monitoring.features.iter().any(|name| name == feature))
    }
}

impl Resource {
    /// Removes the parts that other groups own from the usable parts.
    fn exclude(&mut self, owned: &[(ResourceKind, u32, CapacityMask)]) {
        for domain in &mut self.domains {
            // Code and data of a level share the same parts.
            let level = self.kind.level();
            let taken = owned.iter().filter(|(kind, id, _)| kind.level() == level && *id == domain.id);
            domain.usable = taken.fold(domain.usable, |usable, (_, _, mask)| usable.without(*mask));
            if !self.sparse_masks {
                domain.usable = domain.usable.longest_run();
            }
        }
    }
}

fn read_resource(tree: &dyn Tree, kind: ResourceKind, default: &Schemata) -> Result<Resource, Unavailable> {
    let at = |file: &str| format!("info/{}/{file}", kind.name());
    let mask = |file: &str| -> Result<CapacityMask, Unavailable> {
        let text = tree.read(&at(file)).map_err(|error| Unavailable::Unexpected(format!("{}: {error}", at(file))))?;
        text.parse().map_err(|_| Unavailable::Unexpected(format!("{}: {:?}", at(file), text.trim())))
    };
    let cbm_mask = mask("cbm_mask")?;
    let masks = default.masks(kind.name());
    if masks.is_empty() || cbm_mask.is_empty() {
        return Err(Unavailable::Unexpected(format!("schemata does not match {}", at("cbm_mask"))));
    }
    let domains = masks.into_iter().map(|(id, mask)| Domain { id, usable: mask & cbm_mask });
    Ok(Resource {
        kind,
        cbm_mask,
        min_cbm_bits: number(tree, &at("min_cbm_bits"))?,
        // Missing in older kernels.
        shareable_bits: mask("shareable_bits").unwrap_or_default(),
        num_closids: number(tree, &at("num_closids"))?,
        sparse_masks: number(tree, &at("sparse_masks")).unwrap_or(0) == 1,
        domains: domains.collect(),
    })
}

/// The number in a file.
fn number(tree: &dyn Tree, path: &str) -> Result<u32, Unavailable> {
    let text = tree.read(path).map_err(|error| Unavailable::Unexpected(format!("{path}: {error}")))?;
    text.trim().parse().map_err(|_| Unavailable::Unexpected(format!("{path}: {:?}", text.trim())))
}

fn read_monitoring(tree: &dyn Tree) -> Monitoring {
    let features = tree.read("info/L3_MON/mon_features").unwrap_or_default();
    Monitoring {
        num_rmids: number(tree, "info/L3_MON/num_rmids").unwrap_or(0),
        features: features.lines().map(|line| line.trim().to_string()).collect(),
    }
}

/// Resource, domain and mask of groups in exclusive mode or with a pseudo-locked region.
fn owned_by_others(tree: &dyn Tree) -> Vec<(ResourceKind, u32, CapacityMask)> {
    let mut owned = Vec::new();
    for group in groups(tree) {
        let mode = tree.read(&format!("{group}/mode")).unwrap_or_default();
        if !matches!(mode.trim(), "exclusive" | "pseudo-locksetup" | "pseudo-locked") {
            continue;
        }
        let schemata = tree.read(&format!("{group}/schemata")).unwrap_or_default();
        let schemata = Schemata::parse(&schemata).unwrap_or_default();
        for kind in ResourceKind::ALL {
            owned.extend(schemata.masks(kind.name()).into_iter().map(|(domain, mask)| (kind, domain, mask)));
        }
    }
    owned
}

/// The names of all classes of service except the default class.
pub(super) fn groups(tree: &dyn Tree) -> Vec<String> {
    let names = tree.directories("").unwrap_or_default();
    names.into_iter().filter(|name| !matches!(name.as_str(), "info" | "mon_groups" | "mon_data")).collect()
}
