//! The forms of settings in files. Journals have plain numbers.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Error as _},
};

use super::{Parameter, Stability};
use crate::{amount::Unit, forms::span, resources::is_gpu, time::Span};

/// A number of at least one. Old journals may have 0.
pub(super) fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let is_file = from.is_human_readable();
    match u32::deserialize(from)? {
        0 if is_file => Err(D::Error::custom("0 must be at least 1")),
        number => Ok(number.max(1)),
    }
}

/// Thousandths: the factor.
pub(super) mod times {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(milli: &u16, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.serialize_f64(f64::from(*milli) / 1000.0) } else { milli.serialize(to) }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
        if !from.is_human_readable() {
            return u16::deserialize(from);
        }
        match f64::deserialize(from)? {
            times if (1.0..=8.0).contains(&times) => Ok(libm::round(times * 1000.0) as u16),
            times => Err(D::Error::custom(format!("{times} must be from 1 to 8"))),
        }
    }
}

/// A cap. Files without it have no cap.
pub(super) mod cap {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(cap: &f64, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { (*cap < f64::MAX).then_some(cap).serialize(to) } else { cap.serialize(to) }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        match f64::deserialize(from)? {
            cap if cap >= 0.0 => Ok(cap),
            cap => Err(D::Error::custom(format!("{cap} must be 0 or more"))),
        }
    }
}

/// A seed. TOML's integers are signed, so no file can have a larger one.
pub(super) mod seed {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { i64::try_from(*seed).ok().serialize(to) } else { seed.serialize(to) }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        u64::deserialize(from)
    }
}

/// Amounts by owner and resource: `memory = "64GiB"`.
pub(super) mod limits {
    use super::*;

    type Limits = BTreeMap<String, BTreeMap<String, i64>>;
    /// Their form in files.
    #[cfg(feature = "schema")]
    pub(in super::super) type Texts = BTreeMap<String, BTreeMap<String, crate::amount::Quantity>>;

    pub(in super::super) fn serialize<S: Serializer>(limits: &Limits, to: S) -> Result<S::Ok, S::Error> {
        if !to.is_human_readable() {
            return limits.serialize(to);
        }
        let texts = |most: &BTreeMap<String, i64>| -> BTreeMap<String, String> {
            most.iter().map(|(name, amount)| (name.clone(), text(Unit::of(name), *amount))).collect()
        };
        let table: BTreeMap<&String, _> = limits.iter().map(|(owner, most)| (owner, texts(most))).collect();
        (!table.is_empty()).then_some(table).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Limits, D::Error> {
        if !from.is_human_readable() {
            return Limits::deserialize(from);
        }
        let tables = BTreeMap::<String, BTreeMap<String, toml::Value>>::deserialize(from)?;
        let read = |owner: &str, name: String, value: toml::Value| {
            let text = if let toml::Value::String(text) = value { text } else { value.to_string() };
            let wrong = |problem: String| D::Error::custom(format!("queue or tenant {owner}: {name}: {problem}"));
            if is_gpu(&name) && name.contains(['|', '*']) {
                return Err(wrong("limit gpu, or one type, such as \"gpu:a100\"".to_owned()));
            }
            let known = [("gpus", "gpu"), ("cpus", "cpu"), ("mem", "memory")];
            if let Some((_, right)) = known.iter().find(|(other, _)| *other == name) {
                return Err(wrong(format!("the resource is called {right}")));
            }
            Ok((name.clone(), Unit::of(&name).parse(&text).map_err(|error| wrong(error.to_string()))?))
        };
        let limits = tables.into_iter().map(|(owner, table)| {
            if owner.is_empty() {
                return Err(D::Error::custom("\"\": a queue or tenant has a name"));
            }
            let most = table.into_iter().map(|(name, value)| read(&owner, name, value)).collect::<Result<_, _>>()?;
            Ok((owner, most))
        });
        limits.collect()
    }

    fn text(unit: Unit, amount: i64) -> String {
        let short = unit.format(amount);
        // The form for display is rounded, so it may be another amount.
        match unit {
            _ if unit.parse(&short) == Ok(amount) => short,
            Unit::Milli => format!("{}.{:03}", amount / 1000, amount % 1000),
            Unit::MiB => format!("{amount}MiB"),
            Unit::Mbit => format!("{amount}Mbit"),
        }
    }
}

/// A parameter in a file is a plain value.
impl Serialize for Parameter {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            _ if !to.is_human_readable() => Self::serialize(self, to),
            Self::Number(number) => number.serialize(to),
            Self::Flag(flag) => flag.serialize(to),
            Self::Text(text) => text.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Value;
        impl de::Visitor<'_> for Value {
            type Value = Parameter;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, true, false or a string")
            }
            fn visit_i64<E>(self, number: i64) -> Result<Parameter, E> {
                Ok(Parameter::Number(number as f64))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Parameter, E> {
                Ok(Parameter::Number(number))
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Parameter, E> {
                Ok(Parameter::Flag(flag))
            }
            fn visit_str<E>(self, text: &str) -> Result<Parameter, E> {
                Ok(Parameter::Text(text.to_owned()))
            }
        }
        if from.is_human_readable() { from.deserialize_any(Value) } else { Self::deserialize(from) }
    }
}

/// The table of [`Stability`]'s rules in a file.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Rules {
    /// Minimum time for which a job keeps its slots after a start. After a restart, if `payback` restart costs are
    /// longer, these count, up to five times this.
    #[serde(with = "span")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::amount::DurationText"))]
    min_run: Span,
    /// Number of restarts of a job within an hour for another shape or another place. After them it keeps its slots.
    rescales_per_hour: u32,
    /// A job isn't restarted if it is predicted to end within this many restart costs, or was restarted within them.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    payback: f64,
}

/// [`Stability`] in a file.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum Switch {
    /// `"on"`: the defaults of the table. `"off"`: no job is pinned.
    Word(OnOff),
    /// The rules.
    Table(Rules),
}

#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum OnOff {
    On,
    Off,
}

impl Default for Rules {
    fn default() -> Self {
        let Stability { min_run, rescales_per_hour, payback, .. } = Stability::default();
        Self { min_run, rescales_per_hour, payback }
    }
}

impl Serialize for Stability {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { enabled, min_run, rescales_per_hour, payback } = *self;
        match (to.is_human_readable(), enabled) {
            (false, _) => Self::serialize(self, to),
            (true, false) => to.serialize_str("off"),
            (true, true) => Rules { min_run, rescales_per_hour, payback }.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Stability {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Value;
        impl<'de> de::Visitor<'de> for Value {
            type Value = Stability;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"on\", \"off\" or a table of min_run, rescales_per_hour and payback")
            }
            fn visit_str<E: de::Error>(self, switch: &str) -> Result<Stability, E> {
                match switch {
                    "on" => Ok(Stability::default()),
                    "off" => Ok(Stability { enabled: false, ..Stability::default() }),
                    other => Err(E::custom(format!(
                        "{other:?} must be \"on\", \"off\" or a table of min_run, rescales_per_hour and payback"
                    ))),
                }
            }
            fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Stability, A::Error> {
                let from = de::value::MapAccessDeserializer::new(table);
                let Rules { min_run, rescales_per_hour, payback } = Rules::deserialize(from)?;
                if !(payback >= 0.0 && payback.is_finite()) {
                    return Err(A::Error::custom(format!("stability.payback: {payback} must be 0 or more")));
                }
                Ok(Stability { enabled: true, min_run, rescales_per_hour, payback })
            }
        }
        if from.is_human_readable() { from.deserialize_any(Value) } else { Self::deserialize(from) }
    }
}
