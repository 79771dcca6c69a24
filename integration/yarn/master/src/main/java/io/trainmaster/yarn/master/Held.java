package io.trainmaster.yarn.master;

/** A container that the job holds. */
final class Held {
    private static final long NEVER = Long.MAX_VALUE;
    private static final long NOT_LAUNCHED = -1;

    final String id;
    /** "host:port". */
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

    /** An earlier ApplicationMaster started it. */
    void adopt(long now) {
        launchedAt = now;
        adopted = true;
    }

    /** When its program started, as far as one can know. */
    long startedAt() {
        return adopted ? Long.MIN_VALUE : launchedAt;
    }

    boolean isLaunched() {
        return launchedAt != NOT_LAUNCHED;
    }

    long ranMs(long now) {
        return now - launchedAt;
    }

    /** It leaves by itself until then; it never stays again, since its program may be on its way. */
    void leave(long at, long graceMs) {
        stopAt = Math.min(stopAt, at);
        releaseAt = Math.min(releaseAt, at + graceMs);
    }

    boolean isLeaving() {
        return stopAt != NEVER;
    }

    /** Whether its node is to be told now to stop it. */
    boolean isStopDue(long now) {
        boolean due = !stopped && now >= stopAt;
        stopped |= due;
        return due;
    }

    /** Whether the ResourceManager is to take it away now, since its node didn't. */
    boolean isReleaseDue(long now) {
        boolean due = !released && now >= releaseAt;
        released |= due;
        return due;
    }

    /** When there is something to do about its leaving. */
    long dueAt() {
        return stopped ? (released ? NEVER : releaseAt) : stopAt;
    }
}
