package io.trainmaster.yarn;

import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * A plan, checked against the snapshot that it answers.
 *
 * @param term of the sidecar that made it
 * @param number within the term
 * @param ttlMs how long it is enforced without a newer answer
 * @param asked the applications of the snapshot
 * @param jobs what is planned for those that the plan names
 */
record EnforceablePlan(long term, long number, long ttlMs, Set<ApplicationId> asked, Map<ApplicationId, Job> jobs) {

    /** What is planned for one application. */
    sealed interface Job permits Run, Release, Kill {
        /** Its priority among applications that wait, where the plan sets it. */
        OptionalInt priority();
    }

    /**
     * Containers of these slots and no others; of none while it is held.
     *
     * @param slots the node of each slot, by allocation request
     * @param left slots that can't be: they get no container and lose none
     * @param graceMs between a container's mark for preemption and its end
     * @param priority where the plan sets it
     */
    record Run(Map<Long, NodeId> slots, Set<Long> left, long graceMs, OptionalInt priority) implements Job {}

    /**
     * As without plug-ins.
     *
     * @param priority where the plan sets it
     */
    record Release(OptionalInt priority) implements Job {}

    /**
     * To be killed.
     *
     * @param reason its diagnostics
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
