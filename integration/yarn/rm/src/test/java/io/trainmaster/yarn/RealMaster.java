package io.trainmaster.yarn;

import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.YarnApplicationAttemptState;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.NMTokenCache;
import org.apache.hadoop.yarn.client.api.YarnClient;

/** An unmanaged ApplicationMaster in the test's own process. Its containers sleep. */
final class RealMaster implements AutoCloseable {
    final ApplicationAttemptId attempt;
    /** The received exit statuses, by the container's memory in MiB. */
    final Map<Long, Integer> exits = new HashMap<>();

    private final UserGroupInformation user;
    private final AMRMClient<ContainerRequest> scheduler;
    private final NMClient nodes;
    private final Map<String, Long> sizes = new HashMap<>();

    static ApplicationId submit(YarnClient client, String type, String job) throws Exception {
        ApplicationSubmissionContext submission = client.createApplication().getApplicationSubmissionContext();
        submission.setApplicationName("real");
        submission.setApplicationType(type);
        submission.setUnmanagedAM(true);
        submission.setResource(Resource.newInstance(64, 1));
        submission.setAMContainerSpec(
                ContainerLaunchContext.newInstance(null, Map.of(Jobs.VARIABLE, job), null, null, null, null));
        return client.submitApplication(submission);
    }

    RealMaster(Configuration configuration, YarnClient client, String type, String job) throws Exception {
        ApplicationId id = submit(client, type, job);
        attempt = ApplicationAttemptId.newInstance(id, 1);
        Waiting.until(() -> client.getApplicationReport(id).getCurrentApplicationAttemptId() != null
                && client.getApplicationAttemptReport(attempt).getYarnApplicationAttemptState()
                        == YarnApplicationAttemptState.LAUNCHED);
        user = UserGroupInformation.createRemoteUser(
                UserGroupInformation.getCurrentUser().getShortUserName());
        user.addToken(client.getAMRMToken(id));
        NMTokenCache tokens = new NMTokenCache();
        scheduler = AMRMClient.createAMRMClient();
        nodes = NMClient.createNMClient();
        scheduler.setNMTokenCache(tokens);
        nodes.setNMTokenCache(tokens);
        // Containers end with the application. A cleanup of each would wait for lost nodes.
        nodes.cleanupRunningContainersOnStop(false);
        as(() -> {
            scheduler.init(configuration);
            scheduler.start();
            nodes.init(configuration);
            nodes.start();
            return scheduler.registerApplicationMaster("localhost", 0, "");
        });
    }

    private <T> T as(PrivilegedExceptionAction<T> action) throws Exception {
        return user.doAs(action);
    }

    /** Requests a container on any node. */
    void ask(long request, int memory) throws Exception {
        as(() -> {
            scheduler.addContainerRequest(new ContainerRequest(
                    Resource.newInstance(memory, 1), null, null, Priority.newInstance(20), request, true, null));
            return null;
        });
    }

    /** Sends a heartbeat, and starts allocated containers. Returns the response. */
    AllocateResponse beat() throws Exception {
        return as(() -> {
            AllocateResponse response = scheduler.allocate(0);
            List<Container> allocated = new ArrayList<>(response.getAllocatedContainers());
            for (Container container : allocated) {
                sizes.put(container.getId().toString(), container.getResource().getMemorySize());
                nodes.startContainer(
                        container,
                        ContainerLaunchContext.newInstance(
                                Map.of(), Map.of(), List.of("exec sleep 600"), null, null, null));
            }
            for (ContainerStatus status : response.getCompletedContainersStatuses()) {
                exits.put(sizes.get(status.getContainerId().toString()), status.getExitStatus());
            }
            return response;
        });
    }

    @Override
    public void close() throws Exception {
        as(() -> {
            scheduler.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "", "");
            scheduler.stop();
            nodes.stop();
            return null;
        });
    }
}
