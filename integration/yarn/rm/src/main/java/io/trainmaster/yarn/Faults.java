package io.trainmaster.yarn;

import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps one odd application or node from spoiling a round for all others: what fails is counted, and logged once as long as it
 * goes on. Used by one thread.
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
     * Whether it went well.
     *
     * @param what for people: what can't be done if it fails
     */
    boolean guard(String what, Runnable step) {
        try {
            step.run();
            return true;
        } catch (RuntimeException fault) {
            count.incr();
            if (now.add(what) && !before.contains(what)) {
                LOG.error("Failed, and the round goes on without: {}", what, fault);
            }
            return false;
        }
    }
}
