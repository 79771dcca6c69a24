//! Text that is drawn over its last version on a terminal, and bars.

use std::io;

use console::{Term, truncate_str};

use super::output::Paper;

/// A text on the terminal's last lines.
#[derive(Debug, Default)]
pub struct Screen {
    /// Lines of the last version.
    drawn: usize,
}

impl Screen {
    /// Draws the text that `text` makes for the terminal's present size over the last one. What doesn't fit is counted.
    ///
    /// # Errors
    /// The terminal can't be written.
    pub fn draw(&mut self, text: impl FnOnce(&Paper) -> String) -> io::Result<()> {
        let paper = Paper::stdout();
        let text = text(&paper);
        let room = usize::from(paper.height.unwrap_or(u16::MAX)).saturating_sub(1).max(1);
        let lines = fitting(&text, room, paper.width);
        let term = Term::stdout();
        term.clear_last_lines(self.drawn)?;
        term.write_line(&lines.join("\n"))?;
        self.drawn = lines.len();
        Ok(())
    }
}

/// A line that is too wide would take two, of which one would stay.
fn fitting(text: &str, room: usize, width: Option<u16>) -> Vec<String> {
    let width = usize::from(width.unwrap_or(u16::MAX));
    let mut lines: Vec<String> = text.lines().map(|line| truncate_str(line, width, "…").into_owned()).collect();
    let hidden = lines.len().saturating_sub(room);
    if hidden > 0 {
        lines.truncate(room - 1);
        let more = format!("… and {} lines more", hidden + 1);
        lines.push(truncate_str(&more, width, "…").into_owned());
    }
    lines
}

/// A bar of `width` columns, filled by a fraction from 0 to 1: `[=====>    ]`.
///
/// ```
/// assert_eq!(trainmaster_terminal::screen::bar(0.5, 12), "[=====>    ]");
/// assert_eq!(trainmaster_terminal::screen::bar(f64::NAN, 6), "[    ]");
/// ```
pub fn bar(part: f64, width: usize) -> String {
    let room = width.saturating_sub(2);
    let filled = (part.clamp(0.0, 1.0) * room as f64).round() as usize;
    let head = if filled < room && filled > 0 { ">" } else { "" };
    format!("[{}{head}{}]", "=".repeat(filled), " ".repeat(room - filled - head.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(fitting("a\nb", 2, None), ["a", "b"]);
        assert_eq!(fitting("a\nb\nc\nd", 2, None), ["a", "… and 3 lines more"]);
        assert_eq!(fitting("a\nb", 1, None), ["… and 2 lines more"]);
        assert_eq!(fitting("a\nb", 1, Some(5)), ["… an…"]);
        assert_eq!(fitting("abcdef\n\u{1b}[1mabc\u{1b}[0m", 2, Some(3)), ["ab…", "\u{1b}[1mabc\u{1b}[0m"]);
    }

    #[test]
    fn a_bar_is_as_wide_as_asked() {
        for part in [-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            for width in 2..30 {
                assert_eq!(bar(part, width).len(), width, "{part}");
            }
        }
        assert_eq!((bar(1.0, 6), bar(0.0, 6), bar(0.2, 7)), ("[====]".into(), "[    ]".into(), "[=>   ]".into()));
    }
}
