//! The port: all its services, and requests that it must refuse.

use std::{env, fs, path::Path};

use prost::Message as _;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;
use trainmaster_daemon::{Config, Daemon, Tls};
use trainmaster_proto::{job_from_spec, v1};

use super::support::{Clients, FakeManager, LIMIT, Trainer, admin_token, config, servers, sign, spec, until};

/// A page over plain HTTP/1.1, for the administrator.
pub(crate) async fn get(daemon: &Daemon, path: &str) -> String {
    get_with(daemon, path, &format!("authorization: Bearer {}\r\n", admin_token(daemon))).await
}

pub(crate) async fn get_with(daemon: &Daemon, path: &str, headers: &str) -> String {
    ask(daemon, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")).await
}

/// The whole answer to a raw request.
pub(crate) async fn ask(daemon: &Daemon, request: &str) -> String {
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    timeout(LIMIT, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

/// The table of docs/metrics.md, from the text of `/metrics`.
fn table(metrics: &str) -> String {
    let mut rows = vec![];
    for family in metrics.split("# HELP ").skip(1) {
        let (name, rest) = family.split_once(' ').unwrap();
        let (help, rest) = rest.split_once('\n').unwrap();
        let kind = rest.split_whitespace().nth(3).unwrap();
        let labels = rest.lines().filter_map(|line| line.split_once('{')?.1.split_once('}')).map(|(label, _)| label);
        let labels: Vec<(&str, &str)> = labels.filter_map(|label| label.split_once('=')).collect();
        let label = labels.first().map_or("", |(label, _)| *label);
        let values: Vec<String> = labels.iter().map(|(_, value)| format!("`{}`", value.trim_matches('"'))).collect();
        let (label, values) = match label {
            "" | "le" => (String::new(), String::new()),
            "commit" => ("{commit,version}".into(), String::new()),
            "engine" | "mode" | "type" | "reason" | "tenant" | "queue" | "name" if !name.ends_with("_total") => {
                (format!("{{{label}}}"), String::new())
            }
            label => (format!("{{{label}}}"), values.join(", ")),
        };
        rows.push(format!("| `{name}{label}` | {kind} | {help} | {values} |\n"));
    }
    rows.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_in_the_reference() {
    const HEAD: &str = "| metric | type | meaning | values of the label |\n|---|---|---|---|\n";
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let mut all = servers(1, 2);
    for level in ["rack", "block", "zone"] {
        all[0].labels.insert(level.into(), "a".into());
    }
    let manager = FakeManager::attach(&clients, "fake", all).await;
    let job = clients.submit(&spec("one")).await.unwrap().job;
    clients.until_job("one", |job| job.state == "running").await;
    let plan = manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    Trainer::new(&clients, &plan).train(8).await;
    let mut large = spec("large");
    (large.worker.min, large.worker.requested) = (2, 2);
    clients.submit(&large).await.unwrap();
    // A wait has a length, and a remaining time is known, once time has passed and the job's fits are made.
    let complete = async || {
        let text = get(&daemon, "/metrics").await;
        ["job_wait_seconds{", "job_remaining_seconds{"].iter().all(|name| text.contains(name)).then_some(text)
    };
    let made = table(&until("all metrics", complete).await);
    daemon.stop().await;

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = fs::read_to_string(&page).unwrap();
    let (words, _) = text.split_once(HEAD).expect("the page has the head of the table");
    let made = format!("{words}{HEAD}{made}");
    if env::var_os("BLESS").is_some() {
        fs::write(&page, &made).unwrap();
    }
    assert_eq!(fs::read_to_string(&page).unwrap(), made, "docs/metrics.md: write it again with BLESS=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_metrics_show_no_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut open = config(folder.path());
    open.metrics_open = true;
    let daemon = Daemon::start(open).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let mut mine = spec("secret-job");
    (mine.tenant, mine.queue) = ("secret-tenant".into(), "secret-queue".into());
    clients.submit(&mine).await.unwrap();
    clients.until_job("secret-job", |job| job.state == "running").await;
    let text = get_with(&daemon, "/metrics", "").await;
    assert!(text.contains("trainmaster_jobs{state=\"running\"} 1"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_names_have_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    for number in 0..70 {
        let mut spec = spec(&format!("job{number}"));
        spec.tenant = format!("tenant{number}");
        clients.submit(&spec).await.unwrap();
    }
    clients.until_job("job0", |job| job.state == "running").await;
    let sums = async || {
        let text = get(&daemon, "/metrics").await;
        let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        let waits = text.contains("trainmaster_tenant_waiting_jobs{tenant=\"(others)\"} 20\n");
        let jobs = count("trainmaster_job_wait_seconds{") == 20;
        (waits && jobs).then(|| (count("trainmaster_tenant_gpus{"), text.contains("{tenant=\"tenant0\"}")))
    };
    // A tenant with GPUs is not among the others.
    assert_eq!(until("sums", sums).await, (51, true));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_front_page_says_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let answer = get_with(&daemon, "/", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("/metrics") && answer.contains("/jobs"), "{answer}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_jobs_are_on_the_same_port() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    clients.submit(&spec("one")).await.unwrap();
    clients.until_job("one", |job| job.state == "running").await;
    let metrics = get(&daemon, "/metrics").await;
    for line in [
        "trainmaster_managers_connected 1",
        "trainmaster_jobs{state=\"running\"} 1",
        "trainmaster_decisions_total{source=\"engine\"}",
        "trainmaster_decision_seconds_count",
        "trainmaster_journal_commit_seconds_bucket",
        "trainmaster_journal_broken 0",
        "trainmaster_reports_accepted_total 0",
        "trainmaster_decision_age_seconds",
        "trainmaster_free_gpus{type=\"untyped\"} ",
        "trainmaster_largest_free_gpus{level=\"server\"} ",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    let jobs = get(&daemon, "/jobs?all=true").await;
    let body: Value = serde_json::from_str(jobs.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((body["jobs"][0]["name"].as_str(), body["engine"].as_str()), (Some("one"), Some("optimus")));
    let job = &body["jobs"][0];
    assert_eq!(
        (&job["held"], &job["reason"], &job["slots"][0]["role"]),
        (&false.into(), &Value::Null, &"worker".into())
    );
    assert!(
        body["fallback"].is_null() && body.get("next_decision_ms").is_some() && job.get("spec").is_none(),
        "{body}"
    );
    assert!(get(&daemon, "/nothing").await.starts_with("HTTP/1.1 404"));

    let endpoint = tonic::transport::Channel::from_shared(daemon.url().to_owned()).unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(endpoint.connect().await.unwrap());
    let reply = health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(reply.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_and_oversized_requests_affect_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    for garbage in [
        &b"\x00\x01\x02\x03 not a protocol at all \xff\xff\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand then rubbish that is long enough to be a frame",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        // Whatever the answer, the connection ends.
        let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.expect("the connection ends");
    }
    // A connection without any data.
    let silent = TcpStream::connect(daemon.address()).await.unwrap();

    let job = clients.submit(&spec("one")).await.unwrap();
    let mut huge = spec("huge");
    huge.labels.insert("x".into(), "y".repeat(5 << 20));
    assert_eq!(clients.submit(&huge).await.unwrap_err().code(), Code::OutOfRange);
    let long = v1::WatchRequest { job: "one".into(), address: "z".repeat(10_000), ..Default::default() };
    let refused = clients.feed.clone().watch(sign(long, &job.token)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(clients.list().await.jobs.len(), 1);
    let metrics = get(&daemon, "/metrics").await;
    assert!(metrics.contains("trainmaster_connections_failed_total{stage=\"http\"}"), "{metrics}");
    drop(silent);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_submits_nothing_even_with_the_administrators_token() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let message = v1::SubmitRequest { job: Some(job_from_spec(&spec("lured"))), external: None }.encode_to_vec();
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let token = admin_token(&daemon);
    // Requests that a browser sends without a preflight. Each is recognised by one property.
    for (headers, answer) in [
        ("host: localhost\r\ncontent-type: text/plain\r\n", "415"),
        ("host: localhost\r\ncontent-type: application/grpc\r\n", "HTTP/1.1 "),
        ("host: localhost\r\ncontent-type: text/plain\r\norigin: http://evil.example.org\r\n", "403"),
        ("host: localhost\r\ncontent-type: application/grpc\r\norigin: null\r\n", "HTTP/1.1 "),
        ("host: evil.example.org:7070\r\ncontent-type: text/plain\r\n", "421"),
    ] {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        let head = format!(
            "POST /trainmaster.v1.Jobs/Submit HTTP/1.1\r\n{headers}authorization: Bearer {token}\r\n\
             connection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        let mut text = Vec::new();
        timeout(LIMIT, stream.read_to_end(&mut text)).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(text.lines().next().unwrap().contains(answer), "{headers}: {text}");
    }
    assert_eq!(Clients::of(&daemon).await.list().await.jobs.len(), 0);
    for wrong in ["host: evil.example.org\r\n", "host: localhost\r\norigin: http://evil.example.org\r\n"] {
        let page = format!("GET /jobs HTTP/1.1\r\n{wrong}authorization: Bearer {token}\r\nconnection: close\r\n\r\n");
        let said = ask(&daemon, &page).await;
        assert!(said.starts_with("HTTP/1.1 4") && !said.contains("engine"), "{said}");
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_serves_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".into(), "127.0.0.1".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    trainmaster_net::secret::write(&key, &made.signing_key.serialize_pem()).unwrap();
    let mut config = config(folder.path());
    config.tls = Some(Tls { cert: cert.clone(), key, ca: None, client_ca: None, client_crl: None });
    let daemon = Daemon::start(config.clone()).await.unwrap();
    assert!(daemon.url().starts_with("https://"));
    let ca = tonic::transport::Certificate::from_pem(std::fs::read(&cert).unwrap());
    let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(ca);
    let endpoint = tonic::transport::Channel::from_shared(daemon.url().to_owned()).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    let clients = Clients::over(channel, Some(&admin_token(&daemon)));
    clients.submit(&spec("one")).await.unwrap();
    // A long connection detects a replaced certificate.
    let mut params = rcgen::CertificateParams::new(["localhost".into()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2050, 1, 1);
    std::fs::write(&cert, params.self_signed(&made.signing_key).unwrap().pem()).unwrap();
    until("the new certificate's end", || async {
        (clients.status().await.certificate_ends_ms == Some(2_524_608_000_000)).then_some(())
    })
    .await;
    // Without TLS nothing is served.
    let mut plain = TcpStream::connect(daemon.address()).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, plain.read_to_end(&mut answer)).await.unwrap();
    assert!(!answer.starts_with(b"HTTP"));
    daemon.stop().await;

    config.tls =
        Some(Tls { cert: folder.path().join("none.pem"), key: cert, ca: None, client_ca: None, client_crl: None });
    let error = Daemon::start(config).await.unwrap_err().to_string();
    assert!(error.starts_with("tls: ") && error.contains("none.pem"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_has_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let start = |change: &dyn Fn(&mut Config)| {
        let mut config = config(&folder.path().join("other"));
        change(&mut config);
        async move { Daemon::start(config).await.unwrap_err().to_string() }
    };
    let taken = start(&|config| config.listen = daemon.address()).await;
    assert!(taken.starts_with(&format!("listen: {}", daemon.address())), "{taken}");
    let open = start(&|config| config.listen = "0.0.0.0:0".parse().unwrap()).await;
    assert!(open.contains("needs TLS"), "{open}");
    let engine = start(&|config| config.settings.engine = "oracle".into()).await;
    assert!(engine.starts_with("scheduler.engine: \"oracle\" is not an engine"), "{engine}");
    let adapter = start(&|config| {
        let choice = trainmaster_daemon::AdapterChoice { name: "mesos".into(), config: None };
        config.available = trainmaster_adapters::ADAPTERS;
        config.adapters = Some(vec![choice]);
    })
    .await;
    assert!(adapter.contains("no such adapter") && adapter.contains("local"), "{adapter}");
    let file = start(&|config| {
        config.state_dir = folder.path().join("unused");
        config.available = trainmaster_adapters::ADAPTERS;
        config.adapters = Some(vec![trainmaster_daemon::AdapterChoice::parse("local=/nowhere/cluster.toml")]);
    })
    .await;
    assert!(file.starts_with("adapter \"local\": /nowhere/cluster.toml: "), "{file}");
    assert!(!folder.path().join("unused").exists(), "a refused start makes nothing");
    let shared = start(&|config| config.state_dir = folder.path().into()).await;
    assert!(shared.contains("another daemon uses this state folder; --state-dir"), "{shared}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_waits_for_no_stream() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let _watch = clients.jobs.clone().watch(v1::ListRequest::default()).await.unwrap();
    clients.submit(&spec("one")).await.unwrap();
    clients.until_job("one", |job| job.state == "running").await;
    timeout(LIMIT, daemon.stop()).await.expect("no open stream holds it up");
    let ended = manager.until("the stream to end", |world| world.ended.clone()).await;
    assert_eq!(ended.code(), Code::Unavailable);
}
