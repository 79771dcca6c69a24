//! The cheapest schedules for several end slots in one pass over the slots. The pass computes the cost of each amount
//! of work by the end of a slot from the costs by the end of the previous one (Alg. 2's recursion in the other
//! direction).
//!
//! Only few choices are examined. For any price λ of work, define a choice's *regret* as its cost above that of the
//! slot's best choice, both less λ times their work. A schedule costs at least the Lagrangian bound plus the regrets of
//! its choices. So a schedule below the limit has no choice whose regret reaches the gap between the two. λ is the
//! slope at which the relaxation breaks. Then most slots have one remaining choice.

use super::{
    curve::{Choice, Slope},
    search::Problem,
};
use crate::engine::{Budget, EngineError};

/// An unreachable cost. Its double still fits the type.
pub(super) const NEVER: u64 = 1 << 62;
/// Maximum number of stored costs. If there are more, only those of every √T-th slot are stored.
const MOST_KEPT: usize = 1 << 22;

/// A candidate for the best end slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) slot: usize,
    /// Costs from this limit on are useless.
    pub(super) limit: u64,
    /// λ.
    pub(super) slope: Slope,
}

/// The best of these end slots (the earliest among equal payoffs), its cost, and the work of each slot up to it, with
/// the least work in the last one. `None` if none has a schedule below its limit.
///
/// # Errors
/// The budget is used up.
pub(super) fn pass(
    problem: &Problem,
    ends: &[End],
    budget: &mut Budget,
) -> Result<Option<(usize, u64, Vec<u64>)>, EngineError> {
    let mut pass = Pass { problem, kept: vec![Vec::new(); problem.curves.len()], work: problem.work as usize };
    let ends = pass.keep(ends, budget)?;
    let Some(last) = ends.iter().map(|end| end.slot).max() else { return Ok(None) };
    let every = if (last + 1).saturating_mul(pass.work + 1) <= MOST_KEPT { 1 } else { (last + 1).isqrt().max(1) };
    // Before the first slot no work is done.
    let mut costs = Costs { from: 0, costs: vec![0] };
    let mut stations = Vec::new();
    let mut best: Option<(i64, End, u64)> = None;
    for slot in 0..=last {
        if slot % every == 0 {
            stations.push(costs.clone());
        }
        costs = pass.next(&costs, slot, budget)?;
        let Some(end) = ends.iter().find(|end| end.slot == slot) else { continue };
        let cost = costs.of(pass.work);
        let payoff = problem.worth[slot].saturating_sub_unsigned(cost);
        if cost < end.limit && best.is_none_or(|(most, ..)| payoff > most) {
            best = Some((payoff, *end, cost));
        }
    }
    let Some((_, end, cost)) = best else { return Ok(None) };
    let work = pass.back(end.slot, cost, &stations, every, budget)?;
    Ok(Some((end.slot, cost, work)))
}

/// Costs of amounts of work by the end of a slot. Amounts outside the range are unreachable.
#[derive(Clone, Debug)]
struct Costs {
    from: usize,
    costs: Vec<u64>,
}

impl Costs {
    fn of(&self, work: usize) -> u64 {
        work.checked_sub(self.from).and_then(|at| self.costs.get(at)).copied().unwrap_or(NEVER)
    }
}

struct Pass<'a> {
    problem: &'a Problem,
    /// By curve, the choices that can be part of a schedule below its limit.
    kept: Vec<Vec<Choice>>,
    work: usize,
}

impl Pass<'_> {
    /// Selects the choices. Returns the ends whose bound is below their limit.
    fn keep(&mut self, ends: &[End], budget: &mut Budget) -> Result<Vec<End>, EngineError> {
        let problem = self.problem;
        let mut left = ends.to_vec();
        let mut possible = Vec::new();
        let mut kept: Vec<Vec<bool>> = problem.curves.iter().map(|curve| vec![false; curve.choices().len()]).collect();
        while let Some(&End { slope, .. }) = left.first() {
            let (same, others): (Vec<End>, Vec<End>) = left.into_iter().partition(|end| end.slope == slope);
            left = others;
            let (rise, run) = (i128::from(slope.rise), i128::from(slope.run));
            let value = |choice: &Choice| i128::from(choice.cost) * run - i128::from(choice.work) * rise;
            let all: usize = kept.iter().map(Vec::len).sum();
            budget.spend((2 * all + problem.slots.len()) as u64)?;
            let least: Vec<i128> =
                problem.curves.iter().map(|curve| curve.choices().iter().map(value).min().unwrap_or(0)).collect();
            let mut bound = i128::from(problem.work) * rise;
            let mut widest = 0;
            for (slot, curve) in problem.slots.iter().enumerate() {
                bound += least[*curve as usize];
                for end in same.iter().filter(|end| end.slot == slot) {
                    let gap = i128::from(end.limit) * run - bound;
                    if gap > 0 {
                        widest = widest.max(gap);
                        possible.push(*end);
                    }
                }
            }
            for ((curve, kept), least) in problem.curves.iter().zip(&mut kept).zip(&least) {
                for (choice, kept) in curve.choices().iter().zip(kept) {
                    *kept |= value(choice) - least < widest;
                }
            }
        }
        for ((curve, kept), list) in problem.curves.iter().zip(&kept).zip(&mut self.kept) {
            list.extend(curve.choices().iter().zip(kept).filter(|(_, kept)| **kept).map(|(choice, _)| *choice));
        }
        Ok(possible)
    }

    /// Adds one slot. All amounts beyond the work are equivalent to the work.
    fn next(&self, before: &Costs, slot: usize, budget: &mut Budget) -> Result<Costs, EngineError> {
        let choices = &self.kept[self.problem.slots[slot] as usize];
        let (Some(fewest), Some(most)) = (choices.first(), choices.last()) else {
            return Ok(Costs { from: 0, costs: Vec::new() });
        };
        let capped = |work: usize| work.min(self.work);
        let from = capped(before.from + fewest.work as usize);
        let to = capped(before.from + before.costs.len().saturating_sub(1) + most.work as usize);
        let mut costs = vec![NEVER; to + 1 - from];
        // One addition and one minimum, vectorised over many amounts.
        budget.spend(1 + (choices.len() * before.costs.len()) as u64 / 16)?;
        for choice in choices {
            let first = before.from + choice.work as usize;
            let whole = before.costs.len().min((self.work + 1).saturating_sub(first));
            let (exact, beyond) = before.costs.split_at(whole);
            if whole > 0 {
                for (cost, before) in costs[first - from..].iter_mut().zip(exact) {
                    *cost = (*cost).min(before + choice.cost);
                }
            }
            if let (Some(least), Some(all)) = (beyond.iter().min(), costs.last_mut()) {
                *all = (*all).min(least + choice.cost);
            }
        }
        costs.iter_mut().for_each(|cost| *cost = (*cost).min(NEVER));
        Ok(Costs { from, costs })
    }

    /// The work of each slot of a cheapest schedule: as little as possible in the last slot, the rest in the others.
    fn back(
        &self,
        end: usize,
        cost: u64,
        stations: &[Costs],
        every: usize,
        budget: &mut Budget,
    ) -> Result<Vec<u64>, EngineError> {
        let mut work = vec![0; end + 1];
        let (mut left, mut cost) = (self.work, cost);
        let mut slot = end + 1;
        while slot > 0 {
            let station = (slot - 1) / every;
            let mut known = vec![stations[station].clone()];
            for at in station * every..slot - 1 {
                let next = self.next(&known[known.len() - 1], at, budget)?;
                known.push(next);
            }
            while let Some(before) = known.pop() {
                slot -= 1;
                // In the last slot, the choice that leaves most work to the others. In the others, any exact one.
                let fitting = self.kept[self.problem.slots[slot] as usize].iter().filter_map(|choice| {
                    let least = left.saturating_sub(choice.work as usize);
                    let most = if slot == end && choice.work > 0 { left.saturating_sub(1).max(least) } else { least };
                    let others = (least..=most).rev().find(|others| before.of(*others) + choice.cost == cost)?;
                    Some((others, choice.cost))
                });
                let (others, paid) = fitting.max_by_key(|(others, _)| *others).expect("it came from one of them");
                work[slot] = (left - others) as u64;
                (left, cost) = (others, cost - paid);
            }
        }
        Ok(work)
    }
}
