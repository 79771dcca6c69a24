//! What the site's administrators do.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use trainmaster_core::{Budget, State, scheduler::Outcome};
use trainmaster_proto::{
    mode_from_wire, mode_to_wire,
    v1::{
        self,
        admin_server::{Admin, AdminServer},
    },
    verdict_text,
};

use super::{SMALL, who};
use crate::daemon::{Config, adapters::chosen, host::Host};

/// How long a dry run may take: nobody waits for it but the caller.
const DRY_RUN: Duration = Duration::from_secs(30);
/// Dry runs at a time, given-up ones included: decisions need threads too.
const DRY_RUNS: usize = 2;

/// Serves `trainmaster.v1.Admin`.
pub(crate) struct AdminService {
    host: Host,
    budget: Budget,
    dry_runs: Arc<Semaphore>,
    state_dir: String,
    adapters: Vec<String>,
}

impl AdminService {
    /// `config`: what to tell people who ask for it, and how long a dry run may take.
    pub(crate) fn new(host: Host, config: &Config) -> Self {
        let state_dir = std::path::absolute(&config.state_dir).unwrap_or_else(|_| config.state_dir.clone());
        Self {
            host,
            budget: config.host_options().budget,
            dry_runs: Arc::new(Semaphore::new(DRY_RUNS)),
            state_dir: state_dir.display().to_string(),
            adapters: chosen(config).iter().map(ToString::to_string).collect(),
        }
    }

    pub(crate) fn into_server(self) -> AdminServer<Self> {
        AdminServer::new(self).max_decoding_message_size(SMALL)
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn set_mode(&self, request: Request<v1::SetModeRequest>) -> Result<Response<v1::SetModeReply>, Status> {
        let who = who(&request);
        let mode = mode_from_wire(request.into_inner().mode)?;
        let previous = self.host.set_mode(mode, who).await?;
        Ok(Response::new(v1::SetModeReply { previous: mode_to_wire(previous).into() }))
    }

    async fn dry_run(&self, request: Request<v1::DryRunRequest>) -> Result<Response<v1::DryRunReply>, Status> {
        let turn = self.dry_runs.clone().try_acquire_owned();
        let busy = |_| Status::resource_exhausted(format!("{DRY_RUNS} dry runs are under way; try again later"));
        let turn = turn.map_err(busy)?;
        let engine = request.into_inner().engine;
        let named = (!engine.is_empty()).then_some(engine);
        let opened = self.host.read(move |view| {
            let state = view.scheduler.state().clone();
            let engine = named.clone().unwrap_or_else(|| state.settings.engine.clone());
            view.scheduler.dry_ticket(named.as_deref()).map(|ticket| (ticket, state, engine))
        });
        let opened = opened.await?.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (ticket, state, engine) = opened;
        let budget = self.budget;
        let run = tokio::task::spawn_blocking(move || {
            let outcome = ticket.run(budget);
            drop(turn);
            match outcome.error() {
                Some(error) => Err(Status::failed_precondition(format!("engine {engine}: {error}"))),
                None => Ok(v1::DryRunReply { changes: changes(&state, &outcome), engine }),
            }
        });
        let late = |_| Status::deadline_exceeded(format!("the engine took more than {DRY_RUN:?}"));
        let reply = tokio::time::timeout(DRY_RUN, run).await.map_err(late)?;
        reply.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let (state_dir, adapters) = (self.state_dir.clone(), self.adapters.clone());
        let reply = self.host.read(move |view| {
            let state = view.scheduler.state();
            let (decision, digest) = view.settled;
            v1::StatusReply {
                version: env!("CARGO_PKG_VERSION").into(),
                engine: state.settings.engine.clone(),
                mode: mode_to_wire(state.mode).into(),
                decision,
                digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
                servers: state.present_servers().count() as u32,
                jobs: state.jobs.len() as u32,
                decision_age_ms: view.decision_age(),
                managers: view.managers(),
                journal_error: view.journal_error.clone().unwrap_or_default(),
                state_dir,
                next_decision_ms: view.next_decision(),
                adapters,
                fallback: view.fallback(),
            }
        });
        Ok(Response::new(reply.await?))
    }
}

/// What would be otherwise than it is.
fn changes(state: &State, outcome: &Outcome) -> Vec<v1::PlannedChange> {
    let Some(proposal) = outcome.proposal() else { return Vec::new() };
    let changes = proposal.changes.iter().filter_map(|(id, verdict)| {
        let job = state.job(*id).filter(|job| !job.verdict.same_kind(verdict))?;
        Some(v1::PlannedChange {
            job: id.0,
            name: job.spec.name.clone(),
            before: verdict_text(state, &job.verdict),
            after: verdict_text(state, verdict),
            reason: verdict.reason().map(|reason| reason.describe(state)).unwrap_or_default(),
        })
    });
    changes.collect()
}
