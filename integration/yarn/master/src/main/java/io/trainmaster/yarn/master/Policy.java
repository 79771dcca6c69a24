package io.trainmaster.yarn.master;

/**
 * The rules for restarts.
 *
 * @param firstDelayMs delay of a slot's restart after its first failure; doubles with each failure
 * @param longestDelayMs maximum delay
 * @param steadyMs run time after which the count of failures starts again
 * @param failures number of failures without such a run at which the job has failed
 * @param settleMs time after the last slot's own end in which orders that explain it may arrive
 */
record Policy(long firstDelayMs, long longestDelayMs, long steadyMs, int failures, long settleMs) {
    static final Policy DEFAULT = new Policy(500, 30_000, 60_000, 8, 500);

    /** The delay of the restart after the {@code count}-th failure in a row. */
    long delay(int count) {
        return Math.min(firstDelayMs << Math.min(count - 1, 30), longestDelayMs);
    }
}
