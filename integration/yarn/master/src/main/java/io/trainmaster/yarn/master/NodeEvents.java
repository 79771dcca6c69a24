package io.trainmaster.yarn.master;

import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.async.NMClientAsync;

/** Answers of NodeManagers. The ResourceManager reports the ends of programs. */
final class NodeEvents extends NMClientAsync.AbstractCallbackHandler {
    private final Master master;

    NodeEvents(Master master) {
        this.master = master;
    }

    @Override
    public void onStartContainerError(ContainerId id, Throwable error) {
        master.notStarted(id, error);
    }

    @Override
    public void onStopContainerError(ContainerId id, Throwable error) {
        master.notStopped(id);
    }

    @Override
    public void onContainerStarted(ContainerId id, Map<String, ByteBuffer> services) {}

    @Override
    public void onContainerStopped(ContainerId id) {}

    @Override
    public void onContainerStatusReceived(ContainerId id, ContainerStatus status) {}

    @Override
    public void onGetContainerStatusError(ContainerId id, Throwable error) {}

    @Override
    @Deprecated
    public void onContainerResourceIncreased(ContainerId id, Resource resource) {}

    @Override
    public void onContainerResourceUpdated(ContainerId id, Resource resource) {}

    @Override
    @Deprecated
    public void onIncreaseContainerResourceError(ContainerId id, Throwable error) {}

    @Override
    public void onUpdateContainerResourceError(ContainerId id, Throwable error) {}
}
