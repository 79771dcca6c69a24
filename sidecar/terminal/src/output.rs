//! Output of commands: text for users, JSON for programs.

use std::{
    env,
    io::{self, IsTerminal, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde::Serialize;
use trainmaster_core::Span;

use super::Failure;

/// An answer in both forms. Its JSON is its serialised form.
pub trait Show: Serialize {
    /// The text for this paper, without the last line's end.
    fn text(&self, paper: &Paper) -> String;
}

/// A command with text and JSON output. `--json` isn't a global option, because `demo --json` names a file.
#[derive(Args, Debug)]
pub struct Answered<T: Args> {
    /// Its own arguments.
    #[command(flatten)]
    pub args: T,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// Tables and sentences.
    Text(Paper),
    /// One JSON document per answer.
    Json,
}

/// Properties of the output of text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paper {
    /// Columns of the terminal. `None` without a terminal: lines may have any length.
    pub width: Option<u16>,
    /// Lines of the terminal.
    pub height: Option<u16>,
    /// Whether to use colours.
    pub colour: bool,
}

/// The distance of a future Unix time in milliseconds, by this machine's clock: `in 9m 30s`, `now`.
pub fn away(at_ms: i64) -> String {
    left(at_ms).map_or_else(|| "now".into(), |left| format!("in {left}"))
}

/// The time until then. None if it has passed.
pub fn left(at_ms: i64) -> Option<Span> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = at_ms.saturating_sub(i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
    (left > 0).then_some(Span(left))
}

/// The distance of a past Unix time in milliseconds, by this machine's clock: `3m ago`, `now`.
pub fn ago(at_ms: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match i64::try_from(now.as_millis()).unwrap_or(i64::MAX).saturating_sub(at_ms) {
        ..60_000 => "now".into(),
        passed => format!("{} ago", Span(passed / 60_000 * 60_000)),
    }
}

/// A rating that is shown as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As expected.
    Good,
    /// Questionable.
    Doubtful,
    /// Not as expected.
    Bad,
    /// Past or unimportant.
    Faint,
}

impl Output {
    /// Output to the current standard output.
    pub fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text(Paper::stdout()) }
    }

    /// Prints an answer.
    ///
    /// # Errors
    /// Standard output is closed or can't be written.
    pub fn show(self, answer: &impl Show) -> Result<(), Failure> {
        let text = match self {
            Self::Text(paper) => answer.text(&paper),
            Self::Json => json(&serde_json::to_string_pretty(answer)),
        };
        line(&text)
    }

    /// Prints an answer of a stream. In JSON, each has one line.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn stream(self, answer: &impl Show) -> Result<(), Failure> {
        match self {
            Self::Text(_) => self.show(answer),
            Self::Json => line(&json(&serde_json::to_string(answer))),
        }
    }

    /// Prints a line of text unchanged.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn line(self, text: &str) -> Result<(), Failure> {
        line(text)
    }
}

fn json(text: &serde_json::Result<String>) -> String {
    text.as_ref().map_or_else(|error| format!("{{\"error\":\"{error}\"}}"), String::clone)
}

fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn are_colours_welcome() -> bool {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    !unwanted && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

impl Paper {
    /// Properties of standard output.
    pub fn stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::default();
        }
        let size = console::Term::stdout().size_checked();
        Self {
            width: size.map(|(_, columns)| columns),
            height: size.map(|(rows, _)| rows),
            colour: are_colours_welcome(),
        }
    }

    /// Whether standard error supports colours.
    pub fn stderr_has_colour() -> bool {
        io::stderr().is_terminal() && are_colours_welcome()
    }

    /// A word in the colour of a mood.
    pub fn word(&self, text: &str, mood: Mood) -> String {
        use owo_colors::OwoColorize;
        match (self.colour, mood) {
            (false, _) => text.to_owned(),
            (true, Mood::Good) => text.green().to_string(),
            (true, Mood::Doubtful) => text.yellow().to_string(),
            (true, Mood::Bad) => text.red().to_string(),
            (true, Mood::Faint) => text.bright_black().to_string(),
        }
    }
}
