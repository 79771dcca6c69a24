package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;

/** The state of the connection to the adapter, with the time of its last change. */
final class Connection {
    /** The TTL of orders without one. */
    private static final long DEFAULT_TTL_MS = 15_000;

    /**
     * A program that started later than this before the end of the connection may not have received its peers from the
     * feed.
     */
    private static final long LEARNING_MS = 5000;

    private boolean connected;
    private long changedAt;
    private long ttlMs;

    /**
     * Starts without a connection.
     *
     * @param standalone the orders for standalone mode, whose TTL limits the first wait. Null: the default TTL
     */
    Connection(Orders standalone, long now) {
        ttlMs = ttlMs(standalone);
        changedAt = now;
    }

    private static long ttlMs(Orders orders) {
        return orders != null && orders.getTtlMs() > 0 ? orders.getTtlMs() : DEFAULT_TTL_MS;
    }

    void connect(Orders orders, long now) {
        ttlMs = ttlMs(orders);
        change(true, now);
    }

    void disconnect(long now) {
        change(false, now);
    }

    private void change(boolean next, long now) {
        if (connected != next) {
            connected = next;
            changedAt = now;
        }
    }

    boolean isConnected() {
        return connected;
    }

    /** Time of the last connection or disconnection. */
    long changedAt() {
        return changedAt;
    }

    /** Time when the orders expire without a connection. */
    long expiresAt() {
        return changedAt + ttlMs;
    }

    /** Whether a program with this start time had the time to receive its peers from the feed. */
    boolean knowsPeers(long startedAt) {
        return startedAt <= changedAt - LEARNING_MS;
    }
}
