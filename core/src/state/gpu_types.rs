//! The GPU type of jobs that may have one of several.
//!
//! All workers of a job get GPUs of one type, because in a synchronous step the fastest would wait for the slowest.
//! Which types a job may have is in the name of its demand ([`GpuTypes`]). While such a job has no slots, its type is
//! chosen anew before each decision, so engines always see a demand for one type: the first that the job prefers among
//! those with room for its requested workers, or else for its smallest shape. Without a list it prefers the type on
//! which it is predicted to be fastest, by its own model or else by others of its tenant ([`TypeSpeeds`]), then the one
//! with most free GPUs.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{
    Account, Change, Mandate, State,
    room::{MOST_SLOTS, free_devices, slots_for},
};
use crate::{
    decision::{Allocation, Slot, Verdict},
    fit::{TypeFactor, TypeSpeeds},
    ids::{JobId, ResourceId, TenantId},
    job::{Demand, Job, JobSpec},
    reason::Reason,
    resources::{Amounts, GPU, GpuTypes},
    shape::Role,
};

/// Maximum number of different demands for which all servers are searched before one decision. If there are more, they
/// take turns, and the cluster's totals decide for the others.
const MOST_SEARCHES: usize = 8;

/// The conditions on the servers of a worker.
type Asked<'a> = (&'a BTreeMap<String, String>, &'a BTreeMap<String, i64>);

/// Workers of one demand that have room on servers with a type: now, and if the servers were empty.
#[derive(Clone, Copy, Default)]
struct Room {
    now: i64,
    ever: i64,
}

/// The demand for GPUs of a job's workers, if it leaves a choice.
fn asked(spec: &JobSpec) -> Option<GpuTypes<'_>> {
    let wanted = spec.worker.demand.iter().filter(|(_, amount)| **amount > 0);
    wanted.filter_map(|(name, _)| GpuTypes::of(name)).find(|types| *types != GpuTypes::Fixed)
}

/// Relative speeds of GPU types, as each tenant's models showed them. Tenants learn nothing from each other, unless the
/// site shares models.
#[derive(Clone, Debug, Default)]
pub(crate) struct TypesByTenant {
    none: TypeSpeeds,
    of: BTreeMap<TenantId, TypeSpeeds>,
    is_shared: bool,
}

impl TypesByTenant {
    pub(crate) fn of(&self, tenant: TenantId) -> &TypeSpeeds {
        self.of.get(if self.is_shared { &TenantId(0) } else { &tenant }).unwrap_or(&self.none)
    }
}

impl State {
    /// The types that a job may have, in its owner's order of preference if there is one. `gpu` stands for GPUs whose
    /// types aren't told apart. Empty if the job has no choice, or if no type that it lists is known. O(resource
    /// types).
    fn gpu_types(&self, spec: &JobSpec) -> Vec<ResourceId> {
        match asked(spec) {
            Some(GpuTypes::Any) => {
                let kinds = self.gpu_kinds();
                let typed: i64 = kinds.iter().map(|kind| self.capacity[*kind]).sum();
                // GPUs without a type may be of any: then there is nothing to tell apart.
                if kinds.len() > 1 && typed == self.capacity[GPU] { kinds } else { vec![GPU] }
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

    /// Whether a job may have one of several types.
    pub(super) fn is_choosable(&self, spec: &JobSpec) -> bool {
        asked(spec).is_some()
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

    /// Chooses the type of each job that has a choice and no slots.
    ///
    /// Without names of types, O(resource types). Else O(jobs), for `n` jobs with a choice O(n log n), and O(servers)
    /// for each of their different demands, up to [`MOST_SEARCHES`].
    pub(crate) fn choose_gpu_types(&mut self) {
        let changes = self.type_changes();
        if changes.is_empty() {
            return;
        }
        let types = self.type_speeds();
        for (id, kind) in changes {
            self.set_gpu_type(id, kind, types.of(self.jobs[&id].tenant));
            self.set_verdict(id, Verdict::Wait(Reason::NotConsidered));
        }
    }

    /// The jobs whose type should be another one.
    fn type_changes(&self) -> Vec<(JobId, ResourceId)> {
        let mut changes = Vec::new();
        if !self.resources.others().any(|(_, name)| name.starts_with("gpu:")) {
            return changes;
        }
        let mut choosing: Vec<&Job> = self.jobs.values().map(|job| &**job).filter(|job| self.chooses(job)).collect();
        if choosing.is_empty() {
            return changes;
        }
        choosing.sort_by_key(|job| (Reverse(self.priority(job)), job.id));
        let types = self.type_speeds();
        let room = self.room_by_type(&choosing);
        // `free` is what jobs can start with now, `left` what all claims leave.
        let mut free = self.unplanned();
        let mut left = free.clone();
        for job in choosing {
            let room = room.get(&(&job.spec.labels, &job.spec.worker.demand));
            let Some((now, milli)) = job.worker.devices else { continue };
            let (least, requested) = (job.bounds().least().workers, job.spec.requested().workers);
            let gpus = |workers: u32| i64::from(milli) * i64::from(workers);
            // Without a search, the cluster's totals decide.
            let unknown = Room { now: MOST_SLOTS, ever: MOST_SLOTS };
            let in_room = |kind: ResourceId| room.map_or(unknown, |room| room.get(&kind).copied().unwrap_or_default());
            let mut kinds = self.in_order(job, &free, types.of(job.tenant));
            kinds.retain(|kind| in_room(*kind).ever >= i64::from(least) && self.allows(job, *kind, |_| 0));
            let has = |kind: ResourceId, workers: u32| {
                free[kind] >= gpus(workers)
                    && in_room(kind).now >= i64::from(workers)
                    && self.allows(job, kind, |account| account.planned[kind])
            };
            let with = |workers: u32| kinds.iter().copied().find(|kind| has(*kind, workers));
            // Where all are taken, it waits for the type with the fewest claims, and keeps its own on a tie.
            let spare = |kind: ResourceId| left[kind] as f64 / self.usable[kind].max(1) as f64;
            let by_claims =
                |a: &ResourceId, b: &ResourceId| spare(*b).total_cmp(&spare(*a)).then((*a != now).cmp(&(*b != now)));
            let chosen = with(requested).or_else(|| with(least)).or_else(|| kinds.iter().copied().min_by(by_claims));
            let Some(kind) = chosen else { continue };
            let could = || self.hopeless(&job.spec, &job.worker.of_kind(kind), &job.server).is_none();
            if room.is_none() && kind != now && !could() {
                continue;
            }
            left.add(kind, -gpus(requested));
            // What the last decision left waiting with this type, for lack of room or another reason, keeps none of its
            // room from others.
            if kind != now || matches!(job.verdict, Verdict::Wait(Reason::NotConsidered)) {
                free.add(kind, -gpus(requested));
            }
            if kind != now {
                changes.push((job.id, kind));
            }
        }
        changes
    }

    /// Whether a job's type may be chosen: it has a choice and no slots, and an engine may start it.
    fn chooses(&self, job: &Job) -> bool {
        let has_slots = [job.verdict.allocation(), job.issued.allocation.as_ref(), job.seen.allocation.as_ref()];
        // A job that is booked for later, or rejected for now, keeps its present type as long as that exists.
        let is_settled = |reason: &Reason| {
            matches!(reason, Reason::Scheduled { .. } | Reason::PricedOut(_) | Reason::Unfinishable { .. })
                && job.gpu_kind().is_some_and(|kind| self.capacity[kind] > 0)
        };
        has_slots.iter().all(Option::is_none)
            && asked(&job.spec).is_some()
            && !job.verdict.reason().is_some_and(is_settled)
            && self.mandate(job) == Mandate::Free
    }

    /// Whether the limits of a job's tenant and queue, less what they have, leave its smallest shape GPUs of a type.
    fn allows(&self, job: &Job, kind: ResourceId, has: impl Fn(&Account) -> i64) -> bool {
        let Some((_, milli)) = job.worker.devices else { return true };
        let needed = i64::from(milli) * i64::from(job.bounds().least().workers);
        let accounts = [&self.tenants[job.tenant.0 as usize], &self.queues[job.queue.0 as usize]];
        let leaves = |limit: &i64, account: &Account| limit - has(account) >= needed;
        accounts.iter().all(|account| account.limits.get(&kind).is_none_or(|limit| leaves(limit, account)))
    }

    /// The room for workers, by type and demand. If there are too many demands, for some of them, in turns.
    fn room_by_type<'a>(&self, choosing: &[&'a Job]) -> BTreeMap<Asked<'a>, BTreeMap<ResourceId, Room>> {
        let all: BTreeMap<Asked<'a>, &'a Job> =
            choosing.iter().map(|job| ((&job.spec.labels, &job.spec.worker.demand), *job)).collect();
        let turn = (self.decision.0 as usize).wrapping_mul(MOST_SEARCHES) % all.len().max(1);
        let searched = all.iter().cycle().skip(turn).take(MOST_SEARCHES.min(all.len()));
        searched.map(|(asked, job)| (*asked, self.room_for(job))).collect()
    }

    /// O(servers × resources of the demand).
    fn room_for(&self, job: &Job) -> BTreeMap<ResourceId, Room> {
        let kinds = self.gpu_types(&job.spec);
        let demands: Vec<Demand> = kinds.iter().map(|kind| job.worker.of_kind(*kind)).collect();
        let mut rooms: BTreeMap<ResourceId, Room> = kinds.iter().map(|kind| (*kind, Room::default())).collect();
        for server in self.present_servers() {
            if !server.accepts(&job.spec.labels) || !server.hosts.takes(Role::Worker) {
                continue;
            }
            for (kind, demand) in kinds.iter().zip(&demands).filter(|(kind, _)| server.capacity[**kind] > 0) {
                let room = rooms.get_mut(kind).expect("one for each");
                let ever = slots_for(demand, |resource| server.capacity[resource]);
                let free = |resource| server.reservable_of(resource) - server.planned.amounts[resource];
                room.ever = (room.ever + ever).min(MOST_SLOTS);
                room.now = (room.now + slots_for(demand, free).min(free_devices(server, demand))).min(MOST_SLOTS);
            }
        }
        rooms
    }

    /// How fast the types are relative to each other, by what the active jobs' models showed. O(jobs) in a cluster with
    /// several types.
    pub(crate) fn type_speeds(&self) -> TypesByTenant {
        let is_shared = self.settings.share_models;
        if self.gpu_kinds().len() < 2 {
            return TypesByTenant { is_shared, ..TypesByTenant::default() };
        }
        // The job of each model that knows most types.
        let mut models: BTreeMap<TenantId, BTreeMap<&str, &Vec<TypeFactor>>> = BTreeMap::new();
        for job in self.jobs.values() {
            let Some(fit) = &job.learnt.fits.speed else { continue };
            let tenant = if is_shared { TenantId(0) } else { job.tenant };
            let known = models.entry(tenant).or_default().entry(&job.model).or_insert(&fit.factors);
            if fit.factors.len() > known.len() {
                *known = &fit.factors;
            }
        }
        let of = models.into_iter().map(|(tenant, models)| (tenant, TypeSpeeds::of(models.into_values()))).collect();
        TypesByTenant { is_shared, of, ..TypesByTenant::default() }
    }

    /// Amounts that the plan leaves, also on draining servers. O(tenants).
    fn unplanned(&self) -> Amounts {
        let mut free = self.usable.clone();
        self.tenants.iter().for_each(|tenant| free -= &tenant.planned);
        free
    }

    /// The types that a job may have, the preferred one first, with the thousandths of GPUs that the plan leaves of
    /// each. Empty if it has no choice, or if types aren't told apart.
    pub(crate) fn gpu_choice(&self, job: &Job) -> Vec<(ResourceId, i64)> {
        let free = self.unplanned();
        let kinds = self.in_order(job, &free, self.type_speeds().of(job.tenant));
        if kinds == [GPU] { Vec::new() } else { kinds.into_iter().map(|kind| (kind, free[kind])).collect() }
    }

    /// The types that a job may have, the preferred one first.
    fn in_order(&self, job: &Job, free: &Amounts, types: &TypeSpeeds) -> Vec<ResourceId> {
        let kinds = self.gpu_types(&job.spec);
        if asked(&job.spec) != Some(GpuTypes::Any) || kinds.len() < 2 {
            return kinds;
        }
        let shape = job.spec.requested();
        let speed = |kind: ResourceId| match &job.learnt.fits.speed {
            Some(fit) => fit.speed_by(types, job.worker.speed_type(), kind.0, shape.servers, shape.workers),
            None => types.factor(&[], kind.0),
        };
        // Without a reason to change, a job keeps its type.
        let mut keys: Vec<(f64, i64, bool, ResourceId)> =
            kinds.into_iter().map(|kind| (speed(kind), free[kind], Some(kind) == job.gpu_kind(), kind)).collect();
        keys.sort_by(|a, b| b.0.total_cmp(&a.0).then((b.1, b.2).cmp(&(a.1, a.2))));
        keys.into_iter().map(|(.., kind)| kind).collect()
    }

    /// Takes over the type of observed slots that Trainmaster didn't issue, as in shadow mode or after a takeover.
    pub(super) fn follow_gpu_type(&mut self, id: JobId, seen: &Allocation) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.issued.allocation.is_none()) else { return };
        let Some(wanted) = asked(&job.spec) else { return };
        let mut kinds: Vec<ResourceId> = seen.of(Role::Worker).iter().flat_map(|slot| self.kinds_of(slot)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let allowed = self.gpu_types(&job.spec);
        let kind = match *kinds {
            [kind] if allowed.contains(&kind) => kind,
            // Mixed, or not told apart: GPUs of any type, until the job has no slots.
            [_, ..] if wanted == GpuTypes::Any => GPU,
            _ => return,
        };
        if job.gpu_kind() != Some(kind) {
            let (types, tenant) = (self.type_speeds(), job.tenant);
            self.set_gpu_type(id, kind, types.of(tenant));
        }
    }

    /// The types of a slot's devices, or of those of its server if the manager doesn't name devices.
    fn kinds_of(&self, slot: &Slot) -> Vec<ResourceId> {
        let server = self.server(slot.server);
        if server.devices.is_empty() {
            return self.gpu_kinds().into_iter().filter(|kind| server.capacity[*kind] > 0).collect();
        }
        slot.devices.iter().filter_map(|share| server.devices.get(usize::from(share.device)).copied()).collect()
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
