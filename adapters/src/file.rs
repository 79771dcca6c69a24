//! Common parts of the adapters' configuration files.

use std::{
    collections::BTreeMap,
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
    /// The text isn't TOML, or has an unknown key, or a value that isn't allowed. The problem names the line.
    #[error("{origin}: {problem}")]
    Syntax {
        /// The file.
        origin: String,
        /// The problem and its place.
        problem: String,
    },
    /// A value that isn't allowed beside the others, or comes from the environment.
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
pub(crate) fn amount(unit: Unit, value: &Value) -> Result<i64, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        _ => return Err("write a number, or a text with a unit such as \"10GiB\" or \"1Gbit\"".into()),
    };
    unit.parse(&text).map_err(|error| error.to_string())
}

/// How often to measure if the file doesn't say.
pub(crate) const MEASURE: Duration = Duration::from_secs(10);

/// The form of memory and disks: `#[serde(with = "file::mib")]`.
pub(crate) mod mib {
    use super::{Deserializer, Unit, read_amount};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
        read_amount(Unit::MiB, from).map(Some)
    }

    #[cfg(feature = "schema")]
    pub(crate) fn serialize<S: serde::Serializer>(amount: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
        super::write_amount(Unit::MiB, *amount, to)
    }
}

/// The form of bandwidths.
pub(crate) mod mbit {
    use super::{Deserializer, Unit, read_amount};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
        read_amount(Unit::Mbit, from).map(Some)
    }

    #[cfg(feature = "schema")]
    pub(crate) fn serialize<S: serde::Serializer>(amount: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
        super::write_amount(Unit::Mbit, *amount, to)
    }
}

/// The form of what is counted, in thousandths.
#[cfg(any(feature = "local", feature = "ray"))]
pub(crate) mod milli {
    use super::{Deserializer, Unit, read_amount};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
        read_amount(Unit::Milli, from).map(Some)
    }

    #[cfg(feature = "schema")]
    pub(crate) fn serialize<S: serde::Serializer>(amount: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
        super::write_amount(Unit::Milli, *amount, to)
    }
}

fn read_amount<'de, D: Deserializer<'de>>(unit: Unit, from: D) -> Result<i64, D::Error> {
    amount(unit, &Value::deserialize(from)?).map_err(D::Error::custom)
}

#[cfg(feature = "schema")]
fn write_amount<S: serde::Serializer>(unit: Unit, amount: Option<i64>, to: S) -> Result<S::Ok, S::Error> {
    use serde::Serialize as _;

    amount.map(|amount| unit.format(amount)).serialize(to)
}

/// Reads resources without a key of their own, in thousandths.
#[cfg(any(feature = "local", feature = "ray"))]
pub(crate) fn others<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, i64>, D::Error> {
    let read = |(key, value): (String, Value)| {
        let lower = key.to_lowercase();
        let has_own = lower.starts_with("gpu") || ["cpu", "memory", "bandwidth", "disk"].contains(&lower.as_str());
        let milli = match has_own {
            true => Err("this resource has a key of its own beside `resources`".into()),
            false => amount(Unit::Milli, &value),
        };
        let milli = milli.map_err(|problem| D::Error::custom(format!("resources.{key} = {value}: {problem}")))?;
        Ok((key, milli))
    };
    BTreeMap::<String, Value>::deserialize(from)?.into_iter().map(read).collect()
}

/// How many there are if the file doesn't say.
#[cfg(any(feature = "local", feature = "ray"))]
pub(crate) fn one() -> u32 {
    1
}

/// Reads a number from 1 to `MOST`.
#[cfg(any(feature = "local", feature = "ray"))]
pub(crate) fn count<'de, D: Deserializer<'de>, const MOST: u32>(from: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(from)?;
    let count = u32::try_from(number).ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| D::Error::custom(format!("{number}: allowed are 1 to {MOST}")))
}

/// Reads a duration from `LEAST` milliseconds to a day.
#[cfg(any(feature = "ray", feature = "yarn"))]
pub(crate) fn span<'de, D: Deserializer<'de>, const LEAST: u64>(from: D) -> Result<Duration, D::Error> {
    let (least, most) = (Duration::from_millis(LEAST), Duration::from_secs(24 * 3600));
    match duration::deserialize(from)? {
        span if (least..=most).contains(&span) => Ok(span),
        span => Err(D::Error::custom(format!("{span:?}: allowed are {least:?} to {most:?}"))),
    }
}

/// The form of how often to measure. `None`: never.
pub(crate) mod interval {
    use serde::{Deserialize as _, Deserializer, de::Error as _};

    use super::{AmountError, Duration, parse_span};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(from)?;
        if text == "off" {
            return Ok(None);
        }
        let problem = |error: AmountError| format!("{error}; \"off\" and \"0s\" turn measuring off");
        let span = parse_span(&text).map_err(|error| D::Error::custom(problem(error)))?;
        Ok(Some(Duration::from_millis(span.0.unsigned_abs())).filter(|every| !every.is_zero()))
    }

    #[cfg(feature = "schema")]
    pub(crate) fn serialize<S: serde::Serializer>(every: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match every {
            Some(every) => super::duration::serialize(every, to),
            None => to.serialize_str("off"),
        }
    }
}

/// Reads a name of a manager or a server.
pub(crate) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    check_name(&name).map_err(|problem| D::Error::custom(format!("{name:?}: {problem}")))?;
    Ok(name)
}

/// A server's resources that its manager doesn't count, in sub-units.
#[cfg(any(feature = "ray", feature = "yarn"))]
pub(crate) fn uncounted(bandwidth: Option<i64>, disk: Option<i64>) -> impl Iterator<Item = (String, i64)> {
    let named = [("bandwidth", bandwidth), ("disk", disk)];
    named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)))
}

/// What [`check_name`] allows.
#[cfg(feature = "schema")]
pub(crate) const NAME: &str = "^[A-Za-z0-9._-]{1,128}$";

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

/// Forms of values, for schemas.
#[cfg(feature = "schema")]
pub(crate) mod schema {
    use super::MOST_DEVICES;

    /// How often, or never.
    #[derive(schemars::JsonSchema)]
    #[schemars(untagged, inline)]
    #[expect(dead_code, reason = "only its schema is used")]
    pub(crate) enum Interval {
        Every(#[schemars(with = "trainmaster_core::amount::DurationText")] ()),
        Never(Off),
    }

    #[derive(schemars::JsonSchema)]
    #[schemars(rename_all = "lowercase", inline)]
    #[expect(dead_code, reason = "only its schema is used")]
    pub(crate) enum Off {
        Off,
    }

    /// How many, or a list of names.
    #[derive(schemars::JsonSchema)]
    #[schemars(untagged, inline)]
    #[expect(dead_code, reason = "only its schema is used")]
    pub(crate) enum NumberOrNames {
        Number(#[schemars(range(max = MOST_DEVICES))] u32),
        Names(Vec<String>),
    }
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
