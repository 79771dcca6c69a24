//! A multiple-choice knapsack, exactly: one choice of every slot, so that together they do the work at least cost.
//!
//! The relaxation takes the corners' steps by slope until the work is covered; the last step, of slope λ, only in part.
//! Let every slot's *deviation* be the work that it does more (or less) than at its corner, and its *regret* how much
//! dearer the choice is than λ times that. Then cost = relaxed cost + regrets + λ · excess, and all are at least 0: only
//! choices of little regret matter (Dyer, Zemel 1984; Pisinger 1995). Three steps, each exact where it answers:
//!
//! 1. one slot alone makes up for what is missing: an upper bound;
//! 2. any number of deviations, each as often as one likes ([`Reach`]): a lower bound, and the optimum if there are as many
//!    slots as it takes;
//! 3. dynamic programming over those slots of which there are few, (sum, cost) pairs that none dominates and that can
//!    still come below the upper bound; the others make up for the rest as in 2.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    curve::{Curve, Slope},
    reach::Reach,
};
use crate::engines::{Budget, EngineError};

/// Slots that share a curve.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) curve: &'a Curve,
    pub(super) count: u32,
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

/// Places among the curve's choices, one for each slot of a group.
type Chosen = Vec<Vec<u32>>;

/// Moves that were found, or of what slots there are too few for it.
type Made = Result<Vec<Move>, BTreeSet<u32>>;

/// Slots that are so few that dynamic programming takes them one by one.
const FEW: u32 = 4;

/// For each group what its slots choose, and the whole cost, if that is below `limit`. `steps` are all steps from corner
/// to corner, by slope: (slope, group, level reached).
///
/// # Errors
/// The budget is used up.
pub(super) fn cover(
    groups: &[Group<'_>],
    steps: impl Iterator<Item = (Slope, u32, u32)>,
    work: u64,
    limit: u64,
    budget: &mut Budget,
) -> Result<Option<(u64, Chosen)>, EngineError> {
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
        return Ok(None);
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
    let moved = match broken {
        Some((slope, _, _)) if left > 0 => {
            let core = Core { groups, rests: &rests, slope, missing: left as i64 };
            // In the core's unit, the relaxed cost is paid already.
            let paid = i128::from(cost) * i128::from(slope.run) + i128::from(left) * i128::from(slope.rise);
            let gap = (i128::from(limit) * i128::from(slope.run)).saturating_sub(paid);
            match core.solve(gap, budget)? {
                Some(moved) => moved,
                None => return Ok(None),
            }
        }
        _ => Vec::new(),
    };
    let mut chosen: Chosen = vec![Vec::new(); groups.len()];
    let mut counts: Vec<u32> = rests.iter().map(|rest| rest.count).collect();
    for step in &moved {
        counts[step.rest as usize] -= 1;
        chosen[rests[step.rest as usize].group as usize].push(step.choice);
    }
    for (rest, count) in rests.iter().zip(counts) {
        chosen[rest.group as usize].extend(std::iter::repeat_n(rest.at, count as usize));
    }
    let cost = groups
        .iter()
        .zip(&chosen)
        .flat_map(|(group, chosen)| chosen.iter().map(|at| group.curve.choices()[*at as usize].cost))
        .sum();
    Ok(Some((cost, chosen)))
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

impl Core<'_> {
    /// The moves of least regret and excess that make up for what is missing, if they come to less than `gap`.
    fn solve(&self, mut gap: i128, budget: &mut Budget) -> Result<Option<Vec<Move>>, EngineError> {
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
                let whole = regret + self.excess(deviation);
                if deviation >= self.missing && whole < gap {
                    (gap, alone) = (whole, Some(vec![step]));
                }
            }
        }
        moves.retain(|step| step.regret < gap);
        if gap <= 0 || moves.is_empty() {
            return Ok(alone);
        }
        let mut all = Reach::new(moves.iter(), self.missing, self.slope.rise, gap, budget)?;
        let least = all.cost(0, budget)?;
        if least >= gap {
            return Ok(alone);
        }
        let mut overused = match self.made(all.path(0)) {
            Ok(path) => return Ok(Some(path)),
            Err(overused) => overused,
        };
        let mut one_by_one: BTreeSet<u32> =
            moves.iter().map(|step| step.rest).filter(|rest| self.rests[*rest as usize].count <= FEW).collect();
        loop {
            one_by_one.append(&mut overused);
            match self.dynamic(&moves, &one_by_one, &mut all, gap, budget)? {
                None => return Ok(alone),
                Some(Ok(path)) => return Ok(Some(path)),
                Some(Err(more)) => overused = more,
            }
        }
    }

    /// What work beyond the need costs, at λ.
    fn excess(&self, deviation: i64) -> i128 {
        i128::from((deviation - self.missing).max(0)) * i128::from(self.slope.rise)
    }

    /// Slots for the moves of a path, or whose slots are too few for it.
    fn made(&self, path: BTreeMap<i64, (&[&Move], u32)>) -> Made {
        let mut left: Vec<u32> = self.rests.iter().map(|rest| rest.count).collect();
        let mut made = Vec::new();
        for (same, times) in path.values() {
            for _ in 0..*times {
                let Some(step) = same.iter().find(|step| left[step.rest as usize] > 0) else {
                    return Err(same.iter().map(|step| step.rest).collect());
                };
                left[step.rest as usize] -= 1;
                made.push(**step);
            }
        }
        Ok(made)
    }

    /// Some slots one by one, with all pairs of sum and cost that no other dominates and that can still come below the
    /// gap; the others as often as one likes, after them. `Err` tells which of those are too few.
    fn dynamic(
        &self,
        moves: &[Move],
        one_by_one: &BTreeSet<u32>,
        all: &mut Reach<'_>,
        mut gap: i128,
        budget: &mut Budget,
    ) -> Result<Option<Made>, EngineError> {
        let others = moves.iter().filter(|step| !one_by_one.contains(&step.rest));
        let mut others = Reach::new(others, self.missing, self.slope.rise, gap, budget)?;
        let mut slots: Vec<&[Move]> = moves
            .chunk_by(|a, b| a.rest == b.rest)
            .filter(|steps| one_by_one.contains(&steps[0].rest))
            .flat_map(|steps| std::iter::repeat_n(steps, self.rests[steps[0].rest as usize].count as usize))
            .collect();
        // Slots with cheap moves first: they tell early what can be reached.
        slots.sort_by_key(|steps| (steps.iter().map(|step| step.regret).min(), steps[0].rest));
        let cost = |pair: &Pair| pair.regret + i128::from(pair.sum) * i128::from(self.slope.rise);
        let mut rounds: Vec<Vec<Pair>> = vec![vec![Pair { sum: 0, regret: 0, from: 0, by: None }]];
        let mut best: Option<(usize, usize)> = None;
        for round in 0..=slots.len() {
            for (at, pair) in rounds[round].iter().enumerate() {
                let whole = pair.regret.saturating_add(others.cost(pair.sum, budget)?);
                if whole < gap {
                    (gap, best) = (whole, Some((round, at)));
                }
            }
            let Some(steps) = slots.get(round) else { break };
            let mut next = Vec::with_capacity(rounds[round].len() * 2);
            for (from, pair) in rounds[round].iter().enumerate() {
                budget.spend(1 + steps.len() as u64)?;
                next.push(Pair { from: from as u32, by: None, ..*pair });
                for step in *steps {
                    let (sum, regret) = (pair.sum + step.deviation, pair.regret + step.regret);
                    if regret < gap && regret.saturating_add(all.cost(sum, budget)?) < gap {
                        next.push(Pair { sum, regret, from: from as u32, by: Some(*step) });
                    }
                }
            }
            // The largest sum first; what does less for no less is dominated.
            next.sort_by_key(|pair| (Reverse(pair.sum), cost(pair), pair.by.map(|step| step.choice)));
            let mut least = i128::MAX;
            next.retain(|pair| {
                let better = cost(pair) < least;
                least = least.min(cost(pair));
                better
            });
            rounds.push(next);
        }
        let Some((round, at)) = best else { return Ok(None) };
        let rest = self.made(others.path(rounds[round][at].sum));
        Ok(Some(rest.map(|mut made| {
            let mut at = at;
            for pairs in rounds[1..=round].iter().rev() {
                made.extend(pairs[at].by);
                at = pairs[at].from as usize;
            }
            made
        })))
    }
}

/// A way to take some slots: the deviations' sum, their regrets', and how it came about.
#[derive(Clone, Copy)]
struct Pair {
    sum: i64,
    regret: i128,
    /// The pair of the round before.
    from: u32,
    by: Option<Move>,
}
