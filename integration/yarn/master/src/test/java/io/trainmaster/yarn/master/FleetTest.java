package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The whole life of a job without standalone mode. */
class FleetTest extends Scenario {
    FleetTest() {
        super(null);
    }

    @Test
    void withoutOrdersNothingHappens() {
        assertEquals("", step());
        assertEquals(Fleet.NEVER, fleet.wake());
    }

    @Test
    void everySlotIsRequestedOnItsNodeAndStartedWithItsContainer() {
        Orders orders = run(1, 0, slot(request(1, 0), A), slot(request(1, SERVER), B));
        assertEquals("ask 1/w0@a:1, ask 1/s0@b:1", follow(orders));
        assertEquals("", after(10_000), "one request only");
        assertEquals("withdraw 1/s0, launch 1/s0 in c1", allocated("c1", request(1, SERVER), B));
        assertEquals("withdraw 1/w0, launch 1/w0 in c2", allocated("c2", request(1, 0), A));
        assertEquals("", follow(orders));
    }

    @Test
    void unrequestedContainersAreGivenBack() {
        assertEquals("release early", allocated("early", request(1, 0), A));
        running();
        assertEquals("release surplus", allocated("surplus", request(1, 0), A));
        assertEquals("release stranger", allocated("stranger", 0, A));
        assertEquals("", exited("surplus", -100));
    }

    @Test
    void aContainerOfAMovedSlotIsGivenBack() {
        follow(run(1, 0, slot(request(1, 0), A)));
        assertEquals("withdraw 1/w0, ask 1/w0@b:1", follow(run(1, 1, slot(request(1, 0), B))));
        assertEquals("release late", allocated("late", request(1, 0), A));
        assertEquals("withdraw 1/w0, launch 1/w0 in c", allocated("c", request(1, 0), B));
    }

    @Test
    void theRequestOfADroppedSlotIsWithdrawn() {
        follow(run(1, 0, shape(1, 2)));
        assertEquals("withdraw 1/w1", follow(run(1, 1, shape(1, 1))));
        assertEquals("release late", allocated("late", request(1, 1), A));
    }

    @Test
    void aRevisionAddsAndDropsWorkersOnly() {
        running();
        assertEquals("ask 1/w2@a:1", follow(run(1, 1, shape(1, 3))));
        assertEquals("withdraw 1/w2, launch 1/w2 in w2", allocated("w2", request(1, 2), A));
        assertEquals("", follow(run(1, 2, shape(1, 1))), "two leave within the grace time");
        assertEquals(now + GRACE, fleet.wake());
        assertEquals("", exited("w1", 0));
        assertEquals("stop w2", after(GRACE));
        assertEquals("", exited("w2", 143));
        assertEquals("", after(100_000));
        assertEquals("", warned());
    }

    @Test
    void aContainerThatItsNodeDoesNotStopIsReleased() {
        running();
        follow(run(1, 1, shape(1, 1)));
        assertEquals("stop w1", after(GRACE));
        assertEquals("release w1", after(5000));
        assertEquals("", after(100_000));
    }

    @Test
    void aLeavingWorkerLeavesEvenIfItIsPlannedAgain() {
        running();
        follow(run(1, 1, shape(1, 1)));
        assertEquals("", follow(run(1, 2, shape(1, 2))));
        assertEquals("ask 1/w1@a:1", exited("w1", 0));
    }

    @Test
    void aSlotThatMovesWithinAnIncarnationLeavesFirst() {
        running();
        follow(run(1, 1, slot(request(1, SERVER), A), slot(request(1, 0), A), slot(request(1, 1), B)));
        assertEquals("ask 1/w1@b:1", exited("w1", 0));
    }

    @Test
    void aNewIncarnationGetsContainersEarlyAndStartsAfterTheOldOne() {
        running();
        assertEquals("ask 2/w0@a:1, ask 2/s0@a:1", follow(run(2, 0, shape(2, 1))));
        assertEquals("withdraw 2/s0", allocated("s'", request(2, SERVER), A));
        assertEquals("", exited("w0", 0));
        assertEquals("", exited("w1", 0));
        assertEquals("stop s", after(GRACE));
        assertEquals("launch 2/s0 in s'", exited("s", 143));
        assertEquals("withdraw 2/w0, launch 2/w0 in w0'", allocated("w0'", request(2, 0), A));
    }

    @Test
    void anUnusedContainerIsGivenBackAtOnce() {
        running();
        follow(run(2, 0, shape(2, 1)));
        allocated("w0'", request(2, 0), A);
        assertEquals("release w0', withdraw 2/s0", follow(orders(Standing.STANDING_WAIT, 2, 0).build()));
    }

    @Test
    void aWaitingJobHasNoContainers() {
        running();
        assertEquals("", follow(orders(Standing.STANDING_WAIT, 1, 0).build()));
        exited("s", 0);
        exited("w0", 0);
        assertEquals("stop w1", after(GRACE));
        assertEquals("", exited("w1", 137));
        assertEquals("", after(100_000), "the job isn't complete");
        assertEquals("ask 2/w0@a:1, ask 2/s0@a:1", follow(run(2, 0, shape(2, 1))));
    }

    @Test
    void aJobThatIsOverEndsAsOrdered() {
        running();
        follow(orders(Standing.STANDING_OVER, 1, 0).setReason("cancelled").build());
        exited("s", 0);
        exited("w0", 0);
        assertEquals("fail: cancelled", exited("w1", 0));
        assertEquals("", after(100_000), "it ends only once");
    }

    @Test
    void aJobThatIsOverBeforeItsStartEndsAtOnce() {
        assertEquals("fail: too dear", follow(orders(Standing.STANDING_OVER, 0, 0).setReason("too dear").build()));
    }

    @Test
    void aCompletedJobSucceedsAfterItsProgramsEnd() {
        running();
        follow(orders(Standing.STANDING_OVER, 1, 0).setReason("converged").setCompleted(true).build());
        exited("s", 0);
        exited("w0", 1);
        assertEquals("succeed: converged", exited("w1", 0));
    }

    @Test
    void aJobIsCompleteAfterAllProgramsSucceed() {
        running();
        assertEquals("", exited("s", 0));
        assertEquals("", exited("w0", 0));
        assertEquals("", exited("w1", 0));
        assertEquals(now + 500, fleet.wake());
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void laterOrdersCanExplainThatAllProgramsEnded() {
        running();
        exited("s", 0);
        exited("w0", 0);
        lost();
        exited("w1", 0);
        assertEquals("", after(60_000), "no orders can explain it now");
        assertEquals("ask 2/w0@a:1, ask 2/s0@a:1", follow(run(2, 0, shape(2, 1))));
    }

    @Test
    void aDoneSlotIsStartedAgainOnlyForANewerRevision() {
        running();
        assertEquals("", exited("w1", 0));
        assertEquals("", after(60_000));
        assertEquals("ask 1/w1@a:1", follow(run(1, 1, shape(1, 2))));
    }

    @Test
    void aFailedWorkerIsRestartedOnItsOwn() {
        running();
        assertEquals("ask 1/w0@a:1", exited("w0", 1));
        assertEquals("worker 0 ended with exit status 1 (the last line); failure 1 of 8, again after 500 ms", warned());
        assertEquals("withdraw 1/w0", allocated("w0'", request(1, 0), A));
        assertEquals(now + 500, fleet.wake());
        assertEquals("launch 1/w0 in w0'", after(500));
    }

    @Test
    void aFailedServerRestartsAllPrograms() {
        running();
        assertEquals("stop w0, stop w1, ask 1/s0@a:1", exited("s", 139));
        assertTrue(warned().endsWith(", with all of the job"));
        assertEquals("withdraw 1/s0", allocated("s'", request(1, SERVER), A));
        assertEquals("ask 1/w0@a:1", exited("w0", 41));
        assertEquals("withdraw 1/w0", allocated("w0'", request(1, 0), A));
        assertEquals("", after(5000 - 1), "the old programs end first");
        assertEquals("launch 1/w0 in w0', ask 1/w1@a:1, launch 1/s0 in s'", exited("w1", 143));
    }

    @Test
    void aProgramCanRequestARestartOfAll() {
        for (int status : new int[] {41, 42, 75}) {
            FleetTest test = new FleetTest();
            test.running();
            assertEquals("stop s, stop w1, ask 1/w0@a:1", test.exited("w0", status), "status " + status);
        }
    }

    @Test
    void aProgramCanReportThatARestartWontHelp() {
        running();
        assertEquals("stop s, stop w1", exited("w0", 44));
        exited("s", 143);
        String status = "worker 0 ended with exit status 44 (the last line)";
        assertEquals("fail: " + status + "; the program says that starting again won't help", exited("w1", 143));
    }

    @Test
    void invalidOrdersEndTheJob() {
        running();
        fleet.fail("a quote isn't closed");
        assertEquals("stop s, stop w0, stop w1", step());
        exited("s", 143);
        exited("w0", 143);
        assertEquals("fail: a quote isn't closed", exited("w1", 143));
    }

    @Test
    void delaysDoubleAndTheEighthFailureIsTheLast() {
        follow(run(1, 0, slot(request(1, 0), A)));
        for (int count = 1; count <= 7; count++) {
            allocated("c" + count, request(1, 0), A);
            after(30_000);
            exited("c" + count, 3);
            long delay = Math.min(250L << count, 30_000);
            assertTrue(warned().contains("failure " + count + " of 8, again after " + delay + " ms"));
        }
        allocated("c8", request(1, 0), A);
        after(30_000);
        String why = "worker 0 ended with exit status 3 (the last line); given up after 8 failures";
        assertEquals("fail: " + why, exited("c8", 3));
    }

    @Test
    void aSteadyRunResetsTheCount() {
        follow(run(1, 0, slot(request(1, 0), A)));
        for (int count = 1; count <= 20; count++) {
            allocated("c" + count, request(1, 0), A);
            after(500);
            after(60_000);
            assertEquals("ask 1/w0@a:1", exited("c" + count, 1));
        }
        assertTrue(warned().contains("failure 1 of 8"));
    }

    @Test
    void theCountButNotTheDelaySurvivesIncarnations() {
        running();
        exited("w0", 1);
        follow(run(2, 0, shape(2, 1)));
        exited("s", 0);
        exited("w1", 0);
        assertEquals("withdraw 2/w0, launch 2/w0 in w0'", allocated("w0'", request(2, 0), A));
        exited("w0'", 1);
        assertTrue(warned().contains("failure 2 of 8"));
    }

    @Test
    void aFailedStartCountsAsAFailure() {
        running();
        fleet.completed("w0", Exit.notStarted("no such node"), now);
        assertEquals("ask 1/w0@a:1", step());
        assertTrue(warned().startsWith("worker 0 could not be started (no such node); failure 1 of 8"));
    }

    @Test
    void lostWorkersAreRestartedUncounted() {
        for (int status : new int[] {-100, -101, -102, -105, -106, -108}) {
            FleetTest test = new FleetTest();
            test.running();
            assertEquals("ask 1/w0@a:1", test.exited("w0", status), "status " + status);
            String launched = test.allocated("w0'", request(1, 0), A);
            assertEquals("withdraw 1/w0, launch 1/w0 in w0'", launched, "without delay");
        }
    }

    @Test
    void aLostServerRestartsAllProgramsUncounted() {
        running();
        assertEquals("stop w0, stop w1, ask 1/s0@a:1", exited("s", -100));
        assertTrue(warned().endsWith("not counted as a failure"));
        exited("w0", 41);
        assertEquals("ask 1/w1@a:1", exited("w1", 143));
        assertEquals("withdraw 1/s0, launch 1/s0 in s'", allocated("s'", request(1, SERVER), A));
    }

    @Test
    void exceedingTheMemoryLimitIsAFailure() {
        running();
        exited("w0", -104);
        assertTrue(warned().contains("failure 1 of 8"));
    }

    @Test
    void aPreemptedProgramHasTheGraceTime() {
        running();
        fleet.preempting(List.of("w0", "w1", "unknown"), now);
        assertEquals("", step());
        assertEquals("ask 1/w0@a:1", exited("w0", 0), "while it is in the plan");
        assertEquals("stop w1", after(GRACE));
        assertEquals("ask 1/w1@a:1", exited("w1", -102));
        assertEquals("", warned());
    }

    @Test
    void aReleasedJobContinuesAndUsesAnyNode() {
        running();
        exited("w1", 1);
        Orders released = orders(Standing.STANDING_RELEASED, 1, 0).build();
        assertEquals("withdraw 1/w1, ask 1/w1", follow(released));
        assertEquals("withdraw 1/w1", allocated("w1'", request(1, 1), B));
        assertEquals("launch 1/w1 in w1'", after(500));
        assertEquals("", follow(released));
        SlotOrder[] asItRuns = {slot(request(1, SERVER), A), slot(request(1, 0), A), slot(request(1, 1), B)};
        assertEquals("", follow(run(1, 0, asItRuns)));
    }

    @Test
    void aReleasedJobWithoutProgramsWaits() {
        Orders released = orders(Standing.STANDING_RELEASED, 0, 0).build();
        assertEquals("", follow(released));
        assertEquals("", after(60_000));
        assertEquals("ask 1/w0@a:1", follow(run(1, 0, slot(request(1, 0), A))));
    }

    @Test
    void aReleasedJobKeepsItsRequests() {
        follow(run(1, 0, slot(request(1, 0), A)));
        assertEquals("withdraw 1/w0, ask 1/w0", follow(orders(Standing.STANDING_RELEASED, 1, 0).build()));
        assertEquals("withdraw 1/w0, launch 1/w0 in w0", allocated("w0", request(1, 0), B));
        exited("w0", 0);
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void aReleasedWaitingJobStillWaits() {
        running();
        follow(orders(Standing.STANDING_WAIT, 1, 0).build());
        assertEquals("", follow(orders(Standing.STANDING_RELEASED, 1, 0).build()));
        exited("s", 0);
        exited("w0", 0);
        assertEquals("", exited("w1", 0));
        assertEquals("", after(60_000));
    }

    @Test
    void aSuccessorAdoptsRunningPrograms() {
        assertEquals("", adopted(Map.of("s", request(1, SERVER), "w0", request(1, 0))));
        assertEquals("ask 1/w1@a:1", follow(run(1, 0, shape(1, 2))));
        assertEquals("stop s, ask 1/w0@a:1", exited("w0", 42));
    }

    @Test
    void aSuccessorEndsAnOlderIncarnation() {
        adopted(Map.of("s", request(1, SERVER)));
        follow(run(2, 0, slot(request(2, SERVER), A)));
        assertEquals("withdraw 2/s0", allocated("s'", request(2, SERVER), A));
        assertEquals("stop s", after(GRACE));
        assertEquals("launch 2/s0 in s'", exited("s", 143));
    }
}
