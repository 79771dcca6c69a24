//! The service for administrators.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use trainmaster_core::{Budget, State, scheduler::Outcome, text::hex};
use trainmaster_net::NetMetrics;
use trainmaster_proto::{
    mode_from_wire, mode_to_wire,
    v1::{
        self,
        admin_server::{Admin, AdminServer},
    },
    verdict_text,
};

use super::SMALL;
use crate::{
    Config,
    access::{Known, Role, TokenError, Tokens, Who},
    adapters::chosen,
    host::{Command, Host},
    log::LogLines,
};

/// Maximum time of a dry run. Only its caller waits for it.
const DRY_RUN: Duration = Duration::from_secs(30);
/// Maximum number of dry runs at a time, including those whose callers have left. Decisions need threads too.
const DRY_RUNS: usize = 2;

/// Serves `trainmaster.v1.Admin`.
pub(crate) struct AdminService {
    host: Host,
    budget: Budget,
    dry_runs: Arc<Semaphore>,
    tokens: Tokens,
    state_dir: String,
    adapters: Vec<String>,
    open_doors: Vec<String>,
    log: LogLines,
    net: NetMetrics,
}

impl AdminService {
    /// `config` has the information for callers, and the time limit of dry runs.
    pub(crate) fn new(host: Host, config: &Config, tokens: Tokens, net: NetMetrics) -> Self {
        let state_dir = std::path::absolute(&config.state_dir).unwrap_or_else(|_| config.state_dir.clone());
        Self {
            host,
            budget: config.budget(),
            dry_runs: Arc::new(Semaphore::new(DRY_RUNS)),
            tokens,
            open_doors: config.open_doors(),
            log: config.log.clone(),
            net,
            state_dir: state_dir.display().to_string(),
            adapters: chosen(config).iter().map(ToString::to_string).collect(),
        }
    }

    pub(crate) fn into_server(self) -> AdminServer<Self> {
        AdminServer::new(self).max_decoding_message_size(SMALL)
    }

    /// Adds an audit entry about a token. It never contains the secret.
    async fn note(&self, who: Who, what: String) {
        self.host.tell(Command::Note { who, what }).await;
    }
}

impl From<TokenError> for Status {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Wrong(problem) => Self::invalid_argument(problem),
            TokenError::Missing(problem) => Self::not_found(problem),
            TokenError::Exists(problem) => Self::already_exists(problem),
            TokenError::Disk(problem) => Self::unavailable(problem),
        }
    }
}

fn token_to_wire(known: Known) -> v1::Token {
    let Known { name, role, created_ms, expires_ms, used_ms } = known;
    let (role, tenants, manager) = match role {
        Role::Admin => (v1::TokenRole::Admin, Vec::new(), None),
        Role::Submit { tenants } => (v1::TokenRole::Submit, tenants, None),
        Role::Manager { name } => (v1::TokenRole::Manager, Vec::new(), name),
        Role::Read => (v1::TokenRole::Read, Vec::new(), None),
        Role::Metrics => (v1::TokenRole::Metrics, Vec::new(), None),
    };
    let manager = manager.unwrap_or_default();
    v1::Token { name, role: role.into(), tenants, manager, created_ms, expires_ms, used_ms }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn set_mode(&self, request: Request<v1::SetModeRequest>) -> Result<Response<v1::SetModeReply>, Status> {
        let who = Who::of(&request)?;
        let mode = mode_from_wire(request.into_inner().mode)?;
        let (previous, unwritten) = self.host.set_mode(mode, who).await?;
        let not_written = unwritten.unwrap_or_default();
        Ok(Response::new(v1::SetModeReply { previous: mode_to_wire(previous).into(), not_written }))
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

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        // Paths and open doors are for administrators only.
        let (state_dir, adapters, open_doors) = match Who::of(&request)?.role {
            Role::Admin | Role::Read => (self.state_dir.clone(), self.adapters.clone(), self.open_doors.clone()),
            _ => Default::default(),
        };
        let log_lines_dropped = self.log.dropped();
        let certificate_ends_ms = self.net.certificate_ends().map(|seconds| seconds.saturating_mul(1000));
        let reply = self.host.read(move |view| {
            let state = view.scheduler.state();
            let (decision, digest) = view.settled;
            v1::StatusReply {
                version: env!("CARGO_PKG_VERSION").into(),
                engine: state.settings.engine.clone(),
                mode: mode_to_wire(state.mode).into(),
                decision,
                digest: hex(&digest),
                servers: state.present_servers().count() as u32,
                jobs: state.jobs.len() as u32,
                decision_age_ms: view.decision_age(),
                managers: view.managers(),
                journal_error: view.journal_error.clone().unwrap_or_default(),
                state_dir,
                next_decision_ms: view.next_decision(),
                adapters,
                fallback: view.fallback(),
                open_doors,
                log_lines_dropped,
                certificate_ends_ms,
            }
        });
        Ok(Response::new(reply.await?))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenReply>, Status> {
        let who = Who::of(&request)?;
        let request = request.into_inner();
        let wire = request.role();
        let v1::CreateTokenRequest { name, tenants, manager, lasts_ms, secret, .. } = request;
        let role = Role::of(wire, tenants, manager).map_err(Status::invalid_argument)?;
        let word = role.kind().word();
        let (tokens, own) = (self.tokens.clone(), name.clone());
        let made = in_file(move || tokens.create(&own, role, lasts_ms, &secret)).await?;
        self.note(who, format!("token {name} made ({word})")).await;
        Ok(Response::new(v1::CreateTokenReply { token: Some(token_to_wire(made.0)), secret: made.1 }))
    }

    async fn list_tokens(&self, _: Request<v1::ListTokensRequest>) -> Result<Response<v1::ListTokensReply>, Status> {
        let tokens = self.tokens.list().into_iter().map(token_to_wire).collect();
        Ok(Response::new(v1::ListTokensReply { tokens }))
    }

    async fn rotate_token(
        &self,
        request: Request<v1::RotateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenReply>, Status> {
        let who = Who::of(&request)?;
        let v1::RotateTokenRequest { name, overlap_ms, secret } = request.into_inner();
        let (tokens, own) = (self.tokens.clone(), name.clone());
        let made = in_file(move || tokens.rotate(&own, overlap_ms, &secret)).await?;
        self.note(who, format!("token {name} rotated")).await;
        Ok(Response::new(v1::CreateTokenReply { token: Some(token_to_wire(made.0)), secret: made.1 }))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenReply>, Status> {
        let who = Who::of(&request)?;
        let name = request.into_inner().name;
        let (tokens, own) = (self.tokens.clone(), name.clone());
        let unwritten = in_file(move || tokens.revoke(&own)).await?;
        self.note(who, format!("token {name} revoked")).await;
        Ok(Response::new(v1::RevokeTokenReply { not_written: unwritten.unwrap_or_default() }))
    }
}

/// Runs work that writes a file on another thread.
async fn in_file<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TokenError> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| Status::internal(error.to_string()))??)
}

/// The changes that a dry run would make.
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
