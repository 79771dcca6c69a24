package io.trainmaster.yarn;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The plug-ins' settings from {@code yarn-site.xml}.
 *
 * <p>An invalid value never keeps a ResourceManager from starting: it is logged as an error, and the default is used.
 *
 * @param endpoint the sidecar's endpoint
 * @param intervalMs time between two exchanges
 * @param deadlineMs deadline of an exchange
 * @param admissionDeadlineMs deadline of an admission check, for which the submitting client waits
 * @param failClosed whether to refuse TRAINMASTER applications if the sidecar doesn't answer
 * @param complaints messages about invalid values
 */
record Settings(
        Endpoint endpoint,
        int intervalMs,
        int deadlineMs,
        int admissionDeadlineMs,
        boolean failClosed,
        List<String> complaints) {

    private static final Logger LOG = LoggerFactory.getLogger(Settings.class);

    private static final String ADDRESSES = "HOST:PORT, an IPv6 address in brackets";
    static final Setting<Address> ADDRESS =
            new Setting<>("trainmaster.yarn.address", new Address("127.0.0.1", 7071), ADDRESSES, Address::parse);
    static final Setting<Optional<Path>> CA =
            Setting.file("trainmaster.yarn.ca", "a PEM file with the authority's certificate, readable");
    static final Setting<Optional<Path>> TOKEN_FILE =
            Setting.file("trainmaster.yarn.token-file", "a file with the token alone, readable");
    static final Setting<Integer> INTERVAL = Setting.millis("trainmaster.yarn.interval-ms", 1000, 100, 60_000);
    static final Setting<Integer> DEADLINE = Setting.millis("trainmaster.yarn.deadline-ms", 500, 10, 60_000);
    static final Setting<Integer> ADMISSION_DEADLINE =
            Setting.millis("trainmaster.yarn.admission.deadline-ms", 200, 10, 10_000);
    static final Setting<Boolean> FAIL_CLOSED = Setting.flag("trainmaster.yarn.admission.fail-closed", false);

    /**
     * A TCP endpoint.
     *
     * @param host a name or an address. An IPv6 address is in brackets
     */
    record Address(String host, int port) {
        private static final Pattern FORM = Pattern.compile("([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+]):([0-9]{1,5})");

        /** Accepts only addresses that gRPC accepts, because gRPC would refuse others later. */
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

    /**
     * The endpoint of the sidecar.
     *
     * @param address the sidecar's address
     * @param ca the authority of its certificate. Empty: plain text
     * @param tokenFile the file with the token. Empty: no token
     */
    record Endpoint(Address address, Optional<Path> ca, Optional<Path> tokenFile) {
        static Endpoint plain(Address address) {
            return new Endpoint(address, Optional.empty(), Optional.empty());
        }

        @Override
        public String toString() {
            return address + (ca.isPresent() ? " with TLS" : "");
        }
    }

    static Settings of(Configuration configuration) {
        List<String> complaints = new ArrayList<>();
        Endpoint endpoint = new Endpoint(
                ADDRESS.read(configuration, complaints),
                CA.read(configuration, complaints),
                TOKEN_FILE.read(configuration, complaints));
        // Configured files are required. A missing file can be created later: each call tries to read it.
        endpoint.ca().ifPresent(path -> check(CA, path, () -> Sidecar.trust(path), complaints));
        endpoint.tokenFile().ifPresent(path -> check(TOKEN_FILE, path, () -> TokenFile.read(path), complaints));
        Settings settings = new Settings(
                endpoint,
                INTERVAL.read(configuration, complaints),
                DEADLINE.read(configuration, complaints),
                ADMISSION_DEADLINE.read(configuration, complaints),
                FAIL_CLOSED.read(configuration, complaints),
                complaints);
        complaints.forEach(LOG::error);
        return settings;
    }

    private interface Attempt {
        Object make() throws IOException;
    }

    private static void check(Setting<?> setting, Path path, Attempt attempt, List<String> complaints) {
        try {
            attempt.make();
        } catch (IOException | RuntimeException unusable) {
            complaints.add(
                    setting.complaint(path) + " (" + unusable + "). The sidecar isn't called until the file is usable");
        }
    }
}
