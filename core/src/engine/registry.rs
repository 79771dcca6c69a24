//! The registry's entry of an engine: its name, its parameters, and how it is built.

use std::{collections::BTreeMap, sync::Arc};

use super::{any::AnyEngine, contract::Engine, parameters::ParameterInfo, parameters::Parameters};
use crate::{
    policy::Inputs,
    settings::{Parameter, SettingsError},
};

/// The description of an engine.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The name: lower-case letters, digits and hyphens.
    pub name: &'static str,
    /// The summary, in one line.
    pub summary: &'static str,
    /// The source.
    pub paper: &'static str,
    /// Inputs of its policy, if it uses one.
    pub inputs: Option<&'static Inputs>,
}

impl About {
    /// An engine without a policy.
    pub const fn new(name: &'static str, summary: &'static str, paper: &'static str) -> Self {
        Self { name, summary, paper, inputs: None }
    }

    /// The same with a policy that gets these inputs.
    pub const fn learning(self, inputs: &'static Inputs) -> Self {
        Self { inputs: Some(inputs), ..self }
    }
}

/// An entry in the registry: a name, and the engine that is built for it.
pub trait Build: 'static {
    /// The engine: the type itself, or another one with its own parameters.
    type Engine: Engine + 'static;
    /// The description.
    const ABOUT: About;
    /// Reads all of the engine's parameters, on each call.
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
    /// The summary, in one line.
    pub summary: &'static str,
    /// The source.
    pub paper: &'static str,
    /// Inputs of its policy, if it uses one.
    pub inputs: Option<&'static Inputs>,
    build: fn(&mut Parameters<'_>) -> Result<Arc<dyn AnyEngine>, SettingsError>,
}

impl Entry {
    /// The entry of an engine.
    pub const fn of<B: Build>() -> Self {
        let About { name, summary, paper, inputs } = B::ABOUT;
        Self { name, summary, paper, inputs, build: |parameters| Ok(Arc::new(B::build(parameters)?)) }
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let none = BTreeMap::new();
        let mut parameters = Parameters::new(&none);
        // The defaults are allowed: a test builds every engine with them.
        let _ = (self.build)(&mut parameters);
        parameters.into_read()
    }

    /// Whether the engine has such a parameter.
    pub fn has(&self, parameter: &str) -> bool {
        self.parameters().iter().any(|known| known.name == parameter)
    }

    /// The parameters of an experiment that concern this engine: `name`, if it has one so called, and `engine.name`.
    pub fn parameters_of(&self, experiment: &BTreeMap<String, Parameter>) -> BTreeMap<String, Parameter> {
        let mut own = BTreeMap::new();
        for (key, value) in experiment {
            let name = match key.split_once('.') {
                Some((engine, name)) if engine == self.name => name,
                Some(_) => continue,
                None => key,
            };
            if self.has(name) {
                own.insert(name.to_owned(), value.clone());
            }
        }
        own
    }

    /// Builds the engine with these parameters and the defaults of the others.
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
