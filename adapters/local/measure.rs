//! Actual resource use of processes: CPU and memory from `/proc`, emulated devices from the programs' bookings, real
//! GPUs from their driver.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    io::Read as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{AtFlags, OFlags, unlinkat},
    time::{ClockId, clock_gettime},
};
use trainmaster_manager::{Placement, SlotId, role};
use trainmaster_proto::{role_to_wire, v1};

use super::{
    cluster::Cluster,
    gpus::{Load, Reader},
    logs,
    scan::{self, Place},
    slot::ProcessId,
};

const WHOLE: u64 = 1000;

/// A program without bookings for this number of intervals is assumed to use all that it was given of its devices.
const SILENT: u32 = 10;

/// Maximum number of files read for a device, and maximum size of one in bytes.
const MOST_BOOKED: usize = 4096;
const LONGEST_BOOKED: u64 = 64;

/// The name, among those of slots, of who uses a GPU without being one.
const FOREIGN: &str = "";

/// The name of a device's file with the time until which it is booked.
const UNTIL: &str = "until";

/// A slot's process.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The process group.
    pub(crate) group: i32,
    pub(crate) placement: Placement,
    /// Whether the slot is idle: its devices are given to another job.
    pub(crate) rests: bool,
}

/// The slots with a process.
pub(crate) type Slots = BTreeMap<ProcessId, Measured>;

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Time of the machine's monotonic clock.
    at: Duration,
    /// CPU time so far and memory in bytes: of slots, and of foreign use on each virtual server.
    used: BTreeMap<Place, (Duration, u64)>,
    /// By server and device.
    booked: BTreeMap<(String, u32), Booked>,
    /// By server and device: the use of real GPUs since the last reading, where their driver tells it.
    gpus: BTreeMap<(String, u32), Load>,
    /// The slots' processes.
    owners: HashMap<i32, ProcessId>,
    /// All processes of this machine.
    pids: HashSet<i32>,
    slots: Slots,
}

/// An emulated device.
#[derive(Clone, Debug, Default)]
struct Booked {
    until: Duration,
    /// Time booked so far, by the booking process's name.
    tallies: BTreeMap<String, Duration>,
}

impl Booked {
    fn read(folder: &Path) -> Self {
        let mut booked = Self::default();
        // Programs can write anything there.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_BOOKED) {
            // A file that is being written is read the next time.
            let number = logs::open_theirs(&entry.path()).ok().and_then(|file| {
                let mut text = String::new();
                file.take(LONGEST_BOOKED).read_to_string(&mut text).ok()?;
                text.trim().parse().ok()
            });
            let (Ok(name), Some(time)) = (entry.file_name().into_string(), number.map(Duration::from_nanos)) else {
                continue;
            };
            if name == UNTIL {
                booked.until = time;
            } else {
                booked.tallies.insert(name, time);
            }
        }
        booked
    }

    /// The booked time after `at`. Bookings have no gaps.
    fn outstanding(&self, at: Duration) -> Duration {
        self.until.saturating_sub(at)
    }
}

impl Reading {
    /// Reads all counters of a state folder's processes, and of the devices: by `gpus` if they are real, else in the
    /// folder `devices`. Cost: O(processes of the machine).
    pub(crate) fn take(
        state_id: &str,
        cluster: &Cluster,
        devices: &Path,
        gpus: Option<&Mutex<Reader>>,
        slots: Slots,
    ) -> Self {
        let groups: BTreeMap<i32, Place> = slots
            .iter()
            .map(|(id, slot)| (slot.group, Place { server: slot.placement.server.clone(), slot: Some(*id) }))
            .collect();
        let mut reading = Self { slots, ..Self::default() };
        for (pid, stat, place) in scan::processes(state_id) {
            reading.pids.insert(pid);
            // A program can change its environment, but not that the adapter started its group.
            let Some(place) = groups.get(&stat.group).cloned().or(place) else { continue };
            reading.owners.extend(place.slot.map(|id| (pid, id)));
            let (cpu, memory) = reading.used.entry(place).or_default();
            *cpu += stat.cpu;
            *memory += stat.memory;
        }
        let of = cluster.servers().iter().flat_map(|server| {
            let count = server.devices().len() as u32;
            (0..count).map(|device| (server.name().to_owned(), device))
        });
        if let Some(gpus) = gpus {
            let loads = gpus.lock().unwrap_or_else(PoisonError::into_inner).read(cluster.device_count());
            reading.gpus = of.zip(loads).filter_map(|(key, load)| Some((key, load?))).collect();
        } else {
            let booked = of.map(|(server, device)| {
                let booked = Booked::read(&devices.join(&server).join(device.to_string()));
                ((server, device), booked)
            });
            reading.booked = booked.collect();
        }
        reading.at = monotonic();
        reading
    }

    /// Whether a slot's use of all of its devices is known, if it has any.
    fn says(&self, id: ProcessId) -> bool {
        let Some(Measured { placement, .. }) = self.slots.get(&id) else { return false };
        placement.devices.iter().all(|share| {
            let key = (placement.server.clone(), share.device);
            let booked = || self.booked.get(&key).is_some_and(|booked| booked.tallies.contains_key(&tally(id)));
            self.gpus.contains_key(&key) || booked()
        })
    }
}

/// The clock of device bookings.
fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The name of the file in which a slot's programs record their bookings.
fn tally(id: ProcessId) -> String {
    let ProcessId { job, incarnation, slot } = id;
    format!("{job}-{incarnation}-{}-{}", role::name(slot.role), slot.index)
}

/// The slot with this file name. Foreign users have other names.
fn slot_of(tally: &str) -> Option<ProcessId> {
    let mut words = tally.split('-');
    let (job, incarnation, role, index) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let slot = SlotId::new(role::of(role)?, index.parse().ok()?);
    Some(ProcessId { job: job.parse().ok()?, incarnation: incarnation.parse().ok()?, slot })
}

/// Removes a slot's bookings from its devices.
pub(crate) fn forget(devices: &Path, id: ProcessId, placement: &Placement) {
    for share in &placement.devices {
        let folder = devices.join(&placement.server).join(share.device.to_string());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(folder) = logs::open_without_links(&folder, flags) {
            let _ = unlinkat(folder, tally(id), AtFlags::empty());
        }
    }
}

/// Compares readings.
pub(crate) struct Meter {
    cluster: Arc<Cluster>,
    last: Option<Reading>,
    /// The number of intervals for which each slot has existed.
    ages: BTreeMap<ProcessId, u32>,
    /// The state that the daemon knows. Only changes are sent.
    told: BTreeMap<String, v1::ServerUse>,
}

impl Meter {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, last: None, ages: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// Forgets the sent state. The next measurement is sent completely.
    pub(crate) fn forget_told(&mut self) {
        self.told.clear();
    }

    /// Returns the use since the last reading, where it changed. A slot counts after it has existed for a whole
    /// interval and its use of its devices is known. Until then the scheduler has a better estimate.
    pub(crate) fn compare(&mut self, reading: Reading) -> Vec<v1::ServerUse> {
        let Some(last) = self.last.replace(reading) else { return Vec::new() };
        let Some(now) = &self.last else { return Vec::new() };
        if now.at <= last.at {
            return Vec::new();
        }
        let age = |id: &ProcessId| last.slots.contains_key(id).then(|| self.ages.get(id).map_or(1, |age| age + 1));
        self.ages = now.slots.keys().filter_map(|id| Some((*id, age(id)?))).collect();
        let known = self.ages.iter().filter(|(id, age)| **age >= SILENT || now.says(**id)).map(|(id, _)| *id).collect();
        let uses = self.cluster.servers().iter().map(|server| {
            let devices = server.devices().len() as u32;
            between(&last, now, &known, server.name(), devices)
        });
        let changed: Vec<_> = uses.filter(|used| self.told.get(&used.server) != Some(used)).collect();
        self.told.extend(changed.iter().map(|used| (used.server.clone(), used.clone())));
        changed
    }
}

/// The use of a server between two readings.
fn between(last: &Reading, now: &Reading, known: &BTreeSet<ProcessId>, server: &str, devices: u32) -> v1::ServerUse {
    let span = now.at - last.at;
    let mut total = Used::default();
    // Two incarnations of a slot overlap briefly.
    let mut slots: BTreeMap<(u64, SlotId), Used> = BTreeMap::new();
    let counts = |slot: Option<ProcessId>| slot.is_none_or(|id| known.contains(&id));
    for (place, (cpu, memory)) in now.used.iter().filter(|(place, _)| place.server == server && counts(place.slot)) {
        let before = last.used.get(place).map_or(Duration::ZERO, |(cpu, _)| *cpu);
        let of = Used { cpu: thousandths(cpu.saturating_sub(before), span), memory: *memory, devices: BTreeMap::new() };
        total.add(&of);
        if let Some(id) = place.slot {
            slots.entry((id.job, id.slot)).or_default().add(&of);
        }
    }
    for device in 0..devices {
        let key = (server.to_owned(), device);
        let (before, booked) = (last.booked.get(&key), now.booked.get(&key));
        let (before, booked) = (before.cloned().unwrap_or_default(), booked.cloned().unwrap_or_default());
        let users = now.gpus.get(&key).map(|load| users(load, last, now, &key));
        let parts = match &users {
            Some(users) => users.iter().map(|(name, part)| (name.as_str(), *part)).collect(),
            None => parts(&before, &booked, last.at, now.at),
        };
        let mut busy: u64 = parts.iter().filter(|(name, _)| counts(slot_of(name))).map(|(_, part)| *part).sum();
        for (id, slot) in now.slots.iter().filter(|(id, slot)| slot.placement.server == server && known.contains(id)) {
            let Some(share) = slot.placement.devices.iter().find(|share| share.device == device) else { continue };
            let part = parts.get(tally(*id).as_str()).copied().unwrap_or_else(|| {
                let given = if slot.rests { 0 } else { u64::from(share.milli) };
                busy += given;
                given
            });
            *slots.entry((id.job, id.slot)).or_default().devices.entry(device).or_default() += part;
        }
        total.devices.insert(device, busy);
    }
    let slot_uses = slots.iter().map(|((job, slot), used)| v1::SlotUse {
        job: *job,
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        used: used.amounts(),
        devices: used.shares(),
    });
    v1::ServerUse {
        server: server.to_owned(),
        used: total.amounts(),
        devices: total.shares(),
        slots: slot_uses.collect(),
    }
}

/// A GPU's busy time by the name of who uses it, in thousandths. All slots that were given the GPU have an entry. Where
/// the driver can't tell processes apart, each gets a part in proportion to what it was given.
fn users(load: &Load, last: &Reading, now: &Reading, (server, device): &(String, u32)) -> BTreeMap<String, u64> {
    let given = now.slots.iter().filter(|(_, slot)| slot.placement.server == *server).filter_map(|(id, slot)| {
        let share = slot.placement.devices.iter().find(|share| share.device == *device)?;
        Some((tally(*id), if slot.rests { 0 } else { u64::from(share.milli) }))
    });
    let mut weights: BTreeMap<String, u64> = given.collect();
    // In a container the driver names the host's processes.
    let of_here = |pid: &i32| now.pids.contains(pid) || last.pids.contains(pid);
    match load.processes.as_ref().filter(|processes| processes.is_empty() || processes.keys().any(of_here)) {
        Some(processes) => {
            weights.values_mut().for_each(|weight| *weight = 0);
            for (pid, weight) in processes {
                let owner = now.owners.get(pid).or_else(|| last.owners.get(pid));
                let slot = owner.filter(|id| now.slots.contains_key(id) || last.slots.contains_key(id));
                *weights.entry(slot.map_or(FOREIGN.into(), |id| tally(*id))).or_default() += weight;
            }
            // Nobody's samples came yet.
            if processes.is_empty() {
                weights.insert(FOREIGN.into(), 1);
            }
        }
        // The slots there rest.
        None if weights.values().all(|weight| *weight == 0) => _ = weights.insert(FOREIGN.into(), 1),
        None => {}
    }
    let whole: u64 = weights.values().sum();
    weights.into_iter().map(|(name, weight)| (name, load.busy * weight / whole.max(1))).collect()
}

/// A device's busy time for each booking process, in thousandths of the time between two readings.
fn parts<'a>(last: &Booked, now: &'a Booked, from: Duration, to: Duration) -> BTreeMap<&'a str, u64> {
    let new = |name: &str, time: Duration| time.saturating_sub(last.tallies.get(name).copied().unwrap_or_default());
    let mut weights: BTreeMap<&str, Duration> =
        now.tallies.iter().map(|(name, time)| (name.as_str(), new(name, *time))).collect();
    let booked: Duration = weights.values().sum();
    let busy = (booked + last.outstanding(from)).saturating_sub(now.outstanding(to)).min(to - from);
    if booked.is_zero() {
        // The device is busy with earlier bookings. They are divided by the processes' totals, which is accurate
        // enough.
        weights = now.tallies.iter().map(|(name, time)| (name.as_str(), *time)).collect();
    }
    let whole: Duration = weights.values().sum();
    let of = |weight: Duration| thousandths(busy, to - from) as f64 * weight.as_secs_f64() / whole.as_secs_f64();
    weights.into_iter().map(|(name, weight)| (name, if whole.is_zero() { 0 } else { of(weight) as u64 })).collect()
}

fn thousandths(part: Duration, of: Duration) -> u64 {
    (part.as_nanos() * u128::from(WHOLE) / of.as_nanos().max(1)) as u64
}

/// Amounts in the protocol's units.
#[derive(Default)]
struct Used {
    cpu: u64,
    /// Bytes.
    memory: u64,
    devices: BTreeMap<u32, u64>,
}

impl Used {
    fn add(&mut self, other: &Self) {
        self.cpu += other.cpu;
        self.memory += other.memory;
    }

    fn amounts(&self) -> HashMap<String, i64> {
        let mib = self.memory.div_ceil(1 << 20);
        [("cpu".to_owned(), self.cpu as i64), ("memory".to_owned(), mib as i64)].into()
    }

    fn shares(&self) -> Vec<v1::DeviceShare> {
        let busy = self.devices.iter().filter(|(_, milli)| **milli > 0);
        busy.map(|(device, milli)| v1::DeviceShare { device: *device, milli: (*milli).min(WHOLE) as u32 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_core::Role;
    use trainmaster_manager::Share;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn cluster() -> Arc<Cluster> {
        Arc::new(Cluster::parse("[[server]]\nname = \"a\"\ngpu = 2\n[[server]]\nname = \"b\"", "test").unwrap())
    }

    fn worker(job: u64, index: u32) -> ProcessId {
        ProcessId { job, incarnation: 1, slot: SlotId::new(Role::Worker, index) }
    }

    fn slot(device: u32, milli: u32) -> Measured {
        let placement = Placement { server: "a".into(), devices: vec![Share { device, milli }] };
        Measured { group: 0, placement, rests: false }
    }

    fn reading(at: Duration, slots: &[(ProcessId, Measured)]) -> Reading {
        Reading { at, slots: slots.iter().cloned().collect(), ..Reading::default() }
    }

    fn use_of<'a>(uses: &'a [v1::ServerUse], server: &str) -> &'a v1::ServerUse {
        uses.iter().find(|used| used.server == server).unwrap()
    }

    fn shares(devices: &[v1::DeviceShare]) -> Vec<(u32, u32)> {
        devices.iter().map(|share| (share.device, share.milli)).collect()
    }

    #[test]
    fn a_slot_counts_after_a_whole_interval_and_others_for_their_server() {
        let mut meter = Meter::new(cluster());
        let without = || Measured { placement: Placement { server: "a".into(), devices: Vec::new() }, ..slot(0, 0) };
        let old = [(worker(1, 0), without())];
        let place = |slot| Place { server: "a".into(), slot };
        let mut first = reading(10 * SECOND, &old);
        first.used.insert(place(Some(worker(1, 0))), (5 * SECOND, 1 << 20));
        assert_eq!(meter.compare(first), [], "nothing to compare with");
        let mut second = reading(12 * SECOND, &[old[0].clone(), (worker(2, 0), without())]);
        second.used = BTreeMap::from([
            (place(Some(worker(1, 0))), (6 * SECOND, 3 << 20)),
            (place(Some(worker(2, 0))), (500 * MS, 1)),
            (place(None), (2 * SECOND, 2 << 20)),
        ]);
        let uses = meter.compare(second.clone());
        let used = use_of(&uses, "a");
        assert_eq!((used.used["cpu"], used.used["memory"]), (500 + 1000, 5));
        assert_eq!(used.slots.len(), 1, "{used:?}");
        assert_eq!((used.slots[0].job, used.slots[0].used["cpu"], used.slots[0].used["memory"]), (1, 500, 3));
        assert_eq!(use_of(&uses, "b").used["cpu"], 0);
        second.at += SECOND;
        let uses = meter.compare(second.clone());
        assert_eq!(use_of(&uses, "a").slots.len(), 2, "it was there all the time");
        assert_eq!(uses.len(), 1, "nothing changed on b");
        meter.forget_told();
        second.at += SECOND;
        assert_eq!(meter.compare(second).len(), 2);
    }

    fn booked(until: Duration, tallies: &[(&str, u64)]) -> BTreeMap<(String, u32), Booked> {
        let tallies = tallies.iter().map(|(name, ms)| ((*name).to_owned(), Duration::from_millis(*ms))).collect();
        BTreeMap::from([(("a".to_owned(), 0), Booked { until, tallies })])
    }

    #[test]
    fn a_device_is_busy_for_who_booked_it() {
        let mut meter = Meter::new(cluster());
        let slots = [(worker(1, 0), slot(0, 1000)), (worker(2, 0), slot(0, 1000))];
        let late = (worker(4, 2), slot(0, 1000));
        let mut first = reading(10 * SECOND, &slots);
        // 100 ms of it are still to come.
        first.booked = booked(10_100 * MS, &[("1-1-worker-0", 4_000)]);
        meter.compare(first);
        let mut second = reading(11 * SECOND, &[&slots[..], &[late]].concat());
        let tallies = [("1-1-worker-0", 4_300), ("2-1-worker-0", 300), ("foreign", 200), ("4-1-worker-2", 200)];
        second.booked = booked(11_200 * MS, &tallies);
        let uses = meter.compare(second.clone());
        let used = use_of(&uses, "a");
        // 1000 ms were booked, 100 were carried over, and 200 are still to come.
        assert_eq!(shares(&used.devices), [(0, 720)], "without the one that has just come");
        let slots: Vec<_> = used.slots.iter().map(|slot| (slot.job, shares(&slot.devices))).collect();
        assert_eq!(slots, [(1, vec![(0, 270)]), (2, vec![(0, 270)])]);
        // Nothing new was booked. The rest is divided among all.
        second.at += SECOND;
        let uses = meter.compare(second.clone());
        let busy: u32 = use_of(&uses, "a").devices.iter().map(|share| share.milli).sum();
        assert!((190..=200).contains(&busy), "{busy}");
        second.at += SECOND;
        assert_eq!(shares(&use_of(&meter.compare(second), "a").devices), [], "idle");
    }

    #[test]
    fn who_never_says_what_it_does_with_a_device_is_taken_to_use_what_it_was_given() {
        let mut meter = Meter::new(cluster());
        let mut silent = reading(SECOND, &[(worker(1, 0), slot(1, 400))]);
        let mut told = Vec::new();
        for _ in 0..=SILENT {
            assert_eq!(told.iter().map(|used: &v1::ServerUse| used.slots.len()).sum::<usize>(), 0);
            told = meter.compare(silent.clone());
            silent.at += SECOND;
        }
        let used = use_of(&told, "a");
        assert_eq!((shares(&used.devices), shares(&used.slots[0].devices)), (vec![(1, 400)], vec![(1, 400)]));
        // A slot that is idle by plan uses nothing.
        silent.slots.values_mut().for_each(|slot| slot.rests = true);
        assert_eq!(shares(&use_of(&meter.compare(silent), "a").devices), []);
    }

    fn gpu(busy: u64, processes: Option<&[(i32, u64)]>) -> BTreeMap<(String, u32), Load> {
        let processes = processes.map(|processes| processes.iter().copied().collect());
        BTreeMap::from([(("a".to_owned(), 0), Load { busy, processes })])
    }

    /// Slots of three jobs on one GPU: each has a process of its number, and process 9 isn't a slot's.
    fn on_a_gpu() -> (Reading, Reading) {
        let slots = [(worker(1, 0), slot(0, 500)), (worker(2, 0), slot(0, 250)), (worker(3, 0), slot(0, 250))];
        let owners = (1..=3).map(|job| (job, worker(job as u64, 0))).collect();
        let first = Reading { pids: (1..=9).collect(), owners, ..reading(SECOND, &slots) };
        (first.clone(), Reading { at: 2 * SECOND, ..first })
    }

    fn on_the_gpu(first: Reading, second: Reading) -> (u32, Vec<(u64, u32)>) {
        let mut meter = Meter::new(cluster());
        meter.compare(first);
        let uses = meter.compare(second);
        let milli = |shares: &[v1::DeviceShare]| shares.iter().map(|share| share.milli).sum();
        let used = use_of(&uses, "a");
        (milli(&used.devices), used.slots.iter().map(|slot| (slot.job, milli(&slot.devices))).collect())
    }

    #[test]
    fn a_gpu_is_busy_for_whose_process_computes_on_it() {
        let (first, mut second) = on_a_gpu();
        second.gpus = gpu(800, Some(&[(1, 90), (2, 30), (9, 40)]));
        assert_eq!(on_the_gpu(first, second), (800, vec![(1, 450), (2, 150), (3, 0)]), "the rest is a stranger's");
    }

    #[test]
    fn without_samples_of_processes_the_load_is_nobodys() {
        let (first, mut second) = on_a_gpu();
        second.gpus = gpu(300, Some(&[]));
        assert_eq!(on_the_gpu(first, second), (300, vec![(1, 0), (2, 0), (3, 0)]));
    }

    #[test]
    fn where_a_driver_cannot_tell_slots_get_parts_by_what_they_were_given() {
        // It doesn't tell, or it names another machine's processes: the host's of a container.
        for processes in [None, Some(&[(700_000, 50)][..])] {
            let (first, mut second) = on_a_gpu();
            second.slots.get_mut(&worker(3, 0)).unwrap().rests = true;
            second.gpus = gpu(600, processes);
            assert_eq!(on_the_gpu(first, second), (600, vec![(1, 400), (2, 200), (3, 0)]));
        }
    }

    #[test]
    fn who_ended_during_the_interval_is_no_stranger() {
        let (first, mut second) = on_a_gpu();
        second.gpus = gpu(900, Some(&[(1, 1), (2, 2)]));
        // A child of job 1's slot, and job 2's slot.
        second.owners.retain(|pid, _| *pid == 3);
        second.slots.remove(&worker(2, 0));
        assert_eq!(on_the_gpu(first, second), (300, vec![(1, 300), (3, 0)]), "an ended slot isn't in the total");
    }

    #[test]
    fn a_process_cannot_hide_its_use_behind_another_slots_name() {
        let (first, mut second) = on_a_gpu();
        second.owners.insert(9, worker(77, 0));
        second.gpus = gpu(500, Some(&[(9, 10)]));
        assert_eq!(on_the_gpu(first, second), (500, vec![(1, 0), (2, 0), (3, 0)]));
    }

    #[test]
    fn real_gpus_are_read_from_their_driver() {
        use std::{os::unix::process::CommandExt as _, process::Command};
        let folder = tempfile::tempdir().unwrap();
        let text = "real_gpus = true\n[[server]]\nname = \"a\"\ngpu = 1\n[[server]]\nname = \"b\"\ngpu = 3";
        let cluster = Cluster::parse(text, "test").unwrap();
        let mut child = Command::new("sleep");
        // It says that it is another job's.
        child.arg("600").process_group(0).envs([(scan::MARKER, "state"), ("TRAINMASTER_SERVER", "b")]);
        child.envs([("TRAINMASTER_JOB", "2"), ("TRAINMASTER_INCARNATION", "1"), ("TRAINMASTER_ROLE", "worker")]);
        let mut child = child.env("TRAINMASTER_INDEX", "0").spawn().unwrap();
        let pids = [child.id(), std::process::id()];
        let gpus = Mutex::new(crate::local::gpus::scripted(folder.path(), pids, 0));
        let own = (worker(1, 0), Measured { group: child.id() as i32, ..slot(0, 1000) });
        let found = Reading::take("state", &cluster, folder.path(), Some(&gpus), [own].into());
        child.kill().unwrap();
        child.wait().unwrap();
        let processes = BTreeMap::from([(pids[0] as i32, 90), (pids[1] as i32, 30)]);
        let gpu = |server: &str, device, processes| ((server.to_owned(), device), Load { busy: 800, processes });
        // The third GPU of the machine tells nothing, and there is no fourth.
        assert_eq!(found.gpus, BTreeMap::from([gpu("a", 0, Some(processes)), gpu("b", 0, None)]));
        assert_eq!(found.owners.get(&(pids[0] as i32)), Some(&worker(1, 0)), "the adapter started its group");
        assert!(found.pids.contains(&(pids[1] as i32)) && found.booked.is_empty());
    }

    #[test]
    fn processes_that_burn_measure_more_than_those_that_sleep() {
        use std::{os::unix::process::CommandExt as _, process::Command};
        let cluster = cluster();
        let folder = tempfile::tempdir().unwrap();
        let state_id = folder.path().display().to_string();
        let start = |job: u64, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).process_group(0);
            command.env(scan::MARKER, &state_id).env("TRAINMASTER_SERVER", "a");
            if job > 0 {
                let slot = [("JOB", job.to_string()), ("INCARNATION", "1".into()), ("ROLE", "worker".into())];
                command
                    .envs(slot.map(|(key, value)| (format!("TRAINMASTER_{key}"), value)))
                    .env("TRAINMASTER_INDEX", "0");
            }
            command.spawn().unwrap()
        };
        // A child burns CPU. A program without the marker still belongs to its group. A foreign process burns CPU on
        // the server.
        let burn = "while :; do :; done";
        let mut children = [
            start(1, &format!("sh -c '{burn}' & wait")),
            start(2, "exec sleep 600"),
            start(3, &format!("exec env -i sh -c '{burn}'")),
            start(0, burn),
        ];
        let slots: Slots = (1..=3)
            .map(|job| (worker(job, 0), Measured { group: children[job as usize - 1].id() as i32, ..slot(0, 1000) }))
            .collect();
        let read = || Reading::take(&state_id, &cluster, folder.path(), None, slots.clone());
        let cpu = |reading: &Reading, slot: Option<ProcessId>| {
            reading.used.get(&Place { server: "a".into(), slot }).map_or(Duration::ZERO, |(cpu, _)| *cpu)
        };
        let burnt = 200 * MS;
        let reading = loop {
            let reading = read();
            let burners = [Some(worker(1, 0)), Some(worker(3, 0)), None];
            if burners.iter().all(|slot| cpu(&reading, *slot) >= burnt) {
                break reading;
            }
            std::thread::sleep(20 * MS);
        };
        for child in &mut children {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait().unwrap();
        }
        assert!(cpu(&reading, Some(worker(2, 0))) < burnt, "{reading:?}");
        let memory = reading.used.values().map(|(_, memory)| *memory).min();
        assert!(memory.is_some_and(|least| least > 0), "{reading:?}");
    }
}
