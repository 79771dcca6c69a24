package io.trainmaster.yarn;

import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationState;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Container;
import io.trainmaster.yarn.v1.ContainerState;
import io.trainmaster.yarn.v1.Node;
import io.trainmaster.yarn.v1.NodeState;
import io.trainmaster.yarn.v1.Request;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;

/**
 * Reads what there is from a ResourceManager.
 *
 * <p>Its locks are held for one node or application at a time; what changes meanwhile is in the next snapshot.
 */
final class Snapshot {
    private static final long ENDED_KEPT_MS = TimeUnit.MINUTES.toMillis(10);

    private final RMContext context;
    private final CapacityScheduler scheduler;

    Snapshot(RMContext context, CapacityScheduler scheduler) {
        this.context = context;
        this.scheduler = scheduler;
    }

    Cluster take(long enforced) {
        Cluster.Builder cluster = Cluster.newBuilder()
                .setStartedMs(ResourceManager.getClusterTimeStamp())
                .setEnforced(enforced);
        Map<NodeId, RMNode> nodes = new HashMap<>(context.getInactiveRMNodes());
        nodes.putAll(context.getRMNodes());
        nodes.values().forEach(node -> cluster.addNodes(node(node)));
        long since = System.currentTimeMillis() - ENDED_KEPT_MS;
        for (RMApp app : context.getRMApps().values()) {
            if (Jobs.isJob(app.getApplicationType())
                    && (!app.isAppInCompletedStates() || app.getFinishTime() >= since)) {
                cluster.addApplications(application(app));
            }
        }
        return cluster.build();
    }

    private Node node(RMNode node) {
        Node.Builder builder = Node.newBuilder()
                .setId(node.getNodeID().toString())
                .setName(node.getHostName())
                .setState(switch (node.getState()) {
                    case RUNNING -> NodeState.NODE_STATE_RUNNING;
                    case DECOMMISSIONING -> NodeState.NODE_STATE_DECOMMISSIONING;
                    default -> NodeState.NODE_STATE_GONE;
                })
                .putAllCapacity(amounts(node.getTotalCapability()));
        node.getAllNodeAttributes().forEach(attribute -> builder.putAttributes(
                attribute.getAttributeKey().getAttributeName(), attribute.getAttributeValue()));
        SchedulerNode scheduled = scheduler.getSchedulerNode(node.getNodeID());
        if (scheduled != null) {
            Map<String, Long> allocated = amounts(scheduled.getAllocatedResource());
            RMContainer reserved = scheduled.getReservedContainer();
            if (reserved != null) {
                amounts(reserved.getReservedResource()).forEach((name, much) -> allocated.merge(name, much, Long::sum));
            }
            builder.setName(scheduled.getNodeName())
                    .putAllCapacity(amounts(scheduled.getTotalResource()))
                    .putAllAllocated(allocated)
                    .setPartition(scheduled.getPartition());
        }
        return builder.build();
    }

    private Application application(RMApp app) {
        Application.Builder builder = Application.newBuilder()
                .setId(app.getApplicationId().toString())
                .setName(app.getName())
                .setUser(app.getUser())
                .setQueue(app.getQueue())
                .setPriority(app.getApplicationPriority().getPriority())
                .setState(state(app))
                .setJob(Jobs.fileOf(app.getApplicationSubmissionContext()))
                .setSecretHash(Jobs.secretHashOf(app.getApplicationSubmissionContext()));
        RMAppAttempt attempt = app.getCurrentAppAttempt();
        if (attempt != null) {
            builder.setAttempt(attempt.getAppAttemptId().getAttemptId());
        }
        if (app.isAppInCompletedStates()) {
            return builder.setDiagnostics(app.getDiagnostics().toString()).build();
        }
        SchedulerApplicationAttempt scheduled =
                attempt == null ? null : scheduler.getApplicationAttempt(attempt.getAppAttemptId());
        if (scheduled == null) {
            return builder.build();
        }
        for (RMContainer container : scheduled.getLiveContainers()) {
            if (container.isAMContainer()) {
                builder.setMasterNode(container.getAllocatedNode().toString())
                        .putAllMaster(amounts(container.getAllocatedResource()));
            } else {
                builder.addContainers(live(container));
            }
        }
        scheduled.getReservedContainers().forEach(container -> builder.addContainers(reserved(container)));
        // Until then the only request is the ApplicationMaster's own.
        if (!scheduled.isWaitingForAMContainer()) {
            builder.addAllRequests(requests(scheduled.getAppSchedulingInfo().getAllResourceRequests()));
        }
        return builder.build();
    }

    private static ApplicationState state(RMApp app) {
        YarnApplicationState state = app.createApplicationState();
        return switch (state) {
            case RUNNING -> ApplicationState.APPLICATION_STATE_RUNNING;
            case KILLED -> ApplicationState.APPLICATION_STATE_KILLED;
            case FAILED -> ApplicationState.APPLICATION_STATE_FAILED;
            case FINISHED -> switch (app.getFinalApplicationStatus()) {
                case FAILED -> ApplicationState.APPLICATION_STATE_FAILED;
                case KILLED -> ApplicationState.APPLICATION_STATE_KILLED;
                default -> ApplicationState.APPLICATION_STATE_SUCCEEDED;
            };
            default -> ApplicationState.APPLICATION_STATE_PENDING;
        };
    }

    private static Container live(RMContainer container) {
        return Container.newBuilder()
                .setId(container.getContainerId().toString())
                .setAllocationRequest(container.getAllocatedSchedulerKey().getAllocationRequestId())
                .setNode(container.getAllocatedNode().toString())
                .putAllResource(amounts(container.getAllocatedResource()))
                .setState(
                        container.getState() == RMContainerState.RUNNING
                                ? ContainerState.CONTAINER_STATE_RUNNING
                                : ContainerState.CONTAINER_STATE_ALLOCATED)
                .build();
    }

    private static Container reserved(RMContainer container) {
        return Container.newBuilder()
                .setId(container.getContainerId().toString())
                .setAllocationRequest(container.getReservedSchedulerKey().getAllocationRequestId())
                .setNode(container.getReservedNode().toString())
                .putAllResource(amounts(container.getReservedResource()))
                .setState(ContainerState.CONTAINER_STATE_RESERVED)
                .build();
    }

    /** YARN holds a request once for any place, and again for each rack and node it names. */
    private static List<Request> requests(List<ResourceRequest> asks) {
        Map<Long, List<String>> named = new HashMap<>();
        Map<Long, Request.Builder> requests = new LinkedHashMap<>();
        for (ResourceRequest ask : asks) {
            long id = ask.getAllocationRequestId();
            String name = ask.getResourceName();
            if (ResourceRequest.isAnyLocation(name)) {
                Request.Builder request = requests.computeIfAbsent(id, key -> Request.newBuilder());
                request.setAllocationRequest(id)
                        .setCount(request.getCount() + ask.getNumContainers())
                        .putAllResource(amounts(ask.getCapability()));
            } else if (!name.startsWith("/")) {
                named.computeIfAbsent(id, key -> new ArrayList<>()).add(name);
            }
        }
        List<Request> wanted = new ArrayList<>();
        requests.forEach((id, request) -> {
            List<String> names = named.getOrDefault(id, List.of());
            if (request.getCount() > 0) {
                wanted.add(request.setNode(names.size() == 1 ? names.get(0) : "").build());
            }
        });
        return wanted;
    }

    private static Map<String, Long> amounts(Resource resource) {
        Map<String, Long> amounts = new HashMap<>();
        if (resource != null) {
            for (ResourceInformation amount : resource.getResources()) {
                amounts.put(amount.getName(), amount.getValue());
            }
        }
        return amounts;
    }
}
