//! Limits on the memory of calls, per caller and in total: requests without an answer, and lists that aren't read yet.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
use futures_util::task::AtomicWaker;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::Status;

use crate::{
    Caller, Doorkeeper, Kind, NetMetrics, Peer, Share,
    listen::SENDING,
    refuse,
    shares::{Shares, Taken, What},
};

/// Fixed bytes per call, and per header in addition to its text.
const CALL: usize = 2 << 10;
const HEADER: usize = 64;

/// Limits on all calls together. Callers that are [first](Caller::first) aren't delayed by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// Bytes of unanswered requests and of unsent answers.
    pub request_bytes: usize,
    /// Maximum time for the arrival of a request.
    pub patience: Duration,
    /// Lists that are being read, including watched ones. As many logs may be read besides.
    pub lists: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { request_bytes: 256 << 20, patience: Duration::from_secs(30), lists: 256 }
    }
}

/// The current use. Clones share it.
#[derive(Clone)]
pub(crate) struct Load {
    limits: LoadLimits,
    doorkeeper: Arc<dyn Doorkeeper>,
    metrics: NetMetrics,
    held: Arc<AtomicUsize>,
    lists: Arc<Semaphore>,
    logs: Arc<Semaphore>,
    shares: Shares,
}

impl Load {
    pub(crate) fn new(limits: LoadLimits, doorkeeper: Arc<dyn Doorkeeper>, metrics: NetMetrics) -> Self {
        let turns = || Arc::new(Semaphore::new(limits.lists));
        let (held, lists, logs) = (Arc::default(), turns(), turns());
        Self { limits, doorkeeper, metrics, held, lists, logs, shares: Shares::default() }
    }

    /// Reserves another list or log.
    fn list(&self, what: What, shares: &[Share], first: bool) -> Result<List, Status> {
        let share = self.shares.take(shares, what, 1)?;
        let (turns, word) = if what == What::Logs { (&self.logs, "logs") } else { (&self.lists, "lists") };
        let most = self.limits.lists;
        let full = |_| Status::resource_exhausted(format!("{most} {word} are being read, and that is the most"));
        let turn = (!first).then(|| turns.clone().try_acquire_owned().map_err(full)).transpose()?;
        Ok(List { _share: share, _turn: turn })
    }
}

/// The share of one connection for calls that need no access.
fn nobody(request: &Request) -> Share {
    let from = request.extensions().get::<Peer>().map(|peer| format!(" from {}", peer.address));
    let key = format!("callers without a token{}", from.unwrap_or_default()).into();
    Share { key, bytes: 32 << 10, lists: usize::MAX, connections: usize::MAX }
}

/// Approximate bytes of a call before its body arrives. A page has no message, so its answer is included.
fn weight(kind: Kind, request: &Request) -> usize {
    let headers = request.headers().iter();
    let headers: usize = headers.map(|(name, value)| HEADER + name.as_str().len() + value.len()).sum();
    CALL + headers + if kind == Kind::Page { SENDING } else { 0 }
}

/// Counts a request's bytes, and those of its answer, until the answer is sent, and a list until it is read. A watch
/// counts until its answer begins, because its service has its own limits.
pub(crate) async fn bound(State(load): State<Load>, request: Request, next: Next) -> Response {
    let kind = load.doorkeeper.kind(request.uri().path());
    let caller = request.extensions().get::<Caller>();
    let (shares, first) =
        caller.map_or_else(|| (vec![nobody(&request)], false), |caller| (caller.shares.clone(), caller.first));
    // Callers with an endless stream are trusted with its bytes.
    if kind == Kind::Endless {
        return match load.shares.take(&shares, What::Streams, 1) {
            Ok(share) => {
                let list = List { _share: share, _turn: None };
                next.run(request).await.map(|body| Body::new(Leaving::new(body, Some(Arc::new(list)), None)))
            }
            Err(status) => {
                load.metrics.refused.with_label_values(&["share"]).inc();
                refuse(&request, status, StatusCode::SERVICE_UNAVAILABLE)
            }
        };
    }
    let what = match kind {
        Kind::List | Kind::LongPage => Some(What::Lists),
        Kind::Log => Some(What::Logs),
        _ => None,
    };
    let list = match what.map(|what| load.list(what, &shares, first)).transpose() {
        Ok(list) => list,
        Err(status) => {
            load.metrics.refused.with_label_values(&["share"]).inc();
            return refuse(&request, status, StatusCode::SERVICE_UNAVAILABLE);
        }
    };
    let held = match Held::new(&load, shares, first, weight(kind, &request)) {
        Ok(held) => Arc::new(held),
        Err(status) => return refuse(&request, status, StatusCode::SERVICE_UNAVAILABLE),
    };
    let request = request.map(|body| {
        let patience = Box::pin(sleep(load.limits.patience));
        Body::new(Arriving { body, held: held.clone(), patience })
    });
    // A request counts also after it is read, because its content waits in a queue or for the disk.
    let response = next.run(request).await;
    let held = matches!(kind, Kind::Page | Kind::Call).then_some(held);
    response.map(|body| Body::new(Leaving::new(body, list.map(Arc::new), held)))
}

/// Bytes of one call.
struct Held {
    bytes: AtomicUsize,
    all: Arc<AtomicUsize>,
    most: usize,
    shares: Vec<Share>,
    taken: Mutex<Taken>,
}

impl Held {
    fn new(load: &Load, shares: Vec<Share>, first: bool, weight: usize) -> Result<Self, Status> {
        let most = if first { usize::MAX } else { load.limits.request_bytes };
        let taken = Mutex::new(load.shares.take(&shares, What::Bytes, 0)?);
        let held = Self { bytes: AtomicUsize::new(0), all: load.held.clone(), most, shares, taken };
        held.add(weight)?;
        Ok(held)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: usize) -> Result<(), Status> {
        self.taken().more(&self.shares, bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.most {
            let problem =
                format!("requests of {} bytes wait already, and that is the most; try again later", self.most);
            return Err(Status::resource_exhausted(problem));
        }
        Ok(())
    }

    /// Counts an answer that exists already. If it is too large, other calls are refused.
    fn answer(&self, bytes: usize) {
        self.taken().anyway(&self.shares, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases sent bytes of an answer.
    fn sent(&self, bytes: usize) {
        self.taken().give_back(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// A request during its arrival.
struct Arriving {
    body: Body,
    held: Arc<Held>,
    patience: Pin<Box<Sleep>>,
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(this.patience.as_mut().poll(context));
                return Poll::Ready(Some(Err(Status::deadline_exceeded("the request did not arrive in time").into())));
            }
        };
        Poll::Ready(frame.map(|frame| {
            let frame = frame?;
            this.held.add(frame.data_ref().map_or(0, Bytes::len))?;
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A list or a stream that is being read.
struct List {
    _share: Taken,
    _turn: Option<OwnedSemaphorePermit>,
}

/// An answer during its transmission, one frame at a time. The next frame is created when the last one is sent, because
/// hyper and h2 buffer all frames for slow readers.
struct Leaving {
    body: Body,
    sending: Arc<Sending>,
    held: Option<Arc<Held>>,
    list: Option<Arc<List>>,
}

impl Leaving {
    fn new(body: Body, list: Option<Arc<List>>, held: Option<Arc<Held>>) -> Self {
        Self { body, sending: Arc::default(), held, list }
    }
}

/// Number of bytes in transmission, and the task that waits for them.
#[derive(Default)]
struct Sending {
    bytes: AtomicUsize,
    waiting: AtomicWaker,
}

/// Bytes of a frame, until they are sent or the reader disconnects.
struct OnItsWay {
    bytes: Bytes,
    sending: Arc<Sending>,
    held: Option<Arc<Held>>,
    /// The last piece can be sent after the answer itself is dropped.
    _list: Option<Arc<List>>,
}

impl AsRef<[u8]> for OnItsWay {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.sending.bytes.fetch_sub(self.bytes.len(), Ordering::Release);
        if let Some(held) = &self.held {
            held.sent(self.bytes.len());
        }
        self.sending.waiting.wake();
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        // The end of a short answer goes with its last counted frame.
        let most = if this.held.is_some() { SENDING } else { 0 };
        let is_full = || this.sending.bytes.load(Ordering::Acquire) > most && !this.body.is_end_stream();
        if is_full() {
            this.sending.waiting.register(context.waker());
            // It may have been sent meanwhile.
            if is_full() {
                return Poll::Pending;
            }
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        let leave = |bytes: Bytes| {
            if bytes.is_empty() {
                return bytes;
            }
            if let Some(held) = &this.held {
                held.answer(bytes.len());
            }
            this.sending.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
            let (sending, held, list) = (this.sending.clone(), this.held.clone(), this.list.clone());
            Bytes::from_owner(OnItsWay { bytes, sending, held, _list: list })
        };
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(leave))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, http::HeaderName, middleware, routing::post};
    use prometheus::Registry;
    use tower::ServiceExt;

    use super::*;

    /// An access check that trusts a header.
    struct Names;

    impl Doorkeeper for Names {
        fn kind(&self, path: &str) -> Kind {
            match path {
                "/jobs" => Kind::LongPage,
                "/endless" => Kind::Endless,
                "/watch" => Kind::Watch,
                _ => Kind::Call,
            }
        }

        fn admit(&self, _: &mut Request) -> Result<Option<Caller>, Status> {
            Ok(None)
        }
    }

    fn router(limits: LoadLimits) -> Router {
        let length = |body: Bytes| async move { body.len().to_string() };
        let list = || async { "jobs" };
        let pieces = || async {
            let pieces = ["0"; 3].map(|piece| Ok::<_, axum::Error>(Bytes::from(piece.repeat(20_000))));
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        let router =
            Router::new().route("/length", post(length)).route("/jobs", post(list)).route("/endless", post(list));
        let router = router.route("/pieces", post(pieces)).route("/watch", post(pieces));
        let metrics = NetMetrics::register(&Registry::new()).unwrap();
        router.layer(middleware::from_fn_with_state(Load::new(limits, Arc::new(Names), metrics), bound))
    }

    async fn ask_as(router: &Router, caller: Option<Caller>, path: &str, body: Body) -> Response {
        let mut request = Request::post(path).body(body).unwrap();
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        router.clone().oneshot(request).await.unwrap()
    }

    async fn ask(router: &Router, path: &str, body: Body) -> Response {
        let caller = Caller { name: "somebody".into(), shares: Vec::new(), first: false, standing: None };
        ask_as(router, Some(caller), path, body).await
    }

    fn caller(name: &str, first: bool) -> Option<Caller> {
        let share = Share { key: name.into(), bytes: 60_000, lists: 1, connections: 1 };
        Some(Caller { name: name.into(), shares: vec![share], first, standing: None })
    }

    /// An incomplete body.
    fn half(bytes: usize) -> Body {
        let half = futures_util::stream::iter([Ok::<_, axum::Error>(Bytes::from(vec![0; bytes]))]);
        Body::from_stream(futures_util::StreamExt::chain(half, futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn requests_share_a_limit() {
        let router = router(LoadLimits { request_bytes: 110_000, ..LoadLimits::default() });
        for _ in 0..3 {
            assert_eq!(ask(&router, "/length", Body::from(vec![0; 90_000])).await.status(), StatusCode::OK);
        }
        assert!(!ask(&router, "/length", Body::from(vec![0; 110_001])).await.status().is_success());
        // An incomplete request counts, and is released however it ends.
        let mut slow = Box::pin(ask(&router, "/length", half(60_000)));
        assert!(futures_util::FutureExt::now_or_never(&mut slow).is_none());
        assert!(!ask(&router, "/length", Body::from(vec![0; 60_000])).await.status().is_success());
        drop(slow);
        assert_eq!(ask(&router, "/length", Body::from(vec![0; 60_000])).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn no_caller_takes_the_share_of_another() {
        let router = router(LoadLimits { request_bytes: 110_000, lists: 2, ..LoadLimits::default() });
        let mut greedy: Vec<_> =
            (0..2).map(|_| Box::pin(ask_as(&router, caller("greedy", false), "/length", half(24_000)))).collect();
        for slow in &mut greedy {
            assert!(futures_util::FutureExt::now_or_never(slow).is_none());
        }
        let small = || Body::from(vec![0; 10_000]);
        let status = async |who: Option<Caller>| ask_as(&router, who, "/length", small()).await.status();
        assert!(!status(caller("greedy", false)).await.is_success());
        assert_eq!(status(caller("modest", false)).await, StatusCode::OK);
        // When everything is in use, callers that are first still have access.
        let mut others: Vec<_> = ["a", "b"]
            .map(|name| Box::pin(ask_as(&router, caller(name, false), "/length", half(24_000))))
            .into_iter()
            .collect();
        for slow in &mut others {
            assert!(futures_util::FutureExt::now_or_never(slow).is_none());
        }
        assert!(!status(caller("modest", false)).await.is_success());
        assert_eq!(status(caller("operator", true)).await, StatusCode::OK);

        let list = async |who: Option<Caller>| ask_as(&router, who, "/jobs", Body::empty()).await;
        let unread = [list(caller("greedy", false)).await, list(caller("modest", false)).await];
        assert!(unread.iter().all(|list| list.status().is_success()));
        assert_eq!(list(caller("greedy", false)).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(list(caller("third", false)).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(list(caller("operator", true)).await.status(), StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_request_is_abandoned() {
        let router = router(LoadLimits::default());
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        assert!(!ask(&router, "/length", never).await.status().is_success());
    }

    #[tokio::test]
    async fn a_caller_has_at_most_two_endless_streams() {
        let router = router(LoadLimits::default());
        let speak = || ask_as(&router, caller("manager", false), "/endless", half(1 << 20));
        let (first, _second) = (speak().await, speak().await);
        assert_eq!(speak().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert_eq!(speak().await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn anonymous_bytes_do_not_affect_others() {
        let router = router(LoadLimits { request_bytes: 100 << 10, ..LoadLimits::default() });
        let mut strangers: Vec<_> =
            (0..4).map(|_| Box::pin(ask_as(&router, None, "/length", half(20 << 10)))).collect();
        let mut refused = 0;
        for slow in &mut strangers {
            refused += usize::from(futures_util::FutureExt::now_or_never(slow).is_some());
        }
        assert_eq!(refused, 3);
        let known = ask_as(&router, caller("known", false), "/length", Body::from(vec![0; 40_000])).await;
        assert_eq!(known.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn empty_calls_have_a_weight() {
        let router = router(LoadLimits::default());
        let never = || Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        let mut calls: Vec<_> = (0..100).map(|_| Box::pin(ask_as(&router, None, "/length", never()))).collect();
        let answered = calls.iter_mut().filter_map(futures_util::FutureExt::now_or_never).count();
        assert_eq!(answered, 84, "32 KiB have room for 16 of 2 KiB");
        drop(calls);
        let mut request = Request::post("/length").body(never()).unwrap();
        for header in 0..400 {
            request.headers_mut().insert(format!("h{header}").parse::<HeaderName>().unwrap(), "".parse().unwrap());
        }
        let mut large = Box::pin(router.clone().oneshot(request));
        assert!(futures_util::FutureExt::now_or_never(&mut large).is_none());
        let mut calls: Vec<_> = (0..100).map(|_| Box::pin(ask_as(&router, None, "/length", never()))).collect();
        let answered = calls.iter_mut().filter_map(futures_util::FutureExt::now_or_never).count();
        assert!(answered > 85, "{answered}");
    }

    #[tokio::test]
    async fn an_answer_counts_until_it_is_sent_and_is_sent_by_frame() {
        let router = router(LoadLimits::default());
        let mine = async |path: &str| ask_as(&router, caller("mine", false), path, Body::empty()).await;
        let frame = |body: &mut Body| {
            let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            futures_util::FutureExt::now_or_never(next)
        };
        // A watch has its own limits.
        for (path, counts) in [("/pieces", true), ("/watch", false)] {
            let mut answers = Vec::new();
            for _ in 0..3 {
                let mut body = mine(path).await.into_body();
                let first = frame(&mut body).unwrap().unwrap().unwrap();
                assert!(frame(&mut body).is_none(), "the first isn't sent yet");
                answers.push((body, first));
            }
            let refused = !mine(path).await.status().is_success();
            assert_eq!(refused, counts, "three pieces of 20,000 bytes are more than 60,000 with their calls");
            let (mut body, first) = answers.remove(0);
            drop((answers, first));
            for _ in 0..2 {
                assert_eq!(frame(&mut body).unwrap().unwrap().unwrap().into_data().unwrap().len(), 20_000);
            }
            assert!(frame(&mut body).unwrap().is_none());
            drop(body);
            assert!(mine(path).await.status().is_success());
        }
    }

    #[tokio::test]
    async fn a_list_counts_until_it_is_read() {
        let router = router(LoadLimits { lists: 1, ..LoadLimits::default() });
        let mut list = ask(&router, "/jobs", Body::empty()).await.into_body();
        let last = std::future::poll_fn(|context| Pin::new(&mut list).poll_frame(context)).await;
        assert!(list.is_end_stream());
        drop(list);
        assert_eq!(ask(&router, "/jobs", Body::empty()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(last);
        let unread = ask(&router, "/jobs", Body::empty()).await;
        assert_eq!(ask(&router, "/jobs", Body::empty()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(unread);
        assert_eq!(ask(&router, "/jobs", Body::empty()).await.status(), StatusCode::OK);
    }
}
