//! What commands print: tables for people, JSON for programs.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;

use super::Failure;

/// An answer that can be shown both ways. Its JSON is what it serialises to.
pub(crate) trait Show: Serialize {
    /// For people, on paper of this kind; without the last line's end.
    fn text(&self, paper: &Paper) -> String;
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Tables and sentences.
    Text(Paper),
    /// One JSON document an answer.
    Json,
}

/// What the text is written on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paper {
    /// Columns of the terminal; `None` where there is none, and lines may be of any length.
    pub(crate) width: Option<u16>,
    /// Lines of the terminal.
    pub(crate) height: Option<u16>,
    /// Whether colours are wanted.
    pub(crate) colour: bool,
}

/// How well something is, as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As it should be.
    Good,
    /// Worth a look.
    Doubtful,
    /// Not as it should be.
    Bad,
    /// Past, or beside the point.
    Faint,
}

impl Output {
    /// For standard output as it is.
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text(Paper::stdout()) }
    }

    /// Shows an answer.
    ///
    /// # Errors
    /// Standard output is closed or can't be written.
    pub(crate) fn show(self, answer: &impl Show) -> Result<(), Failure> {
        let text = match self {
            Self::Text(paper) => answer.text(&paper),
            Self::Json => json(&serde_json::to_string_pretty(answer)),
        };
        line(&text)
    }

    /// Shows an answer in a stream of them: JSON takes one line each.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub(crate) fn stream(self, answer: &impl Show) -> Result<(), Failure> {
        match self {
            Self::Text(_) => self.show(answer),
            Self::Json => line(&json(&serde_json::to_string(answer))),
        }
    }

    /// Writes a line as it is, for streams of text.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub(crate) fn line(self, text: &str) -> Result<(), Failure> {
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
    /// Standard output.
    pub(crate) fn stdout() -> Self {
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

    /// Whether standard error takes colours.
    pub(crate) fn stderr_has_colour() -> bool {
        io::stderr().is_terminal() && are_colours_welcome()
    }

    /// An empty table with these headings, as wide as the paper at most.
    pub(crate) fn table(&self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        match self.width {
            Some(width) => table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        if self.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(headings.iter().map(|heading| Cell::new(heading).add_attribute(Attribute::Bold)));
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 2));
        });
        table
    }

    /// A table's text, without the spaces at its lines' ends.
    pub(crate) fn finish(&self, table: &Table) -> String {
        let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }

    /// A cell in a mood.
    pub(crate) fn cell(&self, text: impl ToString, mood: Mood) -> Cell {
        Cell::new(text.to_string()).fg(match mood {
            Mood::Good => Color::Green,
            Mood::Doubtful => Color::Yellow,
            Mood::Bad => Color::Red,
            Mood::Faint => Color::DarkGrey,
        })
    }

    /// A word in a mood.
    pub(crate) fn word(&self, text: &str, mood: Mood) -> String {
        use owo_colors::OwoColorize;
        match (self.colour, mood) {
            (false, _) => text.to_owned(),
            (true, Mood::Good) => text.green().to_string(),
            (true, Mood::Doubtful) => text.yellow().to_string(),
            (true, Mood::Bad) => text.red().to_string(),
            (true, Mood::Faint) => text.bright_black().to_string(),
        }
    }

    /// Whether the paper has room for so many columns.
    pub(crate) fn is_at_least(&self, columns: u16) -> bool {
        self.width.is_none_or(|width| width >= columns)
    }
}
