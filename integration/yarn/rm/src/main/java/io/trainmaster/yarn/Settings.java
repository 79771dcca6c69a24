package io.trainmaster.yarn;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What {@code yarn-site.xml} says to the plug-ins.
 *
 * <p>A bad value never keeps a ResourceManager from starting: it is logged as an error, and its default holds.
 *
 * @param address where the sidecar listens
 * @param intervalMs between two exchanges
 * @param deadlineMs for an exchange
 * @param admissionDeadlineMs for an answer at submission, while the submitting client waits
 * @param failClosed refuse TRAINMASTER applications while nobody answers
 * @param complaints about values that aren't allowed
 */
record Settings(
        Address address,
        int intervalMs,
        int deadlineMs,
        int admissionDeadlineMs,
        boolean failClosed,
        List<String> complaints) {

    private static final Logger LOG = LoggerFactory.getLogger(Settings.class);

    static final Setting<Address> ADDRESS =
            new Setting<>("trainmaster.yarn.address", new Address("127.0.0.1", 7071), "HOST:PORT", Address::parse);
    static final Setting<Integer> INTERVAL = Setting.millis("trainmaster.yarn.interval-ms", 1000, 100, 60_000);
    static final Setting<Integer> DEADLINE = Setting.millis("trainmaster.yarn.deadline-ms", 500, 10, 60_000);
    static final Setting<Integer> ADMISSION_DEADLINE =
            Setting.millis("trainmaster.yarn.admission.deadline-ms", 200, 10, 10_000);
    static final Setting<Boolean> FAIL_CLOSED = Setting.flag("trainmaster.yarn.admission.fail-closed", false);

    /** A TCP endpoint; an IPv6 host stands in brackets. */
    record Address(String host, int port) {
        static Address parse(String text) {
            int colon = text.lastIndexOf(':');
            int port = Integer.parseInt(text.substring(colon + 1));
            if (colon < 1 || port < 1 || port > 65_535 || text.indexOf('/') >= 0) {
                throw new IllegalArgumentException();
            }
            return new Address(text.substring(0, colon), port);
        }

        @Override
        public String toString() {
            return host + ":" + port;
        }
    }

    static Settings of(Configuration configuration) {
        List<String> complaints = new ArrayList<>();
        Settings settings = new Settings(
                ADDRESS.read(configuration, complaints),
                INTERVAL.read(configuration, complaints),
                DEADLINE.read(configuration, complaints),
                ADMISSION_DEADLINE.read(configuration, complaints),
                FAIL_CLOSED.read(configuration, complaints),
                complaints);
        complaints.forEach(LOG::error);
        return settings;
    }
}
