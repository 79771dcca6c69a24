//! Parameters with the optimiser's state, in any process.
//!
//! A step is first collected. It becomes final when the chief knows that all holders have collected it. So a step that
//! only some holders finished can be discarded and repeated.

use serde::{Deserialize, Serialize};

use crate::{fixed::from_fixed, wire::Message};

/// Parameters and the optimiser's state at a version (the number of applied steps).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) version: u64,
    pub(crate) parameters: Vec<f32>,
    pub(crate) velocity: Vec<f32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    pub(crate) state: State,
    learning_rate: f32,
    momentum: f32,
    collected: Option<(Vec<i64>, u64)>,
}

impl Holder {
    pub(crate) fn new(learning_rate: f32, momentum: f32) -> Self {
        Self { learning_rate, momentum, ..Self::default() }
    }

    pub(crate) fn load(&mut self, state: State) {
        (self.state, self.collected) = (state, None);
    }

    /// The whole state, for the chief.
    pub(crate) fn shard(&self, version: u64) -> Message {
        Message::Shard(State { version, ..self.state.clone() })
    }

    /// The parameters, for the chief.
    pub(crate) fn shown(&self, version: u64) -> Message {
        Message::Shown { version, parameters: self.state.parameters.clone() }
    }

    /// Stores a step's gradient sums until the chief makes them final or discards them.
    pub(crate) fn collect(&mut self, sums: Vec<i64>, examples: u64) {
        self.collected = Some((sums, examples));
    }

    /// Makes the collected step final, or discards it, so that the state is at `version`. False if that isn't possible.
    pub(crate) fn reach(&mut self, version: u64) -> bool {
        match self.collected.take() {
            Some((sums, examples)) if version == self.state.version + 1 => self.apply(0, &sums, examples),
            _ => {}
        }
        self.state.version == version
    }

    /// One step of gradient descent with momentum, for the parameters from `from` on that have sums. The operations are
    /// the same for each parameter in any process.
    pub(crate) fn apply(&mut self, from: usize, sums: &[i64], examples: u64) {
        let count = examples.max(1) as f64;
        let state = self.state.parameters.iter_mut().zip(&mut self.state.velocity).skip(from);
        for ((parameter, velocity), sum) in state.zip(sums) {
            let gradient = (from_fixed(*sum) / count) as f32;
            *velocity = self.momentum * *velocity + gradient;
            *parameter -= self.learning_rate * *velocity;
        }
        self.state.version += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed::SCALE;

    fn holder() -> Holder {
        let mut holder = Holder::new(0.5, 0.5);
        holder.load(State { version: 7, parameters: vec![1.0, 2.0], velocity: vec![0.0, 0.0] });
        holder
    }

    fn sums() -> Vec<i64> {
        vec![SCALE as i64 * 2, -(SCALE as i64) * 4]
    }

    #[test]
    fn a_collected_step_becomes_final_with_the_next() {
        let mut holder = holder();
        holder.collect(sums(), 2);
        assert_eq!(holder.state.parameters, [1.0, 2.0]);
        assert!(holder.reach(8));
        assert_eq!(holder.state.parameters, [0.5, 3.0]);
        holder.collect(sums(), 2);
        assert!(holder.reach(9));
        assert_eq!((holder.state.parameters[0], holder.state.velocity[0]), (-0.25, 1.5));
    }

    #[test]
    fn some_parameters_can_be_updated_alone() {
        let mut holder = holder();
        holder.apply(1, &sums()[1..], 2);
        assert_eq!((holder.state.parameters, holder.state.velocity), (vec![1.0, 3.0], vec![0.0, -2.0]));
    }

    #[test]
    fn a_collected_step_can_be_discarded() {
        let mut holder = holder();
        holder.collect(sums(), 2);
        assert!(holder.reach(7));
        assert_eq!(holder.state.parameters, [1.0, 2.0]);
        assert!(!holder.reach(8), "nothing is collected any more");
    }
}
