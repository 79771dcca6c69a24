//! Edge cases of the loop: unused names, unordered slots, late tickets and refusals, and issues at the end of a job or
//! a mode.

#![allow(clippy::disallowed_types)] // one engine here records its changes for the test

use std::{collections::BTreeMap, sync::Arc};

use crate::common::build::{amounts, cluster, job, plain, ring, role, server, set, shape, submit, wp};
use trainmaster_core::{
    Budget, DecisionId, DeviceShare, Enactment, End, Event, EventError, Incarnation, JobId, JobSpec, Mode,
    ObservedSlot, Reason, Report, Revision, Role, Scheduler, ServerId, ServerSpec, Settings, Source, Span, Time,
    Verdict,
    explain::Topic,
    job::Phase,
    reason::{ReasonKind, Scope},
    resources::ResourceTypes,
    scheduler::{Failure, Why},
    settings::Stability,
    state::Change,
    testing::Scripted,
};

/// Servers s0, s1, … with these numbers of GPUs, and a script.
fn scripted(gpus: &[usize], script: &[&[&[u32]]]) -> Scheduler {
    let script = script.iter().map(|round| round.iter().map(|servers| servers.to_vec()).collect()).collect();
    let mut scheduler = Scheduler::with_engine(plain("fifo"), Arc::new(Scripted::places(script))).unwrap();
    for (at, gpus) in gpus.iter().enumerate() {
        set(&mut scheduler, 0, server(&format!("s{at}"), 8, 16, &vec!["gpu"; *gpus]));
    }
    scheduler
}

/// Observes all issued slots of a job.
pub(crate) fn seen(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let state = scheduler.state();
    let job = state.job(id).unwrap();
    let slots = job.issued.allocation.iter().flat_map(|issued| issued.slots()).map(|slot| ObservedSlot {
        role: slot.role,
        index: slot.index,
        server: state.server_name(slot.server).to_owned(),
        devices: slot.devices.to_vec(),
    });
    let (slots, incarnation) = (slots.collect(), job.issued.incarnation);
    scheduler.apply(Time(at), Event::Observed { job: id, incarnation, slots, phase: Phase::Running }).unwrap();
}

fn gone(scheduler: &mut Scheduler, at: i64, id: JobId) -> Result<(), EventError> {
    let incarnation = Incarnation(1);
    scheduler.apply(Time(at), Event::Observed { job: id, incarnation, slots: Vec::new(), phase: Phase::Stopped })
}

fn refused(scheduler: &mut Scheduler, at: i64, job: JobId, decision: DecisionId) -> Result<(), EventError> {
    let result = Enactment::Refused { cause: "quota".into(), retry_after: None };
    scheduler.apply(Time(at), Event::Enacted { decision, job, result })
}

fn issued_on(scheduler: &Scheduler, id: JobId) -> Option<Vec<u32>> {
    let issued = scheduler.state().job(id).unwrap().issued.allocation.clone()?;
    Some(issued.slots().iter().map(|slot| slot.server.0).collect())
}

fn number(scheduler: &Scheduler, id: JobId) -> (u32, u32) {
    let job = scheduler.state().job(id).unwrap();
    (job.issued.incarnation.0, job.issued.revision.0)
}

fn texts(scheduler: &Scheduler, at: i64, id: JobId) -> Vec<String> {
    let explanation = scheduler.explain(Time(at), id).unwrap();
    explanation.findings.into_iter().map(|finding| finding.text).collect()
}

fn says(scheduler: &Scheduler, at: i64, id: JobId, words: &str) {
    let texts = texts(scheduler, at, id);
    assert!(texts.iter().any(|text| text.contains(words)), "nothing says {words:?}: {texts:#?}");
}

fn bytes(scheduler: &Scheduler) -> Vec<u8> {
    postcard::to_allocvec(scheduler.state()).unwrap()
}

#[test]
fn refused_events_change_nothing() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    submit(&mut scheduler, 0, ring("there", (1, 1, 1)));
    let submitted = |spec: JobSpec| Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
    let strange = |name: &str| JobSpec {
        tenant: format!("tenant-of-{name}"),
        queue: format!("queue-of-{name}"),
        model: format!("model-of-{name}"),
        worker: role(&[("gpu", 1000), (&format!("resource-of-{name}"), 7)], 1, 1, 1),
        ..ring(name, (1, 1, 1))
    };
    let foreign = |name: &str, milli| Event::ForeignUse {
        server: "s0".into(),
        amounts: amounts(&[(name, 1)]),
        devices: vec![DeviceShare { device: 0, milli }],
    };
    let many: Vec<String> = (0..ResourceTypes::MOST).map(|at| format!("type{at}")).collect();
    let all_at_once: Vec<(&str, i64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
    let wide = ServerSpec { capacity: amounts(&all_at_once), ..server("s1", 8, 16, &[]) };
    let odd = ServerSpec { devices: vec!["gpu:new".into(), "tpu".into()], ..server("s1", 8, 16, &[]) };
    let set = |server: ServerSpec| Event::ServerSet { manager: "stranger".into(), server };
    let limits = |pairs: &[(&str, i64)]| Settings {
        queues: BTreeMap::from([("default".to_owned(), amounts(pairs))]),
        ..plain("fifo")
    };
    let before = bytes(&scheduler);
    for (event, word) in [
        (submitted(strange("a")), "resource-of-a"),
        (submitted(JobSpec { name: "there".into(), ..strange("b") }), "\"there\""),
        (submitted(JobSpec { batch: 0, ..strange("c") }), "batch"),
        (foreign("strange", 2000), "2000 thousandths"),
        (set(wide), "256 types of resources"),
        (set(odd), "tpu"),
        (Event::SyncEnd { manager: "stranger".into(), owns_queue: true }, "stranger"),
        (Event::Configured(Box::new(limits(&all_at_once))), "256 types of resources"),
    ] {
        let error = scheduler.apply(Time(0), event).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert_eq!(bytes(&scheduler), before, "{error}");
    }
    assert!(Scheduler::new(limits(&all_at_once)).is_err_and(|error| error.to_string().contains("256 types")));
    // A demand of zero doesn't name a resource.
    let nothing = JobSpec { worker: role(&[("gpu", 1000), ("strange", 0)], 1, 1, 1), ..ring("d", (1, 1, 1)) };
    submit(&mut scheduler, 0, nothing);
    assert_eq!(scheduler.state().resources.id("strange"), None);
}

#[test]
fn names_are_forgotten_with_their_last_job_and_models_later() {
    let mut settings = plain("fifo");
    settings.tenants.insert("t7".into(), amounts(&[("gpu", 1000)]));
    let mut scheduler = cluster(settings, &[server("s0", 8, 16, &["gpu"])]);
    let stays = submit(&mut scheduler, 0, JobSpec { tenant: "t7".into(), ..ring("stays", (1, 1, 1)) });
    scheduler.apply(Time(0), Event::JobHeld { job: stays, held: true }).unwrap();
    for at in 0..600 {
        let own = |what: &str| format!("{what}{at}");
        let (tenant, queue, model) = (own("t"), own("q"), own("m"));
        let id = submit(&mut scheduler, at, JobSpec { tenant, queue, model, ..ring(&own("j"), (1, 1, 1)) });
        scheduler.decide(Time(at));
        // Every second job reports.
        if at % 2 == 0 {
            let (incarnation, slot) = (Incarnation(1), (Role::Worker, 0));
            let report = Report { seq: 1, step: 5, steps: 5, duration: Span(1000), workers: 1, ..Report::default() };
            scheduler.apply(Time(at), Event::Reported { job: id, incarnation, slot, report }).unwrap();
        }
        seen(&mut scheduler, at, id);
        scheduler.apply(Time(at), Event::JobEnded { job: id, end: End::Completed }).unwrap();
        gone(&mut scheduler, at, id).unwrap();
        scheduler.state().audit().unwrap();
    }
    let state = scheduler.state();
    assert!(state.tenants.len() <= 2 && state.queues.len() <= 2, "{} {}", state.tenants.len(), state.queues.len());
    let tenant = &state.tenants[state.job(stays).unwrap().tenant.0 as usize];
    assert_eq!((&*tenant.name, tenant.limits.len()), ("t7", 1));
    assert_eq!(state.models.len(), 256 + 1);
    assert!(
        state.models.contains_key("t598/m598:allreduce") && !state.models.contains_key("t0/m0:allreduce"),
        "the last used are kept"
    );
    assert!(!state.models.contains_key("t599/m599:allreduce"), "nothing was learnt of it");
    // A name that is used again is no longer the oldest.
    let back = JobSpec { tenant: "t88".into(), model: "m88".into(), ..ring("back", (1, 1, 1)) };
    assert!(state.models.contains_key("t88/m88:allreduce"));
    let back = submit(&mut scheduler, 600, back);
    scheduler.apply(Time(600), Event::JobEnded { job: back, end: End::Cancelled }).unwrap();
    assert_eq!(scheduler.state().models.len(), 256 + 1);
    assert!(scheduler.state().models.contains_key("t88/m88:allreduce"));
}

#[test]
fn no_more_slots_report_for_a_job_than_it_can_have() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    let id = submit(&mut scheduler, 0, ring("a", (2, 2, 2)));
    scheduler.decide(Time(0));
    let mut report = |role, index| {
        let report = Report { seq: 1, step: 1, ..Report::default() };
        let event = Event::Reported { job: id, incarnation: Incarnation(1), slot: (role, index), report };
        scheduler.apply(Time(1), event)
    };
    // A slot that the plan doesn't contain any more, then those that it contains.
    report(Role::Worker, 7).unwrap();
    report(Role::Worker, 1).unwrap();
    report(Role::Worker, 0).unwrap();
    for (role, index) in [(Role::Worker, 2), (Role::Server, 0), (Role::Server, 1), (Role::Worker, u32::MAX)] {
        assert!(report(role, index).unwrap_err().to_string().contains("no such slot"));
    }
    let job = scheduler.state().job(id).unwrap();
    assert_eq!((job.learnt.reported.len(), job.learnt.progress.ignored), (3, 4));
}

#[test]
fn jobs_that_end_before_a_decision_leave_no_changes() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let known = submit(&mut scheduler, 0, ring("known", (1, 1, 1)));
    scheduler.decide(Time(0));
    scheduler.apply(Time(1), Event::ModeSet(Mode::Paused)).unwrap();
    scheduler.apply(Time(1), Event::JobEnded { job: known, end: End::Completed }).unwrap();
    let come_and_go = |scheduler: &mut Scheduler, count: usize| {
        for at in 0..count {
            let id = submit(scheduler, 2, ring(&format!("j{at}"), (1, 1, 1)));
            scheduler.apply(Time(2), Event::JobEnded { job: id, end: End::Cancelled }).unwrap();
        }
        bytes(scheduler).len()
    };
    let (few, many) = (come_and_go(&mut scheduler, 3000), come_and_go(&mut scheduler, 9000));
    assert!(many < 2 * few, "{few} bytes grew to {many}");
    // The engine receives changes of what it knew.
    scheduler.apply(Time(3), Event::ModeSet(Mode::Active)).unwrap();
    let (news, sink) = (Arc::new(std::sync::Mutex::new(Vec::new())), plain("fifo"));
    let heard = news.clone();
    let listener = Scripted::new(move |round, _| {
        *heard.lock().expect("one thread") = round.changes.iter().copied().collect();
        Ok(())
    });
    let mut listening = Scheduler::with_engine(sink, Arc::new(listener)).unwrap();
    let known = submit(&mut listening, 0, ring("known", (1, 1, 1)));
    listening.decide(Time(0));
    listening.apply(Time(1), Event::JobEnded { job: known, end: End::Completed }).unwrap();
    come_and_go(&mut listening, 9000);
    listening.decide(Time(3));
    let heard = news.lock().unwrap().clone();
    assert!(heard.contains(&Change::Ended(known)) && heard.len() < 9000, "{}", heard.len());
}

#[test]
fn a_failing_fallback_hands_jobs_back_to_their_managers() {
    let mut scheduler = scripted(&[1], &[&[&[0]]]);
    scheduler.start_journal();
    let job = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let fail = |scheduler: &mut Scheduler, at| {
        let ticket = scheduler.prepare(Time(at)).id();
        scheduler.abandon(Time(at), ticket, Why::Late);
    };
    (1..=5).for_each(|at| fail(&mut scheduler, at));
    assert!(scheduler.is_fallback());
    assert_eq!(scheduler.decide(Time(6)).source, Source::Fallback, "it starts anew");
    (7..=8).for_each(|at| fail(&mut scheduler, at));
    assert_eq!(scheduler.state().mode, Mode::Active);
    fail(&mut scheduler, 9);
    assert_eq!((scheduler.state().mode, scheduler.due()), (Mode::Paused, None));
    let told = scheduler.take_issues();
    assert!(told.iter().any(|issue| issue.job == job && matches!(issue.verdict, Verdict::Release(_))), "{told:?}");
    let records = scheduler.drain_journal();
    let mut again = Scheduler::restore(records.iter().map(Vec::as_slice)).expect("it was just written");
    assert_eq!(again.state().mode, Mode::Paused);
    // A user resumes scheduling: the fallback has the same number of attempts again.
    again.apply(Time(10), Event::ModeSet(Mode::Active)).unwrap();
    (11..=12).for_each(|at| fail(&mut again, at));
    assert_eq!((again.state().mode, again.is_fallback()), (Mode::Active, true));
}

#[test]
fn an_engine_that_is_always_late_is_replaced() {
    let mut scheduler = scripted(&[1], &[&[&[0]]]);
    submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let late = |scheduler: &mut Scheduler, at| {
        let ticket = scheduler.prepare(Time(at)).id();
        scheduler.abandon(Time(at), ticket, Why::Late);
    };
    late(&mut scheduler, 1);
    late(&mut scheduler, 2);
    assert_eq!(scheduler.last_error(), Some(&Failure::Late));
    assert_eq!(scheduler.decide(Time(3)).source, Source::Engine, "in time: it starts anew");
    assert_eq!(scheduler.last_error(), None);
    late(&mut scheduler, 4);
    // A ticket that its host lost is no evidence about the engine.
    for at in 5..9 {
        let ticket = scheduler.prepare(Time(at)).id();
        scheduler.abandon(Time(at), ticket, Why::Lost);
    }
    late(&mut scheduler, 9);
    assert!(!scheduler.is_fallback());
    late(&mut scheduler, 10);
    assert!(scheduler.is_fallback());
    assert_eq!(scheduler.decide(Time(11)).source, Source::Fallback);
    // The cause of the delay may be gone, so there is one more attempt after ten minutes.
    assert_eq!(scheduler.decide(Time(600_009)).source, Source::Fallback);
    scheduler.start_journal();
    late(&mut scheduler, 600_010);
    assert!(scheduler.is_fallback(), "it had its try");
    let at = 1_200_010;
    assert_eq!(scheduler.decide(Time(at)).source, Source::Engine);
    assert!(!scheduler.is_fallback());
    let records = scheduler.drain_journal();
    let again = Scheduler::restore(records.iter().map(Vec::as_slice)).expect("it was just written");
    assert_eq!((again.digest(), again.is_fallback()), (scheduler.digest(), false));
}

#[test]
fn commits_check_the_acceptance_of_new_slots() {
    type Spoil = fn(&mut ServerSpec);
    let spoils: [(&str, Spoil); 3] = [
        ("draining", |server| server.draining = true),
        ("labels", |server| drop(server.labels.insert("zone".into(), "b".into()))),
        ("devices", |server| server.devices = vec!["gpu:v100".into(); 3]),
    ];
    for (what, spoil) in spoils {
        let server = |name: &str| ServerSpec {
            labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            ..server(name, 8, 16, &["gpu:a100"; 3])
        };
        let mut scheduler = scripted(&[], &[&[&[0]], &[&[0, 0], &[0]]]);
        set(&mut scheduler, 0, server("s0"));
        let spec = |name: &str, workers| JobSpec {
            worker: role(&[("gpu:a100", 1000)], workers, 2, workers),
            labels: server("s0").labels,
            ..ring(name, (1, 2, 1))
        };
        let grows = submit(&mut scheduler, 0, spec("grows", 1));
        scheduler.decide(Time(1));
        seen(&mut scheduler, 1, grows);
        let new = submit(&mut scheduler, 2, spec("new", 1));
        let outcome = scheduler.prepare(Time(3)).run(Budget::UNLIMITED);
        let mut other = server("s0");
        spoil(&mut other);
        set(&mut scheduler, 4, other);
        let decision = scheduler.commit(Time(5), outcome).unwrap();
        assert_eq!((decision.source, decision.dropped), (Source::Pruned, vec![grows, new]), "{what}");
        let kept = if what == "devices" { wp(0, 0) } else { wp(1, 0) };
        assert_eq!((shape(&scheduler, grows), shape(&scheduler, new)), (kept, wp(0, 0)), "{what}");
        assert_eq!(scheduler.due(), Some(Time(5)), "{what}: who was dropped is decided about again");
        scheduler.state().audit().unwrap();
    }
}

#[test]
fn a_server_that_comes_while_an_engine_works_lets_it_decide_again() {
    let mut scheduler = cluster(plain("optimus"), &[]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let outcome = scheduler.prepare(Time(1)).run(Budget::UNLIMITED);
    set(&mut scheduler, 2, server("s0", 8, 16, &["gpu"]));
    scheduler.commit(Time(3), outcome).unwrap();
    assert_eq!((shape(&scheduler, id), scheduler.due()), (wp(0, 0), Some(Time(3))), "its room wasn't known");
    scheduler.decide(Time(3));
    assert_eq!(shape(&scheduler, id), wp(1, 0));
    assert!(scheduler.due() > Some(Time(3)), "the next round");
}

#[test]
fn new_settings_supersede_open_tickets() {
    let mut scheduler = scripted(&[1], &[&[&[0]]]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let outcome = scheduler.prepare(Time(1)).run(Budget::UNLIMITED);
    scheduler.apply(Time(2), Event::Configured(Box::new(plain("drf")))).unwrap();
    assert!(scheduler.commit(Time(3), outcome).is_err(), "its memory is another engine's");
    assert_eq!(scheduler.decide(Time(4)).source, Source::Engine);
    assert_eq!(shape(&scheduler, id), wp(1, 0));
}

#[test]
fn a_journal_can_begin_while_a_ticket_is_open() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let ticket = scheduler.prepare(Time(1));
    scheduler.start_journal();
    assert!(scheduler.commit(Time(2), ticket.run(Budget::UNLIMITED)).is_err());
    scheduler.decide(Time(3));
    let records = scheduler.drain_journal();
    let restored = Scheduler::restore(records.iter().map(Vec::as_slice)).unwrap();
    assert_eq!((restored.digest(), shape(&restored, id)), (scheduler.digest(), wp(1, 0)));
}

#[test]
fn a_refusal_of_an_outdated_issue_is_ignored_and_counted() {
    let mut scheduler = scripted(&[1, 1], &[&[&[0]], &[&[1]]]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    let first = scheduler.decide(Time(1)).id;
    let second = scheduler.decide(Time(2)).id;
    let error = refused(&mut scheduler, 3, id, first).unwrap_err();
    assert!(error.to_string().contains("comes late"), "{error}");
    let job = scheduler.state().job(id).unwrap();
    assert_eq!((job.issued.late_refusals, job.issued.refusals, job.issued.blocked.is_none()), (1, 0, true));
    assert_eq!(issued_on(&scheduler, id), Some(vec![1]));
    says(&scheduler, 3, id, "1 refusal came when something else had been issued");
    refused(&mut scheduler, 4, id, second).unwrap();
    assert_eq!(scheduler.state().job(id).unwrap().issued.refusals, 1);
    assert_eq!(issued_on(&scheduler, id), None);
}

#[test]
fn a_pause_is_no_change_of_shape() {
    let mut scheduler = scripted(&[2, 2], &[&[&[0]], &[&[]], &[&[1]], &[&[1, 1]]]);
    let id = submit(&mut scheduler, 0, ring("a", (1, 2, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, id);
    scheduler.decide(Time(3));
    gone(&mut scheduler, 4, id).unwrap();
    scheduler.decide(Time(5));
    seen(&mut scheduler, 6, id);
    assert_eq!((issued_on(&scheduler, id), scheduler.state().job(id).unwrap().issued.rescales), (Some(vec![1]), 0));
    says(&scheduler, 6, id, "changed shape 0 times, 1 restart that took");
    scheduler.decide(Time(7));
    assert_eq!((issued_on(&scheduler, id), scheduler.state().job(id).unwrap().issued.rescales), (Some(vec![1, 1]), 1));
}

#[test]
fn a_refused_restart_stops_no_slots() {
    let mut scheduler = scripted(&[1, 1, 1], &[&[&[0]], &[&[1]], &[&[2]], &[&[1]]]);
    let settings = Settings { refusals: 2, ..(*scheduler.state().settings).clone() };
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, id);
    let report = |scheduler: &mut Scheduler, seq| {
        let (incarnation, slot) = (Incarnation(1), (Role::Worker, 0));
        let report = Report { seq, step: seq, ..Report::default() };
        scheduler.apply(Time(3), Event::Reported { job: id, incarnation, slot, report })
    };
    report(&mut scheduler, 1).unwrap();
    // Two restarts in succession, neither begun: the first slots still run.
    scheduler.decide(Time(3));
    let decision = scheduler.decide(Time(3)).id;
    assert_eq!((issued_on(&scheduler, id), number(&scheduler, id)), (Some(vec![2]), (3, 0)));
    scheduler.take_issues();
    refused(&mut scheduler, 3, id, decision).unwrap();
    assert_eq!((issued_on(&scheduler, id), number(&scheduler, id)), (Some(vec![0]), (1, 1)));
    let told = scheduler.take_issues();
    assert!(matches!(&told[0].verdict, Verdict::Run(slots) if slots.slots()[0].server == ServerId(0)), "{told:?}");
    assert_eq!((told[0].incarnation, told[0].revision), (Incarnation(1), Revision(1)));
    // Its program continues.
    assert!(report(&mut scheduler, 1).is_err(), "that was heard before");
    report(&mut scheduler, 2).unwrap();
    // The next attempt has a new number.
    scheduler.prepare(Time(9000));
    assert_eq!((issued_on(&scheduler, id), number(&scheduler, id)), (Some(vec![2]), (4, 0)));
    drop(settings);
}

#[test]
fn a_job_with_refused_changes_runs_on_unchanged() {
    let mut scheduler = scripted(&[1, 1], &[&[&[0]], &[&[1]]]);
    let settings = Settings { refusals: 2, ..(*scheduler.state().settings).clone() };
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, id);
    scheduler.decide(Time(3));
    for at in [4, 20_000, 60_000, 200_000, 500_000] {
        scheduler.prepare(Time(at));
        assert_eq!(issued_on(&scheduler, id), Some(vec![1]), "asked again");
        let decision = scheduler.state().decision;
        refused(&mut scheduler, at, id, decision).unwrap();
        let told = scheduler.take_issues();
        assert!(matches!(&told[0].verdict, Verdict::Run(_)), "{told:?}");
        assert_eq!((issued_on(&scheduler, id), told[0].incarnation), (Some(vec![0]), Incarnation(1)));
    }
    // After the configured number, the plan states it too, and observing the old slots doesn't end the wait.
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(job.issued.refusals, settings.refusals.max(5));
    assert_eq!(job.verdict.allocation(), job.issued.allocation.as_ref());
    seen(&mut scheduler, 500_001, id);
    assert!(scheduler.state().job(id).unwrap().issued.blocked.is_some());
    scheduler.state().audit().unwrap();
}

#[test]
fn a_jobs_end_is_issued_to_its_manager() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"])]);
    let ids = ["runs", "waits", "held"].map(|name| submit(&mut scheduler, 0, ring(name, (1, 1, 1))));
    scheduler.decide(Time(0));
    seen(&mut scheduler, 0, ids[0]);
    assert_eq!(scheduler.take_issues().len(), 3);
    let unheard = submit(&mut scheduler, 1, ring("unheard", (1, 1, 1)));
    for id in [ids[0], ids[1], ids[2], unheard] {
        scheduler.apply(Time(1), Event::JobEnded { job: id, end: End::Cancelled }).unwrap();
    }
    // Its slots are gone before the order to stop them.
    gone(&mut scheduler, 1, ids[0]).unwrap();
    let told = scheduler.take_issues();
    let stop = |id: &JobId| (*id, Verdict::Stop(Reason::Cancelled));
    let words: Vec<_> = told.into_iter().map(|issue| (issue.job, issue.verdict)).collect();
    assert_eq!(words, ids.iter().map(stop).collect::<Vec<_>>(), "nobody knew of the last");
    assert!(scheduler.take_issues().is_empty() && scheduler.all_issues().is_empty());
    assert_eq!(gone(&mut scheduler, 2, ids[1]), Err(EventError::UnknownJob(ids[1])));
}

#[test]
fn active_mode_starts_from_running_slots() {
    for mode in [Mode::Shadow, Mode::Paused] {
        let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 4])]);
        let runs = submit(&mut scheduler, 0, ring("runs", (1, 2, 1)));
        scheduler.decide(Time(0));
        seen(&mut scheduler, 0, runs);
        let starting = submit(&mut scheduler, 0, ring("starting", (1, 1, 1)));
        scheduler.decide(Time(0));
        scheduler.apply(Time(1), Event::ModeSet(mode)).unwrap();
        let [new, own] = ["new", "own"].map(|name| submit(&mut scheduler, 1, ring(name, (1, 1, 1))));
        // The manager, on its own, gave one job a second worker and started another job.
        let slot = |index, device| ObservedSlot {
            role: Role::Worker,
            index,
            server: "s0".into(),
            devices: vec![DeviceShare { device, milli: 1000 }],
        };
        for (job, incarnation, slots) in [(runs, 1, vec![slot(0, 0), slot(1, 2)]), (own, 0, vec![slot(0, 3)])] {
            let incarnation = Incarnation(incarnation);
            scheduler.apply(Time(2), Event::Observed { job, incarnation, slots, phase: Phase::Running }).unwrap();
        }
        if mode == Mode::Shadow {
            scheduler.decide(Time(3));
        }
        scheduler.take_issues();
        scheduler.apply(Time(4), Event::ModeSet(Mode::Active)).unwrap();
        assert_eq!((shape(&scheduler, runs), number(&scheduler, runs)), (wp(2, 0), (1, 1)), "{mode:?}");
        assert_eq!((shape(&scheduler, own), number(&scheduler, own)), (wp(1, 0), (0, 1)), "{mode:?}");
        let effective = |id: JobId| scheduler.state().effective(scheduler.state().job(id).unwrap());
        assert_eq!(effective(new), Verdict::Wait(Reason::NotConsidered), "{mode:?}: what shadow planned is void");
        if mode == Mode::Paused {
            assert_eq!(number(&scheduler, starting), (1, 0));
            assert!(matches!(effective(starting), Verdict::Run(_)));
        }
        assert_eq!(scheduler.due(), Some(Time(4)));
        scheduler.state().audit().unwrap();
        let decision = scheduler.decide(Time(5));
        assert_eq!(decision.source, Source::Engine, "{:?}", scheduler.last_error());
        assert_eq!(number(&scheduler, runs), (1, 1));
    }
}

#[test]
fn a_job_larger_than_the_cluster_is_refused_with_numbers() {
    let mut settings = plain("fifo");
    settings.queues.insert("small".into(), amounts(&[("gpu", 3000)]));
    settings.tenants.insert("poor".into(), amounts(&[("cpu", 4000)]));
    let zone = |spec: ServerSpec, zone: &str| ServerSpec {
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        ..spec
    };
    let servers = [zone(server("s0", 8, 16, &["gpu"; 2]), "a"), zone(server("s1", 8, 16, &["gpu"; 2]), "b")];
    let mut scheduler = cluster(settings, &servers);
    let wide = |name: &str, min| ring(name, (min, 16, min));
    for (spec, text) in [
        (wide("a", 8), "needs 8 gpu; the servers it may use have 4 in all"),
        (
            JobSpec { labels: servers[0].labels.clone(), ..wide("b", 3) },
            "needs 3 gpu; the servers it may use have 2 in all",
        ),
        (JobSpec { queue: "small".into(), ..wide("c", 4) }, "needs 4 gpu; queue small may have 3 in all"),
        (JobSpec { tenant: "poor".into(), ..job("d", (2, 2, 2), (3, 3, 3)) }, "needs 5 cpu; tenant poor may have 4"),
    ] {
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let error = scheduler.apply(Time(0), event).unwrap_err();
        assert!(matches!(&error, EventError::NeverFits(words) if words.contains(text)), "{error}");
    }
    // The job fitted at its arrival. Now no server can run it.
    let id = submit(&mut scheduler, 1, wide("e", 4));
    scheduler.apply(Time(2), Event::ServersLeft { names: vec!["s1".into()] }).unwrap();
    scheduler.decide(Time(2));
    let job = scheduler.state().job(id).unwrap();
    assert!(matches!(job.verdict.reason(), Some(Reason::Exhausted { scope: Scope::Cluster, .. })), "{:?}", job.verdict);
    says(&scheduler, 2, id, "needs 4 gpu; the servers it may use have 2 in all: as the cluster is now it can't run");
}

#[test]
fn excess_foreign_use_leaves_the_rest_unchanged() {
    let servers = [server("s0", 2, 4, &["gpu"; 1]), server("s1", 2, 4, &["gpu"; 1])];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let foreign = Event::ForeignUse { server: "s0".into(), amounts: amounts(&[("cpu", 900_000)]), devices: Vec::new() };
    scheduler.apply(Time(0), foreign).unwrap();
    let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
    scheduler.decide(Time(0));
    assert_eq!(scheduler.state().job(id).unwrap().shape().workers, 1);
}

#[test]
fn an_explanation_has_current_numbers_and_the_next_step() {
    let settings = Settings { engine: "drf".into(), ..plain("drf") };
    let mut scheduler = cluster(settings, &[server("s0", 8, 16, &["gpu"; 4])]);
    let id = submit(&mut scheduler, 0, ring("a", (4, 4, 4)));
    says(&scheduler, 0, id, "waits for the next decision");
    says(&scheduler, 0, id, "the next decision, by drf, is due now");
    let foreign = |gpus: i64| Event::ForeignUse {
        server: "s0".into(),
        amounts: amounts(&[("gpu", gpus * 1000)]),
        devices: Vec::new(),
    };
    scheduler.apply(Time(0), foreign(1)).unwrap();
    let ticket = scheduler.prepare(Time(0));
    says(&scheduler, 0, id, "drf is deciding now");
    scheduler.commit(Time(0), ticket.run(Budget::UNLIMITED)).unwrap();
    says(&scheduler, 0, id, "needs 4 gpu; the servers it may use have 3 in all");
    says(&scheduler, 240_000, id, "the next decision, by drf, is due in 6m");
    // Held, then resumed.
    scheduler.apply(Time(1), Event::JobHeld { job: id, held: true }).unwrap();
    assert!(!texts(&scheduler, 1, id).iter().any(|text| text.contains("next decision")), "it isn't about this job");
    scheduler.apply(Time(2), Event::JobHeld { job: id, held: false }).unwrap();
    says(&scheduler, 2, id, "waits for the next decision");
    scheduler.apply(Time(3), Event::SyncBegin { manager: "m0".into() }).unwrap();
    says(&scheduler, 3, id, "until a manager has told all");
    scheduler
        .apply(Time(3), Event::ServerSet { manager: "m0".into(), server: server("s0", 8, 16, &["gpu"; 4]) })
        .unwrap();
    scheduler.apply(Time(3), Event::SyncEnd { manager: "m0".into(), owns_queue: false }).unwrap();
    // The plan contains the kind of a reason. Its numbers change with the cluster.
    let other = submit(&mut scheduler, 4, ring("b", (2, 2, 2)));
    scheduler.apply(Time(4), foreign(3)).unwrap();
    scheduler.decide(Time(4));
    says(&scheduler, 4, other, "needs 2 gpu; the servers it may use have 1 in all");
    scheduler.apply(Time(5), foreign(0)).unwrap();
    says(&scheduler, 5, other, "needs 2 gpu; the cluster has 4 left of 4");
    // Paused: no statement that it runs.
    scheduler.apply(Time(6), Event::ModeSet(Mode::Paused)).unwrap();
    says(&scheduler, 6, id, "scheduling is paused; whether it starts is up to its manager");
    let explanation = scheduler.explain(Time(6), id).unwrap();
    assert!(!explanation.findings.iter().any(|finding| finding.topic == Topic::Decision));
}

#[test]
fn a_pinned_job_and_one_that_waits_learn_until_when() {
    let build = |rescales_per_hour| {
        let stability = Stability { rescales_per_hour, ..Stability::default() };
        let settings = Settings { stability, ..plain("srtf") };
        let mut scheduler = cluster(settings, &[server("s0", 4, 16, &["gpu"])]);
        let first = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
        scheduler.decide(Time(0));
        seen(&mut scheduler, 0, first);
        let second = submit(&mut scheduler, 1000, ring("b", (1, 1, 1)));
        scheduler.decide(Time(1000));
        (scheduler, first, second)
    };
    let (scheduler, first, second) = build(4);
    says(&scheduler, 20_000, first, "for another 40s: after a start, a job keeps its slots for 1m (stability.min_run)");
    says(&scheduler, 20_000, second, "a job that starts keeps its slots for at least 1m (stability.min_run)");
    let late = texts(&scheduler, 61_000, first);
    assert!(!late.iter().any(|text| text.contains("stability")), "{late:#?}");
    // Of two rules, the one that holds longer is shown.
    let (scheduler, first, _) = build(0);
    says(&scheduler, 20_000, first, "no restarts are allowed (stability.rescales_per_hour)");
}

#[test]
fn a_resync_without_servers_equals_losing_them_one_by_one() {
    let build = || {
        let servers: Vec<ServerSpec> = (0..12).map(|at| server(&format!("s{at}"), 4, 16, &["gpu"])).collect();
        let mut scheduler = cluster(plain("fifo"), &servers);
        let ids: Vec<JobId> = (0..5).map(|at| submit(&mut scheduler, 0, ring(&format!("j{at}"), (2, 2, 2)))).collect();
        scheduler.decide(Time(1));
        ids.iter().for_each(|id| seen(&mut scheduler, 1, *id));
        scheduler.take_issues();
        scheduler
    };
    let lost = |at: usize| at.is_multiple_of(3);
    let mut one_by_one = build();
    for at in (0..12).filter(|at| lost(*at)) {
        one_by_one.apply(Time(2), Event::ServersLeft { names: vec![format!("s{at}")] }).unwrap();
    }
    let mut at_once = build();
    at_once.apply(Time(2), Event::SyncBegin { manager: "m0".into() }).unwrap();
    for at in (0..12).filter(|at| !lost(*at)) {
        set(&mut at_once, 2, server(&format!("s{at}"), 4, 16, &["gpu"]));
    }
    for job in at_once.state().jobs.values().cloned().collect::<Vec<_>>() {
        // The remaining slots are still observed.
        let state = at_once.state();
        let left = job.seen.allocation.iter().flat_map(|seen| seen.slots()).filter(|slot| !lost(slot.server.index()));
        let slots = left.map(|slot| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).to_owned(),
            devices: slot.devices.to_vec(),
        });
        let (slots, incarnation) = (slots.collect(), job.issued.incarnation);
        let event = Event::Observed { job: job.id, incarnation, slots, phase: Phase::Running };
        at_once.apply(Time(2), event).unwrap();
    }
    at_once.apply(Time(2), Event::SyncEnd { manager: "m0".into(), owns_queue: false }).unwrap();
    at_once.state().audit().unwrap();
    for (one, other) in one_by_one.state().jobs.values().zip(at_once.state().jobs.values()) {
        assert_eq!(
            (&one.verdict, &one.issued.allocation, &one.seen.allocation),
            (&other.verdict, &other.issued.allocation, &other.seen.allocation)
        );
    }
    let kinds = at_once.state().jobs.values().filter_map(|job| job.verdict.reason().map(Reason::kind));
    assert!(kinds.filter(|kind| *kind == ReasonKind::ServerLost).count() >= 2);
    let (one, other) = (one_by_one.decide(Time(3)), at_once.decide(Time(3)));
    assert_eq!(one.changes, other.changes);
}

#[test]
fn the_timers_of_a_job_end_with_it() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    let limited = JobSpec { time_limit: Some(Span(60_000)), ..ring("limited", (1, 1, 1)) };
    let ids = [limited, ring("refused", (1, 1, 1))].map(|spec| submit(&mut scheduler, 0, spec));
    let decision = scheduler.decide(Time(0)).id;
    seen(&mut scheduler, 0, ids[0]);
    refused(&mut scheduler, 0, ids[1], decision).unwrap();
    refused(&mut scheduler, 1, ids[1], decision).unwrap();
    assert_eq!(scheduler.due(), Some(Time(10_001)), "the second refusal's wait stands for both");
    for id in ids {
        scheduler.apply(Time(2), Event::JobEnded { job: id, end: End::Completed }).unwrap();
    }
    assert_eq!(scheduler.due(), None);
    scheduler.state().audit().unwrap();
}
