//! What it costs at least to come from any sum of deviations to the target, if each move could be made any number of
//! times: the relaxation of [`knapsack`](super::knapsack) that sees which remainders can't be made.
//!
//! A sum below the target needs moves up first, one above it moves down; in that order no sum leaves the window of one
//! move around the target (Steinitz), so a shortest path over the window says it all.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::knapsack::Move;
use crate::engine::{Budget, EngineError};

/// More than any gap.
const FAR: i128 = i128::MAX;

/// A window times the moves from each of its sums that is worth a try.
const MOST_STEPS: u64 = 1 << 16;

/// Least costs to the target.
pub(super) struct Reach<'a> {
    /// Of moves of one deviation those of the least regret.
    moves: BTreeMap<i64, Vec<&'a Move>>,
    target: i64,
    /// The largest deviation: the window is so wide to both sides.
    widest: i64,
    /// (cost, deviation of the next move) for the sums of the window.
    window: Vec<(i128, i64)>,
}

impl<'a> Reach<'a> {
    /// From moves, the largest of which is no smaller than the target; costs from `gap` on don't matter. `None` where it
    /// would take long.
    pub(super) fn new(
        moves: &'a [Move],
        target: i64,
        rise: u64,
        gap: i128,
        budget: &mut Budget,
    ) -> Result<Option<Self>, EngineError> {
        let mut cheapest: BTreeMap<i64, Vec<&Move>> = BTreeMap::new();
        for step in moves {
            let same = cheapest.entry(step.deviation).or_default();
            if same.first().is_some_and(|best| best.regret > step.regret) {
                same.clear();
            }
            if same.first().is_none_or(|best| best.regret == step.regret) {
                same.push(step);
            }
        }
        let widest = cheapest.keys().map(|deviation| deviation.abs()).max().unwrap_or(0);
        if (2 * widest.unsigned_abs() + 1).saturating_mul(cheapest.len() as u64) > MOST_STEPS {
            return Ok(None);
        }
        let window = vec![(FAR, 0); 2 * widest as usize + 1];
        let mut reach = Self { moves: cheapest, target, widest, window };
        let mut open = BinaryHeap::new();
        for beyond in 0..=widest {
            let cost = i128::from(rise) * i128::from(beyond);
            if cost >= gap {
                break;
            }
            reach.window[(widest + beyond) as usize] = (cost, 0);
            open.push((Reverse(cost), target + beyond));
        }
        while let Some((Reverse(cost), sum)) = open.pop() {
            if reach.cost(sum) < cost {
                continue;
            }
            budget.spend(1 + reach.moves.len() as u64)?;
            for (deviation, same) in &reach.moves {
                let (before, cost) = (sum - deviation, cost + same[0].regret);
                let leads_here = if before < target { *deviation > 0 } else { *deviation < 0 };
                if !leads_here || (before - target).abs() > widest || cost >= gap {
                    continue;
                }
                let at = (before - target + widest) as usize;
                if cost < reach.window[at].0 {
                    reach.window[at] = (cost, *deviation);
                    open.push((Reverse(cost), before));
                }
            }
        }
        Ok(Some(reach))
    }

    fn known(&self, sum: i64) -> (i128, i64) {
        let at = usize::try_from(sum - self.target + self.widest).ok();
        at.and_then(|at| self.window.get(at)).copied().unwrap_or((FAR, 0))
    }

    /// The least cost from a sum.
    pub(super) fn cost(&self, sum: i64) -> i128 {
        self.known(sum).0
    }

    /// The moves of the cheapest way from a sum: all that can be made of each deviation, and how often it is made.
    pub(super) fn path(&self, mut sum: i64) -> BTreeMap<i64, (&[&'a Move], u32)> {
        let mut path: BTreeMap<i64, (&[&Move], u32)> = BTreeMap::new();
        loop {
            let (_, by) = self.known(sum);
            if by == 0 {
                return path;
            }
            path.entry(by).or_insert((&self.moves[&by], 0)).1 += 1;
            sum += by;
        }
    }
}
