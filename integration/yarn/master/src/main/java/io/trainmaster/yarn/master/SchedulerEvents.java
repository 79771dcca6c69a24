package io.trainmaster.yarn.master;

import java.util.List;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.UpdatedContainer;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;

/** Events of the ResourceManager. */
final class SchedulerEvents extends AMRMClientAsync.AbstractCallbackHandler {
    private final Master master;

    SchedulerEvents(Master master) {
        this.master = master;
    }

    @Override
    public void onContainersAllocated(List<Container> allocated) {
        master.allocated(allocated);
    }

    @Override
    public void onContainersCompleted(List<ContainerStatus> statuses) {
        master.completed(statuses);
    }

    @Override
    public void onPreemptionMessageReceived(PreemptionMessage message) {
        master.preempting(message);
    }

    @Override
    public void onShutdownRequest() {
        master.end();
    }

    @Override
    public void onError(Throwable error) {
        master.fail(error);
    }

    @Override
    public float getProgress() {
        return 0;
    }

    @Override
    public void onContainersUpdated(List<UpdatedContainer> updated) {}

    @Override
    public void onNodesUpdated(List<NodeReport> updated) {}
}
