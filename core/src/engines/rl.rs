//! Reinforcement learning for the time to completion alone: a baseline of MLFS.
//!
//! Wang, Liu and Shen, *Job Scheduling for Large-Scale Machine Learning Clusters*, CoNEXT'20, compare with Mirhoseini et al., *Device
//! Placement Optimization with Reinforcement Learning*, ICML'17, as they made it themselves: it scans all tasks and maps them to
//! GPUs so as to minimise the average JCT. The original places the operations of one TensorFlow graph on the devices
//! of one machine, with a recurrent network that is trained anew for each graph by measured step times; neither paper says what a scheduler
//! made of that sees, how its network looks, or who goes first.
//!
//! Chosen are:
//! * The task-to-GPU mapping and the network are those of [`mlfs`](super::mlfs)' policy, one score for each task and place. What
//!   belongs to other goals is hidden from it: urgency, deadline, accuracy, the gain of the next epoch and the priorities made of them.
//! * It is rewarded for the mean JCT alone.
//! * Tasks stay where they were put: no migration, no early stop. All tasks of a job are placed or none.
//! * Without a policy: who has waited longest first, each task on the least used server near its peers.
//! * Owners partition their models, so their partitions are taken as they are; the paper cuts a model into its layers.
//!
//! Choose it to compare with. Cost: as [`mlfs`](super::mlfs).

use crate::engine::{About, Build, Parameters};
use super::{mlfs::{self, Mlfs}};
use crate::settings::SettingsError;

/// The engine, as its module describes it.
pub struct Rl;

impl Build for Rl {
    type Engine = Mlfs;
    const ABOUT: About = About::new(
        "rl",
        "places tasks by a policy learnt for the mean time to completion alone",
        "Mirhoseini et al., ICML'17, as baseline of MLFS",
    )
    .learning(&mlfs::INPUTS);

    fn build(parameters: &mut Parameters<'_>) -> Result<Mlfs, SettingsError> {
        mlfs::for_completion(Self::ABOUT.name, parameters)
    }
}
