package io.trainmaster.yarn;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
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

    private static final String ADDRESSES = "HOST:PORT, an IPv6 address in brackets";
    static final Setting<Address> ADDRESS =
            new Setting<>("trainmaster.yarn.address", new Address("127.0.0.1", 7071), ADDRESSES, Address::parse);
    static final Setting<Integer> INTERVAL = Setting.millis("trainmaster.yarn.interval-ms", 1000, 100, 60_000);
    static final Setting<Integer> DEADLINE = Setting.millis("trainmaster.yarn.deadline-ms", 500, 10, 60_000);
    static final Setting<Integer> ADMISSION_DEADLINE =
            Setting.millis("trainmaster.yarn.admission.deadline-ms", 200, 10, 10_000);
    static final Setting<Boolean> FAIL_CLOSED = Setting.flag("trainmaster.yarn.admission.fail-closed", false);

    /**
     * A TCP endpoint.
     *
     * @param host a name or an address; an IPv6 address stands in brackets
     */
    record Address(String host, int port) {
        private static final Pattern FORM = Pattern.compile("([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+]):([0-9]{1,5})");

        /** Takes nothing that gRPC would refuse later, in a place where nobody expects it. */
        static Address parse(String text) {
            Matcher form = FORM.matcher(text);
            if (!form.matches() || URI.create("dns://" + text).getHost() == null) {
                throw new IllegalArgumentException();
            }
            int port = Integer.parseInt(form.group(2));
            if (port < 1 || port > 65_535) {
                throw new IllegalArgumentException();
            }
            return new Address(form.group(1), port);
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
