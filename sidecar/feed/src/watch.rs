//! A watch stream: the current assignment at once, then the newest whenever it changed.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use trainmaster_proto::v1;

use crate::registry::Watcher;

/// What a watch call returns.
pub(crate) type Assignments = ReceiverStream<Result<v1::Assignment, Status>>;

/// Tells one slot until it goes away. A slot that reads slowly misses what was outdated meanwhile.
pub(crate) fn stream(mut watcher: Watcher) -> Assignments {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            if sender.send(Ok(watcher.look())).await.is_err() {
                return;
            }
            tokio::select! {
                changed = watcher.changed() => {
                    if let Err(error) = changed {
                        let _ = sender.send(Err(error)).await;
                        return;
                    }
                }
                () = sender.closed() => return,
            }
        }
    });
    ReceiverStream::new(receiver)
}
