package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * A state machine of a job's containers: from orders and existing containers, it derives actions.
 *
 * <p>Without orders, it can run the job in standalone mode: in the requested shape, as a gang whose programs have no
 * feed. New orders end standalone mode.
 *
 * <p>Times are milliseconds of any monotonic clock. After each event, {@link #step} returns the actions.
 */
final class Fleet {
    /** No wake-up is needed. */
    static final long NEVER = Long.MAX_VALUE;

    /** The minimum time for a node to stop a program, before the ResourceManager has to release its container. */
    private static final long SHORTEST_STOP_MS = 5000;

    private enum Intent {
        STAY,
        /** Its program receives this from the feed, and leaves at its next step boundary. */
        AT_STEP_BOUNDARY,
        NOW
    }

    /** A slot that ended with success under this revision, at this time. */
    private record Done(int revision, long at) {}

    private final Policy policy;
    private final Strikes strikes;
    private final Connection connection;
    /** Null: no standalone mode. */
    private final Orders standalone;

    private final Map<Long, SlotOrder> wanted = new TreeMap<>();
    private final Map<Long, SlotOrder> asked = new TreeMap<>();
    private final Map<String, Held> held = new TreeMap<>();
    /** Slots that this incarnation started, with the time of their first start, and slots that are done. */
    private final Map<Long, Long> began = new HashMap<>();

    private final Map<Long, Done> done = new HashMap<>();
    /** Time when all slots of this incarnation were started. */
    private long completeAt = NEVER;

    private List<Action> actions = new ArrayList<>();
    private Orders orders;
    private boolean isStandalone;
    /** The number of allocated containers in the last log line. */
    private long loggedCount;

    private long incarnation;
    private long lastExit;
    /** All roles stop and restart, not before this time. */
    private long restartAt = NEVER;

    private Action.Finish outcome;
    private boolean finished;
    private long wake;

    /**
     * Makes the state machine of a new job.
     *
     * @param standalone the orders for standalone mode. Null: the job waits for orders
     */
    Fleet(Policy policy, Orders standalone, long now) {
        this.policy = policy;
        this.strikes = new Strikes(policy);
        this.connection = new Connection(standalone, now);
        this.standalone = standalone;
    }

    /** Follows new orders. */
    void follow(Orders next, long now) {
        connection.connect(next, now);
        switch (next.getStanding()) {
            case STANDING_RUN -> {
                isStandalone = false;
                Map<Long, SlotOrder> slots = new TreeMap<>();
                next.getSlotsList().forEach(slot -> slots.put(slot.getAllocationRequest(), slot));
                if (incarnation != next.getIncarnation()) {
                    begin(next.getIncarnation());
                }
                done.keySet().retainAll(slots.keySet());
                wanted.clear();
                wanted.putAll(slots);
            }
            case STANDING_RELEASED -> {
                if (incarnation == 0) {
                    begin(next.getIncarnation());
                }
                // The scheduler no longer chooses nodes.
                wanted.replaceAll((request, slot) -> Slots.anywhere(slot));
            }
            default -> {
                isStandalone = false;
                wanted.clear();
                done.clear();
                restartAt = NEVER;
            }
        }
        orders = next;
    }

    private void begin(long next) {
        incarnation = next;
        began.clear();
        done.clear();
        completeAt = NEVER;
        restartAt = NEVER;
        strikes.forgetWaits();
    }

    /** The connection to the adapter ended. Its last orders stay in force. */
    void disconnected(long now) {
        connection.disconnect(now);
    }

    /** A container was allocated. */
    void allocated(String id, String node, long request) {
        SlotOrder slot = asked.get(request);
        if (slot == null || !fits(slot, node)) {
            actions.add(new Action.Release(id));
            return;
        }
        asked.remove(request);
        actions.add(new Action.Withdraw(request));
        held.put(id, new Held(id, node, request));
    }

    /** Adopts all containers in which an earlier ApplicationMaster of the application started a program. */
    void adopted(Collection<Held> containers, long now) {
        if (containers.isEmpty()) {
            return;
        }
        long latest = containers.stream()
                .mapToLong(container -> Slots.incarnation(container.request))
                .max()
                .orElse(0);
        if (latest == Standalone.INCARNATION && standalone != null) {
            enterStandalone();
            // A missing program could not receive its peers' addresses any more, so that all programs have to restart.
            long adopted = containers.stream().filter(this::isCurrent).count();
            restartAt = adopted < wanted.size() ? now : NEVER;
        } else {
            begin(latest);
            completeAt = Long.MIN_VALUE;
        }
        for (Held container : containers) {
            container.adopt(now);
            held.put(container.id, container);
            if (isCurrent(container)) {
                began.put(container.request, Long.MIN_VALUE);
            }
        }
    }

    /** The ResourceManager is going to preempt these containers. */
    void preempting(Collection<String> ids, long now) {
        held.values().stream()
                .filter(container -> ids.contains(container.id) && container.isLaunched())
                .forEach(container -> container.leave(now + graceMs(), stopMs()));
    }

    /** A container has ended. */
    void completed(String id, Exit exit, long now) {
        Held gone = held.remove(id);
        if (gone == null || !gone.isLaunched()) {
            return;
        }
        lastExit = now;
        if (outcome != null || !isCurrent(gone) || (orders != null && !isRunning())) {
            return; // its end has no consequences
        }
        if (gone.isLeaving()) { // it was stopped
            if (isStandalone && restartAt == NEVER) {
                restartAt = now;
            }
        } else if (exit.isSuccess()) {
            done.put(gone.request, new Done(revision(), now));
        } else if (isRunning()) {
            failed(gone, exit, now);
        }
    }

    private void failed(Held gone, Exit exit, long now) {
        String what = Slots.name(gone.request) + " " + exit.describe();
        if (exit.isLost()) {
            warn(what + "; not counted as a failure");
            if (takesAll(gone)) {
                restartAt = now;
            }
            return;
        }
        int count = strikes.add(gone.request, gone.ranMs(now), now);
        if (exit.isHopeless()) {
            outcome = new Action.Finish(false, what + "; the program says that starting again won't help");
        } else if (count >= policy.failures()) {
            outcome = new Action.Finish(false, what + "; given up after " + count + " failures");
        } else {
            boolean all = takesAll(gone) || exit.restartsAll();
            if (all) {
                restartAt = strikes.notBefore(gone.request);
            }
            String tally = "; failure " + count + " of " + policy.failures();
            String again = ", again after " + policy.delay(count) + " ms";
            warn(what + tally + again + (all ? ", with all of the job" : ""));
        }
    }

    /** Whether the other slots can't continue without this one, or can't reach its successor. */
    private boolean takesAll(Held gone) {
        return isStandalone || Slots.isServer(gone.request);
    }

    /** Ends the job, because its orders can't be carried out, even by a retry. */
    void fail(String reason) {
        if (outcome == null) {
            outcome = new Action.Finish(false, reason);
        }
    }

    /** Returns the actions to carry out now. */
    List<Action> step(long now) {
        wake = NEVER;
        considerCompletion(now);
        if (outcome == null && !isStandalone) {
            considerStandalone(now);
        }
        stopUnwanted(now);
        withdraw();
        if (isRunning() && outcome == null) {
            start(now);
        }
        finish();
        List<Action> due = actions;
        actions = new ArrayList<>();
        return due;
    }

    /** Time of the next call of {@link #step} without an event. */
    long wake() {
        return wake;
    }

    /** Completes the job after all slots have ended with success, unless newer orders explain their ends. */
    private void considerCompletion(long now) {
        boolean explained = isStandalone || connection.isConnected();
        if (outcome != null || !isRunning() || !explained || restartAt != NEVER || !allSucceeded()) {
            return;
        }
        long connectedAt = connection.isConnected() ? connection.changedAt() : lastExit;
        long at = Math.max(lastExit, connectedAt) + policy.settleMs();
        if (now >= at) {
            outcome = new Action.Finish(true, "all programs of the job have succeeded");
        } else {
            wakeAt(at);
        }
    }

    /** Whether every started slot has ended with success. Slots that a newer revision adds have not started. */
    private boolean allSucceeded() {
        return !done.isEmpty()
                && launched().isEmpty()
                && began.keySet().stream()
                        .filter(request -> wanted.isEmpty() || wanted.containsKey(request))
                        .allMatch(done::containsKey);
    }

    /** Enters standalone mode when there are no orders, or when the job can't continue with its last ones. */
    private void considerStandalone(long now) {
        // After an adoption, only a part of the programs may be known. Then it is unknown whether all are done.
        // Programs that start find out from the checkpoint.
        boolean isDone = orders != null && allSucceeded();
        if (isDone || (orders != null && orders.getStanding() == Standing.STANDING_OVER)) {
            return;
        }
        if (connection.isConnected()) {
            boolean released = orders.getStanding() == Standing.STANDING_RELEASED;
            if (standalone != null && released && wanted.isEmpty() && launched().isEmpty()) {
                warn("released without containers: entering standalone mode");
                enterStandalone();
            }
        } else if (now < connection.expiresAt()) {
            if (standalone != null || !wanted.isEmpty()) {
                wakeAt(connection.expiresAt());
            }
        } else if (standalone == null) {
            wanted.replaceAll((request, slot) -> Slots.anywhere(slot));
        } else if (isStuck()) {
            warn("no orders for " + (now - connection.changedAt()) + " ms: entering standalone mode");
            enterStandalone();
        } else {
            // Programs that start now could not receive their peers. The others train without them.
            wanted.keySet().removeIf(request -> !hasJoined(request));
        }
    }

    private void enterStandalone() {
        isStandalone = true;
        begin(Standalone.INCARNATION);
        wanted.clear();
        standalone.getSlotsList().forEach(slot -> wanted.put(slot.getAllocationRequest(), slot));
        loggedCount = 0;
    }

    /**
     * Whether the job, without a connection, has no programs, or has programs that wait for one that did not start in
     * time.
     */
    private boolean isStuck() {
        if (launched().isEmpty()) {
            return true;
        }
        if (orders != null && !isRunning()) {
            return false; // its programs are leaving
        }
        boolean complete = completeAt != NEVER && connection.knowsPeers(completeAt);
        return restartAt != NEVER
                || !complete
                || !began.keySet().stream().filter(this::hasJoined).allMatch(this::trains);
    }

    /** Whether a slot belongs to the job's shape, and started in time for the others to know it. */
    private boolean hasJoined(long request) {
        boolean isWanted = wanted.isEmpty() || wanted.containsKey(request);
        boolean isOld = began.containsKey(request) && connection.knowsPeers(began.get(request));
        Done end = done.get(request);
        return isWanted && isOld && (end == null || end.revision >= revision());
    }

    private boolean trains(long request) {
        return done.containsKey(request)
                || launched().stream()
                        .anyMatch(one -> one.request == request && connection.knowsPeers(one.startedAt()));
    }

    private void stopUnwanted(long now) {
        for (Held container : List.copyOf(held.values())) {
            if (!container.isLaunched()) {
                if (!isWanted(container)) {
                    held.remove(container.id);
                    actions.add(new Action.Release(container.id));
                }
                continue;
            }
            switch (intent(container, now)) {
                case STAY -> {}
                case AT_STEP_BOUNDARY -> container.leave(now + graceMs(), stopMs());
                case NOW -> container.leave(now, stopMs());
            }
            if (container.isStopDue(now)) {
                actions.add(new Action.Stop(container.id));
            }
            if (container.isReleaseDue(now)) {
                actions.add(new Action.Release(container.id));
            }
            wakeAt(container.dueAt());
        }
    }

    private Intent intent(Held container, long now) {
        if (outcome != null) {
            return Intent.NOW;
        }
        Intent whileRestarting = restartAt == NEVER ? Intent.STAY : Intent.NOW;
        if (isStandalone) {
            return isCurrent(container) ? whileRestarting : Intent.NOW;
        }
        if (orders == null) {
            return Intent.STAY;
        }
        boolean hasNoFeed = Slots.incarnation(container.request) == Standalone.INCARNATION
                || (!connection.isConnected() && now >= connection.expiresAt());
        Intent leave = hasNoFeed ? Intent.NOW : Intent.AT_STEP_BOUNDARY;
        return switch (orders.getStanding()) {
            case STANDING_RUN ->
                isCurrent(container) && (restartAt != NEVER || isWanted(container)) ? whileRestarting : leave;
            case STANDING_RELEASED -> whileRestarting;
            default -> leave;
        };
    }

    private void withdraw() {
        asked.entrySet().removeIf(ask -> {
            boolean stale = outcome != null || !ask.getValue().equals(wanted.get(ask.getKey()));
            if (stale) {
                actions.add(new Action.Withdraw(ask.getKey()));
            }
            return stale;
        });
    }

    private void start(long now) {
        if (restartAt <= now && launched().isEmpty()) {
            restartAt = NEVER;
            completeAt = NEVER;
            began.clear();
            done.clear();
        }
        if (allSucceeded()) {
            return;
        }
        wakeAfter(restartAt, now);
        if (isStandalone) {
            startTogether(now);
        } else {
            startEach(now);
        }
    }

    private void startEach(long now) {
        // The new shape starts after the end of the old one. Its containers can be allocated earlier.
        boolean free = restartAt == NEVER && launched().stream().allMatch(this::isCurrent);
        boolean complete = true;
        for (Map.Entry<Long, SlotOrder> slot : wanted.entrySet()) {
            long request = slot.getKey();
            Held container = heldFor(request);
            if (container == null) {
                if (!isDone(request, now)) {
                    ask(slot.getValue());
                }
            } else if (free && !container.isLaunched()) {
                if (strikes.notBefore(request) <= now) {
                    actions.add(launch(container, now));
                } else {
                    wakeAt(strikes.notBefore(request));
                }
            }
            complete &= began.containsKey(request);
        }
        if (complete && completeAt == NEVER) {
            completeAt = now;
        }
    }

    /** Starts all programs at once, because they receive their peers only at their start. */
    private void startTogether(long now) {
        boolean trains = launched().stream().anyMatch(container -> isCurrent(container) && !container.isLeaving());
        if (trains) {
            return;
        }
        List<Held> gang = new ArrayList<>();
        for (SlotOrder slot : wanted.values()) {
            Held container = heldFor(slot.getAllocationRequest());
            if (container == null) {
                ask(slot);
            } else if (!container.isLaunched()) {
                gang.add(container);
            }
        }
        long notBefore = wanted.keySet().stream().mapToLong(strikes::notBefore).max().orElse(now);
        if (gang.size() < wanted.size()) {
            if (loggedCount != gang.size()) {
                warn("standalone mode: " + gang.size() + " of " + wanted.size()
                        + " containers are allocated; the programs start with all of them");
            }
            loggedCount = gang.size();
        } else if (restartAt == NEVER && launched().isEmpty()) {
            if (notBefore <= now) {
                actions.add(new Action.LaunchTogether(gang.stream().map(container -> launch(container, now)).toList()));
                loggedCount = 0;
            } else {
                wakeAt(notBefore);
            }
        }
    }

    private Held heldFor(long request) {
        return held.values().stream()
                .filter(candidate -> candidate.request == request)
                .findFirst()
                .orElse(null);
    }

    private void ask(SlotOrder slot) {
        if (asked.putIfAbsent(slot.getAllocationRequest(), slot) == null) {
            actions.add(new Action.Ask(slot));
        }
    }

    private Action.Launch launch(Held container, long now) {
        container.launch(now);
        began.putIfAbsent(container.request, now);
        done.remove(container.request);
        return new Action.Launch(container.id, wanted.get(container.request));
    }

    /**
     * Whether a slot is done: for good, or for the moment. In the second case, its program left for a revision whose
     * orders have not arrived, or all programs are ending, which shows soon.
     */
    private boolean isDone(long request, long now) {
        Done end = done.get(request);
        if (end == null) {
            return false;
        }
        if (end.revision >= revision()) {
            return true;
        }
        wakeAfter(end.at + policy.settleMs(), now);
        return now < end.at + policy.settleMs();
    }

    private void finish() {
        if (finished || !held.isEmpty()) {
            return;
        }
        if (outcome == null && orders != null && orders.getStanding() == Standing.STANDING_OVER) {
            outcome = new Action.Finish(orders.getCompleted(), orders.getReason());
        }
        if (outcome != null) {
            finished = true;
            actions.add(outcome);
        }
    }

    private List<Held> launched() {
        return held.values().stream().filter(Held::isLaunched).toList();
    }

    private boolean isRunning() {
        if (isStandalone) {
            return true;
        }
        if (orders == null) {
            return false;
        }
        Standing standing = orders.getStanding();
        return standing == Standing.STANDING_RUN || standing == Standing.STANDING_RELEASED;
    }

    private boolean isCurrent(Held container) {
        return Slots.incarnation(container.request) == incarnation;
    }

    private boolean isWanted(Held container) {
        SlotOrder slot = wanted.get(container.request);
        return outcome == null && slot != null && fits(slot, container.node);
    }

    private static boolean fits(SlotOrder slot, String node) {
        return slot.getNode().isEmpty() || slot.getNode().equals(node);
    }

    private int revision() {
        return orders == null ? 0 : orders.getRevision();
    }

    private long graceMs() {
        Orders last = orders == null ? standalone : orders;
        return last == null ? 0 : last.getGraceMs();
    }

    private long stopMs() {
        return Math.max(graceMs(), SHORTEST_STOP_MS);
    }

    private void warn(String text) {
        actions.add(new Action.Warn(text));
    }

    private void wakeAt(long at) {
        wake = Math.min(wake, at);
    }

    /** Ignores times in the past. */
    private void wakeAfter(long at, long now) {
        if (at > now) {
            wakeAt(at);
        }
    }
}
