//! Ray's head: over gRPC where its answers can be trusted, else as its dashboard shows it.

use std::{collections::BTreeSet, ops::Range};

use thiserror::Error;

use super::{
    bounds::words,
    config::{Api, Config, Untested},
    dashboard::Dashboard,
    gcs::Gcs,
    view::View,
};

/// The versions of Ray that this adapter was tested with. What goes over gRPC is Ray's own matter, and may change with
/// any other.
const TESTED: Range<(u32, u32)> = (2, 49)..(2, 61);

/// Ray's head, or its dashboard, doesn't do what it was asked.
#[derive(Clone, Debug, Error)]
#[error("{place}: {problem}")]
pub(crate) struct HeadError {
    /// Who was asked, and where.
    pub(crate) place: String,
    pub(crate) problem: String,
    pub(crate) kind: Trouble,
}

impl HeadError {
    /// `problem` may be anybody's words.
    pub(crate) fn new(place: String, problem: &str, kind: Trouble) -> Self {
        Self { place, problem: words(problem), kind }
    }
}

/// Whom to turn to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is away, or can't just now.
    Away,
    /// There is no token, or not the right one.
    Token,
    /// It speaks another language than this adapter.
    Strange,
}

/// A connection to what tells of the cluster.
pub(crate) enum Head {
    Grpc(Box<Gcs>),
    /// What can be seen is seen; nothing can be changed.
    Dashboard {
        dashboard: Dashboard,
        why: String,
    },
}

impl Head {
    /// Connects; `strange` is what was wrong with the answers to an earlier connection.
    ///
    /// # Errors
    /// Nobody answers, or the token can't be read or isn't the right one.
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

    /// Everything that matters, as it is now; jobs that are known go first where there is too much.
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

    /// Why nothing can be changed, and what to do about it.
    pub(crate) fn observing(&self) -> Option<&str> {
        match self {
            Self::Grpc(_) => None,
            Self::Dashboard { why, .. } => Some(why),
        }
    }
}

/// Whether this adapter was tested with that version of Ray.
pub(crate) fn is_tested(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => TESTED.contains(&(major, minor)),
        _ => false,
    }
}

/// That it wasn't, in words.
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
