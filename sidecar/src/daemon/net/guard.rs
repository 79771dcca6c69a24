//! What stands before every handler: the admin token, and a net for panics.

use std::panic::AssertUnwindSafe;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use tonic::Status;
use trainmaster_feed::token_matches;

use super::NetMetrics;
use crate::daemon::services::Peer;

/// Who is let in.
#[derive(Clone)]
pub(crate) struct Guard {
    token_hash: Option<[u8; 32]>,
    metrics: NetMetrics,
}

impl Guard {
    pub(crate) fn new(admin_token: Option<&str>, metrics: NetMetrics) -> Self {
        let token_hash = admin_token.map(|token| *blake3::hash(token.as_bytes()).as_bytes());
        Self { token_hash, metrics }
    }
}

/// Paths that need no admin token: the feed has tokens of its own, health and the schema are nobody's secret.
const OPEN: [&str; 2] = ["/trainmaster.v1.Feed/", "/grpc."];

/// Refuses calls without the admin token where one is configured.
pub(crate) async fn authenticate(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let open = OPEN.iter().any(|path| request.uri().path().starts_with(path));
    let Some(hash) = guard.token_hash.filter(|_| !open) else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|text| text.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if !token.is_some_and(|(_, token)| token_matches(token.trim(), &hash)) {
        guard.metrics.refused.inc();
        let text = "this call needs the admin token: authorization: Bearer <token>";
        return refuse(&request, Status::unauthenticated(text), StatusCode::UNAUTHORIZED);
    }
    if let Some(peer) = request.extensions_mut().get_mut::<Peer>() {
        peer.with_token = true;
    }
    next.run(request).await
}

/// Answers a panic as INTERNAL; the connection and everybody else go on.
pub(crate) async fn catch_panics(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    // For the answer, in the caller's protocol.
    let mut kind = Request::new(Body::empty());
    if let Some(value) = request.headers().get(header::CONTENT_TYPE) {
        kind.headers_mut().insert(header::CONTENT_TYPE, value.clone());
    }
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            guard.metrics.panics.inc();
            tracing::error!(path, "a handler panicked");
            let status = Status::internal("the daemon made a mistake; its log says more");
            refuse(&kind, status, StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Answers for paths that are not served.
pub(crate) async fn nothing_here(request: Request) -> Response {
    let text = format!("{} is not served here", request.uri().path());
    refuse(&request, Status::unimplemented(text), StatusCode::NOT_FOUND)
}

pub(super) fn refuse(request: &Request, status: Status, code: StatusCode) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/grpc") {
        return status.into_http::<Body>();
    }
    (code, format!("{}\n", status.message())).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{Router, middleware, routing::get};
    use prometheus::Registry;
    use tower::ServiceExt;

    use super::*;

    fn router(token: Option<&str>) -> (Router, NetMetrics) {
        let metrics = NetMetrics::register(&Registry::new()).unwrap();
        let guard = Guard::new(token, metrics.clone());
        async fn fail() -> &'static str {
            panic!("on purpose")
        }
        let router = Router::new()
            .route("/metrics", get(|| async { "numbers" }))
            .route("/trainmaster.v1.Feed/Report", get(|| async { "feed" }))
            .route("/fail", get(fail))
            .layer(middleware::from_fn_with_state(guard.clone(), authenticate))
            .layer(middleware::from_fn_with_state(guard, catch_panics));
        (router, metrics)
    }

    async fn ask(router: &Router, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = axum::http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn the_token_is_asked_of_all_but_the_feed() {
        let (router, metrics) = router(Some("0123456789abcdef"));
        assert_eq!(ask(&router, "/metrics", &[]).await.status(), StatusCode::UNAUTHORIZED);
        let wrong = ask(&router, "/metrics", &[("authorization", "Bearer 0123456789abcdeg")]).await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        let right = ask(&router, "/metrics", &[("authorization", "Bearer 0123456789abcdef")]).await;
        assert_eq!(right.status(), StatusCode::OK);
        assert_eq!(ask(&router, "/trainmaster.v1.Feed/Report", &[]).await.status(), StatusCode::OK);
        assert_eq!(metrics.refused.get(), 2);
        let grpc = ask(&router, "/metrics", &[("content-type", "application/grpc")]).await;
        assert_eq!(grpc.headers()["grpc-status"], "16");
    }

    #[tokio::test]
    async fn a_panic_is_answered() {
        let (router, metrics) = router(None);
        let plain = ask(&router, "/fail", &[]).await;
        assert_eq!(plain.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let grpc = ask(&router, "/fail", &[("content-type", "application/grpc+proto")]).await;
        assert_eq!(grpc.headers()["grpc-status"], "13");
        assert_eq!(metrics.panics.get(), 2);
        assert_eq!(ask(&router, "/metrics", &[]).await.status(), StatusCode::OK);
    }
}
