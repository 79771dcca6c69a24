package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.MemoryRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.junit.jupiter.api.Test;

/** Admission of submissions. */
class AdmissionTest {
    private static final Map<String, String> CLOSED = Map.of(Settings.FAIL_CLOSED.key(), "true");

    @Test
    void theSidecarGetsTheSubmission() throws Exception {
        try (Lab lab = new Lab()) {
            lab.submit(lab.submission(Jobs.TYPE, "name = \"resnet\""));
            Submission asked = lab.sidecar.submissions.get(0);
            assertEquals("name = \"resnet\"", asked.getJob());
            assertEquals("name of it", asked.getName());
            assertEquals("default", asked.getQueue());
            assertEquals(System.getProperty("user.name"), asked.getUser());
        }
    }

    @Test
    void aRefusalReachesTheClientWithItsReason() throws Exception {
        try (Lab lab = new Lab()) {
            lab.sidecar.judge = submission -> Verdict.newBuilder()
                    .setReason("needs 9 GPUs on one server; the largest has 8")
                    .build();
            ApplicationSubmissionContext submission = lab.submission(Jobs.TYPE, "");
            YarnException refusal = assertThrows(YarnException.class, () -> lab.submit(submission));
            assertTrue(refusal.getMessage().contains("needs 9 GPUs"), refusal.getMessage());
            assertEquals(0, lab.rm.getRMContext().getRMApps().size());
            lab.submit(lab.submission("SPARK", ""));
            assertEquals(1, lab.sidecar.submissions.size(), "other applications are not checked");
        }
    }

    @Test
    void withoutAnAnswerASubmissionIsAdmitted() throws Exception {
        try (Lab lab = new Lab()) {
            lab.sidecar.stop();
            lab.submit(lab.submission(Jobs.TYPE, ""));
            assertEquals(1, lab.rm.getRMContext().getRMApps().size());
        }
    }

    @Test
    void withoutAnAnswerASubmissionIsRefusedIfConfigured() throws Exception {
        try (Lab lab = new Lab(CLOSED)) {
            lab.sidecar.stop();
            ApplicationSubmissionContext submission = lab.submission(Jobs.TYPE, "");
            YarnException refusal = assertThrows(YarnException.class, () -> lab.submit(submission));
            assertTrue(refusal.getMessage().contains(Settings.FAIL_CLOSED.key()), refusal.getMessage());
            lab.submit(lab.submission("SPARK", ""));
        }
    }

    @Test
    void anInternalErrorCountsAsNoAnswer() throws Exception {
        for (boolean closed : List.of(false, true)) {
            try (Lab lab = new Lab(Map.of(Settings.FAIL_CLOSED.key(), String.valueOf(closed)))) {
                AdmissionRule rule = new AdmissionRule();
                rule.initialize(lab.rm.getResourceScheduler());
                ApplicationSubmissionContext submission = lab.submission(Jobs.TYPE, "");
                submission.setQueue(null);
                long before = BridgeMetrics.get().admissionsUnanswered.value();
                if (closed) {
                    assertThrows(YarnException.class, () -> rule.getPlacementForApp(submission, "user"));
                } else {
                    assertNull(rule.getPlacementForApp(submission, "user"));
                }
                assertEquals(before + 1, BridgeMetrics.get().admissionsUnanswered.value());
            }
        }
    }

    @Test
    void aSubmissionDoesNotWaitForASlowSidecar() throws Exception {
        CountDownLatch release = new CountDownLatch(1);
        try (Lab lab = new Lab(Map.of(Settings.ADMISSION_DEADLINE.key(), "100"))) {
            lab.sidecar.judge = submission -> {
                try {
                    release.await();
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
                return Verdict.getDefaultInstance();
            };
            lab.submit(lab.submission(Jobs.TYPE, ""));
            assertEquals(1, release.getCount(), "admitted before the sidecar's answer");
            release.countDown();
        }
    }

    @Test
    void recoveredApplicationsAreNotCheckedAgain() throws Exception {
        MemoryRMStateStore store = new MemoryRMStateStore();
        YarnConfiguration configuration = new YarnConfiguration();
        configuration.setBoolean(YarnConfiguration.RECOVERY_ENABLED, true);
        store.init(configuration);
        Map<String, String> recovery = Map.of(
                YarnConfiguration.RECOVERY_ENABLED, "true",
                Settings.FAIL_CLOSED.key(), "true");
        try (Lab first = new Lab(recovery, store)) {
            RMApp app = first.submit(first.submission(Jobs.TYPE, "name = \"resnet\""));
            try (Lab second = new Lab(recovery, store)) {
                second.sidecar.judge = submission -> Verdict.getDefaultInstance();
                assertTrue(second.rm.getRMContext().getRMApps().containsKey(app.getApplicationId()));
                assertEquals(0, second.sidecar.submissions.size());
                second.round();
                assertEquals(
                        "name = \"resnet\"",
                        second.sidecar.lastSnapshot().getApplications(0).getJob());
            }
        }
    }
}
