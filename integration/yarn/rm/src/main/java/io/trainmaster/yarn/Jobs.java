package io.trainmaster.yarn;

import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;

/** How a job travels in a submission. */
final class Jobs {
    /** The application type of jobs that Trainmaster plans. */
    static final String TYPE = "TRAINMASTER";

    /**
     * The ApplicationMaster's environment variable with the job file's text. It is stored with the submission, so it
     * survives a restart of the ResourceManager, until the application ends.
     */
    static final String VARIABLE = "TRAINMASTER_JOB";

    private Jobs() {}

    static boolean isJob(String applicationType) {
        return TYPE.equalsIgnoreCase(applicationType);
    }

    static String fileOf(ApplicationSubmissionContext submission) {
        ContainerLaunchContext master = submission.getAMContainerSpec();
        Map<String, String> environment = master == null ? null : master.getEnvironment();
        return environment == null ? "" : environment.getOrDefault(VARIABLE, "");
    }
}
