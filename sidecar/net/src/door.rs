//! Checks before each handler: protection from web pages, access, and recovery from panics.

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use tokio::time::sleep;
use tonic::{Code, Status};
use tracing::Instrument as _;

use crate::{Doorkeeper, Kind, NetMetrics, Peer, shares::Shares};

/// Minimum delay of the answer to a caller that calls too often, or whose call is too large.
const SLOWLY: Duration = Duration::from_millis(250);

/// The names under which a port may be called.
#[derive(Clone, Debug, Default)]
pub struct Door {
    /// Names beside `localhost` and numeric addresses. A browser that was lured to the port uses another name. `None`:
    /// any name, for ports whose certificates identify them.
    pub names: Option<Vec<String>>,
}

impl Door {
    /// A door for these names and addresses (`http://host:port`), and for this machine's own name.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let names = names.into_iter().filter_map(Self::host).chain([own]).filter(|name| !name.is_empty());
        Self { names: Some(names.collect()) }
    }

    /// The host in an address, or a host's name. `None` if there is none.
    pub fn host(address: &str) -> Option<String> {
        let authority = address.split_once("://").map_or(address, |(_, rest)| rest).split(['/', '?']).next()?;
        let host = authority.parse::<Authority>().ok()?.host().to_owned();
        Some(host).filter(|host| !host.is_empty())
    }

    fn is_ours(&self, host: &str) -> bool {
        let Some(names) = &self.names else { return true };
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let same = |name: &str| name.eq_ignore_ascii_case(host);
        host.parse::<IpAddr>().is_ok() || same("localhost") || names.iter().any(|name| same(name))
    }

    /// The reason to refuse a request that a web page may have caused.
    fn objection(&self, kind: Kind, request: &Request) -> Option<(Status, StatusCode)> {
        let headers = request.headers();
        let is_from_page = |headers: &HeaderMap| {
            let site = headers.get("sec-fetch-site").is_some_and(|site| site != "none");
            headers.contains_key(header::ORIGIN) || site
        };
        if is_from_page(headers) {
            let status = Status::permission_denied("web pages may not call this port");
            return Some((status, StatusCode::FORBIDDEN));
        }
        let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.parse().ok());
        let authority: Option<Authority> = request.uri().authority().cloned().or(named);
        if !authority.as_ref().is_some_and(|authority| self.is_ours(authority.host())) {
            let name = authority.map_or_else(|| "no name".into(), |authority| format!("{:.100}", authority.host()));
            let problem = format!("{name:?} is not a name of this port; the daemon's setting `names` lists them");
            return Some((Status::permission_denied(problem), StatusCode::MISDIRECTED_REQUEST));
        }
        if matches!(kind, Kind::Page | Kind::LongPage) {
            return None;
        }
        let is_grpc = request.method() == Method::POST && request.version() == Version::HTTP_2 && speaks_grpc(headers);
        let problem = "gRPC is spoken here: POST over HTTP/2, content-type application/grpc";
        (!is_grpc).then(|| (Status::invalid_argument(problem), StatusCode::UNSUPPORTED_MEDIA_TYPE))
    }
}

/// `application/grpc` and `application/grpc+proto`, but not `application/grpc-web`, which browsers can send.
fn speaks_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.strip_prefix("application/grpc").is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// The door with its access check.
#[derive(Clone)]
pub(crate) struct Guard {
    door: Arc<Door>,
    doorkeeper: Arc<dyn Doorkeeper>,
    shares: Shares,
    metrics: NetMetrics,
}

impl Guard {
    pub(crate) fn new(door: Door, doorkeeper: Arc<dyn Doorkeeper>, metrics: NetMetrics) -> Self {
        Self { door: Arc::new(door), doorkeeper, shares: Shares::default(), metrics }
    }
}

/// Admits or refuses a request, before its body is read.
pub(crate) async fn open(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let kind = guard.doorkeeper.kind(request.uri().path());
    if let Some((status, code)) = guard.door.objection(kind, &request) {
        guard.metrics.refused.with_label_values(&["page"]).inc();
        if let Some(peer) = request.extensions().get::<Peer>() {
            peer.proof.refuse();
        }
        return refuse(&request, status, code);
    }
    let admitted = guard.doorkeeper.admit(&mut request).and_then(|caller| {
        if let (Some(caller), Some(peer)) = (&caller, request.extensions().get::<Peer>()) {
            peer.proof.give(&guard.shares, caller)?;
        }
        Ok(caller)
    });
    match admitted {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            let span = tracing::debug_span!("request", path = request.uri().path());
            let response = next.run(request).instrument(span).await;
            if exceeds(&response) {
                sleep(SLOWLY).await;
            }
            response
        }
        Err(status) => {
            let (reason, code) = match status.code() {
                Code::Unauthenticated => ("token", StatusCode::UNAUTHORIZED),
                Code::PermissionDenied => ("role", StatusCode::FORBIDDEN),
                Code::ResourceExhausted => ("share", StatusCode::TOO_MANY_REQUESTS),
                Code::NotFound => ("token", StatusCode::NOT_FOUND),
                _ => ("other", StatusCode::SERVICE_UNAVAILABLE),
            };
            guard.metrics.refused.with_label_values(&[reason]).inc();
            if let Some(peer) = request.extensions().get::<Peer>() {
                peer.proof.refuse();
            }
            if status.code() == Code::ResourceExhausted {
                // The delay slows callers that repeat at once.
                sleep(SLOWLY).await;
            }
            refuse(&request, status, code)
        }
    }
}

/// Answers a panic with INTERNAL. The connection and other calls continue.
pub(crate) async fn catch_panics(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    // For the answer in the caller's protocol.
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

/// The answer for unknown paths.
pub(crate) async fn nothing_here(request: Request) -> Response {
    let text = format!("{:.200} is not served here", request.uri().path());
    refuse(&request, Status::unimplemented(text), StatusCode::NOT_FOUND)
}

/// Whether a service refused the call because of a limit or the size of its message.
fn exceeds(response: &Response) -> bool {
    let status = Status::from_header_map(response.headers());
    status.is_some_and(|status| matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange))
}

/// A refusal in the caller's protocol: a gRPC status, or a page with this code.
pub fn refuse(request: &Request, status: Status, code: StatusCode) -> Response {
    if speaks_grpc(request.headers()) {
        return status.into_http::<Body>();
    }
    (code, format!("{}\n", status.message())).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        routing::{get, post},
    };
    use prometheus::Registry;
    use tower::ServiceExt;

    use super::*;
    use crate::{Caller, LoadLimits, guarded};

    /// An access check by a header.
    struct Words;

    impl Doorkeeper for Words {
        fn kind(&self, path: &str) -> Kind {
            if path.starts_with("/grpc.") { Kind::Call } else { Kind::Page }
        }

        fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status> {
            match request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
                Some(name) => Ok(Some(Caller { name: name.into(), shares: Vec::new(), first: false, standing: None })),
                None if request.uri().path() == "/open" => Ok(None),
                None => Err(Status::unauthenticated("who are you?")),
            }
        }
    }

    fn router() -> (Router, NetMetrics) {
        let metrics = NetMetrics::register(&Registry::new()).unwrap();
        async fn fail() -> &'static str {
            panic!("on purpose")
        }
        let router = Router::new()
            .route("/metrics", get(|| async { "numbers" }))
            .route("/open", get(|| async { "anybody" }))
            .route("/grpc.A/B", post(|| async { "answer" }))
            .route("/grpc.A/Full", post(|| async { Status::resource_exhausted("full").into_http::<Body>() }))
            .route("/fail", get(fail));
        let door = Door { names: Some(vec!["scheduler.example.org".into()]) };
        (guarded(router, door, Arc::new(Words), LoadLimits::default(), metrics.clone()), metrics)
    }

    async fn ask(router: &Router, method: Method, uri: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = axum::http::Request::builder().method(method).uri(uri).version(Version::HTTP_2);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:7070");
    const WHO: (&str, &str) = ("authorization", "me");

    #[tokio::test]
    async fn calls_without_permission_are_refused_before_they_are_read() {
        let (router, metrics) = router();
        let status =
            async |path: &str, headers: &[(&str, &str)]| ask(&router, Method::GET, path, headers).await.status();
        assert_eq!(status("/metrics", &[HOST]).await, StatusCode::UNAUTHORIZED);
        assert_eq!(status("/metrics", &[HOST, WHO]).await, StatusCode::OK);
        assert_eq!(status("/open", &[HOST]).await, StatusCode::OK);
        assert_eq!(status("/nothing", &[HOST, WHO]).await, StatusCode::NOT_FOUND);
        assert_eq!(metrics.refused.with_label_values(&["token"]).get(), 1);
        let grpc = ask(&router, Method::GET, "/metrics", &[HOST, ("content-type", "application/grpc")]).await;
        assert_eq!(grpc.headers()["grpc-status"], "16");
    }

    #[tokio::test(start_paused = true)]
    async fn only_refusals_because_of_a_limit_are_late() {
        let (router, _) = router();
        let headers = [HOST, WHO, ("content-type", "application/grpc")];
        for (path, late) in [("/grpc.A/B", false), ("/grpc.A/Full", true)] {
            let begun = tokio::time::Instant::now();
            ask(&router, Method::POST, path, &headers).await;
            assert_eq!(begun.elapsed() >= SLOWLY, late, "{path}");
        }
    }

    #[test]
    fn a_door_has_the_names_of_its_addresses() {
        let door = Door::of(["http://ctl.example.org:7070/", "scheduler", "https://[fe80::1]:7070", "", "not a name"]);
        for name in ["ctl.example.org", "CTL.example.org.", "scheduler", "[fe80::1]", "localhost", "127.0.0.1"] {
            assert!(door.is_ours(name), "{name}");
        }
        assert!(!door.is_ours("evil.example.org") && !door.is_ours("") && !door.is_ours("not a name"));
    }

    #[tokio::test]
    async fn requests_of_web_pages_are_refused() {
        let (router, metrics) = router();
        let get = async |headers: &[(&str, &str)]| ask(&router, Method::GET, "/metrics", headers).await.status();
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:1", "[::1]:7070", "10.0.0.1", "Scheduler.example.org."] {
            assert_eq!(get(&[("host", host), WHO]).await, StatusCode::OK, "{host}");
        }
        for host in ["evil.example.org", "localhost.evil.example.org", "127.0.0.1.evil.example.org:7070", "", "a b"] {
            assert_eq!(get(&[("host", host), WHO]).await, StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        assert_eq!(get(&[WHO]).await, StatusCode::MISDIRECTED_REQUEST, "no name at all");
        for page in [("origin", "http://evil.example.org"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
            assert_eq!(get(&[HOST, WHO, page]).await, StatusCode::FORBIDDEN, "{page:?}");
        }
        assert_eq!(get(&[HOST, WHO, ("sec-fetch-site", "none")]).await, StatusCode::OK, "typed in by a person");
        let post =
            async |kind: &str| ask(&router, Method::POST, "/grpc.A/B", &[HOST, WHO, ("content-type", kind)]).await;
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc; a=b"] {
            let answer = post(kind).await;
            assert!(answer.status() == StatusCode::OK && !answer.headers().contains_key("grpc-status"), "{kind}");
        }
        for kind in
            ["text/plain", "application/grpc-web", "application/grpc-web+proto", "application/x-www-form-urlencoded"]
        {
            assert_eq!(post(kind).await.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
        }
        let get = ask(&router, Method::GET, "/grpc.A/B", &[HOST, WHO, ("content-type", "application/grpc")]).await;
        assert_eq!(get.headers()["grpc-status"], "3");
        assert!(metrics.refused.with_label_values(&["page"]).get() > 10);
    }

    #[tokio::test]
    async fn a_panic_is_answered() {
        let (router, metrics) = router();
        let plain = ask(&router, Method::GET, "/fail", &[HOST, WHO]).await;
        assert_eq!(plain.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let grpc = ask(&router, Method::GET, "/fail", &[HOST, WHO, ("content-type", "application/grpc+proto")]).await;
        assert_eq!(grpc.headers()["grpc-status"], "13");
        assert_eq!(metrics.panics.get(), 2);
        assert_eq!(ask(&router, Method::GET, "/metrics", &[HOST, WHO]).await.status(), StatusCode::OK);
    }
}
