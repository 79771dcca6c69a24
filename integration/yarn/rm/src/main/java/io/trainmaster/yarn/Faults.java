package io.trainmaster.yarn;

import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Isolates the faults of single applications and nodes, so that a round continues with the others. A fault is counted
 * each time, and logged once while it recurs. Used by one thread.
 */
final class Faults {
    private static final Logger LOG = LoggerFactory.getLogger(Faults.class);

    private final MutableCounterLong count;
    private Set<String> before = Set.of();
    private Set<String> now = new HashSet<>();

    Faults(MutableCounterLong count) {
        this.count = count;
    }

    void beginRound() {
        before = now;
        now = new HashSet<>();
    }

    /**
     * Runs a step. Returns whether it succeeded.
     *
     * @param what a description of the step for the log
     */
    boolean guard(String what, Runnable step) {
        try {
            step.run();
            return true;
        } catch (RuntimeException fault) {
            count.incr();
            if (now.add(what) && !before.contains(what)) {
                LOG.error("Failed: {}. The round continues without it", what, fault);
            }
            return false;
        }
    }
}
