//! Topology: where servers stand, and how close to each other a job's slots must be.
//!
//! A server's labels `zone`, `block` and `rack` are its path, the outermost level first. Servers that agree in the path
//! down to a level are a *domain* of that level: rack `r1` of block `b1` isn't rack `r1` of block `b2`. A server
//! without the label of a level is in none of that level's domains. Each server is a domain of its own, too.

use std::{cmp::Ordering, collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ids::ServerId;

/// A level of the topology, the outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The label `zone`.
    Zone,
    /// The label `block`: racks behind one switch.
    Block,
    /// The label `rack`.
    Rack,
    /// A single server.
    Server,
}

impl Level {
    /// All levels, the outermost first.
    pub const ALL: [Self; 4] = [Self::Zone, Self::Block, Self::Rack, Self::Server];
    /// The levels that labels name.
    pub(crate) const LABELLED: [Self; 3] = [Self::Zone, Self::Block, Self::Rack];

    /// Its name, which is also the name of the servers' label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::Block => "block",
            Self::Rack => "rack",
            Self::Server => "server",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| "must be zone, block, rack or server".into())
    }
}

/// How close to each other a job's slots must be. `topology = { require = "rack" }` in a job file, and the labels
/// `topology.require` and `topology.prefer` where only labels can be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// All slots are in one domain of this level. The job waits until there is room in one.
    pub require: Option<Level>,
    /// The smallest domain with room is taken, from this level outwards.
    pub prefer: Option<Level>,
}

impl Topology {
    /// The label that requires a level.
    pub const REQUIRE: &str = "topology.require";
    /// The label that prefers a level.
    pub const PREFER: &str = "topology.prefer";

    /// The request of a job with these labels. Unknown levels, which no valid job has, count as none.
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        let level = |label: &str| labels.get(label)?.parse().ok();
        Self { require: level(Self::REQUIRE), prefer: level(Self::PREFER) }
    }

    /// Whether a label says how close slots must be, and not what a server must have.
    pub(crate) fn is_label(label: &str) -> bool {
        label == Self::REQUIRE || label == Self::PREFER
    }

    /// Whether the job asks for anything.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The levels whose domains are tried, the innermost first: from the preferred level, or else from racks, out to
    /// the required one, or else to zones.
    pub(crate) fn levels(self) -> impl Iterator<Item = Level> {
        let outermost = self.require.unwrap_or(Level::Zone);
        let innermost = self.prefer.unwrap_or(Level::Rack).max(outermost);
        Level::ALL.into_iter().rev().filter(move |level| (outermost..=innermost).contains(level))
    }
}

/// The servers that a job's slots may be on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The level.
    pub level: Level,
    /// The servers, ascending. None if no domain could hold the job.
    pub servers: Vec<ServerId>,
    /// Its name, such as `rack r1 of block b1`.
    pub name: String,
}

impl Domain {
    /// No server: for a job that fits in no domain of a level.
    pub(crate) fn none(level: Level) -> Self {
        Self { level, servers: Vec::new(), name: format!("no {level}") }
    }

    /// Whether it has the server. O(log servers).
    #[inline]
    pub fn has(&self, server: ServerId) -> bool {
        self.servers.binary_search(&server).is_ok()
    }
}

impl Ord for Domain {
    /// By level, servers and name. O(1) for the same one in memory, and mostly for others.
    fn cmp(&self, other: &Self) -> Ordering {
        if std::ptr::eq(self, other) {
            return Ordering::Equal;
        }
        let brief = |domain: &Self| (domain.level, domain.servers.first().copied(), domain.servers.len());
        let whole = || self.servers.cmp(&other.servers).then_with(|| self.name.cmp(&other.name));
        brief(self).cmp(&brief(other)).then_with(whole)
    }
}

impl PartialOrd for Domain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_tried_from_the_smallest_to_the_limit() {
        let tried = |require: Option<Level>, prefer: Option<Level>| {
            Topology { require, prefer }.levels().map(Level::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(tried(Some(Level::Rack), None), "rack");
        assert_eq!(tried(Some(Level::Block), None), "rack block");
        assert_eq!(tried(Some(Level::Server), None), "server");
        assert_eq!(tried(None, Some(Level::Block)), "block zone");
        assert_eq!(tried(None, Some(Level::Server)), "server rack block zone");
        assert_eq!(tried(Some(Level::Block), Some(Level::Server)), "server rack block");
        // A required level is preferred, too.
        assert_eq!(tried(Some(Level::Rack), Some(Level::Block)), "rack");
    }
}
