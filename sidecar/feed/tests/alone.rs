//! The feed without a daemon: a host of twenty lines, a server, a client.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, transport::Server};
use trainmaster_core::{Incarnation, JobId, Role};
use trainmaster_feed::{
    Acknowledgement, Feed, FeedHost, FeedMetrics, FeedService, JobAssignment, Limits, Standing, Token, Unavailable,
};
use trainmaster_proto::{
    Progress,
    v1::{self, feed_client::FeedClient},
};

/// A host that takes odd sequence numbers only, and nothing while it is away.
#[derive(Default)]
struct Odd {
    away: AtomicBool,
    acknowledged: Mutex<Vec<Acknowledgement>>,
}

#[async_trait::async_trait]
impl FeedHost for Odd {
    async fn report(
        &self,
        _: JobId,
        _: Incarnation,
        _: (Role, u32),
        progress: Vec<Progress>,
    ) -> Result<Vec<Result<(), String>>, Unavailable> {
        if self.away.load(Ordering::SeqCst) {
            return Err(Unavailable("away".into()));
        }
        let answer = |progress: &Progress| if progress.report.seq % 2 == 1 { Ok(()) } else { Err("even".into()) };
        Ok(progress.iter().map(answer).collect())
    }

    async fn acknowledge(&self, acknowledgement: Acknowledgement) {
        self.acknowledged.lock().unwrap().push(acknowledgement);
    }
}

struct Site {
    feed: Feed,
    host: Arc<Odd>,
    client: FeedClient<tonic::transport::Channel>,
}

async fn site(limits: Limits) -> Site {
    let feed = Feed::new(limits, FeedMetrics::register(&Registry::new()).unwrap());
    let host = Arc::new(Odd::default());
    let service = FeedService::new(feed.clone(), host.clone()).into_server();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(async move { Server::builder().add_service(service).serve_with_incoming(incoming).await });
    Site { feed, host, client: FeedClient::connect(format!("http://{address}")).await.unwrap() }
}

fn given(name: &str, incarnation: u32, token: Option<&Token>) -> JobAssignment {
    JobAssignment {
        name: name.into(),
        token_hash: token.map(Token::hash),
        incarnation: Incarnation(incarnation),
        standing: Standing::Run,
        slots: vec![v1::Slot { server: "a".into(), ..v1::Slot::default() }],
        ..JobAssignment::default()
    }
}

fn report(job: &str, sequence: &[u64]) -> v1::ReportRequest {
    let progress = sequence.iter().map(|seq| v1::Progress { seq: *seq, ..v1::Progress::default() }).collect();
    v1::ReportRequest { job: job.into(), incarnation: 1, progress, ..v1::ReportRequest::default() }
}

#[tokio::test]
async fn the_host_judges_reports_and_the_feed_remembers_them() {
    let mut site = site(Limits::default()).await;
    site.feed.set(JobId(4), given("one", 1, None));
    // A job without a token needs none.
    let reply = site.client.report(report("one", &[1, 2, 3])).await.unwrap().into_inner();
    assert_eq!((reply.accepted, reply.reason.as_str()), (false, "1 of 3 ignored: even"));
    assert!(site.client.report(report("4", &[5])).await.unwrap().into_inner().accepted);
    let watch = || v1::WatchRequest { job: "one".into(), incarnation: 1, ..v1::WatchRequest::default() };
    let mut stream = site.client.watch(watch()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().last_seq, 5);

    site.host.away.store(true, Ordering::SeqCst);
    let away = site.client.report(report("one", &[7])).await.unwrap_err();
    assert_eq!((away.code(), away.message()), (Code::Unavailable, "away"));

    // Irrelevant changes aren't sent: an equal assignment isn't, another incarnation is.
    site.feed.set(JobId(4), given("one", 1, None));
    site.feed.set(JobId(4), given("one", 2, None));
    let next = stream.message().await.unwrap().unwrap();
    assert_eq!((next.incarnation, next.last_seq), (2, 0));

    let leaving =
        v1::AcknowledgeRequest { job: "one".into(), incarnation: 1, checkpoint_ms: f64::NAN, ..Default::default() };
    site.client.acknowledge(leaving).await.unwrap();
    assert_eq!(site.host.acknowledged.lock().unwrap()[0].job, JobId(4));
}

#[tokio::test]
async fn a_program_has_left_once_it_said_so_and_its_stream_is_closed() {
    let mut site = site(Limits::default()).await;
    site.feed.set(JobId(4), given("one", 1, None));
    let has_left = |index| site.feed.has_left(JobId(4), Incarnation(1), (Role::Worker, index));
    let address = "here:1".to_owned();
    let watch = v1::WatchRequest { job: "one".into(), incarnation: 1, address, ..v1::WatchRequest::default() };
    let mut stream = site.client.watch(watch).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let leaving = |incarnation, index| v1::AcknowledgeRequest {
        job: "one".into(),
        incarnation,
        index,
        leaving: true,
        ..v1::AcknowledgeRequest::default()
    };
    site.client.acknowledge(v1::AcknowledgeRequest { leaving: false, ..leaving(1, 0) }).await.unwrap();
    site.client.acknowledge(leaving(2, 0)).await.unwrap();
    assert!(!has_left(0), "it stays, and the job has no other incarnation");
    site.client.acknowledge(leaving(1, 0)).await.unwrap();
    assert!(!has_left(0), "it is still there");
    drop(stream);
    let leaves = async {
        while !has_left(0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), leaves).await.expect("its stream is closed");
    // A job's programs can't fill the memory with slots that it doesn't have.
    for index in 1..1000 {
        site.client.acknowledge(leaving(1, index)).await.unwrap();
    }
    assert!((1..1000).all(|index| !has_left(index)));
    site.feed.set(JobId(4), given("one", 2, None));
    assert!(!has_left(0), "that was another incarnation's");
}

#[tokio::test]
async fn ended_jobs_keep_their_state_until_they_are_forgotten() {
    let mut site = site(Limits { ended_jobs: 1, ..Limits::default() }).await;
    let token = Token::new([3; 16]);
    for (id, name) in [(1, "one"), (2, "two")] {
        site.feed.set(JobId(id), given(name, 1, Some(&token)));
    }
    let watch = |job: &str| {
        let mut request = Request::new(v1::WatchRequest { job: job.into(), ..v1::WatchRequest::default() });
        request.metadata_mut().insert("authorization", format!("Bearer {}", token.reveal()).parse().unwrap());
        request
    };
    let mut stream = site.client.watch(watch("one")).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().phase(), v1::AssignmentPhase::Run);
    let over = |name: &str| JobAssignment { standing: Standing::Over, ..given(name, 1, Some(&token)) };
    site.feed.set(JobId(1), over("one"));
    assert_eq!(stream.message().await.unwrap().unwrap().phase(), v1::AssignmentPhase::Stop);
    // Its name still refers to it, until another job has it.
    let mut late = site.client.watch(watch("one")).await.unwrap().into_inner();
    assert_eq!(late.message().await.unwrap().unwrap().job, 1);
    site.feed.set(JobId(3), given("one", 1, Some(&token)));
    let mut newer = site.client.watch(watch("one")).await.unwrap().into_inner();
    assert_eq!(newer.message().await.unwrap().unwrap().job, 3);

    site.feed.set(JobId(2), over("two"));
    assert_eq!(stream.message().await.unwrap_err().code(), Code::NotFound);
    assert_eq!(site.client.watch(watch("1")).await.unwrap_err().code(), Code::NotFound);
    site.feed.close();
    assert_eq!(newer.message().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(site.client.watch(watch("one")).await.unwrap_err().code(), Code::Unavailable);
    site.feed.set(JobId(3), given("one", 1, Some(&token)));
    site.feed.open();
    let mut again = site.client.watch(watch("one")).await.unwrap().into_inner();
    assert_eq!(again.message().await.unwrap().unwrap().job, 3);
}
