//! The daemon's traces, as a collector gets them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use super::cli_serve::{Served, trainmaster};

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[test]
fn a_collector_gets_decisions_journal_writes_and_requests() {
    let folder = TempDir::new().unwrap();
    let job = folder.path().join("job.toml");
    std::fs::write(&job, "name = \"first\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n").unwrap();
    let (runtime, collector) = (Runtime::new().unwrap(), Collector::default());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let service = TraceServiceServer::new(collector.clone());
    runtime.spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));

    let daemon = Served::start(&folder.path().join("state"), &["--otlp", &address, "--engine", "fifo"]);
    daemon.works(&["submit", job.to_str().unwrap()]);
    daemon.works(&["cancel", "first"]);
    assert_eq!(daemon.terminate(), Some(0), "what is left is sent at the end");

    let received = collector.0.lock().unwrap();
    let resources = received.iter().flat_map(|request| &request.resource_spans);
    let mut spans: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for resource in resources {
        assert_eq!(text(&resource.resource.as_ref().unwrap().attributes, "service.name"), Some("trainmaster"));
        for span in resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
            spans.entry(&span.name).or_default().push(span);
        }
    }
    assert_eq!(spans.keys().copied().collect::<Vec<_>>(), ["commit", "decision", "journal", "request", "run"]);
    // One that took too long isn't committed.
    let is_committed = |span: &&&Span| span.attributes.iter().any(|attribute| attribute.key == "changes");
    let decision = spans["decision"].iter().find(is_committed).expect("a committed decision");
    assert_eq!(text(&decision.attributes, "engine"), Some("fifo"));
    for part in ["run", "commit"] {
        assert!(spans[part].iter().any(|span| span.parent_span_id == decision.span_id), "{part}: {spans:#?}");
    }
    let paths: Vec<_> = spans["request"].iter().filter_map(|span| text(&span.attributes, "path")).collect();
    assert!(paths.contains(&"/trainmaster.v1.Jobs/Submit") && paths.contains(&"/trainmaster.v1.Jobs/Cancel"));
    assert!(spans.values().flatten().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano));
}

#[test]
fn a_collector_that_is_away_holds_up_nothing() {
    let folder = TempDir::new().unwrap();
    let address = format!("http://127.0.0.1:{}", trainmaster_conformance::free_port());
    let mut command = Served::command("127.0.0.1:0", "none", &folder.path().join("state"), &["--otlp", &address]);
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let daemon = Served::of(command.stdout(std::process::Stdio::piped()).stderr(log).spawn().unwrap());
    let url = daemon.url.clone();
    for _ in 0..20 {
        assert!(trainmaster(&["--server", &url, "jobs"]).output().unwrap().status.success());
    }
    assert_eq!(daemon.terminate(), Some(0));
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("BatchSpanProcessor") || log.contains("traces"), "{log}");
}

#[test]
fn a_collector_that_never_answers_holds_up_nothing() {
    let folder = TempDir::new().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let daemon = Served::start(&folder.path().join("state"), &["--otlp", &address]);
    for _ in 0..20 {
        daemon.works(&["jobs"]);
    }
    // The connection is made, and nothing comes back.
    assert_eq!(daemon.terminate(), Some(0));
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "the daemon called it");
}
