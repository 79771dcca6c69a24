//! Bounds of all external input: on time, memory and stack, and on its effects on others.

use std::{collections::BTreeMap, fmt::Write as _, thread};

use crate::common::build::{
    amounts, cluster, job, plain, report, ring, role, running, seen, server, set, shape, submit, wp,
};
use trainmaster_core::{
    Event, EventError, Incarnation, JobId, JobSpec, Report, Scheduler, ServerSpec, Settings, Span, Time,
    engines::REGISTRY,
    explain::Topic,
    job::{Dataset, Phase, ProfiledSpeed},
    journal::Record,
    resources::ResourceTypes,
};

/// Stack of a thread in a cluster manager.
const SMALL: usize = 256 << 10;

/// Runs a function on a small stack. An overflow aborts the test program.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(SMALL).spawn_scoped(scope, work).expect("there are threads");
        thread.join().expect("it doesn't panic")
    })
}

#[test]
fn no_text_overflows_a_small_stack() {
    let dots = "a.".repeat(200_000);
    let deep_value = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_table = format!("{}a=1{}", "{a=".repeat(100_000), "}".repeat(100_000));
    let long_keys = format!("{}1{}", "{a.a.a.a.a.a.a.a=".repeat(80), "}".repeat(80));
    let head = "name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n";
    on_small_stack(|| {
        for text in [&format!("{dots}a = 1"), &format!("[{dots}a]"), &format!("x = {deep_value}"), &deep_table] {
            assert!(JobSpec::from_toml(&format!("{head}{text}")).is_err());
            assert!(Settings::from_toml(text).is_err());
            assert!(trainmaster_core::Policy::from_toml(text).is_err());
        }
        for parts in [500, 5000, 50_000, 500_000] {
            let error = JobSpec::from_pairs([("a.".repeat(parts).as_str(), "1")]).unwrap_err().to_string();
            assert!(error.contains("must have at most 256") && error.len() < 300, "{error}");
        }
        let parts = "a.".repeat(100);
        let error = JobSpec::from_pairs([(parts.as_str(), "1")]).unwrap_err().to_string();
        assert!(error.contains("101 parts must have at most 8"), "{error}");
        for value in [&deep_value[..8000], &deep_table[..8000], &long_keys, &dots[..8000]] {
            for key in ["utility", "worker", "partitions", "constraints.labels.a", "profile"] {
                let pairs = [("name", "a"), ("mode", "allreduce"), ("worker.cpu", "1"), (key, value)];
                let read = JobSpec::from_pairs(pairs);
                assert!(read.is_err(), "{key} = {value}");
            }
        }
        let many: Vec<(String, &str)> = (0..100_000).map(|at| (format!("worker.resources.r{at}"), "1")).collect();
        let error = JobSpec::from_pairs(many.iter().map(|(key, value)| (key.as_str(), *value))).unwrap_err();
        assert!(error.to_string().contains("100000 keys must be at most 256"), "{error}");
    });
}

#[test]
fn a_job_is_small_or_refused_by_name() {
    let with = |change: &dyn Fn(&mut JobSpec)| {
        let mut spec = JobSpec::minimal("a");
        change(&mut spec);
        spec.validate().map_err(|error| error.to_string())
    };
    let labels = |count: usize, text: &str| {
        (0..count).map(|at| (format!("{text}{at}"), text.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let resources = |count: usize| (0..count).map(|at| (format!("r{at}"), 1)).collect::<BTreeMap<_, _>>();
    let speed = ProfiledSpeed { servers: 1, workers: 1, speed: 1.0 };
    let upload = |text: &str| {
        let one = Dataset { chunks: 1, batches_per_chunk: 1, epochs: 1, ..Dataset::default() };
        Some(Dataset { upload: text.into(), ..one })
    };
    assert_eq!(with(&|spec| spec.labels = labels(64, "l")), Ok(()));
    for (problem, refused) in [
        ("64", with(&|spec| spec.labels = labels(65, "l"))),
        ("128 bytes", with(&|spec| spec.labels = labels(1, &"l".repeat(200)))),
        ("\\u{1b}", with(&|spec| spec.labels = [("a".to_owned(), "\u{1b}[2J".to_owned())].into())),
        ("16", with(&|spec| spec.worker.demand = resources(17))),
        ("1 to 64 bytes", with(&|spec| spec.worker.demand = [("r".repeat(65), 1)].into())),
        ("1 to 64 bytes", with(&|spec| spec.worker.demand = [("a b".to_owned(), 1)].into())),
        ("256", with(&|spec| spec.profile = vec![speed; 257])),
        ("dataset.upload", with(&|spec| spec.dataset = upload(&"u".repeat(129)))),
        ("dataset.upload", with(&|spec| spec.dataset = upload("a\nb"))),
        ("NUL", with(&|spec| spec.worker.command = "a\0b".into())),
        ("128 letters", with(&|spec| spec.name = "n".repeat(100_000))),
    ] {
        let refused = refused.unwrap_err();
        assert!(refused.contains(problem) && refused.len() < 1000, "{problem}: {refused}");
    }
    let mut file = "name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n".to_owned();
    for at in 0..2000 {
        writeln!(file, "# {at} {}", "x".repeat(60)).unwrap();
    }
    assert!(JobSpec::from_toml(&file).unwrap_err().to_string().contains("must be at most 65536"));
}

#[test]
fn reports_are_bounded_by_what_their_job_has() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 64, 64, &["gpu"; 8])]);
    let with_chunks = |chunks| {
        Some(Dataset { chunks, batches_per_chunk: 1, epochs: 1, batch_time: Some(Span(1)), ..Dataset::default() })
    };
    let id = running(&mut scheduler, 0, JobSpec { dataset: with_chunks(100), ..job("a", (1, 4, 2), (1, 1, 1)) });
    let times = |from: u32, count: u32| (from..from + count).map(|worker| (worker, 1.0)).collect::<Vec<_>>();
    let mut seq = 0;
    let mut send = |scheduler: &mut Scheduler, slot_times: Vec<(u32, f64)>, chunks: Vec<u32>| {
        seq += 1;
        report(scheduler, 1, id, Report { seq, slot_times, chunks, ..Report::default() })
    };
    send(&mut scheduler, times(0, 4), vec![0, 99]).unwrap();
    let before = bytes(&mut scheduler);
    // New workers in each report must not accumulate.
    for round in 1..200 {
        let refused = send(&mut scheduler, times(round * 1000, 1000), Vec::new()).unwrap_err().to_string();
        assert!(refused.contains("workers that the job can't have"), "{refused}");
    }
    assert!(send(&mut scheduler, vec![(0, 1.0); 5], Vec::new()).is_err(), "more times than workers");
    assert!(send(&mut scheduler, Vec::new(), vec![0; 101]).is_err(), "more chunks than there are");
    assert!(send(&mut scheduler, Vec::new(), vec![100]).is_err(), "a chunk that isn't there");
    assert!(bytes(&mut scheduler) < before + 100, "only a count has grown");
    // Engines don't dispatch this number of chunks separately, so they are counted, not listed.
    let many =
        running(&mut scheduler, 2, JobSpec { dataset: with_chunks(4_000_000_000), ..job("b", (1, 1, 1), (1, 1, 1)) });
    report(&mut scheduler, 3, many, Report { seq: 1, chunks: (0..10_000).collect(), ..Report::default() }).unwrap();
    assert!(scheduler.state().job(many).unwrap().learnt.chunks.is_empty());
    let all = Report { seq: 2, chunks: (0..10_001).collect(), ..Report::default() };
    assert!(report(&mut scheduler, 3, many, all).is_err());
}

/// Size of a snapshot of the whole state.
fn bytes(scheduler: &mut Scheduler) -> usize {
    scheduler.start_journal();
    scheduler.drain_journal().concat().len()
}

#[test]
fn refused_events_take_little_journal_space_and_replay_equally() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    scheduler.start_journal();
    let id = running(&mut scheduler, 0, job("a", (1, 4, 2), (1, 1, 1)));
    let mut records = scheduler.drain_journal();
    for seq in 0..50 {
        let slot_times = (0..100_000).map(|worker| (worker, 1.0)).collect();
        report(&mut scheduler, 1 + seq as i64, id, Report { seq, slot_times, ..Report::default() }).unwrap_err();
        let fat = JobSpec { worker: role(&[("gpu", 100_000)], 1, 1, 1), ..ring(&format!("fat{seq}"), (1, 1, 1)) };
        let fat = JobSpec {
            worker: trainmaster_core::job::RoleSpec { command: "x".repeat(4000), ..fat.worker.clone() },
            ..fat
        };
        let event = Event::JobSubmitted { spec: Box::new(fat), external: None, token_hash: None };
        assert!(matches!(scheduler.apply(Time(1 + seq as i64), event), Err(EventError::NeverFits(_))));
    }
    let refused = scheduler.drain_journal();
    assert!(refused.iter().map(Vec::len).sum::<usize>() < 100 * 64, "{} bytes", refused.concat().len());
    records.extend(refused);
    scheduler.decide(Time(60));
    records.extend(scheduler.drain_journal());
    let restored = Scheduler::restore(records.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(restored.digest(), scheduler.digest());
    assert_eq!(restored.state().job(id).unwrap().learnt.progress.ignored, 50);
    assert!(records.iter().all(|record| Record::decode(record).is_ok()));
}

#[test]
fn invented_resources_do_not_block_servers() {
    let invented = |name: &str, from: usize| {
        let demand: Vec<(String, i64)> = (from..from + 16).map(|at| (format!("invented{at}"), 1)).collect();
        let mut spec = ring(name, (1, 1, 1));
        spec.worker.demand = demand.into_iter().collect();
        spec
    };
    let real = || server("s0", 8, 16, &["gpu:a100"; 4]);
    // There is no server, so nothing is refused.
    let mut scheduler = cluster(plain("fifo"), &[]);
    scheduler.start_journal();
    let mut refused = 0;
    for at in 0..20 {
        let event = |spec: JobSpec| Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let submitted = scheduler.apply(Time(0), event(invented(&format!("j{at}"), at * 16)));
        refused += u32::from(matches!(submitted, Err(EventError::ResourceTypes { .. })));
    }
    assert!(refused > 0, "jobs can't bring any number of them");
    // The same while servers are present, and after they left.
    set(&mut scheduler, 1, real());
    let mine: Vec<JobId> = scheduler.state().jobs.keys().copied().collect();
    for job in mine {
        scheduler.apply(Time(2), Event::JobEnded { job, end: trainmaster_core::End::Cancelled }).unwrap();
    }
    for at in 0..400 {
        let id = submit(&mut scheduler, 3, invented_fits(at));
        scheduler.apply(Time(3), Event::JobEnded { job: id, end: trainmaster_core::End::Cancelled }).unwrap();
        let kind = format!("gpu:kind{at}");
        set(&mut scheduler, 3, server(&format!("t{at}"), 8, 16, &[kind.as_str()]));
        scheduler.apply(Time(3), Event::ServersLeft { names: vec![format!("t{at}")] }).unwrap();
        assert!(scheduler.state().resources.used() <= ResourceTypes::MOST);
    }
    scheduler.state().audit().unwrap();
    // Used types keep their numbers, also after a restart.
    assert_eq!(scheduler.state().capacity[scheduler.state().resources.id("gpu:a100").unwrap()], 4000);
    let records = scheduler.drain_journal();
    let restored = Scheduler::restore(records.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(*restored.state().resources, *scheduler.state().resources);
    let a100 = JobSpec { worker: role(&[("gpu:a100", 1000)], 1, 4, 4), ..ring("real", (1, 4, 4)) };
    let id = submit(&mut scheduler, 4, a100);
    scheduler.decide(Time(4));
    assert_eq!(shape(&scheduler, id), wp(4, 0));
}

/// A job that some server could run.
fn invented_fits(at: u64) -> JobSpec {
    JobSpec { model: format!("m{at}"), ..ring(&format!("k{at}"), (1, 1, 1)) }
}

#[test]
fn as_many_types_as_servers_have_are_never_forgotten() {
    let kinds: Vec<String> = (0..ResourceTypes::MOST - 6).map(|at| format!("kind{at}")).collect();
    let all: Vec<(&str, i64)> = kinds.iter().map(|kind| (kind.as_str(), 5000)).collect();
    let wide = ServerSpec { capacity: amounts(&all), ..server("wide", 8, 16, &[]) };
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu:a100"])]);
    set(&mut scheduler, 0, wide);
    let odd = ServerSpec { capacity: amounts(&[("odd", 1)]), ..server("odd", 8, 16, &[]) };
    let refused = scheduler.apply(Time(1), Event::ServerSet { manager: "m0".into(), server: odd }).unwrap_err();
    assert!(refused.to_string().contains("256 types"), "{refused}");
    assert_eq!(kinds.iter().filter(|kind| scheduler.state().resources.id(kind).is_some()).count(), kinds.len());
}

#[test]
fn repeated_resyncs_do_not_block_other_managers() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    let begins = |scheduler: &mut Scheduler, at: i64, manager: &str| {
        scheduler.apply(Time(at), Event::SyncBegin { manager: manager.into() }).unwrap();
    };
    begins(&mut scheduler, 1, "a");
    submit(&mut scheduler, 1, ring("j", (1, 1, 1)));
    assert_eq!(scheduler.due(), None, "everything isn't told yet");
    // The managers' resyncs overlap repeatedly.
    for at in 1..=11 {
        let (one, other) = if at % 2 == 0 { ("a", "b") } else { ("b", "a") };
        begins(&mut scheduler, at * 1000, one);
        let end = Event::SyncEnd { manager: other.into(), owns_queue: true };
        scheduler.apply(Time(at * 1000), end).unwrap();
    }
    assert!(scheduler.due().is_some(), "it is no reason to wait any longer");
}

#[test]
fn a_job_submitted_during_a_resync_stays() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    scheduler.apply(Time(1), Event::SyncBegin { manager: "m".into() }).unwrap();
    let external = Some(trainmaster_core::job::ExternalId { cluster: "m".into(), native: "x".into() });
    let spec = Box::new(ring("j", (1, 1, 1)));
    scheduler.apply(Time(1), Event::JobSubmitted { spec, external, token_hash: None }).unwrap();
    scheduler.apply(Time(2), Event::SyncEnd { manager: "m".into(), owns_queue: true }).unwrap();
    assert!(scheduler.state().find_job("j").is_some());
    // The next resync closes one from an earlier term.
    scheduler.apply(Time(3), Event::SyncBegin { manager: "m".into() }).unwrap();
    scheduler.apply(Time(4), Event::TermBegan(trainmaster_core::Term(9))).unwrap();
    assert!(!scheduler.state().is_syncing());
}

#[test]
fn renamed_servers_are_forgotten_but_not_those_of_other_managers() {
    const MANY: usize = 3000;
    let mut scheduler = cluster(plain("fifo"), &[server("theirs", 8, 16, &["gpu"; 2])]);
    scheduler.apply(Time(0), Event::ServersLeft { names: vec!["theirs".into()] }).unwrap();
    let name = |round: usize, at: usize| format!("server-{round}-{at}");
    for round in 0..6 {
        for at in 0..MANY {
            let server = server(&name(round, at), 8, 16, &["gpu"]);
            scheduler.apply(Time(1), Event::ServerSet { manager: "mallory".into(), server }).unwrap();
        }
        if round > 0 {
            let names = (0..MANY).map(|at| name(round - 1, at)).collect();
            scheduler.apply(Time(1), Event::ServersLeft { names }).unwrap();
        }
    }
    let state = scheduler.state();
    assert!(state.servers.len() < 2 * MANY + 1100, "{} are remembered", state.servers.len());
    assert!(state.find_server(&name(0, 0)).is_none() && state.find_server(&name(5, 0)).is_some());
    assert!(state.find_server("theirs").is_some(), "it is another manager's");
    state.audit().unwrap();
}

#[test]
fn departed_servers_are_forgotten_unless_in_use() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2]), server("lost", 8, 16, &["gpu"; 4])]);
    let id = running(&mut scheduler, 0, ring("a", (3, 3, 3)));
    scheduler.apply(Time(1), Event::ServersLeft { names: vec!["lost".into()] }).unwrap();
    let why = |scheduler: &Scheduler| {
        let reason = scheduler.state().job(id).unwrap().verdict.reason().cloned();
        reason.map(|reason| reason.describe(scheduler.state())).unwrap_or_default()
    };
    assert!(why(&scheduler).contains("lost"), "{}", why(&scheduler));
    scheduler.apply(Time(1), Event::ModeSet(trainmaster_core::Mode::Paused)).unwrap();
    for at in 0..20_000 {
        let name = format!("node-{at}");
        set(&mut scheduler, 2, server(&name, 8, 16, &["gpu"]));
        scheduler.apply(Time(2), Event::ServersLeft { names: vec![name] }).unwrap();
    }
    let state = scheduler.state();
    assert!(state.servers.len() < 1100, "{} are remembered", state.servers.len());
    assert!(state.find_server("node-19999").is_some() && state.find_server("node-3").is_none());
    assert!(why(&scheduler).contains("lost"), "{}", why(&scheduler));
    state.audit().unwrap();
    // The server returns under its old name and number.
    set(&mut scheduler, 3, server("lost", 8, 16, &["gpu"; 4]));
    scheduler.apply(Time(3), Event::ModeSet(trainmaster_core::Mode::Active)).unwrap();
    scheduler.decide(Time(3));
    assert_eq!(shape(&scheduler, id), wp(3, 0));
    // The maximum number of servers is checked too.
    let strange = [
        ServerSpec { name: "a\u{1b}b".into(), ..server("x", 1, 1, &[]) },
        ServerSpec { name: "n".repeat(300), ..server("x", 1, 1, &[]) },
        ServerSpec { capacity: amounts(&[("", 1)]), ..server("x", 1, 1, &[]) },
        ServerSpec { capacity: amounts(&[(&"c".repeat(100), 1)]), ..server("x", 1, 1, &[]) },
        ServerSpec { labels: [("a".to_owned(), "\u{202e}".to_owned())].into(), ..server("x", 1, 1, &[]) },
    ];
    for server in strange {
        let error =
            scheduler.apply(Time(4), Event::ServerSet { manager: "m0".into(), server }).unwrap_err().to_string();
        assert!(!error.chars().any(char::is_control) && error.len() < 500, "{error}");
    }
}

#[test]
fn unused_manager_names_are_forgotten() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 8, 16, &["gpu"; 2])]);
    let mut before = 0;
    for at in 0..2000 {
        let manager = format!("manager{at}");
        scheduler.apply(Time(1), Event::SyncBegin { manager: manager.clone() }).unwrap();
        scheduler.apply(Time(1), Event::SyncEnd { manager, owns_queue: true }).unwrap();
        if at == 200 {
            before = bytes(&mut scheduler);
        }
    }
    assert!(bytes(&mut scheduler) < before + 2000);
    assert_eq!(scheduler.state().present_servers().count(), 1, "nobody else's servers go");
}

#[test]
fn reports_do_not_affect_fits_of_other_tenants() {
    let learnt = |settings: Settings| {
        let mut scheduler = cluster(settings, &[server("s0", 64, 64, &["gpu"; 8])]);
        let of = |name: &str, tenant: &str| JobSpec {
            tenant: tenant.into(),
            model: "resnet50".into(),
            ..ring(name, (1, 4, 1))
        };
        let liar = running(&mut scheduler, 0, of("liar", "mallory"));
        for seq in 1..=75 {
            let lie = Report { seq, step: seq, steps: 1000, duration: Span(1), workers: 1, ..Report::default() };
            report(&mut scheduler, 1, liar, lie).unwrap();
        }
        let honest = submit(&mut scheduler, 2, of("honest", "alice"));
        let sibling = submit(&mut scheduler, 2, of("sibling", "mallory"));
        scheduler.decide(Time(3));
        let knows = |id: JobId| scheduler.state().job(id).unwrap().learnt.fits.speed.is_some();
        (knows(honest), knows(sibling))
    };
    assert_eq!(learnt(plain("fifo")), (false, true));
    assert_eq!(learnt(Settings { share_models: true, ..plain("fifo") }), (true, true));
}

#[test]
fn no_tenant_evicts_fits_of_others() {
    let mut scheduler = cluster(plain("fifo"), &[server("s0", 64, 64, &["gpu"; 8])]);
    let teach = |scheduler: &mut Scheduler, tenant: &str, model: String| {
        let id = running(scheduler, 0, JobSpec { tenant: tenant.into(), model, ..ring("j", (1, 1, 1)) });
        let said = Report { seq: 1, step: 1, steps: 1, duration: Span(1000), workers: 1, ..Report::default() };
        report(scheduler, 0, id, said).unwrap();
        scheduler.apply(Time(0), Event::JobEnded { job: id, end: trainmaster_core::End::Completed }).unwrap();
        let gone = Event::Observed { job: id, incarnation: Incarnation(1), slots: Vec::new(), phase: Phase::Stopped };
        scheduler.apply(Time(0), gone).unwrap();
    };
    teach(&mut scheduler, "alice", "resnet50".into());
    for at in 0..600 {
        teach(&mut scheduler, "mallory", format!("m{at}"));
    }
    assert!(scheduler.state().models.contains_key("alice/resnet50:allreduce"));
    assert_eq!(scheduler.state().models.len(), 256);
}

#[test]
fn a_false_profile_is_dropped_after_three_reports() {
    let mut scheduler = cluster(plain("optimus-paper"), &[server("s0", 128, 512, &[])]);
    let cores = |name: &str, profile: Vec<ProfiledSpeed>| JobSpec {
        worker: role(&[("cpu", 1000)], 1, 100, 1),
        server: Some(role(&[("cpu", 1000)], 1, 20, 1)),
        profile,
        ..JobSpec::minimal(name)
    };
    // A profile in which a hundred workers are a hundred times as fast as one.
    let lie = [1, 4, 16, 64, 100].map(|workers| ProfiledSpeed {
        servers: workers.min(20),
        workers,
        speed: f64::from(workers),
    });
    let honest = submit(&mut scheduler, 0, cores("honest", Vec::new()));
    let liar = submit(&mut scheduler, 0, cores("liar", lie.to_vec()));
    scheduler.decide(Time(0));
    let taken = shape(&scheduler, liar);
    assert!(taken.workers + taken.servers > 64, "{taken}");
    for id in [honest, liar] {
        seen(&mut scheduler, 1, id);
    }
    for seq in 1..=3 {
        for id in [honest, liar] {
            let (at, has) = (1 + seq as i64, shape(&scheduler, id));
            // In fact, additional workers gain almost nothing.
            let steps = Report {
                seq,
                step: 1 + seq,
                steps: 10,
                duration: Span(10_000),
                workers: has.workers,
                servers: has.servers,
                ..Report::default()
            };
            report(&mut scheduler, at, id, steps).unwrap();
        }
    }
    let speeds = &scheduler.state().job(liar).unwrap().learnt.speeds;
    let contradiction = speeds.contradiction().expect("it is noticed");
    assert!(contradiction.dropped, "{contradiction:?}");
    assert_eq!(speeds.len(), 1, "what was only profiled is gone");
    let found = scheduler.explain(Time(10), liar).unwrap().findings;
    let said = found.iter().find(|finding| finding.topic == Topic::Speed && finding.text.contains("profile"));
    assert!(said.unwrap().text.contains("isn't believed any more"), "{found:?}");
    scheduler.decide(Time(700_000));
    let left = shape(&scheduler, liar);
    assert!(left.workers + left.servers < (taken.workers + taken.servers) / 2, "{taken}, then {left}");
}

#[test]
fn a_true_profile_is_kept() {
    let mut history = trainmaster_core::fit::SpeedHistory::default();
    let sample = |servers, workers, speed| trainmaster_core::fit::SpeedSample::new(servers, workers, speed);
    history.profile(&sample(1, 1, 1.0));
    history.profile(&sample(4, 8, 5.0));
    // A cold start, then noise, then a shape without a profile.
    for (servers, workers, speed) in [(1, 1, 0.5), (1, 1, 0.6), (1, 1, 0.9), (4, 8, 6.0), (2, 4, 3.0), (2, 2, 1.7)] {
        history.report(&sample(servers, workers, speed), true);
    }
    assert_eq!((history.contradiction(), history.len()), (None, 4));
    for _ in 0..2 {
        history.report(&sample(4, 8, 1.0), true);
        assert!(history.contradiction().is_some_and(|at| !at.dropped && at.profiled == 5.0));
    }
    history.report(&sample(4, 8, 4.9), true);
    assert_eq!(history.contradiction(), None, "it was only slow for a while");
    // With an execution plan for each number of workers, only the number itself can contradict.
    history.report(&sample(8, 16, 80.0), false);
    assert_eq!(history.contradiction(), None);
    history.report(&sample(4, 8, 1.0), false);
    assert!(history.contradiction().is_some_and(|at| at.profiled == 5.0));
}

/// Every engine accepts a plan of chunks that another engine made.
#[test]
fn every_engine_accepts_a_plan_of_chunks() {
    let place = |name: &str, labels: &[(&str, &str)]| ServerSpec {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..server(name, 64, 64, &["gpu", "gpu"])
    };
    let mut scheduler = cluster(plain("edge"), &[place("a", &[]), place("b", &[("zone", "cloud")])]);
    let chunks = |name: &str, chunks: u32, seconds: i64| JobSpec {
        worker: role(&[("gpu", 1000), ("cpu", 1000)], 1, 100, 1),
        server: Some(role(&[("cpu", 1000)], 1, 1, 1)),
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: 1,
            epochs: 1,
            batch_time: Some(Span::seconds(seconds)),
            ..Dataset::default()
        }),
        ..JobSpec::minimal(name)
    };
    for (name, count, seconds) in [("long", 12, 10_000), ("short", 4, 10), ("other", 6, 100)] {
        submit(&mut scheduler, 0, chunks(name, count, seconds));
        scheduler.decide(Time(0));
        let all: Vec<JobId> = scheduler.state().jobs.keys().copied().collect();
        all.into_iter().for_each(|id| seen(&mut scheduler, 0, id));
    }
    let idle = scheduler
        .state()
        .jobs
        .values()
        .filter_map(|job| job.verdict.allocation())
        .any(|planned| planned.slots().iter().any(|slot| !planned.is_busy(slot)));
    assert!(idle, "some slots wait for their turn");
    for entry in REGISTRY {
        let outcome = scheduler.dry_ticket(Some(entry.name)).unwrap().run(trainmaster_core::Budget::UNLIMITED);
        assert!(outcome.error().is_none(), "{}: {}", entry.name, outcome.error().unwrap());
        scheduler.start_journal();
        let records = scheduler.drain_journal();
        let mut other = Scheduler::restore(records.iter().map(Vec::as_slice)).unwrap();
        other.apply(Time(1), Event::Configured(Box::new(plain(entry.name)))).unwrap();
        let decision = other.decide(Time(1));
        assert_ne!(decision.source, trainmaster_core::Source::Kept, "{}: {:?}", entry.name, other.last_error());
    }
}
