//! Inputs generated from seeds, with parts repeated, removed, exchanged and flipped. The same seed generates the same
//! inputs.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

use crate::Target;

/// Maximum bytes of an input.
const LONGEST: usize = 64 << 10;
/// Texts with a meaning for most parsers.
const COMMON: &[&str] = &[
    "=",
    ".",
    ",",
    ";",
    ":",
    "/",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "\n",
    "\0",
    "%",
    "@",
    "#",
    "-",
    "1",
    "0",
    "1e308",
    "NaN",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967295",
    "\u{1b}[2J",
    "\u{202e}",
    "é",
    "true",
    " ",
];

/// An endless sequence of inputs.
#[derive(Debug)]
pub struct Inputs {
    random: ChaCha8Rng,
    seeds: Vec<Vec<u8>>,
    words: Vec<&'static str>,
}

impl Inputs {
    /// Inputs for a target, from its seeds and `more`.
    pub fn new(target: &Target, more: Vec<Vec<u8>>, seed: u64) -> Self {
        let mut seeds = (target.seeds)();
        seeds.extend(more);
        seeds.push(Vec::new());
        let words = target.words.iter().chain(COMMON).copied().collect();
        Self { random: ChaCha8Rng::seed_from_u64(seed), seeds, words }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next_u64() % end.max(1) as u64) as usize
    }

    /// Mostly a small number, sometimes thousands.
    fn times(&mut self) -> usize {
        let most = 1 << self.below(14);
        1 + self.below(most)
    }

    fn word(&mut self) -> &'static str {
        let at = self.below(self.words.len());
        self.words[at]
    }

    /// A piece of one input.
    fn piece(&mut self) -> Vec<u8> {
        let seed = self.below(self.seeds.len());
        let length = self.seeds[seed].len();
        let from = self.below(length);
        let to = from + self.below((length - from).min(200));
        self.seeds[seed][from..to].to_vec()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(100) + 1);
        match self.below(7) {
            0 => {
                let word = self.word();
                input.splice(at..at, word.bytes());
            }
            1 => {
                let words = self.word().repeat(self.times());
                input.splice(at..at, words.into_bytes());
            }
            2 => drop(input.drain(at..end)),
            3 => {
                let part = input[at..end].repeat(self.times());
                input.splice(at..at, part);
            }
            4 => {
                let piece = self.piece();
                input.splice(at..end, piece);
            }
            5 if at < input.len() => input[at] ^= 1 << self.below(8),
            _ => {
                let byte = self.random.next_u32() as u8;
                input.insert(at, byte);
            }
        }
        input.truncate(LONGEST);
    }
}

impl Iterator for Inputs {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let seed = self.below(self.seeds.len());
        let mut input = self.seeds[seed].clone();
        for _ in 0..1 + self.below(8) {
            self.change(&mut input);
        }
        Some(input)
    }
}
