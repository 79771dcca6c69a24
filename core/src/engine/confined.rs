//! Jobs that can't use every server: they don't hold back others where they find no room.

use std::sync::Arc;

use super::{resizing::Homeless, round::Round};
use crate::budget::EngineError;
use crate::{
    batch::BatchRange,
    job::{Job, Launcher, Sizes},
    state::State,
    topology::Topology,
};

/// Number of times that amounts are handed out again which jobs without room leave.
const HANDED_OUT_AGAIN: u32 = 2;

/// What `plan` plans for all jobs but those that it is given. It also returns the jobs that found no room. The confined
/// ones among them are passed over then, so that what they would get goes to others. A plan that exceeds the budget
/// isn't used, if there is one before. Costs a plan, or up to three.
pub(crate) fn planned<'a, P, I>(
    round: &mut Round<'a, I>,
    plan: impl Fn(&mut Round<'a, I>, &Homeless<'a>) -> Result<(P, Homeless<'a>), EngineError>,
) -> Result<P, EngineError> {
    let state = round.state;
    let common = common_labels(state);
    let is_confined = |job: &Job| common.as_ref().is_some_and(|common| !common.hold(job));
    let waits = |job: &Arc<Job>| job.verdict.allocation().is_none();
    let any = state.jobs.values().any(|job| waits(job) && is_confined(job));
    let start = any.then(|| (round.board.clone(), *round.last));
    let mut passed_over = Vec::new();
    let (mut planned, mut homeless) = plan(round, &passed_over)?;
    for _ in 0..HANDED_OUT_AGAIN {
        homeless.retain(|(job, _)| is_confined(job));
        let Some((board, last)) = start.as_ref().filter(|_| !homeless.is_empty()) else { break };
        passed_over.append(&mut homeless);
        let before = (
            std::mem::replace(round.board, board.clone()),
            std::mem::replace(round.last, *last),
            std::mem::take(&mut round.proposal),
        );
        match plan(round, &passed_over) {
            Ok(again) => (planned, homeless) = again,
            Err(EngineError::Exhausted { .. }) => {
                (*round.board, *round.last, round.proposal) = before;
                break;
            }
        }
    }
    Ok(planned)
}

/// The labels that all present servers have.
struct Common<'a>(Vec<(&'a String, &'a String)>);

/// Those labels, if a job that waits has any. O(jobs), and then O(servers).
fn common_labels(state: &State) -> Option<Common<'_>> {
    let waits = |job: &Arc<Job>| job.verdict.allocation().is_none() && !job.spec.labels.is_empty();
    state.jobs.values().any(waits).then(|| {
        let mut servers = state.present_servers();
        let mut all: Vec<_> = servers.next().map_or_else(Vec::new, |server| server.labels.iter().collect());
        for server in servers {
            all.retain(|(label, value)| server.labels.get(*label) == Some(*value));
            if all.is_empty() {
                break;
            }
        }
        Common(all)
    })
}

impl Common<'_> {
    /// Whether all servers have the labels that a job asks for, and it asks for no closeness.
    fn hold(&self, job: &Job) -> bool {
        let is_own = |label: &str| {
            Sizes::is_label(label)
                || Topology::is_label(label)
                || BatchRange::is_label(label)
                || Launcher::is_label(label)
        };
        let asked = job.spec.labels.iter().filter(|(label, _)| !is_own(label));
        job.domain.is_none() && { asked }.all(|asked| self.0.contains(&asked))
    }
}
