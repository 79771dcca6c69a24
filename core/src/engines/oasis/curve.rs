//! The cost curve of one slot for a job: amounts of work, and the cost of each.

use std::cmp::Ordering;

/// One choice in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Amount of work: chunks, or worker-slots.
    pub work: u64,
    /// Cost in the search's parts of utility.
    pub cost: u64,
    /// Number of workers.
    pub workers: u32,
}

/// The choices of a slot, starting with no work. More work costs more. `y` workers finish ⌊y/m⌋ chunks, so there are at
/// most N + 1 choices, however much work the job has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    choices: Vec<Choice>,
    /// Indices of the choices on the lower convex hull, starting with no work.
    hull: Vec<u32>,
}

impl Curve {
    /// Builds a curve from choices in any order. Choices that do less work at the same or a higher cost than another
    /// one are dropped.
    pub fn new(mut choices: Vec<Choice>) -> Self {
        choices.retain(|choice| choice.work > 0);
        choices.sort_unstable_by_key(|choice| (std::cmp::Reverse(choice.work), choice.cost, choice.workers));
        let mut least = u64::MAX;
        choices.retain(|choice| {
            let better = choice.cost < least;
            least = least.min(choice.cost);
            better
        });
        choices.push(Choice::default());
        choices.reverse();
        let mut hull: Vec<u32> = Vec::new();
        for (at, choice) in choices.iter().enumerate() {
            while let [.., before, last] = hull[..] {
                let (before, last) = (choices[before as usize], choices[last as usize]);
                if Slope::between(before, last).cmp(&Slope::between(last, *choice)) == Ordering::Less {
                    break;
                }
                hull.pop();
            }
            hull.push(at as u32);
        }
        Self { choices, hull }
    }

    /// The choices by work. The first one is no work.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Maximum work.
    pub fn most(&self) -> u64 {
        self.choices.last().map_or(0, |choice| choice.work)
    }

    /// The cheapest choice with at least this work.
    pub fn choice_for(&self, work: u64) -> Option<Choice> {
        self.choices.get(self.choices.partition_point(|choice| choice.work < work)).copied()
    }

    /// The same curve with at most this work.
    pub(super) fn up_to(&self, work: u64) -> Self {
        let past = self.choices.partition_point(|choice| choice.work < work);
        let last = self.choices.get(past).map(|choice| Choice { work, ..*choice });
        Self::new(self.choices[..past].iter().copied().chain(last).collect())
    }

    /// Number of corners of the lower hull.
    pub(super) fn corners(&self) -> usize {
        self.hull.len()
    }

    /// Index of a corner among the choices.
    pub(super) fn corner(&self, level: usize) -> usize {
        self.hull[level] as usize
    }

    /// The slope from a corner to the next one.
    pub(super) fn slope(&self, level: usize) -> Slope {
        Slope::between(self.choices[self.corner(level)], self.choices[self.corner(level + 1)])
    }
}

/// Marginal cost of work, as an exact fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slope {
    /// Additional cost …
    pub(super) rise: u64,
    /// … for this additional work.
    pub(super) run: u64,
}

impl Slope {
    fn between(from: Choice, to: Choice) -> Self {
        Self { rise: to.cost - from.cost, run: to.work - from.work }
    }

    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        (u128::from(self.rise) * u128::from(other.run)).cmp(&(u128::from(other.rise) * u128::from(self.run)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_choices_are_left_out_and_the_hull_is_convex() {
        let of = |triples: &[(u64, u64, u32)]| {
            Curve::new(triples.iter().map(|&(work, cost, workers)| Choice { work, cost, workers }).collect())
        };
        // The third costs more than the fourth, which does more work. The second is above the line from no work to the
        // fourth.
        let curve = of(&[(1, 10, 1), (2, 30, 2), (3, 50, 3), (4, 44, 4), (5, 99, 5), (0, 7, 0)]);
        let left: Vec<u64> = curve.choices().iter().map(|choice| choice.work).collect();
        assert_eq!(left, [0, 1, 2, 4, 5]);
        assert_eq!(curve.hull, [0, 1, 3, 4]);
        assert_eq!(curve.choice_for(3).unwrap().workers, 4);
        assert_eq!(curve.choice_for(6), None);
        // Three of four, at the cost of four.
        assert_eq!(curve.up_to(3).choices()[3], Choice { work: 3, cost: 44, workers: 4 });
        assert_eq!(curve.up_to(9), curve);
        assert_eq!(of(&[]).most(), 0);
    }
}
