//! Actual resource use of processes: CPU and memory from `/proc`, emulated devices from the programs' bookings, real
//! GPUs from their driver.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Read as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat2, unlinkat},
    time::{ClockId, clock_gettime},
};
use trainmaster_manager::{Placement, SlotId, role};
use trainmaster_proto::{role_to_wire, v1};

use super::{
    cluster::Cluster,
    gpus::{Gpus, Load},
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
    /// Of devices that are GPUs: busy time since the last reading in thousandths, by the name of who uses it.
    gpus: BTreeMap<(String, u32), BTreeMap<String, u64>>,
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

    /// Whether programs book this device, which is an emulated one then.
    fn is_used(&self) -> bool {
        !self.until.is_zero() || !self.tallies.is_empty()
    }

    /// The booked time after `at`. Bookings have no gaps.
    fn outstanding(&self, at: Duration) -> Duration {
        self.until.saturating_sub(at)
    }
}

impl Reading {
    /// Reads all counters of a state folder's processes, of the devices in `devices`, and of GPUs that nobody books
    /// there. Cost: O(processes of the machine).
    pub(crate) fn take(
        state_id: &str,
        cluster: &Cluster,
        devices: &Path,
        gpus: Option<&Mutex<Gpus>>,
        slots: Slots,
    ) -> Self {
        let groups: BTreeMap<i32, Place> = slots
            .iter()
            .map(|(id, slot)| (slot.group, Place { server: slot.placement.server.clone(), slot: Some(*id) }))
            .collect();
        let mut used: BTreeMap<Place, (Duration, u64)> = BTreeMap::new();
        let mut owners: HashMap<i32, ProcessId> = HashMap::new();
        for (pid, stat, place) in scan::processes(state_id) {
            let Some(place) = place.or_else(|| groups.get(&stat.group).cloned()) else { continue };
            owners.extend(place.slot.map(|id| (pid, id)));
            let (cpu, memory) = used.entry(place).or_default();
            *cpu += stat.cpu;
            *memory += stat.memory;
        }
        let (mut booked, mut measured) = (BTreeMap::new(), BTreeMap::new());
        let mut gpus = gpus.map(|gpus| gpus.lock().unwrap_or_else(PoisonError::into_inner));
        for server in cluster.servers() {
            for device in 0..server.devices().len() as u32 {
                let key = (server.name().to_owned(), device);
                let found = Booked::read(&devices.join(server.name()).join(device.to_string()));
                if let (false, Some(gpus)) = (found.is_used(), &mut gpus) {
                    let load = gpus.read(server.first_device() + device);
                    measured.extend(load.map(|load| (key.clone(), users(&load, &owners, &slots, &key))));
                }
                booked.insert(key, found);
            }
        }
        Self { at: monotonic(), used, booked, gpus: measured, slots }
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
        if let Ok(folder) = openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
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
        let parts = match now.gpus.get(&key) {
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
/// the driver doesn't tell processes apart, they have equal parts of what each was given.
fn users(
    load: &Load,
    owners: &HashMap<i32, ProcessId>,
    slots: &Slots,
    (server, device): &(String, u32),
) -> BTreeMap<String, u64> {
    let given = slots.iter().filter(|(_, slot)| slot.placement.server == *server).filter_map(|(id, slot)| {
        let share = slot.placement.devices.iter().find(|share| share.device == *device)?;
        Some((tally(*id), if slot.rests { 0 } else { u64::from(share.milli) }))
    });
    let mut weights: BTreeMap<String, u64> = given.collect();
    if !load.processes.is_empty() || weights.values().sum::<u64>() == 0 {
        weights.values_mut().for_each(|weight| *weight = 0);
        for (pid, weight) in &load.processes {
            *weights.entry(owners.get(pid).map_or(FOREIGN.into(), |id| tally(*id))).or_default() += weight;
        }
        if load.processes.is_empty() {
            weights.insert(FOREIGN.into(), 1);
        }
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

    #[test]
    fn a_gpu_is_busy_for_whose_process_computes_on_it() {
        use std::{os::unix::process::CommandExt as _, process::Command};
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster();
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let gpus = Mutex::new(crate::local::gpus::scripted(folder.path(), [child.id(), std::process::id()]));
        let own = Measured { group: child.id() as i32, ..slot(0, 1000) };
        let others = [(worker(2, 0), slot(0, 500)), (worker(3, 0), slot(1, 500)), (worker(4, 0), slot(1, 250))];
        let slots: Slots = [(worker(1, 0), own)].into_iter().chain(others).collect();
        let read = || Reading::take("state", &cluster, folder.path(), Some(&gpus), slots.clone());
        let users = |reading: &Reading, device| -> Vec<_> {
            let users = reading.gpus.get(&("a".to_owned(), device)).cloned().unwrap_or_default();
            users.into_iter().collect()
        };
        let name = |job| tally(worker(job, 0));
        let first = read();
        // 866 thousandths, as 90 to 30: a program that isn't a slot's computes there, too.
        assert_eq!(users(&first, 0), [(FOREIGN.to_owned(), 216), (name(1), 649), (name(2), 0)]);
        // This GPU's driver doesn't tell whose processes compute.
        assert_eq!(users(&first, 1), [(name(3), 577), (name(4), 288)]);
        let mut meter = Meter::new(cluster.clone());
        assert_eq!(meter.compare(first), []);
        let uses = meter.compare(read());
        let used = use_of(&uses, "a");
        assert_eq!(shares(&used.devices), [(0, 246 + 123), (1, 246 + 123)]);
        let slots: Vec<_> = used.slots.iter().map(|slot| (slot.job, shares(&slot.devices))).collect();
        let wanted = [(1, (0, 246)), (2, (0, 123)), (3, (1, 246)), (4, (1, 123))];
        assert_eq!(slots, wanted.map(|(job, share)| (job, vec![share])), "known after one interval");
        // Programs that book a device emulate it, whatever the real one does.
        let device = folder.path().join("a/0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join(UNTIL), "1000").unwrap();
        assert_eq!(users(&read(), 0), []);
        child.kill().unwrap();
        child.wait().unwrap();
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
