//! A daemon with scripted answers, so that the output of commands depends on nothing else.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    thread,
};

use tokio::{net::TcpListener, sync::watch};
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream, wrappers::WatchStream};
use tonic::{Request, Response, Status, transport::Server};
use trainmaster_proto::v1::{self, admin_server, jobs_server};

/// The time of an overdue decision. It is shown the same whenever it is printed.
const LONG_AGO: i64 = 1;

/// Its state. The sender notifies watchers of each change.
pub(crate) struct Script {
    jobs: watch::Sender<Vec<v1::JobStatus>>,
    mode: Mutex<v1::SchedulingMode>,
    pub(crate) state_dir: Mutex<String>,
    token: Option<&'static str>,
}

/// A scripted daemon that runs until the test ends.
pub(crate) struct Daemon {
    /// Its address.
    pub(crate) address: String,
    pub(crate) script: Arc<Script>,
}

impl Daemon {
    pub(crate) fn start(token: Option<&'static str>) -> Self {
        let script = Arc::new(Script {
            jobs: watch::Sender::default(),
            mode: Mutex::default(),
            state_dir: Mutex::default(),
            token,
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        let shared = script.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let part = || Part(shared.clone());
                Server::builder()
                    .add_service(jobs_server::JobsServer::new(part()))
                    .add_service(admin_server::AdminServer::new(part()))
                    .serve_with_incoming(TcpListenerStream::new(listener))
                    .await
                    .unwrap();
            });
        });
        let address = receiver.recv().unwrap();
        Self { address: format!("http://{address}"), script }
    }

    /// Changes the jobs.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Vec<v1::JobStatus>)) {
        self.script.jobs.send_modify(change);
    }
}

struct Part(Arc<Script>);

impl Part {
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let shown = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        match self.0.token {
            Some(token) if shown != Some(&format!("Bearer {token}")) => Err(Status::unauthenticated("wrong token")),
            _ => Ok(request.into_inner()),
        }
    }

    fn list(known: &[v1::JobStatus], request: &v1::ListRequest) -> v1::ListReply {
        let find = |name: &String| {
            let is_it = |job: &&v1::JobStatus| job.name == *name || job.job.to_string() == *name;
            known.iter().filter(is_it).max_by_key(|job| job.job).cloned()
        };
        let jobs = match request.jobs.is_empty() {
            true => known.iter().filter(|job| request.all || job.ended_ms.is_none()).cloned().collect(),
            false => request.jobs.iter().filter_map(find).collect(),
        };
        let (engine, mode) = ("optimus".into(), "active".into());
        v1::ListReply { jobs, decision: 7, engine, mode, next_decision_ms: Some(LONG_AGO), fallback: String::new() }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut v1::JobStatus)) -> Result<(), Status> {
        let mut found = false;
        let mut change = Some(change);
        self.0.jobs.send_modify(|jobs| {
            let job = jobs.iter_mut().find(|job| job.name == name || job.job.to_string() == name);
            if let (Some(job), Some(change)) = (job, change.take()) {
                change(job);
                found = true;
            }
        });
        if found { Ok(()) } else { Err(Status::not_found(format!("job {name:?} isn't known"))) }
    }
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl jobs_server::Jobs for Part {
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Reply<v1::SubmitReply> {
        let job = self.admit(request)?.job.unwrap();
        if self.0.jobs.borrow().iter().any(|known| known.name == job.name) {
            return Err(Status::already_exists("a job of this name is active"));
        }
        let number = self.0.jobs.borrow().len() as u64 + 1;
        let status = v1::JobStatus {
            job: number,
            name: job.name.clone(),
            state: "waiting".into(),
            reason: "not considered yet".into(),
            max_epochs: job.convergence.unwrap().max_epochs,
            ..v1::JobStatus::default()
        };
        self.0.jobs.send_modify(|jobs| jobs.push(status));
        let token = format!("secret-{number}");
        let shares = job.name.starts_with("shares").then(|| "engine mlfs: tasks share no GPU".to_owned());
        let own = (job.name == "shares-2").then(|| "shares-2: stop has no effect".to_owned());
        // As a hostile daemon would: many long ones, with control characters.
        let many = if job.name == "noisy" { 1000 } else { 0 };
        let noise = (0..many).map(|at| format!("\u{1b}[2J{at}{}", "x".repeat(1500)));
        let notes = shares.into_iter().chain(own).chain(noise).collect();
        let next_decision_ms = Some(LONG_AGO);
        Ok(Response::new(v1::SubmitReply { job: number, token, next_decision_ms, notes }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Reply<v1::CancelReply> {
        self.change(&self.admit(request)?.job, |job| {
            job.state = "cancelled".into();
            job.ended_ms = Some(1);
        })?;
        Ok(Response::new(v1::CancelReply::default()))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Reply<v1::PauseReply> {
        let v1::PauseRequest { job, resume } = self.admit(request)?;
        let reason = if resume { "resumed" } else { "held" };
        self.change(&job, |job| (job.reason, job.held) = (reason.into(), !resume))?;
        Ok(Response::new(v1::PauseReply::default()))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Reply<v1::ListReply> {
        let request = self.admit(request)?;
        Ok(Response::new(Self::list(&self.0.jobs.borrow(), &request)))
    }

    type LogsStream = Pin<Box<dyn Stream<Item = Result<v1::LogsReply, Status>> + Send>>;

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Reply<Self::LogsStream> {
        self.admit(request)?;
        Err(Status::failed_precondition("the logs of this job aren't here: its manager keeps them"))
    }

    async fn servers(&self, request: Request<v1::ServersRequest>) -> Reply<v1::ServersReply> {
        self.admit(request)?;
        let amounts = |gpu: i64, cpu: i64| [("gpu".to_owned(), gpu), ("cpu".to_owned(), cpu)].into();
        let job = v1::ServerJob { job: 1, name: "first".into(), workers: 2, servers: 1 };
        let server = |name: &str| v1::ServerStatus { name: name.into(), manager: "lab".into(), ..Default::default() };
        let busy = v1::ServerStatus {
            capacity: amounts(4000, 8000),
            used: amounts(2000, 2500),
            free: amounts(2000, 5500),
            jobs: vec![job],
            ..server("node-1")
        };
        let full =
            v1::ServerStatus { capacity: amounts(4000, 8000), draining: true, other_slots: 4, ..server("node-2") };
        Ok(Response::new(v1::ServersReply { servers: vec![busy, full] }))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Reply<v1::ExplainReply> {
        let name = self.admit(request)?.job;
        self.change(&name, |_| {})?;
        let json = r#"{"job":1,"name":"first","findings":[
            {"topic":"bounds","blocks":false,"text":"may have 1w+1p to 4w+4p"},
            {"topic":"mode","blocks":true,"text":"scheduling is paused"}]}"#;
        let lines = vec!["may have 1w+1p to 4w+4p".into(), "scheduling is paused".into()];
        Ok(Response::new(v1::ExplainReply { lines, json: json.into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::ListReply, Status>> + Send>>;

    async fn watch(&self, request: Request<v1::ListRequest>) -> Reply<Self::WatchStream> {
        let request = self.admit(request)?;
        let changes = WatchStream::new(self.0.jobs.subscribe()).map(move |jobs| Ok(Self::list(&jobs, &request)));
        Ok(Response::new(Box::pin(changes)))
    }
}

#[tonic::async_trait]
impl admin_server::Admin for Part {
    async fn set_mode(&self, request: Request<v1::SetModeRequest>) -> Reply<v1::SetModeReply> {
        let mode = self.admit(request)?.mode();
        let previous = std::mem::replace(&mut *self.0.mode.lock().unwrap(), mode);
        Ok(Response::new(v1::SetModeReply { previous: previous.into(), ..v1::SetModeReply::default() }))
    }

    async fn dry_run(&self, request: Request<v1::DryRunRequest>) -> Reply<v1::DryRunReply> {
        let engine = self.admit(request)?.engine;
        if engine == "oracle" {
            return Err(Status::invalid_argument("engine \"oracle\" isn't known; there are optimus, fifo"));
        }
        let change = v1::PlannedChange {
            job: 1,
            name: "first".into(),
            before: "waits".into(),
            after: "2w+1p on node1".into(),
            reason: String::new(),
        };
        let engine = if engine.is_empty() { "optimus".into() } else { engine };
        Ok(Response::new(v1::DryRunReply { changes: vec![change], engine }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        self.admit(request)?;
        Ok(Response::new(v1::StatusReply {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: "optimus".into(),
            mode: (*self.0.mode.lock().unwrap()).into(),
            decision: 7,
            digest: "abc".into(),
            servers: 2,
            jobs: self.0.jobs.borrow().len() as u32,
            decision_age_ms: Some(1500),
            managers: vec!["local".into()],
            journal_error: String::new(),
            state_dir: self.0.state_dir.lock().unwrap().clone(),
            next_decision_ms: None,
            adapters: vec!["local=/nowhere/cluster.toml".into()],
            fallback: String::new(),
            open_doors: Vec::new(),
            log_lines_dropped: 0,
            certificate_ends_ms: None,
        }))
    }

    async fn create_token(&self, _: Request<v1::CreateTokenRequest>) -> Reply<v1::CreateTokenReply> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn list_tokens(&self, _: Request<v1::ListTokensRequest>) -> Reply<v1::ListTokensReply> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn rotate_token(&self, _: Request<v1::RotateTokenRequest>) -> Reply<v1::CreateTokenReply> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn revoke_token(&self, _: Request<v1::RevokeTokenRequest>) -> Reply<v1::RevokeTokenReply> {
        Err(Status::unimplemented("nobody asks"))
    }
}
