//! The numbers of workers with which a job can run.
//!
//! A model that is cut into tensor-parallel and pipeline stages runs on whole groups of workers. Other programs run
//! only with some numbers: powers of two, or those that divide the batch. No engine gives a job another number.

use std::{collections::BTreeMap, fmt, str::FromStr};

use smallvec::SmallVec;

use crate::text::shown;

/// The largest number of workers of a job.
pub(super) const MOST_WORKERS: u32 = 10_000;

/// Maximum number of listed sizes.
const MOST_LISTED: usize = 64;

/// Maximum length of a parallel dimension.
const MOST_PARALLEL: u32 = 1024;

/// The numbers of workers with which a job can run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// Any number from 1.
    #[default]
    Any,
    /// Multiples of a number.
    Multiples(u32),
    /// 1, 2, 4, 8 and so on.
    PowersOf2,
    /// A list, ascending.
    Listed(SmallVec<[u32; 8]>),
}

impl Sizes {
    /// The label in which a job has them: `4,8,16`, `multiples of 4` or `powers of 2`. In a job file, `worker.sizes`.
    pub const LABEL: &str = "worker.sizes";

    /// Those of a job with these labels, without its [`Parallel`]. A text that no valid job has allows any number.
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        labels.get(Self::LABEL).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Whether a label says with how many workers the job can run, and not what a server must have.
    pub(crate) fn is_label(label: &str) -> bool {
        label == Self::LABEL || Parallel::LABELS.contains(&label)
    }

    /// Whether it is one of them.
    #[inline]
    pub fn has(&self, workers: u32) -> bool {
        match self {
            Self::Any => workers > 0,
            Self::Multiples(of) => workers > 0 && workers.is_multiple_of(*of),
            Self::PowersOf2 => workers.is_power_of_two(),
            Self::Listed(all) => all.binary_search(&workers).is_ok(),
        }
    }

    /// The smallest that is at least `workers`. O(log listed).
    #[inline]
    pub fn at_least(&self, workers: u32) -> Option<u32> {
        match self {
            Self::Any => Some(workers.max(1)),
            Self::Multiples(of) => workers.max(1).checked_next_multiple_of(*of),
            Self::PowersOf2 => workers.checked_next_power_of_two(),
            Self::Listed(all) => all.get(all.partition_point(|size| *size < workers)).copied(),
        }
    }

    /// The largest that is at most `workers`. O(log listed).
    #[inline]
    pub fn at_most(&self, workers: u32) -> Option<u32> {
        let found = match self {
            Self::Any => workers,
            Self::Multiples(of) => workers - workers % of,
            Self::PowersOf2 => workers.checked_ilog2().map_or(0, |log| 1 << log),
            Self::Listed(all) => all.partition_point(|size| *size <= workers).checked_sub(1).map_or(0, |at| all[at]),
        };
        (found > 0).then_some(found)
    }

    /// The same without listed ones that aren't within bounds. O(listed).
    #[must_use]
    pub(crate) fn within(self, least: u32, most: u32) -> Self {
        match self {
            Self::Listed(all) => Self::Listed(all.into_iter().filter(|size| (least..=most).contains(size)).collect()),
            other => other,
        }
    }

    /// Those of them that are multiples of a group. O(listed).
    #[must_use]
    pub(super) fn in_groups_of(self, group: u32) -> Self {
        if group <= 1 {
            return self;
        }
        match self {
            Self::Any => Self::Multiples(group),
            Self::Multiples(of) => Self::Multiples((of / gcd(of, group)).saturating_mul(group)),
            Self::PowersOf2 => {
                let powers = (0..).map(|log| 1 << log).take_while(|power| *power <= MOST_WORKERS);
                Self::Listed(powers.filter(|power: &u32| power.is_multiple_of(group)).collect())
            }
            Self::Listed(all) => Self::Listed(all.into_iter().filter(|size| size.is_multiple_of(group)).collect()),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any number"),
            Self::Multiples(of) => write!(f, "multiples of {of}"),
            Self::PowersOf2 => f.write_str("powers of 2"),
            Self::Listed(all) => {
                let all: Vec<String> = all.iter().map(u32::to_string).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    /// Reads a label's value.
    ///
    /// # Errors
    /// Names the part that isn't allowed, and what is.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |part: &str, what: &str| {
            let allowed = "a list such as 1,2,4, \"multiples of 4\" or \"powers of 2\"";
            format!("\"{}\" must be {what}; allowed are {allowed}", shown(part.trim(), 32))
        };
        let size = |text: &str| match text.trim().parse() {
            Ok(size) if (1..=MOST_WORKERS).contains(&size) => Ok(size),
            _ => Err(wrong(text, &format!("a number of workers from 1 to {MOST_WORKERS}"))),
        };
        let words: Vec<&str> = text.split_whitespace().take(4).collect();
        match words[..] {
            [] => return Err(wrong("", "one number or more")),
            ["multiples", "of", of] => return size(of).map(|of| if of == 1 { Self::Any } else { Self::Multiples(of) }),
            ["powers", "of", "2" | "two"] => return Ok(Self::PowersOf2),
            ["multiples" | "powers", ..] => return Err(wrong(text, "a rule")),
            _ => {}
        }
        let count = text.split(',').count();
        if count > MOST_LISTED {
            return Err(format!("{count} sizes must be at most {MOST_LISTED}; \"multiples of 4\" says more in fewer"));
        }
        let mut all = text.split(',').map(size).collect::<Result<SmallVec<[u32; 8]>, _>>()?;
        all.sort_unstable();
        all.dedup();
        Ok(Self::Listed(all))
    }
}

/// How a model is cut: one replica takes `tensor` · `pipeline` GPUs, and its experts lie in as many replicas as
/// `expert` says. The program gets the three numbers as `TRAINMASTER_TP`, `TRAINMASTER_PP` and `TRAINMASTER_EP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// GPUs that share each layer.
    pub tensor: u32,
    /// Stages of layers.
    pub pipeline: u32,
    /// Replicas that share the experts.
    pub expert: u32,
}

impl Parallel {
    /// The labels in which a job has the three. In a job file, `parallel = { tp = 4, pp = 2, ep = 1 }`.
    pub const LABELS: [&str; 3] = ["parallel.tp", "parallel.pp", "parallel.ep"];

    /// That of a job with these labels. `None` if it has none of them.
    ///
    /// # Errors
    /// Names the label whose value isn't allowed, and says what is.
    pub fn of(labels: &BTreeMap<String, String>) -> Result<Option<Self>, (&'static str, String)> {
        if !Self::LABELS.iter().any(|label| labels.contains_key(*label)) {
            return Ok(None);
        }
        let number = |label: &'static str| {
            let Some(text) = labels.get(label) else { return Ok(1) };
            match text.parse() {
                Ok(number) if (1..=MOST_PARALLEL).contains(&number) => Ok(number),
                _ => Err((label, format!("\"{}\" must be a whole number from 1 to {MOST_PARALLEL}", shown(text, 32)))),
            }
        };
        let [tensor, pipeline, expert] = Self::LABELS.map(number);
        Ok(Some(Self { tensor: tensor?, pipeline: pipeline?, expert: expert? }))
    }

    /// The workers of one group, of which all sizes are multiples. `gpus`: whole GPUs of one worker, at least 1.
    ///
    /// ```
    /// use trainmaster_core::job::Parallel;
    /// let parallel = Parallel { tensor: 4, pipeline: 2, expert: 1 };
    /// assert_eq!(parallel.group(1), 8);
    /// assert_eq!(parallel.group(4), 2);
    /// // Two workers of 6 GPUs would have 12 of which 8 are one replica; three replicas need four such workers.
    /// assert_eq!(parallel.group(6), 4);
    /// ```
    pub fn group(self, gpus: u32) -> u64 {
        let whole = u64::from(self.tensor) * u64::from(self.pipeline) * u64::from(self.expert);
        whole / gcd(whole, u64::from(gpus.max(1)))
    }
}

/// The greatest common divisor of two numbers, of which at least one isn't 0.
fn gcd<T: Copy + Default + PartialEq + std::ops::Rem<Output = T>>(a: T, b: T) -> T {
    if b == T::default() { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(text: &str) -> Sizes {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_read_and_written() {
        for (text, written) in [
            ("multiples of 4", "multiples of 4"),
            (" powers  of two ", "powers of 2"),
            ("8, 1,4,4", "1,4,8"),
            ("3", "3"),
        ] {
            assert_eq!(sizes(text).to_string(), written);
            assert_eq!(sizes(written), sizes(text));
        }
    }

    #[test]
    fn wrong_text_is_refused_by_name() {
        let long = vec!["1"; 65].join(",");
        for (text, named) in [
            ("", "\"\" must be one number or more; allowed are a list"),
            ("0", "\"0\" must be"),
            ("4,", "\"\" must be"),
            ("1,-2", "\"-2\" must be"),
            ("10001", "\"10001\" must be"),
            ("99999999999999999999", "must be a number"),
            ("multiples of 0", "\"0\" must be"),
            ("multiples of", "multiples of 4"),
            ("powers of 3", "powers of 2"),
            ("multiples of 4 or 5", "multiples of 4"),
            (&long, "65 sizes must be at most 64"),
        ] {
            let error = text.parse::<Sizes>().unwrap_err();
            assert!(error.contains(named), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_cut_model_has_groups() {
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(Parallel::of(&labels(&[("rack", "r1")])), Ok(None));
        let found = Parallel::of(&labels(&[("parallel.tp", "2"), ("parallel.ep", "4")])).unwrap().unwrap();
        assert_eq!((found, found.group(1), found.group(8)), (Parallel { tensor: 2, pipeline: 1, expert: 4 }, 8, 1));
        for wrong in ["0", "-1", "1025", "2.5", ""] {
            let error = Parallel::of(&labels(&[("parallel.pp", wrong)])).unwrap_err();
            assert!(error.0 == "parallel.pp" && error.1.contains(wrong), "{error:?}");
        }
        let most = Parallel { tensor: 1024, pipeline: 1024, expert: 1024 };
        assert_eq!(most.group(1), 1 << 30);
    }

    fn any() -> impl Strategy<Value = Sizes> {
        prop_oneof![
            Just(Sizes::Any),
            (1..100_u32).prop_map(Sizes::Multiples),
            Just(Sizes::PowersOf2),
            prop::collection::btree_set(1..=MOST_WORKERS, 1..20)
                .prop_map(|all| Sizes::Listed(all.into_iter().collect())),
        ]
    }

    proptest! {
        #[test]
        fn neighbours_are_the_nearest_sizes(sizes in any(), workers in 1..200_u32, group in 1..20_u32) {
            for sizes in [sizes.clone(), sizes.clone().in_groups_of(group)] {
                let below = (1..=workers).rev().find(|size| sizes.has(*size));
                prop_assert_eq!(sizes.at_most(workers), below);
                let above = (workers..=MOST_WORKERS).find(|size| sizes.has(*size));
                prop_assert_eq!(sizes.at_least(workers).filter(|size| *size <= MOST_WORKERS), above);
            }
            let grouped = sizes.clone().in_groups_of(group);
            prop_assert_eq!(grouped.has(workers), sizes.has(workers) && workers.is_multiple_of(group));
        }
    }
}
