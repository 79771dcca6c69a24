//! The best schedule of one job at given prices: the exact optimum of Alg. 2, without its D² work.
//!
//! For one end slot it is a multiple-choice knapsack: slots are classes, numbers of workers are their items, and D is
//! the work to cover at minimum cost. Its linear relaxation takes the corners of all slots' curves by slope, and breaks
//! in one of them. The other slots stay at corners. Mostly a few slots that leave their corners complete the solution
//! ([`knapsack`]).
//!
//! Over the end slots, the search is best-first. Worth never grows and cost never falls with time. So a range of end
//! slots is bounded by the worth of its first slot and the relaxed cost of its last one, and almost all of them are
//! never examined. If the knapsack doesn't settle some candidates, one [`pass`] over all slots does, with few choices
//! each.
//!
//! Costs and worths are integers, so every method of search finds exactly the same payoff.
//!
//! [`knapsack`]: super::knapsack
//! [`pass`]: super::pass

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    curve::{Curve, Slope},
    knapsack::{Covered, Group, cover},
    pass::{End, NEVER, pass},
};
use crate::engine::{Budget, EngineError};

/// The scheduling problem of one job. Work and the sum of all costs must be below 2^62.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// D: the total work.
    pub work: u64,
    /// Curves. Slots with equal prices share one.
    pub curves: Vec<Curve>,
    /// Index of the curve of each slot, in order of time.
    pub slots: Vec<u32>,
    /// Worth of an end in each slot. It never increases.
    pub worth: Vec<i64>,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The slot in which the work ends.
    pub end: usize,
    /// Work in each slot up to the end.
    pub work: Vec<u64>,
    /// Cost of the schedule.
    pub cost: u64,
    /// Worth − cost. The job is admitted if it is above 0.
    pub payoff: i64,
}

/// The schedule with the highest payoff; among equal ones the earliest end, then the least work in the last slot.
/// `None` if the work doesn't fit in the slots.
///
/// # Errors
/// The budget is used up.
pub fn best(problem: &Problem, budget: &mut Budget) -> Result<Option<Schedule>, EngineError> {
    let mut search = Search::new(problem);
    let Some(first) = search.first_end() else { return Ok(None) };
    let mut found = Found { problem, best: None };
    let mut unsettled: Vec<usize> = Vec::new();
    // Ranges of end slots by their bound, then the earliest.
    let mut ranges = BinaryHeap::new();
    ranges.push((i64::MAX, Reverse(first), problem.slots.len() - 1));
    while let Some((promised, Reverse(from), to)) = ranges.pop() {
        if !found.beaten_by(promised, from) {
            continue;
        }
        let promise = problem.worth[from].saturating_sub_unsigned(search.bound(to, budget)?.0);
        if !found.beaten_by(promise, from) {
            continue;
        }
        if promise < promised && promised != i64::MAX {
            ranges.push((promise, Reverse(from), to));
            continue;
        }
        if problem.worth[from] != problem.worth[to] {
            let middle = from + (to - from) / 2;
            for (from, to) in [(from, middle), (middle + 1, to)] {
                let promise = problem.worth[from].saturating_sub_unsigned(search.bound(to, budget)?.0);
                ranges.push((promise, Reverse(from), to));
            }
            continue;
        }
        // The last slot is the cheapest. The first slot with the same cost wins. If a pass is needed anyway, further
        // ends in it cost little.
        match search.solve(to, found.limit(to, from), None, unsettled.is_empty(), budget)? {
            Covered::Dear => {}
            Covered::Unsettled(known) => {
                unsettled.extend(from..=to);
                if let Some((cost, work)) = known {
                    found.take(to, cost, work);
                }
            }
            Covered::Cheapest(cost, mut work) => {
                let (mut low, mut high) = (from, to);
                while low < high {
                    let middle = low + (high - low) / 2;
                    match search.solve(middle, cost + 1, None, true, budget)? {
                        Covered::Cheapest(_, sooner) => (high, work) = (middle, sooner),
                        Covered::Dear => low = middle + 1,
                        Covered::Unsettled(_) => {
                            unsettled.extend(low..high);
                            break;
                        }
                    }
                }
                found.take(high, cost, work);
            }
        }
    }
    let mut open = Vec::new();
    for slot in unsettled {
        let (bound, slope) = search.bound(slot, budget)?;
        let limit = found.limit(slot, slot);
        if bound < limit {
            open.push(End { slot, limit, slope });
        }
    }
    if let Some((end, cost, work)) = pass(problem, &open, budget)? {
        return Ok(Some(Schedule::new(problem, end, cost, work)));
    }
    let Some((_, end, work)) = found.best else { return Ok(None) };
    search.finish(end, work, budget).map(Some)
}

/// A payoff that no schedule exceeds: the best one of the linear relaxations, or less exact if that takes more steps
/// than the budget has. `None` if the work doesn't fit in the slots.
pub(super) fn promised(problem: &Problem, budget: &mut Budget) -> Option<i64> {
    let mut search = Search::new(problem);
    let first = search.first_end()?;
    let mut ranges = BinaryHeap::from([(i64::MAX, Reverse(first), problem.slots.len() - 1)]);
    while let Some((promised, Reverse(from), to)) = ranges.pop() {
        // This range has the largest bound of all.
        let settled = promised != i64::MAX && problem.worth[from] == problem.worth[to];
        if settled || budget.spend(to as u64).is_err() {
            return Some(promised.min(problem.worth[first]));
        }
        let middle = from + (to - from) / 2;
        let halves = if from == to { vec![(from, to)] } else { vec![(from, middle), (middle + 1, to)] };
        for (from, to) in halves {
            let cost = search.bound(to, budget).map_or(0, |(cost, _)| cost);
            ranges.push((problem.worth[from].saturating_sub_unsigned(cost), Reverse(from), to));
        }
    }
    None
}

/// The schedule with the earliest end, and the cheapest of these. `None` if the work doesn't fit in the slots.
///
/// # Errors
/// The budget is used up.
pub fn earliest(problem: &Problem, budget: &mut Budget) -> Result<Option<Schedule>, EngineError> {
    let mut search = Search::new(problem);
    let Some(slot) = search.first_end() else { return Ok(None) };
    let limit = match search.solve(slot, u64::MAX, None, true, budget)? {
        Covered::Cheapest(_, work) => return search.finish(slot, work, budget).map(Some),
        Covered::Unsettled(Some((cost, _))) => cost + 1,
        Covered::Unsettled(None) | Covered::Dear => NEVER,
    };
    let (_, slope) = search.bound(slot, budget)?;
    let found = pass(problem, &[End { slot, limit, slope }], budget)?;
    Ok(found.map(|(end, cost, work)| Schedule::new(problem, end, cost, work)))
}

impl Schedule {
    fn new(problem: &Problem, end: usize, cost: u64, work: Vec<u64>) -> Self {
        Self { end, work, cost, payoff: problem.worth[end].saturating_sub_unsigned(cost) }
    }
}

/// The best schedule so far: payoff, end, work by slot.
struct Found<'a> {
    problem: &'a Problem,
    best: Option<(i64, usize, Vec<u64>)>,
}

impl Found<'_> {
    /// Whether a payoff of `promise` with an end from this slot on is better.
    fn beaten_by(&self, promise: i64, from: usize) -> bool {
        self.best.as_ref().is_none_or(|(payoff, end, _)| (promise, Reverse(from)) > (*payoff, Reverse(*end)))
    }

    /// The cost from which an end can't win. A schedule with the same payoff wins if it may end as early as `from`.
    fn limit(&self, end: usize, from: usize) -> u64 {
        let Some((payoff, best, _)) = &self.best else { return NEVER };
        let limit = i128::from(self.problem.worth[end]) - i128::from(*payoff) + i128::from(from < *best);
        u64::try_from(limit).unwrap_or(0)
    }

    fn take(&mut self, end: usize, cost: u64, work: Vec<u64>) {
        let payoff = self.problem.worth[end].saturating_sub_unsigned(cost);
        if self.beaten_by(payoff, end) {
            self.best = Some((payoff, end, work));
        }
    }
}

struct Search<'a> {
    problem: &'a Problem,
    /// All steps between corners of all curves, cheapest work first: (slope, curve, level).
    steps: Vec<(Slope, u32, u32)>,
    /// Relaxed costs by end slot, and the slopes at which the relaxations break.
    relaxed: BTreeMap<usize, (u64, Slope)>,
    /// Lower bounds of the cost of all ends up to a slot, from exact solutions.
    known: Vec<(usize, u64)>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem) -> Self {
        debug_assert!(problem.worth.is_sorted_by(|a, b| a >= b));
        let mut steps: Vec<_> = problem
            .curves
            .iter()
            .enumerate()
            .flat_map(|(at, curve)| {
                (1..curve.corners()).map(move |level| (curve.slope(level - 1), at as u32, level as u32))
            })
            .collect();
        steps.sort_by(|a, b| a.0.cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        Self { problem, steps, relaxed: BTreeMap::new(), known: Vec::new() }
    }

    /// The earliest slot by whose end all work can be done.
    fn first_end(&self) -> Option<usize> {
        let mut sum = 0_u64;
        self.problem.slots.iter().position(|curve| {
            sum = sum.saturating_add(self.problem.curves[*curve as usize].most());
            sum >= self.problem.work
        })
    }

    /// Number of slots before `end` with each curve.
    fn counts(&self, end: usize) -> Vec<u32> {
        let mut counts = vec![0; self.problem.curves.len()];
        for curve in &self.problem.slots[..end] {
            counts[*curve as usize] += 1;
        }
        counts
    }

    /// A lower bound of the cost of schedules that end in a slot up to this one, and the slope at which the relaxation
    /// breaks.
    fn bound(&mut self, end: usize, budget: &mut Budget) -> Result<(u64, Slope), EngineError> {
        let known = self.known.iter().filter(|(at, _)| *at >= end).map(|(_, cost)| *cost).max().unwrap_or(0);
        if let Some((cost, slope)) = self.relaxed.get(&end) {
            return Ok((known.max(*cost), *slope));
        }
        let counts = self.counts(end + 1);
        let (mut left, mut cost) = (self.problem.work, 0_u64);
        let mut broken = Slope { rise: 0, run: 1 };
        for (passed, (slope, curve, _)) in self.steps.iter().enumerate() {
            let slots = u64::from(counts[*curve as usize]);
            let whole = slope.run.saturating_mul(slots);
            if whole < left {
                left -= whole;
                cost = cost.saturating_add(slope.rise.saturating_mul(slots));
                continue;
            }
            let part = (u128::from(slope.rise) * u128::from(left)).div_ceil(u128::from(slope.run));
            cost = cost.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
            broken = *slope;
            budget.spend(passed as u64)?;
            break;
        }
        self.relaxed.insert(end, (cost, broken));
        Ok((known.max(cost), broken))
    }

    /// The cheapest schedule that ends in this slot (which may stay empty), if its cost is below `limit`, with at most
    /// `last` work in that slot. Returns the work of each slot, in total no more than required.
    fn solve(
        &mut self,
        end: usize,
        limit: u64,
        last: Option<u64>,
        thorough: bool,
        budget: &mut Budget,
    ) -> Result<Covered<Vec<u64>>, EngineError> {
        if last.is_none() && self.bound(end, budget)?.0 >= limit {
            return Ok(Covered::Dear);
        }
        let problem = self.problem;
        let of_end = problem.slots[end] as usize;
        let restricted = last.map(|most| problem.curves[of_end].up_to(most));
        let counts = self.counts(end + 1 - usize::from(last.is_some()));
        let mut groups: Vec<Group<'_>> =
            problem.curves.iter().zip(&counts).map(|(curve, count)| Group { curve, count: *count }).collect();
        let extra = groups.len() as u32;
        groups.extend(restricted.iter().map(|curve| Group { curve, count: 1 }));
        let own = restricted
            .iter()
            .flat_map(|curve| (1..curve.corners()).map(move |level| (curve.slope(level - 1), extra, level as u32)));
        let steps = merge(self.steps.iter().copied(), own);
        let covered = cover(&groups, steps, problem.work, limit, thorough, budget)?;
        match &covered {
            Covered::Dear if last.is_none() => self.known.push((end, limit)),
            Covered::Cheapest(cost, _) if last.is_none() => self.known.push((end, *cost)),
            _ => {}
        }
        Ok(covered.map(|mut chosen| {
            // Among equal slots the earlier one does more.
            chosen.iter_mut().for_each(|choices| choices.sort_unstable());
            let mut take = |group: usize| {
                let choice = chosen[group].pop().expect("a choice for each slot");
                groups[group].curve.choices()[choice as usize].work
            };
            let mut work: Vec<u64> = problem.slots[..end].iter().map(|curve| take(*curve as usize)).collect();
            work.push(take(if last.is_some() { extra as usize } else { of_end }));
            let mut excess = work.iter().sum::<u64>() - problem.work;
            for done in work.iter_mut().rev() {
                let less = excess.min(*done);
                *done -= less;
                excess -= less;
            }
            work
        }))
    }

    /// Minimises the work in the last slot at the same cost.
    fn finish(&mut self, end: usize, mut work: Vec<u64>, budget: &mut Budget) -> Result<Schedule, EngineError> {
        let problem = self.problem;
        let choice = |(curve, work): (&u32, &u64)| problem.curves[*curve as usize].choice_for(*work);
        let cost = problem.slots.iter().zip(&work).filter_map(choice).map(|choice| choice.cost).sum();
        let (mut low, mut high) = (0, work[end]);
        // Mostly there is no alternative at this cost, so one less is tried first.
        let mut middle = high.saturating_sub(1);
        while low < high {
            match self.solve(end, cost + 1, Some(middle), true, budget)? {
                Covered::Cheapest(_, other) => (high, work) = (other[end], other),
                Covered::Dear => low = middle + 1,
                Covered::Unsettled(_) => {
                    let (_, slope) = self.bound(end, budget)?;
                    let found = pass(problem, &[End { slot: end, limit: cost + 1, slope }], budget)?;
                    let (end, cost, work) = found.expect("there is one of this cost");
                    return Ok(Schedule::new(problem, end, cost, work));
                }
            }
            middle = low + high.saturating_sub(low) / 2;
        }
        Ok(Schedule::new(problem, end, cost, work))
    }
}

/// Merges two lists that are sorted by slope.
fn merge(
    a: impl Iterator<Item = (Slope, u32, u32)>,
    b: impl Iterator<Item = (Slope, u32, u32)>,
) -> impl Iterator<Item = (Slope, u32, u32)> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(left), Some(right)) if right.0.cmp(&left.0).is_lt() => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}
