//! The emulated device: durations of the parts of a step.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::args::{not_negative, straggler};

/// An emulated device: gradients are computed for real, then the step takes as long as it would on the device.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Emulated device")]
pub struct Device {
    /// Milliseconds per example of a worker's share (forward pass).
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub device_example_ms: f64,
    /// Milliseconds per step and worker, independent of its share (backward pass).
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub device_step_ms: f64,
    /// Milliseconds to apply one worker's gradients to the whole model; a parameter server takes its part of that.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub device_update_ms: f64,
    /// Milliseconds per connection and step, at each end.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub device_connection_ms: f64,
    /// Milliseconds from a process's start until it is ready.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub device_start_ms: f64,
    /// Size of the emulated model, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 0.0, value_parser = not_negative)]
    pub device_model_mib: f64,
    /// Rate of each process's network interface in each direction, in Mbit/s; 0: infinite. Only for traffic between
    /// different servers.
    #[arg(long, value_name = "MBIT", default_value_t = 0.0, value_parser = not_negative)]
    pub device_nic_mbit: f64,
    /// Workers that are slower than the others, as INDEX:FACTOR,… (3:2.5 makes worker 3 take 2.5 times as long).
    #[arg(long, value_name = "INDEX:FACTOR", value_delimiter = ',', value_parser = straggler)]
    pub device_straggler: Vec<(u32, f64)>,
}

impl Device {
    /// Whether anything is emulated. Then printed speeds are labelled.
    pub(crate) fn is_emulated(&self) -> bool {
        let times = self.device_example_ms
            + self.device_step_ms
            + self.device_update_ms
            + self.device_connection_ms
            + self.device_start_ms;
        times > 0.0 || self.nic_mbit().is_some() || !self.device_straggler.is_empty()
    }

    /// " (emulated device)" if so, for all printed speeds.
    pub(crate) fn label(&self) -> &'static str {
        if self.is_emulated() { " (emulated device)" } else { "" }
    }

    /// Rate of the emulated network interface, if there is one and a model to send.
    pub(crate) fn nic_mbit(&self) -> Option<f64> {
        (self.device_nic_mbit > 0.0 && self.device_model_mib > 0.0).then_some(self.device_nic_mbit)
    }

    /// Bytes of one of `parts` equal parts of the model.
    pub(crate) fn part_bytes(&self, parts: usize) -> u64 {
        (self.model_bytes() / parts as f64) as u64
    }

    /// Start time of a process.
    pub(crate) fn start(&self) -> Duration {
        ms(self.device_start_ms)
    }

    /// Bytes of `values` numbers, scaled so that all parameters have the size of the model.
    pub(crate) fn bytes(&self, values: usize, parameters: usize) -> u64 {
        (self.model_bytes() * values as f64 / parameters as f64) as u64
    }

    /// Computation time of a worker's share of a step, with its connections.
    pub(crate) fn compute(&self, worker: u32, examples: u64, connections: usize) -> Duration {
        self.forward(worker, examples) + self.backward(worker) + self.connections(connections)
    }

    /// Forward pass of the share.
    pub(crate) fn forward(&self, worker: u32, examples: u64) -> Duration {
        ms(self.device_example_ms * examples as f64 * self.slower(worker))
    }

    /// Backward pass, independent of the share.
    pub(crate) fn backward(&self, worker: u32) -> Duration {
        ms(self.device_step_ms * self.slower(worker))
    }

    /// Time for connections.
    pub(crate) fn connections(&self, count: usize) -> Duration {
        ms(self.device_connection_ms * count as f64)
    }

    fn model_bytes(&self) -> f64 {
        self.device_model_mib * 1_048_576.0
    }

    fn slower(&self, worker: u32) -> f64 {
        self.device_straggler.iter().find(|(index, _)| *index == worker).map_or(1.0, |(_, factor)| *factor)
    }

    /// Time of a holder of one of `parts` parts of the model for one worker's gradients.
    pub(crate) fn update(&self, parts: usize) -> Duration {
        ms(self.device_update_ms / parts as f64 + self.device_connection_ms)
    }

    /// Time of an all-reduce worker to apply the summed gradients to its copy of the model, or of one of `parts` equal
    /// parts of it.
    pub(crate) fn apply(&self, parts: usize) -> Duration {
        ms(self.device_update_ms / parts as f64)
    }
}

fn ms(value: f64) -> Duration {
    Duration::from_secs_f64(value / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up() {
        let device = Device {
            device_example_ms: 2.0,
            device_step_ms: 30.0,
            device_update_ms: 12.0,
            device_connection_ms: 1.0,
            device_straggler: vec![(3, 2.0)],
            ..Device::default()
        };
        assert_eq!(device.compute(0, 10, 4), Duration::from_millis(54));
        assert_eq!(device.compute(3, 10, 4), Duration::from_millis(104));
        assert_eq!(device.update(4), Duration::from_millis(4));
        assert!(device.is_emulated());
    }

    #[test]
    fn a_network_needs_a_rate_and_a_model() {
        assert!(!Device::default().is_emulated());
        assert_eq!(Device { device_nic_mbit: 100.0, ..Device::default() }.nic_mbit(), None);
        let device = Device { device_nic_mbit: 100.0, device_model_mib: 1.0, ..Device::default() };
        assert_eq!(device.nic_mbit(), Some(100.0));
        assert_eq!((device.part_bytes(4), device.bytes(5, 20)), (262_144, 262_144));
        assert!(device.is_emulated());
    }
}
