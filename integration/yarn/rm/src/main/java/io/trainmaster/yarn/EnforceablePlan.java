package io.trainmaster.yarn;

import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * A plan, checked against the snapshot that it answers.
 *
 * @param term the term of the sidecar that made it
 * @param number its number within the term
 * @param ttlMs how long it is enforced without a newer answer
 * @param asked the applications of the snapshot
 * @param jobs the plan for each application that it names
 */
record EnforceablePlan(long term, long number, long ttlMs, Set<ApplicationId> asked, Map<ApplicationId, Job> jobs) {

    /** The plan for one application. */
    sealed interface Job permits Run, Release, Kill {
        /** The application's priority among waiting applications, if the plan sets it. */
        OptionalInt priority();
    }

    /**
     * Containers for these slots only. A held application has none.
     *
     * @param slots the node of each slot, by allocation request
     * @param left invalid slots: they get no container, and keep an existing one
     * @param graceMs time between a container's mark for preemption and its end
     * @param priority the priority, if the plan sets it
     */
    record Run(Map<Long, NodeId> slots, Set<Long> left, long graceMs, OptionalInt priority) implements Job {}

    /**
     * Scheduling as without plug-ins.
     *
     * @param priority the priority, if the plan sets it
     */
    record Release(OptionalInt priority) implements Job {}

    /**
     * Kills the application.
     *
     * @param reason the application's diagnostics
     */
    record Kill(String reason) implements Job {
        @Override
        public OptionalInt priority() {
            return OptionalInt.empty();
        }
    }

    String name() {
        return "plan " + Long.toUnsignedString(number) + " of term " + Long.toUnsignedString(term);
    }

    boolean isOlderThan(EnforceablePlan other) {
        int terms = Long.compareUnsigned(term, other.term);
        return terms < 0 || terms == 0 && Long.compareUnsigned(number, other.number) < 0;
    }
}
