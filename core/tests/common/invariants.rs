//! Invariants that hold after every step of every engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use trainmaster_core::{
    Allocation, Decision, Issue, Job, JobId, Mode, Role, Scheduler, Slot, State, TrainingMode, Verdict,
    engine::Limits,
    engines,
    job::{Resize, StopChoice},
    reason::ReasonKind,
    resources::{Amounts, BANDWIDTH, CPU, DISK, GPU, MEMORY},
    server::devices_match,
    topology::{Level, Topology},
};

/// Issued and observed state before a step.
pub struct Before {
    jobs: BTreeMap<JobId, Arc<Job>>,
    mode: Mode,
}

pub fn before(scheduler: &Scheduler) -> Before {
    let state = scheduler.state();
    Before { jobs: state.jobs.iter().map(|(id, job)| (*id, job.clone())).collect(), mode: state.mode }
}

/// Invariants after any step.
pub fn always(scheduler: &Scheduler, before: &Before) {
    let state = scheduler.state();
    if let Err(problem) = state.audit() {
        panic!("{problem}");
    }
    for job in state.jobs.values() {
        let explanation = scheduler.explain(state.now, job.id).expect("active");
        assert!(!explanation.findings.is_empty());
        for reason in job.verdict.reason().into_iter().chain(&job.issued.reason) {
            let text = reason.describe(state);
            let numbers = matches!(
                reason.kind(),
                ReasonKind::NeverFits
                    | ReasonKind::NoRoom
                    | ReasonKind::Exhausted
                    | ReasonKind::Behind
                    | ReasonKind::Releasing
                    | ReasonKind::Refused
                    | ReasonKind::Evicted
                    | ReasonKind::TimeLimit
            );
            let nowhere = text.contains("no server matches");
            let consents = job.spec.stop_under_load > StopChoice::Epochs;
            assert!(!reason.is_early_stop() || consents, "{} was stopped: {text}", job.id);
            assert!(!numbers || nowhere || text.chars().any(|c| c.is_ascii_digit()), "{text:?} names no number");
        }
        if let Some(old) = before.jobs.get(&job.id) {
            let count = |job: &Job| (job.issued.incarnation, job.issued.revision);
            // A job can only return to slots that still run: after a refused restart, or after one that was never
            // started while the manager was on its own.
            let refused = job.issued.refusals > old.issued.refusals || state.mode != before.mode;
            let goes_back = refused
                && job.issued.incarnation == job.seen.incarnation
                && job.issued.allocation == job.seen.allocation;
            let (was, is) = (count(old), count(job));
            assert!(is >= was || goes_back, "{} went back from {was:?} to {is:?}", job.id);
            // A refusal from before restores the previous slots, under a new number.
            if state.mode != Mode::Active && job.issued.refusals == old.issued.refusals {
                assert!(count(job) == count(old), "{} got something in {:?} mode", job.id, state.mode);
            }
        }
    }
    nothing_issued_onto_full_servers(state, before);
    for issue in scheduler.all_issues().iter() {
        let Some(job) = state.job(issue.job) else { continue };
        if let Verdict::Run(allocation) = &issue.verdict {
            assert!(has_a_size(job, allocation.shape().workers), "{issue:?} of {:?}", job.spec.labels);
        }
        let released = matches!(issue.verdict, Verdict::Release(_));
        assert_eq!(released, state.mode != Mode::Active, "{issue:?} in {:?} mode", state.mode);
    }
    if let Some(due) = scheduler.due() {
        assert!(due >= state.now);
        assert!(!state.is_syncing() && state.mode != Mode::Paused);
    }
}

/// Whether the job can run with this number of workers, by its labels as the tests write them.
fn has_a_size(job: &Job, workers: u32) -> bool {
    let labels = &job.spec.labels;
    let fits = match labels.get("worker.sizes").map(String::as_str) {
        None => true,
        Some("multiples of 2") => workers.is_multiple_of(2),
        Some("powers of 2") => workers.is_power_of_two(),
        Some(list) => list.split(',').any(|size| size == workers.to_string()),
    };
    let gpus = job.spec.worker.demand.iter().filter(|(name, _)| name.starts_with("gpu"));
    let gpus = gpus.map(|(_, milli)| (*milli / 1000).max(1) as u32).max().unwrap_or(1);
    fits && (!labels.contains_key("parallel.tp") || (workers * gpus).is_multiple_of(2))
}

/// A server can exceed its capacity because of foreign use, a smaller capacity, or unordered actions of a manager, but
/// never because of an issue.
fn nothing_issued_onto_full_servers(state: &State, before: &Before) {
    for server in &state.servers {
        let Some((resource, missing)) = server.excess(&server.charged) else { continue };
        for job in state.jobs.values() {
            let known = |slot: &&Slot| {
                let had = before.jobs.get(&job.id);
                let busy = job.issued.allocation.as_ref().is_some_and(|issued| issued.is_busy(slot));
                let of = |allocation: &Option<Arc<Allocation>>| {
                    let has = |allocation: &Arc<Allocation>| {
                        allocation.slots().contains(slot) && (!busy || allocation.is_busy(slot))
                    };
                    allocation.as_ref().is_some_and(has)
                };
                of(&job.seen.allocation)
                    || had.is_some_and(|old| of(&old.issued.allocation) || of(&old.seen.allocation))
            };
            let here =
                job.issued.allocation.iter().flat_map(|issued| issued.slots()).filter(|slot| slot.server == server.id);
            for slot in here {
                assert!(known(&slot), "{slot:?} of {} issued where {missing} of {resource} are missing", job.id);
            }
        }
    }
}

/// Invariants after a commit.
pub fn committed(state: &State, decision: &Decision) {
    let mut planned: BTreeMap<_, (Amounts, BTreeMap<u16, i64>)> = BTreeMap::new();
    let mut tenants: BTreeMap<_, Amounts> = BTreeMap::new();
    let mut queues: BTreeMap<_, Amounts> = BTreeMap::new();
    for job in state.jobs.values() {
        let Some(allocation) = job.verdict.allocation() else {
            assert!(job.verdict.reason().is_some(), "{} has no reason: {:?}", job.id, job.verdict);
            continue;
        };
        assert!(job.spec.bounds().hold(allocation.shape()), "{} got {}", job.id, allocation.shape());
        assert!(has_a_size(job, allocation.shape().workers), "{}: {:?}", allocation.shape(), job.spec.labels);
        assert!(!job.held, "{} is held and runs", job.id);
        one_type_of_gpu(state, job, allocation);
        for slot in allocation.slots() {
            assert!(state.server(slot.server).present, "{} is planned on a lost server", job.id);
            let (amounts, devices) = planned.entry(slot.server).or_default();
            let busy = allocation.is_busy(slot);
            let demand = &job.demand(slot.role).amounts;
            let idle = Amounts::of(&[(MEMORY, demand[MEMORY]), (DISK, demand[DISK])]);
            let takes = if busy { demand } else { &idle };
            *amounts += takes;
            *tenants.entry(job.tenant).or_default() += takes;
            *queues.entry(job.queue).or_default() += takes;
            for share in slot.devices.iter().filter(|_| busy) {
                *devices.entry(share.device).or_default() += i64::from(share.milli);
            }
        }
    }
    // Only engines that measure loads reserve a device twice.
    let engine = engines::find(&state.settings.engine).and_then(|entry| entry.build(&state.settings.parameters));
    let reserves = engine.expect("it decided").limits() == Limits::Reserved;
    for (id, (amounts, devices)) in planned {
        let server = state.server(id);
        let most = if reserves { 1000 } else { i64::from(server.bookable) };
        let mut usable = server.capacity.clone();
        usable -= &server.foreign.amounts;
        let more = i64::from(server.bookable) - 1000;
        let keeps = server.place.keeps_gpus;
        assert_eq!(server.bookable, if keeps { 1000 } else { state.settings.shape.oversubscribe });
        for resource in BTreeSet::from_iter([GPU, CPU, BANDWIDTH].into_iter().chain(server.devices.iter().copied())) {
            if more > 0 && !server.devices.is_empty() {
                usable.add(resource, server.capacity[resource] * more / 1000);
            }
        }
        assert!(amounts.fits(&usable), "{}: planned {amounts:?} of {usable:?}", server.name);
        for (device, milli) in devices {
            let foreign = server.foreign.devices.get(usize::from(device)).copied().unwrap_or(0);
            assert!(usize::from(device) < server.devices.len(), "{}: device {device} planned", server.name);
            assert!(
                milli <= most && milli + i64::from(foreign) <= i64::from(server.bookable),
                "{}: {milli} of device {device}, {foreign} foreign",
                server.name
            );
        }
    }
    let within = |name: &str, limits: &BTreeMap<_, i64>, sum: &Amounts| {
        for (resource, limit) in limits {
            assert!(sum[*resource] <= *limit, "{name}: {} of {limit} {resource}", sum[*resource]);
        }
    };
    for (id, sum) in &tenants {
        within(&state.tenants[id.0 as usize].name, &state.tenants[id.0 as usize].limits, sum);
    }
    for (id, sum) in &queues {
        within(&state.queues[id.0 as usize].name, &state.queues[id.0 as usize].limits, sum);
    }
    assert_eq!(decision.id.0, decision.base.0 + 1);
    assert!(decision.changes.windows(2).all(|pair| pair[0].0 < pair[1].0), "each job once, by id");
    for (id, verdict) in &decision.changes {
        assert_eq!(state.job(*id).map(|job| &job.verdict), Some(verdict));
    }
}

/// The workers' devices are of the chosen type, and the chosen type is one that the owner allows.
fn one_type_of_gpu(state: &State, job: &Job, allocation: &Allocation) {
    let Some(chosen) = job.gpu_kind().filter(|kind| *kind != GPU) else { return };
    for slot in allocation.of(Role::Worker) {
        for share in &slot.devices {
            assert_eq!(state.server(slot.server).devices[usize::from(share.device)], chosen, "{}: {slot:?}", job.id);
        }
    }
    let name = state.resources.name(chosen).trim_start_matches("gpu:");
    let asked = job.spec.worker.demand.keys().find(|key| key.starts_with("gpu")).expect("it has GPUs");
    let allowed = asked == "gpu" || asked["gpu:".len()..].split('|').any(|kind| kind == name);
    assert!(allowed, "{} wants {asked} and has {name}", job.id);
}

/// Slots that a commit adds are on servers that accept them now.
pub fn new_slots_are_accepted(state: &State, job: &Job, old: Option<&Arc<Allocation>>, new: &Allocation) {
    // Labels may have changed under a running job.
    let was_in_one = old.is_none_or(|old| in_one_domain(state, job, old));
    assert!(!was_in_one || in_one_domain(state, job, new), "{}: {new:?} isn't in one domain", job.id);
    for slot in new.slots().iter().filter(|slot| old.is_none_or(|old| !old.slots().contains(slot))) {
        let server = state.server(slot.server);
        assert!(server.admits(job), "{} got {slot:?}, where {server:?} takes none of it", job.id);
        assert!(server.hosts.takes(slot.role), "{}: {slot:?} isn't hosted there", job.id);
        let devices_match = devices_match(&server.devices, job.demand(slot.role), &slot.devices);
        assert!(devices_match, "{} got {slot:?}, other devices than it asks for", job.id);
    }
}

/// Whether all slots are in one domain of the level that the job requires.
fn in_one_domain(state: &State, job: &Job, allocation: &Allocation) -> bool {
    let Some(required) = Topology::of(&job.spec.labels).require else { return true };
    let path = |slot: &Slot| -> Vec<Option<&str>> {
        let server = state.server(slot.server);
        let label = |level: Level| if level == Level::Server { Some(&*server.name) } else { server.label(level) };
        Level::ALL.into_iter().filter(|level| *level <= required).map(label).collect()
    };
    let paths: BTreeSet<_> = allocation.slots().iter().map(path).collect();
    paths.len() == 1 && paths.iter().all(|path| path.last().is_some_and(Option::is_some))
}

/// Separate roles don't share a server.
pub fn roles_stay_apart(job: &Job, allocation: &Allocation) {
    let meets = |slot: &&trainmaster_core::Slot| allocation.of(Role::Server).iter().any(|s| s.server == slot.server);
    let met = allocation.of(Role::Worker).iter().find(meets).filter(|_| job.spec.separate_roles);
    assert!(met.is_none(), "{}: {met:?} beside a parameter server", job.id);
}

/// Slots that can stay keep their index, unless devices prevent it.
pub fn unchanged_slots_keep_their_index(job: &Job, old: &Allocation, new: &Allocation) {
    for role in [Role::Worker, Role::Server].into_iter().filter(|role| job.demand(*role).devices.is_none()) {
        let mut servers: Vec<_> = new.of(role).iter().map(|slot| slot.server).collect();
        servers.dedup();
        for server in servers {
            let here =
                |allocation: &Allocation| allocation.of(role).iter().filter(|slot| slot.server == server).count();
            let kept = new.of(role).iter().filter(|slot| slot.server == server && old.slots().contains(slot)).count();
            assert!(kept >= here(old).min(here(new)), "{}: {old:?} became {new:?}", job.id);
        }
    }
}

/// A manager can execute each issue: gangs are complete, numbers show whether anything changed, and restarts happen
/// only if necessary.
pub fn told(state: &State, last: Option<&Issue>, issue: &Issue) {
    let Some(job) = state.job(issue.job) else {
        assert!(matches!(issue.verdict, Verdict::Stop(_)), "{issue:?} of a job that is over");
        return;
    };
    let Verdict::Run(now) = &issue.verdict else { return };
    assert!(job.spec.bounds().hold(now.shape()), "{} is told to run {}, outside its bounds", job.id, now.shape());
    let Some(last) = last else { return };
    let count = |issue: &Issue| (issue.incarnation, issue.revision);
    if issue.incarnation < last.incarnation {
        let runs = job.seen.incarnation == issue.incarnation;
        let back = job.issued.blocked.is_some() || matches!(last.verdict, Verdict::Release(_));
        assert!(runs && back, "an incarnation that is over is told again: {last:?} then {issue:?}");
        return;
    }
    assert!(count(issue) >= count(last), "{last:?} then {issue:?}");
    let Verdict::Run(was) = &last.verdict else {
        let stopped = matches!(last.verdict, Verdict::Wait(_) | Verdict::Stop(_) | Verdict::Reject(_));
        assert!(!stopped || issue.incarnation > last.incarnation, "{last:?} stopped it; then {issue:?}");
        return;
    };
    if was == now {
        return;
    }
    assert!(count(issue) > count(last), "told other slots under the same number: {last:?} then {issue:?}");
    let moved = now
        .of(Role::Worker)
        .iter()
        .any(|slot| was.of(Role::Worker).iter().any(|old| old.index == slot.index && old != slot));
    let grows = now.of(Role::Worker).iter().any(|slot| was.of(Role::Worker).iter().all(|old| old.index != slot.index));
    let keeps_parameters = match job.spec.mode {
        TrainingMode::AllReduce => was.of(Role::Worker).first() == now.of(Role::Worker).first(),
        _ => was.of(Role::Server) == now.of(Role::Server),
    };
    // If all servers of a job must reserve the same, a running job releases whole servers only.
    let on = |slots: &[trainmaster_core::Slot], server| slots.iter().filter(|slot| slot.server == server).count();
    let kept = |slot: &trainmaster_core::Slot| on(now.slots(), slot.server) == on(was.slots(), slot.server);
    let whole = !state.settings.shape.equal_per_server || now.slots().iter().all(kept);
    let in_place = keeps_parameters
        && !moved
        && whole
        && job.spec.resize != Resize::Fixed
        && (!grows || state.settings.shape.grow_in_place);
    // A refused restart returns to the previous slots, under a new number.
    if in_place && job.issued.blocked.is_none() {
        assert_eq!(issue.incarnation, last.incarnation, "restarted for workers only: {last:?} then {issue:?}");
    } else if !in_place {
        // After several revisions at once, a worker may seem to have moved under its index.
        let skipped = keeps_parameters && issue.revision.0 > last.revision.0 + 1;
        assert!(issue.incarnation > last.incarnation || skipped, "changed in place: {last:?} then {issue:?}");
    }
}
