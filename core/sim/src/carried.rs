//! Measured load of servers. Measurements are periodic. Slots that share an overloaded resource slow down. Slots that
//! share a device do so at any use, if their job's load says so.

use std::collections::{BTreeMap, BTreeSet};

use super::{program::Program, truth::LOAD_WINDOW};
use trainmaster_core::{
    decision::{Allocation, DeviceShare, Slot},
    event::{Event, SlotUse},
    ids::{JobId, ServerId},
    job::Job,
    resources::{CPU, MEMORY},
    shape::Role,
    state::State,
    time::{Span, Time},
};

/// Time from a change to its measurement.
pub(super) const SAMPLE: Span = Span::seconds(30);

/// The slots on each server.
#[derive(Default)]
pub(super) struct Carried {
    on: BTreeMap<ServerId, BTreeSet<JobId>>,
    /// Servers with changes since their last measurement.
    touched: BTreeSet<ServerId>,
    /// Servers that were overloaded at their last measurement.
    overloaded: BTreeSet<ServerId>,
    /// Start of the next window, if any job's load changes with it.
    window: Option<Time>,
}

/// Use of one slot in sub-units: GPU on each of its devices, CPU, and memory.
struct Use<'a> {
    job: &'a Job,
    slot: &'a Slot,
    /// See [`SlotLoad`](super::truth::SlotLoad).
    together: Option<f64>,
    gpu: u16,
    cpu: i64,
    memory: i64,
}

impl Carried {
    /// Adds or removes a job's slots. Returns the time of the next measurement, if it isn't scheduled yet.
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

    /// The servers to measure now, and the end of this window.
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

    /// The jobs on a server.
    pub(super) fn jobs(&self, server: ServerId) -> impl Iterator<Item = JobId> + '_ {
        self.on.get(&server).into_iter().flatten().copied()
    }

    /// Records whether a server is overloaded. Returns true if it wasn't before.
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
                let draws =
                    program.draws.of(LOADS).of(u64::from(slot.index) * 2 + u64::from(slot.role == Role::Server));
                let (gpu, cpu) = load.at(window, draws);
                let demand = &program.job.demand(slot.role).amounts;
                let milli = slot.devices.first().map_or(0.0, |share| f64::from(share.milli));
                uses.push(Use {
                    job: &program.job,
                    slot,
                    together: load.together,
                    gpu: libm::round(milli * gpu) as u16,
                    cpu: libm::round(demand[CPU] as f64 * cpu) as i64,
                    memory: libm::round(demand[MEMORY] as f64 * load.memory) as i64,
                });
            }
        }
        uses
    }

    /// The measurement of a server, whether a shared resource of it is overloaded, and the factor by which each of its
    /// jobs is slowed. Jobs share devices and cores by time slices.
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
            let slowest = one.slot.devices.iter().map(|share| {
                let (milli, slots) = devices[usize::from(share.device)];
                let shared = one.together.filter(|_| slots > 1).map_or(1.0, |together| f64::from(slots) / together);
                shared.max(f64::from(milli) / 1000.0)
            });
            let factor = slowed.entry(one.job.id).or_insert(1.0);
            *factor = slowest.fold(factor.max(of_cpu), f64::max);
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
            // Demand beyond the capacity waits and isn't measured as use.
            devices: busy
                .map(|(at, (milli, _))| DeviceShare { device: at as u16, milli: (*milli).min(1000) as u16 })
                .collect(),
            slots: slots.collect(),
        };
        (event, shared, slowed)
    }
}

/// Thousandths of a shared device, or of a server's cores, above which the server counts as overloaded (MLFS, h_r).
const OVERLOADED: u32 = 900;
/// Key of a job's random numbers for its load.
const LOADS: u64 = 4 << 32;
