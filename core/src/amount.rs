//! Quantities in text form: `"10GiB"`, `"1Gbit"`, `"2d"`, `0.5`.
//!
//! Internally all quantities are integers, so capacity arithmetic is exact: thousandths for counted resources (GPUs,
//! CPUs, custom types), MiB for memory and disk, Mbit/s for bandwidth, milliseconds for time.

use std::fmt;

use serde::{
    Deserializer,
    de::{Error, Visitor},
};

use crate::time::Span;

/// The unit of a resource's integer amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of one: GPUs, CPUs, custom resources.
    Milli,
    /// MiB: memory and disk.
    MiB,
    /// Mbit/s: bandwidth.
    Mbit,
}

impl Unit {
    /// The unit of a resource, by its name.
    ///
    /// ```
    /// use trainmaster_core::amount::Unit;
    /// assert_eq!(Unit::of("memory"), Unit::MiB);
    /// assert_eq!(Unit::of("gpu:a100"), Unit::Milli);
    /// ```
    pub fn of(resource: &str) -> Self {
        match resource {
            "memory" | "disk" => Self::MiB,
            "bandwidth" => Self::Mbit,
            _ => Self::Milli,
        }
    }

    /// Parses a quantity in this unit.
    ///
    /// # Errors
    /// The error names the text and the allowed form. Quantities are refused if they are negative, too large or finer
    /// than the sub-unit, or if their suffix is missing or unknown.
    ///
    /// ```
    /// use trainmaster_core::amount::Unit;
    /// assert_eq!(Unit::MiB.parse("10GiB").unwrap(), 10 * 1024);
    /// assert_eq!(Unit::Mbit.parse("1Gbit").unwrap(), 1000);
    /// assert_eq!(Unit::Milli.parse("0.5").unwrap(), 500);
    /// assert!(Unit::MiB.parse("10").unwrap_err().to_string().contains("10GiB"));
    /// ```
    pub fn parse(self, text: &str) -> Result<i64, AmountError> {
        let (suffixes, allowed): (&[(&str, i64)], _) = match self {
            Self::Milli => (&[("", 1000), ("m", 1)], "a number such as 2 or 0.5, or thousandths such as 500m"),
            Self::MiB => {
                (&[("MiB", 1), ("GiB", 1 << 10), ("TiB", 1 << 20)], "a number with MiB, GiB or TiB, such as 10GiB")
            }
            Self::Mbit => (&[("Mbit", 1), ("Gbit", 1000)], "a number with Mbit or Gbit (a second), such as 1Gbit"),
        };
        parse_scaled(text, suffixes, allowed)
    }

    /// Formats a quantity in the form that [`parse`](Self::parse) accepts, in the largest unit that keeps it short.
    pub fn format(self, value: i64) -> String {
        let scaled = |scale: i64, suffix: &str| {
            let text = format!("{:.3}", value as f64 / scale as f64);
            format!("{}{suffix}", text.trim_end_matches('0').trim_end_matches('.'))
        };
        match self {
            Self::Milli => scaled(1000, ""),
            Self::MiB if value.abs() >= 1 << 20 => scaled(1 << 20, "TiB"),
            Self::MiB if value.abs() >= 1 << 10 => scaled(1 << 10, "GiB"),
            Self::MiB => scaled(1, "MiB"),
            Self::Mbit if value.abs() >= 1000 => scaled(1000, "Gbit"),
            Self::Mbit => scaled(1, "Mbit"),
        }
    }
}

/// Parses a duration: `"250ms"`, `"20s"`, `"5m"`, `"6h"`, `"2d"`.
pub fn parse_span(text: &str) -> Result<Span, AmountError> {
    let suffixes = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    parse_scaled(text, &suffixes, "a number with ms, s, m, h or d, such as 20s").map(Span)
}

/// Reads a duration from a file.
pub(crate) fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Span;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration in quotes, such as \"20s\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
            parse_span(text).map_err(E::custom)
        }
    }

    from.deserialize_str(Text)
}

/// The form of a configuration's duration, as [`parse_span`] reads it: `#[serde(with = "duration")]`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    use super::span;

    /// Reads it.
    ///
    /// # Errors
    /// The text isn't a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let span = span(from)?;
        Ok(Duration::from_millis(span.0.unsigned_abs()))
    }

    /// Writes it in whole seconds or milliseconds: `"30s"`, `"1500ms"`.
    ///
    /// # Errors
    /// That of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match duration.subsec_millis() {
            0 => to.collect_str(&format_args!("{}s", duration.as_secs())),
            _ => to.collect_str(&format_args!("{}ms", duration.as_millis())),
        }
    }
}

/// The form of a configuration's bytes: a number of them, or a size such as `"64MiB"`. `#[serde(with = "bytes")]`.
pub mod bytes {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{Error, Unexpected, Visitor},
    };

    use super::parse_scaled;

    const SUFFIXES: [(&str, i64); 5] =
        [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    /// Larger ones aren't read as texts.
    const LARGEST_TEXT: u64 = 1 << 49;

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a size in quotes, such as \"64MiB\"")
        }

        fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }

        fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
            u64::try_from(bytes).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            let bytes = parse_scaled(text, &SUFFIXES, "a number with B, KiB, MiB, GiB or TiB, such as 64MiB");
            bytes.map(i64::unsigned_abs).map_err(E::custom)
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is neither a number of bytes nor a size, or the type can't hold it.
    pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let bytes = from.deserialize_any(Bytes)?;
        let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
        T::try_from(bytes).map_err(|_| D::Error::custom(format!("{bytes} must be at most {most}")))
    }

    /// Writes it in the largest unit of which it has a whole number: `"64MiB"`, `"100B"`.
    ///
    /// # Errors
    /// That of the serializer.
    pub fn serialize<T: Copy + TryInto<u64>, S: Serializer>(bytes: &T, to: S) -> Result<S::Ok, S::Error> {
        let bytes: u64 = (*bytes).try_into().unwrap_or(u64::MAX);
        if bytes > LARGEST_TEXT {
            return to.serialize_u64(bytes);
        }
        let whole = |(_, scale): &&(&str, i64)| bytes > 0 && bytes.is_multiple_of(scale.unsigned_abs());
        let (suffix, scale) = SUFFIXES.iter().rev().find(whole).unwrap_or(&SUFFIXES[0]);
        to.collect_str(&format_args!("{}{suffix}", bytes / scale.unsigned_abs()))
    }
}

/// Defines the schema of a quantity's text.
#[cfg(feature = "schema")]
macro_rules! text_schema {
    ($(#[$about:meta])* $type:ident, $name:literal, $pattern:literal) => {
        $(#[$about])*
        pub struct $type;

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}

#[cfg(feature = "schema")]
text_schema! {
    /// The schema of a duration's text.
    DurationText, "duration", r"^\s*[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)\s*(ms|s|m|h|d)\s*$"
}

#[cfg(feature = "schema")]
text_schema! {
    /// The schema of a size's text.
    SizeText, "size", r"^\s*[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)\s*(MiB|GiB|TiB)\s*$"
}

#[cfg(feature = "schema")]
text_schema! {
    /// The schema of the text of a number of bytes.
    BytesText, "bytes", r"^\s*[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)\s*(B|KiB|MiB|GiB|TiB)\s*$"
}

/// The schema of [`bytes`]: a number, or a text.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged, inline)]
#[expect(missing_docs, reason = "only its schema is used")]
pub enum BytesForm {
    Text(#[schemars(with = "BytesText")] ()),
    Number(u64),
}

#[cfg(feature = "schema")]
text_schema! {
    /// The schema of a bandwidth's text.
    BandwidthText, "bandwidth", r"^\s*[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)\s*(Mbit|Gbit)\s*$"
}

/// The schema of a quantity in any unit: a number, or a text.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged, inline)]
#[expect(missing_docs, reason = "only its schema is used")]
pub enum Quantity {
    Number(f64),
    Text(String),
}

/// A quantity that can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not allowed here: {problem}; write {allowed}{}", hint(.meant.as_deref()))]
pub struct AmountError {
    text: String,
    problem: &'static str,
    allowed: &'static str,
    /// The text in the right spelling, if its unit is a common other spelling.
    meant: Option<String>,
}

fn parse_scaled(text: &str, suffixes: &[(&str, i64)], allowed: &'static str) -> Result<i64, AmountError> {
    let fail = |problem| AmountError { text: text.into(), problem, allowed, meant: None };
    let trimmed = text.trim();
    let split =
        trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(trimmed.len());
    let (number, suffix) = (&trimmed[..split], trimmed[split..].trim());
    let number: f64 = number.parse().map_err(|_| fail("not a number"))?;
    let scale = suffixes.iter().find(|(name, _)| *name == suffix).map(|(_, scale)| *scale);
    let scale = scale.ok_or_else(|| match spelled(suffix, suffixes) {
        _ if suffix.is_empty() => fail("the unit is missing"),
        Some(right) => AmountError { meant: Some(format!("{}{right}", &trimmed[..split])), ..fail("unknown unit") },
        None => fail("unknown unit"),
    })?;
    let value = number * scale as f64;
    if value < 0.0 {
        return Err(fail("negative"));
    }
    if value > 1e15 {
        return Err(fail("too large"));
    }
    let rounded = libm::round(value);
    if libm::fabs(value - rounded) > 1e-6 {
        return Err(fail("finer than the smallest part that is counted"));
    }
    Ok(rounded as i64)
}

/// The end of an error's text.
fn hint(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}

/// The unit that was probably meant by another spelling: `GB` by GiB, `min` by m.
fn spelled(suffix: &str, suffixes: &[(&str, i64)]) -> Option<&'static str> {
    const SPELLINGS: [(&str, &[&str]); 12] = [
        ("B", &["byte", "bytes"]),
        ("KiB", &["k", "kb", "kib", "kbyte", "kbytes"]),
        ("MiB", &["m", "mb", "mib", "mbyte", "mbytes"]),
        ("GiB", &["g", "gb", "gib", "gbyte", "gbytes"]),
        ("TiB", &["t", "tb", "tib", "tbyte", "tbytes"]),
        ("Mbit", &["mbps", "mb/s", "mbit/s", "mbits"]),
        ("Gbit", &["gbps", "gb/s", "gbit/s", "gbits"]),
        ("ms", &["msec", "millis", "milliseconds"]),
        ("s", &["sec", "secs", "second", "seconds"]),
        ("m", &["min", "mins", "minute", "minutes"]),
        ("h", &["hr", "hrs", "hour", "hours"]),
        ("d", &["day", "days"]),
    ];
    let written = suffix.to_ascii_lowercase();
    let (right, _) = SPELLINGS.into_iter().find(|(right, others)| {
        suffixes.iter().any(|(name, _)| name == right)
            && (others.contains(&&*written) || right.eq_ignore_ascii_case(&written))
    })?;
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_numbers_or_sizes() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct Limits {
            #[serde(with = "bytes")]
            all: u64,
            #[serde(with = "bytes")]
            second: u32,
        }
        let read = |all: &str, second: &str| toml::from_str::<Limits>(&format!("all = {all}\nsecond = {second}"));
        let limits = read("\"1.5GiB\"", "\"2KiB\"").unwrap();
        assert_eq!(limits, Limits { all: 3 << 29, second: 2048 });
        assert_eq!(toml::to_string(&limits).unwrap(), "all = \"1536MiB\"\nsecond = \"2KiB\"\n");
        let huge = read("2000000000000000", "1").unwrap();
        assert_eq!(toml::to_string(&huge).unwrap(), "all = 2000000000000000\nsecond = \"1B\"\n");
        assert_eq!(toml::to_string(&read("0", "100").unwrap()).unwrap(), "all = \"0B\"\nsecond = \"100B\"\n");
        for (wrong, part) in [
            ("\"64MB\"", "did you mean \"64MiB\"?"),
            ("\"64\"", "the unit is missing"),
            ("-1", "such as \"64MiB\""),
            ("true", "such as \"64MiB\""),
            ("4294967296", "4294967296 must be at most 4294967295"),
            ("\"4GiB\"", "4294967296 must be at most 4294967295"),
            ("\"9999999999GiB\"", "too large"),
        ] {
            let error = read("1", wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_right_spelling_is_shown() {
        for (unit, text, right) in [
            (Unit::MiB, "10GB", "10GiB"),
            (Unit::MiB, "512 mb", "512MiB"),
            (Unit::MiB, "1.5T", "1.5TiB"),
            (Unit::Mbit, "25Gbps", "25Gbit"),
        ] {
            let message = unit.parse(text).unwrap_err().to_string();
            assert!(message.contains(&format!("did you mean \"{right}\"?")), "{message}");
        }
        for (text, right) in [("10min", "10m"), ("1 hour", "1h"), ("30 Sec", "30s")] {
            let message = parse_span(text).unwrap_err().to_string();
            assert!(message.contains(&format!("did you mean \"{right}\"?")), "{message}");
        }
        assert!(!parse_span("5 parsecs").unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn quantities_read_back_as_written() {
        for (unit, text, value) in [
            (Unit::Milli, "4", 4000),
            (Unit::Milli, "250m", 250),
            (Unit::MiB, "1.5GiB", 1536),
            (Unit::MiB, "2TiB", 2 << 20),
            (Unit::Mbit, "2.5Gbit", 2500),
        ] {
            assert_eq!(unit.parse(text).unwrap(), value, "{text}");
            assert_eq!(unit.parse(&unit.format(value)).unwrap(), value);
        }
        assert_eq!(parse_span("1.5h").unwrap(), Span(5_400_000));
    }

    #[test]
    fn errors_name_the_text_and_the_allowed_form() {
        for (unit, text, problem) in [
            (Unit::MiB, "-1GiB", "negative"),
            (Unit::MiB, "10GB", "unknown unit"),
            (Unit::Milli, "0.0001", "finer"),
            (Unit::Milli, "x", "not a number"),
            (Unit::Mbit, "99999999999999Gbit", "too large"),
        ] {
            let message = unit.parse(text).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(text), "{message}");
        }
    }
}
