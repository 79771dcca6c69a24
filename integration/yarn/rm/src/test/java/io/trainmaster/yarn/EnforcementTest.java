package io.trainmaster.yarn;

import static io.trainmaster.yarn.Lab.TTL;
import static io.trainmaster.yarn.Lab.run;
import static io.trainmaster.yarn.Lab.slot;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Action;
import io.trainmaster.yarn.v1.ApplicationPlan;
import io.trainmaster.yarn.v1.Plan;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.apache.hadoop.yarn.server.resourcemanager.MockRM;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Enforcement of plans in a cluster. */
class EnforcementTest {
    private Lab lab;
    private MockNM a;
    private MockNM b;
    private MockNM c;

    @BeforeEach
    void start() throws Exception {
        start(Map.of());
    }

    private void start(Map<String, String> settings) throws Exception {
        lab = new Lab(settings);
        a = lab.node("a", 4096);
        b = lab.node("b", 4096);
        c = lab.node("c", 4096);
    }

    @AfterEach
    void stop() throws Exception {
        lab.close();
    }

    @Test
    void everySlotGetsOneContainerOnItsNode() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, c), slot(2, b)));
        lab.ask(job, 1, 512, 3);
        lab.ask(job, 2, 512, 1);
        lab.obtain(job, 3, 512, 2);
        assertEquals(Map.of(1L, List.of("c"), 2L, List.of("b")), lab.placed(job));
    }

    @Test
    void withoutAPlanNothingIsRestricted() throws Exception {
        MockAM job = lab.job(a);
        lab.obtain(job, 1, 512, 3);
        assertEquals(3, lab.placed(job).get(1L).size());
    }

    @Test
    void aSlotIsFreeAfterItsContainersEnd() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, c)));
        lab.obtain(job, 1, 512, 2);
        var container = lab.container(job);
        job.allocate(List.of(), List.of(container.getContainerId()));
        lab.round();
        lab.beat();
        assertEquals(Map.of(1L, List.of("c")), lab.placed(job));
        assertFalse(lab.scheduled(job).getLiveContainers().contains(container));
    }

    @Test
    void anApplicationMasterStartsWhileItsJobIsHeld() throws Exception {
        RMApp app = lab.submit(lab.submission(Jobs.TYPE, ""));
        ApplicationPlan.Builder hold = ApplicationPlan.newBuilder()
                .setId(app.getApplicationId().toString())
                .setAction(Action.ACTION_HOLD);
        lab.enforce(hold);
        MockAM job = MockRM.launchAndRegisterAM(app, lab.rm, a);
        lab.obtain(job, 1, 512, 1);
        assertEquals(Map.of(), lab.placed(job));
        lab.enforce(hold.setAction(Action.ACTION_RELEASE));
        lab.beat();
        assertEquals(1, lab.placed(job).get(1L).size());
    }

    @Test
    void aJobOutsideTheSnapshotWaits() throws Exception {
        lab.plan(TTL);
        lab.round();
        MockAM job = lab.job(a);
        lab.obtain(job, 1, 512, 1);
        assertEquals(Map.of(), lab.placed(job));
        // The sidecar knows the job now, and has no plan for it.
        lab.round();
        lab.beat();
        assertEquals(1, lab.placed(job).get(1L).size());
    }

    @Test
    void otherApplicationsAreUnaffected() throws Exception {
        MockAM job = lab.job(a);
        MockAM other = lab.other(b);
        lab.plan(
                TTL,
                run(job).build(),
                run(other).build(),
                run(other).setAction(Action.ACTION_KILL).build());
        lab.round();
        lab.obtain(other, 1, 512, 3);
        assertEquals(3, lab.placed(other).get(1L).size());
        lab.round();
        lab.pass(1);
        lab.round();
        assertEquals(3, lab.placed(other).get(1L).size());
        assertEquals(RMAppState.RUNNING, lab.app(other).getState());
    }

    @Test
    void shrinkingMarksThenKillsAfterTheGrace() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b), slot(2, c)));
        lab.ask(job, 1, 512, 1);
        lab.obtain(job, 2, 512, 1);
        job.doHeartbeat();
        lab.enforce(run(job, slot(1, b)).setGraceMs(3000));
        PreemptionMessage message = job.doHeartbeat().getPreemptionMessage();
        assertEquals(1, message.getContract().getContainers().size());
        lab.pass(2999);
        lab.round();
        assertEquals(Map.of(1L, List.of("b"), 2L, List.of("c")), lab.placed(job));
        lab.pass(1);
        lab.round();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
        assertEquals(List.of(ContainerExitStatus.PREEMPTED), lab.exits(job));
        assertEquals(-102, ContainerExitStatus.PREEMPTED);
    }

    @Test
    void aContainerThatIsPlannedAgainStays() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 512, 1);
        lab.enforce(run(job).setGraceMs(3000));
        lab.pass(2000);
        lab.enforce(run(job, slot(1, b)).setGraceMs(3000));
        lab.enforce(run(job).setGraceMs(3000));
        lab.pass(2000);
        lab.round();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
    }

    @Test
    void aMovedSlotGetsAContainerOnItsNewNode() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 512, 1);
        job.doHeartbeat();
        lab.enforce(run(job, slot(1, c)));
        lab.obtain(job, 1, 512, 1);
        assertEquals(Map.of(1L, List.of("c")), lab.placed(job));
    }

    @Test
    void anExpiredPlanKillsNothingAndALaterOneGivesTheWholeGrace() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 512, 1);
        lab.plan(1000, run(job).setGraceMs(3000).build());
        lab.round();
        lab.sidecar.stop();
        lab.pass(60_000);
        lab.round();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
        lab.plan(TTL, run(job).setGraceMs(3000).build());
        lab.restart();
        lab.pass(2999);
        lab.round();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
        lab.pass(1);
        lab.round();
        assertEquals(Map.of(), lab.placed(job));
    }

    @Test
    void afterItsTtlSchedulingIsStock() throws Exception {
        MockAM job = lab.job(a);
        lab.plan(5000, run(job, slot(1, b)).build());
        lab.round();
        lab.sidecar.stop();
        lab.ask(job, 2, 512, 2);
        lab.pass(4999);
        lab.round();
        lab.beat();
        assertEquals(Map.of(), lab.placed(job));
        lab.pass(1);
        lab.beat();
        assertEquals(2, lab.placed(job).get(2L).size());
    }

    @Test
    void droppedReservationsFreeTheirNode() throws Exception {
        MockAM other = lab.other(b);
        lab.ask(other, 9, 3584, 1);
        lab.beat(b);
        assertEquals(Map.of(9L, List.of("b")), lab.placed(other));
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 1024, 1);
        assertEquals(1, lab.scheduled(job).getReservedContainers().size());
        lab.round();
        assertEquals(1, lab.scheduled(job).getReservedContainers().size(), "a planned reservation stays");
        lab.enforce(run(job));
        assertEquals(0, lab.scheduled(job).getReservedContainers().size());
        lab.beat();
        assertEquals(0, lab.scheduled(job).getReservedContainers().size(), "it does not return");
    }

    @Test
    void aReservationIsNotFulfilledAgainstThePlan() throws Exception {
        MockAM other = lab.other(b);
        lab.ask(other, 9, 3584, 1);
        lab.beat(b);
        MockAM job = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 1024, 1);
        assertEquals(1, lab.scheduled(job).getReservedContainers().size());
        // The plan changes after the review of reservations, and the room becomes free before the next review.
        PlanHolder.of(lab.rm.getRMContext())
                .publish(new PlanInForce(
                        new EnforceablePlan(
                                1,
                                9,
                                TTL,
                                Set.of(lab.id(job)),
                                Map.of(
                                        lab.id(job),
                                        new EnforceablePlan.Run(
                                                Map.of(), Set.of(), 0, OptionalInt.empty()))),
                        lab.nanos::get));
        var ended = lab.container(other);
        other.allocate(List.of(), List.of(ended.getContainerId()));
        lab.beat();
        assertEquals(Map.of(), lab.placed(job));
    }

    @Test
    void asynchronousSchedulingFollowsThePlan() throws Exception {
        lab.close();
        // YARN passes over nodes whose last heartbeat is two intervals old. These send none.
        start(Map.of(
                "yarn.scheduler.capacity.schedule-asynchronously.enable", "true",
                "yarn.scheduler.capacity.schedule-asynchronously.scheduling-interval-ms", "5",
                "yarn.scheduler.skip.node.multiplier", "100000"));
        RMApp app = lab.submit(lab.submission(Jobs.TYPE, ""));
        MockAM job = MockRM.launchAMWhenAsyncSchedulingEnabled(app, lab.rm);
        job.registerAppAttempt();
        lab.enforce(run(job, slot(1, c), slot(2, b)));
        lab.ask(job, 1, 512, 3);
        lab.ask(job, 2, 512, 1);
        lab.ask(job, 3, 512, 2);
        Waiting.until(() -> lab.placed(job).size() == 2);
        MockAM other = MockRM.launchAMWhenAsyncSchedulingEnabled(lab.submit(lab.submission("OTHER", "")), lab.rm);
        other.registerAppAttempt();
        lab.ask(other, 1, 512, 3);
        // By then, the scheduler has gone over all requests many times.
        Waiting.until(() -> lab.placed(other).getOrDefault(1L, List.of()).size() == 3);
        assertEquals(Map.of(1L, List.of("c"), 2L, List.of("b")), lab.placed(job));
    }

    @Test
    void invalidPartsOfAPlanAreIgnored() throws Exception {
        MockAM job = lab.job(a);
        MockAM sound = lab.job(a);
        lab.enforce(run(job, slot(1, b)));
        lab.obtain(job, 1, 512, 1);
        long before = BridgeMetrics.get().partsIgnored.value();
        lab.plan(
                TTL,
                ApplicationPlan.newBuilder()
                        .setId("application_1_0001")
                        .setAction(Action.ACTION_KILL)
                        .build(),
                ApplicationPlan.newBuilder().setId("rubbish").build(),
                run(job, slot(1, "nowhere:1"), slot(2, "rubbish")).build(),
                run(sound, slot(1, c)).build());
        lab.ask(job, 2, 512, 1);
        lab.ask(sound, 1, 512, 1);
        lab.round();
        lab.pass(1);
        lab.round();
        lab.beat();
        assertEquals(before + 2 * 4, BridgeMetrics.get().partsIgnored.value());
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job), "it keeps its container and gets no more");
        assertEquals(Map.of(1L, List.of("c")), lab.placed(sound));
    }

    @Test
    void slotsBeyondANodesCapacityAreIgnored() throws Exception {
        MockAM job = lab.job(a);
        lab.ask(job, 1, 3072, 1);
        lab.ask(job, 2, 3072, 1);
        lab.enforce(run(job, slot(1, b), slot(2, b)));
        lab.beat();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
        assertEquals(0, lab.scheduled(job).getReservedContainers().size(), "no reservation that blocks the node");
    }

    @Test
    void anOlderPlanIsIgnored() throws Exception {
        MockAM job = lab.job(a);
        lab.plan(TTL, run(job, slot(1, b)).build());
        Plan newer = lab.sidecar.planner.apply(null);
        lab.round();
        long before = BridgeMetrics.get().failed(Failure.OUTDATED).value();
        for (Plan.Builder older :
                List.of(newer.toBuilder().setTerm(0).setNumber(7), newer.toBuilder().setNumber(0))) {
            lab.sidecar.planner = cluster -> older.clearApplications()
                    .addApplications(run(job, slot(1, c)))
                    .build();
            lab.round();
        }
        lab.obtain(job, 1, 512, 1);
        assertEquals(Map.of(1L, List.of("b")), lab.placed(job));
        assertEquals(before + 2, BridgeMetrics.get().failed(Failure.OUTDATED).value());
        assertEquals(newer.getNumber(), lab.sidecar.lastSnapshot().getEnforced());
        // No plan is in force any more, and the restarted sidecar begins with a lower number.
        lab.pass(TTL);
        lab.round();
        assertEquals(0, lab.sidecar.lastSnapshot().getEnforced());
        lab.round();
        assertEquals(0, lab.sidecar.lastSnapshot().getEnforced(), "its number");
        assertTrue(PlanHolder.of(lab.rm.getRMContext()).current() != null);
    }

    @Test
    void prioritiesAreLimitedToTheClustersMaximum() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job).setPriority(7));
        assertEquals(7, lab.app(job).getApplicationPriority().getPriority());
        lab.plan(TTL, run(job).setPriority(7000).build());
        long before = BridgeMetrics.get().prioritiesSet.value();
        lab.round();
        lab.round();
        assertEquals(10, lab.app(job).getApplicationPriority().getPriority());
        assertEquals(before + 1, BridgeMetrics.get().prioritiesSet.value());
        lab.enforce(run(job));
        assertEquals(10, lab.app(job).getApplicationPriority().getPriority());
    }

    /** Makes two waiting jobs. Once the first job ends, there is room for one more ApplicationMaster. */
    private List<RMApp> waitingJobs(String mostPriority) throws Exception {
        lab.close();
        start(Map.of(
                "yarn.scheduler.capacity.maximum-am-resource-percent", "0.02",
                YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, mostPriority));
        MockAM running = lab.job(a);
        RMApp earlier = lab.submit(lab.submission(Jobs.TYPE, ""));
        RMApp later = lab.submit(lab.submission(Jobs.TYPE, ""));
        lab.beat();
        lab.plan(TTL, order(lab.app(running), 1), order(earlier, 0), order(later, 1));
        lab.round();
        lab.round();
        lab.rm.killApp(lab.id(running));
        lab.rm.waitForState(lab.id(running), RMAppState.KILLED);
        lab.beat();
        return List.of(earlier, later);
    }

    private static ApplicationPlan order(RMApp app, int priority) {
        return ApplicationPlan.newBuilder()
                .setId(app.getApplicationId().toString())
                .setAction(Action.ACTION_HOLD)
                .setPriority(priority)
                .build();
    }

    private static boolean hasMaster(RMApp app) {
        return app.getCurrentAppAttempt().getMasterContainer() != null;
    }

    @Test
    void theWaitingJobWithTheHighestPriorityStartsFirst() throws Exception {
        List<RMApp> jobs = waitingJobs("10");
        assertEquals(List.of(false, true), jobs.stream().map(EnforcementTest::hasMaster).toList());
    }

    @Test
    void withoutPrioritiesTheEarliestJobStartsFirst() throws Exception {
        long before = BridgeMetrics.get().partsIgnored.value();
        List<RMApp> jobs = waitingJobs("0");
        assertEquals(List.of(true, false), jobs.stream().map(EnforcementTest::hasMaster).toList());
        assertEquals(before, BridgeMetrics.get().partsIgnored.value());
    }

    @Test
    void anInternalErrorLeavesPlacementsUnrestricted() throws Exception {
        MockAM job = lab.job(a);
        AtomicBoolean broken = new AtomicBoolean();
        PlanHolder.of(lab.rm.getRMContext())
                .publish(new PlanInForce(
                        new EnforceablePlan(1, 1, TTL, Set.of(), Map.of()),
                        () -> broken.get() ? Odd.fail() : lab.nanos.get()));
        lab.obtain(job, 1, 512, 1);
        assertEquals(Map.of(), lab.placed(job));
        broken.set(true);
        lab.beat();
        assertEquals(1, lab.placed(job).get(1L).size());
    }

    @Test
    void anUnreadableApplicationGetsAndLosesNothing() throws Exception {
        MockAM odd = lab.job(a);
        MockAM sound = lab.job(a);
        lab.enforce(run(odd, slot(1, b)));
        lab.obtain(odd, 1, 512, 1);
        lab.ask(odd, 1, 512, 1);
        lab.ask(sound, 1, 512, 1);
        RMApp app = lab.app(odd);
        lab.rm.getRMContext()
                .getRMApps()
                .put(lab.id(odd), Odd.like(RMApp.class, app, Map.of("getCurrentAppAttempt", Odd::fail)));
        lab.plan(TTL, run(odd, slot(1, c)).build(), run(sound, slot(1, b)).build());
        lab.round();
        lab.pass(1);
        lab.round();
        lab.beat();
        assertEquals(Map.of(1L, List.of("b")), lab.placed(odd));
        assertEquals(Map.of(1L, List.of("b")), lab.placed(sound));
    }

    @Test
    void anApplicationIsKilledWithTheReason() throws Exception {
        MockAM job = lab.job(a);
        lab.enforce(run(job).setAction(Action.ACTION_KILL).setReason("it can't reach its deadline"));
        lab.rm.waitForState(lab.id(job), RMAppState.KILLED);
        assertTrue(
                lab.app(job).getDiagnostics().toString().contains("it can't reach its deadline"),
                lab.app(job).getDiagnostics().toString());
    }
}
