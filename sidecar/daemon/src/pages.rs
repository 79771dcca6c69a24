//! Pages beside gRPC: what there is, metrics for Prometheus, and the list of jobs as JSON.

use std::{sync::Arc, time::Duration};

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
use tower_http::{limit::RequestBodyLimitLayer, timeout::TimeoutLayer};
use trainmaster_host::has_names;

use super::{access::Who, host::Host, log::LogMetric};

#[derive(Clone)]
struct Pages {
    host: Host,
    registry: Registry,
    log: LogMetric,
    sampling: Arc<Mutex<()>>,
}

/// Maximum time until a page is ready.
const READY: Duration = Duration::from_secs(30);

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
    let state = Pages { host, registry, log, sampling: Arc::default() };
    let pages = Router::new().route("/", get(FRONT)).route("/metrics", get(metrics)).route("/jobs", get(jobs));
    limited(pages).with_state(state)
}

/// Pages take no body, and are ready within a time. The door's limits hold as well.
fn limited<S: Clone + Send + Sync + 'static>(pages: Router<S>) -> Router<S> {
    pages
        .layer(RequestBodyLimitLayer::new(0))
        .layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, READY))
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

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tokio::time::Instant;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pages_take_no_body_and_are_not_waited_for_without_end() {
        let pages =
            Router::new().route("/", get(FRONT)).route("/hangs", get(async || std::future::pending::<&str>().await));
        let pages = limited(pages);
        let ask = async |path: &str, body: Body, length: usize| {
            let request = Request::builder().uri(path).header(header::CONTENT_LENGTH, length).body(body).unwrap();
            pages.clone().oneshot(request).await.unwrap().status()
        };
        assert_eq!(ask("/", Body::empty(), 0).await, StatusCode::OK);
        assert_eq!(ask("/", Body::from("x"), 1).await, StatusCode::PAYLOAD_TOO_LARGE);
        let begun = Instant::now();
        assert_eq!(ask("/hangs", Body::empty(), 0).await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(begun.elapsed(), READY);
    }
}
