package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import java.io.IOException;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The program that a NodeManager starts for a job. */
public final class Main {
    private static final Logger LOG = LoggerFactory.getLogger(Main.class);

    /** The variable with the job's secret, which identifies the job to the adapter. */
    private static final String SECRET = "TRAINMASTER_SECRET";

    private Main() {}

    /**
     * Manages the job of this process' environment.
     *
     * @param arguments none
     */
    public static void main(String[] arguments) {
        int status = 0;
        try {
            run();
        } catch (Exception error) {
            LOG.error("the ApplicationMaster failed", error);
            // YARN adds it to the application's diagnostics.
            System.err.println("the ApplicationMaster failed: " + error);
            status = 1;
        }
        // Hadoop's clients can leave threads running.
        System.exit(status);
    }

    private static void run() throws Exception {
        ContainerId own = ContainerId.fromString(variable(ApplicationConstants.Environment.CONTAINER_ID.key()));
        ApplicationId application = own.getApplicationAttemptId().getApplicationId();
        Identity identity = new Identity(application.toString(), variable(SECRET));
        YarnConfiguration configuration = new YarnConfiguration();
        Settings settings;
        Launcher launcher;
        Orders standalone;
        try {
            settings = Settings.of(configuration);
            Path checkpoints = settings.checkpoints();
            String folder =
                    checkpoints == null ? "" : Checkpoints.folder(checkpoints, application.toString()).toString();
            launcher = new Launcher(settings.trainer(), folder);
            standalone = Standalone.parse(System.getenv(Standalone.VARIABLE));
        } catch (IllegalArgumentException bad) {
            LOG.error("invalid configuration", bad);
            refuse(configuration, bad.getMessage());
            return;
        }
        new Master(launcher, standalone).run(configuration, settings, identity);
    }

    /** Ends the application as failed. */
    private static void refuse(Configuration configuration, String reason) throws YarnException, IOException {
        try (AMRMClient<ContainerRequest> scheduler = AMRMClient.createAMRMClient()) {
            scheduler.init(configuration);
            scheduler.start();
            scheduler.registerApplicationMaster("", 0, "");
            scheduler.unregisterApplicationMaster(FinalApplicationStatus.FAILED, reason, "");
        }
    }

    private static String variable(String name) {
        String value = System.getenv(name);
        if (value == null || value.isEmpty()) {
            throw new IllegalStateException(name + " isn't set; trainmaster yarn submit sets it");
        }
        return value;
    }
}
