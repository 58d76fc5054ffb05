//! What the hardware offers, from `info/`, and what of it may be used: within the default class's masks, and off what groups
//! in exclusive mode own.

use serde::Serialize;

use super::{Schemata, Tree, Unavailable};
use crate::CapacityMask;

/// A cache that is partitioned. With code and data prioritisation (CDP) each level has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ResourceKind {
    L3,
    L3Code,
    L3Data,
    L2,
    L2Code,
    L2Data,
}

impl ResourceKind {
    pub const ALL: [ResourceKind; 6] = [Self::L3, Self::L3Code, Self::L3Data, Self::L2, Self::L2Code, Self::L2Data];

    /// As in `info/` and in `schemata`.
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

    pub fn level(self) -> u32 {
        if matches!(self, Self::L3 | Self::L3Code | Self::L3Data) { 3 } else { 2 }
    }

    /// Whether data are allocated by this mask.
    pub fn holds_data(self) -> bool {
        !matches!(self, Self::L3Code | Self::L2Code)
    }
}

/// An instance of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Domain {
    pub id: u32,
    /// What our groups may use: one run of bits, unless the machine allows others.
    pub usable: CapacityMask,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resource {
    pub kind: ResourceKind,
    /// All bits.
    pub cbm_mask: CapacityMask,
    pub min_cbm_bits: u32,
    /// Parts that other hardware (graphics, devices) uses too: the first choice for work that streams.
    pub shareable_bits: CapacityMask,
    pub num_closids: u32,
    /// Whether masks need not be contiguous.
    pub sparse_masks: bool,
    pub domains: Vec<Domain>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Monitoring {
    pub num_rmids: u32,
    /// `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
    pub features: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    pub resources: Vec<Resource>,
    /// Classes of service, the default one included.
    pub classes: u32,
    /// Absent if the hardware cannot monitor.
    pub monitoring: Option<Monitoring>,
}

impl Resource {
    /// The fewest bits that a mask may have (one, if the machine allows none at all).
    pub fn bits_min(&self) -> u32 {
        self.min_cbm_bits.max(1)
    }

    /// The bits that every domain has.
    pub fn bits_usable(&self) -> u32 {
        self.domains.iter().map(|domain| domain.usable.count()).min().unwrap_or(0)
    }

    /// The mask of `bits` neighbours of a domain's usable bits, counted from position `first`. Position 0 is at the end where
    /// the parts shared with other hardware are. More bits than there are give fewer; fewer than the minimum, the minimum.
    pub fn place(&self, domain: &Domain, first: u32, bits: u32) -> CapacityMask {
        let count = domain.usable.count();
        let bits = bits.clamp(self.bits_min().min(count), count);
        let first = first.min(count - bits);
        let from_low = if self.shared_end_is_low(domain) { first } else { count - bits - first };
        // With sparse masks the usable bits need not be neighbours: the n-th of them, then.
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

    fn shared_end_is_low(&self, domain: &Domain) -> bool {
        let shared = (self.shareable_bits & domain.usable).0;
        let usable = domain.usable.0;
        let from_low = (shared.trailing_zeros()).saturating_sub(usable.trailing_zeros());
        let from_high = shared.leading_zeros().saturating_sub(usable.leading_zeros());
        shared != 0 && from_low < from_high
    }
}

impl Capabilities {
    /// Reads `info/`, the default class's masks and the modes of foreign groups.
    ///
    /// # Errors
    /// If nothing can be partitioned, or the files are not as they should be.
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
        if resources.is_empty() {
            return Err(Unavailable::NoAllocation);
        }
        let (owned, _) = owned_by_others(tree);
        for resource in &mut resources {
            resource.keep_off(&owned);
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

    /// The resource by which data of a level are partitioned.
    pub fn data(&self, level: u32) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.kind.level() == level && resource.kind.holds_data())
    }

    /// The partitioned level that matters most: the last.
    pub fn last_level(&self) -> Option<&Resource> {
        self.data(3).or_else(|| self.data(2))
    }

    pub fn monitors(&self, feature: &str) -> bool {
        self.monitoring.as_ref().is_some_and(|monitoring| monitoring.features.iter().any(|name| name == feature))
    }
}

impl Resource {
    fn keep_off(&mut self, owned: &[(ResourceKind, u32, CapacityMask)]) {
        for domain in &mut self.domains {
            // Code and data of a level share its parts.
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
        return Err(Unavailable::Unexpected(format!("schemata and {} do not agree", at("cbm_mask"))));
    }
    let domains = masks.into_iter().map(|(id, mask)| Domain { id, usable: mask & cbm_mask });
    Ok(Resource {
        kind,
        cbm_mask,
        min_cbm_bits: number(tree, &at("min_cbm_bits"))?,
        // Older kernels do not tell.
        shareable_bits: mask("shareable_bits").unwrap_or_default(),
        num_closids: number(tree, &at("num_closids"))?,
        sparse_masks: number(tree, &at("sparse_masks")).unwrap_or(0) == 1,
        domains: domains.collect(),
    })
}

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

/// Masks of groups in exclusive mode or with a pseudo-locked region, and how many groups there are.
fn owned_by_others(tree: &dyn Tree) -> (Vec<(ResourceKind, u32, CapacityMask)>, usize) {
    let groups = groups(tree);
    let mut owned = Vec::new();
    for group in &groups {
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
    (owned, groups.len())
}

/// All classes of service but the default one.
pub(super) fn groups(tree: &dyn Tree) -> Vec<String> {
    let names = tree.directories("").unwrap_or_default();
    names.into_iter().filter(|name| !matches!(name.as_str(), "info" | "mon_groups" | "mon_data")).collect()
}
