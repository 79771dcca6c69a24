package io.trainmaster.yarn.master;

import java.util.Set;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;

/**
 * The end of a container.
 *
 * @param status YARN's exit status: the program's exit code, or a negative number for YARN's own reasons
 * @param diagnostics YARN's message, which ends with the last lines of the program's log
 */
record Exit(int status, String diagnostics) {
    /** Parameter server lost, chief lost, try again: all roles restart from the checkpoint. */
    private static final Set<Integer> RESTART_ALL = Set.of(41, 42, 75);

    /** The program reports that a restart won't help. */
    private static final int HOPELESS = 44;

    /** Ends that the program didn't cause. */
    private static final Set<Integer> LOST = Set.of(
            ContainerExitStatus.ABORTED,
            ContainerExitStatus.DISKS_FAILED,
            ContainerExitStatus.PREEMPTED,
            ContainerExitStatus.KILLED_BY_APPMASTER,
            ContainerExitStatus.KILLED_BY_RESOURCEMANAGER,
            ContainerExitStatus.KILLED_BY_CONTAINER_SCHEDULER);

    static Exit notStarted(String why) {
        return new Exit(ContainerExitStatus.INVALID, why);
    }

    boolean isSuccess() {
        return status == ContainerExitStatus.SUCCESS;
    }

    /** Whether the container was preempted, or its node lost. */
    boolean isLost() {
        return LOST.contains(status);
    }

    boolean isHopeless() {
        return status == HOPELESS;
    }

    boolean restartsAll() {
        return RESTART_ALL.contains(status);
    }

    /** A description for users: the status, and the last line of the program's log. */
    String describe() {
        String last = diagnostics.lines().filter(line -> !line.isBlank()).reduce("", (earlier, later) -> later.strip());
        boolean never = status == ContainerExitStatus.INVALID;
        String how = never ? "could not be started" : "ended with exit status " + status;
        return last.isEmpty() ? how : how + " (" + last + ")";
    }
}
