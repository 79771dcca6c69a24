//! What is known of each engine: its name, its parameters, and how it is built.

use std::{collections::BTreeMap, sync::Arc};

use super::{any::AnyEngine, contract::Engine, parameters::ParameterInfo, parameters::Parameters};
use crate::{
    policy::Inputs,
    settings::{Parameter, SettingsError},
};

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
    /// Of an engine.
    pub const fn of<B: Build>() -> Self {
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
