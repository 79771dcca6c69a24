//! Ended jobs, whose results are kept for a while.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message;
use serde::{Deserialize, Serialize};
use trainmaster_core::{JobId, job::ExternalId};
use trainmaster_feed::Kept;
use trainmaster_proto::v1;

/// The record of an ended job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndedJob {
    /// Its last status.
    pub(crate) status: v1::JobStatus,
    /// The explanation of its last allocation, as text and as JSON.
    pub(crate) lines: Vec<String>,
    pub(crate) json: String,
    /// Its programs may still call.
    pub(crate) token_hash: Option<[u8; 32]>,
}

/// The stored form. The status has a format of its own, which can grow.
#[derive(Serialize, Deserialize)]
struct Row {
    status: Vec<u8>,
    lines: Vec<String>,
    json: String,
    token_hash: Option<[u8; 32]>,
}

impl EndedJob {
    pub(crate) fn id(&self) -> JobId {
        JobId(self.status.job)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { status, lines, json, token_hash } = self;
        let row =
            Row { status: status.encode_to_vec(), lines: lines.clone(), json: json.clone(), token_hash: *token_hash };
        postcard::to_allocvec(&row).expect("a row is plain data")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Row { status, lines, json, token_hash } = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let status = v1::JobStatus::decode(&*status).map_err(|error| error.to_string())?;
        Ok(Self { status, lines, json, token_hash })
    }
}

/// The latest ended jobs, the newest last. The jobs of one manager or tenant don't displace those of another with
/// fewer.
#[derive(Debug)]
pub(crate) struct EndedJobs {
    /// By time of the end, then by number.
    jobs: BTreeMap<(i64, JobId), Arc<EndedJob>>,
    tenants: Kept<(i64, JobId)>,
}

impl EndedJobs {
    /// Restores the stored jobs. Also returns those that exceed the limit and are forgotten.
    pub(crate) fn new(most: usize, kept: impl IntoIterator<Item = EndedJob>) -> (Self, Vec<JobId>) {
        let mut table = Self { jobs: BTreeMap::new(), tenants: Kept::new(most) };
        let forgotten = kept.into_iter().flat_map(|job| table.add(Arc::new(job))).collect();
        (table, forgotten)
    }

    /// Adds a job, and returns the jobs that are forgotten for it.
    pub(crate) fn add(&mut self, job: Arc<EndedJob>) -> Vec<JobId> {
        // A manager chooses the tenants of its jobs, so all of its tenants are one group.
        let cluster = job.status.external.as_ref().map_or("", |external| &external.cluster);
        let gone = self.tenants.insert(cluster, &job.status.tenant, key(&job));
        self.jobs.insert(key(&job), job);
        gone.iter().filter_map(|key| self.jobs.remove(key)).map(|job| job.id()).collect()
    }

    /// The job with this number, or the latest one with this name.
    pub(crate) fn find(&self, job: &str) -> Option<&Arc<EndedJob>> {
        let number = job.parse().ok().map(JobId);
        self.jobs.values().rev().find(|ended| ended.status.name == job || Some(ended.id()) == number)
    }

    pub(crate) fn get(&self, job: JobId) -> Option<&Arc<EndedJob>> {
        self.jobs.values().rev().find(|ended| ended.id() == job)
    }

    /// The job with this external origin.
    pub(crate) fn of(&self, external: &ExternalId, is_it: impl Fn(&str) -> bool) -> Option<&Arc<EndedJob>> {
        let same = |known: &v1::ExternalId| known.cluster == external.cluster && known.native == external.native;
        let is_it =
            |ended: &&Arc<EndedJob>| is_it(&ended.status.tenant) && ended.status.external.as_ref().is_some_and(same);
        self.jobs.values().rev().find(is_it)
    }

    /// All jobs, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<EndedJob>> {
        self.jobs.values()
    }
}

fn key(job: &EndedJob) -> (i64, JobId) {
    (job.status.ended_ms.unwrap_or_default(), job.id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(job: u64, at: i64) -> EndedJob {
        let status =
            v1::JobStatus { job, name: format!("job{}", job % 2), ended_ms: Some(at), ..v1::JobStatus::default() };
        EndedJob { status, lines: vec!["done".into()], json: "{}".into(), token_hash: Some([7; 32]) }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let (mut table, none) = EndedJobs::new(2, [ended(1, 10)]);
        assert_eq!(none, []);
        assert_eq!(table.add(Arc::new(ended(2, 5))), []);
        assert_eq!(table.add(Arc::new(ended(3, 11))), [JobId(2)]);
        assert_eq!(table.find("job1").unwrap().id(), JobId(3));
        assert_eq!(table.find("1").unwrap().id(), JobId(1));
        assert!(table.find("job0").is_none());
        let other = v1::JobStatus { tenant: "other".into(), ..ended(4, 12).status };
        assert_eq!(table.add(Arc::new(EndedJob { status: other, ..ended(4, 12) })), [JobId(1)]);
        assert_eq!(table.add(Arc::new(ended(5, 13))), [JobId(3)], "its own tenant's");
        let (table, forgotten) = EndedJobs::new(1, table.iter().map(|job| (**job).clone()).collect::<Vec<_>>());
        assert_eq!((table.iter().count(), forgotten), (1, vec![JobId(4)]));
    }

    #[test]
    fn a_row_survives() {
        let job = ended(4, 9);
        assert_eq!(EndedJob::decode(&job.encode()).unwrap(), job);
        assert!(EndedJob::decode(&[1, 2, 3]).is_err());
    }
}
