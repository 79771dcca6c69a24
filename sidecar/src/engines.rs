//! `trainmaster engines`: the scheduling engines and their parameters.

use clap::Args;
use serde::{Serialize, Serializer};
use trainmaster_core::{
    engine::{DefaultValue, Entry},
    engines::REGISTRY,
};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct EnginesArgs {
    /// Show this engine's parameters with their defaults
    name: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The engine is unknown.
pub(crate) fn run(args: &EnginesArgs, output: Output) -> Result<(), Failure> {
    match &args.name {
        None => output.show(&Engines(REGISTRY.iter().map(Engine::of).collect())),
        Some(name) => output.show(&Engine::of(entry(name).map_err(Failure::refused)?)),
    }
}

/// Finds an engine by name.
///
/// # Errors
/// The name is unknown. The error lists the known ones.
pub(crate) fn entry(name: &str) -> Result<&'static Entry, String> {
    REGISTRY.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().map(|entry| entry.name).collect();
        format!("engine {name:?} isn't known; there are {}", known.join(", "))
    })
}

#[derive(Serialize)]
struct Engines(Vec<Engine>);

#[derive(Serialize)]
struct Engine {
    name: &'static str,
    summary: &'static str,
    paper: &'static str,
    parameters: Vec<ParameterRow>,
}

#[derive(Serialize)]
struct ParameterRow {
    name: &'static str,
    #[serde(serialize_with = "default_value")]
    default: DefaultValue,
    meaning: &'static str,
}

/// Serialises a number, a boolean or a string without the variant's name.
fn default_value<S: Serializer>(value: &DefaultValue, serializer: S) -> Result<S::Ok, S::Error> {
    match *value {
        DefaultValue::Number(number) => serializer.serialize_f64(number),
        DefaultValue::Flag(flag) => serializer.serialize_bool(flag),
        DefaultValue::Text(text) => serializer.serialize_str(text),
    }
}

impl Engine {
    fn of(entry: &Entry) -> Self {
        let parameters = entry.parameters().into_iter().map(|parameter| ParameterRow {
            name: parameter.name,
            default: parameter.default,
            meaning: parameter.meaning,
        });
        Self { name: entry.name, summary: entry.summary, paper: entry.paper, parameters: parameters.collect() }
    }
}

impl Show for Engines {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet =
            Sheet::new([Column::key("ENGINE"), Column::prose("DECIDES"), Column::spare("PARAMETERS", 1).right()]);
        for engine in &self.0 {
            sheet.row([engine.name.into(), engine.summary.into(), engine.parameters.len().into()]);
        }
        format!(
            "{}\n\nParameters: `trainmaster engines NAME`. Choose one: `trainmaster serve --engine NAME --set \
             key=value`.",
            sheet.on(paper)
        )
    }
}

impl Show for Engine {
    fn text(&self, paper: &Paper) -> String {
        let head = format!("{}: {}\nSource: {}", self.name, self.summary, self.paper);
        if self.parameters.is_empty() {
            return format!("{head}\n\nNothing can be set.");
        }
        let mut sheet = Sheet::new([Column::key("PARAMETER"), Column::key("DEFAULT"), Column::prose("MEANING")]);
        for parameter in &self.parameters {
            let default = match parameter.default {
                DefaultValue::Number(number) => number.to_string(),
                DefaultValue::Flag(flag) => flag.to_string(),
                DefaultValue::Text(text) => text.to_owned(),
            };
            sheet.row([parameter.name.into(), default.into(), parameter.meaning.into()]);
        }
        format!("{head}\n\n{}", sheet.on(paper))
    }
}
