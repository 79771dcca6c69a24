//! The engines and their registry: a line per engine; C ABI, gRPC, CLI and simulator find them by name.

mod batch;
pub mod board;
mod dorm;
mod drf;
mod edge;
mod fair;
mod fifo;
mod gandiva;
mod graphene;
mod hypersched;
mod ledger;
mod mlfs;
pub mod oasis;
pub mod offline;
mod optimus;
mod panicking;
mod placing;
mod preempting;
mod random;
mod rl;
mod rounds;
mod rrh;
mod sharing;
mod slaq;
mod srtf;
mod tetris;
mod tiresias;

use std::{any::Any, collections::BTreeMap, sync::Arc};

use imbl::Vector;
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

pub use self::{
    batch::Batch, dorm::Dorm, drf::Drf, edge::Edge, fair::Fair, fifo::Fifo, gandiva::Gandiva, graphene::Graphene,
    hypersched::Hypersched, mlfs::Mlfs, oasis::Oasis, optimus::Optimus, panicking::Panicking, random::Random, rl::Rl,
    rrh::Rrh, slaq::Slaq, srtf::Srtf, tetris::Tetris, tiresias::Tiresias,
};
use crate::{
    decision::Proposal,
    job::JobSpec,
    policy::{Demonstration, Inputs, PolicyError},
    settings::{Parameter, SettingsError},
    state::{Change, State},
    time::Span,
};

/// All engines, by name.
pub const REGISTRY: &[Entry] = &[
    Entry::of::<Optimus>(optimus::NAME, optimus::SUMMARY, optimus::PAPER, optimus::PARAMETERS),
    Entry::of::<Oasis>(oasis::NAME, oasis::SUMMARY, oasis::PAPER, oasis::PARAMETERS),
    Entry::of::<Fifo>(fifo::NAME, fifo::SUMMARY, fifo::PAPER, fifo::PARAMETERS),
    Entry::of::<Drf>(drf::NAME, drf::SUMMARY, drf::PAPER, drf::PARAMETERS),
    Entry::of::<Tetris>(tetris::NAME, tetris::SUMMARY, tetris::PAPER, tetris::PARAMETERS),
    Entry::of::<Rrh>(rrh::NAME, rrh::SUMMARY, rrh::PAPER, rrh::PARAMETERS),
    Entry::of::<Dorm>(dorm::NAME, dorm::SUMMARY, dorm::PAPER, dorm::PARAMETERS),
    Entry::of::<Edge>(edge::NAME, edge::SUMMARY, edge::PAPER, edge::PARAMETERS),
    Entry::of::<Srtf>(srtf::NAME, srtf::SUMMARY, srtf::PAPER, srtf::PARAMETERS),
    Entry::of::<Tiresias>(tiresias::NAME, tiresias::SUMMARY, tiresias::PAPER, tiresias::PARAMETERS),
    Entry::of::<Batch>(batch::NAME, batch::SUMMARY, batch::PAPER, batch::PARAMETERS),
    Entry::of::<Mlfs>(mlfs::NAME, mlfs::SUMMARY, mlfs::PAPER, mlfs::PARAMETERS).learning(&mlfs::INPUTS),
    Entry::of::<Mlfs>(mlfs::HEURISTIC_NAME, mlfs::HEURISTIC_SUMMARY, mlfs::PAPER, mlfs::HEURISTIC_PARAMETERS),
    Entry::of::<Slaq>(slaq::NAME, slaq::SUMMARY, slaq::PAPER, slaq::PARAMETERS),
    Entry::of::<Gandiva>(gandiva::NAME, gandiva::SUMMARY, gandiva::PAPER, gandiva::PARAMETERS),
    Entry::of::<Graphene>(graphene::NAME, graphene::SUMMARY, graphene::PAPER, graphene::PARAMETERS),
    Entry::of::<Hypersched>(hypersched::NAME, hypersched::SUMMARY, hypersched::PAPER, hypersched::PARAMETERS),
    Entry::of::<Fair>(fair::NAME, fair::SUMMARY, fair::PAPER, fair::PARAMETERS),
    Entry::of::<Rl>(rl::NAME, rl::SUMMARY, rl::PAPER, rl::PARAMETERS).learning(&mlfs::INPUTS),
    Entry::of::<Random>(random::NAME, random::SUMMARY, random::PAPER, random::PARAMETERS),
];

/// What makes an engine run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// At least so often while there are jobs.
    pub interval: Option<Span>,
    /// When a job arrives, or a held one goes on.
    pub arrival: bool,
    /// When a job ends or is held, or a server comes.
    pub departure: bool,
}

/// What the guard holds the sum of plans against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limits {
    /// Reservations: Σ planned ≤ capacity − foreign use, or more where the pool
    /// [overbooks](crate::settings::ShapeRules::overbook).
    Reserved,
    /// Besides: no server comes to carry more than so many thousandths of what it has, as measured.
    Measured(u16),
}

/// Whether a job may run with some of its slots queued or preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// All slots run or none.
    Whole,
    /// Work items may wait on their slots one by one.
    Partial,
}

/// A bound on an engine's work, in steps rather than seconds, so that a replay stops where the original did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Budget {
    left: u64,
    given: u64,
}

impl Budget {
    /// No bound.
    pub const UNLIMITED: Self = Self::steps(u64::MAX);

    /// So many steps; a step is about one candidate looked at (tens of nanoseconds).
    pub const fn steps(steps: u64) -> Self {
        Self { left: steps, given: steps }
    }

    /// Takes steps off.
    ///
    /// # Errors
    /// There are fewer left.
    #[inline]
    pub fn spend(&mut self, steps: u64) -> Result<(), EngineError> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(EngineError::Exhausted { given: self.given }),
        }
    }

    /// At most so many of the steps left, to be [spent](Self::spend) here once they are used.
    pub(crate) fn part(&self, steps: u64) -> Self {
        Self::steps(self.left.min(steps))
    }

    /// Steps left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Steps taken so far.
    pub fn spent(&self) -> u64 {
        self.given - self.left
    }
}

/// An engine that couldn't decide. The last plan stands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// Its budget is used up.
    #[error("the engine used up its budget of {given} steps")]
    Exhausted {
        /// What it was given.
        given: u64,
    },
    /// Its host gave it up.
    #[error("the engine took longer than its host allows")]
    Late,
    /// It panicked.
    #[error("the engine panicked: {0}")]
    Panicked(String),
    /// What it proposed breaks a rule.
    #[error("the engine broke a rule: {0}")]
    Violation(#[from] crate::guard::Violation),
    /// It needs something it was not given.
    #[error("{0}")]
    Other(String),
}

/// A scheduling policy. A new one is a file here and a line in [`REGISTRY`].
///
/// `decide` must depend on its arguments alone: same state, changes, memo and budget, same proposal; a rebuilt index
/// gives the same proposal as a kept one.
pub trait Engine: Send + Sync {
    /// Its own memory between decisions: explicit, versioned, small or in chunks behind `Arc`.
    type Memo: Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Grows when the memo's layout changes; a memo of another version starts empty.
    const MEMO_VERSION: u32 = 1;
    /// Derived from the state, moved from ticket to ticket, rebuilt from `Default` if lost.
    type Index: Default + Send + 'static;

    /// What makes it run.
    fn triggers(&self) -> Triggers;
    /// What sums are held against.
    fn limits(&self) -> Limits {
        Limits::Reserved
    }
    /// All slots or none, or finer.
    fn gang(&self) -> Gang {
        Gang::Whole
    }
    /// Whether it could ever run such a job; asked when one is submitted.
    ///
    /// # Errors
    /// The key that is wrong, its value and what is allowed.
    fn accepts(&self, _: &JobSpec) -> Result<(), String> {
        Ok(())
    }
    /// Proposes changes to the plan in `state`. `changes` lists, in order, what happened since it last succeeded.
    ///
    /// Jobs whose [`mandate`](State::mandate) isn't free must not be changed.
    ///
    /// # Errors
    /// The budget is used up, or something it needs is missing; the memo is then as before.
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut Self::Memo,
        index: &mut Self::Index,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError>;
    /// What it goes by at the moment, such as its prices: named numbers for plots. Decides nothing.
    fn readings(&self, _: &State, _: &Self::Memo) -> Vec<(String, f64)> {
        Vec::new()
    }
    /// What its heuristic would choose now, from what a policy would be shown: for hosts that train one. Decides nothing.
    fn demonstrate(&self, _: &State, _: &Self::Memo) -> Vec<Demonstration> {
        Vec::new()
    }
}

/// An engine's memory, whatever its type.
pub trait AnyMemo: Send + Sync {
    #[doc(hidden)]
    fn boxed(&self) -> Box<dyn AnyMemo>;
    #[doc(hidden)]
    fn bytes(&self) -> Vec<u8>;
    #[doc(hidden)]
    fn any(&mut self) -> &mut dyn Any;
}

impl<M: Clone + Serialize + Send + Sync + 'static> AnyMemo for M {
    fn boxed(&self) -> Box<dyn AnyMemo> {
        Box::new(self.clone())
    }
    fn bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a memo is plain data")
    }
    fn any(&mut self) -> &mut dyn Any {
        self
    }
}

/// An engine's index, whatever its type; `None` where it is to be rebuilt.
pub type AnyIndex = Option<Box<dyn Any + Send>>;

/// [`Engine`], object-safe.
pub trait AnyEngine: Send + Sync {
    /// See [`Engine::triggers`].
    fn triggers(&self) -> Triggers;
    /// See [`Engine::limits`].
    fn limits(&self) -> Limits;
    /// See [`Engine::gang`].
    fn gang(&self) -> Gang;
    /// See [`Engine::accepts`].
    ///
    /// # Errors
    /// As there.
    fn accepts(&self, spec: &JobSpec) -> Result<(), String>;
    /// An empty memory.
    fn new_memo(&self) -> Box<dyn AnyMemo>;
    /// A memory from its bytes; `None` if they are of another version or engine.
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>>;
    /// See [`Engine::MEMO_VERSION`].
    fn memo_version(&self) -> u32;
    /// See [`Engine::decide`].
    ///
    /// # Errors
    /// As there.
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut dyn AnyMemo,
        index: &mut AnyIndex,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError>;
    /// See [`Engine::readings`].
    fn readings(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<(String, f64)>;
    /// See [`Engine::demonstrate`].
    fn demonstrate(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<Demonstration>;
}

impl<E: Engine> AnyEngine for E {
    fn triggers(&self) -> Triggers {
        Engine::triggers(self)
    }
    fn limits(&self) -> Limits {
        Engine::limits(self)
    }
    fn gang(&self) -> Gang {
        Engine::gang(self)
    }
    fn accepts(&self, spec: &JobSpec) -> Result<(), String> {
        Engine::accepts(self, spec)
    }
    fn new_memo(&self) -> Box<dyn AnyMemo> {
        Box::<E::Memo>::default()
    }
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>> {
        if version != E::MEMO_VERSION {
            return None;
        }
        let memo: E::Memo = postcard::from_bytes(bytes).ok()?;
        Some(Box::new(memo))
    }
    fn memo_version(&self) -> u32 {
        E::MEMO_VERSION
    }
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut dyn AnyMemo,
        index: &mut AnyIndex,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        let memo = memo.any().downcast_mut::<E::Memo>().expect("a memo stays with its engine");
        let mut own = match index.take().map(|index| index.downcast::<E::Index>()) {
            Some(Ok(index)) => index,
            _ => Box::default(),
        };
        let proposal = Engine::decide(self, state, changes, memo, &mut own, budget);
        // After an error the index may be half-updated: it is rebuilt.
        *index = if proposal.is_ok() { Some(own) } else { None };
        proposal
    }
    fn readings(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<(String, f64)> {
        let memo = memo.any().downcast_mut::<E::Memo>().expect("a memo stays with its engine");
        Engine::readings(self, state, memo)
    }
    fn demonstrate(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<Demonstration> {
        let memo = memo.any().downcast_mut::<E::Memo>().expect("a memo stays with its engine");
        Engine::demonstrate(self, state, memo)
    }
}

/// One parameter of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterInfo {
    /// As written in the settings.
    pub name: &'static str,
    /// What it is without being set.
    pub default: DefaultValue,
    /// What it does, with its unit.
    pub meaning: &'static str,
}

/// A parameter's default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// A number.
    Number(f64),
    /// On or off.
    Flag(bool),
    /// A choice or a duration.
    Text(&'static str),
}

impl From<DefaultValue> for Parameter {
    fn from(default: DefaultValue) -> Self {
        match default {
            DefaultValue::Number(number) => Self::Number(number),
            DefaultValue::Flag(flag) => Self::Flag(flag),
            DefaultValue::Text(text) => Self::Text(text.into()),
        }
    }
}

/// Builds an engine from its parameters.
pub trait Build: Engine + Sized + 'static {
    /// # Errors
    /// Names the parameter, its value and what is allowed.
    fn build(parameters: &Parameters) -> Result<Self, SettingsError>;
}

/// A line of the registry.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The engine's name.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// What can be set.
    pub parameters: &'static [ParameterInfo],
    /// What it shows a policy, if it follows one.
    pub inputs: Option<&'static Inputs>,
    build: fn(&Parameters) -> Result<Arc<dyn AnyEngine>, SettingsError>,
}

impl Entry {
    const fn of<E: Build>(
        name: &'static str,
        summary: &'static str,
        paper: &'static str,
        parameters: &'static [ParameterInfo],
    ) -> Self {
        let build: fn(&Parameters) -> Result<Arc<dyn AnyEngine>, SettingsError> =
            |parameters| Ok(Arc::new(E::build(parameters)?));
        Self { name, summary, paper, parameters, inputs: None, build }
    }

    /// The same for an engine that follows a policy, which it shows these inputs.
    const fn learning(self, inputs: &'static Inputs) -> Self {
        Self { inputs: Some(inputs), ..self }
    }

    /// The engine with these parameters; those not named have their defaults.
    ///
    /// # Errors
    /// An unknown parameter, or a value that isn't allowed.
    pub fn build(&self, given: &BTreeMap<String, Parameter>) -> Result<Arc<dyn AnyEngine>, SettingsError> {
        (self.build)(&self.parameters(given)?)
    }

    /// These parameters, and the defaults of those not named.
    ///
    /// # Errors
    /// An unknown parameter.
    pub fn parameters(&self, given: &BTreeMap<String, Parameter>) -> Result<Parameters, SettingsError> {
        if let Some(unknown) = given.keys().find(|name| !self.parameters.iter().any(|known| known.name == *name)) {
            let allowed: Vec<_> = self.parameters.iter().map(|known| known.name).collect();
            return Err(SettingsError::new(
                format!("parameters.{unknown}"),
                format!(
                    "engine {:?} has no such parameter; it has {}",
                    self.name,
                    if allowed.is_empty() { "none".into() } else { allowed.join(", ") }
                ),
            ));
        }
        let values = self
            .parameters
            .iter()
            .map(|known| (known.name, given.get(known.name).cloned().unwrap_or_else(|| known.default.into())));
        Ok(Parameters(values.collect()))
    }
}

/// The entry of a name.
///
/// # Errors
/// There is none; the error lists those there are.
pub fn find(name: &str) -> Result<&'static Entry, SettingsError> {
    REGISTRY.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().map(|entry| entry.name).collect();
        SettingsError::new("engine", format!("{name:?} is not an engine; there are {}", known.join(", ")))
    })
}

/// What an engine shows its policy.
///
/// # Errors
/// It follows none; the error lists the engines that do.
pub fn policy_inputs(engine: &str) -> Result<&'static Inputs, PolicyError> {
    REGISTRY.iter().find(|entry| entry.name == engine).and_then(|entry| entry.inputs).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().filter(|entry| entry.inputs.is_some()).map(|entry| entry.name).collect();
        PolicyError::Engine { engine: engine.into(), known: known.join(", ") }
    })
}

/// An engine's parameters with all defaults filled in.
#[derive(Clone, Debug)]
pub struct Parameters(BTreeMap<&'static str, Parameter>);

impl Parameters {
    fn wrong(name: &str, value: &Parameter, allowed: impl std::fmt::Display) -> SettingsError {
        SettingsError::new(format!("parameters.{name}"), format!("{value} must be {allowed}"))
    }

    /// A number within a range.
    ///
    /// # Errors
    /// It isn't.
    pub fn number(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, SettingsError> {
        match &self.0[name] {
            Parameter::Number(number) if range.contains(number) => Ok(*number),
            other => Err(Self::wrong(name, other, format_args!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A whole number within a range.
    ///
    /// # Errors
    /// It isn't.
    pub fn whole(&self, name: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, SettingsError> {
        let (least, most) = (*range.start(), *range.end());
        match &self.0[name] {
            Parameter::Number(number)
                if number.fract() == 0.0 && (f64::from(least)..=f64::from(most)).contains(number) =>
            {
                Ok(*number as u32)
            }
            other => Err(Self::wrong(name, other, format_args!("a whole number from {least} to {most}"))),
        }
    }

    /// On or off.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&self, name: &str) -> Result<bool, SettingsError> {
        match &self.0[name] {
            Parameter::Flag(flag) => Ok(*flag),
            other => Err(Self::wrong(name, other, "true or false")),
        }
    }

    /// A duration above zero.
    ///
    /// # Errors
    /// It isn't.
    pub fn span(&self, name: &str) -> Result<Span, SettingsError> {
        let value = &self.0[name];
        let Parameter::Text(text) = value else { return Err(Self::wrong(name, value, "a duration such as \"30s\"")) };
        match crate::amount::parse_span(text) {
            Ok(span) if span > Span::ZERO => Ok(span),
            _ => Err(Self::wrong(name, value, "a duration above zero such as \"30s\"")),
        }
    }

    /// One number or several, from least to most, with commas between them.
    ///
    /// # Errors
    /// There is none, one is out of range, or they don't ascend.
    pub fn ascending(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<Vec<f64>, SettingsError> {
        let value = &self.0[name];
        let numbers = match value {
            Parameter::Number(number) => Some(vec![*number]),
            Parameter::Text(text) => text.split(',').map(|part| part.trim().parse().ok()).collect(),
            Parameter::Flag(_) => None,
        };
        let right = |numbers: &Vec<f64>| {
            numbers.iter().all(|number| range.contains(number)) && numbers.windows(2).all(|pair| pair[0] < pair[1])
        };
        let (least, most) = (range.start(), range.end());
        numbers
            .filter(right)
            .ok_or_else(|| Self::wrong(name, value, format_args!("ascending numbers from {least} to {most}")))
    }

    /// Any text.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&self, name: &str) -> Result<&str, SettingsError> {
        match &self.0[name] {
            Parameter::Text(text) => Ok(text),
            other => Err(Self::wrong(name, other, "a text")),
        }
    }

    /// One of some choices.
    ///
    /// # Errors
    /// It isn't.
    pub fn choice(&self, name: &str, choices: &[&'static str]) -> Result<&'static str, SettingsError> {
        let value = &self.0[name];
        let chosen = choices.iter().find(|choice| matches!(value, Parameter::Text(text) if text == *choice));
        chosen.copied().ok_or_else(|| Self::wrong(name, value, format_args!("one of {}", choices.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_what_is_counted_are_refused() {
        for (engine, name) in [("oasis", "horizon"), ("oasis", "window"), ("dorm", "jobs"), ("dorm", "nodes")] {
            let entry = find(engine).unwrap();
            let build = |value| entry.build(&[(name.to_owned(), Parameter::Number(value))].into());
            assert!(build(2.0).is_ok(), "{engine}.{name}");
            for wrong in [1.5, -1.0, 1e12, f64::NAN] {
                let error = build(wrong).err().expect("it is refused").to_string();
                assert!(error.contains(name) && error.contains("a whole number from"), "{error}");
            }
        }
    }
}
