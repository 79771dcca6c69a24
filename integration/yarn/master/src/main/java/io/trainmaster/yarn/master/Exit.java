package io.trainmaster.yarn.master;

import java.util.Set;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;

/**
 * How a container ended.
 *
 * @param status as YARN tells it: the program's exit code, or a negative number for what YARN did
 * @param diagnostics YARN's words, which end with the last lines of the program's log
 */
record Exit(int status, String diagnostics) {
    /** Parameter server lost, chief lost, try again: all roles begin again from the checkpoint. */
    private static final Set<Integer> RESTART_ALL = Set.of(41, 42, 75);

    /** The program says that starting it again won't help. */
    private static final int HOPELESS = 44;

    /** Not the program's doing. */
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

    /** Preempted, or its node was lost. */
    boolean isLost() {
        return LOST.contains(status);
    }

    boolean isHopeless() {
        return status == HOPELESS;
    }

    boolean restartsAll() {
        return RESTART_ALL.contains(status);
    }

    /** For people: the status, and the last line that the program printed. */
    String describe() {
        String last = diagnostics.lines().filter(line -> !line.isBlank()).reduce("", (earlier, later) -> later.strip());
        boolean never = status == ContainerExitStatus.INVALID;
        String how = never ? "could not be started" : "ended with exit status " + status;
        return last.isEmpty() ? how : how + " (" + last + ")";
    }
}
