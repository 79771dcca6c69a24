package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * A job's containers as a state machine: what is ordered, what there is, and what to do about the difference.
 *
 * <p>Times are milliseconds of any clock that doesn't go back. After whatever it was told, {@link #step} says what to
 * do.
 */
final class Fleet {
    /** When there is nothing to wait for. */
    static final long NEVER = Long.MAX_VALUE;

    /** A node has so long to stop a program before the ResourceManager is asked to, however short the grace. */
    private static final long SHORTEST_STOP_MS = 5000;

    private enum Wish {
        STAY,
        /** Its program hears of it over the feed and goes at its next step boundary. */
        BY_ITSELF,
        NOW
    }

    /** A slot that ended with success, under this revision. */
    private record Done(int revision, long at) {}

    private final Policy policy;
    private final Strikes strikes;
    private final Map<Long, SlotOrder> wanted = new TreeMap<>();
    private final Map<Long, SlotOrder> asked = new TreeMap<>();
    private final Map<String, Held> held = new TreeMap<>();
    /** Slots that this incarnation started, and those that are done. */
    private final Set<Long> began = new HashSet<>();

    private final Map<Long, Done> done = new HashMap<>();
    private List<Action> actions = new ArrayList<>();
    private Orders orders;
    private boolean connected;
    private long connectedAt;
    private long incarnation;
    private long lastExit;
    /** All roles are stopped and started again, not before this. */
    private long restartAt = NEVER;

    private Action.Finish outcome;
    private boolean finished;
    private long wake;

    Fleet(Policy policy) {
        this.policy = policy;
        this.strikes = new Strikes(policy);
    }

    /** New orders. */
    void follow(Orders next, long now) {
        if (!connected) {
            connected = true;
            connectedAt = now;
        }
        switch (next.getStanding()) {
            case STANDING_RUN -> {
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
                // Nobody says any longer which node has room.
                wanted.replaceAll((request, slot) -> Slots.anywhere(slot));
            }
            default -> {
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
        launched().stream()
                .filter(container -> isCurrent(container))
                .forEach(container -> began.add(container.request));
        done.clear();
        restartAt = NEVER;
        strikes.forgetWaits();
    }

    /** Whoever gives the orders is away; what they were goes on. */
    void disconnected() {
        connected = false;
    }

    /** A container came. */
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

    /** A container in which an earlier ApplicationMaster of the application started a program. */
    void adopted(String id, String node, long request, long now) {
        Held container = new Held(id, node, request);
        container.launch(now);
        held.put(id, container);
    }

    /** The ResourceManager is going to take these away. */
    void preempting(Collection<String> ids, long now) {
        held.values().stream()
                .filter(container -> ids.contains(container.id) && container.isLaunched())
                .forEach(container -> container.leave(now + graceMs(), stopMs()));
    }

    /** A container is gone. */
    void completed(String id, Exit exit, long now) {
        Held gone = held.remove(id);
        if (gone == null || !gone.isLaunched()) {
            return;
        }
        lastExit = now;
        if (gone.isLeaving() || outcome != null || !isRunning() || !isCurrent(gone)) {
            return; // it was told to, or nobody minds
        }
        if (exit.isSuccess()) {
            done.put(gone.request, new Done(orders.getRevision(), now));
        } else if (exit.isLost()) {
            warn(Slots.name(gone.request) + " " + exit.describe() + "; that isn't counted");
            if (Slots.isServer(gone.request)) {
                restartAt = now;
            }
        } else {
            strike(gone, exit, now);
        }
    }

    private void strike(Held gone, Exit exit, long now) {
        int count = strikes.add(gone.request, gone.ranMs(now), now);
        String what = Slots.name(gone.request) + " " + exit.describe();
        if (exit.isHopeless()) {
            outcome = new Action.Finish(false, what + "; the program says that starting again won't help");
        } else if (count >= policy.failures()) {
            outcome = new Action.Finish(false, what + "; given up after " + count + " failures");
        } else {
            boolean all = Slots.isServer(gone.request) || exit.restartsAll();
            if (all) {
                restartAt = strikes.notBefore(gone.request);
            }
            String tally = "; failure " + count + " of " + policy.failures();
            String again = ", again after " + policy.delay(count) + " ms";
            warn(what + tally + again + (all ? ", with all of the job" : ""));
        }
    }

    /** Its orders can't be carried out, and trying again won't help. */
    void fail(String reason) {
        if (outcome == null) {
            outcome = new Action.Finish(false, reason);
        }
    }

    /** What to do now. */
    List<Action> step(long now) {
        wake = NEVER;
        conclude(now);
        dismiss(now);
        withdraw();
        if (isRunning() && outcome == null) {
            start(now);
        }
        finish();
        List<Action> due = actions;
        actions = new ArrayList<>();
        return due;
    }

    /** When to call {@link #step} again, whatever else happens. */
    long wake() {
        return wake;
    }

    /** All slots ended with success: the job is complete, unless orders on their way explain it otherwise. */
    private void conclude(long now) {
        if (outcome != null || !isRunning() || !connected || restartAt != NEVER || !hasLeft()) {
            return;
        }
        long at = Math.max(lastExit, connectedAt) + policy.settleMs();
        if (now >= at) {
            outcome = new Action.Finish(true, "all of its programs are done");
        } else {
            wakeAt(at);
        }
    }

    /** Every slot that was there ended with success. One that a newer revision adds never got to start. */
    private boolean hasLeft() {
        return !done.isEmpty()
                && launched().isEmpty()
                && began.stream()
                        .filter(request -> wanted.isEmpty() || wanted.containsKey(request))
                        .allMatch(done::containsKey);
    }

    private void dismiss(long now) {
        for (Held container : List.copyOf(held.values())) {
            if (!container.isLaunched()) {
                if (!isWanted(container)) {
                    held.remove(container.id);
                    actions.add(new Action.Release(container.id));
                }
                continue;
            }
            switch (wish(container)) {
                case STAY -> {}
                case BY_ITSELF -> container.leave(now + graceMs(), stopMs());
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

    private Wish wish(Held container) {
        if (outcome != null) {
            return Wish.NOW;
        }
        if (orders == null) {
            return Wish.STAY;
        }
        Wish whileRestarting = restartAt == NEVER ? Wish.STAY : Wish.NOW;
        return switch (orders.getStanding()) {
            case STANDING_RUN ->
                isCurrent(container) && (restartAt != NEVER || isWanted(container)) ? whileRestarting : Wish.BY_ITSELF;
            case STANDING_RELEASED -> whileRestarting;
            default -> Wish.BY_ITSELF;
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
            began.clear();
            done.clear();
        }
        if (hasLeft()) {
            return;
        }
        wakeAfter(restartAt, now);
        // The old shape is gone before the new one starts; its containers may come earlier.
        boolean free = restartAt == NEVER && launched().stream().allMatch(this::isCurrent);
        for (Map.Entry<Long, SlotOrder> slot : wanted.entrySet()) {
            long request = slot.getKey();
            Held container = held.values().stream()
                    .filter(candidate -> candidate.request == request)
                    .findFirst()
                    .orElse(null);
            if (container == null) {
                if (!isDone(request, now) && asked.putIfAbsent(request, slot.getValue()) == null) {
                    actions.add(new Action.Ask(slot.getValue()));
                }
            } else if (free && !container.isLaunched()) {
                if (strikes.notBefore(request) <= now) {
                    container.launch(now);
                    began.add(request);
                    done.remove(request);
                    actions.add(new Action.Launch(container.id, slot.getValue()));
                } else {
                    wakeAt(strikes.notBefore(request));
                }
            }
        }
    }

    /**
     * For good; or for now: it left for a revision that never came here, or the whole program is ending, which shows
     * soon.
     */
    private boolean isDone(long request, long now) {
        Done end = done.get(request);
        if (end == null) {
            return false;
        }
        if (end.revision >= orders.getRevision()) {
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

    private long graceMs() {
        return orders == null ? 0 : orders.getGraceMs();
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

    /** What lies in the past needs no waking. */
    private void wakeAfter(long at, long now) {
        if (at > now) {
            wakeAt(at);
        }
    }
}
