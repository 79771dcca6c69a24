//! Servers from C.

use std::collections::BTreeMap;

use trainmaster_core::{DeviceShare, ServerSpec};

use crate::{
    borrow::{self, grows, plain},
    error::Failure,
    text::trainmaster_string,
};

/// An amount of one resource. Units: `memory` and `disk` in MiB, `bandwidth` in Mbit/s, all others (`gpu`, `cpu`,
/// `gpu:<type>`, names of your own) in thousandths of one. From 0 to 10^12. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_amount {
    /// Name of the resource.
    pub name: trainmaster_string,
    /// The amount.
    pub value: i64,
}

/// An array of amounts, at most one per resource.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_amounts {
    /// The first element.
    pub data: *const trainmaster_amount,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// A label. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_label {
    /// Name.
    pub key: trainmaster_string,
    /// Its value.
    pub value: trainmaster_string,
}

/// An array of labels, at most one per name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_labels {
    /// The first element.
    pub data: *const trainmaster_label,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// An array of texts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_strings {
    /// The first element.
    pub data: *const trainmaster_string,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// A share of a device. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_device {
    /// Index in the server's `devices`.
    pub device: u32,
    /// Thousandths of it; 1000 is the whole device.
    pub milli: u32,
}

/// An array of shares of devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_devices {
    /// The first element.
    pub data: *const trainmaster_device,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// A server (machine), for TRAINMASTER_EVENT_KIND_SERVER_SET.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_server {
    /// sizeof(struct trainmaster_server).
    pub size: u32,
    /// 1: it takes no new slots.
    pub draining: u32,
    /// Unique in the cluster.
    pub name: trainmaster_string,
    /// Capacity without `devices`.
    pub capacity: trainmaster_amounts,
    /// `gpu` or `gpu:<type>`, one entry per device, which adds 1000 `gpu` (and 1000 of its type). Empty if the manager
    /// picks devices itself; then `capacity` contains `gpu`.
    pub devices: trainmaster_strings,
    /// Labels for jobs' constraints. The label `hosts` sets the roles that it hosts: `workers`, `servers` or `both`.
    pub labels: trainmaster_labels,
}

plain!(trainmaster_amount, trainmaster_label, trainmaster_device);
grows!(trainmaster_server: 96);

impl trainmaster_server {
    pub(crate) fn convert(&self) -> Result<ServerSpec, Failure> {
        let kinds = borrow::copies(self.devices.data, self.devices.count, self.devices.stride, "server.devices")?;
        Ok(ServerSpec {
            name: borrow::text(self.name, "server.name")?,
            capacity: amounts(self.capacity, "server.capacity")?,
            devices: kinds.into_iter().map(|kind| borrow::text(kind, "server.devices")).collect::<Result<_, _>>()?,
            labels: labels(self.labels, "server.labels")?,
            draining: flag(self.draining, "server.draining")?,
        })
    }
}

/// A table without duplicate keys.
fn table<V>(
    pairs: impl Iterator<Item = Result<(String, V), Failure>>,
    name: &str,
) -> Result<BTreeMap<String, V>, Failure> {
    let mut table = BTreeMap::new();
    for pair in pairs {
        let (key, value) = pair?;
        if table.insert(key.clone(), value).is_some() {
            return Err(Failure::value(format!("{name} has {key:?} twice")));
        }
    }
    Ok(table)
}

pub(crate) fn amounts(amounts: trainmaster_amounts, name: &str) -> Result<BTreeMap<String, i64>, Failure> {
    let each = borrow::copies(amounts.data, amounts.count, amounts.stride, name)?;
    table(each.into_iter().map(|amount| Ok((borrow::text(amount.name, name)?, amount.value))), name)
}

pub(crate) fn labels(labels: trainmaster_labels, name: &str) -> Result<BTreeMap<String, String>, Failure> {
    let each = borrow::copies(labels.data, labels.count, labels.stride, name)?;
    table(each.into_iter().map(|label| Ok((borrow::text(label.key, name)?, borrow::text(label.value, name)?))), name)
}

pub(crate) fn devices(devices: trainmaster_devices, name: &str) -> Result<Vec<DeviceShare>, Failure> {
    let small = |number: u32| {
        u16::try_from(number).map_err(|_| Failure::value(format!("{name}: {number} must be at most {}", u16::MAX)))
    };
    let each = borrow::copies(devices.data, devices.count, devices.stride, name)?;
    each.iter().map(|part| Ok(DeviceShare { device: small(part.device)?, milli: small(part.milli)? })).collect()
}

pub(crate) fn flag(value: u32, name: &str) -> Result<bool, Failure> {
    pick(value, name, &[("no", false), ("yes", true)])
}

/// The choice of a number.
pub(crate) fn pick<T: Copy>(value: u32, name: &str, choices: &[(&str, T)]) -> Result<T, Failure> {
    let chosen = choices.get(value as usize).map(|(_, choice)| *choice);
    chosen.ok_or_else(|| {
        let allowed: Vec<_> = choices.iter().enumerate().map(|(at, (word, _))| format!("{at} ({word})")).collect();
        Failure::value(format!("{name}: {value} must be {}", allowed.join(", ")))
    })
}
