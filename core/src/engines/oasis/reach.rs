//! Minimum costs from any sum of deviations to the target, with unlimited repetition of each move. This relaxation of
//! [`knapsack`](super::knapsack) detects remainders that no sum of moves reaches.
//!
//! A sum below the target needs moves up first, and one above it moves down. In that order no sum leaves the window of
//! one move around the target (Steinitz). So a shortest path over the window is sufficient.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::knapsack::Move;
use crate::engine::{Budget, EngineError};

/// Larger than any gap.
const FAR: i128 = i128::MAX;

/// Maximum product of the window and the moves from each of its sums.
const MOST_STEPS: u64 = 1 << 16;

/// Minimum costs to the target.
pub(super) struct Reach<'a> {
    /// For each deviation, the moves with the smallest regret.
    moves: BTreeMap<i64, Vec<&'a Move>>,
    target: i64,
    /// The largest deviation: the half-width of the window.
    widest: i64,
    /// (cost, deviation of the next move) for the sums of the window.
    window: Vec<(i128, i64)>,
}

impl<'a> Reach<'a> {
    /// Builds the table from moves, the largest of which is at least the target. Costs from `gap` on don't matter.
    /// `None` if it would take too long.
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

    /// Minimum cost from a sum.
    pub(super) fn cost(&self, sum: i64) -> i128 {
        self.known(sum).0
    }

    /// The moves of the cheapest path from a sum: all possible moves of each deviation, and the number of its uses.
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
