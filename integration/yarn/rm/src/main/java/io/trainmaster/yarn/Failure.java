package io.trainmaster.yarn;

/** Why an exchange gave no new plan. */
enum Failure {
    /** Nobody listens, or the connection broke. */
    UNREACHABLE("the sidecar can't be reached"),
    /** No answer before the deadline. */
    LATE("the sidecar doesn't answer in time"),
    /** It wants another token. */
    DENIED("the sidecar doesn't take the token"),
    /** The file of the authority or of the token. */
    CREDENTIALS("a file for reaching the sidecar can't be used"),
    /** An error, or an answer that can't be read. */
    ERROR("the sidecar's answer is an error"),
    /** A plan older than the one in force. */
    OUTDATED("the sidecar's plan is older than the one in force"),
    /** A fault of this plug-in, or of what the ResourceManager told it. */
    INTERNAL("the snapshot or the plan couldn't be handled");

    private final String text;

    Failure(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
