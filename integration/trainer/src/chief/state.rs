//! The state of the whole job: collected from its holders, sent to them, and saved.

use std::{collections::BTreeMap, path::Path, time::Instant};

use tracing::warn;

use super::{Chief, phase::Phase};
use crate::{checkpoint::Checkpoint, exit, feed::Feed, holder::State, id::Id, net::Net, wire::Message};

impl Chief {
    /// Sends their parts to holders without parameters.
    pub(super) fn load(&mut self, joining: &[Id], net: &mut Net) {
        let Some(state) = &self.state else { return };
        for id in joining {
            let server = self.servers.iter().position(|server| server == id);
            let place = server.unwrap_or_else(|| self.parts().of(id.index));
            let [parameters, velocity] =
                [&state.parameters, &state.velocity].map(|whole| self.layout.take(place, whole));
            net.send(*id, Message::Load(State { version: state.version, parameters, velocity }));
            self.loaded.insert(*id);
        }
    }

    /// Requests the parts of all holders.
    pub(super) fn gather(&mut self, net: &mut Net) {
        let Some(sources) = self.sources() else {
            warn!("nobody has all of the state any more; the job must start again from its last checkpoint");
            return self.end(exit::WORKER_LOST, net);
        };
        let version = self.ledger.step;
        sources.iter().for_each(|id| net.send(*id, Message::Gather { version }));
        self.phase = Phase::Gather { since: Instant::now(), sources, parts: BTreeMap::new() };
    }

    /// Holders that together have the whole state: the parameter servers, or a worker for each partition.
    pub(super) fn sources(&self) -> Option<Vec<Id>> {
        if !self.servers.is_empty() {
            return Some(self.servers.clone());
        }
        let holder = |part| self.loaded.iter().copied().find(|id| self.parts().of(id.index) == part);
        (0..self.parts().count()).map(holder).collect()
    }

    /// Continues when all parts are there.
    pub(super) fn gathered(&mut self, net: &mut Net, feed: &Feed) {
        let Phase::Gather { sources, parts, .. } = &self.phase else { return };
        if !sources.iter().all(|id| parts.contains_key(id)) {
            return;
        }
        let parameters = self.layout.join(sources.iter().map(|id| parts[id].parameters.as_slice()));
        let velocity = self.layout.join(sources.iter().map(|id| parts[id].velocity.as_slice()));
        let (Some(parameters), Some(velocity)) = (parameters, velocity) else {
            warn!("the parts of the state don't fit together");
            return self.end(exit::ERROR, net);
        };
        self.state = Some(State { version: self.ledger.step, parameters, velocity });
        self.phase = Phase::Idle(Instant::now());
        self.ledger.disturbed();
        self.boundary(net, feed);
    }

    pub(super) fn checkpoint_due(&self) -> bool {
        let pace = &self.settings.pace;
        let epochs = self.ledger.epochs() - self.checkpoint_epoch;
        self.settings.checkpoint_dir.is_some()
            && self.checkpoint_step != Some(self.ledger.step)
            && (self.stepped && self.checkpoint_at.elapsed() >= pace.checkpoint
                || pace.checkpoint_epochs.is_some_and(|every| epochs >= every))
    }

    /// Writes a checkpoint of the current state, unless it is saved already. False if that failed.
    pub(super) fn save(&mut self) -> bool {
        let (Some(folder), Some(state)) = (self.settings.checkpoint_dir.clone(), &self.state) else { return true };
        if self.checkpoint_step == Some(state.version) {
            return true;
        }
        let start = Instant::now();
        let written = self.write(&folder, state);
        self.checkpoint_at = Instant::now();
        self.checkpoint_epoch = self.ledger.epochs();
        if written {
            self.checkpoint_ms = start.elapsed().as_secs_f32() * 1e3;
            self.checkpoint_step = Some(self.ledger.step);
        }
        written
    }

    fn write(&self, folder: &Path, state: &State) -> bool {
        let checkpoint = Checkpoint {
            fingerprint: self.settings.fingerprint(),
            step: state.version,
            losses: self.ledger.losses.clone(),
            epoch: self.ledger.epoch,
            chunks: self.ledger.trained(),
            parameters: state.parameters.clone(),
            velocity: state.velocity.clone(),
        };
        checkpoint.write(folder).inspect_err(|error| warn!(%error, "no checkpoint written")).is_ok()
    }
}
