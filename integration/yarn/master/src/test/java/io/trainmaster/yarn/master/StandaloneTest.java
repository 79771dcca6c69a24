package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** A job without orders. In standalone mode, it has one server and one worker. */
class StandaloneTest extends Scenario {
    private static final int TTL = 3000;
    private static final int DEFAULT_TTL = 15_000;
    private static final long STANDALONE_SERVER = request(Standalone.INCARNATION, SERVER);
    private static final long STANDALONE_WORKER = request(Standalone.INCARNATION, 0);
    private static final String ASKED = "ask standalone/w0, ask standalone/s0";
    private static final String STARTED = "launch standalone/w0 in x0 & launch standalone/s0 in x";

    StandaloneTest() {
        super(orders(
                        Standing.STANDING_RUN,
                        (int) Standalone.INCARNATION,
                        0,
                        slot(STANDALONE_SERVER, ""),
                        slot(STANDALONE_WORKER, ""))
                .build());
    }

    private static Orders ordered(Orders.Builder orders) {
        return orders.setTtlMs(TTL).build();
    }

    private static Orders ran(int incarnation, int revision, SlotOrder... slots) {
        return ordered(orders(Standing.STANDING_RUN, incarnation, revision, slots));
    }

    private static Orders stand(Standing standing) {
        return ordered(orders(standing, 1, 0).setReason("some reason"));
    }

    /** The job runs as ordered in s, w0 and w1, since a minute ago. */
    private void trained() {
        follow(ran(1, 0, shape(1, 2)));
        allocated("s", request(1, SERVER), A);
        allocated("w0", request(1, 0), A);
        allocated("w1", request(1, 1), A);
        after(60_000);
    }

    /** The job trains in standalone mode, in x and x0. */
    private void standalone() {
        after(DEFAULT_TTL);
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("withdraw standalone/w0, " + STARTED, allocated("x0", STANDALONE_WORKER, B));
    }

    @Test
    void aJobThatNeverGetsOrdersEntersStandaloneMode() {
        assertEquals("", step());
        assertEquals(now + DEFAULT_TTL, fleet.wake());
        assertEquals("", after(DEFAULT_TTL - 1));
        assertEquals(ASKED, after(1));
        assertEquals("no orders for 15000 ms: entering standalone mode", warned());
        assertEquals("", lost(), "still without connection");
        assertEquals("withdraw standalone/s0", allocated("x", STANDALONE_SERVER, B));
        assertEquals(
                "standalone mode: 1 of 2 containers are allocated; the programs start with all of them", warned());
        assertEquals("", after(1_000_000), "without a limit");
        assertEquals("withdraw standalone/w0, " + STARTED, allocated("x0", STANDALONE_WORKER, A));
        assertEquals("", after(1_000_000));
    }

    @Test
    void aJobCanSetItsOwnWait() {
        Orders shape = orders(Standing.STANDING_RUN, 0, 0, slot(STANDALONE_WORKER, "")).setTtlMs(TTL).build();
        Fleet patient = new Fleet(Policy.DEFAULT, shape, now);
        patient.step(now);
        assertEquals(now + TTL, patient.wake());
    }

    @Test
    void aJobCompletesWithoutAnAdapter() {
        standalone();
        assertEquals("", exited("x", 0));
        assertEquals("", after(60_000));
        assertEquals("", exited("x0", 0));
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void aFailureRestartsAllPrograms() {
        standalone();
        assertEquals("stop x, ask standalone/w0", exited("x0", 1));
        assertTrue(warned().endsWith("failure 1 of 8, again after 500 ms, with all of the job"));
        assertEquals("ask standalone/s0", exited("x", 143));
        allocated("x", STANDALONE_SERVER, B);
        assertEquals("withdraw standalone/w0", allocated("x0", STANDALONE_WORKER, A));
        assertEquals(STARTED, after(500));
        assertEquals("stop x0, ask standalone/s0", exited("x", 98));
        assertTrue(warned().contains("server 0 ended with exit status 98 (the last line); failure 1 of 8"));
    }

    @Test
    void aLostContainerRestartsAllProgramsAtOnceUncounted() {
        standalone();
        assertEquals("stop x0, ask standalone/s0", exited("x", -100));
        assertTrue(warned().endsWith("not counted as a failure"));
        assertEquals("ask standalone/w0", exited("x0", 0));
        allocated("x", STANDALONE_SERVER, B);
        assertEquals("withdraw standalone/w0, " + STARTED, allocated("x0", STANDALONE_WORKER, A));
    }

    @Test
    void aPreemptionRestartsAllPrograms() {
        standalone();
        fleet.preempting(List.of("x0"), now);
        assertEquals("", step());
        assertEquals("stop x, ask standalone/w0", exited("x0", 0));
        assertEquals("ask standalone/s0", exited("x", 0));
    }

    @Test
    void theEighthFailureEndsTheJob() {
        after(DEFAULT_TTL);
        for (int count = 1; count <= 8; count++) {
            allocated("x", STANDALONE_SERVER, A);
            allocated("x0", STANDALONE_WORKER, A);
            after(30_000);
            exited("x0", 1);
            if (count < 8) {
                exited("x", 143);
                after(30_000);
            }
        }
        assertTrue(exited("x", 143).endsWith("given up after 8 failures"));
    }

    @Test
    void aContainerLostBeforeTheStartIsRequestedAgain() {
        after(DEFAULT_TTL);
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("ask standalone/s0", exited("x", -100));
        assertEquals("withdraw standalone/w0", allocated("x0", STANDALONE_WORKER, B));
        assertEquals("withdraw standalone/s0, " + STARTED, allocated("x", STANDALONE_SERVER, B));
    }

    @Test
    void aWaitingJobEntersStandaloneModeWhenItsOrdersExpire() {
        follow(stand(Standing.STANDING_WAIT));
        assertEquals("", after(1_000_000), "with a connection, orders don't expire");
        assertEquals("", lost());
        assertEquals(now + TTL, fleet.wake());
        assertEquals("", after(TTL - 1));
        assertEquals(ASKED, after(1));
    }

    @Test
    void eachConnectionRestartsTheWait() {
        follow(stand(Standing.STANDING_WAIT));
        for (int count = 0; count < 5; count++) {
            lost();
            assertEquals("", after(TTL - 1));
            assertEquals("", lost(), "still without connection");
            assertEquals("", follow(stand(Standing.STANDING_WAIT)));
        }
        lost();
        assertEquals(ASKED, after(TTL));
    }

    @Test
    void aTrainingJobContinues() {
        trained();
        lost();
        assertEquals("", after(1_000_000));
        assertEquals("", follow(ran(1, 0, shape(1, 2))));
    }

    @Test
    void aFailedProgramRestartsAsOrderedUntilTheOrdersExpire() {
        trained();
        lost();
        assertEquals("ask 1/w0@a:1", exited("w0", 1));
        assertEquals("stop s, stop w1, withdraw 1/w0, " + ASKED, after(TTL));
    }

    @Test
    void aFailureAfterTheOrdersExpiredStartsStandaloneMode() {
        for (int status : new int[] {1, 41, 43, -100}) {
            StandaloneTest test = new StandaloneTest();
            test.trained();
            test.lost();
            test.after(TTL);
            assertEquals("stop s, stop w1, " + ASKED, test.exited("w0", status), "status " + status);
            test.allocated("x", STANDALONE_SERVER, A);
            test.allocated("x0", STANDALONE_WORKER, A);
            test.exited("s", 0);
            assertEquals(STARTED, test.exited("w1", 0), "the old programs end first");
        }
    }

    @Test
    void aLostServerStartsStandaloneMode() {
        trained();
        lost();
        after(TTL);
        assertEquals("stop w0, stop w1, " + ASKED, exited("s", -100));
    }

    @Test
    void programsThatStartedTooLateToKnowEachOtherRestart() {
        running();
        follow(ran(1, 0, shape(1, 2)));
        after(1000);
        lost();
        assertEquals("stop s, stop w0, stop w1, " + ASKED, after(TTL));
    }

    @Test
    void anIncompleteGangStartsStandaloneMode() {
        follow(ran(1, 0, shape(1, 2)));
        allocated("s", request(1, SERVER), A);
        allocated("w0", request(1, 0), A);
        after(60_000);
        lost();
        assertEquals("stop s, stop w0, withdraw 1/w1, " + ASKED, after(TTL));
    }

    @Test
    void anIncompleteResizeStartsStandaloneMode() {
        trained();
        follow(ran(2, 0, shape(2, 2)));
        allocated("s'", request(2, SERVER), A);
        lost();
        exited("w0", 0);
        exited("w1", 0);
        assertEquals("stop s", after(GRACE));
        assertEquals("release s', withdraw 2/w0, withdraw 2/w1, " + ASKED, after(TTL - GRACE));
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("withdraw standalone/w0", allocated("x0", STANDALONE_WORKER, A));
        assertEquals(STARTED, exited("s", 143));
    }

    @Test
    void aResizeThatCompletedTooLateStartsStandaloneMode() {
        trained();
        follow(ran(2, 0, slot(request(2, SERVER), A)));
        lost();
        exited("w0", 0);
        exited("w1", 0);
        exited("s", 0);
        assertEquals("withdraw 2/s0, launch 2/s0 in s'", allocated("s'", request(2, SERVER), A));
        assertEquals("stop s', " + ASKED, after(TTL));
    }

    @Test
    void theJobTrainsWithoutAWorkerThatCameTooLate() {
        trained();
        follow(ran(1, 1, shape(1, 4)));
        allocated("w2", request(1, 2), A);
        lost();
        assertEquals("", after(TTL - 1));
        assertEquals("stop w2, withdraw 1/w3", after(1));
        assertEquals("", exited("w2", 143));
        assertEquals("", after(1_000_000), "the others train");
        assertEquals("ask 1/w2@a:1, ask 1/w3@a:1", follow(ran(1, 1, shape(1, 4))));
    }

    @Test
    void theJobTrainsWithoutADroppedWorker() {
        trained();
        follow(ran(1, 1, shape(1, 1)));
        lost();
        exited("w1", 0);
        assertEquals("", after(1_000_000));
    }

    @Test
    void aDoneJobWaitsForOrdersBeforeItCompletes() {
        trained();
        lost();
        exited("s", 0);
        exited("w0", 0);
        exited("w1", 0);
        assertEquals("", after(1_000_000));
        assertEquals("", follow(ran(1, 0, shape(1, 2))));
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void programsThatLeftForOrdersThatNeverCameWaitForThem() {
        trained();
        lost();
        exited("w0", 0);
        exited("w1", 0);
        exited("s", 0);
        assertEquals("", after(1_000_000), "they may be done, too");
        assertEquals("ask 2/w0@a:1, ask 2/s0@a:1", follow(ran(2, 0, shape(2, 1))));
    }

    @Test
    void aJobThatIsOverEndsWithoutConnection() {
        trained();
        follow(stand(Standing.STANDING_OVER));
        lost();
        assertEquals("stop s, stop w0, stop w1", after(TTL));
        exited("s", 0);
        exited("w0", 0);
        assertEquals("fail: some reason", exited("w1", 0));
    }

    @Test
    void ordersEndStandaloneModeAndStopTheProgramsAtOnce() {
        standalone();
        assertEquals("stop x, stop x0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
        assertEquals("withdraw 1/w0", allocated("w0", request(1, 0), A));
        exited("x", 0);
        assertEquals("launch 1/w0 in w0", exited("x0", 0));
    }

    @Test
    void ordersOfTheLeftIncarnationRestartIt() {
        trained();
        lost();
        after(TTL);
        exited("w0", 1);
        exited("s", 0);
        exited("w1", 0);
        allocated("x", STANDALONE_SERVER, A);
        allocated("x0", STANDALONE_WORKER, A);
        String asked = "ask 1/w0@a:1, ask 1/w1@a:1, ask 1/s0@a:1";
        assertEquals("stop x, stop x0, " + asked, follow(ran(1, 0, shape(1, 2))));
    }

    @Test
    void ordersBeforeAllContainersAreAllocatedGiveThemBack() {
        after(DEFAULT_TTL);
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("release x, withdraw standalone/w0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
        assertEquals("release late", allocated("late", STANDALONE_WORKER, A));
        assertEquals("", exited("x", -100));
    }

    @Test
    void ordersThatExpireBeforeAllContainersAreAllocated() {
        after(DEFAULT_TTL);
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("release x, withdraw standalone/w0", follow(stand(Standing.STANDING_WAIT)));
        lost();
        assertEquals("", after(TTL - 1));
        assertEquals(ASKED, after(1));
    }

    @Test
    void ordersThatExpireDuringTheStopRestartStandaloneMode() {
        standalone();
        assertEquals("stop x, stop x0", follow(stand(Standing.STANDING_WAIT)));
        lost();
        assertEquals("", after(TTL), "its programs have not ended");
        assertEquals("", exited("x", 0));
        assertEquals(ASKED, exited("x0", 0));
    }

    @Test
    void aStoppingJobReturnsToStandaloneModeWhenTheOrdersExpire() {
        standalone();
        follow(ran(1, 0, slot(request(1, 0), A)));
        lost();
        assertEquals("withdraw 1/w0", after(TTL), "the old programs end first");
        assertEquals("ask standalone/s0", exited("x", 0));
        allocated("x", STANDALONE_SERVER, A);
        assertEquals("ask standalone/w0", exited("x0", 0));
        assertEquals("withdraw standalone/w0, " + STARTED, allocated("x0", STANDALONE_WORKER, A));
    }

    @Test
    void ordersToWaitOrToEndGiveAllContainersBack() {
        for (Standing standing : List.of(Standing.STANDING_WAIT, Standing.STANDING_OVER)) {
            StandaloneTest test = new StandaloneTest();
            test.standalone();
            assertEquals("stop x, stop x0", test.follow(stand(standing)));
            test.exited("x", 0);
            String end = standing == Standing.STANDING_OVER ? "fail: some reason" : "";
            assertEquals(end, test.exited("x0", 0));
        }
    }

    @Test
    void aCompletedJobStopsAndSucceeds() {
        standalone();
        Orders over = stand(Standing.STANDING_OVER).toBuilder().setCompleted(true).build();
        assertEquals("stop x, stop x0", follow(over));
        exited("x", 0);
        assertEquals("succeed: some reason", exited("x0", 137));
    }

    @Test
    void aReleasedJobThatNeverRanEntersStandaloneModeAtOnce() {
        assertEquals(ASKED, follow(stand(Standing.STANDING_RELEASED)));
        allocated("x", STANDALONE_SERVER, A);
        allocated("x0", STANDALONE_WORKER, B);
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)), "it stays in this mode");
        exited("x", 0);
        exited("x0", 0);
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void aReleasedWaitingJobEntersStandaloneModeAfterItsProgramsEnd() {
        trained();
        follow(stand(Standing.STANDING_WAIT));
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        exited("s", 0);
        exited("w0", 0);
        assertEquals(ASKED, exited("w1", 0));
    }

    @Test
    void aReleasedRunningJobContinues() {
        trained();
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        assertEquals("ask 1/w0", exited("w0", 1));
    }

    @Test
    void aReleasedJobStaysInStandaloneMode() {
        standalone();
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        assertEquals("", lost());
        assertEquals("", after(1_000_000));
    }

    @Test
    void aSuccessorContinuesStandaloneMode() {
        assertEquals("", adopted(Map.of("x", STANDALONE_SERVER, "x0", STANDALONE_WORKER)));
        assertEquals("", after(1_000_000));
        assertEquals("stop x0, ask standalone/s0", exited("x", 1));
        assertEquals("ask standalone/w0", exited("x0", 0));
    }

    @Test
    void aSuccessorInStandaloneModeFollowsOrders() {
        adopted(Map.of("x", STANDALONE_SERVER, "x0", STANDALONE_WORKER));
        assertEquals("stop x, stop x0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
    }

    @Test
    void aSuccessorRestartsAnIncompleteGang() {
        assertEquals("stop x, ask standalone/w0", adopted(Map.of("x", STANDALONE_SERVER)));
        assertEquals("ask standalone/s0", exited("x", 0));
    }

    @Test
    void aSuccessorWithoutOrdersKeepsTrainingPrograms() {
        adopted(Map.of("s", request(1, SERVER), "w0", request(1, 0)));
        assertEquals("", after(1_000_000));
        assertEquals("stop s, " + ASKED, exited("w0", 1));
    }

    @Test
    void aSuccessorWithoutOrdersCompletesWithLaterOrders() {
        adopted(Map.of("s", request(1, SERVER), "w0", request(1, 0)));
        exited("w0", 0);
        exited("s", 0);
        follow(ran(1, 0, shape(1, 1)));
        assertEquals("succeed: all programs of the job have succeeded", after(500));
    }

    @Test
    void aSuccessorWithoutOrdersMayKnowOnlyAPart() {
        adopted(Map.of("w0", request(1, 0)));
        assertEquals("", after(1_000_000));
        assertEquals(ASKED, exited("w0", 0));
    }

    @Test
    void withoutStandaloneModeExpiredOrdersAllowAnyNode() {
        FleetTest test = new FleetTest();
        test.follow(ran(1, 0, shape(1, 1)));
        test.allocated("s", request(1, SERVER), A);
        test.lost();
        assertEquals("withdraw 1/w0, ask 1/w0", test.after(TTL));
        assertEquals("withdraw 1/w0, launch 1/w0 in w0", test.allocated("w0", request(1, 0), B));
    }

    @Test
    void theVariableIsOrdersInBase64() {
        assertNull(Standalone.parse(null));
        Orders orders = orders(Standing.STANDING_RUN, 0, 0, slot(STANDALONE_WORKER, A)).build();
        Orders parsed = Standalone.parse(Base64.getEncoder().encodeToString(orders.toByteArray()));
        assertEquals(Standalone.INCARNATION, parsed.getIncarnation());
        assertEquals("", parsed.getSlots(0).getNode() + parsed.getSlots(0).getNodeName());
        assertThrows(IllegalArgumentException.class, () -> Standalone.parse("{"));
        assertThrows(IllegalArgumentException.class, () -> Standalone.parse("AAAA"));
        Orders none = orders.toBuilder().clearSlots().build();
        String text = Base64.getEncoder().encodeToString(none.toByteArray());
        assertThrows(IllegalArgumentException.class, () -> Standalone.parse(text));
        Orders other = orders(Standing.STANDING_RUN, 0, 0, slot(request(2, 0), A)).build();
        String ordinary = Base64.getEncoder().encodeToString(other.toByteArray());
        assertThrows(IllegalArgumentException.class, () -> Standalone.parse(ordinary));
    }
}
