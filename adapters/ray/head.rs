//! Ray's head: over gRPC if its answers can be trusted, otherwise through its dashboard.

use std::{collections::BTreeSet, ops::Range};

use thiserror::Error;

use super::{
    bounds::words,
    config::{Api, Config, Untested},
    dashboard::Dashboard,
    gcs::Gcs,
    view::View,
};

/// The tested versions of Ray. Its gRPC interface is internal, and may change with any other version.
const TESTED: Range<(u32, u32)> = (2, 49)..(2, 61);

/// A failed request to Ray's head or its dashboard.
#[derive(Clone, Debug, Error)]
#[error("{place}: {problem}")]
pub(crate) struct HeadError {
    /// The component and its address.
    pub(crate) place: String,
    pub(crate) problem: String,
    pub(crate) kind: Trouble,
}

impl HeadError {
    /// `problem` may be a text from others.
    pub(crate) fn new(place: String, problem: &str, kind: Trouble) -> Self {
        Self { place, problem: words(problem), kind }
    }
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// There is no answer, or the request failed for now.
    Away,
    /// The token is missing or wrong.
    Token,
    /// The answers have a form that this adapter doesn't know.
    Strange,
}

/// A connection to a source of the cluster's state.
pub(crate) enum Head {
    Grpc(Box<Gcs>),
    /// The cluster is observed, and nothing can be changed.
    Dashboard {
        dashboard: Dashboard,
        why: String,
    },
}

impl Head {
    /// Connects. `strange` is the error in the answers of an earlier connection.
    ///
    /// # Errors
    /// There is no answer, or the token can't be read or is wrong.
    pub(crate) async fn connect(config: &Config, strange: Option<String>) -> Result<Self, HeadError> {
        const INSTEAD: &str = "run a version that is tested";
        let (what, instead) = if config.api == Api::Rest {
            ("api = \"rest\"".to_owned(), "set api = \"auto\" to have plans carried out")
        } else if let Some(strange) = strange {
            (strange, INSTEAD)
        } else {
            match Gcs::connect(config).await {
                Ok(gcs) if is_tested(&gcs.version) => return Ok(Self::Grpc(Box::new(gcs))),
                Ok(gcs) if config.untested == Untested::Trust => {
                    tracing::warn!("{}; trusted all the same (untested = \"trust\")", untested(&gcs.version));
                    return Ok(Self::Grpc(Box::new(gcs)));
                }
                Ok(gcs) => {
                    let instead = "run one that is, or set untested = \"trust\" at your own risk";
                    (untested(&gcs.version), instead)
                }
                Err(error) if error.kind == Trouble::Strange => (error.to_string(), INSTEAD),
                Err(error) => return Err(error),
            }
        };
        let why = format!("{what}: observing only; {instead}");
        let dashboard = Dashboard::connect(config).await.map_err(|error| HeadError {
            problem: format!("{}; it is needed because of {what}", error.problem),
            ..error
        })?;
        Ok(Self::Dashboard { dashboard, why })
    }

    /// Returns the relevant state. If there is too much data, known jobs come first.
    pub(crate) async fn look(&mut self, known: &BTreeSet<u64>) -> Result<View, HeadError> {
        match self {
            Self::Grpc(gcs) => gcs.look(known).await,
            Self::Dashboard { dashboard, .. } => dashboard.look().await,
        }
    }

    /// Ray's version.
    pub(crate) fn version(&self) -> &str {
        match self {
            Self::Grpc(gcs) => &gcs.version,
            Self::Dashboard { dashboard, .. } => &dashboard.version,
        }
    }

    /// Why the cluster can only be observed, and what to do about it.
    pub(crate) fn observing(&self) -> Option<&str> {
        match self {
            Self::Grpc(_) => None,
            Self::Dashboard { why, .. } => Some(why),
        }
    }
}

/// Whether this adapter was tested with a version of Ray.
pub(crate) fn is_tested(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => TESTED.contains(&(major, minor)),
        _ => false,
    }
}

/// A message for an untested version.
pub(crate) fn untested(version: &str) -> String {
    let ((major, oldest), (_, beyond)) = (TESTED.start, TESTED.end);
    format!("Ray {version} is untested (tested are {major}.{oldest} to {major}.{})", beyond - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for tested in ["2.49.0", "2.60.0", "2.60", "2.60.1.dev0"] {
            assert!(is_tested(tested), "{tested}");
        }
        for other in ["2.48.9", "2.5.0", "2.61.0", "3.50.0", "3.0.0.dev0", "2", "", "nightly"] {
            assert!(!is_tested(other), "{other}");
        }
        assert_eq!(untested("2.70.0"), "Ray 2.70.0 is untested (tested are 2.49 to 2.60)");
    }
}
