//! Tables for a given width. On a narrow terminal, optional columns are dropped, sentences are wrapped between words,
//! and cells that are still too long end with an ellipsis.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table, Width, presets};
use console::{measure_text_width, truncate_str};
use trainmaster_core::text::shown;

use super::output::{Mood, Paper};

/// Gap between columns.
const GAP: usize = 2;
/// Minimum width of sentences. Below it, other columns are dropped first.
const PROSE: usize = 24;
/// Minimum width of a truncated column.
const LEAST: usize = 4;

/// A column of a [`Sheet`].
#[derive(Clone, Copy, Debug)]
pub struct Column {
    heading: &'static str,
    kind: Kind,
    right: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Spare(u8),
    Prose,
}

impl Column {
    /// A column that is never dropped.
    pub fn key(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Key, right: false }
    }

    /// A column that is dropped without room. Higher ranks are dropped first.
    pub fn spare(heading: &'static str, rank: u8) -> Self {
        Self { heading, kind: Kind::Spare(rank), right: false }
    }

    /// A column of sentences in the remaining width.
    pub fn prose(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Prose, right: false }
    }

    /// The same column, right-aligned for numbers.
    pub fn right(self) -> Self {
        Self { right: true, ..self }
    }
}

/// Content of a cell.
#[derive(Clone, Debug)]
pub struct Entry {
    text: String,
    mood: Option<Mood>,
}

impl Entry {
    /// Text in the colour of a mood.
    pub fn new(text: impl Into<String>, mood: Option<Mood>) -> Self {
        // Texts from managers and jobs are escaped, so that they can't control the terminal.
        Self { text: shown(&text.into(), usize::MAX).into_owned(), mood }
    }
}

impl<T: ToString> From<T> for Entry {
    fn from(text: T) -> Self {
        Self::new(text.to_string(), None)
    }
}

/// A table, independent of its width.
#[derive(Clone, Debug)]
pub struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Vec<Entry>>,
}

impl Sheet {
    /// An empty table.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row with an entry for each column.
    pub fn row(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let row: Vec<_> = entries.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Text of the table, within the paper's width.
    pub fn on(&self, paper: &Paper) -> String {
        let widths = self.widths(paper.width.map(usize::from));
        let shown: Vec<_> = (0..self.columns.len()).filter(|&at| widths[at].is_some()).collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if paper.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        let cut = |at: usize, text: &str| truncate_str(text, widths[at].unwrap_or_default(), "…").into_owned();
        if self.columns.iter().any(|column| !column.heading.is_empty()) {
            let heading = |at: usize| Cell::new(cut(at, self.columns[at].heading)).add_attribute(Attribute::Bold);
            table.set_header(shown.iter().map(|&at| heading(at)));
        }
        for row in &self.rows {
            let cells = shown.iter().map(|&at| {
                let Entry { text, mood } = &row[at];
                let prose = self.columns[at].kind == Kind::Prose;
                let cell = Cell::new(if prose { text.clone() } else { cut(at, text) });
                mood.map_or(cell.clone(), |mood| cell.fg(colour(mood)))
            });
            table.add_row(cells.collect::<Vec<_>>());
        }
        for (column, &at) in table.column_iter_mut().zip(&shown) {
            // After the last column, a gap could make a line of its own on a terminal.
            let gap = if Some(&at) == shown.last() { 0 } else { GAP };
            column.set_padding((0, gap as u16));
            let width = widths[at].unwrap_or_default() + gap;
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width.min(usize::from(u16::MAX)) as u16)));
            if self.columns[at].right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }

    /// Width of each column. None for dropped ones.
    fn widths(&self, room: Option<usize>) -> Vec<Option<usize>> {
        let natural: Vec<usize> = (0..self.columns.len()).map(|at| self.natural(at)).collect();
        let mut widths: Vec<Option<usize>> = natural.iter().copied().map(Some).collect();
        let Some(room) = room else { return widths };
        for (width, column) in widths.iter_mut().zip(&self.columns) {
            if column.kind == Kind::Prose {
                *width = width.map(|natural| natural.min(PROSE));
            }
        }
        while taken(&widths) > room {
            let rank = |at: usize| match self.columns[at].kind {
                Kind::Spare(rank) if widths[at].is_some() => Some((rank, at)),
                _ => None,
            };
            let Some((_, at)) = (0..widths.len()).filter_map(rank).max() else { break };
            widths[at] = None;
        }
        while taken(&widths) > room {
            let widest = widths.iter_mut().flatten().max().filter(|width| **width > LEAST);
            let Some(widest) = widest else { break };
            *widest -= 1;
        }
        // The remaining width is for sentences, one column after the other.
        let mut left = room.saturating_sub(taken(&widths));
        for (at, width) in widths.iter_mut().enumerate() {
            if let (Kind::Prose, Some(width)) = (self.columns[at].kind, width) {
                let more = left.min(natural[at].saturating_sub(*width));
                *width += more;
                left -= more;
            }
        }
        widths
    }

    fn natural(&self, at: usize) -> usize {
        let entries = self.rows.iter().map(|row| measure_text_width(&row[at].text));
        entries.chain([measure_text_width(self.columns[at].heading)]).max().unwrap_or_default()
    }
}

fn taken(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten().count();
    widths.iter().flatten().sum::<usize>() + GAP * shown.saturating_sub(1)
}

fn colour(mood: Mood) -> Color {
    match mood {
        Mood::Good => Color::Green,
        Mood::Doubtful => Color::Yellow,
        Mood::Bad => Color::Red,
        Mood::Faint => Color::DarkGrey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENTENCE: &str = "8w+4p has no room: a worker needs 1 gpu on one server; the largest free is 0 (node-17)";

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new([
            Column::key("JOB"),
            Column::key("NAME"),
            Column::key("STATE"),
            Column::spare("STEP", 2).right(),
            Column::spare("ENDS", 1),
            Column::prose("REASON"),
        ]);
        let row = |job: u32, name: &str, state: &str, step: u32, ends: &str, reason: &str| {
            [job.into(), name.into(), state.into(), step.into(), ends.into(), reason.into()]
        };
        sheet.row(row(1, "inception-bn", "running", 12_000, "in 12m 30s", ""));
        sheet.row(row(2, "a-job-whose-name-says-all-about-it", "waiting", 0, "–", SENTENCE));
        sheet
    }

    fn on(width: u16) -> String {
        let shown = |colour| sheet().on(&Paper { width: Some(width), colour, ..Paper::default() });
        for text in [shown(true), shown(false)] {
            for line in text.lines() {
                assert!(measure_text_width(line) <= usize::from(width), "{width}: {line:?} is too long in\n{text}");
            }
        }
        shown(false)
    }

    #[test]
    fn no_word_is_split_and_no_line_too_long() {
        let words: Vec<&str> = SENTENCE.split_whitespace().collect();
        for width in [60, 80, 120] {
            let text = on(width);
            let shown: Vec<&str> = text.split_whitespace().collect();
            assert!(words.iter().all(|word| shown.contains(word)), "{width}:\n{text}");
            assert!(shown.contains(&"inception-bn"), "{width}:\n{text}");
        }
    }

    #[test]
    fn the_least_important_columns_are_dropped_first() {
        let has = |width, heading| on(width).lines().next().unwrap().contains(heading);
        assert!(has(120, "STEP") && has(120, "ENDS"));
        assert!(!has(90, "STEP") && has(90, "ENDS"));
        assert!(!has(80, "STEP") && !has(80, "ENDS") && has(80, "REASON"));
        assert!(on(60).contains("a-job-whose-name-says…"), "{}", on(60));
    }

    #[test]
    fn a_pipe_gets_whole_lines() {
        let text = sheet().on(&Paper::default());
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().nth(2).unwrap().ends_with(SENTENCE), "{text}");
        assert!(text.lines().nth(1).unwrap().contains("12000  in 12m 30s"), "{text}");
    }

    #[test]
    fn a_very_narrow_table_shows_something() {
        assert!(on(30).contains("JOB"));
        assert!(!sheet().on(&Paper { width: Some(1), ..Paper::default() }).is_empty());
    }
}
