//! An orderly end on request.

use std::io;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// The signals that ask a program to end: SIGINT (Ctrl-C) and SIGTERM.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Catches these signals. They no longer end the program.
    ///
    /// # Errors
    /// The system doesn't allow to catch them.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// A request to end that all tasks see. Clones share it.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// A request, and the function that makes it.
    pub fn new() -> (impl FnOnce(), Self) {
        let (ask, asked) = watch::channel(false);
        let ask = move || {
            ask.send_replace(true);
        };
        (ask, Self(asked))
    }

    /// Whether the end was requested.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the request.
    pub async fn asked(&self) {
        let mut asked = self.0.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            // Nobody can make the request any more.
            std::future::pending::<()>().await;
        }
    }
}
