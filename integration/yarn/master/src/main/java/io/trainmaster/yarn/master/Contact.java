package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;

/** Whether the adapter can be heard, and since when it can't. */
final class Contact {
    /** Where orders don't say. */
    private static final long DEFAULT_TTL_MS = 15_000;

    /**
     * A program that started later than this before the adapter went may not have learned from the feed who else is in
     * the job.
     */
    private static final long LEARNING_MS = 5000;

    private boolean heard;
    private long changedAt;
    private long ttlMs = DEFAULT_TTL_MS;

    Contact(long now) {
        changedAt = now;
    }

    void hear(Orders orders, long now) {
        ttlMs = orders.getTtlMs() > 0 ? orders.getTtlMs() : DEFAULT_TTL_MS;
        change(true, now);
    }

    void lose(long now) {
        change(false, now);
    }

    private void change(boolean next, long now) {
        if (heard != next) {
            heard = next;
            changedAt = now;
        }
    }

    boolean isHeard() {
        return heard;
    }

    /** Since when it is heard, or isn't. */
    long changedAt() {
        return changedAt;
    }

    /** When orders are out of date, if it stays away. */
    long expiresAt() {
        return changedAt + ttlMs;
    }

    long ttlMs() {
        return ttlMs;
    }

    /** Whether a program that started then had the time to learn from the feed what it is part of. */
    boolean taught(long startedAt) {
        return startedAt <= changedAt - LEARNING_MS;
    }
}
