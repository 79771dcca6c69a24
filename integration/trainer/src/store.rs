//! Data chunks on this server's disk. Each is sent once, to the server that trains it, and found there after a restart
//! or a break. The file `sent` beside them has a line for each sent chunk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::{
    chunks::{Chunks, Portion},
    codec,
    data::Data,
    settings::Settings,
};

/// Examples of a chunk.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Examples {
    labels: Vec<u32>,
    /// Features of all examples, concatenated.
    features: Vec<f32>,
}

pub(crate) struct Store {
    chunks: Chunks,
    settings: Settings,
    /// None: chunks aren't stored, but generated when they are opened.
    folder: Option<PathBuf>,
    /// Upload time of a chunk.
    upload: Duration,
    coming: BTreeMap<u32, Instant>,
    held: BTreeSet<u32>,
    /// The chunk in training.
    open: Option<(u32, Examples)>,
    sent: (u32, u64),
}

impl Store {
    pub(crate) fn new(settings: &Settings, chunks: Chunks, folder: Option<PathBuf>, upload: Duration) -> Self {
        let (coming, held, open, sent) = (BTreeMap::new(), BTreeSet::new(), None, (0, 0));
        Self { chunks, settings: settings.clone(), folder, upload, coming, held, open, sent }
    }

    /// Requests chunks that are neither here nor on their way. [`Store::arrived`] returns them later. Requested chunks
    /// that belong to another worker by now are dropped.
    pub(crate) fn expect(&mut self, chunks: &BTreeSet<u32>) {
        let now = Instant::now();
        self.coming.retain(|chunk, _| chunks.contains(chunk));
        for &chunk in chunks.difference(&self.held) {
            let here = self.path(chunk).is_some_and(|path| path.exists());
            self.coming.entry(chunk).or_insert(if here { now } else { now + self.upload });
        }
    }

    /// Arrival time of the next one.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.coming.values().min().copied()
    }

    /// Writes chunks that have arrived, unless they are here already.
    pub(crate) fn arrived(&mut self) -> io::Result<Vec<u32>> {
        let now = Instant::now();
        let chunks: Vec<u32> = self.coming.iter().filter(|(_, due)| **due <= now).map(|(chunk, _)| *chunk).collect();
        for &chunk in &chunks {
            if let Some(path) = self.path(chunk)
                && !path.exists()
            {
                self.send(chunk, &path)?;
            }
            self.coming.remove(&chunk);
            self.held.insert(chunk);
        }
        Ok(chunks)
    }

    /// All chunks that are here.
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> {
        self.held.iter().copied()
    }

    /// The examples of a mini-batch with their labels, from the file of its chunk.
    pub(crate) fn examples(&mut self, portion: Portion) -> io::Result<impl Iterator<Item = (usize, &[f32])>> {
        let places = self.chunks.places(&self.settings.batches, portion);
        let examples = self.open(portion.chunk)?;
        Ok(places.map(|place| examples.at(place)))
    }

    fn open(&mut self, chunk: u32) -> io::Result<&Examples> {
        let examples = match self.open.take().filter(|(open, _)| *open == chunk) {
            Some((_, examples)) => examples,
            None => match self.path(chunk) {
                Some(path) => self.read(chunk, &path)?,
                None => self.draw(chunk),
            },
        };
        Ok(&self.open.insert((chunk, examples)).1)
    }

    fn path(&self, chunk: u32) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("chunk-{chunk}")))
    }

    fn read(&mut self, chunk: u32, path: &Path) -> io::Result<Examples> {
        if let Some(examples) = Examples::decode(&fs::read(path)?, self.settings.data.features) {
            return Ok(examples);
        }
        warn!(chunk, path = %path.display(), "this chunk is damaged; it is sent again");
        self.send(chunk, path)
    }

    /// Writes a chunk under another name first, so that its file is complete or missing.
    fn send(&mut self, chunk: u32, path: &Path) -> io::Result<Examples> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let examples = self.draw(chunk);
        let (partial, bytes) = (path.with_extension("partial"), codec::seal(&examples));
        fs::create_dir_all(folder)?;
        fs::write(&partial, &bytes)?;
        fs::rename(&partial, path)?;
        let mut list = OpenOptions::new().create(true).append(true).open(folder.join("sent"))?;
        list.write_all(format!("{chunk} {}\n", bytes.len()).as_bytes())?;
        self.sent = (self.sent.0 + 1, self.sent.1 + bytes.len() as u64);
        info!(chunk, bytes = bytes.len(), chunks_sent = self.sent.0, bytes_sent = self.sent.1, "chunk uploaded");
        Ok(examples)
    }

    fn draw(&self, chunk: u32) -> Examples {
        let data = Data::new(&self.settings.data);
        let mut row = vec![0.0; self.settings.data.features];
        let (mut labels, mut features) = (Vec::new(), Vec::new());
        for number in self.chunks.examples(&self.settings.batches, chunk) {
            labels.push(data.example(number, &mut row) as u32);
            features.extend_from_slice(&row);
        }
        Examples { labels, features }
    }
}

impl Examples {
    /// Label and features.
    fn at(&self, place: usize) -> (usize, &[f32]) {
        let width = self.features.len() / self.labels.len();
        (self.labels[place] as usize, &self.features[place * width..][..width])
    }

    /// None if the bytes aren't examples with `width` features.
    fn decode(bytes: &[u8], width: usize) -> Option<Self> {
        let fits = |read: &Self| !read.labels.is_empty() && read.features.len() == read.labels.len() * width;
        codec::open(bytes).filter(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    fn store(folder: Option<&Path>, upload: Duration) -> Store {
        let settings = settings(&["--examples=30", "--chunks=3", "--chunk-batches=2"]);
        let chunks = settings.chunks.unwrap();
        Store::new(&settings, chunks, folder.map(Path::to_owned), upload)
    }

    #[test]
    fn a_chunk_is_written_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let drawn = store(None, Duration::ZERO).draw(1);
        for _ in 0..2 {
            let mut store = store(Some(folder.path()), Duration::ZERO);
            store.expect(&[1].into());
            assert_eq!(store.arrived().unwrap(), [1]);
            store.expect(&[1].into());
            assert_eq!((store.due(), store.arrived().unwrap()), (None, vec![]));
            assert_eq!(*store.open(1).unwrap(), drawn);
            assert_eq!((drawn.labels.len(), drawn.at(9).1.len()), (10, 16));
        }
        let sent = fs::read_to_string(folder.path().join("sent")).unwrap();
        let bytes = fs::metadata(folder.path().join("chunk-1")).unwrap().len();
        assert_eq!(sent, format!("1 {bytes}\n"));
    }

    #[test]
    fn uploads_take_time_and_damage_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let mut slow = store(Some(folder.path()), Duration::from_secs(3600));
        slow.expect(&[0].into());
        assert!(slow.due().is_some_and(|due| due > Instant::now()) && slow.arrived().unwrap().is_empty());
        fs::write(folder.path().join("chunk-2"), "torn").unwrap();
        slow.expect(&[0, 2].into());
        assert_eq!(slow.arrived().unwrap(), [2], "its file is there");
        let drawn = slow.draw(2);
        assert_eq!(*slow.open(2).unwrap(), drawn);
        slow.expect(&[2].into());
        assert_eq!(slow.due(), None, "chunk 0 went elsewhere");
    }
}
