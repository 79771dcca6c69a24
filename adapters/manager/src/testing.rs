//! Helpers for tests of adapters. Needs the feature `testing`.

use std::{path::Path, sync::Arc, time::Duration};

use super::{Daemon, Launch, Remote};

/// The launch values in a test's folder. `config` is the text of the configuration file.
///
/// # Panics
/// The file can't be written.
pub fn launch(folder: &Path, config: Option<&str>) -> Launch {
    let config = config.map(|text| {
        let path = folder.join("config.toml");
        std::fs::write(&path, text).expect("a folder to write into");
        path
    });
    Launch {
        config,
        feed: "http://127.0.0.1:1".into(),
        state_dir: folder.join("state"),
        end_jobs: true,
        orphan_grace: Duration::from_secs(1),
        trainer: Some("/bin/sh".into()),
    }
}

/// A daemon that never answers. Needs a Tokio runtime.
///
/// # Panics
/// Never.
pub fn away() -> Arc<dyn Daemon> {
    Arc::new(Remote::new("http://127.0.0.1:1", None, None, None).expect("an address"))
}
