//! `trainmaster paa`: the assignment of a model's parameter blocks to parameter servers.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;
use trainmaster_core::paa::{Assignment, assign};
use trainmaster_host::bounded::{TABLE, read_text};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct PaaArgs {
    /// A file with one block size per line, in parameters or any other unit
    #[arg(long, value_name = "FILE")]
    blocks: PathBuf,
    /// Number of parameter servers
    #[arg(
        long,
        value_name = "P",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    servers: u32,
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, or a line isn't a size.
pub(crate) fn run(args: &PaaArgs, output: Output) -> Result<(), Failure> {
    let blocks = read(&args.blocks)?;
    let assignment = assign(&blocks, args.servers as usize).map_err(anyhow::Error::from)?;
    output.show(&Spread::of(&blocks, &assignment))
}

fn read(path: &Path) -> anyhow::Result<Vec<u64>> {
    let name = path.display();
    let text = read_text(path, TABLE).with_context(|| format!("{name} can't be read"))?;
    let mut blocks = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let value = line.trim();
        if value.is_empty() {
            continue;
        }
        let size = value.parse().map_err(|_| {
            anyhow!(
                "{name}, line {}: {value:?} is no block size; allowed is a whole number from 0 to {}",
                index + 1,
                u64::MAX
            )
        })?;
        blocks.push(size);
    }
    if blocks.is_empty() {
        bail!("{name} has no block; it needs the size of one a line");
    }
    Ok(blocks)
}

#[derive(Serialize)]
struct Spread {
    size_spread: u64,
    request_spread: u64,
    requests: u64,
    servers: Vec<ServerLoad>,
    #[serde(skip)]
    blocks: usize,
    #[serde(skip)]
    cut: usize,
}

#[derive(Serialize)]
struct ServerLoad {
    size: u64,
    requests: u64,
    pieces: Vec<PieceRow>,
}

/// A part of the block in this line of the file (from 0, empty lines not counted).
#[derive(Serialize)]
struct PieceRow {
    block: usize,
    offset: u64,
    length: u64,
}

impl Spread {
    fn of(blocks: &[u64], assignment: &Assignment) -> Self {
        let mut servers: Vec<_> = assignment
            .servers
            .iter()
            .map(|load| ServerLoad { size: load.size, requests: load.requests, pieces: Vec::new() })
            .collect();
        let mut cut: Vec<_> = assignment
            .pieces
            .iter()
            .filter(|piece| piece.length < blocks[piece.block])
            .map(|piece| piece.block)
            .collect();
        cut.dedup();
        for piece in &assignment.pieces {
            let row = PieceRow { block: piece.block, offset: piece.offset, length: piece.length };
            servers[piece.server].pieces.push(row);
        }
        Self {
            size_spread: assignment.size_spread,
            request_spread: assignment.request_spread,
            requests: assignment.requests,
            servers,
            blocks: blocks.len(),
            cut: cut.len(),
        }
    }
}

impl Show for Spread {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new(["SERVER", "SIZE", "REQUESTS"].map(|heading| Column::key(heading).right()));
        for (index, server) in self.servers.iter().enumerate() {
            sheet.row([index.into(), server.size.into(), server.requests.into()]);
        }
        format!(
            "{}\n\n{} blocks, {} of them cut, make {} requests a worker and step; servers differ by {} in size \
             and by {} in requests.",
            sheet.on(paper),
            self.blocks,
            self.cut,
            self.requests,
            self.size_spread,
            self.request_spread
        )
    }
}
