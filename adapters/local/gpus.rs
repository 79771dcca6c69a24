//! The use of this machine's NVIDIA GPUs, as their driver's management library (NVML) tells it.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::Sampling,
    enums::device::SampleValue,
    error::NvmlError,
    struct_wrappers::device::{ProcessUtilizationSample, Sample},
};

/// The library's name, as drivers install it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// How long a reading waits for the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// How far in the future a sample's time may be. Some drivers return samples that were never written.
const AHEAD: Duration = Duration::from_secs(60);

/// The use of a GPU since it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Busy time, in thousandths.
    pub(crate) busy: u64,
    /// How much each process computed, by pid, as weights. `None`: the driver can't tell processes apart.
    pub(crate) processes: Option<BTreeMap<i32, u64>>,
}

/// Reads GPUs in a thread of its own, which a driver that hangs can't leave.
pub(crate) struct Reader {
    ask: SyncSender<u32>,
    answers: Receiver<Vec<Option<Load>>>,
    /// Whether the driver's silence was reported.
    silent: bool,
}

impl Reader {
    /// Starts the thread. It ends with the reader, once the driver answers.
    pub(crate) fn start() -> Self {
        Self::of(LIBRARY.into())
    }

    fn of(library: OsString) -> Self {
        let (ask, asked) = sync_channel::<u32>(1);
        let (answer, answers) = sync_channel(1);
        thread::spawn(move || {
            let (mut gpus, mut failed) = (None, false);
            for count in asked {
                // A driver can be loaded later, and loaded anew.
                if !gpus.as_ref().is_some_and(Gpus::works) {
                    gpus = Gpus::open(&library).inspect_err(|error| say(error, &mut failed)).ok();
                }
                let loads = (0..count).map(|gpu| gpus.as_mut()?.read(gpu)).collect();
                // An answer that nobody waited for is old.
                if let Err(TrySendError::Disconnected(_)) = answer.try_send(loads) {
                    return;
                }
            }
        });
        Self { ask, answers, silent: false }
    }

    /// The use of the first `count` GPUs since the last call. `None` for those that don't exist or don't count their
    /// busy time, and for all if the driver doesn't answer in time.
    pub(crate) fn read(&mut self, count: u32) -> Vec<Option<Load>> {
        // Late answers to earlier questions.
        while self.answers.try_recv().is_ok() {}
        let asked = self.ask.try_send(count).is_ok();
        let loads = if asked { self.answers.recv_timeout(PATIENCE).ok() } else { None };
        if loads.is_none() && !self.silent {
            tracing::warn!("the GPUs' driver doesn't answer: their use isn't known");
        }
        self.silent = loads.is_none();
        loads.unwrap_or_default()
    }
}

fn say(error: &NvmlError, failed: &mut bool) {
    if !std::mem::replace(failed, true) {
        tracing::warn!(%error, "the GPUs' driver can't be used: their use isn't known");
    }
}

/// All GPUs of this machine, in the order of the PCI bus: as programs with `CUDA_DEVICE_ORDER=PCI_BUS_ID` see them.
struct Gpus {
    nvml: Nvml,
    /// The library's own numbers.
    order: Vec<u32>,
    /// The times (µs) of the newest samples that were read, by GPU: of the GPU, and of its processes.
    seen: HashMap<u32, (u64, u64)>,
}

impl Gpus {
    /// Loads the library. An error on machines without a driver for NVIDIA's GPUs.
    fn open(library: &OsStr) -> Result<Self, NvmlError> {
        let nvml = Nvml::builder().lib_path(library).init()?;
        let mut order: Vec<u32> = (0..nvml.device_count()?).collect();
        order.sort_by_cached_key(|gpu| {
            let place = nvml.device_by_index(*gpu).and_then(|device| device.pci_info());
            place.map_or((u32::MAX, 0, 0), |place| (place.domain, place.bus, place.device))
        });
        Ok(Self { nvml, order, seen: HashMap::new() })
    }

    /// Whether the driver is still the one that was opened.
    fn works(&self) -> bool {
        self.nvml.device_count().is_ok()
    }

    fn read(&mut self, gpu: u32) -> Option<Load> {
        let device = self.nvml.device_by_index(*self.order.get(gpu as usize)?).ok()?;
        let (of_gpu, of_processes) = self.seen.entry(gpu).or_default();
        let busy = busy(&device, of_gpu)?;
        let asked = *of_processes;
        let processes = match samples(|| device.process_utilization_stats(asked)) {
            Ok(samples) => Some(weights(samples, of_processes)),
            // Nobody has computed since.
            Err(NvmlError::NotFound) => Some(BTreeMap::new()),
            Err(_) => None,
        };
        Some(Load { busy, processes })
    }
}

/// Asks again if there are more samples by the time the wrapper fetches them.
fn samples<T>(ask: impl Fn() -> Result<Vec<T>, NvmlError>) -> Result<Vec<T>, NvmlError> {
    match ask() {
        Err(NvmlError::InsufficientSize(_)) => ask(),
        other => other,
    }
}

/// Whether a sample of this time (µs) can be one since the last. `newest` grows with it.
fn is_new(time: u64, asked: u64, newest: &mut u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + AHEAD;
    let new = time > asked && u128::from(time) <= now.as_micros();
    if new {
        *newest = time.max(*newest);
    }
    new
}

/// How much each process computed. Drivers are known to return samples with impossible percentages or times.
fn weights(samples: Vec<ProcessUtilizationSample>, seen: &mut u64) -> BTreeMap<i32, u64> {
    let asked = *seen;
    let mut weights = BTreeMap::new();
    for sample in samples {
        if let (Ok(pid @ 1..), 1..=100) = (i32::try_from(sample.pid), sample.sm_util)
            && is_new(sample.timestamp, asked, seen)
        {
            *weights.entry(pid).or_default() += u64::from(sample.sm_util);
        }
    }
    weights
}

/// The mean of a GPU's samples since the last call, else its latest, in thousandths.
fn busy(device: &Device<'_>, seen: &mut u64) -> Option<u64> {
    let asked = *seen;
    let samples = samples(|| device.samples(Sampling::GpuUtilization, asked)).unwrap_or_default();
    let new = samples.into_iter().filter(|sample| is_new(sample.timestamp, asked, seen));
    let percents: Vec<u64> = new.filter_map(percent).collect();
    match percents.len() as u64 {
        0 => device.utilization_rates().ok().map(|latest| u64::from(latest.gpu.min(100)) * 10),
        count => Some(percents.iter().sum::<u64>() * 10 / count),
    }
}

fn percent(sample: Sample) -> Option<u64> {
    let percent = match sample.value {
        SampleValue::U32(value) => value.into(),
        SampleValue::U64(value) => value,
        SampleValue::I64(value) => u64::try_from(value).ok()?,
        SampleValue::F64(value) => value as u64,
    };
    (percent <= 100).then_some(percent)
}

/// A reader of a library with NVML's functions, for machines without GPUs. In the order of the PCI bus GPU 0 tells its
/// processes, GPU 1 doesn't, and GPU 2 tells nothing.
#[cfg(test)]
pub(super) fn scripted(folder: &std::path::Path, pids: [u32; 2], wait: u32) -> Reader {
    let library = folder.join("libscripted.so");
    let status = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .args([format!("-DFIRST={}", pids[0]), format!("-DSECOND={}", pids[1]), format!("-DWAIT={wait}")])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/local/nvml.c"))
        .status()
        .expect("the linker that Rust uses");
    assert!(status.success());
    Reader::of(library.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(busy: u64, processes: &[(i32, u64)]) -> Option<Load> {
        Some(Load { busy, processes: Some(processes.iter().copied().collect()) })
    }

    #[test]
    fn a_machine_without_the_library_knows_nothing() {
        let error = Gpus::open(OsStr::new("libno-such-thing.so.1")).err().expect("no such library").to_string();
        assert!(error.contains("libno-such-thing.so.1"), "{error}");
        assert_eq!(Reader::of("libno-such-thing.so.1".into()).read(2), [None, None]);
    }

    /// The script's samples are 100, 60 and 4,000 % (left out), its processes' also of tomorrow and above 100 %.
    #[test]
    fn busy_time_is_the_mean_of_the_new_samples_and_each_process_has_its_weight() {
        let folder = tempfile::tempdir().unwrap();
        let mut gpus = scripted(folder.path(), [11, 12], 0);
        let loads = gpus.read(4);
        assert_eq!(loads[0], load(800, &[(11, 90), (12, 30)]));
        assert_eq!(loads[1], Some(Load { busy: 800, processes: None }), "it can't tell");
        assert_eq!(loads[2..], [None, None], "one tells nothing, and one doesn't exist");
        // All were read, and a sample of tomorrow hides no later one. The latest rate is 37 %.
        assert_eq!(gpus.read(1), [load(370, &[])]);
    }

    #[test]
    fn a_driver_that_hangs_is_waited_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut gpus = scripted(folder.path(), [11, 12], 3600);
        assert_eq!(gpus.read(1), []);
        // The thread is busy with the first question, and one waits.
        let refused = (0..3).any(|_| gpus.ask.try_send(1) == Err(TrySendError::Full(1)));
        assert!(refused, "further ones are refused at once");
    }
}
