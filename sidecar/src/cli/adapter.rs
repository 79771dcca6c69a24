//! `--adapter NAME[=FILE]`.

use std::{path::PathBuf, str::FromStr};

use trainmaster_adapters::{AdapterInfo, all, by_name};

/// An adapter, and its configuration file if it is to have one.
#[derive(Clone, Debug)]
pub(crate) struct AdapterChoice {
    pub(crate) info: &'static AdapterInfo,
    pub(crate) config: Option<PathBuf>,
}

impl FromStr for AdapterChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, config) = match text.split_once('=') {
            Some((_, "")) => return Err("the file after `=` is missing; write NAME or NAME=FILE".into()),
            Some((name, file)) => (name, Some(PathBuf::from(file))),
            None => (text, None),
        };
        let info = by_name(name).ok_or_else(|| {
            let known: Vec<_> = all().iter().map(|adapter| adapter.name).collect();
            format!("adapter {name:?} isn't known; there are {}", known.join(", "))
        })?;
        Ok(Self { info, config })
    }
}

impl AdapterChoice {
    /// What was chosen, or what runs where nothing was.
    pub(crate) fn or_default(chosen: &[Self]) -> Vec<Self> {
        if !chosen.is_empty() {
            return chosen.to_vec();
        }
        all().iter().filter(|info| info.default).map(|info| Self { info, config: None }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files_are_told_apart() {
        let name = all()[0].name;
        let choice: AdapterChoice = format!("{name}=a/b=c.toml").parse().unwrap();
        assert_eq!((choice.info.name, choice.config), (name, Some(PathBuf::from("a/b=c.toml"))));
        assert!(name.parse::<AdapterChoice>().unwrap().config.is_none());
        assert!("nomad".parse::<AdapterChoice>().unwrap_err().contains(name));
        assert!(format!("{name}=").parse::<AdapterChoice>().is_err());
    }

    #[test]
    fn defaults_stand_in_only_for_nothing() {
        assert!(AdapterChoice::or_default(&[]).iter().all(|choice| choice.info.default));
        let chosen = AdapterChoice { info: &all()[0], config: Some("x".into()) };
        assert_eq!(AdapterChoice::or_default(&[chosen]).len(), 1);
    }
}
