//! The GPU type of jobs that may have one of several.
//!
//! All workers of a job get GPUs of one type, because in each step the fastest would wait for the slowest. Which types
//! a job may have is in the name of its demand ([`GpuTypes`]). While such a job has no slots, its type is chosen anew
//! before each decision, so engines always see a demand for one type: the first that the job prefers among those with
//! room. Without a list it prefers the type on which it is predicted to be fastest, by its own model or else by others
//! ([`TypeSpeeds`]), then the one with most free GPUs.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{Change, State};
use crate::{
    decision::{Allocation, Verdict},
    fit::TypeSpeeds,
    ids::{JobId, ResourceId},
    job::{Demand, Job, JobSpec},
    reason::Reason,
    resources::{Amounts, GPU, GpuTypes},
    server::Server,
    shape::Role,
};

/// Maximum number of different demands for which all servers are searched in one decision. Other jobs choose by the
/// cluster's totals.
const MOST_SEARCHES: usize = 32;

/// What decides on which servers a worker has room.
type Asked<'a> = (&'a BTreeMap<String, String>, &'a BTreeMap<String, i64>);

/// The demand for GPUs of a job's workers, if it leaves a choice.
fn asked(spec: &JobSpec) -> Option<GpuTypes<'_>> {
    let wanted = spec.worker.demand.iter().filter(|(_, amount)| **amount > 0);
    wanted.filter_map(|(name, _)| GpuTypes::of(name)).find(|types| *types != GpuTypes::Fixed)
}

impl State {
    /// The types that a job may have, in its order of preference as far as its owner states one. Empty if it has no
    /// choice.
    fn gpu_types(&self, spec: &JobSpec) -> Vec<ResourceId> {
        match asked(spec) {
            Some(GpuTypes::Any) => {
                let kinds = self.gpu_kinds();
                let typed: i64 = kinds.iter().map(|kind| self.capacity[*kind]).sum();
                // GPUs without a type may be of any: then there is nothing to tell apart.
                if kinds.len() > 1 && typed == self.capacity[GPU] { kinds } else { Vec::new() }
            }
            Some(list) => list.listed().filter_map(|name| self.resources.id(&name)).collect(),
            None => Vec::new(),
        }
    }

    /// The types of the present servers' GPUs. O(resource types).
    fn gpu_kinds(&self) -> Vec<ResourceId> {
        let of_gpus = self.resources.others().filter(|(_, name)| name.starts_with("gpu:")).map(|(id, _)| id);
        of_gpus.filter(|kind| self.capacity[*kind] > 0).collect()
    }

    /// The worker's demand at submission: for the first type with which the job could run, or else the first one.
    /// O(types × servers) for a job that can't run.
    pub(super) fn first_type(&self, spec: &JobSpec, worker: Demand, server: &Demand) -> Demand {
        let fits = |kind: &ResourceId| self.hopeless(spec, &worker.of_kind(*kind), server).is_none();
        let kinds = self.gpu_types(spec);
        match kinds.iter().find(|kind| fits(kind)).or(kinds.first()) {
            Some(kind) => worker.of_kind(*kind),
            None => worker,
        }
    }

    /// Whether a job that fits with no single type could run with several.
    pub(super) fn fits_mixed(&self, spec: &JobSpec, worker: &Demand, server: &Demand) -> bool {
        asked(spec) == Some(GpuTypes::Any) && self.hopeless(spec, &worker.of_kind(GPU), server).is_none()
    }

    /// Whether a job could run alone with GPUs of another type than its present one. O(types × servers) if not.
    pub(super) fn fits_with_other_type(&self, job: &Job) -> bool {
        let kinds = self.gpu_types(&job.spec).into_iter().filter(|kind| Some(*kind) != job.gpu_kind());
        kinds.into_iter().any(|kind| self.hopeless(&job.spec, &job.worker.of_kind(kind), &job.server).is_none())
    }

    /// Chooses the type of each job that has a choice and no slots. O(jobs), and O(servers) for each different demand
    /// of a job whose preferred types have too few free GPUs, up to [`MOST_SEARCHES`].
    pub(crate) fn choose_gpu_types(&mut self) {
        if self.gpu_kinds().is_empty() {
            return;
        }
        let mut choosing: Vec<Arc<Job>> = self.jobs.values().filter(|job| chooses(job)).cloned().collect();
        if choosing.is_empty() {
            return;
        }
        choosing.sort_by_key(|job| (Reverse(job.spec.priority), job.id));
        // `free` is what jobs can start with now, `left` what all claims leave.
        let mut free = self.unplanned();
        let mut left = free.clone();
        let types = self.type_speeds();
        let mut room = RoomByType::default();
        for job in &choosing {
            let kinds = self.in_order(job, &free, &types);
            let Some((now, milli)) = job.worker.devices else { continue };
            let gpus = |workers: u32| i64::from(milli) * i64::from(workers);
            let least = gpus(job.spec.bounds().least().workers);
            let fits = |kind: &ResourceId| free[*kind] >= least && room.has(self, job, *kind);
            // Where all are taken, jobs wait for the type with the fewest claims, and keep theirs on a tie.
            let spare = |kind: ResourceId| left[kind] as f64 / self.usable[kind].max(1) as f64;
            let possible = kinds.iter().copied().filter(|kind| self.usable[*kind] > 0);
            let least_claimed =
                possible.min_by(|a, b| spare(*b).total_cmp(&spare(*a)).then((*a != now).cmp(&(*b != now))));
            let Some(kind) = kinds.iter().copied().find(fits).or(least_claimed) else { continue };
            left.add(kind, -gpus(job.spec.requested().workers));
            if kind != now {
                self.set_gpu_type(job.id, kind, &types);
                self.set_verdict(job.id, Verdict::Wait(Reason::NotConsidered));
            }
            // What the last decision left waiting with this type, for lack of room or another reason, keeps none of its
            // room from others.
            if matches!(self.jobs[&job.id].verdict, Verdict::Wait(Reason::NotConsidered)) {
                free.add(kind, -gpus(job.spec.requested().workers));
            }
        }
    }

    /// How fast the types are relative to each other, by what the active jobs' models showed. O(jobs) in a cluster with
    /// several types.
    pub(crate) fn type_speeds(&self) -> TypeSpeeds {
        if self.gpu_kinds().len() < 2 {
            return TypeSpeeds::default();
        }
        let known = self.jobs.values().filter_map(|job| Some((&job.model, &job.learnt.fits.speed.as_ref()?.factors)));
        let by_model: BTreeMap<_, _> = known.collect();
        TypeSpeeds::of(by_model.into_values())
    }

    /// GPUs of each type that the plan leaves, in thousandths.
    fn unplanned(&self) -> Amounts {
        let mut free = self.usable.clone();
        self.tenants.iter().for_each(|tenant| free -= &tenant.planned);
        free
    }

    /// The types that a job may have, the preferred one first, with the thousandths of GPUs that the plan leaves of
    /// each. Empty if it has no choice.
    pub(crate) fn gpu_choice(&self, job: &Job) -> Vec<(ResourceId, i64)> {
        let free = self.unplanned();
        self.in_order(job, &free, &self.type_speeds()).into_iter().map(|kind| (kind, free[kind])).collect()
    }

    /// The types that a job may have, the preferred one first.
    fn in_order(&self, job: &Job, free: &Amounts, types: &TypeSpeeds) -> Vec<ResourceId> {
        let mut kinds = self.gpu_types(&job.spec);
        if asked(&job.spec) == Some(GpuTypes::Any) {
            let shape = job.spec.requested();
            let speed = |kind: ResourceId| match &job.learnt.fits.speed {
                Some(fit) => fit.curve_by(types, job.worker.speed_type(), kind.0).speed(shape.servers, shape.workers),
                None => types.factor(&[], kind.0),
            };
            let key = |kind: ResourceId| (speed(kind), free[kind]);
            // Without a reason to change, a job keeps its type.
            kinds.sort_by_key(|kind| Some(*kind) != job.gpu_kind());
            kinds.sort_by(|a, b| {
                let ((fast_a, free_a), (fast_b, free_b)) = (key(*a), key(*b));
                fast_b.total_cmp(&fast_a).then(free_b.cmp(&free_a))
            });
        }
        kinds
    }

    /// Takes over the type of observed slots that Trainmaster didn't issue, as in shadow mode or after a takeover.
    pub(super) fn follow_gpu_type(&mut self, id: JobId, seen: &Allocation) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.issued.allocation.is_none()) else { return };
        let Some(wanted) = asked(&job.spec) else { return };
        let allowed = self.gpu_types(&job.spec);
        let devices = seen.of(Role::Worker).iter().flat_map(|slot| {
            let kinds = &self.server(slot.server).devices;
            slot.devices.iter().filter_map(|share| kinds.get(usize::from(share.device)).copied())
        });
        let mut kinds: Vec<ResourceId> = devices.collect();
        kinds.dedup();
        let kind = match *kinds {
            [kind] if allowed.contains(&kind) => kind,
            // Mixed: GPUs of any type, until the job has no slots.
            [_, _, ..] if wanted == GpuTypes::Any => GPU,
            _ => return,
        };
        if job.gpu_kind() != Some(kind) {
            let types = self.type_speeds();
            self.set_gpu_type(id, kind, &types);
        }
    }

    /// Changes the type of a job that needs GPUs, with the charges of any slots.
    fn set_gpu_type(&mut self, id: JobId, kind: ResourceId, types: &TypeSpeeds) {
        let job = self.jobs[&id].clone();
        let charged = self.charge(&job);
        if let Some(allocation) = job.verdict.allocation() {
            self.add_planned(&job, allocation, -1);
        }
        let speed = job.learnt.fits.speed.as_ref();
        let moved = speed.map(|fit| fit.moved(types, job.worker.speed_type(), kind.0));
        let mine = self.job_mut(id).expect("looked up above");
        mine.worker = job.worker.of_kind(kind);
        if let Some(moved) = moved {
            Arc::make_mut(&mut mine.learnt.fits).speed = Some(moved);
            self.pending.unfitted.insert(id);
        }
        let job = self.jobs[&id].clone();
        if let Some(allocation) = job.verdict.allocation() {
            self.add_planned(&job, allocation, 1);
        }
        let charge = self.charge(&job);
        self.move_charge(&charged, &charge);
        self.moved += 1;
        self.note(Change::Job(id));
    }
}

/// Whether a job's type may be chosen: it has a choice and no slots.
fn chooses(job: &Job) -> bool {
    let has_slots = [job.verdict.allocation(), job.issued.allocation.as_ref(), job.seen.allocation.as_ref()];
    has_slots.iter().all(Option::is_none)
        && !job.held
        // What an engine has booked for later is of the present type.
        && !matches!(job.verdict, Verdict::Stop(_) | Verdict::Reject(_) | Verdict::Wait(Reason::Scheduled { .. }))
        && asked(&job.spec).is_some()
}

/// Which types have room for one worker now, by demand.
#[derive(Default)]
struct RoomByType<'a> {
    known: BTreeMap<Asked<'a>, Vec<ResourceId>>,
}

impl<'a> RoomByType<'a> {
    fn has(&mut self, state: &State, job: &'a Job, kind: ResourceId) -> bool {
        let asked = (&job.spec.labels, &job.spec.worker.demand);
        if let Some(kinds) = self.known.get(&asked) {
            return kinds.contains(&kind);
        }
        if self.known.len() == MOST_SEARCHES {
            return true;
        }
        let kinds = kinds_with_room(state, job);
        let has = kinds.contains(&kind);
        self.known.insert(asked, kinds);
        has
    }
}

fn kinds_with_room(state: &State, job: &Job) -> Vec<ResourceId> {
    let mut missing = state.gpu_types(&job.spec);
    let mut found = Vec::new();
    let demands: BTreeMap<ResourceId, Demand> = missing.iter().map(|kind| (*kind, job.worker.of_kind(*kind))).collect();
    let holds = |server: &Server, kind: ResourceId| {
        let mut free = server.reservable();
        free -= &server.planned.amounts;
        demands[&kind].amounts.fits(&free)
    };
    for server in state.present_servers() {
        if missing.is_empty() {
            break;
        }
        if server.accepts(&job.spec.labels) && server.hosts.takes(Role::Worker) {
            // A server rarely has more than one type.
            let here = missing.iter().position(|kind| server.capacity[*kind] > 0 && holds(server, *kind));
            found.extend(here.map(|at| missing.swap_remove(at)));
        }
    }
    found
}
