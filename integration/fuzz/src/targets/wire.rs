//! Messages from the network.

use prost::{Message, Name};
use trainmaster_core::{Event, JobSpec, Scheduler, Settings, Time};
use trainmaster_proto::{job_from_spec, observed, progress, spec_from_job, v1, weigh};

use super::seeds::JOB;
use crate::target::Target;

/// Requests of all kinds, selected by the first byte. They are weighed, decoded if that is allowed, and converted.
pub(super) const MESSAGES: Target =
    Target { name: "messages", run, seeds, words: &["\u{1}", "\u{7f}", "cpu", "gpu:a100"] };

/// Maximum memory of a request here. The codec has a limit for each kind.
const MOST: usize = 4 << 20;

fn decode<M: Message + Name + Default>(bytes: &[u8]) -> Option<M> {
    if weigh(&M::full_name(), bytes) > MOST {
        return None;
    }
    M::decode(bytes).ok()
}

fn run(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 8 {
        0 => {
            let Some(report) = decode::<v1::ReportRequest>(bytes) else { return };
            report.progress.into_iter().for_each(|reported| drop(progress(reported)));
        }
        1 => {
            let job = decode::<v1::SubmitRequest>(bytes).and_then(|request| request.job);
            if let Some(Ok(spec)) = job.map(spec_from_job) {
                take(vec![Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None }]);
            }
        }
        2 => {
            let Some(observation) = decode::<v1::Observation>(bytes) else { return };
            if let Ok(observed) = observed(observation) {
                take(observed.events);
            }
        }
        3 => drop(decode::<v1::WatchRequest>(bytes)),
        4 => drop(decode::<v1::AcknowledgeRequest>(bytes)),
        5 => drop(decode::<v1::CreateTokenRequest>(bytes)),
        6 => drop(v1::Plan::decode(bytes)),
        _ => drop(v1::ListReply::decode(bytes)),
    }
}

/// Applies the events to a scheduler, which may refuse them.
fn take(events: Vec<Event>) {
    let mut scheduler = Scheduler::new(Settings::default()).expect("the defaults are allowed");
    for event in events {
        let _ = scheduler.apply(Time(1), event);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let of = |kind: u8, message: Vec<u8>| [vec![kind], message].concat();
    let spec = JobSpec::from_toml(JOB).expect("the job file is valid");
    let submit = v1::SubmitRequest { job: Some(job_from_spec(&spec)), external: None };
    let times = vec![v1::SlotTime { worker: 3, step_ms: 1.5 }; 3];
    let reported =
        v1::Progress { seq: 1, step: 100, epoch: 1, loss: Some(0.5), slot_times: times, ..Default::default() };
    let report =
        v1::ReportRequest { job: "a".into(), incarnation: 1, progress: vec![reported; 2], ..Default::default() };
    let server = v1::Server {
        name: "node1".into(),
        capacity: [("cpu".to_owned(), 8000), ("memory".to_owned(), 1024)].into(),
        devices: vec![v1::Device { kind: "gpu:a100".into() }; 2],
        ..Default::default()
    };
    let slot = v1::Slot { server: "node1".into(), ..Default::default() };
    let job = v1::ObservedJob { job: 1, incarnation: 1, slots: vec![slot], ..Default::default() };
    let snapshot = v1::Snapshot { servers: vec![server.clone()], jobs: vec![job.clone()], ..Default::default() };
    let delta = v1::Delta { servers: vec![server], servers_left: vec!["node2".into()], jobs: vec![job] };
    let enacted = v1::Enacted { decision: 1, job: 1, cause: "no".into(), ..Default::default() };
    let kinds = [
        v1::observation::Kind::Snapshot(snapshot),
        v1::observation::Kind::Delta(delta),
        v1::observation::Kind::Enacted(enacted),
    ];
    let observations = kinds.map(|kind| v1::Observation { manager: "m".into(), kind: Some(kind) }.encode_to_vec());
    let mut seeds = vec![of(0, report.encode_to_vec()), of(1, submit.encode_to_vec())];
    seeds.extend(observations.map(|observation| of(2, observation)));
    seeds
}
