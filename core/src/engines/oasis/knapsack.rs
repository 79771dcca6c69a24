//! A multiple-choice knapsack: one choice of every slot, so that together they do the work at least cost.
//!
//! The relaxation takes the corners' steps by slope until the work is covered; the last step, of slope λ, only in part.
//! Let every slot's *deviation* be the work that it does more (or less) than at its corner, and its *regret* how much
//! dearer the choice is than λ times that. Then cost = relaxed cost + regrets + λ · excess, and all are at least 0: only
//! choices of little regret matter (Dyer, Zemel 1984; Pisinger 1995). Two steps, each exact where it answers:
//!
//! 1. one slot alone makes up for what is missing: an upper bound;
//! 2. any number of deviations, each as often as one likes ([`Reach`]): a lower bound, and the optimum if there are as many
//!    slots as it takes.
//!
//! Where they don't meet, a pass over all slots has to tell ([`pass`](super::pass)).

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

/// Places among the curve's choices, one for each slot of a group.
type Chosen = Vec<Vec<u32>>;

/// What is known of the cheapest way, `T`.
pub(super) enum Covered<T> {
    /// It costs the limit or more.
    Dear,
    /// It costs this.
    Cheapest(u64, T),
    /// None is known that costs less than this one, or than the limit; there may be.
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

/// Slots of a group that rest at one corner, as the relaxation has it.
struct Rest {
    group: u32,
    /// Position among the curve's choices.
    at: u32,
    count: u32,
}

/// A choice away from the corner.
#[derive(Clone, Copy)]
pub(super) struct Move {
    rest: u32,
    choice: u32,
    /// Work more than at the corner.
    pub(super) deviation: i64,
    /// What it costs above λ a unit, times the run of λ.
    pub(super) regret: i128,
}

/// For each group what its slots choose, and the whole cost, if that is below `limit`. `steps` are all steps from corner
/// to corner, by slope: (slope, group, level reached). Without `thorough` only one slot leaves its corner.
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
    // In the core's unit, the relaxed cost is paid already.
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

/// What all slots choose after these moves, and what that costs.
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

/// What is left to decide once the relaxation is known.
struct Core<'a> {
    groups: &'a [Group<'a>],
    rests: &'a [Rest],
    /// λ.
    slope: Slope,
    /// Work that the corners lack, above 0.
    missing: i64,
}

/// What [`Core::solve`] finds, as in [`Covered`].
enum Moved {
    Dear,
    Cheapest(Vec<Move>),
    Unsettled(Option<Move>),
}

impl Core<'_> {
    /// The moves of least regret and excess that make up for what is missing, if they come to less than `gap`.
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
                // What work beyond the need costs, at λ.
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

    /// Slots for the moves of a path, if there are as many.
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
