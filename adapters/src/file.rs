//! Common parts of the adapters' configuration files.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use thiserror::Error;
use toml::Value;
use trainmaster_core::{
    amount::{AmountError, Unit, duration, parse_span},
    text::read_toml,
};
use trainmaster_manager::{Check, Health, Launch};

/// Maximum size of a file in bytes.
const LONGEST: usize = 16 << 20;
/// Maximum number of GPUs of one server in a file.
#[cfg(any(feature = "local", feature = "ray"))]
pub(crate) const MOST_DEVICES: i64 = 1024;

/// An adapter's configuration file that can't be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It can't be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The text isn't TOML, or has an unknown key or a value of the wrong type. The problem names the line.
    #[error("{origin}: {problem}")]
    Syntax {
        /// The file.
        origin: String,
        /// The problem and its place.
        problem: String,
    },
    /// A value that isn't allowed.
    #[error("{origin}: {key} = {value}: {problem}")]
    Value {
        /// The file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// The value in the file.
        value: String,
        /// The problem, and the allowed values.
        problem: String,
    },
}

/// Key, value and problem.
pub(crate) type Wrong = (String, String, String);

pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    let read = || {
        let mut text = String::new();
        // With one byte beyond the limit, `read_toml` reports that the text is too long.
        fs::File::open(path)?.take(LONGEST as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| FileError::Read { path: path.into(), error })
}

/// Parses a text as TOML and converts it with `understand`. Errors name its `origin`.
pub(crate) fn parse<F: DeserializeOwned, T>(
    text: &str,
    origin: &str,
    understand: impl FnOnce(F) -> Result<T, Wrong>,
) -> Result<T, FileError> {
    let file = read_toml(text, LONGEST)
        .map_err(|error| FileError::Syntax { origin: origin.into(), problem: error.to_string() })?;
    understand(file).map_err(|(key, value, problem)| FileError::Value { origin: origin.into(), key, value, problem })
}

/// The configuration file's path, for display.
pub(crate) fn shown(launch: &Launch) -> String {
    launch.config.as_ref().map_or("none given".into(), |file| file.display().to_string())
}

/// Checks an adapter's configuration under `name`. If it can be used, `look` returns a description of it and further
/// checks.
pub(crate) fn examine<T>(
    name: &'static str,
    config: Result<T, FileError>,
    look: impl FnOnce(&T) -> (String, Vec<Check>),
) -> Vec<Check> {
    match config {
        Ok(config) => {
            let (found, checks) = look(&config);
            [vec![Check::new(name, Health::Good, found)], checks].concat()
        }
        Err(error) => vec![Check::new(name, Health::Bad, error.to_string())],
    }
}

/// An amount of a resource in its sub-units.
pub(crate) fn amount(key: &str, value: &Value) -> Result<i64, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        _ => return Err("write a number, or a text with a unit such as \"10GiB\" or \"1Gbit\"".into()),
    };
    Unit::of(key).parse(&text).map_err(|error| error.to_string())
}

/// How often to measure if the file doesn't say.
pub(crate) const MEASURE: Duration = Duration::from_secs(10);

/// How often to measure. `None`: never.
pub(crate) fn measure(text: &str) -> Result<Option<Duration>, Wrong> {
    if text == "off" {
        return Ok(None);
    }
    let problem = |error: AmountError| format!("{error}; \"off\" and \"0s\" are no measuring");
    let span = parse_span(text).map_err(|error| ("measure".into(), quoted(text), problem(error)))?;
    Ok(Some(Duration::from_millis(span.0.unsigned_abs())).filter(|every| !every.is_zero()))
}

/// Reads a value in sub-units: `#[serde(deserialize_with = "file::mbit")]`.
#[cfg(feature = "yarn")]
pub(crate) fn mbit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    amount("bandwidth", &Value::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// The same for memory and disks.
#[cfg(feature = "yarn")]
pub(crate) fn mib<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    amount("disk", &Value::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// Reads a duration from `LEAST` milliseconds to a day.
#[cfg(feature = "yarn")]
pub(crate) fn span<'de, D: Deserializer<'de>, const LEAST: u64>(from: D) -> Result<Duration, D::Error> {
    let (least, most) = (Duration::from_millis(LEAST), Duration::from_secs(24 * 3600));
    match duration::deserialize(from)? {
        span if (least..=most).contains(&span) => Ok(span),
        span => Err(D::Error::custom(format!("{span:?} must be from {least:?} to {most:?}"))),
    }
}

/// Reads how often to measure, as [`measure`].
#[cfg(feature = "yarn")]
pub(crate) fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    measure(&String::deserialize(from)?).map_err(|(_, value, problem)| D::Error::custom(format!("{value}: {problem}")))
}

/// Reads a manager's name.
#[cfg(feature = "yarn")]
pub(crate) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    check_name(&name).map_err(|problem| D::Error::custom(format!("{name:?}: {problem}")))?;
    Ok(name)
}

pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) {
        return Err("allowed are 1 to 128 letters, digits, '.', '_' and '-'".into());
    }
    Ok(())
}

pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_never_ends_is_refused() {
        let text = read(Path::new("/dev/zero")).unwrap();
        let understand = |table: toml::Table| Ok(table);
        let error = parse(&text, "zero", understand).unwrap_err().to_string();
        assert!(error.contains("bytes must be at most"), "{error}");
    }
}
