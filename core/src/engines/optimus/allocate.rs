//! §4.1: who gets the next worker or parameter server.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use super::{
    Optimus,
    candidate::{Candidate, Unit},
};
use crate::{
    engine::{EngineError, Round, ledger::Ledger, resizing::Resizing},
    shape::Shape,
    state::State,
};

/// The heap hands out units whose gains are within this factor of the first that doesn't fit.
const FLOOD_PRECISION: f64 = 1.02;

impl Optimus {
    /// §4.1: hands out units by marginal gain. Jobs that don't get their smallest shape leave `candidates` with a
    /// reason.
    pub(super) fn allocate(
        &self,
        round: &mut Round<'_>,
        candidates: &mut Vec<Candidate<'_>>,
        ledger: &mut Ledger,
    ) -> Result<(), EngineError> {
        candidates.retain_mut(|candidate| {
            candidate.set_shape(candidate.forecast.bounds.least());
            let least = candidate.forecast.job.total(candidate.shape);
            let fits = ledger.has(candidate.forecast.job, &least);
            if fits {
                ledger.take(candidate.forecast.job, &least, 1);
            } else {
                round.proposal.wait(candidate.forecast.job, ledger.reason(round.state, candidate.forecast.job, &least));
            }
            fits
        });
        self.hand_out(round, candidates, ledger)
    }

    /// Hands out units by marginal gain while they fit.
    pub(super) fn hand_out(
        &self,
        round: &mut Round<'_>,
        candidates: &mut [Candidate<'_>],
        ledger: &mut Ledger,
    ) -> Result<(), EngineError> {
        for candidate in &mut *candidates {
            (candidate.most_workers, candidate.server_fits) =
                if candidate.keeps { (0, false) } else { (u32::MAX, true) };
            candidate.look_ahead(self.joint_steps);
        }
        let mut steps = self.flood(candidates, ledger);
        // Largest gain first; among equal ones the earlier job. The bits of positive floats have the order of the
        // floats.
        let mut heap: BinaryHeap<(u64, Reverse<u32>)> = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.gain >= 0.0)
            .map(|(at, candidate)| (candidate.gain.to_bits(), Reverse(at as u32)))
            .collect();
        while let Some(mut top) = heap.peek_mut() {
            let candidate = &mut candidates[top.1.0 as usize];
            steps += candidate.cost;
            let job = candidate.forecast.job;
            let several;
            let unit = candidate.next.0;
            let amounts = match unit {
                Unit::Worker if candidate.workers == 1 => &candidate.worker,
                Unit::Server => &candidate.server,
                Unit::Worker | Unit::Both => {
                    several = job.total(Shape { workers: candidate.workers, servers: u32::from(unit == Unit::Both) });
                    &several
                }
            };
            if ledger.has(job, amounts) {
                ledger.take(job, amounts, 1);
                candidate.step(self.joint_steps);
            } else {
                // The remaining room only shrinks, so this unit is excluded for the round.
                if unit != Unit::Server {
                    candidate.most_workers = candidate.shape.workers + candidate.workers - 1;
                }
                candidate.server_fits &= unit == Unit::Worker;
                candidate.look_ahead(self.joint_steps);
            }
            if candidate.gain >= 0.0 {
                top.0 = candidate.gain.to_bits();
            } else {
                PeekMut::pop(top);
            }
        }
        round.budget.spend(steps)
    }

    /// Hands out the units that the heap would hand out before the first one that doesn't fit, job by job: all units
    /// above some gain, in any order. That gain is halved until not all units fit, and then approached from above. The
    /// heap does the rest. Returns the number of units.
    fn flood(&self, candidates: &mut [Candidate<'_>], ledger: &mut Ledger) -> u64 {
        let mut steps = 0;
        let mut too_low = 0.0;
        let mut raised = Vec::with_capacity(candidates.len());
        loop {
            let highest = candidates.iter().map(|candidate| candidate.gain).fold(0.0, f64::max);
            let level = if too_low > 0.0 { (highest * too_low).sqrt() } else { highest / 2.0 };
            if highest <= too_low * FLOOD_PRECISION || level <= too_low || level >= highest {
                return steps;
            }
            match self.flood_to(level, candidates, ledger, &mut raised) {
                Some(taken) => steps += taken,
                None => too_low = level,
            }
        }
    }

    /// Hands out all units with a gain above `level`, or none if they don't all fit. `raised` is a reusable buffer.
    fn flood_to(
        &self,
        level: f64,
        candidates: &mut [Candidate<'_>],
        ledger: &mut Ledger,
        raised: &mut Vec<(usize, Shape)>,
    ) -> Option<u64> {
        raised.clear();
        let mut steps = 0;
        let high = candidates.iter_mut().enumerate().filter(|(_, candidate)| candidate.gain > level);
        let mut each_fits = high.map(|(at, candidate)| {
            let before = candidate.shape;
            while candidate.gain > level {
                candidate.step(self.joint_steps);
                steps += candidate.cost;
            }
            let more = candidate.above(before);
            let fits = ledger.has(candidate.forecast.job, &more);
            if fits {
                ledger.take(candidate.forecast.job, &more, 1);
                raised.push((at, before));
            } else {
                candidate.set_shape(before);
                candidate.look_ahead(self.joint_steps);
            }
            fits
        });
        if each_fits.all(|fits| fits) {
            return Some(steps);
        }
        for &(at, before) in &*raised {
            let candidate = &mut candidates[at];
            ledger.take(candidate.forecast.job, &candidate.above(before), -1);
            candidate.set_shape(before);
            candidate.look_ahead(self.joint_steps);
        }
        None
    }
}

/// Reverts a running job's new shape if it doesn't [make up](Resizing::earned) for its restart. In order of arrival.
/// Returns whether any was reverted.
pub(super) fn keep_what_restarts_do_not_earn(
    state: &State,
    resizing: &Resizing,
    candidates: &mut [Candidate<'_>],
    ledger: &mut Ledger,
) -> bool {
    let mut any = false;
    for candidate in candidates {
        let Candidate { forecast, shape, tries, .. } = &*candidate;
        let best = resizing.earned(state, forecast, *shape, *tries, ledger);
        if best != candidate.shape {
            candidate.keeps = true;
            any = true;
            candidate.set_shape(best);
        }
    }
    any
}
