//! What all calls together may hold in memory: requests that aren't answered yet, and lists that aren't read yet.

use std::{
    pin::Pin,
    sync::{
        Arc,
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
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::Status;

use super::guard::refuse;

/// The stream that managers speak on for as long as they live; whoever may do that is trusted with the cluster.
const ENDLESS: &str = "/trainmaster.v1.Manager/Attach";
/// What is answered with a list of all jobs.
const LISTING: [&str; 3] = ["/jobs", "/trainmaster.v1.Jobs/List", "/trainmaster.v1.Jobs/Watch"];

/// Bounds on what calls hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadLimits {
    /// Bytes of requests that aren't answered yet.
    pub(crate) request_bytes: usize,
    /// How long a request may take to arrive.
    pub(crate) patience: Duration,
    /// Lists of jobs that are being read, watched ones included.
    pub(crate) lists: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { request_bytes: 256 << 20, patience: Duration::from_secs(30), lists: 256 }
    }
}

/// What is held. Clones count together.
#[derive(Clone)]
pub(crate) struct Load {
    limits: LoadLimits,
    held: Arc<AtomicUsize>,
    lists: Arc<Semaphore>,
}

impl Load {
    pub(crate) fn new(limits: LoadLimits) -> Self {
        Self { limits, held: Arc::default(), lists: Arc::new(Semaphore::new(limits.lists)) }
    }
}

/// Counts a request's bytes until it is answered, and a list until it is read.
pub(crate) async fn bound(State(load): State<Load>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == ENDLESS {
        return next.run(request).await;
    }
    let list = LISTING.contains(&path).then(|| load.lists.clone().try_acquire_owned());
    let list = match list.transpose() {
        Ok(list) => list,
        Err(_) => {
            let most = load.limits.lists;
            let status = Status::resource_exhausted(format!("{most} lists are being read, and that is the most"));
            return refuse(&request, status, StatusCode::SERVICE_UNAVAILABLE);
        }
    };
    let held = Arc::new(Held { bytes: AtomicUsize::new(0), all: load.held.clone(), most: load.limits.request_bytes });
    let request = request.map(|body| {
        let patience = Box::pin(sleep(load.limits.patience));
        Body::new(Arriving { body, held: held.clone(), patience })
    });
    // The request counts also once it was read: what is made of it waits in a queue, or for the disk.
    let response = next.run(request).await;
    drop(held);
    match list {
        Some(list) => response.map(|body| Body::new(Leaving { body, _list: list })),
        None => response,
    }
}

/// One call's share.
struct Held {
    bytes: AtomicUsize,
    all: Arc<AtomicUsize>,
    most: usize,
}

impl Held {
    fn add(&self, bytes: usize) -> Result<(), Status> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.most {
            let problem =
                format!("requests of {} bytes wait already, and that is the most; try again later", self.most);
            return Err(Status::resource_exhausted(problem));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// A request on its way in.
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

/// A list on its way out.
struct Leaving {
    body: Body,
    _list: OwnedSemaphorePermit,
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
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
    use axum::{Router, middleware, routing::post};
    use tower::ServiceExt;

    use super::*;

    fn router(limits: LoadLimits) -> Router {
        let length = |body: Bytes| async move { body.len().to_string() };
        let list = || async { "jobs" };
        let router = Router::new().route("/length", post(length)).route("/jobs", post(list));
        router.layer(middleware::from_fn_with_state(Load::new(limits), bound))
    }

    async fn ask(router: &Router, path: &str, body: Body) -> Response {
        router.clone().oneshot(Request::post(path).body(body).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn requests_share_what_they_may_hold() {
        let router = router(LoadLimits { request_bytes: 1000, ..LoadLimits::default() });
        for _ in 0..3 {
            assert_eq!(ask(&router, "/length", Body::from(vec![0; 900])).await.status(), StatusCode::OK);
        }
        assert!(!ask(&router, "/length", Body::from(vec![0; 1001])).await.status().is_success());
        // What is still arriving counts, and is given back whatever became of it.
        let half = futures_util::stream::iter([Ok::<_, axum::Error>(Bytes::from(vec![0; 600]))]);
        let half = Body::from_stream(futures_util::StreamExt::chain(half, futures_util::stream::pending()));
        let mut slow = Box::pin(ask(&router, "/length", half));
        assert!(futures_util::FutureExt::now_or_never(&mut slow).is_none());
        assert!(!ask(&router, "/length", Body::from(vec![0; 600])).await.status().is_success());
        drop(slow);
        assert_eq!(ask(&router, "/length", Body::from(vec![0; 600])).await.status(), StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_is_given_up() {
        let router = router(LoadLimits::default());
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        assert!(!ask(&router, "/length", never).await.status().is_success());
    }

    #[tokio::test]
    async fn a_list_counts_until_it_is_read() {
        let router = router(LoadLimits { lists: 1, ..LoadLimits::default() });
        let unread = ask(&router, "/jobs", Body::empty()).await;
        assert_eq!(ask(&router, "/jobs", Body::empty()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(unread);
        assert_eq!(ask(&router, "/jobs", Body::empty()).await.status(), StatusCode::OK);
    }
}
