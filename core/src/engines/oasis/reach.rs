//! What it costs at least to come from any sum of deviations to the target, if each move could be made any number of
//! times: the relaxation of [`knapsack`](super::knapsack) that sees which remainders can't be made.
//!
//! A sum below the target needs moves up first, one above it moves down; in that order no sum leaves the window of one
//! move around the target once it is in it (Steinitz), so a shortest path over the window says it all, and what is outside
//! follows step by step.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::knapsack::Move;
use crate::engines::{Budget, EngineError};

/// More than any gap.
const FAR: i128 = i128::MAX / 4;

/// Least costs to the target.
pub(super) struct Reach<'a> {
    /// Of moves of one deviation those of the least regret.
    moves: BTreeMap<i64, Vec<&'a Move>>,
    target: i64,
    /// Cost of a unit beyond the target.
    rise: i128,
    /// The largest deviation: the window is so wide to both sides.
    widest: i64,
    /// (cost, deviation of the next move) for the sums of the window.
    window: Vec<(i128, i64)>,
    /// The same for the sums above it, as far as anyone asked; and below it, downwards.
    above: Vec<(i128, i64)>,
    below: Vec<(i128, i64)>,
}

impl<'a> Reach<'a> {
    /// From moves; costs from `gap` on don't matter.
    pub(super) fn new(
        moves: impl Iterator<Item = &'a Move>,
        target: i64,
        rise: u64,
        gap: i128,
        budget: &mut Budget,
    ) -> Result<Self, EngineError> {
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
        let rise = i128::from(rise);
        budget.spend(widest as u64 / 4)?;
        let mut reach = Self {
            moves: cheapest,
            target,
            rise,
            widest,
            window: vec![(FAR, 0); 2 * widest as usize + 1],
            above: Vec::new(),
            below: Vec::new(),
        };
        let mut open = BinaryHeap::new();
        for beyond in 0..=widest {
            let cost = rise * i128::from(beyond);
            if cost >= gap {
                break;
            }
            reach.window[(widest + beyond) as usize] = (cost, 0);
            open.push((Reverse(cost), target + beyond));
        }
        while let Some((Reverse(cost), sum)) = open.pop() {
            if reach.window[reach.at(sum)].0 < cost {
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
        Ok(reach)
    }

    fn at(&self, sum: i64) -> usize {
        (sum - self.target + self.widest) as usize
    }

    fn known(&self, sum: i64) -> (i128, i64) {
        let beyond = sum - self.target;
        match beyond.abs() - self.widest {
            ..=0 => self.window[self.at(sum)],
            outside if beyond > 0 => self.above[outside as usize - 1],
            outside => self.below[outside as usize - 1],
        }
    }

    /// The least cost from a sum.
    pub(super) fn cost(&mut self, sum: i64, budget: &mut Budget) -> Result<i128, EngineError> {
        let beyond = sum - self.target;
        let outside = (beyond.abs() - self.widest).max(0) as usize;
        if beyond > 0 {
            while self.above.len() < outside {
                budget.spend(1 + self.moves.len() as u64)?;
                let sum = self.target + self.widest + 1 + self.above.len() as i64;
                let stay = (self.rise * i128::from(sum - self.target), 0);
                let next = self.moves.range(..0).map(|(by, same)| (same[0].regret + self.known(sum + by).0, *by));
                self.above.push(next.chain([stay]).min().expect("it may stay"));
            }
        } else {
            while self.below.len() < outside {
                budget.spend(1 + self.moves.len() as u64)?;
                let sum = self.target - self.widest - 1 - self.below.len() as i64;
                let next = self.moves.range(1..).map(|(by, same)| (same[0].regret + self.known(sum + by).0, *by));
                self.below.push(next.min().unwrap_or((FAR, 0)));
            }
        }
        Ok(self.known(sum).0.min(FAR))
    }

    /// The moves of the cheapest way from a sum whose [`cost`](Self::cost) was asked: all that can be made of each
    /// deviation, and how often it is made.
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
