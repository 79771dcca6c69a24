package io.trainmaster.yarn.master;

import java.util.HashMap;
import java.util.Map;

/** Failures of each slot since it last ran for a while. */
final class Strikes {
    private record Strike(int count, long notBefore) {}

    private final Policy policy;
    private final Map<Long, Strike> bySlot = new HashMap<>();

    Strikes(Policy policy) {
        this.policy = policy;
    }

    /** Counts a failure after so long a run; how many there are by now. */
    int add(long request, long ranMs, long now) {
        Strike before = ranMs >= policy.steadyMs() ? null : bySlot.get(Slots.slot(request));
        int count = before == null ? 1 : before.count + 1;
        bySlot.put(Slots.slot(request), new Strike(count, now + policy.delay(count)));
        return count;
    }

    /** When the slot may start again. */
    long notBefore(long request) {
        Strike strike = bySlot.get(Slots.slot(request));
        return strike == null ? Long.MIN_VALUE : strike.notBefore;
    }

    /** A new chance at once. The count stays: a program that can't run doesn't get better by being moved. */
    void forgetWaits() {
        bySlot.replaceAll((slot, strike) -> new Strike(strike.count, Long.MIN_VALUE));
    }
}
