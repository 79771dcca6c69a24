//! Ending in good order when asked to.

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
    /// From now on these signals no longer end the program by themselves.
    ///
    /// # Errors
    /// The system doesn't let them be caught.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether it is time to end, for everybody who has to know.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// One that is asked for by calling the function.
    pub fn new() -> (impl FnOnce(), Self) {
        let (ask, asked) = watch::channel(false);
        let ask = move || {
            ask.send_replace(true);
        };
        (ask, Self(asked))
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is asked for.
    pub async fn asked(&self) {
        let mut asked = self.0.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            // Nobody is left who could ask.
            std::future::pending::<()>().await;
        }
    }
}
