//! Training by chunk: each chunk is trained on its slot through all its epochs.

use trainmaster_core::{
    decision::{Allocation, Work, WorkItem, WorkState},
    ids::ServerId,
    time::Time,
};

/// Tolerance for comparisons of mini-batches.
const NEAR: f64 = 1e-6;

/// Chunks of one job.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    /// Mini-batches of a chunk in one epoch, and in all epochs.
    epoch: f64,
    goal: f64,
    each: Vec<Chunk>,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    /// Completed mini-batches.
    done: f64,
    /// The destination of its upload, and the time of arrival.
    there: Option<(ServerId, Time)>,
    /// Whether it trains now.
    trains: bool,
    /// Whether a report of this incarnation named it as completed.
    told: bool,
}

/// Whether slots are scheduled by chunk.
pub(super) fn are_in(slots: &Allocation) -> bool {
    slots.work().iter().any(|work| matches!(work.item, WorkItem::Chunk(_)))
}

impl Chunks {
    /// `count` chunks of `epoch` mini-batches per epoch.
    pub(super) fn new(count: u32, epoch: f64, epochs: u32) -> Self {
        Self { epoch, goal: epoch * f64::from(epochs), each: vec![Chunk::default(); count as usize] }
    }

    /// Completed mini-batches of all chunks.
    pub(super) fn done(&self) -> f64 {
        self.each.iter().map(|chunk| chunk.done).sum()
    }

    pub(super) fn all_done(&self) -> bool {
        self.each.iter().all(|chunk| self.is_done(chunk))
    }

    fn is_done(&self, chunk: &Chunk) -> bool {
        chunk.done >= self.goal - NEAR
    }

    /// Sets the total of completed mini-batches. Training without separate chunks counts equally for all chunks.
    pub(super) fn level(&mut self, done: f64) {
        let before = self.done();
        let left = self.goal * self.each.len() as f64 - before;
        if left > 0.0 && done > before {
            let share = ((done - before) / left).min(1.0);
            self.each.iter_mut().for_each(|chunk| chunk.done += share * (self.goal - chunk.done));
        }
    }

    /// Assigns chunks to slots. A chunk that isn't at its slot's server yet is uploaded.
    pub(super) fn give(&mut self, slots: &Allocation, mut send: impl FnMut(ServerId) -> Time) {
        for work in slots.work().iter().filter(|work| work.state != WorkState::Done) {
            let slot = work.slot.and_then(|(role, index)| slots.slot(role, index));
            let chunk = self.find(work);
            if let (Some(slot), Some(chunk)) = (slot, chunk)
                && chunk.there.is_none_or(|(server, _)| server != slot.server)
            {
                chunk.there = Some((slot.server, send(slot.server)));
            }
        }
    }

    fn find(&mut self, work: &Work) -> Option<&mut Chunk> {
        let WorkItem::Chunk(number) = work.item else { return None };
        self.each.get_mut(number as usize)
    }

    /// The part of the planned work that can run: uploaded chunks that aren't completed. Returns the slots with their
    /// actual work, and the end of the next upload that one of them waits for.
    pub(super) fn run(&mut self, slots: &Allocation, now: Time) -> (Allocation, Option<Time>) {
        self.each.iter_mut().for_each(|chunk| chunk.trains = false);
        let goal = self.goal - NEAR;
        let mut next: Option<Time> = None;
        let mut works = slots.work().to_vec();
        for work in works.iter_mut().filter(|work| work.state == WorkState::Running) {
            let has_slot = work.slot.is_some_and(|(role, index)| slots.slot(role, index).is_some());
            let chunk = self.find(work).filter(|chunk| has_slot && chunk.done < goal);
            let there = chunk.as_ref().and_then(|chunk| chunk.there).map(|(_, at)| at);
            match (chunk, there) {
                (Some(chunk), Some(at)) if at <= now => chunk.trains = true,
                (_, at) => {
                    work.state = WorkState::Queued(0);
                    next = [next, at].into_iter().flatten().min();
                }
            }
        }
        (Allocation::new(slots.slots().to_vec()).with_work(works), next)
    }

    /// Number of chunks that train.
    pub(super) fn running(&self) -> u32 {
        self.each.iter().filter(|chunk| chunk.trains).count() as u32
    }

    /// Adds completed mini-batches to each chunk that trains.
    pub(super) fn train(&mut self, batches: f64) {
        let goal = self.goal;
        for chunk in self.each.iter_mut().filter(|chunk| chunk.trains) {
            chunk.done += batches;
            if chunk.done >= goal - NEAR {
                chunk.done = goal;
            }
        }
    }

    /// The smallest number of remaining mini-batches of a chunk that trains.
    pub(super) fn nearest(&self) -> Option<f64> {
        self.each.iter().filter(|chunk| chunk.trains).map(|chunk| self.goal - chunk.done).min_by(f64::total_cmp)
    }

    /// Whether a completed chunk isn't reported yet.
    pub(super) fn has_news(&self) -> bool {
        self.each.iter().any(|chunk| !chunk.told && self.is_done(chunk))
    }

    /// Completed chunks that no report of this incarnation has named. Marks them as reported.
    pub(super) fn tell(&mut self) -> Vec<u32> {
        let goal = self.goal - NEAR;
        let news = (0..).zip(&mut self.each).filter(|(_, chunk)| chunk.done >= goal && !chunk.told);
        news.map(|(number, chunk)| {
            chunk.told = true;
            number
        })
        .collect()
    }

    /// Marks all chunks as unreported, because reports of the last incarnation may be lost.
    pub(super) fn tell_anew(&mut self) {
        self.each.iter_mut().for_each(|chunk| chunk.told = false);
    }

    /// Discards the work of each chunk since its last whole epoch.
    pub(super) fn crash(&mut self) {
        let epoch = self.epoch;
        self.each.iter_mut().for_each(|chunk| chunk.done = (chunk.done / epoch + NEAR).floor() * epoch);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        Draws, Goal, SimJob, Speed, StepTime, Truth,
        program::{Came, Program},
        uploads::Places,
    };
    use trainmaster_core::{
        Scheduler, Settings,
        decision::Issue,
        decision::{Devices, Slot, Verdict},
        event::Event,
        ids::{Incarnation, JobId, Revision},
        job::{Dataset, JobSpec},
        server::ServerSpec,
        shape::Role,
        time::Span,
    };

    const HOUR: i64 = 3_600_000;

    /// Two epochs over `chunks` chunks, each of which takes half an hour per epoch. Uploads take 1 h to server 0 and
    /// 3 h to server 1, a start 60 s.
    struct Test {
        sim: SimJob,
        scheduler: Scheduler,
    }

    impl Test {
        fn new(chunks: u32) -> Self {
            let speed = Speed::MiniBatches { seconds: 900.0, per_server: f64::INFINITY, together: Some(600.0) };
            let truth = Truth {
                start: Span::seconds(60),
                checkpoint: Span::seconds(30),
                ..Truth::of(speed, Goal::Epochs(2, None))
            };
            let data = Dataset { chunks, batches_per_chunk: 2, epochs: 2, upload: "z".into(), ..Dataset::default() };
            let data = Dataset { chunk_size: 10, batch_time: Some(Span::seconds(600)), ..data };
            let spec = JobSpec { dataset: Some(data), ..JobSpec::minimal("a") };
            let mut scheduler = Scheduler::new(Settings::default()).unwrap();
            for (number, upload) in ["1h", "3h"].into_iter().enumerate() {
                let server = ServerSpec {
                    name: format!("s{number}"),
                    capacity: BTreeMap::from([("cpu".to_owned(), 64_000)]),
                    devices: vec!["gpu".into(); 8],
                    labels: BTreeMap::from([("upload.z".to_owned(), upload.to_owned())]),
                    draining: false,
                };
                scheduler.apply(Time(0), Event::ServerSet { manager: "m".into(), server }).unwrap();
            }
            let event = Event::JobSubmitted { spec: Box::new(spec.clone()), external: None, token_hash: None };
            scheduler.apply(Time(0), event).unwrap();
            Self { sim: SimJob::new(Time(0), spec, truth), scheduler }
        }

        fn program(&self) -> Program<'_> {
            let job = self.scheduler.state().job(JobId(1)).unwrap().clone();
            Program::new(0, job, &self.sim, Draws::new(1))
        }

        fn places(&self) -> Places {
            let state = self.scheduler.state();
            [0, 1].map(ServerId).into_iter().map(|id| (id, state.server(id).place.clone())).collect()
        }

        fn start(&self, program: &mut Program<'_>, now: i64, incarnation: u32, slots: Allocation) {
            let verdict = Verdict::Run(slots.clone().into());
            let issue = Issue { job: JobId(1), verdict, incarnation: Incarnation(incarnation), revision: Revision(0) };
            program.start(Time(now), &issue, slots.into(), self.places());
        }

        fn change(&self, program: &mut Program<'_>, now: i64, slots: Allocation) {
            program.resize(Time(now), slots.into(), self.places());
        }
    }

    /// Workers on these servers, with a parameter server on server 1 and each chunk on a worker in a state.
    fn given(servers: &[u32], work: &[(u32, WorkState)]) -> Allocation {
        let slot = |role, index, server: u32| Slot { role, index, server: ServerId(server), devices: Devices::new() };
        let mut slots: Vec<Slot> = (0..).zip(servers).map(|(index, on)| slot(Role::Worker, index, *on)).collect();
        slots.push(slot(Role::Server, 0, 1));
        let work = (0..).zip(work).map(|(item, (worker, state))| Work {
            item: WorkItem::Chunk(item),
            slot: Some((Role::Worker, *worker)),
            state: *state,
        });
        Allocation::new(slots).with_work(work.collect())
    }

    /// The next event of the program, and its time.
    fn next(program: &mut Program<'_>, now: &mut i64) -> Option<Came> {
        let at = program.plan(Time(*now), Span::ZERO)?;
        *now = at.0;
        Some(program.come(at))
    }

    fn named(program: &mut Program<'_>, now: i64) -> Vec<u32> {
        let Event::Reported { report, .. } = program.report(Time(now)) else { panic!("a report") };
        report.chunks
    }

    use WorkState::{Done, Preempted, Queued, Running};

    #[test]
    fn a_chunk_waits_for_its_upload_and_keeps_its_progress() {
        let test = Test::new(3);
        let mut program = test.program();
        let mut now = 0;
        // Chunks 0 and 1 share a worker on server 0, chunk 2 has one on server 1.
        test.start(&mut program, now, 1, given(&[0, 1], &[(0, Running), (0, Queued(0)), (1, Running)]));
        assert_eq!((program.moved(), next(&mut program, &mut now), now), (30, Some(Came::Started), 60_000));
        // The first chunk arrives after an hour. After half an hour of training it is interrupted for an hour.
        assert_eq!((next(&mut program, &mut now), now), (Some(Came::Changed), HOUR));
        assert_eq!(program.plan(Time(now), Span::ZERO), Some(Time(2 * HOUR)));
        now += HOUR / 2;
        test.change(&mut program, now, given(&[0, 1], &[(0, Preempted), (0, Running), (1, Running)]));
        assert!((program.progress() - 1.0 / 6.0).abs() < 1e-9);
        // Its successor has arrived meanwhile, and starts without cost.
        assert_eq!((next(&mut program, &mut now), now), (Some(Came::Reported), 5 * HOUR / 2));
        assert_eq!(named(&mut program, now), [1]);
        test.change(&mut program, now, given(&[0, 1], &[(0, Running), (0, Done), (1, Running)]));
        // The first chunk needed half an hour more. It is completed when the third arrives.
        assert_eq!((next(&mut program, &mut now), now), (Some(Came::Reported), 3 * HOUR));
        assert_eq!(named(&mut program, now), [0]);
        assert_eq!((next(&mut program, &mut now), now), (Some(Came::Done), 4 * HOUR));
        assert_eq!((named(&mut program, now), program.moved()), (vec![2], 30));
        // 3 h of uploads. Of 3 worker-hours of two workers, a third was exchange.
        assert!((program.communication() / 3600.0 - 3.5).abs() < 1e-6, "{}", program.communication());
    }

    #[test]
    fn a_restart_sends_nothing_twice_and_reports_completed_chunks_again() {
        let test = Test::new(2);
        let mut program = test.program();
        let mut now = 0;
        test.start(&mut program, now, 1, given(&[0, 0], &[(0, Running), (1, Queued(0))]));
        while next(&mut program, &mut now) != Some(Came::Reported) {}
        assert_eq!(now, 2 * HOUR);
        // The report is lost, because the scheduler has moved the parameter server meanwhile.
        assert_eq!(named(&mut program, now), [0]);
        assert!(!program.stop(Time(now)));
        assert_eq!(next(&mut program, &mut now), Some(Came::Saved));
        program.leave();
        test.start(&mut program, now, 2, given(&[0, 1], &[(0, Running), (1, Running)]));
        // The first chunk stays; the other one moves.
        assert_eq!(program.moved(), 30);
        let moved = now;
        assert_eq!(next(&mut program, &mut now), Some(Came::Started));
        assert_eq!(next(&mut program, &mut now), Some(Came::Reported));
        assert_eq!((named(&mut program, now), now), (vec![0], moved + 60_000));
        while next(&mut program, &mut now) != Some(Came::Done) {}
        assert_eq!((named(&mut program, now), now, program.moved()), (vec![1], moved + 4 * HOUR, 30));
    }

    #[test]
    fn a_crash_costs_each_chunk_its_last_epoch_and_no_upload() {
        let test = Test::new(2);
        let mut program = test.program();
        let mut now = 0;
        let both = || given(&[0, 0], &[(0, Running), (1, Running)]);
        test.start(&mut program, now, 1, both());
        next(&mut program, &mut now);
        next(&mut program, &mut now);
        assert_eq!((program.plan(Time(now), Span::ZERO), now), (Some(Time(2 * HOUR)), HOUR));
        program.crash(Time(HOUR + 2_700_000));
        assert_eq!(program.progress(), 0.5);
        now = HOUR + 2_700_000;
        test.start(&mut program, now, 2, both());
        while next(&mut program, &mut now) != Some(Came::Done) {}
        assert_eq!((now, program.moved()), (HOUR + 2_700_000 + 60_000 + HOUR / 2, 20));
        assert_eq!(named(&mut program, now), [0, 1]);
    }

    #[test]
    fn whole_jobs_wait_for_all_data_and_can_switch_to_chunks() {
        let test = Test::new(4);
        let mut program = test.program();
        let mut now = 0;
        let whole = |servers: &[u32]| given(servers, &[]);
        // Two chunks for each server. The slower upload decides.
        test.start(&mut program, now, 1, whole(&[0, 1]));
        assert_eq!(program.moved(), 40);
        assert_eq!((next(&mut program, &mut now), now), (Some(Came::Started), 3 * HOUR + 60_000));
        // Another worker on server 0 needs a third chunk there, and joins after its upload.
        test.change(&mut program, now, whole(&[0, 1, 0]));
        assert_eq!((program.moved(), program.is_complete()), (50, false));
        let day = Span::seconds(86_400);
        assert_eq!(program.plan(Time(now), day), Some(Time(now + HOUR + 60_000)));
        now += HOUR;
        assert_eq!(program.plan(Time(now), day), Some(Time(now + 60_000)));
        assert_eq!(program.progress(), 0.5);
        // From now on by chunk, all on server 0. Half of each chunk is completed, and three chunks are there.
        assert!(!program.stop(Time(now)));
        assert_eq!(next(&mut program, &mut now), Some(Came::Saved));
        program.leave();
        let work: Vec<_> = (0..4).map(|chunk| (chunk % 2, if chunk < 2 { Running } else { Queued(0) })).collect();
        test.start(&mut program, now, 2, given(&[0, 0], &work));
        assert_eq!((program.moved(), program.progress()), (60, 0.5));
        assert_eq!(next(&mut program, &mut now), Some(Came::Started));
        let started = now;
        assert_eq!(next(&mut program, &mut now), Some(Came::Reported));
        assert_eq!((named(&mut program, now), now), (vec![0, 1], started + HOUR / 2));
    }

    #[test]
    fn other_speeds_are_shared_by_the_chunks_that_run() {
        let mut test = Test::new(2);
        test.sim.truth.speed = Speed::Steps(StepTime { per_step: 900.0, ..StepTime::ZERO });
        let mut program = test.program();
        let mut now = 0;
        test.start(&mut program, now, 1, given(&[0, 0], &[(0, Running), (1, Running)]));
        while next(&mut program, &mut now) != Some(Came::Done) {}
        assert_eq!(now, 3 * HOUR);
    }
}
