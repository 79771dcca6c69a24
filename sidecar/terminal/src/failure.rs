//! Failures of commands, and their exit codes.

use std::{io, process::ExitCode};

use thiserror::Error;
use tonic::{Code, Status};
use trainmaster_core::text::shown;

/// Maximum number of characters of a faulty line that are shown.
const EXCERPT: usize = 80;

/// The reason of a failure.
#[derive(Debug, Error)]
pub enum Failure {
    /// The command was refused or failed. Exit code 1.
    #[error("{0:#}")]
    Refused(#[from] anyhow::Error),
    /// The command line is invalid. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The daemon can't be reached. Exit code 3.
    #[error("no daemon at {address} ({cause}) — start one with `trainmaster serve`, or name it with --server")]
    Unreachable {
        /// Address of the daemon.
        address: String,
        /// Error of the system.
        cause: String,
    },
    /// Something answers there, but can't be talked to. Exit code 3.
    #[error("{address} can't be used: {cause}")]
    Unusable {
        /// Address of the daemon.
        address: String,
        /// Error of the system, and what to do.
        cause: String,
    },
    /// `doctor` found a problem, and printed it. Exit code 4.
    #[error("{0}")]
    Unwell(String),
    /// The reader of the output has closed it (`| head`). Not an error. Exit code 0.
    #[error("the output was closed")]
    Closed,
}

/// Texts of errors about lost connections.
const LOST: [&str; 3] = ["connection closed", "reset by peer", "roken pipe"];

/// Text of an error about time.
const LATE: &str = "Timeout expired";

/// Advice for some errors of connections to something that is there.
const HINTS: [(&str, &str); 6] = [
    ("UnknownIssuer", ": --ca names the file of the authority that certifies it"),
    ("not valid for name", ": call it by a name in its certificate, or add this one: `trainmaster certs init --host`"),
    (
        "certificate expired",
        ": its certificate has run out; `trainmaster certs init` makes a new one. Or this clock is wrong",
    ),
    ("certificate not valid yet", ": its certificate isn't valid yet. Perhaps this clock is wrong"),
    ("frame with invalid size", ": it may speak TLS; write https://"),
    ("InvalidContentType", ": it speaks without TLS; write http://"),
];

impl Failure {
    /// A refusal with a text.
    pub fn refused(problem: impl Into<String>) -> Self {
        Self::Refused(anyhow::Error::msg(problem.into()))
    }

    /// The same failure with the name of its object.
    pub fn about(self, name: &str) -> Self {
        match self {
            Self::Refused(error) => Self::Refused(anyhow::anyhow!("{name}: {error:#}")),
            other => other,
        }
    }

    /// The failure in one line.
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }

    /// Exit code of the program.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Closed => 0,
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable { .. } | Self::Unusable { .. } => 3,
            Self::Unwell(_) => 4,
        })
    }

    /// Converts an error of the connection to `address`: nothing listens there, or it requires another certificate.
    pub fn unreachable(address: &str, error: &dyn std::error::Error) -> Self {
        let cause = innermost(error);
        match cause.strip_prefix("received fatal alert: ") {
            Some(alert) => Self::refused(format!(
                "the daemon at {address} refuses this client's certificate ({alert}); --cert and --key name another one"
            )),
            // If the connection is closed while this side still sends, the daemon's message is lost.
            None if LOST.iter().any(|lost| cause.contains(lost)) => {
                let why = match address.starts_with("https:") {
                    true => "it ends, or refuses this client's certificate, if it has one",
                    false => "it ends, or speaks TLS, for which write https://",
                };
                Self::Unreachable { address: address.into(), cause: format!("{cause}: {why}") }
            }
            None if cause.contains(LATE) => {
                let cause = format!("{cause}: it didn't answer in time; --answer-timeout gives it more");
                Self::Unreachable { address: address.into(), cause }
            }
            None => match HINTS.iter().find(|(known, _)| cause.contains(known)) {
                Some((_, hint)) => Self::Unusable { address: address.into(), cause: format!("{cause}{hint}") },
                None => Self::Unreachable { address: address.into(), cause },
            },
        }
    }

    /// Converts an error answer of the daemon at `address`, without gRPC's wording. `token`: source of the used token,
    /// in words.
    pub fn answered(address: &str, token: Option<&str>, status: &Status) -> Self {
        let message = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        match status.code() {
            // Errors of the connection have a source. The daemon's own refusals don't.
            _ if std::error::Error::source(status).is_some() => Self::unreachable(address, status),
            Code::Unauthenticated => Self::refused(match token {
                Some(token) => format!("{message} (the one in {token} was shown; --token-file names another)"),
                None => {
                    format!(
                        "{message} (give a token with --token-file; who started the daemon finds its own by itself)"
                    )
                }
            }),
            Code::Unimplemented => {
                Self::refused(format!("the daemon at {address} doesn't know this command; is it of another version?"))
            }
            _ => Self::refused(message),
        }
    }
}

/// The most specific cause: transport errors wrap it several times in "transport error".
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Refused(error.into()) }
    }
}

/// An error's text in one line. Of a TOML parser's excerpt, the faulty line stays, because it has the key.
pub fn one_line(text: &str) -> String {
    let part = |line: &'_ str| -> Option<String> {
        let source = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').strip_prefix('|');
        match source.map(str::trim) {
            Some(marks) if marks.chars().all(|c| c == '^') => None,
            Some(source) => Some(shown(source, EXCERPT).into_owned()),
            None => Some(line.trim_end().to_owned()).filter(|line| !line.is_empty()),
        }
    };
    shown(&text.lines().filter_map(part).collect::<Vec<_>>().join(": "), usize::MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_lose_the_transports_wording() {
        let shown = |status: Status| Failure::answered("http://a", None, &status).to_string();
        assert_eq!(shown(Status::not_found("job 7 isn't known")), "job 7 isn't known");
        assert!(shown(Status::unauthenticated("no token")).contains("give a token with --token-file"));
        let wrong = Failure::answered("http://a", Some("/a/token"), &Status::unauthenticated("not known")).to_string();
        assert!(wrong.contains("not known (the one in /a/token was shown"), "{wrong}");
        assert!(shown(Status::unimplemented("")).contains("version"));
        assert!(!shown(Status::internal("")).is_empty());
        let of = |cause: &str| shown(Status::from_error(Box::new(io::Error::other(cause.to_owned()))));
        assert!(of("connection refused").starts_with("no daemon at http://a"));
        assert!(of("stream closed because of a broken pipe").contains("write https://"));
        let revoked = of("received fatal alert: CertificateRevoked");
        assert!(revoked.contains("refuses this client's certificate (CertificateRevoked)"), "{revoked}");
    }

    #[test]
    fn errors_take_one_line() {
        let text = "a.toml: TOML parse error at line 12, column 1\n   |\n12 | gpu = x\n   | ^^^\nno such key";
        let line = Failure::refused(text).line();
        assert_eq!(line, "a.toml: TOML parse error at line 12, column 1: gpu = x: no such key");
        let long = one_line(&format!("1 | a = \"\u{1b}{}\"\n  | ^", "x".repeat(5000)));
        assert!(long.starts_with("a = \"\\u{1b}x") && long.chars().count() < 100, "{long}");
    }

    #[test]
    fn a_closed_output_is_no_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.exit_code(), ExitCode::SUCCESS);
    }
}
