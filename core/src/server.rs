//! Servers: capacity, devices, and use.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    amount::{AmountError, Unit, parse_span},
    batch::BatchRange,
    decision::{DeviceShare, Devices},
    ids::{JobId, ManagerId, ResourceId, ServerId},
    job::{Demand, Job, Launcher, Sizes},
    resources::{Amounts, BANDWIDTH, CPU, GPU},
    shape::{Role, Shape},
    time::{Span, Time},
    topology::{Level, Topology},
};

/// The roles that a server can host. OASiS separates the servers of workers and parameter servers (§III-A).
///
/// The server's label `hosts` sets it: `workers`, `servers`, or `both`, the default. All engines comply with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hosts {
    /// Workers and parameter servers.
    #[default]
    Both,
    /// Workers only.
    Workers,
    /// Parameter servers only.
    Servers,
}

impl Hosts {
    /// Whether the server can host this role.
    #[inline]
    pub fn takes(self, role: Role) -> bool {
        match self {
            Self::Both => true,
            Self::Workers => role == Role::Worker,
            Self::Servers => role == Role::Server,
        }
    }

    /// Whether the server can host all roles of a shape.
    #[inline]
    pub fn take(self, shape: Shape) -> bool {
        (shape.workers == 0 || self.takes(Role::Worker)) && (shape.servers == 0 || self.takes(Role::Server))
    }

    /// What a server's labels say.
    ///
    /// # Errors
    /// The label's value isn't allowed.
    pub fn of(labels: &BTreeMap<String, String>) -> Result<Self, String> {
        match labels.get("hosts").map(String::as_str) {
            None | Some("both") => Ok(Self::Both),
            Some("workers") => Ok(Self::Workers),
            Some("servers") => Ok(Self::Servers),
            Some(other) => Err(format!("label hosts = {other:?} must be \"workers\", \"servers\" or \"both\"")),
        }
    }
}

/// Facts of a server, from its labels, for engines that schedule data chunks: its zone, the upload time of chunks, the
/// room for chunks, and whether jobs can take turns on its GPUs.
/// | label | meaning |
/// |---|---|
/// | `zone` | `cloud`: the server is in the cloud, which grows on demand; any other value, or none: it is at the edge |
/// | `upload` | upload time of a data chunk to this server, such as `90s` |
/// | `upload.NAME` | the same for data from location NAME ([`Dataset::upload`](crate::job::Dataset::upload)) |
/// | `storage` | room for data chunks, such as `500GiB`; unlimited without the label |
/// | `idle_gpus` | `kept`: an idle slot keeps its GPUs, and nothing is oversubscribed; else another job gets them |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Whether the server is in the cloud.
    pub cloud: bool,
    /// Whether an idle slot keeps its GPUs.
    pub keeps_gpus: bool,
    /// Room for data chunks in MiB.
    pub storage: Option<i64>,
    upload: Span,
    uploads: BTreeMap<String, Span>,
}

impl Place {
    /// The label of servers on which idle slots keep their GPUs, and its value.
    pub const KEPT_GPUS: (&str, &str) = ("idle_gpus", "kept");

    /// Upload time of a chunk from this location.
    pub fn upload(&self, from: &str) -> Span {
        self.uploads.get(from).copied().unwrap_or(self.upload)
    }

    /// What a server's labels say.
    ///
    /// # Errors
    /// A label's value isn't allowed.
    pub fn of(labels: &BTreeMap<String, String>) -> Result<Self, String> {
        let is = |label: &str, value: &str| labels.get(label).is_some_and(|text| text == value);
        let (cloud, keeps_gpus) = (is("zone", "cloud"), is(Self::KEPT_GPUS.0, Self::KEPT_GPUS.1));
        let mut place = Self { cloud, keeps_gpus, ..Self::default() };
        for (label, text) in labels {
            let wrong = |error: AmountError| format!("label {label} = {text:?}: {error}");
            if label == "storage" {
                place.storage = Some(Unit::MiB.parse(text).map_err(wrong)?);
            } else if label == "upload" {
                place.upload = parse_span(text).map_err(wrong)?;
            } else if let Some(from) = label.strip_prefix("upload.") {
                place.uploads.insert(from.to_owned(), parse_span(text).map_err(wrong)?);
            }
        }
        Ok(place)
    }
}

/// A server as its manager describes it. Capacities by resource name, in sub-units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Unique name.
    pub name: String,
    /// Capacity without devices. (Each device adds 1000 `gpu`, and 1000 of its own kind.)
    pub capacity: BTreeMap<String, i64>,
    /// Kinds of the devices, `"gpu"` or `"gpu:<type>"`, one entry per device. Empty if the manager picks devices
    /// itself; then `capacity` contains `gpu`.
    pub devices: Vec<String>,
    /// Labels for placement constraints. Some have a further meaning: `hosts` ([`Hosts`]), `zone`, `upload`,
    /// `storage` and `idle_gpus` ([`Place`]).
    pub labels: BTreeMap<String, String>,
    /// Whether the server takes no new slots.
    pub draining: bool,
}

/// Used resources and devices of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Sum of the amounts.
    pub amounts: Amounts,
    /// Used thousandths of each device. Trailing unused devices can be missing.
    pub devices: SmallVec<[u16; 8]>,
}

impl Usage {
    /// Adds the devices of one slot, on a server with devices of these kinds.
    pub fn add_devices(&mut self, kinds: &[ResourceId], demand: &Demand, devices: &Devices) {
        for share in devices {
            let at = usize::from(share.device);
            if self.devices.len() <= at {
                self.devices.resize(at + 1, 0);
            }
            self.devices[at] = self.devices[at].saturating_add(share.milli);
            // A demand for any GPU is also charged to the kind of the assigned device.
            let kind = kinds.get(at).copied().unwrap_or(GPU);
            if demand.devices.is_some_and(|(wanted, _)| wanted != kind) {
                self.amounts.add(kind, i64::from(share.milli));
            }
        }
    }

    /// The maximum of both, per type and per device.
    pub fn max_with(&mut self, other: &Self) {
        self.amounts.max_with(&other.amounts);
        if self.devices.len() < other.devices.len() {
            self.devices.resize(other.devices.len(), 0);
        }
        for (mine, theirs) in self.devices.iter_mut().zip(&other.devices) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// `self += other × times`, saturating per device.
    pub fn add_usage(&mut self, other: &Self, times: i64) {
        self.amounts.add_times(&other.amounts, times);
        if self.devices.len() < other.devices.len() {
            self.devices.resize(other.devices.len(), 0);
        }
        for (mine, theirs) in self.devices.iter_mut().zip(&other.devices) {
            *mine = (i64::from(*mine) + times * i64::from(*theirs)).clamp(0, i64::from(u16::MAX)) as u16;
        }
    }
}

/// Measured use of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Total use.
    pub total: Usage,
    /// The part of slots, by job, role and index.
    pub slots: BTreeMap<(JobId, Role, u32), Usage>,
}

/// A server and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Number of the server.
    pub id: ServerId,
    /// Name of the server.
    pub name: Arc<str>,
    /// The manager that reports it.
    pub manager: ManagerId,
    /// Capacity including devices.
    pub capacity: Amounts,
    /// The kind of each device.
    pub devices: Arc<[ResourceId]>,
    /// Labels for placement constraints.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Roles that it can host.
    pub hosts: Hosts,
    /// Location and upload times.
    pub place: Arc<Place>,
    /// Whether it takes no new slots.
    pub draining: bool,
    /// False after the server left. It keeps its number until many others have left after it.
    pub present: bool,
    /// Position in the order in which absent servers are forgotten.
    pub(crate) left: Option<u64>,
    /// Time of the last departure.
    pub left_at: Time,
    /// Use by workloads that Trainmaster doesn't manage.
    pub foreign: Usage,
    /// Σ over jobs of the planned amounts on this server.
    pub planned: Usage,
    /// Σ over jobs of max(issued, observed). Room is free only after its release was observed.
    pub charged: Usage,
    /// The last measurement. None if the manager doesn't measure.
    pub measured: Option<Arc<Measured>>,
    /// Thousandths of its devices, CPUs and bandwidth that can be reserved. 1000 unless the pool
    /// [oversubscribes](crate::settings::ShapeRules::oversubscribe) and idle slots don't keep their GPUs.
    pub bookable: u16,
}

/// Whether more of a resource can be reserved than there is. Sharing such a resource slows slots down, but none fails.
fn is_shareable(resource: ResourceId, devices: &[ResourceId]) -> bool {
    // A manager that picks devices also reserves CPUs and bandwidth.
    let is_device = resource == GPU || devices.contains(&resource);
    !devices.is_empty() && (resource == CPU || resource == BANDWIDTH || is_device)
}

impl Server {
    /// Sets what can be reserved as in the pool. A manager whose idle slots keep their GPUs reserves by itself, and
    /// would refuse more than there is.
    pub(crate) fn oversubscribe(&mut self, pool: u16) {
        self.bookable = if self.place.keeps_gpus { 1000 } else { pool };
    }

    /// Whether slots have devices of the server.
    pub(crate) fn lends_devices(&self) -> bool {
        [&self.planned, &self.charged].iter().any(|usage| usage.devices.iter().any(|milli| *milli > 0))
    }

    /// Amounts that the plan can use: capacity − foreign. Zero if the server left; negative amounts count as zero.
    pub fn usable(&self) -> Amounts {
        self.left_by_others().at_least_zero()
    }

    /// Capacity − foreign. Negative if foreign use exceeds the capacity.
    fn left_by_others(&self) -> Amounts {
        if !self.present {
            return Amounts::default();
        }
        let mut left = self.capacity.clone();
        left -= &self.foreign.amounts;
        left
    }

    /// Amounts that can be reserved: capacity − foreign, and more of shareable resources if the pool oversubscribes.
    pub fn reservable(&self) -> Amounts {
        let mut usable = self.left_by_others();
        if self.present && self.bookable > 1000 {
            for (resource, have) in self.capacity.iter().filter(|(resource, _)| is_shareable(*resource, &self.devices))
            {
                usable.add(resource, have * i64::from(self.bookable - 1000) / 1000);
            }
        }
        usable
    }

    /// What the plan leaves of a resource, in sub-units. Negative if it is planned beyond what is there.
    pub fn unplanned(&self, resource: ResourceId) -> i64 {
        self.reservable_of(resource) - self.planned.amounts[resource]
    }

    pub(crate) fn reservable_of(&self, resource: ResourceId) -> i64 {
        if !self.present {
            return 0;
        }
        let have = self.capacity[resource];
        let more = match self.bookable {
            1001.. if is_shareable(resource, &self.devices) => have * i64::from(self.bookable - 1000) / 1000,
            _ => 0,
        };
        have + more - self.foreign.amounts[resource]
    }

    /// The server's label of a level: where it stands. `None` for the level of single servers, which no label names.
    pub fn label(&self, level: Level) -> Option<&str> {
        self.labels.get(level.name()).filter(|_| level != Level::Server).map(String::as_str)
    }

    /// Whether the server has all these labels, apart from those that say how close slots must be ([`Topology`]), how
    /// many workers the job can have ([`Sizes`]), or how it starts and changes ([`Launcher`]).
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(key, value)| self.labels.get(key) == Some(value) || !is_of_servers(key))
    }

    /// Whether the server can take new slots of a job: also by the job's domain.
    pub fn admits(&self, job: &Job) -> bool {
        self.accepts(&job.spec.labels) && job.is_near(self.id)
    }

    /// Whether the server can take new slots of a job with these labels.
    pub fn accepts(&self, labels: &BTreeMap<String, String>) -> bool {
        self.present && !self.draining && self.matches(labels)
    }

    /// The first resource whose `usage` exceeds the reservable amount, and the excess. Devices are reported as their
    /// kind.
    pub fn excess(&self, usage: &Usage) -> Option<(ResourceId, i64)> {
        let over = usage.amounts.iter().find(|(resource, need)| *need > 0 && *need > self.reservable_of(*resource));
        if let Some((resource, need)) = over {
            return Some((resource, need - self.reservable_of(resource)));
        }
        let over = usage.devices.iter().enumerate().find_map(|(at, &milli)| {
            let foreign = self.foreign.devices.get(at).copied().unwrap_or(0);
            let room = if at < self.devices.len() { i64::from(self.bookable) - i64::from(foreign) } else { 0 };
            (milli > 0 && i64::from(milli) > room).then_some((at, i64::from(milli) - room))
        });
        over.map(|(at, missing)| (self.devices.get(at).copied().unwrap_or(GPU), missing))
    }
}

/// Picks devices for one slot, and marks them as used. `used[d]` are the used thousandths of device d.
///
/// A share goes to the fullest device with enough room (best fit). Whole devices are the first free ones. Devices that
/// the current plan assigns (`held[d]` thousandths) come last, because their slots may keep them. `None` if the slot
/// doesn't fit; then nothing is marked. For servers that don't list devices the result is empty.
pub fn pick_devices(
    kinds: &[ResourceId],
    used: &mut SmallVec<[u16; 8]>,
    held: &[u16],
    demand: &Demand,
) -> Option<Devices> {
    let mut picked = Devices::new();
    let Some((wanted, milli)) = demand.devices else { return Some(picked) };
    if kinds.is_empty() {
        return Some(picked);
    }
    if used.len() < kinds.len() {
        used.resize(kinds.len(), 0);
    }
    let suits = |at: usize| wanted == GPU || kinds[at] == wanted;
    if milli < 1000 {
        let best = (0..kinds.len())
            .filter(|&at| suits(at) && u32::from(used[at]) + milli <= 1000)
            .max_by_key(|&at| (used[at], std::cmp::Reverse(at)))?;
        used[best] += milli as u16;
        picked.push(DeviceShare { device: best as u16, milli: milli as u16 });
        return Some(picked);
    }
    let whole = (milli / 1000) as usize;
    let is_held = |at: usize| held.get(at).is_some_and(|milli| *milli > 0);
    let free = |held: bool| (0..kinds.len()).filter(move |&at| suits(at) && is_held(at) == held);
    let free = free(false).chain(free(true)).filter(|&at| used[at] == 0);
    picked.extend(free.take(whole).map(|at| DeviceShare { device: at as u16, milli: 1000 }));
    picked.sort_unstable_by_key(|share| share.device);
    if picked.len() < whole {
        return None;
    }
    for share in &picked {
        used[usize::from(share.device)] = 1000;
    }
    Some(picked)
}

/// Whether a slot of this demand can have these devices on a server with devices of these kinds.
pub fn devices_match(kinds: &[ResourceId], demand: &Demand, devices: &Devices) -> bool {
    let Some((wanted, milli)) = demand.devices.filter(|_| !kinds.is_empty()) else { return devices.is_empty() };
    let each = milli.min(1000);
    let suits = |device: u16| kinds.get(usize::from(device)).is_some_and(|has| wanted == GPU || *has == wanted);
    let total: u32 = devices.iter().map(|share| u32::from(share.milli)).sum();
    total == milli && devices.iter().all(|share| u32::from(share.milli) == each && suits(share.device))
}

/// Whether a label of a job asks for servers with it.
pub(crate) fn is_of_servers(label: &str) -> bool {
    !(Topology::is_label(label) || Sizes::is_label(label) || BatchRange::is_label(label) || Launcher::is_label(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::ResourceTypes;

    #[test]
    fn shares_share_a_device_and_whole_gpus_take_free_ones() {
        let mut types = ResourceTypes::default();
        let a100 = types.intern("gpu:a100");
        let kinds = [GPU, a100, a100];
        let mut used = SmallVec::new();
        let demand = |types: &mut ResourceTypes, name: &str, milli| {
            Demand::new(&BTreeMap::from([(name.to_owned(), milli)]), types)
        };
        let half = demand(&mut types, "gpu", 500);
        let first = pick_devices(&kinds, &mut used, &[], &half).unwrap();
        let second = pick_devices(&kinds, &mut used, &[], &half).unwrap();
        assert_eq!(first[0].device, second[0].device);
        let two = demand(&mut types, "gpu:a100", 2000);
        assert_eq!(pick_devices(&kinds, &mut used, &[], &two).unwrap().len(), 2);
        assert_eq!(pick_devices(&kinds, &mut used, &[], &half), None);
    }

    #[test]
    fn whole_devices_prefer_unassigned_ones() {
        let one =
            |gpus: i64| Demand::new(&BTreeMap::from([("gpu".to_owned(), gpus * 1000)]), &mut ResourceTypes::default());
        let held = [1000, 0, 500];
        let picked = |gpus| {
            let picked = pick_devices(&[GPU; 4], &mut SmallVec::new(), &held, &one(gpus)).unwrap();
            picked.iter().map(|share| share.device).collect::<Vec<_>>()
        };
        assert_eq!((picked(1), picked(2), picked(3)), (vec![1], vec![1, 3], vec![0, 1, 3]));
    }
}
