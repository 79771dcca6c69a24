//! The engines and their registry: a line per engine; C ABI, gRPC, CLI and simulator find them by name.

pub mod board;
mod in_line;
mod ledger;
pub mod offline;
mod parameters;
mod placing;
mod preempting;
mod proposing;
mod round;
mod sharing;

use std::{any::Any, collections::BTreeMap, sync::Arc};

use imbl::Vector;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use self::board::Board;
pub use self::{
    parameters::{DefaultValue, ParameterInfo, Parameters},
    round::Round,
};
use crate::{
    decision::Proposal,
    job::JobSpec,
    place::SortBy,
    policy::{Demonstration, Inputs, PolicyError},
    settings::{Parameter, SettingsError},
    state::{Change, State},
    time::Span,
};

/// The modules of engines, and the registry of what each of them builds.
macro_rules! engines {
    ($($module:ident: $($engine:ident)+,)*) => {
        $(pub mod $module;)*

        /// All engines.
        pub const REGISTRY: &[Entry] = &[$($(Entry::of::<$module::$engine>(),)+)*];
    };
}

// In the order in which people are told of them. `scripts/check` formats these files: `cargo fmt` doesn't look into macros.
engines! {
    optimus: Optimus,
    oasis: Oasis,
    fifo: Fifo,
    drf: Drf,
    tetris: Tetris,
    rrh: Rrh,
    dorm: Dorm,
    edge: Edge,
    srtf: Srtf,
    tiresias: Tiresias,
    las: Las,
    batch: Batch,
    mlfs: Mlfs MlfH,
    slaq: Slaq,
    gandiva: Gandiva,
    graphene: Graphene,
    hypersched: Hypersched,
    fair: Fair,
    rl: Rl,
    random: Random,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The order in which the round's board has the servers; none where it isn't looked at.
    fn order(&self) -> Option<SortBy> {
        Some(SortBy::Share)
    }
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
    /// Proposes changes to the plan in the round's state.
    ///
    /// Jobs whose [`mandate`](State::mandate) isn't free must not be changed.
    ///
    /// # Errors
    /// The budget is used up, or something it needs is missing; the memo is then as before.
    fn decide(&self, round: &mut Round<'_, Self::Index>, memo: &mut Self::Memo) -> Result<(), EngineError>;
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
    /// The engine's own.
    #[doc(hidden)]
    fn own(&mut self) -> &mut dyn Any;
}

impl<M: Clone + Serialize + Send + Sync + 'static> AnyMemo for Kept<M> {
    fn boxed(&self) -> Box<dyn AnyMemo> {
        Box::new(self.clone())
    }
    fn bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a memo is plain data")
    }
    fn any(&mut self) -> &mut dyn Any {
        self
    }
    fn own(&mut self) -> &mut dyn Any {
        &mut self.own
    }
}

/// What is remembered from one decision to the next.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Kept<M> {
    /// See [`Round::last`].
    last: u32,
    /// What the engine remembers.
    own: M,
}

/// Grows when the layout of [`Kept`] changes.
const KEPT_VERSION: u32 = 1;

impl<M: 'static> Kept<M> {
    fn of(memo: &mut dyn AnyMemo) -> &mut Self {
        memo.any().downcast_mut().expect("a memo stays with its engine")
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
        Box::<Kept<E::Memo>>::default()
    }
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>> {
        let memo: Kept<E::Memo> = match version {
            // Of times when each engine remembered that server itself, or none, after its own.
            _ if version == E::MEMO_VERSION => Kept { last: 0, own: postcard::from_bytes(bytes).ok()? },
            _ if version == AnyEngine::memo_version(self) => postcard::from_bytes(bytes).ok()?,
            _ => return None,
        };
        Some(Box::new(memo))
    }
    fn memo_version(&self) -> u32 {
        KEPT_VERSION << 16 | E::MEMO_VERSION
    }
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut dyn AnyMemo,
        index: &mut AnyIndex,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        let Kept { last, own: memo } = Kept::of(memo);
        let mut kept = match index.take().map(|index| index.downcast::<(Board, E::Index)>()) {
            Some(Ok(index)) => index,
            _ => Box::default(),
        };
        let (board, own) = &mut *kept;
        if let Some(order) = Engine::order(self) {
            board.sync(state, changes, order);
        }
        let mut round = Round::new(state, changes, board, own, last, budget);
        Engine::decide(self, &mut round, memo)?;
        let proposal = round.proposal;
        // After an error it may be half-updated: it is rebuilt.
        *index = Some(kept);
        Ok(proposal)
    }
    fn readings(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<(String, f64)> {
        Engine::readings(self, state, &Kept::<E::Memo>::of(memo).own)
    }
    fn demonstrate(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<Demonstration> {
        Engine::demonstrate(self, state, &Kept::<E::Memo>::of(memo).own)
    }
}

/// What an engine is.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name: small letters, digits and hyphens.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// What it shows a policy, if it follows one.
    pub inputs: Option<&'static Inputs>,
}

impl About {
    /// Of an engine that follows no policy.
    pub const fn new(name: &'static str, summary: &'static str, paper: &'static str) -> Self {
        Self { name, summary, paper, inputs: None }
    }

    /// The same for an engine that follows a policy, which it shows these inputs.
    pub const fn learning(self, inputs: &'static Inputs) -> Self {
        Self { inputs: Some(inputs), ..self }
    }
}

/// What the registry lists: a name, and the engine that is built for it.
pub trait Build: 'static {
    /// What is built: the type itself, or another one with parameters of its own.
    type Engine: Engine + 'static;
    /// What it is.
    const ABOUT: About;
    /// Reads the engine's parameters, all of them each time.
    ///
    /// # Errors
    /// Names the parameter, its value and what is allowed.
    fn build(parameters: &mut Parameters<'_>) -> Result<Self::Engine, SettingsError>;
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
    /// What it shows a policy, if it follows one.
    pub inputs: Option<&'static Inputs>,
    build: fn(&mut Parameters<'_>) -> Result<Arc<dyn AnyEngine>, SettingsError>,
}

impl Entry {
    const fn of<B: Build>() -> Self {
        let About { name, summary, paper, inputs } = B::ABOUT;
        Self { name, summary, paper, inputs, build: |parameters| Ok(Arc::new(B::build(parameters)?)) }
    }

    /// What can be set.
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let none = BTreeMap::new();
        let mut parameters = Parameters::new(&none);
        // Its defaults are allowed: a test builds every engine with them.
        let _ = (self.build)(&mut parameters);
        parameters.into_read()
    }

    /// Whether there is such a parameter.
    pub fn has(&self, parameter: &str) -> bool {
        self.parameters().iter().any(|known| known.name == parameter)
    }

    /// The engine with these parameters; those not named have their defaults.
    ///
    /// # Errors
    /// An unknown parameter, or a value that isn't allowed.
    pub fn build(&self, given: &BTreeMap<String, Parameter>) -> Result<Arc<dyn AnyEngine>, SettingsError> {
        let known: Vec<_> = self.parameters().iter().map(|known| known.name).collect();
        if let Some(unknown) = given.keys().find(|name| !known.contains(&name.as_str())) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let problem = format!("engine {:?} has no such parameter; it has {known}", self.name);
            return Err(SettingsError::new(format!("parameters.{unknown}"), problem));
        }
        (self.build)(&mut Parameters::new(given))
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
