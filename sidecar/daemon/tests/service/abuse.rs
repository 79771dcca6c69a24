//! Excessive and invalid calls are refused, and other callers are served.

use std::{collections::BTreeMap, fs, future::poll_fn, sync::Arc, time::Duration};

use axum::http;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use tokio::{task::JoinSet, time::sleep};
use tonic::{Code, codegen::Service as _, transport::Endpoint};
use trainmaster_core::{Scheduler, Settings};
use trainmaster_daemon::{Daemon, read_journal};
use trainmaster_proto::v1::{self, SchedulingMode, observation::Kind};

use super::support::{Clients, FakeManager, config, observation, servers, sign, spec, until};

#[tokio::test(flavor = "multi_thread")]
async fn watchers_that_never_read_are_counted_and_block_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.limits.lists = 32;
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    let reader = clients.token("reader", v1::TokenRole::Read, "").await;
    let readers = Clients::at(daemon.url(), Some(&reader)).await;
    let watch = || async {
        readers.jobs.clone().watch(v1::ListRequest { all: true, specs: false, ..v1::ListRequest::default() }).await
    };
    let mut unread = Vec::new();
    let refused = loop {
        match watch().await {
            Ok(stream) => unread.push(stream),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(unread.len(), 2, "a sixteenth of all");
    let bearer = format!("authorization: Bearer {reader}\r\n");
    assert!(super::net::get_with(&daemon, "/jobs", &bearer).await.starts_with("HTTP/1.1 503"));
    // Other callers keep access, in particular those who can end the attack.
    assert!(super::net::get(&daemon, "/jobs").await.starts_with("HTTP/1.1 200"));
    let other = clients.token("other", v1::TokenRole::Submit, "default").await;
    let other = Clients::at(daemon.url(), Some(&other)).await;
    let job = other.submit(&spec("one")).await.unwrap().job;
    assert_eq!(other.list().await.jobs.len(), 1);
    manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    drop(unread);
    until("room for a list", || async { watch().await.ok() }).await;
    assert_eq!(clients.job("one").await.unwrap().job, job);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_logs_has_few_positions_with_short_names() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    clients.submit(&spec("one")).await.unwrap();
    let ask = |after: Vec<String>, tail| {
        let after = after.into_iter().map(|log| (log, u64::MAX)).collect();
        let request = v1::LogsRequest { job: "one".into(), follow: true, tail, after };
        let mut jobs = clients.jobs.clone();
        async move { jobs.logs(request).await.map(drop).unwrap_err() }
    };
    let many = (0..65).map(|at| format!("1-worker-{at}")).collect();
    for after in [many, vec!["x".repeat(65)]] {
        let status = ask(after, None).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().len() < 200 && status.message().starts_with("after: "), "{status}");
    }
    // Whatever fills more than a call of this service may have is refused before it is decoded.
    let status = ask((0..20_000).map(|at| format!("{at}-worker-0")).collect(), None).await;
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    // No adapter here keeps logs.
    let status = ask((0..64).map(|at| format!("1-worker-{at}")).collect(), Some(u32::MAX)).await;
    assert_eq!((status.code(), status.message().contains("aren't here")), (Code::FailedPrecondition, true));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_counts_until_its_last_byte_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.limits.lists = 16;
    let daemon = Daemon::start(config).await.unwrap();
    let reader = Clients::of(&daemon).await.token("reader", v1::TokenRole::Read, "").await;
    // With such a window, HTTP/2 sends one byte of each answer and keeps the rest.
    let endpoint = Endpoint::from_shared(daemon.url().to_owned()).unwrap();
    let channel = endpoint.initial_stream_window_size(1).connect().await.unwrap();
    let page = || {
        let request = http::Request::get("/jobs").header("authorization", format!("Bearer {reader}"));
        let mut channel = channel.clone();
        async move {
            poll_fn(|context| channel.poll_ready(context)).await.unwrap();
            channel.call(request.body(tonic::body::Body::empty()).unwrap()).await.unwrap()
        }
    };
    let unread = page().await;
    assert_eq!(unread.status(), 200);
    // The daemon has passed on all of it.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(page().await.status(), 503, "a sixteenth of all lists is one");
    let text = axum::body::to_bytes(axum::body::Body::new(unread.into_body()), 1 << 20).await.unwrap();
    assert!(text.starts_with(b"{") && text.len() > 10, "{text:?}");
    until("room for a list", || async { (page().await.status() == 200).then_some(()) }).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_too_big_are_refused_before_they_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let mut big = spec("big");
    big.labels.insert("x".into(), "y".repeat(2 << 20));
    let refused = clients.submit(&big).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    // Small on the wire, and large in memory.
    let empty = vec![v1::SpeedSample::default(); 100_000];
    let job = v1::Job { profile: empty, ..trainmaster_proto::job_from_spec(&spec("wide")) };
    let refused = clients.jobs.clone().submit(v1::SubmitRequest { job: Some(job), external: None }).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert!(refused.message().contains("decoded"), "{refused:?}");

    let job = clients.submit(&spec("small")).await.unwrap();
    let report = |times: usize| {
        let progress = vec![v1::Progress { slot_times: vec![v1::SlotTime::default(); times], ..Default::default() }];
        v1::ReportRequest { job: "small".into(), progress, ..Default::default() }
    };
    let send = |times: usize, token: &str| {
        let (mut feed, request) = (clients.feed.clone(), sign(report(times), token));
        async move { feed.report(request).await }
    };
    // Messages without a job's token aren't read.
    assert_eq!(send(100, "no-token-of-any-job").await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(send(700_000, "no-token-of-any-job").await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(send(700_000, &job.token).await.unwrap_err().code(), Code::OutOfRange);
    // A report that fits but has more workers than the job is ignored with a reason.
    let reply = send(30_000, &job.token).await.unwrap().into_inner();
    assert!(!reply.accepted && reply.reason == "it has times of workers that the job can't have", "{}", reply.reason);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_are_refused_and_not_repeated_at_length() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let long = "x".repeat(3 << 20);
    let odd = ["", "7", "..", "-rf", "--help", "a/b", "a b", "a\nb", "a\0b", "ü", "\u{202e}evil", "-\u{1b}[31m"];
    for name in odd.into_iter().chain([&long[..129]]) {
        let mut odd = spec("odd");
        name.clone_into(&mut odd.name);
        assert_eq!(clients.submit(&odd).await.unwrap_err().code(), Code::InvalidArgument, "{name:?}");
    }
    for name in ["con", "NaN", "0x7"] {
        clients.submit(&spec(name)).await.unwrap();
    }
    let token = clients.submit(&spec("own")).await.unwrap().token;
    for name in ["nobody", "18446744073709551616", "\u{1b}]0;", &long] {
        let missing = clients.cancel(name).await.unwrap_err();
        let code = if name.len() > 1000 { Code::OutOfRange } else { Code::NotFound };
        assert_eq!(missing.code(), code);
        assert!(missing.message().len() < 300 && !missing.message().contains('\u{1b}'), "{}", missing.message());
        let explained = clients.jobs.clone().explain(v1::ExplainRequest { job: name.into() }).await;
        assert_eq!(explained.unwrap_err().code(), code);
        let watched = v1::WatchRequest { job: name.into(), ..v1::WatchRequest::default() };
        let watched = clients.feed.clone().watch(sign(watched, &token)).await.unwrap_err();
        assert!(watched.message().len() < 300 && !watched.message().contains('\u{1b}'), "{}", watched.message());
        assert_eq!(watched.code(), code, "{}", watched.message());
    }
    for name in ["", "two\nlines", &long[..129]] {
        let (mut client, first) = (clients.manager.clone(), observation(name, Kind::Snapshot(v1::Snapshot::default())));
        let stream = tokio_stream::once(first);
        let refused = client.attach(stream).await.unwrap().into_inner().message().await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().len() < 300, "{}", refused.message());
    }
    assert_eq!(clients.list().await.jobs.len(), 4);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_beyond_their_number_are_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let mut attached = Vec::new();
    for at in 0..64 {
        attached.push(FakeManager::attach(&clients, &format!("m{at}"), Vec::new()).await);
    }
    until("all of them", || async { (clients.status().await.managers.len() == 64).then_some(()) }).await;
    let more = FakeManager::attach(&clients, "more", Vec::new()).await;
    let ended = more.until("its end", |world| world.ended.clone()).await;
    assert_eq!(ended.code(), Code::ResourceExhausted);
    // A known manager may attach again, and one that leaves makes room.
    let again = FakeManager::attach(&clients, "m0", Vec::new()).await;
    again.until("its plan", |world| (!world.heard.is_empty()).then_some(())).await;
    attached.pop();
    until("a free place", || async { (clients.status().await.managers.len() == 63).then_some(()) }).await;
    let more = FakeManager::attach(&clients, "more", Vec::new()).await;
    more.until("its plan", |world| (!world.heard.is_empty()).then_some(())).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_jobs_are_taken_listed_and_measured() {
    const JOBS: usize = 4000;
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.settings = Settings::from_toml("engine = \"fifo\"").unwrap();
    config.journal.snapshot_records = 3 * JOBS;
    let daemon = Daemon::start(config.clone()).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let mut tasks = JoinSet::new();
    for part in 0..16 {
        let clients = clients.clone();
        tasks.spawn(async move {
            for at in (part..JOBS).step_by(16) {
                clients.submit(&spec(&format!("job{at}"))).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let list = clients.jobs.clone().max_decoding_message_size(64 << 20).list(v1::ListRequest::default()).await;
    assert_eq!(list.unwrap().into_inner().jobs.len(), JOBS);
    for _ in 0..20 {
        let metrics = super::net::get(&daemon, "/metrics").await;
        assert!(metrics.contains(&format!("trainmaster_jobs{{state=\"waiting\"}} {JOBS}")));
    }
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    manager.until("a job to run", |world| (!world.running.is_empty()).then_some(())).await;
    daemon.stop().await;
    let daemon = Daemon::start(config).await.unwrap();
    assert_eq!(Clients::of(&daemon).await.status().await.jobs as usize, JOBS);
    daemon.stop().await;
}

/// Numbers at the limits of arithmetic, and some ordinary ones.
struct Odd(ChaCha8Rng);

impl Odd {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.next_u32() as usize % from.len()]
    }

    fn u32(&mut self) -> u32 {
        self.pick(&[0, 1, 1, 2, 3, 4, 100, 9_999, 10_000, 65_535, 65_536, u32::MAX - 1, u32::MAX])
    }

    fn u64(&mut self) -> u64 {
        self.pick(&[0, 1, 1, 2, 3, 1000, 1 << 32, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX])
    }

    fn i64(&mut self) -> i64 {
        self.pick(&[0, 1, 1000, 4000, 1_000_000_000_000, 1_000_000_000_001, i64::MAX - 1, i64::MAX, -1, i64::MIN])
    }

    fn f64(&mut self) -> f64 {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE, -0.0];
        let usual = [0.0, 1e-300, 1e-9, 0.01, 0.5, 1.0, 7.5, 1e6, 1e18, 1e300];
        if self.0.next_u32().is_multiple_of(3) { self.pick(&odd) } else { self.pick(&usual) }
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.next_u32().is_multiple_of(3).then(|| make(self))
    }

    fn role(&mut self) -> v1::Role {
        let mut demand: BTreeMap<String, i64> = [("cpu".to_owned(), 1000)].into();
        for name in ["gpu", "memory", "gpu:a100", "x", "disk"] {
            demand.extend(self.maybe(Self::i64).map(|amount| (name.to_owned(), amount)));
        }
        let max = self.u32();
        let [min, requested] = [self.maybe(Self::u32).unwrap_or(0), self.maybe(Self::u32).unwrap_or(0)];
        v1::Role { demand: demand.into_iter().collect(), min, max, requested, command: String::new() }
    }

    fn job(&mut self, at: u32) -> v1::Job {
        let mode = self.pick(&[0, 0, 1, 2, 9]);
        let [delta, utility, decay] = [self.f64(), self.f64(), self.f64()];
        v1::Job {
            name: format!("odd{at}"),
            priority: self.pick(&[0, 1, -1, i32::MAX, i32::MIN]),
            mode,
            resize: self.pick(&[0, 1, 2, 3]),
            batch: self.u64(),
            examples: self.u64(),
            worker: Some(self.role()),
            server: if mode == 2 { None } else { Some(self.role()) },
            model_size_mib: self.u64(),
            convergence: self.maybe(|odd| v1::Convergence {
                delta: if delta.is_nan() { 0.01 } else { delta },
                patience: odd.u32(),
                max_epochs: odd.u32(),
            }),
            utility: self.maybe(|odd| v1::Utility {
                kind: odd.pick(&[0, 1, 2, 3]),
                value: utility,
                decay,
                target_ms: odd.i64(),
                ..v1::Utility::default()
            }),
            deadline_ms: self.maybe(Self::i64),
            accuracy: self.maybe(Self::f64),
            time_limit_ms: self.maybe(Self::i64),
            restart_cost_ms: self.maybe(Self::i64),
            profile: self
                .maybe(|odd| v1::SpeedSample { servers: odd.u32(), workers: odd.u32(), speed: odd.f64() })
                .into_iter()
                .collect(),
            ..v1::Job::default()
        }
    }

    fn server(&mut self) -> v1::Server {
        let name = format!("odd{}", self.0.next_u32() % 4);
        let devices = self.pick(&[0, 1, 4, 300]);
        v1::Server {
            name,
            capacity: [("cpu".to_owned(), self.i64().max(0)), ("memory".to_owned(), self.i64().max(0))].into(),
            devices: vec![v1::Device { kind: self.pick(&["gpu", "gpu:a100"]).into() }; devices],
            foreign: [("cpu".to_owned(), self.i64().max(0))].into(),
            draining: self.0.next_u32().is_multiple_of(4),
            ..v1::Server::default()
        }
    }

    fn seen(&mut self, jobs: u64) -> v1::ObservedJob {
        let slots = (0..self.0.next_u32() % 4).map(|_| v1::Slot {
            role: self.pick(&[0, 1]),
            index: self.u32(),
            server: format!("odd{}", self.0.next_u32() % 5),
            devices: self
                .maybe(|odd| v1::DeviceShare { device: odd.pick(&[0, 1, 65_535]), milli: odd.pick(&[1, 500, 1000]) })
                .into_iter()
                .collect(),
            idle: self.pick(&[0, 0, 0, 1]) == 1,
        });
        let slots = slots.collect();
        v1::ObservedJob {
            job: if self.0.next_u32().is_multiple_of(8) { self.u64() } else { self.0.next_u64() % (jobs + 2) },
            incarnation: self.u32(),
            slots,
            phase: self.pick(&[0, 1, 1, 1, 2, 3, 4, 5]),
            message: String::new(),
            failures: 0,
        }
    }

    fn progress(&mut self) -> v1::Progress {
        v1::Progress {
            seq: self.u64(),
            step: self.u64(),
            epoch: self.u32(),
            steps_per_epoch: self.u64(),
            loss: self.maybe(Self::f64),
            accuracy: self.maybe(Self::f64),
            examples: self.u64(),
            steps: self.u32(),
            duration_ms: self.f64(),
            workers: self.u32(),
            servers: self.u32(),
            slot_times: (0..self.0.next_u32() % 5)
                .map(|_| v1::SlotTime { worker: self.u32(), step_ms: self.f64() })
                .collect(),
            restart_ms: self.maybe(Self::f64),
            ..v1::Progress::default()
        }
    }
}

/// Random messages with numbers at the ends of their ranges, from all clients at once. They may be refused. Accepted
/// ones must not stop the daemon, now or during the replay of its journal.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_at_the_ends_of_their_ranges_end_no_daemon() {
    let mut taken = [0; 3];
    for seed in 0..6_u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        let engine = ["optimus", "fifo", "drf", "tetris", "random", "optimus"][seed as usize];
        let settings = format!("engine = \"{engine}\"\nstability = \"off\"\n[parameters]\ninterval = \"20ms\"");
        config.settings =
            Settings::from_toml(&settings).or_else(|_| Settings::from_toml(&format!("engine = \"{engine}\""))).unwrap();
        if Scheduler::new(config.settings.clone()).is_err() {
            config.settings.parameters.clear();
        }
        config.decision.fits_every = std::time::Duration::ZERO;
        let daemon = Daemon::start(config.clone()).await.unwrap();
        let mut clients = Clients::of(&daemon).await;
        let manager = FakeManager::attach(&clients, "fake", servers(2, 4)).await;
        let mut odd = Odd(ChaCha8Rng::seed_from_u64(seed));
        let mut tokens: Vec<(u64, String)> = Vec::new();
        for at in 0..300 {
            match odd.0.next_u32() % 8 {
                0 | 1 => {
                    let job = if odd.0.next_u32().is_multiple_of(3) {
                        trainmaster_proto::job_from_spec(&spec(&format!("odd{at}")))
                    } else {
                        odd.job(at)
                    };
                    let submitted = clients.jobs.submit(v1::SubmitRequest { job: Some(job), external: None }).await;
                    taken[0] += u32::from(submitted.is_ok());
                    tokens.extend(submitted.ok().map(|reply| (reply.get_ref().job, reply.get_ref().token.clone())));
                }
                2 | 3 if !tokens.is_empty() => {
                    let at = odd.0.next_u32() as usize % tokens.len();
                    let (job, token) = tokens[at].clone();
                    let planned = manager.look(|world| world.plans.get(&job).map(|plan| plan.incarnation));
                    let report = v1::ReportRequest {
                        job: job.to_string(),
                        incarnation: planned.unwrap_or_else(|| odd.u32()),
                        role: 0,
                        index: odd.pick(&[0, 0, 0, u32::MAX]),
                        progress: (0..3).map(|_| odd.progress()).collect(),
                    };
                    let reply = clients.feed.report(sign(report, &token)).await;
                    taken[1] +=
                        u32::from(reply.is_ok_and(|reply| !reply.get_ref().reason.starts_with("3 of 3 ignored")));
                }
                4 => {
                    let jobs = (0..2).map(|_| odd.seen(tokens.len() as u64)).collect();
                    let delta = v1::Delta { jobs, ..v1::Delta::default() };
                    manager.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
                }
                5 => {
                    let delta = v1::Delta {
                        servers: vec![odd.server()],
                        servers_left: odd.maybe(|odd| format!("odd{}", odd.0.next_u32() % 4)).into_iter().collect(),
                        ..v1::Delta::default()
                    };
                    manager.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
                }
                6 => {
                    let enacted = v1::Enacted {
                        decision: odd.u64(),
                        job: odd.0.next_u64() % (tokens.len() as u64 + 2),
                        result: odd.pick(&[0, 1, 2]),
                        cause: "odd".into(),
                        retry_after_ms: odd.i64().max(0),
                    };
                    manager.observations.send(observation("fake", Kind::Enacted(enacted))).await.unwrap();
                }
                _ => {
                    if odd.0.next_u32().is_multiple_of(4) {
                        let mode = odd.pick(&[SchedulingMode::Active, SchedulingMode::Shadow, SchedulingMode::Paused]);
                        clients.mode(mode).await;
                    }
                    for (job, _) in tokens.iter().rev().take(3) {
                        let _ = clients.jobs.explain(v1::ExplainRequest { job: job.to_string() }).await;
                    }
                    clients.list().await;
                    let _ = clients.admin.dry_run(v1::DryRunRequest { engine: String::new() }).await;
                }
            }
            assert!(manager.look(|world| world.ended.is_none()), "the manager was sent away");
        }
        taken[2] += manager.look(|world| world.heard.len() as u32);
        clients.mode(SchedulingMode::Active).await;
        let before = clients.status().await;
        assert!(before.journal_error.is_empty());
        let metrics = super::net::get(&daemon, "/metrics").await;
        assert!(metrics.contains("trainmaster_panics_total 0"), "seed {seed}: a handler panicked");
        drop(manager);
        daemon.stop().await;
        let records = read_journal(folder.path()).unwrap();
        Scheduler::restore(records.iter().map(|(_, record)| record.as_slice())).unwrap();
        let daemon = Daemon::start(config).await.unwrap();
        assert_eq!(Clients::of(&daemon).await.status().await.jobs, before.jobs, "seed {seed}");
        daemon.stop().await;
    }
    let [jobs, reports, plans] = taken;
    assert!(jobs > 50 && reports > 50 && plans > 100, "{jobs} jobs, {reports} reports, {plans} plans");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_or_made_up_for_but_never_ends_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    for at in 0..40 {
        clients.submit(&spec(&format!("job{at}"))).await.unwrap();
    }
    daemon.stop().await;
    let whole = Arc::new(fs::read(folder.path().join("journal.redb")).unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut started, mut refused) = (0, 0);
    for case in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.redb");
        let mut bytes = Vec::clone(&whole);
        let at = random.next_u64() as usize % bytes.len();
        match case % 4 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (random.next_u32() % 8),
            // The head of the file, where each byte is significant.
            2 => bytes[at % 512] ^= random.next_u32() as u8,
            _ => {
                let end = (at + 4096).min(bytes.len());
                bytes[at..end].fill(0);
            }
        }
        fs::write(&path, &bytes).unwrap();
        match Daemon::start(config(folder.path())).await {
            Ok(daemon) => {
                started += 1;
                daemon.stop().await;
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("journal.redb"), "case {case}: {error}");
            }
        }
    }
    assert!(started > 0 && refused > 0, "{started} started, {refused} were refused");
    for odd in [&b""[..], b"not a database", &[0; 4096]] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("journal.redb"), odd).unwrap();
        let error = Daemon::start(config(folder.path())).await.unwrap_err().to_string();
        assert!(error.contains("journal.redb"), "{error}");
        assert_eq!(fs::read(folder.path().join("journal.redb")).unwrap(), odd);
    }
    // A folder in the place of the journal.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("journal.redb")).unwrap();
    let error = Daemon::start(config(folder.path())).await.unwrap_err().to_string();
    assert!(error.contains("journal.redb"), "{error}");
}
