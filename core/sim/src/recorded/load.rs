//! Use of the recorded cluster by jobs.

use std::collections::BTreeMap;

use trainmaster_core::{
    ids::JobId,
    resources::{Amounts, CPU, GPU},
    state::State,
    time::Time,
};

#[derive(Clone, Default)]
pub(super) struct Load {
    held: BTreeMap<JobId, Amounts>,
    used: Amounts,
    /// Unit-seconds of GPUs and cores, used and available, while there were jobs.
    taken: [f64; 2],
    there: [f64; 2],
}

impl Load {
    pub(super) fn new(state: &State) -> Self {
        Self::default().jump(state)
    }

    /// Continues with the use in this state.
    pub(super) fn jump(&self, state: &State) -> Self {
        let mut load = Self { held: BTreeMap::new(), used: Amounts::default(), ..self.clone() };
        let ids: Vec<JobId> = state.jobs.keys().chain(state.leaving_jobs().keys()).copied().collect();
        ids.into_iter().for_each(|id| load.observed(state, id));
        load
    }

    /// Records a possible change of a job's observed slots.
    pub(super) fn observed(&mut self, state: &State, id: JobId) {
        if let Some(before) = self.held.remove(&id) {
            self.used -= &before;
        }
        let job = state.known_job(id);
        if let Some((job, seen)) = job.and_then(|job| Some((job, job.seen.allocation.as_ref()?))) {
            let now = job.total(seen.shape());
            self.used += &now;
            self.held.insert(id, now);
        }
    }

    /// Adds the time until `to`.
    pub(super) fn pass(&mut self, state: &State, to: Time) {
        if state.jobs.is_empty() {
            return;
        }
        let seconds = (to - state.now).as_seconds();
        for (at, kind) in [GPU, CPU].into_iter().enumerate() {
            self.taken[at] += self.used[kind] as f64 * seconds;
            self.there[at] += state.capacity[kind] as f64 * seconds;
        }
    }

    /// Used fraction of the GPUs, or of the cores if there are no GPUs.
    pub(super) fn utilisation(&self) -> f64 {
        let share = |at: usize| (self.there[at] > 0.0).then(|| self.taken[at] / self.there[at]);
        share(0).or_else(|| share(1)).unwrap_or(0.0)
    }
}
