//! Permissions of callers, visible jobs and allowed changes, compared with docs/security.md.

use std::{collections::BTreeMap, time::Duration};

use axum::http::uri::PathAndQuery;
use tokio::time::timeout;
use tonic::{Code, Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;
use trainmaster_core::JobSpec;
use trainmaster_daemon::{Daemon, access_table};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, TokenRole, observation::Kind},
};

use super::{
    net::get_with,
    support::{Clients, FakeManager, LIMIT, admin_token, config, observation, servers, sign, spec},
};

/// A daemon with a job of tenant `vision` that has an external id and runs on the manager `fake`, and one token of each
/// kind.
struct Site {
    _folder: tempfile::TempDir,
    daemon: Daemon,
    admin: Clients,
    _manager: FakeManager,
    job: v1::JobPlan,
    /// Tokens by the names of the table's columns.
    tokens: BTreeMap<&'static str, Option<String>>,
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(config(folder.path())).await.unwrap();
        let admin = Clients::of(&daemon).await;
        let manager = FakeManager::attach(&admin, "fake", servers(2, 2)).await;
        admin.submit(&JobSpec { tenant: "vision".into(), ..spec("theirs") }).await.unwrap();
        let number = admin.until_job("theirs", |job| job.state == "running").await.job;
        let job = manager.until_plan(number, |plan| plan.action() == v1::Action::Run).await;
        let tokens = BTreeMap::from([
            ("none", None),
            ("metrics", Some(admin.token("m", TokenRole::Metrics, "").await)),
            ("read", Some(admin.token("r", TokenRole::Read, "").await)),
            ("job", Some(job.token.clone())),
            ("submit", Some(admin.token("s", TokenRole::Submit, "nlp").await)),
            ("manager", Some(admin.token("o", TokenRole::Manager, "other").await)),
            ("admin", Some(admin_token(&daemon))),
        ]);
        Self { _folder: folder, daemon, admin, _manager: manager, job, tokens }
    }

    async fn clients(&self, kind: &str) -> Clients {
        Clients::at(self.daemon.url(), self.tokens[kind].as_deref()).await
    }

    /// The answer to a call with an empty message, for any kind of stream.
    async fn call(&self, channel: &Channel, path: &str, token: Option<&str>) -> Result<(), Status> {
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let request = token.map_or_else(|| Request::new(()), |token| sign((), token));
        let path = PathAndQuery::try_from(path.to_owned()).unwrap();
        let answer = grpc.server_streaming(request, path, ProstCodec::<(), ()>::default()).await?;
        // Only immediate answers. Admitted streams stay silent.
        match timeout(Duration::from_millis(300), answer.into_inner().message()).await {
            Ok(Err(status)) => Err(status),
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_show_jobs_only_to_those_who_see_them() {
    let site = Site::start().await;
    let servers = async |kind: &str| {
        let mut jobs = site.clients(kind).await.jobs;
        jobs.servers(v1::ServersRequest {}).await.unwrap().into_inner().servers
    };
    let all = servers("admin").await;
    assert_eq!(all.iter().map(|server| &*server.name).collect::<Vec<_>>(), ["node0", "node1"]);
    let sum = |servers: &[v1::ServerStatus], part: fn(&v1::ServerStatus) -> &std::collections::HashMap<String, i64>| {
        servers.iter().map(|server| part(server).get("gpu").copied().unwrap_or(0)).sum::<i64>()
    };
    let (capacity, used) = (sum(&all, |server| &server.capacity), sum(&all, |server| &server.used));
    assert_eq!((capacity, sum(&all, |server| &server.free) + used), (4000, 4000));
    assert!(used > 0);
    let slots: u32 = all.iter().flat_map(|server| &server.jobs).map(|job| job.workers + job.servers).sum();
    assert_eq!(slots as usize, site.job.slots.len());
    assert!(all.iter().flat_map(|server| &server.jobs).all(|job| job.name == "theirs"));
    assert!(all.iter().all(|server| server.manager == "fake" && server.other_slots == 0));

    for kind in ["submit", "manager"] {
        let theirs = servers(kind).await;
        assert!(theirs.iter().all(|server| server.jobs.is_empty()), "{kind} doesn't see the job");
        assert_eq!(theirs.iter().map(|server| server.other_slots).sum::<u32>(), slots);
        assert_eq!(sum(&theirs, |server| &server.free), capacity - used, "what is free is no secret");
    }
    site.daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_named_jobs_has_each_once_and_only_visible_ones() {
    let site = Site::start().await;
    let ended = site.admin.submit(&spec("gone")).await.unwrap().job;
    site.admin.jobs.clone().cancel(v1::CancelRequest { job: "gone".into() }).await.unwrap();
    let again = site.admin.submit(&spec("gone")).await.unwrap().job;
    let list = async |kind: &str, names: Vec<String>| {
        let request = v1::ListRequest { jobs: names, ..v1::ListRequest::default() };
        let numbers = |reply: v1::ListReply| reply.jobs.iter().map(|job| job.job).collect::<Vec<_>>();
        let mut client = site.clients(kind).await.jobs;
        let listed = client.list(request.clone()).await.map(|reply| numbers(reply.into_inner()));
        // A watch begins with the same.
        let watched = match client.watch(request).await {
            Ok(lists) => lists.into_inner().message().await.map(|list| numbers(list.unwrap())),
            Err(status) => Err(status),
        };
        assert_eq!(listed.as_ref().map_err(Status::message), watched.as_ref().map_err(Status::message));
        listed
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let theirs = site.job.job;
    // The worst that a request can have: as many names as are allowed, of one job.
    assert_eq!(list("admin", vec!["theirs".into(); 1000]).await.unwrap(), [theirs]);
    let refused = list("admin", vec!["x".into(); 1001]).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "jobs: 1001 must be at most 1000"));
    assert_eq!(
        list("admin", names(&["gone", "nope", "theirs"])).await.unwrap(),
        [theirs, again],
        "the newest of a name"
    );
    assert_eq!(list("admin", vec![ended.to_string(), again.to_string()]).await.unwrap(), [ended, again]);
    for kind in ["submit", "manager"] {
        let all = vec!["theirs".to_owned(), theirs.to_string(), ended.to_string()];
        assert!(list(kind, all).await.unwrap().is_empty(), "{kind}");
    }
    site.daemon.stop().await;
}

const REFUSED: [Code; 2] = [Code::Unauthenticated, Code::PermissionDenied];

#[tokio::test(flavor = "multi_thread")]
async fn every_call_with_every_token_is_as_documented() {
    let site = Site::start().await;
    let table = access_table();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = table.lines();
    let kinds = cells(lines.next().unwrap());
    assert_eq!(kinds.len(), 1 + site.tokens.len());
    let (mut calls, mut allowed) = (0, 0);
    // The administrator's calls come last, because some of them change permissions.
    for line in lines.skip(1) {
        let row = cells(line);
        let path = row[0].trim_matches('`');
        for (kind, may) in kinds[1..].iter().zip(&row[1..]) {
            let token = site.tokens[kind.as_str()].as_deref();
            let refused = if path.starts_with('/') {
                let header = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
                let page = get_with(&site.daemon, path, &header).await;
                page.starts_with("HTTP/1.1 401") || page.starts_with("HTTP/1.1 403")
            } else {
                let full = match path.split_once('.') {
                    Some((_, _)) => format!("/grpc.{path}"),
                    None => format!("/trainmaster.v1.{path}"),
                };
                // A separate connection, because an admission on it would count for other tokens.
                let channel = Channel::from_shared(site.daemon.url().to_owned()).unwrap().connect().await.unwrap();
                let answer = site.call(&channel, &full, token).await;
                matches!(answer, Err(status) if REFUSED.contains(&status.code()))
            };
            assert_eq!(refused, may.is_empty(), "{path} with the token {kind}");
            calls += 1;
            allowed += usize::from(!refused);
        }
    }
    assert!(calls > 160 && allowed > 40 && calls - allowed > 80, "{allowed} of {calls} are allowed");
}

#[test]
fn the_documentation_has_the_same_table() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let text = std::fs::read_to_string(docs).unwrap();
    assert!(text.contains(&access_table()), "docs/security.md needs this table:\n{}", access_table());
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_tokens_give_access_to_their_tenants_jobs_only() {
    let site = Site::start().await;
    let nlp = site.clients("submit").await;
    // Its jobs belong to its tenant, whatever they state.
    nlp.submit(&spec("ours")).await.unwrap();
    assert_eq!(site.admin.job("ours").await.unwrap().tenant, "nlp");
    let escaping = nlp.submit(&JobSpec { tenant: "vision".into(), ..spec("escaping") }).await.unwrap_err();
    assert_eq!(escaping.code(), Code::PermissionDenied);
    assert!(escaping.message().contains("\"vision\" must be nlp"), "{escaping}");
    // Another tenant's job is invisible.
    let names: Vec<String> = nlp.list().await.jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["ours"]);
    for job in ["theirs", &site.job.job.to_string()] {
        assert_eq!(nlp.cancel(job).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(nlp.pause(job, false).await.unwrap_err().code(), Code::NotFound);
        let explain = nlp.jobs.clone().explain(v1::ExplainRequest { job: job.into() }).await;
        assert_eq!(explain.unwrap_err().code(), Code::NotFound);
    }
    let watched = nlp.jobs.clone().watch(v1::ListRequest::default()).await.unwrap().into_inner().message().await;
    assert!(watched.unwrap().unwrap().jobs.iter().all(|job| job.tenant == "nlp"));
    let page = get_with(
        &site.daemon,
        "/jobs?all=true",
        &format!("authorization: Bearer {}\r\n", site.tokens["submit"].as_ref().unwrap()),
    )
    .await;
    assert!(page.contains("ours") && !page.contains("theirs"), "{page}");
    // It can't name jobs of a manager, because an ApplicationMaster would run its command.
    for cluster in ["fake", "elsewhere"] {
        let external = Some(v1::ExternalId { cluster: cluster.into(), native: "application_1_0001".into() });
        let request = v1::SubmitRequest { job: Some(job_from_spec(&spec("linked"))), external };
        let refused = nlp.jobs.clone().submit(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    // It can cancel its own job.
    nlp.cancel("ours").await.unwrap();
    assert_eq!(site.admin.job("theirs").await.unwrap().state, "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_speaks_for_itself_alone() {
    let site = Site::start().await;
    let other = site.clients("manager").await;
    // An observation under another manager's name is refused.
    let posing = observation("fake", Kind::Snapshot(v1::Snapshot::default()));
    let stream = other.manager.clone().attach(tokio_stream::iter([posing])).await;
    let answer = match stream {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied);
    // Under its own name it can't take servers of another manager, or end its jobs.
    let own = FakeManager::attach(&other, "other", servers(1, 8)).await;
    let (job, incarnation) = (site.job.job, site.job.incarnation);
    let ended =
        v1::ObservedJob { job, incarnation, phase: v1::ObservedPhase::Failed.into(), ..v1::ObservedJob::default() };
    let delta =
        v1::Delta { servers_left: vec!["node0".into(), "node1".into()], jobs: vec![ended], ..v1::Delta::default() };
    own.observations.send(observation("other", Kind::Delta(delta))).await.unwrap();
    // The observation is applied when its own server is there.
    let mut more = servers(1, 1);
    more[0].name = "its-own".into();
    let delta = v1::Delta { servers: more, ..v1::Delta::default() };
    own.observations.send(observation("other", Kind::Delta(delta))).await.unwrap();
    super::support::until("its server", || async { (site.admin.status().await.servers == 3).then_some(()) }).await;
    let job = site.admin.job("theirs").await.unwrap();
    assert_eq!((job.state.as_str(), job.incarnation), ("running", incarnation), "{job:?}");
    // It can't see or cancel the job, and doesn't get its token.
    assert_eq!(other.list().await.jobs, []);
    assert_eq!(other.cancel("theirs").await.unwrap_err().code(), Code::NotFound);
    let told =
        own.look(|world| world.heard.iter().flat_map(|plan| &plan.jobs).filter(|told| told.job == job.job).count());
    assert_eq!(told, 0);
    // It can't take a job that waits while nothing is decided, which it could then end.
    let set_mode = async |mode: v1::SchedulingMode| {
        site.admin.admin.clone().set_mode(v1::SetModeRequest { mode: mode.into() }).await.unwrap();
    };
    set_mode(v1::SchedulingMode::Paused).await;
    let waiting = site.admin.submit(&spec("waiting")).await.unwrap().job;
    site.admin.pause("waiting", false).await.unwrap();
    for mode in [v1::SchedulingMode::Paused, v1::SchedulingMode::Shadow] {
        set_mode(mode).await;
        let slot = v1::Slot { server: "its-own".into(), ..v1::Slot::default() };
        let seen = |phase: v1::ObservedPhase, slots| v1::ObservedJob {
            job: waiting,
            phase: phase.into(),
            slots,
            ..v1::ObservedJob::default()
        };
        let jobs = vec![seen(v1::ObservedPhase::Running, vec![slot]), seen(v1::ObservedPhase::Failed, Vec::new())];
        for job in jobs {
            let delta = v1::Delta { jobs: vec![job], ..v1::Delta::default() };
            own.observations.send(observation("other", Kind::Delta(delta))).await.unwrap();
        }
        // The observation is applied when this server is there.
        let mut more = servers(1, 1);
        more[0].name = format!("heard-{mode:?}");
        let delta = v1::Delta { servers: more, ..v1::Delta::default() };
        own.observations.send(observation("other", Kind::Delta(delta))).await.unwrap();
        let there = if mode == v1::SchedulingMode::Paused { 4 } else { 5 };
        super::support::until("its server", || async { (site.admin.status().await.servers == there).then_some(()) })
            .await;
        let job = site.admin.job("waiting").await.unwrap();
        assert!(job.ended_ms.is_none() && job.state != "running", "{job:?}");
    }
    set_mode(v1::SchedulingMode::Active).await;
    site.admin.cancel("waiting").await.unwrap();
    // Its submissions have its own cluster, and no other one.
    let external = |cluster: &str| Some(v1::ExternalId { cluster: cluster.into(), native: "app-1".into() });
    let submit = |external| v1::SubmitRequest { job: Some(job_from_spec(&spec("its"))), external };
    for foreign in [None, external("fake")] {
        assert_eq!(other.jobs.clone().submit(submit(foreign)).await.unwrap_err().code(), Code::PermissionDenied);
    }
    other.jobs.clone().submit(submit(external("other"))).await.unwrap();
    other.cancel("its").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_token_reports_for_that_job_and_a_readers_sees_no_commands() {
    let site = Site::start().await;
    let manager = &site._manager;
    site.admin.submit(&JobSpec { tenant: "nlp".into(), ..spec("second") }).await.unwrap();
    let second = site.admin.until_job("second", |job| job.state == "running").await.job;
    let second = manager.until_plan(second, |plan| plan.action() == v1::Action::Run).await;
    let mut feed = site.clients("job").await.feed;
    let report = |plan: &v1::JobPlan| v1::ReportRequest {
        job: plan.job.to_string(),
        incarnation: plan.incarnation,
        progress: vec![v1::Progress { seq: 1, step: 10, ..v1::Progress::default() }],
        ..v1::ReportRequest::default()
    };
    assert_eq!(feed.report(report(&second)).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(feed.report(report(&site.job)).await.is_ok());
    let reader = site.clients("read").await;
    let specs =
        reader.jobs.clone().list(v1::ListRequest { all: true, specs: true, ..v1::ListRequest::default() }).await;
    assert_eq!(specs.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(reader.list().await.jobs.len(), 2);
    let status = reader.status().await;
    assert!(!status.state_dir.is_empty());
    assert_eq!(site.clients("submit").await.status().await.state_dir, "", "where it is, is no user's business");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_token_ends_its_streams() {
    let site = Site::start().await;
    let (submit, manager) = (site.clients("submit").await, site.clients("manager").await);
    let mut watched = submit.jobs.clone().watch(v1::ListRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap();
    let own = FakeManager::attach(&manager, "other", Vec::new()).await;
    for name in ["s", "o"] {
        site.admin.admin.clone().revoke_token(v1::RevokeTokenRequest { name: name.into() }).await.unwrap();
    }
    let ended = loop {
        match timeout(LIMIT, watched.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!((ended.code(), ended.message().contains("revoked")), (Code::Unauthenticated, true), "{ended}");
    let ended = own.until("its end", |world| world.ended.clone()).await;
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_do_not_name_jobs_of_other_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.settings = trainmaster_core::Settings::from_toml("engine = \"fifo\"").unwrap();
    let daemon = Daemon::start(config).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&admin, "fake", servers(1, 1)).await;
    // Each needs the whole GPU.
    let job = |name: &str, tenant: &str| {
        let mut job = JobSpec { tenant: tenant.into(), ..spec(name) };
        job.worker.demand.insert("gpu".into(), 1000);
        job
    };
    admin.submit(&job("first", "vision")).await.unwrap();
    admin.until_job("first", |job| job.state == "running").await;
    admin.submit(&job("secret-merger", "vision")).await.unwrap();
    admin.submit(&job("ours", "nlp")).await.unwrap();
    let ours = admin.until_job("ours", |job| job.reason.contains("in line")).await;
    assert!(ours.reason.contains("behind another tenant's job"), "{}", ours.reason);
    let explained = admin.explain("ours").await.join("\n");
    assert!(explained.contains("another tenant's job") && !explained.contains("secret-merger"), "{explained}");
}
