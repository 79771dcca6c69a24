//! Forms of values in files for people: `"20s"`, `"64MiB"`. The journal, which isn't for people, has plain numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    amount::{self, Unit},
    time::Span,
};

/// One value in its form.
struct Form<T>(T);

impl Serialize for Form<Span> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match (to.is_human_readable(), self.0.0) {
            (false, _) => self.0.serialize(to),
            (true, ms) if ms % 1000 == 0 => to.collect_str(&format_args!("{}s", ms / 1000)),
            (true, ms) => to.collect_str(&format_args!("{ms}ms")),
        }
    }
}

impl<'de> Deserialize<'de> for Form<Span> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return Span::deserialize(from).map(Self);
        }
        amount::span(from).map(Self)
    }
}

/// A duration: `20s`.
pub(crate) mod span {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(span: &Span, to: S) -> Result<S::Ok, S::Error> {
        Form(*span).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        Form::deserialize(from).map(|Form(span)| span)
    }
}

/// A duration that can be missing.
pub(crate) mod optional_span {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(span: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
        span.map(Form).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Span>, D::Error> {
        Ok(Option::<Form<Span>>::deserialize(from)?.map(|Form(span)| span))
    }
}

/// Durations, each with a number: `[["6h", 20], ["12h", 0.5]]`.
pub(crate) mod points {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(points: &[(Span, f64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(points.iter().map(|(from, number)| (Form(*from), number)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(Span, f64)>, D::Error> {
        let points = Vec::<(Form<Span>, f64)>::deserialize(from)?;
        Ok(points.into_iter().map(|(Form(from), number)| (from, number)).collect())
    }
}

/// An amount of memory in MiB: `64MiB`.
pub(crate) mod mebibytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(amount: &i64, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(&format_args!("{amount}MiB")) } else { amount.serialize(to) }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        if !from.is_human_readable() {
            return i64::deserialize(from);
        }
        Unit::MiB.parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::job::{Dataset, Utility, UtilityKind};

    fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> String {
        let file = toml::to_string(value).unwrap();
        assert_eq!(&toml::from_str::<T>(&file).unwrap(), value);
        assert_eq!(&postcard::from_bytes::<T>(&postcard::to_allocvec(value).unwrap()).unwrap(), value);
        file
    }

    #[test]
    fn files_have_units_and_journals_have_numbers() {
        let data = Dataset {
            chunks: 6,
            batches_per_chunk: 5,
            epochs: 4,
            batch_time: Some(Span(250)),
            upload: "cloud".into(),
            chunk_size: 64,
        };
        assert!(survives(&data).contains("batch_time = \"250ms\"\nupload = \"cloud\"\nchunk_size = \"64MiB\""));
        survives(&Dataset { batch_time: None, ..data.clone() });
        // The journal's form has no units: seven short numbers, a text of five bytes and its length.
        assert_eq!(postcard::to_allocvec(&data).unwrap().len(), 3 + 3 + 6 + 2);
        let utility = Utility {
            target: Span::seconds(3600),
            points: vec![(Span::seconds(60), 0.5)],
            ..Utility::new(UtilityKind::Table)
        };
        assert!(survives(&utility).contains("target = \"3600s\"\npoints = [[\"60s\", 0.5]]"));
    }
}
