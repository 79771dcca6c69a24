//! A multiple-choice knapsack: one choice for each slot, so that together they do the work at minimum cost.
//!
//! The relaxation takes the steps between corners by slope until the work is covered. It takes only a part of the last
//! step, of slope λ. Define a slot's *deviation* as its additional work compared with its corner (negative for less),
//! and its *regret* as its additional cost, less λ times the deviation. Then cost = relaxed
//! cost + regrets + λ · excess, and all terms are ≥ 0. So only choices with a small regret matter (Dyer, Zemel 1984;
//! Pisinger 1995). There are two steps, each of which may give the exact answer:
//!
//! 1. One slot alone makes up for the missing work. This is an upper bound.
//! 2. Any number of deviations, each with unlimited repetition ([`Reach`]). This is a lower bound, and the optimum if
//!    there are enough slots.
//!
//! If the bounds differ, a pass over all slots decides ([`pass`](super::pass)).

use std::collections::BTreeMap;

use super::{
    curve::{Curve, Slope},
    reach::Reach,
};
use crate::engine::{Budget, EngineError};

/// Slots that share a curve.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) curve: &'a Curve,
    pub(super) count: u32,
}

/// Indices among the curve's choices, one for each slot of a group.
type Chosen = Vec<Vec<u32>>;

/// Result of a search for the cheapest cover `T`.
pub(super) enum Covered<T> {
    /// The cost is the limit or more.
    Dear,
    /// The optimum with its cost.
    Cheapest(u64, T),
    /// The best known cover below the limit, if any. There may be a better one.
    Unsettled(Option<(u64, T)>),
}

impl<T> Covered<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Covered<U> {
        match self {
            Self::Dear => Covered::Dear,
            Self::Cheapest(cost, way) => Covered::Cheapest(cost, change(way)),
            Self::Unsettled(known) => Covered::Unsettled(known.map(|(cost, way)| (cost, change(way)))),
        }
    }
}

/// Slots of a group at one corner in the relaxation.
struct Rest {
    group: u32,
    /// Index among the curve's choices.
    at: u32,
    count: u32,
}

/// A choice other than the corner.
#[derive(Clone, Copy)]
pub(super) struct Move {
    rest: u32,
    choice: u32,
    /// Work beyond that of the corner.
    pub(super) deviation: i64,
    /// Cost above λ per unit, times the run of λ.
    pub(super) regret: i128,
}

/// The choices of each group's slots and the total cost, if it is below `limit`. `steps` are all steps between corners,
/// by slope: (slope, group, reached level). Without `thorough` only one slot leaves its corner.
///
/// # Errors
/// The budget is used up.
pub(super) fn cover(
    groups: &[Group<'_>],
    steps: impl Iterator<Item = (Slope, u32, u32)>,
    work: u64,
    limit: u64,
    thorough: bool,
    budget: &mut Budget,
) -> Result<Covered<Chosen>, EngineError> {
    let mut levels = vec![0_u32; groups.len()];
    let (mut left, mut cost, mut looked_at) = (work, 0_u64, 0);
    let mut broken: Option<(Slope, u32, u32)> = None;
    for (slope, group, level) in steps {
        if left == 0 {
            break;
        }
        looked_at += 1;
        let count = groups[group as usize].count;
        let whole = u32::try_from(left / slope.run).unwrap_or(u32::MAX).min(count);
        left -= slope.run * u64::from(whole);
        cost = cost.saturating_add(slope.rise.saturating_mul(whole.into()));
        if whole == count {
            levels[group as usize] = level;
        } else {
            broken = Some((slope, group, whole));
            break;
        }
    }
    budget.spend(looked_at)?;
    if (left > 0 && broken.is_none()) || cost >= limit {
        return Ok(Covered::Dear);
    }
    let mut rests = Vec::with_capacity(groups.len() + 1);
    for (at, (group, level)) in groups.iter().zip(&levels).enumerate().filter(|(_, (group, _))| group.count > 0) {
        let ahead = broken.filter(|(_, broken, _)| *broken == at as u32).map_or(0, |(_, _, whole)| whole);
        for (level, count) in [(*level, group.count - ahead), (*level + 1, ahead)] {
            if count > 0 {
                rests.push(Rest { group: at as u32, at: group.curve.corner(level as usize) as u32, count });
            }
        }
    }
    let chosen = |moved: &[Move]| choose(groups, &rests, moved);
    let Some((slope, _, _)) = broken.filter(|_| left > 0) else {
        let (cost, chosen) = chosen(&[]);
        return Ok(Covered::Cheapest(cost, chosen));
    };
    let core = Core { groups, rests: &rests, slope, missing: left as i64 };
    // In the core's unit, the relaxed cost is already included.
    let paid = i128::from(cost) * i128::from(slope.run) + i128::from(left) * i128::from(slope.rise);
    let gap = (i128::from(limit) * i128::from(slope.run)).saturating_sub(paid);
    Ok(match core.solve(gap, thorough, budget)? {
        Moved::Dear => Covered::Dear,
        Moved::Cheapest(moved) => {
            let (cost, chosen) = chosen(&moved);
            Covered::Cheapest(cost, chosen)
        }
        Moved::Unsettled(moved) => Covered::Unsettled(moved.map(|step| chosen(&[step]))),
    })
}

/// The choices of all slots after these moves, and their cost.
fn choose(groups: &[Group<'_>], rests: &[Rest], moved: &[Move]) -> (u64, Chosen) {
    let mut chosen: Chosen = vec![Vec::new(); groups.len()];
    let mut counts: Vec<u32> = rests.iter().map(|rest| rest.count).collect();
    for step in moved {
        counts[step.rest as usize] -= 1;
        chosen[rests[step.rest as usize].group as usize].push(step.choice);
    }
    for (rest, count) in rests.iter().zip(counts) {
        chosen[rest.group as usize].extend(std::iter::repeat_n(rest.at, count as usize));
    }
    let costs = groups
        .iter()
        .zip(&chosen)
        .flat_map(|(group, chosen)| chosen.iter().map(|at| group.curve.choices()[*at as usize].cost));
    (costs.sum(), chosen)
}

/// The remaining problem after the relaxation.
struct Core<'a> {
    groups: &'a [Group<'a>],
    rests: &'a [Rest],
    /// λ.
    slope: Slope,
    /// Work that the corners lack, above 0.
    missing: i64,
}

/// The result of [`Core::solve`], as in [`Covered`].
enum Moved {
    Dear,
    Cheapest(Vec<Move>),
    Unsettled(Option<Move>),
}

impl Core<'_> {
    /// The moves with the smallest regret and excess that make up for the missing work, if their cost is below `gap`.
    fn solve(&self, mut gap: i128, thorough: bool, budget: &mut Budget) -> Result<Moved, EngineError> {
        let mut moves = Vec::new();
        let mut alone = None;
        for (at, rest) in self.rests.iter().enumerate() {
            let choices = self.groups[rest.group as usize].curve.choices();
            let corner = choices[rest.at as usize];
            budget.spend(choices.len() as u64)?;
            for (choice, to) in choices.iter().enumerate().filter(|(choice, _)| *choice != rest.at as usize) {
                let deviation = to.work as i64 - corner.work as i64;
                let regret = (i128::from(to.cost) - i128::from(corner.cost)) * i128::from(self.slope.run)
                    - i128::from(deviation) * i128::from(self.slope.rise);
                if regret >= gap {
                    continue;
                }
                let step = Move { rest: at as u32, choice: choice as u32, deviation, regret };
                moves.push(step);
                // Cost of work beyond the need, at λ.
                let excess = i128::from(deviation - self.missing) * i128::from(self.slope.rise);
                if deviation >= self.missing && regret + excess < gap {
                    (gap, alone) = (regret + excess, Some(step));
                }
            }
        }
        moves.retain(|step| step.regret < gap);
        let settled = |alone: Option<Move>| alone.map_or(Moved::Dear, |step| Moved::Cheapest(vec![step]));
        if gap <= 0 || moves.is_empty() {
            return Ok(settled(alone));
        }
        let reach = if thorough { Reach::new(&moves, self.missing, self.slope.rise, gap, budget)? } else { None };
        let Some(reach) = reach else { return Ok(Moved::Unsettled(alone)) };
        if reach.cost(0) >= gap {
            return Ok(settled(alone));
        }
        Ok(self.made(reach.path(0)).map_or(Moved::Unsettled(alone), Moved::Cheapest))
    }

    /// Assigns slots to the moves of a path, if there are enough.
    fn made(&self, path: BTreeMap<i64, (&[&Move], u32)>) -> Option<Vec<Move>> {
        let mut left: Vec<u32> = self.rests.iter().map(|rest| rest.count).collect();
        let mut made = Vec::new();
        for (same, times) in path.values() {
            for _ in 0..*times {
                let step = same.iter().find(|step| left[step.rest as usize] > 0)?;
                left[step.rest as usize] -= 1;
                made.push(**step);
            }
        }
        Some(made)
    }
}
