//! A look at the model after each epoch, on examples that are never trained.
//!
//! The holders show their parameters as of the epoch's end before they hear of the next step, and training goes on
//! meanwhile. With asynchronous training the parameters are as they are when the holders are asked.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::Chief;
use crate::{feed::Feed, id::Id, net::Net, wire::Message};

/// Parameters on their way here.
pub(super) struct Look {
    version: u64,
    sources: Vec<Id>,
    parts: BTreeMap<Id, Vec<f32>>,
    /// Of the same epoch, on what it trained.
    training_accuracy: f64,
}

impl Chief {
    /// Asks for the parameters if an epoch has just ended. A look that still waits for some is given up.
    pub(super) fn look(&mut self, net: &mut Net) {
        // The last report of a job that is done says how good it is in the end.
        let Some(training_accuracy) = self.ledger.unseen().filter(|_| self.ledger.done.is_none()) else { return };
        let (version, Some(sources)) = (self.ledger.step, self.sources()) else { return };
        sources.iter().for_each(|id| net.send(*id, Message::Show { version }));
        self.look = Some(Look { version, sources, parts: BTreeMap::new(), training_accuracy });
    }

    /// A holder's parameters are here.
    pub(super) fn shown(&mut self, from: Id, version: u64, parameters: Vec<f32>, feed: &Feed) {
        let Some(look) = self.look.as_mut().filter(|look| look.version == version) else { return };
        look.parts.insert(from, parameters);
        if !look.sources.iter().all(|id| look.parts.contains_key(id)) {
            return;
        }
        let Some(Look { sources, parts, training_accuracy, .. }) = self.look.take() else { return };
        let Some(parameters) = self.layout.join(sources.iter().map(|id| parts[id].as_slice())) else {
            return warn!("the parts of the model don't fit together; its accuracy isn't known");
        };
        let accuracy = self.validation.accuracy(&parameters);
        let epoch = self.ledger.epochs();
        info!("epoch {epoch}: accuracy {accuracy:.3} on held-out examples, {training_accuracy:.3} in training");
        let progress = self.ledger.validated(accuracy);
        feed.report(progress);
    }
}
