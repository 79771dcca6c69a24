//! The use of this machine's NVIDIA GPUs, as their driver's management library (NVML) tells it.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
};

use nvml_wrapper::{Device, Nvml, enum_wrappers::device::Sampling, enums::device::SampleValue, error::NvmlError};

/// The library's name, as drivers install it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// All GPUs of this machine, numbered as programs with `CUDA_DEVICE_ORDER=PCI_BUS_ID` see them.
pub(crate) struct Gpus {
    nvml: Nvml,
    /// The time stamps (µs) of the newest samples that were read, by GPU: of the GPU, and of its processes.
    seen: HashMap<u32, (u64, u64)>,
}

/// The use of a GPU since it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Busy time, in thousandths.
    pub(crate) busy: u64,
    /// How much each process computed, by pid, as weights. Empty if nothing ran, or if the driver can't tell.
    pub(crate) processes: BTreeMap<i32, u64>,
}

impl Gpus {
    /// The GPUs of this machine. An error without a driver for NVIDIA's.
    pub(crate) fn of_this_machine() -> Result<Self, NvmlError> {
        Self::open(OsStr::new(LIBRARY))
    }

    fn open(library: &OsStr) -> Result<Self, NvmlError> {
        let nvml = Nvml::builder().lib_path(library).init()?;
        Ok(Self { nvml, seen: HashMap::new() })
    }

    /// The number of GPUs.
    pub(crate) fn count(&self) -> u32 {
        self.nvml.device_count().unwrap_or(0)
    }

    /// Reads a GPU's use since the last call. `None` without such a GPU, or if it doesn't count its busy time, as in
    /// parts (MIG).
    ///
    /// The driver keeps some seconds of samples: of a longer time these are the last.
    pub(crate) fn read(&mut self, gpu: u32) -> Option<Load> {
        let device = self.nvml.device_by_index(gpu).ok()?;
        let (of_gpu, of_processes) = self.seen.entry(gpu).or_default();
        let busy = busy(&device, of_gpu)?;
        // Drivers refuse while no process has computed, and where they can't tell.
        let samples = device.process_utilization_stats(*of_processes).unwrap_or_default();
        let mut processes = BTreeMap::new();
        for sample in samples {
            *of_processes = sample.timestamp.max(*of_processes);
            if let (Ok(pid @ 1..), 1..) = (i32::try_from(sample.pid), sample.sm_util) {
                *processes.entry(pid).or_default() += u64::from(sample.sm_util);
            }
        }
        Some(Load { busy, processes })
    }
}

/// The mean of a GPU's samples since the last call, else its latest, in thousandths.
fn busy(device: &Device<'_>, seen: &mut u64) -> Option<u64> {
    let samples = device.samples(Sampling::GpuUtilization, *seen).unwrap_or_default();
    *seen = samples.iter().map(|sample| sample.timestamp).fold(*seen, u64::max);
    let percents: Vec<u64> = samples.into_iter().filter_map(|sample| percent(sample.value)).collect();
    match percents.len() as u64 {
        0 => device.utilization_rates().ok().map(|latest| u64::from(latest.gpu.min(100)) * 10),
        count => Some(percents.iter().sum::<u64>() * 10 / count),
    }
}

fn percent(value: SampleValue) -> Option<u64> {
    let percent = match value {
        SampleValue::U32(value) => value.into(),
        SampleValue::U64(value) => value,
        SampleValue::I64(value) => u64::try_from(value).ok()?,
        SampleValue::F64(value) => value as u64,
    };
    Some(percent.min(100))
}

/// A library with NVML's functions, for machines without GPUs: GPU 0 tells its processes, GPU 1 doesn't, GPU 2 is
/// divided and tells nothing.
#[cfg(test)]
pub(super) fn scripted(folder: &std::path::Path, pids: [u32; 2]) -> Gpus {
    let library = folder.join("libscripted.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/local/nvml.c");
    let pids = pids.map(|pid| pid.to_string());
    let status = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .args([&format!("-DFIRST={}", pids[0]), &format!("-DSECOND={}", pids[1]), source])
        .status()
        .expect("the linker that Rust uses");
    assert!(status.success());
    Gpus::open(library.as_os_str()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_says_which() {
        let error = Gpus::open(OsStr::new("libno-such-thing.so.1")).err().expect("no such library").to_string();
        assert!(error.contains("libno-such-thing.so.1"), "{error}");
    }

    #[test]
    fn busy_time_is_the_mean_of_the_new_samples_and_each_process_has_its_weight() {
        let folder = tempfile::tempdir().unwrap();
        let mut gpus = scripted(folder.path(), [11, 12]);
        assert_eq!(gpus.count(), 3);
        // The script's samples are 100, 200 and 60 %. Nobody computes for more than all of the time.
        let load = Load { busy: (100 + 100 + 60) * 10 / 3, processes: BTreeMap::from([(11, 90), (12, 30)]) };
        assert_eq!(gpus.read(0), Some(load));
        // They were read. The latest rate is 37 %.
        assert_eq!(gpus.read(0), Some(Load { busy: 370, processes: BTreeMap::new() }));
        assert_eq!(gpus.read(1).map(|load| load.processes), Some(BTreeMap::new()));
        assert_eq!(gpus.read(2), None, "it tells nothing");
        assert_eq!(gpus.read(3), None, "no such GPU");
    }
}
