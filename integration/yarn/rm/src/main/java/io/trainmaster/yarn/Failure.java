package io.trainmaster.yarn;

/** The reason for an exchange without a new plan. */
enum Failure {
    /** Nothing listens, or the connection broke. */
    UNREACHABLE("the sidecar is unreachable"),
    /** No answer before the deadline. */
    LATE("the sidecar doesn't answer in time"),
    /** The sidecar requires another token. */
    DENIED("the sidecar refuses the token"),
    /** The authority's file or the token's file is unusable. */
    CREDENTIALS("the certificate or token file is unusable"),
    /** An error, or an unreadable answer. */
    ERROR("the sidecar's answer is an error"),
    /** A plan older than the one in force. */
    OUTDATED("the sidecar's plan is older than the one in force"),
    /** A fault of this plug-in, or of the ResourceManager's data. */
    INTERNAL("internal error with the snapshot or the plan");

    private final String text;

    Failure(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
