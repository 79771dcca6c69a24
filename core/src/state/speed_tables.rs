//! Jobs that run only with some numbers of workers, in snapshots: what was measured of them is apart from their fits,
//! since version 16 of the format.

use std::sync::Arc;

use super::State;
use crate::{
    fit::speed::SpeedTable,
    ids::JobId,
    job::{Elastic, Job, Sizes},
};

impl State {
    /// The jobs' tables, for a snapshot. O(jobs).
    pub(crate) fn saved_tables(&self) -> Vec<(JobId, SpeedTable)> {
        let tables = self.jobs.values().filter_map(|job| Some((job.id, job.learnt.fits.speed.as_ref()?.table()?)));
        tables.map(|(id, table)| (id, (**table).clone())).collect()
    }

    /// Restores the jobs' tables, and from their labels their sizes and what a change does to them. O(jobs).
    pub(crate) fn restore_tables(&mut self, saved: Vec<(JobId, SpeedTable)>) {
        let sized = self.jobs.values().filter(|job| !job.spec.labels.is_empty());
        let sized: Vec<_> =
            sized.map(|job| (job.id, job.spec.sizes())).filter(|(_, sizes)| *sizes != Sizes::Any).collect();
        for (id, sizes) in sized {
            self.job_mut(id).expect("an active job").sizes = sizes;
        }
        let elastic = |job: &Arc<Job>| (job.id, Elastic::of(&job.spec.labels));
        let elastic: Vec<_> =
            self.jobs.values().map(elastic).filter(|(_, elastic)| *elastic != Elastic::default()).collect();
        for (id, elastic) in elastic {
            self.job_mut(id).expect("an active job").elastic = elastic;
        }
        for (id, table) in saved {
            let Some(job) = self.job_mut(id) else { continue };
            if let Some(fit) = &mut Arc::make_mut(&mut job.learnt.fits).speed {
                fit.table = Some(Arc::new(table));
            }
        }
    }
}
