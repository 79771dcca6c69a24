//! Pages beside gRPC: what there is, metrics for Prometheus, and the list of jobs as JSON.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus::{Registry, TextEncoder};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use trainmaster_proto::v1;

use super::{
    access::Who,
    host::{Host, has_names},
    log::LogMetric,
};

#[derive(Clone)]
struct Pages {
    host: Host,
    registry: Registry,
    log: LogMetric,
    sampling: Arc<Mutex<()>>,
}

/// What `/` says.
const FRONT: &str = "\
Trainmaster, a scheduler of training jobs. On this port:

/metrics   metrics, for Prometheus
/jobs      active jobs, as JSON; /jobs?all=true has ended jobs, too
gRPC       for the command trainmaster, managers and training programs; with reflection and health

Calls need a token, in the header Authorization: Bearer TOKEN, or a client certificate.
";

/// `/`, `/metrics` and `/jobs`.
pub(super) fn pages(host: Host, registry: Registry, log: LogMetric) -> Router {
    Router::new().route("/", get(FRONT)).route("/metrics", get(metrics)).route("/jobs", get(jobs)).with_state(Pages {
        host,
        registry,
        log,
        sampling: Arc::default(),
    })
}

async fn metrics(State(pages): State<Pages>, who: Option<Extension<Who>>) -> Response {
    // Sampled metrics are cleared before they are set, so one request at a time reads them.
    let alone = pages.sampling.lock_owned().await;
    let _alone = pages.host.measure(alone).await;
    pages.log.update();
    let mut families = pages.registry.gather();
    if who.is_none() {
        // Whoever needs no token learns no names.
        families.retain(|family| !family.get_metric().iter().any(has_names));
    }
    match TextEncoder::new().encode_to_string(&families) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    all: bool,
}

async fn jobs(State(pages): State<Pages>, Extension(who): Extension<Who>, Query(which): Query<Which>) -> Response {
    let overview = pages.host.read(move |view| view.overview(which.all)).await;
    match overview {
        Ok(overview) => {
            let list = overview.list(false, &who.scope());
            let jobs: Vec<Value> = list.jobs.iter().map(job).collect();
            Json(json!({ "decision": list.decision, "engine": list.engine, "mode": list.mode, "jobs": jobs }))
                .into_response()
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// The fields of `JobStatus` in jobs.proto, with the same names.
fn job(status: &v1::JobStatus) -> Value {
    let slots: Vec<Value> = status
        .slots
        .iter()
        .map(|slot| {
            let role = if slot.role() == v1::SlotRole::Worker { "worker" } else { "server" };
            let devices: Vec<_> =
                slot.devices.iter().map(|share| json!({ "device": share.device, "milli": share.milli })).collect();
            json!({ "role": role, "index": slot.index, "server": slot.server, "devices": devices })
        })
        .collect();
    json!({
        "job": status.job,
        "name": status.name,
        "tenant": status.tenant,
        "queue": status.queue,
        "state": status.state,
        "reason": status.reason,
        "workers": status.workers,
        "servers": status.servers,
        "step": status.step,
        "epoch": status.epoch,
        "loss": status.loss,
        "predicted_epochs": status.predicted_epochs,
        "predicted_low": status.predicted_low,
        "predicted_high": status.predicted_high,
        "remaining_ms": status.remaining_ms,
        "submitted_ms": status.submitted_ms,
        "started_ms": status.started_ms,
        "ended_ms": status.ended_ms,
        "incarnation": status.incarnation,
        "revision": status.revision,
        "speed": status.speed,
        "predicted_speed": status.predicted_speed,
        "slots": slots,
        "rescales": status.rescales,
        "restart_ms": status.restart_ms,
        "max_epochs": status.max_epochs,
    })
}
