//! MLF-H by a plain algorithm: packed arrays, all tasks of all jobs sorted once, and a scan of all servers for each
//! task. It has no labels, limits, overloads, stops, reasons, guard or journal.

use trainmaster_core::{
    JobId, Role, Scheduler, Time,
    place::{Load, Room, exchanged, partition_shares},
    resources::{CPU, GPU, MEMORY},
};

use super::Starts;

const OVERLOAD: f64 = 0.9;
/// Length of a round in hours.
const ROUND: f64 = 1.0 / 60.0;
/// CPU, memory and GPUs.
const RESOURCES: usize = 3;

struct Server {
    free: [i64; RESOURCES],
    used: [f64; RESOURCES],
    have: [f64; RESOURCES],
    slots: u32,
    /// Reserved thousandths, used fraction, and number of slots.
    devices: Vec<(u16, f64, u32)>,
    bookable: u16,
}

struct Task {
    role: Role,
    index: u32,
    part: Option<usize>,
    demand: [i64; RESOURCES],
    uses: [i64; RESOURCES],
}

struct Job<'a> {
    job: &'a trainmaster_core::Job,
    waits: bool,
    shares: Box<[f64]>,
    urgency: f64,
    loss: f64,
    remaining: Option<f64>,
    /// Hours until its deadline, and hours since its arrival.
    left: f64,
    waited: f64,
    tasks: Vec<Task>,
}

pub(super) struct Cluster<'a> {
    servers: Vec<Server>,
    jobs: Vec<Job<'a>>,
}

impl<'a> Cluster<'a> {
    /// The scheduler's state in packed form.
    pub(super) fn of(scheduler: &'a Scheduler, now: Time) -> Self {
        let state = scheduler.state();
        let (room, load) = (Room::of(state), Load::of(state, OVERLOAD));
        let order = [CPU, MEMORY, GPU];
        let at = order.map(|id| load.resources().iter().position(|of| *of == id).expect("servers have all three"));
        let servers = state.servers.iter().map(|server| {
            let parts: Vec<f64> = load.parts(server.id).collect();
            let have = order.map(|id| server.capacity[id] as f64);
            let reserved = room.devices(server.id);
            let devices = load.devices(server.id).iter().enumerate();
            let device = |(at, load): (usize, &trainmaster_core::place::DeviceLoad)| {
                (reserved.get(at).copied().unwrap_or(0), load.used, load.slots)
            };
            let devices: Vec<_> = devices.map(device).collect();
            Server {
                free: order.map(|id| room.free(server.id)[id]),
                used: [0, 1, 2].map(|of| parts[at[of]] * have[of]),
                have,
                slots: devices.iter().map(|device| device.2).sum(),
                devices,
                bookable: server.bookable,
            }
        });
        let hours = |span: trainmaster_core::Span| span.as_seconds() / 3600.0;
        let jobs = state.jobs.values().map(|job| {
            let spec = &job.spec;
            let shape = spec.requested();
            let waits = job.verdict.allocation().is_none();
            let parts = spec.partitions.len().max(1);
            let of = |role, count| (0..count).map(move |index| (role, index));
            let task = |(role, index): (Role, u32)| {
                let (demand, uses) = (&job.demand(role).amounts, state.expected_use(job, role, index, OVERLOAD));
                let part = (role == Role::Worker).then_some(index as usize % parts);
                Task { role, index, part, demand: order.map(|id| demand[id]), uses: order.map(|id| uses[id]) }
            };
            let tasks = of(Role::Server, shape.servers).chain(of(Role::Worker, shape.workers)).map(task);
            let gains: Vec<f64> =
                job.learnt.losses.points().windows(2).map(|pair| (pair[0].loss - pair[1].loss).max(0.0)).collect();
            let (epoch, sum) = (f64::from(job.learnt.progress.epoch) + 1.0, gains.iter().sum::<f64>());
            let loss = match gains.last() {
                None => 1.0 / epoch,
                Some(last) if sum > 0.0 => last / sum / epoch,
                Some(_) => 0.0,
            };
            Job {
                waits,
                shares: partition_shares(spec),
                urgency: f64::from(spec.urgency.unwrap_or(1)),
                loss,
                remaining: job.remaining_time(shape).map(hours),
                left: hours(job.arrival + spec.deadline.expect("all have one") - now),
                waited: if waits { hours(now - job.arrival) } else { 0.0 },
                tasks: if waits { tasks.collect() } else { Vec::new() },
                job,
            }
        });
        Self { servers: servers.collect(), jobs: jobs.collect() }
    }

    /// The starts of a round, with their places.
    pub(super) fn round(&mut self) -> Starts {
        let mut terms: Vec<Vec<(f64, f64)>> = self.jobs.iter().map(terms).collect();
        let most = terms.iter().flatten().fold((0.0_f64, 0.0_f64), |most, (ml, c)| (most.0.max(*ml), most.1.max(*c)));
        for (ml, c) in terms.iter_mut().flatten() {
            let scaled = |value: f64, most: f64| if most > 0.0 { value / most } else { 0.0 };
            *ml = 0.3 * scaled(*ml, most.0) + 0.7 * scaled(*c, most.1);
        }
        let first = |at: &usize| terms[*at].iter().fold(0.0, |most, (priority, _)| f64::max(most, *priority));
        let mut order: Vec<(f64, usize)> =
            (0..self.jobs.len()).filter(|at| self.jobs[*at].waits).map(|at| (first(&at), at)).collect();
        // Jobs are in order of arrival.
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut starts = Starts::new();
        for (_, at) in order {
            let job = &self.jobs[at];
            let mut tasks: Vec<&Task> = job.tasks.iter().collect();
            let priority = |task: &Task| task.part.map_or(f64::INFINITY, |part| terms[at][part].0);
            tasks.sort_by(|a, b| priority(b).total_cmp(&priority(a)));
            if let Some(mut placed) = place(&mut self.servers, job, &tasks) {
                // As in allocations: workers, then parameter servers.
                placed.sort_unstable_by_key(|(role, index, ..)| (*role == Role::Server, *index));
                starts.insert(JobId(job.job.id.0), placed);
            }
        }
        starts
    }
}

/// ML_k and C_k of each partition of a job.
fn terms(job: &Job<'_>) -> Vec<(f64, f64)> {
    let parts = &job.job.spec.partitions;
    let remaining = job.remaining.map(|remaining| remaining.max(ROUND));
    let mut later = vec![0.0; job.shares.len()];
    for (at, part) in parts.iter().enumerate().rev() {
        for before in &part.after {
            later[*before as usize] = f64::max(later[*before as usize], later[at] + job.shares[at]);
        }
    }
    let shared = remaining.map_or(0.0, |remaining| 0.3 / remaining) + 0.35 * job.waited;
    let own = |(share, later): (&f64, &f64)| {
        let left = job.left - later * remaining.unwrap_or(0.0);
        let deadline = if left > 0.0 { 0.3 / left.max(ROUND) } else { 0.0 };
        (job.urgency * job.loss * share, deadline + shared)
    };
    let mut terms: Vec<(f64, f64)> = job.shares.iter().zip(&later).map(own).collect();
    for (at, part) in parts.iter().enumerate().rev() {
        let child = terms[at];
        for before in &part.after {
            let parent = &mut terms[*before as usize];
            *parent = (parent.0 + 0.8 * child.0, parent.1 + 0.8 * child.1);
        }
    }
    terms
}

/// Role, index, server, device.
type Placed = (Role, u32, usize, Option<u16>);

fn place(servers: &mut [Server], job: &Job<'_>, tasks: &[&Task]) -> Option<Vec<Placed>> {
    let mut placed: Vec<Placed> = Vec::with_capacity(tasks.len());
    let traffic = |a: &Task, b: (Role, u32)| exchanged(&job.job.spec, &job.shares, (a.role, a.index), b);
    for (count, task) in tasks.iter().enumerate() {
        let mut near: Vec<(usize, f64)> = Vec::new();
        let peers = job.tasks.iter().filter(|peer| (peer.role, peer.index) != (task.role, task.index));
        let total: f64 = peers.map(|peer| traffic(task, (peer.role, peer.index))).sum();
        for (role, index, server, _) in &placed {
            let part = traffic(task, (*role, *index)) / total.max(1e-12);
            match near.iter_mut().find(|(id, _)| id == server) {
                _ if part <= 0.0 => {}
                Some((_, here)) => *here += part,
                None => near.push((*server, part)),
            }
        }
        let Some((server, device)) = host(servers, task, &near) else {
            for ((_, _, server, device), task) in placed.iter().zip(&tasks[..count]) {
                servers[*server].put(task, *device, -1);
            }
            return None;
        };
        servers[server].put(task, device, 1);
        placed.push((task.role, task.index, server, device));
    }
    Some(placed)
}

/// The server nearest to the ideal one, and its least loaded GPU.
fn host(servers: &[Server], task: &Task, near: &[(usize, f64)]) -> Option<(usize, Option<u16>)> {
    let near_of = |id: usize| near.iter().find(|(server, _)| *server == id).map_or(0.0, |(_, part)| *part);
    let mut ideal = [f64::INFINITY; RESOURCES];
    let mut nearest = 0.0_f64;
    let mut candidates: Vec<(usize, Option<u16>)> = Vec::with_capacity(servers.len());
    for (id, server) in servers.iter().enumerate() {
        for (least, part) in ideal.iter_mut().zip(server.parts()) {
            *least = least.min(part);
        }
        nearest = nearest.max(near_of(id));
        if let Some(device) = server.takes(task) {
            candidates.push((id, device));
        }
    }
    let distance = |id: usize| {
        let apart = nearest - near_of(id);
        let parts = servers[id].parts();
        (0..RESOURCES).map(|of| (parts[of] - ideal[of]) * (parts[of] - ideal[of])).sum::<f64>() + apart * apart
    };
    let best = candidates.into_iter().map(|(id, device)| (distance(id), id, device));
    best.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, id, device)| (id, device))
}

impl Server {
    fn parts(&self) -> [f64; RESOURCES] {
        [0, 1, 2].map(|of| self.used[of] / self.have[of])
    }

    /// The device for a task, if there is room and the task overloads nothing.
    fn takes(&self, task: &Task) -> Option<Option<u16>> {
        if (0..RESOURCES).any(|of| task.demand[of] > self.free[of]) {
            return None;
        }
        // GPUs are checked one by one.
        let holds = |of: usize| self.used[of] + task.uses[of] as f64 <= OVERLOAD * self.have[of] + 1e-6;
        if self.slots > 0 && !(0..2).all(|of| task.uses[of] == 0 || holds(of)) {
            return None;
        }
        if task.demand[2] == 0 {
            return Some(None);
        }
        let free = self.devices.iter().enumerate().filter(|(_, (reserved, ..))| reserved + 1000 <= self.bookable);
        let least = free.min_by(|a, b| a.1.1.total_cmp(&b.1.1).then(a.0.cmp(&b.0)));
        let (at, (_, used, slots)) = least?;
        (*slots == 0 || used + task.uses[2] as f64 / 1000.0 <= OVERLOAD + 1e-9).then_some(Some(at as u16))
    }

    fn put(&mut self, task: &Task, device: Option<u16>, times: i64) {
        for of in 0..RESOURCES {
            self.free[of] -= times * task.demand[of];
            self.used[of] = (self.used[of] + (times * task.uses[of]) as f64).max(0.0);
        }
        self.slots = self.slots.wrapping_add_signed(times as i32);
        if let Some((reserved, used, slots)) = device.map(|at| &mut self.devices[usize::from(at)]) {
            *reserved = if times > 0 { *reserved + 1000 } else { *reserved - 1000 };
            *used = (*used + times as f64 * task.uses[2] as f64 / 1000.0).max(0.0);
            *slots = slots.wrapping_add_signed(times as i32);
        }
    }
}
