//! The parameters of an engine. Each is read once, with its name, default, allowed values and meaning.
//!
//! An engine reads them where it is built ([`Build`](super::Build)): each is written once, beside the field that it
//! fills, without a macro.

use std::{collections::BTreeMap, fmt::Display, ops::RangeInclusive};

use crate::{
    settings::{Parameter, SettingsError},
    time::Span,
};

/// One parameter of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterInfo {
    /// The name in the settings.
    pub name: &'static str,
    /// The default value.
    pub default: DefaultValue,
    /// The allowed values.
    pub allowed: String,
    /// The effect, with the unit.
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

/// The parameters from which an engine is built. It also records which parameters the engine reads, in that order.
#[derive(Clone, Debug)]
pub struct Parameters<'a> {
    given: &'a BTreeMap<String, Parameter>,
    read: Vec<ParameterInfo>,
}

impl<'a> Parameters<'a> {
    /// Creates it from the given parameters. The others have their defaults.
    pub fn new(given: &'a BTreeMap<String, Parameter>) -> Self {
        Self { given, read: Vec::new() }
    }

    /// The parameters read so far.
    pub fn into_read(self) -> Vec<ParameterInfo> {
        self.read
    }

    /// A parameter's value, if it is allowed.
    fn read<T>(
        &mut self,
        name: &'static str,
        default: DefaultValue,
        allowed: impl Display,
        meaning: &'static str,
        of: impl FnOnce(&Parameter) -> Option<T>,
    ) -> Result<T, SettingsError> {
        let allowed = allowed.to_string();
        let value = self.given.get(name).cloned().unwrap_or_else(|| default.into());
        let wrong = || SettingsError::new(format!("parameters.{name}"), format!("{value} must be {allowed}"));
        let read = of(&value).ok_or_else(wrong);
        self.read.push(ParameterInfo { name, default, allowed, meaning });
        read
    }

    /// A number within a range.
    ///
    /// # Errors
    /// The value isn't such a number.
    pub fn number(
        &mut self,
        name: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
        meaning: &'static str,
    ) -> Result<f64, SettingsError> {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, DefaultValue::Number(default), allowed, meaning, |value| match value {
            Parameter::Number(number) if range.contains(number) => Some(*number),
            _ => None,
        })
    }

    /// A whole number within a range.
    ///
    /// # Errors
    /// The value isn't such a number.
    pub fn whole(
        &mut self,
        name: &'static str,
        default: u32,
        range: RangeInclusive<u32>,
        meaning: &'static str,
    ) -> Result<u32, SettingsError> {
        let (least, most) = (*range.start(), *range.end());
        let allowed = format!("a whole number from {least} to {most}");
        self.read(name, DefaultValue::Number(default.into()), allowed, meaning, |value| match value {
            Parameter::Number(number)
                if number.fract() == 0.0 && (f64::from(least)..=f64::from(most)).contains(number) =>
            {
                Some(*number as u32)
            }
            _ => None,
        })
    }

    /// On or off.
    ///
    /// # Errors
    /// The value is neither.
    pub fn flag(&mut self, name: &'static str, default: bool, meaning: &'static str) -> Result<bool, SettingsError> {
        self.read(name, DefaultValue::Flag(default), "true or false", meaning, |value| match value {
            Parameter::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A duration above zero, at most a year.
    ///
    /// # Errors
    /// The value isn't such a duration.
    pub fn span(
        &mut self,
        name: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Result<Span, SettingsError> {
        let allowed = "a duration above zero such as \"30s\", at most \"365d\"";
        let year = Span::seconds(365 * 24 * 3600);
        self.read(name, DefaultValue::Text(default), allowed, meaning, |value| match value {
            Parameter::Text(text) => {
                crate::amount::parse_span(text).ok().filter(|span| *span > Span::ZERO && *span <= year)
            }
            _ => None,
        })
    }

    /// One or more ascending numbers, separated by commas.
    ///
    /// # Errors
    /// There is no number, one is out of range, or they don't ascend.
    pub fn ascending(
        &mut self,
        name: &'static str,
        default: &'static str,
        range: RangeInclusive<f64>,
        meaning: &'static str,
    ) -> Result<Vec<f64>, SettingsError> {
        let allowed = format!("ascending numbers from {} to {}", range.start(), range.end());
        self.read(name, DefaultValue::Text(default), allowed, meaning, |value| {
            let numbers: Vec<f64> = match value {
                Parameter::Number(number) => vec![*number],
                Parameter::Text(text) => text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?,
                Parameter::Flag(_) => return None,
            };
            let ascend = numbers.windows(2).all(|pair| pair[0] < pair[1]);
            (ascend && numbers.iter().all(|number| range.contains(number))).then_some(numbers)
        })
    }

    /// Any text.
    ///
    /// # Errors
    /// The value isn't text.
    pub fn text(
        &mut self,
        name: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Result<String, SettingsError> {
        self.read(name, DefaultValue::Text(default), "a text", meaning, |value| match value {
            Parameter::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// One of several named choices.
    ///
    /// # Errors
    /// The value is none of them.
    pub fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        default: &'static str,
        choices: &[(&'static str, T)],
        meaning: &'static str,
    ) -> Result<T, SettingsError> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let allowed = format!("one of {}", names.join(", "));
        self.read(name, DefaultValue::Text(default), allowed, meaning, |value| {
            let is = |choice: &&(&str, T)| matches!(value, Parameter::Text(text) if text == choice.0);
            choices.iter().find(is).map(|(_, chosen)| *chosen)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::engines::{REGISTRY, find};

    use super::*;

    #[test]
    fn every_engine_allows_its_own_defaults_and_names_each_parameter_once() {
        for entry in REGISTRY {
            let known = entry.parameters();
            let mut names: Vec<_> = known.iter().map(|known| known.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), known.len(), "{}", entry.name);
            let defaults = known.iter().map(|known| (known.name.to_owned(), known.default.into())).collect();
            assert!(entry.build(&defaults).is_ok(), "{}", entry.name);
        }
    }

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
