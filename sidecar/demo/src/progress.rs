//! Progress on the terminal.

use indicatif::{ProgressBar, ProgressStyle};

pub(super) const INTERRUPTED: &str = "interrupted; all of the demo's processes have ended";

/// A bar of so many steps.
pub(super) fn progress(length: u64, what: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len}").expect("a template that is written here");
    ProgressBar::new(length).with_prefix(what.to_owned()).with_style(style)
}
