package io.trainmaster.yarn.master;

/** A container of the job. */
final class Held {
    private static final long NEVER = Long.MAX_VALUE;
    private static final long NOT_LAUNCHED = -1;

    final String id;
    /** host:port of the container's node. */
    final String node;

    final long request;
    private long launchedAt = NOT_LAUNCHED;
    private boolean adopted;
    private long stopAt = NEVER;
    private long releaseAt = NEVER;
    private boolean stopped;
    private boolean released;

    Held(String id, String node, long request) {
        this.id = id;
        this.node = node;
        this.request = request;
    }

    void launch(long now) {
        launchedAt = now;
    }

    /** Takes over a container of an earlier ApplicationMaster. */
    void adopt(long now) {
        launchedAt = now;
        adopted = true;
    }

    /** Start time of its program. Unknown for an adopted container. */
    long startedAt() {
        return adopted ? Long.MIN_VALUE : launchedAt;
    }

    boolean isLaunched() {
        return launchedAt != NOT_LAUNCHED;
    }

    long ranMs(long now) {
        return now - launchedAt;
    }

    /**
     * Has the container leave: its program has until {@code at} to end, and its node the grace time to stop it. This
     * can't be undone, because the program may be ending already.
     */
    void leave(long at, long graceMs) {
        stopAt = Math.min(stopAt, at);
        releaseAt = Math.min(releaseAt, at + graceMs);
    }

    boolean isLeaving() {
        return stopAt != NEVER;
    }

    /** Whether to stop the container now. True once. */
    boolean isStopDue(long now) {
        boolean due = !stopped && now >= stopAt;
        stopped |= due;
        return due;
    }

    /** Whether to release the container now, because its node didn't stop it. True once. */
    boolean isReleaseDue(long now) {
        boolean due = !released && now >= releaseAt;
        released |= due;
        return due;
    }

    /** Time of the next action of leaving. */
    long dueAt() {
        return stopped ? (released ? NEVER : releaseAt) : stopAt;
    }
}
