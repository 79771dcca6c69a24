//! The emulated device: durations of the parts of a step.

use std::time::Duration;

use crate::args::DeviceArgs;

/// Times and sizes of an emulated device. With zeros only, nothing is emulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    example_ms: f64,
    step_ms: f64,
    update_ms: f64,
    connection_ms: f64,
    start_ms: f64,
    model_bytes: f64,
    nic_mbit: f64,
    stragglers: Vec<(u32, f64)>,
}

impl From<&DeviceArgs> for Device {
    fn from(args: &DeviceArgs) -> Self {
        Self {
            example_ms: args.device_example_ms,
            step_ms: args.device_step_ms,
            update_ms: args.device_update_ms,
            connection_ms: args.device_connection_ms,
            start_ms: args.device_start_ms,
            model_bytes: args.device_model_mib * 1_048_576.0,
            nic_mbit: args.device_nic_mbit,
            stragglers: args.device_straggler.clone(),
        }
    }
}

impl Device {
    /// Whether anything is emulated. Then printed speeds are labelled.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        let times = self.example_ms + self.step_ms + self.update_ms + self.connection_ms + self.start_ms;
        times > 0.0 || self.nic_mbit().is_some() || !self.stragglers.is_empty()
    }

    /// " (emulated device)" if so, for all printed speeds.
    #[must_use]
    pub fn label(&self) -> &'static str {
        if self.is_emulated() { " (emulated device)" } else { "" }
    }

    /// Rate of the emulated network interface, if there is one and a model to send.
    #[must_use]
    pub fn nic_mbit(&self) -> Option<f64> {
        (self.nic_mbit > 0.0 && self.model_bytes > 0.0).then_some(self.nic_mbit)
    }

    /// Bytes of one of `parts` equal parts of the model.
    #[must_use]
    pub fn part_bytes(&self, parts: usize) -> u64 {
        (self.model_bytes / parts as f64) as u64
    }

    /// Start time of a process.
    #[must_use]
    pub fn start(&self) -> Duration {
        ms(self.start_ms)
    }

    /// Bytes of `values` numbers, scaled so that all parameters have the size of the model.
    #[must_use]
    pub fn bytes(&self, values: usize, parameters: usize) -> u64 {
        (self.model_bytes * values as f64 / parameters as f64) as u64
    }

    /// Computation time of a worker's share of a step, with its connections.
    #[must_use]
    pub fn compute(&self, worker: u32, examples: u64, connections: usize) -> Duration {
        self.forward(worker, examples) + self.backward(worker) + self.connections(connections)
    }

    /// Forward pass of the share.
    #[must_use]
    pub fn forward(&self, worker: u32, examples: u64) -> Duration {
        ms(self.example_ms * examples as f64 * self.slower(worker))
    }

    /// Backward pass, independent of the share.
    #[must_use]
    pub fn backward(&self, worker: u32) -> Duration {
        ms(self.step_ms * self.slower(worker))
    }

    /// Time for connections.
    #[must_use]
    pub fn connections(&self, count: usize) -> Duration {
        ms(self.connection_ms * count as f64)
    }

    fn slower(&self, worker: u32) -> f64 {
        self.stragglers.iter().find(|(index, _)| *index == worker).map_or(1.0, |(_, factor)| *factor)
    }

    /// Time of a holder of one of `parts` parts of the model for one worker's gradients.
    #[must_use]
    pub fn update(&self, parts: usize) -> Duration {
        ms(self.update_ms / parts as f64 + self.connection_ms)
    }

    /// Time of an all-reduce worker to apply the summed gradients to its copy of the model, or of one of `parts` equal
    /// parts of it.
    #[must_use]
    pub fn apply(&self, parts: usize) -> Duration {
        ms(self.update_ms / parts as f64)
    }
}

fn ms(value: f64) -> Duration {
    Duration::from_secs_f64(value / 1e3)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn none() -> Device {
        let (example_ms, step_ms, update_ms, connection_ms, start_ms, model_bytes, nic_mbit) =
            (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        let stragglers = Vec::new();
        Device { example_ms, step_ms, update_ms, connection_ms, start_ms, model_bytes, nic_mbit, stragglers }
    }

    #[test]
    fn times_add_up() {
        let device = Device {
            example_ms: 2.0,
            step_ms: 30.0,
            update_ms: 12.0,
            connection_ms: 1.0,
            stragglers: vec![(3, 2.0)],
            ..none()
        };
        assert_eq!(device.compute(0, 10, 4), Duration::from_millis(54));
        assert_eq!(device.compute(3, 10, 4), Duration::from_millis(104));
        assert_eq!(device.update(4), Duration::from_millis(4));
        assert!(device.is_emulated());
    }

    #[test]
    fn a_network_needs_a_rate_and_a_model() {
        assert!(!none().is_emulated());
        assert_eq!(Device { nic_mbit: 100.0, ..none() }.nic_mbit(), None);
        let device = Device { nic_mbit: 100.0, model_bytes: 1e6, ..none() };
        assert_eq!(device.nic_mbit(), Some(100.0));
        assert_eq!((device.part_bytes(4), device.bytes(5, 20)), (250_000, 250_000));
        assert!(device.is_emulated());
    }
}
