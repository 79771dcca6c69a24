//! Slurm's log. The plugin's function writes the lines, as errors or as information.

use std::{
    ffi::{CString, c_char},
    io,
    sync::OnceLock,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Writes one line.
pub(crate) type Write = extern "C" fn(is_error: bool, line: *const c_char);

static WRITE: OnceLock<Write> = OnceLock::new();

/// Sends all lines to `write` from now on, including those of panics. Only the first call has an effect.
pub(crate) fn start(write: Write) {
    if WRITE.set(write).is_err() {
        return;
    }
    let subscriber = tracing_subscriber::fmt()
        .with_writer(Lines)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_max_level(Level::INFO)
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
    // A daemon's standard error isn't visible.
    std::panic::set_hook(Box::new(|panic| line(true, &format!("trainmaster: {panic}"))));
}

fn line(is_error: bool, text: &str) {
    let Some(write) = WRITE.get() else { return };
    for text in text.lines().filter(|text| !text.is_empty()) {
        if let Ok(text) = CString::new(text.replace('\0', " ")) {
            write(is_error, text.as_ptr());
        }
    }
}

struct Lines;

struct Line {
    is_error: bool,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { is_error: false, text: b"trainmaster: ".to_vec() }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        let mut line = self.make_writer();
        line.is_error = *meta.level() <= Level::WARN;
        line
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        line(self.is_error, &String::from_utf8_lossy(&self.text));
    }
}
