package io.trainmaster.yarn;

import java.util.EnumMap;
import java.util.Map;
import org.apache.hadoop.metrics2.MetricsCollector;
import org.apache.hadoop.metrics2.MetricsRecordBuilder;
import org.apache.hadoop.metrics2.MetricsSource;
import org.apache.hadoop.metrics2.MetricsSystem;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.metrics2.lib.Interns;
import org.apache.hadoop.metrics2.lib.MetricsRegistry;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;

/** The plug-ins' counters: {@code Hadoop:service=ResourceManager,name=TrainmasterBridge} under {@code /jmx}. */
final class BridgeMetrics implements MetricsSource {
    static final String NAME = "TrainmasterBridge";

    /** One instance per process, like Hadoop's metrics. */
    private static final BridgeMetrics INSTANCE = new BridgeMetrics();

    private final MetricsRegistry registry = new MetricsRegistry(NAME);
    private final Map<Failure, MutableCounterLong> failures = new EnumMap<>(Failure.class);
    private volatile PlanHolder plans = new PlanHolder();

    final MutableCounterLong exchanges = counter("Exchanges", "Snapshots sent to the sidecar");
    final MutableCounterLong partsIgnored = counter("PlanPartsIgnored", "Invalid parts of plans");
    final MutableCounterLong stepsFailed =
            counter("StepsFailed", "Applications or nodes that failed wholly or in part");
    final MutableCounterLong containersMarked = counter("ContainersMarked", "Containers marked for preemption");
    final MutableCounterLong containersKilled = counter("ContainersKilled", "Containers killed after their grace time");
    final MutableCounterLong reservationsDropped = counter("ReservationsDropped", "Reservations that the plan dropped");
    final MutableCounterLong applicationsKilled = counter("ApplicationsKilled", "Applications killed by a plan");
    final MutableCounterLong prioritiesSet = counter("PrioritiesSet", "Changes of applications' priorities");
    final MutableCounterLong admissions = counter("Admissions", "Submissions sent to the sidecar");
    final MutableCounterLong admissionsRefused = counter("AdmissionsRefused", "Submissions that the sidecar refused");
    final MutableCounterLong admissionsUnanswered = counter("AdmissionsUnanswered", "Submissions without an answer");
    final MutableCounterLong settingsIgnored = counter("SettingsIgnored", "Settings with an invalid value");

    private BridgeMetrics() {
        failed(Failure.UNREACHABLE, "FailedUnreachable");
        failed(Failure.LATE, "FailedLate");
        failed(Failure.DENIED, "FailedDenied");
        failed(Failure.CREDENTIALS, "FailedCredentials");
        failed(Failure.ERROR, "FailedError");
        failed(Failure.OUTDATED, "FailedOutdated");
        failed(Failure.INTERNAL, "FailedInternal");
    }

    static BridgeMetrics get() {
        return INSTANCE;
    }

    private MutableCounterLong counter(String name, String description) {
        return registry.newCounter(name, description, 0L);
    }

    private void failed(Failure failure, String name) {
        failures.put(failure, counter(name, "Exchanges without a plan: " + failure));
    }

    MutableCounterLong failed(Failure failure) {
        return failures.get(failure);
    }

    /** Registers the counters, once per metrics system. A ResourceManager that becomes active again has a new one. */
    void register(PlanHolder watched) {
        plans = watched;
        MetricsSystem system = DefaultMetricsSystem.instance();
        if (system.getSource(NAME) == null) {
            system.register(NAME, "Trainmaster's plug-ins", this);
        }
    }

    @Override
    public void getMetrics(MetricsCollector collector, boolean all) {
        PlanInForce plan = plans.current();
        MetricsRecordBuilder record = collector.addRecord(NAME).setContext("yarn");
        registry.snapshot(record, true);
        record.addGauge(Interns.info("PlanInForce", "1 while a plan is enforced, else 0"), plan == null ? 0 : 1)
                .addGauge(
                        Interns.info("PlanAgeMs", "Age of the plan in force; -1 without one"),
                        plan == null ? -1L : plan.ageMs());
    }
}
