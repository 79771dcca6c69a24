package io.trainmaster.yarn;

/** The sidecar gave no usable answer. */
final class SidecarException extends Exception {
    private static final long serialVersionUID = 1;

    private final Failure failure;

    SidecarException(Failure failure, String details, Throwable cause) {
        super(failure + ": " + details, cause);
        this.failure = failure;
    }

    Failure failure() {
        return failure;
    }
}
