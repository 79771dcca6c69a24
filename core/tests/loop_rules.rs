//! Properties of the loop: faulty engines, issuing, refusals, modes, resyncs.

use std::sync::Arc;

use crate::common::build::{amounts, cluster, job, plain, ring, server, set, shape, submit, wp};
use trainmaster_core::{
    Allocation, Budget, DeviceShare, Enactment, End, Event, JobId, JobSpec, Mode, ObservedSlot, Proposal, Reason, Role,
    Scheduler, ServerId, Settings, Slot, Source, Span, Time, Verdict, engine::Engine, job::Phase, reason::ReasonKind,
    scheduler::Why, settings::ShapeRules, testing::Scripted,
};

/// The fault of an engine.
#[derive(Clone, Copy, Debug)]
enum Fault {
    OverCapacity,
    UnknownJob,
    UnknownServer,
    OutOfBounds,
    Twice,
    SameIndex,
    Panics,
    NeverEnds,
}

fn broken(fault: Fault) -> Scripted {
    Scripted::new(move |turn, _| {
        let state = turn.state;
        let run = |workers: u32, server: u32| {
            let device = DeviceShare { device: 0, milli: 1000 };
            let worker = |index| Slot {
                role: Role::Worker,
                index,
                server: ServerId(server),
                devices: [device].into_iter().collect(),
            };
            Verdict::Run(Arc::new(Allocation::new((0..workers).map(worker).collect())))
        };
        let one = *state.jobs.keys().next().expect("a job");
        let changes = match fault {
            Fault::OverCapacity => state.jobs.keys().map(|id| (*id, run(1, 0))).collect(),
            Fault::UnknownJob => vec![(JobId(77), run(1, 0))],
            Fault::UnknownServer => vec![(one, run(1, 9))],
            Fault::OutOfBounds => vec![(one, run(5, 0))],
            Fault::Twice => vec![(one, run(1, 0)), (one, run(1, 0))],
            Fault::SameIndex => {
                let slots = match run(1, 0) {
                    Verdict::Run(allocation) => [allocation.slots(), allocation.slots()].concat(),
                    _ => unreachable!("it runs"),
                };
                vec![(one, Verdict::Run(Arc::new(Allocation::new(slots))))]
            }
            Fault::Panics => panic!("on purpose"),
            Fault::NeverEnds => loop {
                turn.budget.spend(1)?;
            },
        };
        turn.proposal = Proposal { changes, wake_at: None };
        Ok(())
    })
}

#[test]
fn a_broken_engine_is_refused_and_replaced() {
    use Fault::{NeverEnds, OutOfBounds, OverCapacity, Panics, SameIndex, Twice, UnknownJob, UnknownServer};
    for fault in [OverCapacity, UnknownJob, UnknownServer, OutOfBounds, Twice, SameIndex, Panics, NeverEnds] {
        let mut scheduler = Scheduler::with_engine(plain("optimus"), Arc::new(broken(fault))).unwrap();
        set(&mut scheduler, 0, server("s0", 8, 16, &["gpu"]));
        let first = submit(&mut scheduler, 0, ring("first", (1, 2, 1)));
        let second = submit(&mut scheduler, 0, ring("second", (1, 2, 1)));
        for failure in 1..=3 {
            assert!(!scheduler.is_fallback());
            let outcome = scheduler.prepare(Time(failure)).run(Budget::steps(1000));
            assert!(outcome.error().is_some(), "{fault:?}");
            let decision = scheduler.commit(Time(failure), outcome).unwrap();
            assert_eq!(decision.source, Source::Kept, "{fault:?}");
            assert!(scheduler.last_error().is_some());
            for id in [first, second] {
                assert_eq!(
                    scheduler.state().job(id).unwrap().verdict,
                    Verdict::Wait(Reason::NotConsidered),
                    "{fault:?}"
                );
            }
        }
        assert!(scheduler.is_fallback());
        assert_eq!(scheduler.due(), Some(Time(3)), "what failed is still to be decided");
        let decision = scheduler.decide(Time(4));
        assert_eq!((decision.source, decision.changes.len()), (Source::Fallback, 2), "{fault:?}");
        assert_eq!(shape(&scheduler, first), wp(1, 0));
        assert_eq!(shape(&scheduler, second), wp(0, 0));
    }
}

/// Observes all issued slots of a job.
fn seen(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let job = scheduler.state().job(id).unwrap().clone();
    let name = |server: ServerId| scheduler.state().server_name(server).to_owned();
    let slots = job.issued.allocation.iter().flat_map(|issued| issued.slots());
    let slots = slots.map(|slot| ObservedSlot {
        role: slot.role,
        index: slot.index,
        server: name(slot.server),
        devices: slot.devices.to_vec(),
    });
    let event =
        Event::Observed { job: id, incarnation: job.issued.incarnation, slots: slots.collect(), phase: Phase::Running };
    scheduler.apply(Time(at), event).unwrap();
}

/// Observes that none of its slots is left.
fn gone(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let state = scheduler.state();
    let incarnation = state.job(id).map(|job| job.issued.incarnation).unwrap_or_default();
    let event = Event::Observed { job: id, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(at), event).unwrap();
}

fn refused(scheduler: &mut Scheduler, at: i64, job: JobId, retry_after: Option<Span>) {
    let result = Enactment::Refused { cause: "quota".into(), retry_after };
    let decision = scheduler.state().decision;
    scheduler.apply(Time(at), Event::Enacted { decision, job, result }).unwrap();
}

fn kind(scheduler: &Scheduler, id: JobId) -> Option<ReasonKind> {
    let state = scheduler.state();
    state.effective(state.job(id).unwrap()).reason().map(Reason::kind)
}

#[test]
fn a_swap_does_not_deadlock() {
    let script = Scripted::places(vec![vec![vec![0], vec![1]], vec![vec![1], vec![0]]]);
    let mut scheduler = Scheduler::with_engine(plain("optimus"), Arc::new(script)).unwrap();
    for name in ["s0", "s1"] {
        set(&mut scheduler, 0, server(name, 8, 16, &["gpu"]));
    }
    let ids = ["a", "b"].map(|name| submit(&mut scheduler, 0, ring(name, (1, 1, 1))));
    scheduler.decide(Time(1));
    ids.iter().for_each(|id| seen(&mut scheduler, 2, *id));
    scheduler.decide(Time(3));
    // Each has to stop before the other can start.
    for id in ids {
        assert_eq!(kind(&scheduler, id), Some(ReasonKind::Releasing));
    }
    gone(&mut scheduler, 4, ids[0]);
    assert_eq!(kind(&scheduler, ids[1]), None, "the other's room is free: issued without the engine");
    gone(&mut scheduler, 5, ids[1]);
    for (id, server) in ids.into_iter().zip([1, 0]) {
        let job = scheduler.state().job(id).unwrap();
        assert_eq!(job.issued.allocation.as_ref().unwrap().slots()[0].server, ServerId(server));
        assert_eq!(job.issued.incarnation.0, 2);
    }
    scheduler.state().audit().unwrap();
}

#[test]
fn a_refusal_backs_off_and_is_tried_again() {
    let mut scheduler = cluster(Settings { refusals: 2, ..plain("fifo") }, &[server("s0", 8, 16, &["gpu"])]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    scheduler.decide(Time(0));
    refused(&mut scheduler, 1000, id, None);
    assert_eq!(kind(&scheduler, id), Some(ReasonKind::Refused));
    assert_eq!(scheduler.due(), Some(Time(6000)), "5 s by default");
    scheduler.decide(Time(6000));
    assert_eq!(kind(&scheduler, id), None, "asked again");
    refused(&mut scheduler, 7000, id, None);
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(
        job.verdict.reason().map(Reason::kind),
        Some(ReasonKind::Refused),
        "given up after two: others may have its room"
    );
    assert_eq!(scheduler.due(), Some(Time(7000)));
    scheduler.decide(Time(7000));
    assert_eq!(scheduler.due(), Some(Time(17_000)), "the wait doubled");
    scheduler.decide(Time(17_000));
    assert_eq!(shape(&scheduler, id), wp(1, 0), "an engine that looks at arrivals only looks at it again");
    seen(&mut scheduler, 18_000, id);
    assert_eq!(scheduler.state().job(id).unwrap().issued.refusals, 0);
}

#[test]
fn a_refused_change_is_not_forgotten_when_the_old_shape_is_seen() {
    let script = Scripted::places(vec![vec![vec![0]], vec![vec![1]]]);
    let mut scheduler = Scheduler::with_engine(plain("optimus"), Arc::new(script)).unwrap();
    for name in ["s0", "s1"] {
        set(&mut scheduler, 0, server(name, 8, 16, &["gpu"]));
    }
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, id);
    scheduler.decide(Time(3));
    refused(&mut scheduler, 4, id, Some(Span(1000)));
    seen(&mut scheduler, 5, id);
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(job.issued.allocation.as_ref().unwrap().slots()[0].server, ServerId(0), "it runs on where it is");
    scheduler.prepare(Time(1004));
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(job.issued.allocation.as_ref().unwrap().slots()[0].server, ServerId(1), "asked again");
}

#[test]
fn a_gang_of_which_the_manager_started_a_part_is_stopped_when_the_rest_is_refused() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    let id = submit(&mut scheduler, 0, ring("a", (2, 2, 2)));
    scheduler.decide(Time(0));
    let devices = vec![DeviceShare { device: 0, milli: 1000 }];
    let slot = ObservedSlot { role: Role::Worker, index: 0, server: "s0".into(), devices };
    let incarnation = scheduler.state().job(id).unwrap().issued.incarnation;
    scheduler
        .apply(Time(1), Event::Observed { job: id, incarnation, slots: vec![slot], phase: Phase::Starting })
        .unwrap();
    refused(&mut scheduler, 2, id, None);
    assert_eq!(kind(&scheduler, id), Some(ReasonKind::Refused), "half a gang doesn't run");
    gone(&mut scheduler, 3, id);
    assert_eq!(scheduler.state().job(id).unwrap().issued.allocation, None);
    scheduler.decide(Time(10_000));
    assert_eq!(kind(&scheduler, id), None);
    assert_eq!(scheduler.state().job(id).unwrap().issued.incarnation.0, 2);
}

#[test]
fn jobs_pruned_at_commit_keep_their_old_slots() {
    // In the engine's order the big job is last, though it arrived first. The list of previous verdicts is searched by
    // number.
    let forwards = Scripted::places([[0, 1, 2], [3, 4, 5]].map(|line| line.map(|server| vec![server]).into()).into());
    let backwards = Scripted::new(move |turn, decision| {
        forwards.decide(turn, &mut (decision as u32))?;
        turn.proposal.changes.reverse();
        Ok(())
    });
    let mut scheduler = Scheduler::with_engine(plain("optimus"), Arc::new(backwards)).unwrap();
    for at in 0..6 {
        set(&mut scheduler, 0, server(&format!("s{at}"), 8, 16, &["gpu"]));
    }
    let ids = ["a", "b", "c"].map(|name| submit(&mut scheduler, 0, ring(name, (1, 1, 1))));
    scheduler.decide(Time(1));
    let outcome = scheduler.prepare(Time(2)).run(Budget::UNLIMITED);
    scheduler.apply(Time(3), Event::ServersLeft { names: vec!["s3".into()] }).unwrap();
    let decision = scheduler.commit(Time(4), outcome).unwrap();
    assert_eq!((decision.source, decision.dropped), (Source::Pruned, vec![ids[0]]));
    let on = |id: JobId| scheduler.state().job(id).unwrap().verdict.allocation().unwrap().slots()[0].server;
    assert_eq!(ids.map(on), [ServerId(0), ServerId(4), ServerId(5)]);
}

#[test]
fn changes_outlive_a_crowded_ticket() {
    // More changes than are kept while a ticket is open: repetitions are merged, and none counts as delivered.
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"]), server("s1", 8, 16, &["gpu"])]);
    let foreign = |scheduler: &mut Scheduler, server: &str, gpus: i64| {
        let event =
            Event::ForeignUse { server: server.into(), amounts: amounts(&[("gpu", gpus * 1000)]), devices: vec![] };
        scheduler.apply(Time(0), event).unwrap();
    };
    scheduler.decide(Time(0));
    let outcome = scheduler.prepare(Time(0)).run(Budget::UNLIMITED);
    for at in 0..6000 {
        foreign(&mut scheduler, ["s0", "s1"][at % 2], 1);
    }
    scheduler.commit(Time(0), outcome).unwrap();
    submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let decision = scheduler.decide(Time(0));
    assert_eq!(decision.source, Source::Engine, "{:?}", scheduler.last_error());
    assert!(matches!(decision.changes[0].1, Verdict::Wait(_)), "no GPU is free");
}

#[test]
fn shadow_and_pause_hand_jobs_back_to_managers() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    let running = submit(&mut scheduler, 0, ring("running", (1, 2, 1)));
    scheduler.decide(Time(0));
    seen(&mut scheduler, 1, running);
    scheduler.take_issues();
    for mode in [Mode::Shadow, Mode::Paused] {
        scheduler.apply(Time(3), Event::ModeSet(mode)).unwrap();
        let waiting = submit(&mut scheduler, 3, ring(&format!("in-{mode:?}"), (2, 2, 2)));
        if mode == Mode::Shadow {
            let decision = scheduler.decide(Time(3));
            assert_eq!(decision.changes.len(), 1, "one step from what runs: the other job waits");
        } else {
            assert_eq!(scheduler.due(), None);
        }
        let shapes: Vec<_> = scheduler.all_issues().into_iter().map(|issue| (issue.job, issue.verdict)).collect();
        assert!(shapes.contains(&(running, Verdict::Release(wp(1, 0)))), "as last given: {shapes:?}");
        assert!(shapes.contains(&(waiting, Verdict::Release(wp(2, 0)))), "as requested: {shapes:?}");
        assert!(shapes.iter().all(|(_, verdict)| matches!(verdict, Verdict::Release(_))));
    }
    scheduler.apply(Time(4), Event::ModeSet(Mode::Active)).unwrap();
    let decision = scheduler.decide(Time(5));
    assert_eq!(decision.changes.len(), 3, "after shadow mode the whole plan is told");
    assert_eq!(kind(&scheduler, running), None);
}

#[test]
fn a_resync_removes_what_its_own_manager_does_not_mention() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let other = Event::ServerSet { manager: "m1".into(), server: server("t0", 8, 16, &["gpu"]) };
    scheduler.apply(Time(0), other).unwrap();
    let ids = ["a", "b"].map(|name| submit(&mut scheduler, 0, ring(name, (1, 1, 1))));
    scheduler.decide(Time(0));
    ids.iter().for_each(|id| seen(&mut scheduler, 1, *id));
    let on = |scheduler: &Scheduler, id: JobId| {
        scheduler.state().job(id).unwrap().issued.allocation.as_ref().unwrap().slots()[0].server
    };
    let (first, second) = (ids[0], ids[1]);
    let (on_first, on_second) = (on(&scheduler, first), on(&scheduler, second));
    assert_ne!(on_first, on_second);
    let manager = |server: ServerId| if server == ServerId(0) { "m0" } else { "m1" }.to_owned();
    // The manager of the first job's server mentions its server, and no job.
    scheduler.apply(Time(2), Event::SyncBegin { manager: manager(on_first) }).unwrap();
    assert_eq!(scheduler.due(), None, "nothing is prepared in between");
    let spec = server(scheduler.state().server_name(on_first), 8, 16, &["gpu"]);
    scheduler.apply(Time(2), Event::ServerSet { manager: manager(on_first), server: spec }).unwrap();
    scheduler.apply(Time(2), Event::SyncEnd { manager: manager(on_first), owns_queue: false }).unwrap();
    let job = |id: JobId| scheduler.state().job(id).unwrap();
    assert_eq!(
        (job(first).seen.allocation.as_ref(), job(first).issued.incarnation.0),
        (None, 2),
        "its slots are gone: it starts anew"
    );
    assert!(job(second).seen.allocation.is_some());
    assert_eq!(job(second).issued.incarnation.0, 1);
    let twice = scheduler.apply(Time(3), Event::SyncEnd { manager: "m0".into(), owns_queue: false });
    assert!(twice.unwrap_err().to_string().contains("m0"));
}

#[test]
fn a_change_of_workers_is_a_revision_and_a_restart_an_incarnation() {
    for (grow_in_place, equal_per_server) in [(true, false), (false, false), (false, true)] {
        let mut settings = plain("fifo");
        settings.shape.grow_in_place = grow_in_place;
        settings.shape.equal_per_server = equal_per_server;
        let mut scheduler =
            Scheduler::with_engine(settings, Arc::new(sizes([(1, 1), (3, 1), (2, 1), (2, 2)]))).unwrap();
        set(&mut scheduler, 0, server("s0", 16, 16, &["gpu", "gpu", "gpu"]));
        let id = submit(&mut scheduler, 0, job("a", (1, 3, 1), (1, 2, 1)));
        let mut counts = Vec::new();
        for at in 0..4 {
            scheduler.decide(Time(at));
            seen(&mut scheduler, at, id);
            let job = scheduler.state().job(id).unwrap();
            counts.push((job.issued.incarnation.0, job.issued.revision.0));
        }
        let expected = match (grow_in_place, equal_per_server) {
            (true, _) => [(1, 0), (1, 1), (1, 2), (2, 0)],
            (false, false) => [(1, 0), (2, 0), (2, 1), (3, 0)],
            // The reservation on a server can't change while the server is used.
            (false, true) => [(1, 0), (2, 0), (3, 0), (4, 0)],
        };
        assert_eq!(counts, expected, "grow in place: {grow_in_place}, equal per server: {equal_per_server}");
    }
}

/// What a change of the number of workers does by the job's labels: their processes go on, all start again in place, or
/// the job restarts. The latter two count as restarts.
#[test]
fn a_change_in_place_counts_as_a_restart_where_all_processes_start_again() {
    let in_place = [(1, 0), (1, 1), (1, 2), (1, 2)];
    let restarted = [(1, 0), (2, 0), (3, 0), (3, 0)];
    for (label, value, counts, restarts) in [
        ("elastic", "in_place", in_place, vec![]),
        ("launcher", "torchrun", in_place, vec![Time(1), Time(2)]),
        ("elastic", "restart", restarted, vec![Time(1), Time(2)]),
    ] {
        let engine = sizes([(1, 0), (3, 0), (2, 0), (2, 0)]);
        let mut scheduler = Scheduler::with_engine(plain("fifo"), Arc::new(engine)).unwrap();
        set(&mut scheduler, 0, server("s0", 16, 16, &["gpu", "gpu", "gpu"]));
        let labels = [(label.to_owned(), value.to_owned())].into();
        let id = submit(&mut scheduler, 0, JobSpec { labels, ..ring("a", (1, 3, 1)) });
        let seen = (0..4).map(|at| {
            scheduler.decide(Time(at));
            seen(&mut scheduler, at, id);
            let issued = &scheduler.state().job(id).unwrap().issued;
            (issued.incarnation.0, issued.revision.0)
        });
        assert_eq!(seen.collect::<Vec<_>>(), counts, "{label} = {value}");
        assert_eq!(scheduler.state().job(id).unwrap().issued.restarted_at, restarts, "{label} = {value}");
    }
}

#[test]
fn with_equal_servers_a_running_job_releases_whole_servers() {
    let mut settings = plain("fifo");
    settings.shape = ShapeRules { equal_per_server: true, grow_in_place: false, ..ShapeRules::default() };
    let script = [vec![0, 0, 1, 1], vec![0, 0], vec![0], vec![0, 1]].map(|servers| vec![servers]);
    let mut scheduler = Scheduler::with_engine(settings, Arc::new(Scripted::places(script.into()))).unwrap();
    for name in ["s0", "s1"] {
        set(&mut scheduler, 0, server(name, 16, 16, &["gpu", "gpu"]));
    }
    let id = submit(&mut scheduler, 0, ring("a", (1, 4, 1)));
    let mut counts = Vec::new();
    for at in 0..4 {
        scheduler.decide(Time(at));
        seen(&mut scheduler, at, id);
        let job = scheduler.state().job(id).unwrap();
        counts.push((job.issued.incarnation.0, job.issued.revision.0));
    }
    assert_eq!(counts, [(1, 0), (1, 1), (2, 0), (3, 0)]);
}

/// The only job gets these sizes, one per round, on the first server.
fn sizes(sizes: [(u32, u32); 4]) -> Scripted {
    Scripted::new(move |turn, decision| {
        let state = turn.state;
        let (workers, servers) = sizes[decision];
        let slot = |role, index: u32| Slot {
            role,
            index,
            server: ServerId(0),
            devices: (role == Role::Worker)
                .then_some(DeviceShare { device: index as u16, milli: 1000 })
                .into_iter()
                .collect(),
        };
        let slots = (0..workers)
            .map(|index| slot(Role::Worker, index))
            .chain((0..servers).map(|index| slot(Role::Server, index)));
        let run = Verdict::Run(Arc::new(Allocation::new(slots.collect())));
        turn.proposal = Proposal { changes: state.jobs.keys().map(|id| (*id, run.clone())).collect(), wake_at: None };
        Ok(())
    })
}

#[test]
fn exchanged_devices_leave_sums_right() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    let id = submit(&mut scheduler, 0, ring("a", (2, 2, 2)));
    scheduler.decide(Time(0));
    seen(&mut scheduler, 0, id);
    // A device of another type, and one device fewer.
    for devices in [&["gpu", "gpu:a100"][..], &["gpu:a100"], &["gpu", "gpu", "gpu"]] {
        set(&mut scheduler, 1, server("s0", 8, 16, devices));
        scheduler.state().audit().unwrap();
        scheduler.decide(Time(1));
        scheduler.state().audit().unwrap();
    }
    scheduler.apply(Time(2), Event::JobEnded { job: id, end: End::Completed }).unwrap();
    gone(&mut scheduler, 2, id);
    scheduler.state().audit().unwrap();
    assert!(scheduler.state().find_server("s0").unwrap().charged.amounts.is_zero());
}

#[test]
fn a_job_past_its_time_stays_stopped() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let spec = trainmaster_core::JobSpec { time_limit: Some(Span(1000)), ..ring("a", (1, 1, 1)) };
    let id = submit(&mut scheduler, 0, spec);
    scheduler.decide(Time(0));
    seen(&mut scheduler, 0, id);
    assert_eq!(scheduler.due(), Some(Time(1000)));
    scheduler.decide(Time(1000));
    for held in [true, false] {
        scheduler.apply(Time(1002), Event::JobHeld { job: id, held }).unwrap();
        scheduler.decide(Time(1002));
        let verdict = &scheduler.state().job(id).unwrap().verdict;
        assert_eq!(*verdict, Verdict::Stop(Reason::TimeLimit { limit: Span(1000) }));
    }
}

#[test]
fn invalid_observations_are_refused_by_name() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let foreign = |pairs: &[(&str, i64)], milli| Event::ForeignUse {
        server: "s0".into(),
        amounts: amounts(pairs),
        devices: vec![DeviceShare { device: 0, milli }],
    };
    for (event, word) in [
        (foreign(&[("cpu", -1000)], 0), "cpu = -1000"),
        (foreign(&[("cpu", i64::MAX)], 0), "10^12"),
        (foreign(&[], 2000), "2000 thousandths of device 0"),
        (Event::ServersLeft { names: vec!["x".into()] }, "\"x\""),
    ] {
        let error = scheduler.apply(Time(0), event).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    scheduler.state().audit().unwrap();
}

#[test]
fn a_late_outcome_of_a_closed_ticket_does_not_advance_time() {
    // A replay would lack it, because it isn't recorded.
    let mut scheduler = cluster(plain("fifo"), &[]);
    let ticket = scheduler.prepare(Time(1)).id();
    scheduler.abandon(Time(2), ticket, Why::Lost);
    scheduler.abandon(Time(500), ticket, Why::Late);
    assert_eq!(scheduler.state().now, Time(2));
}

#[test]
fn a_change_equal_to_the_last_delivered_one_is_delivered() {
    let mut scheduler = cluster(plain("fifo"), &[server("s1", 8, 16, &["gpu"]), server("s0", 16, 16, &["gpu"])]);
    // The arrival of the freer server is the last change that the open ticket contains. Then foreign use takes its GPU.
    let outcome = scheduler.prepare(Time(0)).run(Budget::UNLIMITED);
    let foreign = Event::ForeignUse { server: "s0".into(), amounts: amounts(&[("gpu", 1000)]), devices: Vec::new() };
    scheduler.apply(Time(1), foreign).unwrap();
    scheduler.commit(Time(2), outcome).unwrap();
    let id = submit(&mut scheduler, 3, ring("a", (1, 1, 1)));
    let decision = scheduler.decide(Time(3));
    assert_eq!(decision.source, Source::Engine, "{:?}", scheduler.last_error());
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(job.verdict.allocation().unwrap().slots()[0].server, ServerId(0));
}

#[test]
fn a_plan_on_exchanged_devices_is_void() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu:a100", "gpu"])]);
    let spec = |name: &str, kind: &str| trainmaster_core::JobSpec {
        worker: crate::common::build::role(&[(kind, 1000)], 1, 1, 1),
        ..ring(name, (1, 1, 1))
    };
    let typed = submit(&mut scheduler, 0, spec("typed", "gpu:a100"));
    let any = submit(&mut scheduler, 0, spec("any", "gpu"));
    scheduler.decide(Time(0));
    set(&mut scheduler, 1, server("s0", 8, 16, &["gpu:v100", "gpu"]));
    assert_eq!(kind(&scheduler, typed), Some(ReasonKind::Evicted));
    assert_eq!(kind(&scheduler, any), None, "any GPU will do");
    let decision = scheduler.decide(Time(2));
    assert_eq!(decision.source, Source::Engine, "{:?}", scheduler.last_error());
    assert_eq!((shape(&scheduler, typed), shape(&scheduler, any)), (wp(0, 0), wp(1, 0)));
}

#[test]
fn observed_slots_in_shadow_mode_are_planned_within_limits() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    scheduler.apply(Time(0), Event::ModeSet(Mode::Shadow)).unwrap();
    let id = submit(&mut scheduler, 0, ring("a", (2, 2, 2)));
    let mut settings = plain("fifo");
    settings.tenants.insert("default".into(), amounts(&[("gpu", 1000)]));
    scheduler.apply(Time(0), Event::Configured(Box::new(settings))).unwrap();
    scheduler.decide(Time(0));
    // The manager, on its own, gave it both GPUs.
    let slot = |index: u32| ObservedSlot {
        role: Role::Worker,
        index,
        server: "s0".into(),
        devices: vec![DeviceShare { device: index as u16, milli: 1000 }],
    };
    let slots = vec![slot(0), slot(1)];
    let event = Event::Observed { job: id, incarnation: Default::default(), slots, phase: Phase::Running };
    scheduler.apply(Time(1), event).unwrap();
    let decision = scheduler.decide(Time(2));
    assert_eq!(decision.source, Source::Engine, "{:?}", scheduler.last_error());
    assert_eq!(shape(&scheduler, id), wp(0, 0));
    scheduler.state().audit().unwrap();
}
