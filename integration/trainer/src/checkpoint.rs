//! Checkpoints: one file, whatever the number of parameter servers. A job can resume from it in any shape.
//!
//! The file is written under another name, flushed to disk and renamed, and the folder is flushed. So after a crash the
//! file is complete or missing. A BLAKE3 hash at its end detects damage, and then the previous file is used.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{codec, tally::Tally};

/// Names the format and its version.
const MAGIC: [u8; 8] = *b"TMCKPT\x00\x02";
/// Number of kept files: the newest, and one in case that is damaged.
const KEPT: usize = 2;

/// The state from which a job can continue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Model, data and batch of the state. The checkpoint of another job is refused.
    pub fingerprint: String,
    /// Number of applied steps.
    pub step: u64,
    /// Mean losses of all completed epochs.
    pub losses: Vec<f64>,
    /// Sums over the current epoch.
    pub epoch: Tally,
    /// Trained mini-batches of each data chunk, if chunks are scheduled one by one.
    pub chunks: Vec<(u32, u64)>,
    /// The parameters.
    pub parameters: Vec<f32>,
    /// The optimiser's momentum, one per parameter.
    pub velocity: Vec<f32>,
}

/// An error of a checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum CheckpointError {
    /// The file or the folder can't be read or written.
    #[error("checkpoint {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    /// The checkpoint belongs to another job.
    #[error("checkpoint {path} belongs to another model or data set: it says \"{found}\", this job is \"{expected}\"")]
    Foreign { path: PathBuf, found: String, expected: String },
}

impl Checkpoint {
    /// Writes the checkpoint into a folder, which is created if it is missing, and removes old ones.
    pub fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(format!("step-{:012}.ckpt", self.step));
        let partial = folder.join(format!("step-{:012}.partial", self.step));
        let failed = |error| CheckpointError::Io { path: path.clone(), error };
        fs::create_dir_all(folder).map_err(failed)?;
        let bytes = self.encode();
        File::create(&partial)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&partial, &path))
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(failed)?;
        for old in list(folder).map_err(failed)?.into_iter().skip(KEPT) {
            // If this fails, only disk space is lost.
            let _ = fs::remove_file(old);
        }
        Ok(())
    }

    /// Reads the newest valid checkpoint of a folder. None if there is none.
    pub fn read(folder: &Path, fingerprint: &str) -> Result<Option<Self>, CheckpointError> {
        let files = match list(folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::Io { path: folder.to_owned(), error }),
        };
        for path in files {
            let found = fs::read(&path).ok().and_then(|bytes| Self::decode(&bytes));
            let Some(checkpoint) = found else {
                warn!(path = %path.display(), "this checkpoint is damaged; trying the one before it");
                continue;
            };
            if checkpoint.fingerprint != fingerprint {
                let (found, expected) = (checkpoint.fingerprint, fingerprint.to_owned());
                return Err(CheckpointError::Foreign { path, found, expected });
            }
            return Ok(Some(checkpoint));
        }
        Ok(None)
    }

    fn encode(&self) -> Vec<u8> {
        codec::seal(&(MAGIC, self))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, checkpoint) = codec::open::<([u8; 8], Self)>(bytes)?;
        (magic == MAGIC && checkpoint.parameters.len() == checkpoint.velocity.len()).then_some(checkpoint)
    }
}

/// The checkpoints of a folder, newest first.
fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ckpt") {
            files.push(path);
        }
    }
    files.sort_unstable_by(|a, b| b.cmp(a)); // the step in the name has leading zeros
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> Checkpoint {
        Checkpoint {
            fingerprint: "a model".into(),
            step,
            losses: vec![2.3, 1.9],
            epoch: Tally { loss: 7, correct: 3, examples: 5 },
            chunks: if step == 5 { vec![] } else { vec![(0, 7), (3, 1 << 40)] },
            parameters: vec![step as f32, -0.5],
            velocity: vec![0.25, f32::EPSILON],
        }
    }

    #[test]
    fn the_newest_is_read_and_old_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("job");
        assert_eq!(Checkpoint::read(&inner, "a model").unwrap(), None);
        for step in [9, 10, 200] {
            at(step).write(&inner).unwrap();
        }
        assert_eq!(Checkpoint::read(&inner, "a model").unwrap(), Some(at(200)));
        assert_eq!(fs::read_dir(&inner).unwrap().count(), KEPT);
    }

    #[test]
    fn a_truncated_file_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        at(5).write(folder.path()).unwrap();
        let whole = at(6).encode();
        let newest = folder.path().join("step-000000000006.ckpt");
        for length in 0..whole.len() {
            fs::write(&newest, &whole[..length]).unwrap();
            assert_eq!(Checkpoint::read(folder.path(), "a model").unwrap(), Some(at(5)), "cut at {length}");
        }
        let mut flipped = whole;
        flipped[40] ^= 1;
        fs::write(&newest, &flipped).unwrap();
        assert_eq!(Checkpoint::read(folder.path(), "a model").unwrap(), Some(at(5)));
    }

    #[test]
    fn another_jobs_checkpoint_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        at(5).write(folder.path()).unwrap();
        let error = Checkpoint::read(folder.path(), "another").unwrap_err().to_string();
        assert!(error.contains("a model") && error.contains("another"), "{error}");
    }
}
