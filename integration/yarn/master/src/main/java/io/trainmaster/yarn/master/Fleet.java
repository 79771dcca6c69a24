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
 * A job's containers as a state machine: what is ordered, what there is, and what to do about the difference.
 *
 * <p>While nobody orders anything, it may go on alone: in the shape that it was submitted with, as a gang whose programs
 * hear no feed. Orders end that.
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
    private final Contact contact;
    /** Null: it can't go on alone. */
    private final Orders alone;

    private final Map<Long, SlotOrder> wanted = new TreeMap<>();
    private final Map<Long, SlotOrder> asked = new TreeMap<>();
    private final Map<String, Held> held = new TreeMap<>();
    /** Slots that this incarnation started, with when each began first, and those that are done. */
    private final Map<Long, Long> began = new HashMap<>();

    private final Map<Long, Done> done = new HashMap<>();
    /** When all slots of this incarnation had been started. */
    private long completeAt = NEVER;

    private List<Action> actions = new ArrayList<>();
    private Orders orders;
    private boolean isAlone;
    /** How many containers there were when that was last said. */
    private long gathered;

    private long incarnation;
    private long lastExit;
    /** All roles are stopped and started again, not before this. */
    private long restartAt = NEVER;

    private Action.Finish outcome;
    private boolean finished;
    private long wake;

    /**
     * Of a job that begins now.
     *
     * @param alone its orders while nobody gives any; null: it waits for some
     */
    Fleet(Policy policy, Orders alone, long now) {
        this.policy = policy;
        this.strikes = new Strikes(policy);
        this.contact = new Contact(alone, now);
        this.alone = alone;
    }

    /** New orders. */
    void follow(Orders next, long now) {
        contact.hear(next, now);
        switch (next.getStanding()) {
            case STANDING_RUN -> {
                isAlone = false;
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
                isAlone = false;
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

    /** Whoever gives the orders is away; what they were goes on. */
    void disconnected(long now) {
        contact.lose(now);
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

    /** All containers in which an earlier ApplicationMaster of the application started a program. */
    void adopted(Collection<Held> containers, long now) {
        if (containers.isEmpty()) {
            return;
        }
        long latest = containers.stream()
                .mapToLong(container -> Slots.incarnation(container.request))
                .max()
                .orElse(0);
        if (latest == Alone.INCARNATION && alone != null) {
            goAlone();
            // Where its peers are, nobody knows any more who could tell it to one that is missing.
            long there = containers.stream().filter(this::isCurrent).count();
            restartAt = there < wanted.size() ? now : NEVER;
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
        if (outcome != null || !isCurrent(gone) || (orders != null && !isRunning())) {
            return; // nobody minds
        }
        if (gone.isLeaving()) { // it was told to
            if (isAlone && restartAt == NEVER) {
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
            warn(what + "; that isn't counted");
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

    /** Whether the others can't go on without it, or couldn't find the one that comes after it. */
    private boolean takesAll(Held gone) {
        return isAlone || Slots.isServer(gone.request);
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
        if (outcome == null && !isAlone) {
            fendForItself(now);
        }
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
        boolean explained = isAlone || contact.isHeard();
        if (outcome != null || !isRunning() || !explained || restartAt != NEVER || !hasLeft()) {
            return;
        }
        long heardAt = contact.isHeard() ? contact.changedAt() : lastExit;
        long at = Math.max(lastExit, heardAt) + policy.settleMs();
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
                && began.keySet().stream()
                        .filter(request -> wanted.isEmpty() || wanted.containsKey(request))
                        .allMatch(done::containsKey);
    }

    /** Nobody says what is to be, or will for a while: a job that can't go on as it was ordered to goes on alone. */
    private void fendForItself(long now) {
        // Of what an earlier ApplicationMaster began only a part may be seen here: then nobody knows whether all is done. The
        // programs that start find out from the checkpoint.
        boolean isDone = orders != null && hasLeft();
        if (isDone || (orders != null && orders.getStanding() == Standing.STANDING_OVER)) {
            return;
        }
        if (contact.isHeard()) {
            boolean released = orders.getStanding() == Standing.STANDING_RELEASED;
            if (alone != null && released && wanted.isEmpty() && launched().isEmpty()) {
                warn("released, with nothing to go on with: going on alone");
                goAlone();
            }
        } else if (now < contact.expiresAt()) {
            if (alone != null || !wanted.isEmpty()) {
                wakeAt(contact.expiresAt());
            }
        } else if (alone == null) {
            wanted.replaceAll((request, slot) -> Slots.anywhere(slot));
        } else if (isStuck()) {
            warn("no orders for " + (now - contact.changedAt()) + " ms: going on alone");
            goAlone();
        } else {
            // What would start now couldn't learn what it is part of; the others train without.
            wanted.keySet().removeIf(request -> !hasJoined(request));
        }
    }

    private void goAlone() {
        isAlone = true;
        begin(Alone.INCARNATION);
        wanted.clear();
        alone.getSlotsList().forEach(slot -> wanted.put(slot.getAllocationRequest(), slot));
        gathered = 0;
    }

    /** While nobody is heard: it holds nothing, or programs that can't train without one that was to start since. */
    private boolean isStuck() {
        if (launched().isEmpty()) {
            return true;
        }
        if (orders != null && !isRunning()) {
            return false; // they are leaving
        }
        boolean complete = completeAt != NEVER && contact.taught(completeAt);
        return restartAt != NEVER || !complete || !began.keySet().stream().filter(this::hasJoined).allMatch(this::trains);
    }

    /** Whether it is of the job's shape, and was before nobody could tell the others. */
    private boolean hasJoined(long request) {
        boolean isWanted = wanted.isEmpty() || wanted.containsKey(request);
        boolean isOld = began.containsKey(request) && contact.taught(began.get(request));
        Done end = done.get(request);
        return isWanted && isOld && (end == null || end.revision >= revision());
    }

    private boolean trains(long request) {
        return done.containsKey(request)
                || launched().stream().anyMatch(one -> one.request == request && contact.taught(one.startedAt()));
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
            switch (wish(container, now)) {
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

    private Wish wish(Held container, long now) {
        if (outcome != null) {
            return Wish.NOW;
        }
        Wish whileRestarting = restartAt == NEVER ? Wish.STAY : Wish.NOW;
        if (isAlone) {
            return isCurrent(container) ? whileRestarting : Wish.NOW;
        }
        if (orders == null) {
            return Wish.STAY;
        }
        boolean hearsNothing = Slots.incarnation(container.request) == Alone.INCARNATION
                || (!contact.isHeard() && now >= contact.expiresAt());
        Wish leave = hearsNothing ? Wish.NOW : Wish.BY_ITSELF;
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
        if (hasLeft()) {
            return;
        }
        wakeAfter(restartAt, now);
        if (isAlone) {
            startTogether(now);
        } else {
            startEach(now);
        }
    }

    private void startEach(long now) {
        // The old shape is gone before the new one starts; its containers may come earlier.
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

    /** They learn of each other only once, when they start. */
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
            if (gathered != gang.size()) {
                warn("alone, with " + gang.size() + " of " + wanted.size()
                        + " containers: the programs start once all are there");
            }
            gathered = gang.size();
        } else if (restartAt == NEVER && launched().isEmpty()) {
            if (notBefore <= now) {
                actions.add(new Action.LaunchTogether(gang.stream().map(container -> launch(container, now)).toList()));
                gathered = 0;
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
     * For good; or for now: it left for a revision that never came here, or the whole program is ending, which shows
     * soon.
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
        if (isAlone) {
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
        Orders last = orders == null ? alone : orders;
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

    /** What lies in the past needs no waking. */
    private void wakeAfter(long at, long now) {
        if (at > now) {
            wakeAt(at);
        }
    }
}
