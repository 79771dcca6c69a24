package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Cluster;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Valid and invalid values. */
class SettingsTest {
    private static Settings read(String key, String value) {
        Configuration configuration = new Configuration(false);
        configuration.set(key, value);
        return Settings.of(configuration);
    }

    @Test
    void defaults() {
        Settings settings = Settings.of(new Configuration(false));
        assertEquals("127.0.0.1:7071", settings.endpoint().address().toString());
        assertEquals(
                List.of(1000, 500, 200),
                List.of(settings.intervalMs(), settings.deadlineMs(), settings.admissionDeadlineMs()));
        assertEquals(List.of(), settings.complaints());
    }

    @Test
    void validValuesAreUsed() {
        assertEquals("[::1]:9", read(Settings.ADDRESS.key(), "[::1]:9").endpoint().address().toString());
        assertEquals(250, read(Settings.INTERVAL.key(), " 250 ").intervalMs());
        assertTrue(read(Settings.FAIL_CLOSED.key(), "true").failClosed());
    }

    @ParameterizedTest
    @CsvSource({
        "trainmaster.yarn.address, 7071, HOST:PORT",
        "trainmaster.yarn.address, host:99999, HOST:PORT",
        "trainmaster.yarn.address, http://host:1, HOST:PORT",
        "trainmaster.yarn.address, user@host:1, HOST:PORT",
        "trainmaster.yarn.address, two words:1, HOST:PORT",
        "trainmaster.yarn.address, under_score:1, HOST:PORT",
        "trainmaster.yarn.address, -:1, HOST:PORT",
        "trainmaster.yarn.ca, /nowhere/ca.pem, a PEM file",
        "trainmaster.yarn.ca, ${trainmaster.yarn.ca}, a PEM file",
        "trainmaster.yarn.token-file, /nowhere/token, the token alone",
        "trainmaster.yarn.interval-ms, 1s, from 100 to 60000",
        "trainmaster.yarn.interval-ms, 99, from 100 to 60000",
        "trainmaster.yarn.deadline-ms, -5, from 10 to 60000",
        "trainmaster.yarn.admission.deadline-ms, 10001, from 10 to 10000",
        "trainmaster.yarn.admission.fail-closed, yes, true or false",
    })
    void invalidValuesAreNamedAndTheDefaultIsUsed(String key, String value, String allowed) {
        Settings settings = read(key, value);
        assertEquals(1, settings.complaints().size());
        String complaint = settings.complaints().get(0);
        for (String part : List.of(key, "\"" + value + "\"", allowed)) {
            assertTrue(complaint.contains(part), complaint);
        }
        Settings defaults = Settings.of(new Configuration(false));
        assertEquals(defaults.endpoint().address(), settings.endpoint().address());
        assertEquals(defaults.intervalMs(), settings.intervalMs());
        assertEquals(defaults.failClosed(), settings.failClosed());
    }

    @Test
    void gRpcAcceptsEachValidAddress() {
        for (String address : List.of("[::1]:9", "127.0.0.1:9", "a-host.example:9", "localhost:65535")) {
            Sidecar sidecar = Sidecar.at(Settings.Endpoint.plain(Settings.Address.parse(address)));
            assertThrows(SidecarException.class, () -> sidecar.exchange(Cluster.getDefaultInstance(), 10));
        }
    }

    @Test
    void theResourceManagerStartsWithInvalidValues() throws Exception {
        try (Lab lab = new Lab(Map.of(Settings.INTERVAL.key(), "soon", Settings.FAIL_CLOSED.key(), "maybe"))) {
            lab.plan(1000);
            lab.round();
            assertEquals(1, lab.sidecar.snapshots.size());
        }
    }
}
