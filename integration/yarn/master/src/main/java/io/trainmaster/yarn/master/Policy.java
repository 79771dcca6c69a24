package io.trainmaster.yarn.master;

/**
 * The rules of restarting.
 *
 * @param firstDelayMs before a slot is started again after its first failure; doubles with each
 * @param longestDelayMs what it doubles to
 * @param steadyMs who ran for so long made progress, and begins anew
 * @param failures so many without progress, and the job has failed
 * @param settleMs after the last slot ended by itself, how long orders that explain it may take to arrive
 */
record Policy(long firstDelayMs, long longestDelayMs, long steadyMs, int failures, long settleMs) {
    static final Policy DEFAULT = new Policy(500, 30_000, 60_000, 8, 500);

    /** The wait before the start that follows the {@code count}-th failure in a row. */
    long delay(int count) {
        return Math.min(firstDelayMs << Math.min(count - 1, 30), longestDelayMs);
    }
}
