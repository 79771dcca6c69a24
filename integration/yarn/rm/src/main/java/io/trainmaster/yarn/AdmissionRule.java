package io.trainmaster.yarn;

import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.placement.ApplicationPlacementContext;
import org.apache.hadoop.yarn.server.resourcemanager.placement.PlacementRule;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks the sidecar about each TRAINMASTER application at its submission, and passes a refusal with its reason to the
 * client.
 *
 * <p>For {@code yarn.scheduler.queue-placement-rules}, before the other rules. It leaves the choice of the queue to the
 * next rule. A recovered application is not checked again after a restart of the ResourceManager.
 */
public final class AdmissionRule extends PlacementRule {
    private static final Logger LOG = LoggerFactory.getLogger(AdmissionRule.class);

    private final BridgeMetrics metrics = BridgeMetrics.get();
    private Settings settings;
    private Sidecar sidecar;

    @Override
    public boolean initialize(ResourceScheduler scheduler) {
        settings = Settings.of(scheduler instanceof Configurable known ? known.getConf() : new Configuration(false));
        sidecar = Sidecar.at(settings.endpoint());
        return true;
    }

    @Override
    public ApplicationPlacementContext getPlacementForApp(
            ApplicationSubmissionContext submission, String user, boolean recovery) throws YarnException {
        return recovery ? null : getPlacementForApp(submission, user);
    }

    @Override
    public ApplicationPlacementContext getPlacementForApp(ApplicationSubmissionContext submission, String user)
            throws YarnException {
        if (Jobs.isJob(submission.getApplicationType())) {
            admit(submission, user);
        }
        return null;
    }

    private void admit(ApplicationSubmissionContext submission, String user) throws YarnException {
        metrics.admissions.incr();
        Verdict verdict;
        try {
            verdict = sidecar.admit(
                    Submission.newBuilder()
                            .setUser(user)
                            .setQueue(submission.getQueue())
                            .setName(Jobs.cut(submission.getApplicationName(), Snapshot.LONGEST_TEXT))
                            .setJob(Jobs.fileOf(submission))
                            .build(),
                    settings.admissionDeadlineMs());
        } catch (SidecarException unanswered) {
            admitUnchecked(submission, unanswered.failure());
            return;
        } catch (RuntimeException fault) {
            LOG.error("The admission check of {} failed", submission.getApplicationId(), fault);
            admitUnchecked(submission, Failure.INTERNAL);
            return;
        }
        if (!verdict.getAdmitted()) {
            metrics.admissionsRefused.incr();
            throw new YarnException("Refused by Trainmaster: " + verdict.getReason());
        }
    }

    private void admitUnchecked(ApplicationSubmissionContext submission, Failure why) throws YarnException {
        metrics.admissionsUnanswered.incr();
        if (settings.failClosed()) {
            throw new YarnException("Trainmaster can't check this job (" + why + "), and "
                    + Settings.FAIL_CLOSED.key() + " is true; submit it again later");
        }
        LOG.info("{} is admitted without a check: {}", submission.getApplicationId(), why);
    }
}
