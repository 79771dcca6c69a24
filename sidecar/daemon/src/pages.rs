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
use tokio::sync::Mutex;
use trainmaster_host::has_names;

use super::{access::Who, host::Host, log::LogMetric};

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
        // As `trainmaster jobs --json`.
        Ok(overview) => Json(overview.list(false, &who.scope())).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}
