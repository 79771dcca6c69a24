//! RL: reinforcement learning for the completion time alone, a baseline of MLFS.
//!
//! Wang, Liu and Shen, *Job Scheduling for Large-Scale Machine Learning Clusters*, CoNEXT'20, compare with their own
//! version of Mirhoseini et al., *Device Placement Optimization with Reinforcement Learning*, ICML'17: it scans all
//! tasks and maps them to GPUs so that the average JCT is minimal. The original places the operations of one TensorFlow
//! graph on the devices of one machine. Its recurrent network is trained anew for each graph by measured step times.
//! Neither paper describes the inputs of a scheduler based on it, its network, or the order of jobs.
//!
//! The following choices are our own:
//! * The mapping of tasks to GPUs and the network are those of [`mlfs`]' policy, with one score for each
//!   task and place. Inputs that belong to other goals are excluded: urgency, deadline, accuracy, the gain of the next
//!   epoch, and the priorities computed from them.
//! * The reward is the mean JCT alone.
//! * Tasks stay in their place, without migration and early stops. All tasks of a job are placed or none.
//! * Without a policy, the job with the longest wait comes first, with each task on the least used server near its
//!   peers.
//! * Owners partition their models, and these partitions are used. The paper divides a model into its layers.
//!
//! Choose it for comparisons. Cost: as [`mlfs`].

use super::mlfs::{self, Mlfs};
use crate::engine::{About, Build, Parameters};
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
