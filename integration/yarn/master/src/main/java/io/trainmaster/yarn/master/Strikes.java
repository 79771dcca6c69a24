package io.trainmaster.yarn.master;

import java.util.HashMap;
import java.util.Map;

/** Counts each slot's failures since its last steady run. */
final class Strikes {
    private record Strike(int count, long notBefore) {}

    private final Policy policy;
    private final Map<Long, Strike> bySlot = new HashMap<>();

    Strikes(Policy policy) {
        this.policy = policy;
    }

    /** Counts a failure after a run of this time. Returns the new count. */
    int add(long request, long ranMs, long now) {
        Strike before = ranMs >= policy.steadyMs() ? null : bySlot.get(Slots.slot(request));
        int count = before == null ? 1 : before.count + 1;
        bySlot.put(Slots.slot(request), new Strike(count, now + policy.delay(count)));
        return count;
    }

    /** The earliest time of the slot's next start. */
    long notBefore(long request) {
        Strike strike = bySlot.get(Slots.slot(request));
        return strike == null ? Long.MIN_VALUE : strike.notBefore;
    }

    /** Drops all delays, but not the counts: a program that can't run fails on another node, too. */
    void forgetWaits() {
        bySlot.replaceAll((slot, strike) -> new Strike(strike.count, Long.MIN_VALUE));
    }
}
