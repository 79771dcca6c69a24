//! The jobs that call, found by their tokens.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use dashmap::{DashMap, Entry};
use trainmaster_core::JobId;

use crate::token::hash_of;

/// The job of a calling training program, identified by its token alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedCaller {
    /// Hash of the token. None: the call is for a job without a token.
    pub(crate) token: Option<[u8; 32]>,
    /// The job.
    pub job: Option<JobId>,
    /// Owner of the job.
    pub tenant: String,
    /// Maximum number of slots of the job so far.
    pub slots: usize,
}

/// All jobs that may call. Each method takes O(1) and locks a part of the table.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// Two jobs share a token only if their host gave it to both; then the newer one calls.
    jobs: DashMap<[u8; 32], Vec<Known>>,
    /// Number of jobs without a token.
    tokenless: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Known {
    job: JobId,
    tenant: String,
    slots: usize,
}

impl Callers {
    /// The caller with this token.
    ///
    /// # Errors
    /// Why the token is refused.
    pub(crate) fn find(&self, token: Option<&str>) -> Result<FeedCaller, &'static str> {
        let Some(token) = token.map(hash_of) else {
            return match self.tokenless.load(SeqCst) {
                0 => Err("no token: send the job's as metadata \"authorization: Bearer <token>\""),
                _ => Ok(FeedCaller { token: None, job: None, tenant: String::new(), slots: 0 }),
            };
        };
        let jobs = self.jobs.get(&token);
        let known = jobs.as_ref().and_then(|jobs| jobs.last());
        let Known { job, tenant, slots } = known.ok_or("no job has this token, or it ended long ago")?;
        Ok(FeedCaller { token: Some(token), job: Some(*job), tenant: tenant.clone(), slots: *slots })
    }

    /// A job with this token may call. One that may already has another tenant or more slots now.
    pub(crate) fn add(&self, job: JobId, token: Option<[u8; 32]>, tenant: &str, slots: usize) {
        let Some(token) = token else {
            self.tokenless.fetch_add(1, SeqCst);
            return;
        };
        let mut jobs = self.jobs.entry(token).or_default();
        let known = Known { job, tenant: tenant.to_owned(), slots };
        match jobs.iter_mut().find(|known| known.job == job) {
            Some(before) => *before = known,
            None => jobs.push(known),
        }
    }

    /// A job that was added may call no more.
    pub(crate) fn remove(&self, job: JobId, token: Option<[u8; 32]>) {
        let Some(token) = token else {
            // The table may have been cleared meanwhile.
            let _ = self.tokenless.fetch_update(SeqCst, SeqCst, |jobs| jobs.checked_sub(1));
            return;
        };
        if let Entry::Occupied(mut jobs) = self.jobs.entry(token) {
            jobs.get_mut().retain(|known| known.job != job);
            if jobs.get().is_empty() {
                jobs.remove();
            }
        }
    }

    /// A job has more slots than ever.
    pub(crate) fn grown(&self, job: JobId, token: Option<[u8; 32]>, slots: usize) {
        if let Some(mut jobs) = token.and_then(|token| self.jobs.get_mut(&token)) {
            jobs.iter_mut().filter(|known| known.job == job).for_each(|known| known.slots = slots);
        }
    }

    /// Nobody may call any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.jobs.clear();
        self.tokenless.store(0, SeqCst);
    }

    /// Jobs that are added from now on may call.
    pub(crate) fn open(&self) {
        self.closed.store(false, SeqCst);
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_the_newest_job_that_has_it() {
        let callers = Callers::default();
        let token = hash_of("secret");
        assert!(callers.find(Some("secret")).unwrap_err().contains("no job has this token"));
        callers.add(JobId(1), Some(token), "a", 0);
        callers.add(JobId(2), Some(token), "other", 0);
        callers.add(JobId(2), Some(token), "b", 3);
        callers.grown(JobId(1), Some(token), 7);
        let job = |callers: &Callers| callers.find(Some("secret")).map(|caller| (caller.job, caller.slots));
        assert_eq!(job(&callers), Ok((Some(JobId(2)), 3)));
        callers.remove(JobId(2), Some(token));
        assert_eq!(job(&callers), Ok((Some(JobId(1)), 7)));
        callers.remove(JobId(1), Some(token));
        assert!(job(&callers).is_err() && callers.jobs.is_empty());
    }

    #[test]
    fn a_call_without_a_token_needs_a_job_without_one() {
        let callers = Callers::default();
        assert!(callers.find(None).unwrap_err().contains("no token"));
        callers.add(JobId(1), None, "a", 1);
        assert_eq!(callers.find(None).unwrap().job, None);
        callers.remove(JobId(1), None);
        assert!(callers.find(None).is_err());
        callers.add(JobId(2), Some(hash_of("secret")), "a", 1);
        callers.close();
        assert!(callers.is_closed() && callers.find(Some("secret")).is_err());
        callers.open();
        assert!(!callers.is_closed());
    }
}
