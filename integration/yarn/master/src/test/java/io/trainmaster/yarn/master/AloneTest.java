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

/** A job that nobody gives orders, of one server and one worker if it goes on alone. */
class AloneTest extends Scenario {
    private static final int TTL = 3000;
    private static final int DEFAULT_TTL = 15_000;
    private static final long ALONE_SERVER = request(Alone.INCARNATION, SERVER);
    private static final long ALONE_WORKER = request(Alone.INCARNATION, 0);
    private static final String ASKED = "ask alone/w0, ask alone/s0";
    private static final String STARTED = "launch alone/w0 in x0 & launch alone/s0 in x";

    AloneTest() {
        super(orders(
                        Standing.STANDING_RUN,
                        (int) Alone.INCARNATION,
                        0,
                        slot(ALONE_SERVER, ""),
                        slot(ALONE_WORKER, ""))
                .build());
    }

    private static Orders ordered(Orders.Builder orders) {
        return orders.setTtlMs(TTL).build();
    }

    private static Orders ran(int incarnation, int revision, SlotOrder... slots) {
        return ordered(orders(Standing.STANDING_RUN, incarnation, revision, slots));
    }

    private static Orders stand(Standing standing) {
        return ordered(orders(standing, 1, 0).setReason("so it is"));
    }

    /** It runs as ordered, in s, w0 and w1, and has for a minute. */
    private void trained() {
        follow(ran(1, 0, shape(1, 2)));
        allocated("s", request(1, SERVER), A);
        allocated("w0", request(1, 0), A);
        allocated("w1", request(1, 1), A);
        after(60_000);
    }

    /** It trains alone, in x and x0. */
    private void alone() {
        after(DEFAULT_TTL);
        allocated("x", ALONE_SERVER, A);
        assertEquals("withdraw alone/w0, " + STARTED, allocated("x0", ALONE_WORKER, B));
    }

    @Test
    void aJobThatNeverHeardOfAnAdapterGoesOnAlone() {
        assertEquals("", step());
        assertEquals(now + DEFAULT_TTL, fleet.wake());
        assertEquals("", after(DEFAULT_TTL - 1));
        assertEquals(ASKED, after(1));
        assertEquals("no orders for 15000 ms: going on alone", warned());
        assertEquals("", lost(), "it is heard of as little as before");
        assertEquals("withdraw alone/s0", allocated("x", ALONE_SERVER, B));
        assertEquals("alone, with 1 of 2 containers: the programs start once all are there", warned());
        assertEquals("", after(1_000_000), "as long as it takes");
        assertEquals("withdraw alone/w0, " + STARTED, allocated("x0", ALONE_WORKER, A));
        assertEquals("", after(1_000_000));
    }

    @Test
    void itMaySayItselfHowLongItWaits() {
        Orders shape = orders(Standing.STANDING_RUN, 0, 0, slot(ALONE_WORKER, "")).setTtlMs(TTL).build();
        Fleet patient = new Fleet(Policy.DEFAULT, shape, now);
        patient.step(now);
        assertEquals(now + TTL, patient.wake());
    }

    @Test
    void itIsCompleteWithoutAnAdapter() {
        alone();
        assertEquals("", exited("x", 0));
        assertEquals("", after(60_000));
        assertEquals("", exited("x0", 0));
        assertEquals("succeed: all of its programs are done", after(500));
    }

    @Test
    void aFailureRestartsAllOfIt() {
        alone();
        assertEquals("stop x, ask alone/w0", exited("x0", 1));
        assertTrue(warned().endsWith("failure 1 of 8, again after 500 ms, with all of the job"));
        assertEquals("ask alone/s0", exited("x", 143));
        allocated("x", ALONE_SERVER, B);
        assertEquals("withdraw alone/w0", allocated("x0", ALONE_WORKER, A));
        assertEquals(STARTED, after(500));
        assertEquals("stop x0, ask alone/s0", exited("x", 98));
        assertTrue(warned().contains("server 0 ended with exit status 98 (the last line); failure 1 of 8"));
    }

    @Test
    void whatIsLostRestartsAllOfItUncountedAtOnce() {
        alone();
        assertEquals("stop x0, ask alone/s0", exited("x", -100));
        assertTrue(warned().endsWith("that isn't counted"));
        assertEquals("ask alone/w0", exited("x0", 0));
        allocated("x", ALONE_SERVER, B);
        assertEquals("withdraw alone/w0, " + STARTED, allocated("x0", ALONE_WORKER, A));
    }

    @Test
    void whoIsPreemptedRestartsAllOfIt() {
        alone();
        fleet.preempting(List.of("x0"), now);
        assertEquals("", step());
        assertEquals("stop x, ask alone/w0", exited("x0", 0));
        assertEquals("ask alone/s0", exited("x", 0));
    }

    @Test
    void eightFailuresAreTheEnd() {
        after(DEFAULT_TTL);
        for (int count = 1; count <= 8; count++) {
            allocated("x", ALONE_SERVER, A);
            allocated("x0", ALONE_WORKER, A);
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
    void aGangWhoseContainerIsLostBeforeItStartsAsksAgain() {
        after(DEFAULT_TTL);
        allocated("x", ALONE_SERVER, A);
        assertEquals("ask alone/s0", exited("x", -100));
        assertEquals("withdraw alone/w0", allocated("x0", ALONE_WORKER, B));
        assertEquals("withdraw alone/s0, " + STARTED, allocated("x", ALONE_SERVER, B));
    }

    @Test
    void aJobThatWaitsGoesOnAloneOnceItsOrdersAreOutOfDate() {
        follow(stand(Standing.STANDING_WAIT));
        assertEquals("", after(1_000_000), "they are not while the adapter is heard");
        assertEquals("", lost());
        assertEquals(now + TTL, fleet.wake());
        assertEquals("", after(TTL - 1));
        assertEquals(ASKED, after(1));
    }

    @Test
    void aConnectionThatComesAndGoesBeginsTheWaitAnew() {
        follow(stand(Standing.STANDING_WAIT));
        for (int count = 0; count < 5; count++) {
            lost();
            assertEquals("", after(TTL - 1));
            assertEquals("", lost(), "still away");
            assertEquals("", follow(stand(Standing.STANDING_WAIT)));
        }
        lost();
        assertEquals(ASKED, after(TTL));
    }

    @Test
    void aJobThatTrainsGoesOnTraining() {
        trained();
        lost();
        assertEquals("", after(1_000_000));
        assertEquals("", follow(ran(1, 0, shape(1, 2))));
    }

    @Test
    void aFailureMeanwhileIsMendedAsOrderedUntilTheOrdersAreOutOfDate() {
        trained();
        lost();
        assertEquals("ask 1/w0@a:1", exited("w0", 1));
        assertEquals("stop s, stop w1, withdraw 1/w0, " + ASKED, after(TTL));
    }

    @Test
    void aFailureOnceTheyAreOutOfDateStartsItAlone() {
        for (int status : new int[] {1, 41, 43, -100}) {
            AloneTest test = new AloneTest();
            test.trained();
            test.lost();
            test.after(TTL);
            assertEquals("stop s, stop w1, " + ASKED, test.exited("w0", status), "status " + status);
            test.allocated("x", ALONE_SERVER, A);
            test.allocated("x0", ALONE_WORKER, A);
            test.exited("s", 0);
            assertEquals(STARTED, test.exited("w1", 0), "the old ones are gone first");
        }
    }

    @Test
    void aLostServerStartsItAlone() {
        trained();
        lost();
        after(TTL);
        assertEquals("stop w0, stop w1, " + ASKED, exited("s", -100));
    }

    @Test
    void programsThatStartedTooLateToLearnOfEachOtherStartAgain() {
        running();
        follow(ran(1, 0, shape(1, 2)));
        after(1000);
        lost();
        assertEquals("stop s, stop w0, stop w1, " + ASKED, after(TTL));
    }

    @Test
    void aGangThatIsNotCompleteStartsAlone() {
        follow(ran(1, 0, shape(1, 2)));
        allocated("s", request(1, SERVER), A);
        allocated("w0", request(1, 0), A);
        after(60_000);
        lost();
        assertEquals("stop s, stop w0, withdraw 1/w1, " + ASKED, after(TTL));
    }

    @Test
    void aResizeThatNobodyCanCompleteStartsAlone() {
        trained();
        follow(ran(2, 0, shape(2, 2)));
        allocated("s'", request(2, SERVER), A);
        lost();
        exited("w0", 0);
        exited("w1", 0);
        assertEquals("stop s", after(GRACE));
        assertEquals("release s', withdraw 2/w0, withdraw 2/w1, " + ASKED, after(TTL - GRACE));
        allocated("x", ALONE_SERVER, A);
        assertEquals("withdraw alone/w0", allocated("x0", ALONE_WORKER, A));
        assertEquals(STARTED, exited("s", 143));
    }

    @Test
    void aResizeThatWasCompleteTooLateStartsAlone() {
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
    void aWorkerThatCameTooLateIsDoneWithout() {
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
    void aWorkerThatWasDroppedIsDoneWithout() {
        trained();
        follow(ran(1, 1, shape(1, 1)));
        lost();
        exited("w1", 0);
        assertEquals("", after(1_000_000));
    }

    @Test
    void aJobWhoseProgramsAreDoneWaitsForSomebodyToSaySo() {
        trained();
        lost();
        exited("s", 0);
        exited("w0", 0);
        exited("w1", 0);
        assertEquals("", after(1_000_000));
        assertEquals("", follow(ran(1, 0, shape(1, 2))));
        assertEquals("succeed: all of its programs are done", after(500));
    }

    @Test
    void aJobThatIsToEndEnds() {
        trained();
        follow(stand(Standing.STANDING_OVER));
        lost();
        assertEquals("stop s, stop w0, stop w1", after(TTL));
        exited("s", 0);
        exited("w0", 0);
        assertEquals("fail: so it is", exited("w1", 0));
    }

    @Test
    void ordersEndItAndTheProgramsStopAtOnceSinceNobodyTellsThem() {
        alone();
        assertEquals("stop x, stop x0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
        assertEquals("withdraw 1/w0", allocated("w0", request(1, 0), A));
        exited("x", 0);
        assertEquals("launch 1/w0 in w0", exited("x0", 0));
    }

    @Test
    void ordersOfTheIncarnationThatItLeftBeginItAgain() {
        trained();
        lost();
        after(TTL);
        exited("w0", 1);
        exited("s", 0);
        exited("w1", 0);
        allocated("x", ALONE_SERVER, A);
        allocated("x0", ALONE_WORKER, A);
        String asked = "ask 1/w0@a:1, ask 1/w1@a:1, ask 1/s0@a:1";
        assertEquals("stop x, stop x0, " + asked, follow(ran(1, 0, shape(1, 2))));
    }

    @Test
    void ordersThatComeWhileContainersAreHalfThereGiveThemBack() {
        after(DEFAULT_TTL);
        allocated("x", ALONE_SERVER, A);
        assertEquals("release x, withdraw alone/w0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
        assertEquals("release late", allocated("late", ALONE_WORKER, A));
        assertEquals("", exited("x", -100));
    }

    @Test
    void ordersThatComeAndGoWhileContainersAreHalfThere() {
        after(DEFAULT_TTL);
        allocated("x", ALONE_SERVER, A);
        assertEquals("release x, withdraw alone/w0", follow(stand(Standing.STANDING_WAIT)));
        lost();
        assertEquals("", after(TTL - 1));
        assertEquals(ASKED, after(1));
    }

    @Test
    void ordersThatComeAndGoWhileItStopsBeginItAgain() {
        alone();
        assertEquals("stop x, stop x0", follow(stand(Standing.STANDING_WAIT)));
        lost();
        assertEquals("", after(TTL), "its programs are still there");
        assertEquals("", exited("x", 0));
        assertEquals(ASKED, exited("x0", 0));
    }

    @Test
    void aJobThatLeavesForOrdersGoesOnAloneWhenThoseAreOutOfDate() {
        alone();
        follow(ran(1, 0, slot(request(1, 0), A)));
        lost();
        assertEquals("withdraw 1/w0", after(TTL), "the old ones are gone first");
        assertEquals("ask alone/s0", exited("x", 0));
        allocated("x", ALONE_SERVER, A);
        assertEquals("ask alone/w0", exited("x0", 0));
        assertEquals("withdraw alone/w0, " + STARTED, allocated("x0", ALONE_WORKER, A));
    }

    @Test
    void ordersToWaitOrEndGiveAllBack() {
        for (Standing standing : List.of(Standing.STANDING_WAIT, Standing.STANDING_OVER)) {
            AloneTest test = new AloneTest();
            test.alone();
            assertEquals("stop x, stop x0", test.follow(stand(standing)));
            test.exited("x", 0);
            String end = standing == Standing.STANDING_OVER ? "fail: so it is" : "";
            assertEquals(end, test.exited("x0", 0));
        }
    }

    @Test
    void aJobThatIsCalledCompleteStopsAndSucceeds() {
        alone();
        Orders over = stand(Standing.STANDING_OVER).toBuilder().setCompleted(true).build();
        assertEquals("stop x, stop x0", follow(over));
        exited("x", 0);
        assertEquals("succeed: so it is", exited("x0", 137));
    }

    @Test
    void aReleasedJobThatNeverRanGoesOnAloneAtOnce() {
        assertEquals(ASKED, follow(stand(Standing.STANDING_RELEASED)));
        allocated("x", ALONE_SERVER, A);
        allocated("x0", ALONE_WORKER, B);
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)), "and stays so");
        exited("x", 0);
        exited("x0", 0);
        assertEquals("succeed: all of its programs are done", after(500));
    }

    @Test
    void aReleasedJobThatWaitsGoesOnAloneWhenItHasLeft() {
        trained();
        follow(stand(Standing.STANDING_WAIT));
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        exited("s", 0);
        exited("w0", 0);
        assertEquals(ASKED, exited("w1", 0));
    }

    @Test
    void aReleasedJobThatRunsGoesOnAsItWas() {
        trained();
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        assertEquals("ask 1/w0", exited("w0", 1));
    }

    @Test
    void aJobThatIsAloneStaysSoWhenReleased() {
        alone();
        assertEquals("", follow(stand(Standing.STANDING_RELEASED)));
        assertEquals("", lost());
        assertEquals("", after(1_000_000));
    }

    @Test
    void aSuccessorGoesOnAlone() {
        assertEquals("", adopted(Map.of("x", ALONE_SERVER, "x0", ALONE_WORKER)));
        assertEquals("", after(1_000_000));
        assertEquals("stop x0, ask alone/s0", exited("x", 1));
        assertEquals("ask alone/w0", exited("x0", 0));
    }

    @Test
    void aSuccessorOfAJobThatIsAloneHearsOrders() {
        adopted(Map.of("x", ALONE_SERVER, "x0", ALONE_WORKER));
        assertEquals("stop x, stop x0, ask 1/w0@a:1", follow(ran(1, 0, slot(request(1, 0), A))));
    }

    @Test
    void aSuccessorRestartsAGangThatIsNotComplete() {
        assertEquals("stop x, ask alone/w0", adopted(Map.of("x", ALONE_SERVER)));
        assertEquals("ask alone/s0", exited("x", 0));
    }

    @Test
    void aSuccessorWithoutOrdersLeavesAloneWhatTrains() {
        adopted(Map.of("s", request(1, SERVER), "w0", request(1, 0)));
        assertEquals("", after(1_000_000));
        assertEquals("stop s, " + ASKED, exited("w0", 1));
    }

    @Test
    void aSuccessorWithoutOrdersHearsThatAllIsDone() {
        adopted(Map.of("s", request(1, SERVER), "w0", request(1, 0)));
        exited("w0", 0);
        exited("s", 0);
        follow(ran(1, 0, shape(1, 1)));
        assertEquals("succeed: all of its programs are done", after(500));
    }

    @Test
    void aSuccessorWithoutOrdersDoesNotTakeAPartForTheWhole() {
        adopted(Map.of("w0", request(1, 0)));
        assertEquals("", after(1_000_000));
        assertEquals(ASKED, exited("w0", 0));
    }

    @Test
    void withoutAShapeOfItsOwnItAsksAnywhereOnceOrdersAreOutOfDate() {
        FleetTest test = new FleetTest();
        test.follow(ran(1, 0, shape(1, 1)));
        test.allocated("s", request(1, SERVER), A);
        test.lost();
        assertEquals("withdraw 1/w0, ask 1/w0", test.after(TTL));
        assertEquals("withdraw 1/w0, launch 1/w0 in w0", test.allocated("w0", request(1, 0), B));
    }

    @Test
    void theVariableIsOrdersInBase64() {
        assertNull(Alone.parse(null));
        Orders orders = orders(Standing.STANDING_RUN, 0, 0, slot(ALONE_WORKER, A)).build();
        Orders parsed = Alone.parse(Base64.getEncoder().encodeToString(orders.toByteArray()));
        assertEquals(Alone.INCARNATION, parsed.getIncarnation());
        assertEquals("", parsed.getSlots(0).getNode() + parsed.getSlots(0).getNodeName());
        assertThrows(IllegalArgumentException.class, () -> Alone.parse("{"));
        assertThrows(IllegalArgumentException.class, () -> Alone.parse("AAAA"));
        Orders none = orders.toBuilder().clearSlots().build();
        String text = Base64.getEncoder().encodeToString(none.toByteArray());
        assertThrows(IllegalArgumentException.class, () -> Alone.parse(text));
        Orders other = orders(Standing.STANDING_RUN, 0, 0, slot(request(2, 0), A)).build();
        String ordinary = Base64.getEncoder().encodeToString(other.toByteArray());
        assertThrows(IllegalArgumentException.class, () -> Alone.parse(ordinary));
    }
}
