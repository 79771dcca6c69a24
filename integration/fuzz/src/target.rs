//! What a target is.

/// A parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Parses any bytes.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words with a meaning in inputs.
    pub words: &'static [&'static str],
}
