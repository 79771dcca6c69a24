package io.trainmaster.yarn;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;

/** The representation of a job in a submission. */
final class Jobs {
    /** The application type of jobs that Trainmaster plans. */
    static final String TYPE = "TRAINMASTER";

    /**
     * The ApplicationMaster's environment variable with the job file's text. It is stored with the submission, so that
     * it survives restarts of the ResourceManager until the application ends.
     */
    static final String VARIABLE = "TRAINMASTER_JOB";

    /** The variable with the secret. The snapshot has only its hash. */
    static final String SECRET = "TRAINMASTER_SECRET";

    /** The maximum length of a percent-encoded job file. The adapter refuses longer ones. */
    static final int LONGEST = 3 * (64 << 10);

    private Jobs() {}

    static boolean isJob(String applicationType) {
        return TYPE.equalsIgnoreCase(applicationType);
    }

    /** The job file, cut one character after the maximum length. */
    static String fileOf(ApplicationSubmissionContext submission) {
        return cut(variable(submission, VARIABLE), LONGEST + 1);
    }

    /** The beginning of a foreign text. */
    static String cut(String text, int longest) {
        return text.length() <= longest ? text : text.substring(0, longest);
    }

    /**
     * The SHA-256, in hex, of the secret that identifies the application's ApplicationMaster. Empty without a secret.
     */
    static String secretHashOf(ApplicationSubmissionContext submission) {
        String secret = variable(submission, SECRET);
        if (secret.isEmpty()) {
            return "";
        }
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(secret.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String variable(ApplicationSubmissionContext submission, String name) {
        ContainerLaunchContext master = submission.getAMContainerSpec();
        Map<String, String> environment = master == null ? null : master.getEnvironment();
        return environment == null ? "" : environment.getOrDefault(name, "");
    }
}
