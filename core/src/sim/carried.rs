//! What servers really carry: measured now and then, and slowing those who share what isn't enough.

use std::collections::{BTreeMap, BTreeSet};

use super::{program::Program, truth::LOAD_WINDOW};
use crate::{
    decision::{Allocation, DeviceShare, Slot},
    event::{Event, SlotUse},
    ids::{JobId, ServerId},
    job::Job,
    resources::{CPU, MEMORY},
    shape::Role,
    state::State,
    time::{Span, Time},
};

/// From a change to its being measured.
pub(super) const SAMPLE: Span = Span::seconds(30);

/// Who is where.
#[derive(Default)]
pub(super) struct Carried {
    on: BTreeMap<ServerId, BTreeSet<JobId>>,
    /// Servers where something changed since they were last measured.
    touched: BTreeSet<ServerId>,
    /// Servers that were overloaded when they were last measured.
    overloaded: BTreeSet<ServerId>,
    /// When the next window begins, if someone waits for it.
    window: Option<Time>,
}

/// What one slot uses in sub-units: GPU, on each of its devices, and CPU and memory.
struct Use<'a> {
    job: &'a Job,
    slot: &'a Slot,
    gpu: u16,
    cpu: i64,
    memory: i64,
}

impl Carried {
    /// A job's slots come to servers, or go. When to measure them, if that isn't planned yet.
    pub(super) fn changes(&mut self, now: Time, job: JobId, slots: &Allocation, comes: bool) -> Option<Time> {
        let idle = self.touched.is_empty();
        for slot in slots.slots() {
            let on = self.on.entry(slot.server).or_default();
            if comes {
                on.insert(job);
            } else {
                on.remove(&job);
            }
            self.touched.insert(slot.server);
        }
        idle.then_some(now + SAMPLE)
    }

    /// The servers to measure now, and when to come back at the end of this window.
    pub(super) fn due(&mut self, now: Time) -> (BTreeSet<ServerId>, Option<Time>) {
        let mut due = std::mem::take(&mut self.touched);
        if self.window.is_some_and(|at| at <= now) {
            self.window = None;
            due.extend(self.on.iter().filter(|(_, jobs)| !jobs.is_empty()).map(|(server, _)| *server));
        }
        let next = Time((now.0.div_euclid(LOAD_WINDOW.0) + 1) * LOAD_WINDOW.0);
        let loaded = self.on.values().any(|jobs| !jobs.is_empty());
        let wait = (loaded && self.window.is_none()).then_some(next);
        self.window = self.window.or(wait);
        (due, wait)
    }

    /// Who is on a server.
    pub(super) fn jobs(&self, server: ServerId) -> impl Iterator<Item = JobId> + '_ {
        self.on.get(&server).into_iter().flatten().copied()
    }

    /// Notes whether a server is overloaded; true where it wasn't before.
    pub(super) fn becomes_overloaded(&mut self, server: ServerId, over: bool) -> bool {
        if over {
            self.overloaded.insert(server)
        } else {
            self.overloaded.remove(&server);
            false
        }
    }

    fn uses<'a>(&self, programs: &'a BTreeMap<JobId, Program<'_>>, server: ServerId, now: Time) -> Vec<Use<'a>> {
        let window = now.0.div_euclid(LOAD_WINDOW.0) as u64;
        let mut uses = Vec::new();
        let here = self.on.get(&server).into_iter().flatten().filter_map(|job| programs.get(job));
        for program in here {
            let (Some(load), Some(slots)) = (program.load(), &program.slots) else { continue };
            for slot in slots.slots().iter().filter(|slot| slot.server == server) {
                let lots = program.lots.of(LOADS).of(u64::from(slot.index) * 2 + u64::from(slot.role == Role::Server));
                let (gpu, cpu) = load.at(window, lots);
                let demand = &program.job.demand(slot.role).amounts;
                let milli = slot.devices.first().map_or(0.0, |share| f64::from(share.milli));
                uses.push(Use {
                    job: &program.job,
                    slot,
                    gpu: libm::round(milli * gpu) as u16,
                    cpu: libm::round(demand[CPU] as f64 * cpu) as i64,
                    memory: libm::round(demand[MEMORY] as f64 * load.memory) as i64,
                });
            }
        }
        uses
    }

    /// What is measured on a server, whether some of it is shared by more than it has, and by which factor each job there is
    /// slowed: the time-slices of a device go round, and so do those of the cores.
    pub(super) fn measure(
        &self,
        state: &State,
        programs: &BTreeMap<JobId, Program<'_>>,
        id: ServerId,
        now: Time,
    ) -> (Event, bool, BTreeMap<JobId, f64>) {
        let uses = self.uses(programs, id, now);
        let server = state.server(id);
        let mut devices = vec![(0_u32, 0_u32); server.devices.len()];
        let (mut cpu, mut memory) = (0, 0);
        for one in &uses {
            cpu += one.cpu;
            memory += one.memory;
            for share in &one.slot.devices {
                let device = &mut devices[usize::from(share.device)];
                *device = (device.0 + u32::from(one.gpu), device.1 + 1);
            }
        }
        let of_cpu = cpu as f64 / server.capacity[CPU].max(1) as f64;
        let mut slowed: BTreeMap<JobId, f64> = BTreeMap::new();
        for one in &uses {
            let busiest = one.slot.devices.iter().map(|share| f64::from(devices[usize::from(share.device)].0) / 1000.0);
            let factor = slowed.entry(one.job.id).or_insert(1.0);
            *factor = busiest.fold(factor.max(of_cpu), f64::max);
        }
        let table = |cpu: i64, memory: i64| [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into();
        let slots = uses.iter().map(|one| SlotUse {
            job: one.job.id,
            slot: (one.slot.role, one.slot.index),
            used: table(one.cpu, one.memory),
            devices: one.slot.devices.iter().map(|share| DeviceShare { milli: one.gpu, ..*share }).collect(),
        });
        let busy = devices.iter().enumerate().filter(|(_, (milli, _))| *milli > 0);
        let shared = devices.iter().any(|(milli, slots)| *slots > 1 && *milli > OVERLOADED)
            || of_cpu * 1000.0 > f64::from(OVERLOADED);
        let event = Event::Utilisation {
            server: server.name.to_string(),
            used: table(cpu.min(server.capacity[CPU]), memory),
            // What is asked for beyond what there is waits, and isn't seen as use.
            devices: busy
                .map(|(at, (milli, _))| DeviceShare { device: at as u16, milli: (*milli).min(1000) as u16 })
                .collect(),
            slots: slots.collect(),
        };
        (event, shared, slowed)
    }
}

/// A server that uses more of a device that is shared, or of its cores, counts as overloaded (MLFS, h_r).
const OVERLOADED: u32 = 900;
/// A job's random numbers that are for its load.
const LOADS: u64 = 4 << 32;
