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
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceUtilization;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
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
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Reads the state of a ResourceManager.
 *
 * <p>The scheduler's locks are held for one node or application at a time. Changes during a snapshot are in the next
 * one. Nodes are read before applications, so that the containers of every listed node are listed. A row that can't be
 * read wholly is included in part, because a missing row would count as gone.
 */
final class Snapshot {
    private static final long ENDED_KEPT_MS = TimeUnit.MINUTES.toMillis(10);

    /** The maximum length of a foreign text, so that no job makes the snapshot too large. */
    static final int LONGEST_TEXT = 2000;

    /** The maximum length of all job files of one user, and of all users. */
    static final int MOST_OF_USER = 4 << 20;

    static final int MOST_OF_ALL = 32 << 20;

    /** The maximum number of requests per application. The others follow once these are met. */
    static final int MOST_REQUESTS = 16_384;

    private final RMContext context;
    private final CapacityScheduler scheduler;
    private final Faults faults;
    private final long since = System.currentTimeMillis();
    /** For returning nodes, the scheduler's last heartbeat from them when they were first seen. */
    private final Map<NodeId, Long> returning = new HashMap<>();

    private final Set<NodeId> complete = new HashSet<>();

    Snapshot(RMContext context, CapacityScheduler scheduler, Faults faults) {
        this.context = context;
        this.scheduler = scheduler;
        this.faults = faults;
    }

    /**
     * Takes a snapshot.
     *
     * @param enforced the number of the plan in force, 0 without one
     * @param missed ids of applications to include even if they ended long ago
     */
    Cluster take(long enforced, Set<String> missed) {
        Cluster.Builder cluster = Cluster.newBuilder()
                .setStartedMs(ResourceManager.getClusterTimeStamp())
                .setEnforced(enforced)
                .setNodeExpiryMs(context.getYarnConfiguration()
                        .getInt(
                                YarnConfiguration.RM_NM_EXPIRY_INTERVAL_MS,
                                YarnConfiguration.DEFAULT_RM_NM_EXPIRY_INTERVAL_MS));
        faults.guard("the largest container", () -> cluster.putAllLargestContainer(largest()));
        Map<NodeId, RMNode> nodes = new HashMap<>(context.getInactiveRMNodes());
        nodes.putAll(context.getRMNodes());
        returning.keySet().retainAll(nodes.keySet());
        complete.retainAll(nodes.keySet());
        nodes.forEach((id, node) -> {
            Node.Builder row = Node.newBuilder().setId(id.toString());
            boolean[] known = {true};
            faults.guard("reading node " + id, () -> known[0] = read(node, row));
            if (known[0]) {
                cluster.addNodes(row);
            }
        });
        long endedSince = System.currentTimeMillis() - ENDED_KEPT_MS;
        Map<ApplicationId, RMApp> listed = new TreeMap<>();
        context.getRMApps().forEach((id, app) -> faults.guard("listing " + id, () -> {
            if (Jobs.isJob(app.getApplicationType())
                    && (!app.isAppInCompletedStates()
                            || app.getFinishTime() >= endedSince
                            || missed.contains(id.toString()))) {
                listed.put(id, app);
            }
        }));
        Map<ApplicationId, String> jobs = jobs(listed);
        listed.forEach((id, app) -> faults.guard(
                "listing " + id, () -> cluster.addApplications(application(id, app, jobs.get(id)))));
        return cluster.build();
    }

    /**
     * The included job files of live applications: the oldest of each user, then the second oldest of each, and so on,
     * within the limits.
     */
    private Map<ApplicationId, String> jobs(Map<ApplicationId, RMApp> apps) {
        Map<String, Integer> turns = new HashMap<>();
        Map<Integer, List<JobFile>> inTurn = new TreeMap<>();
        apps.forEach((id, app) -> faults.guard("reading the job of " + id, () -> {
            if (!app.isAppInCompletedStates()) {
                String user = app.getUser();
                JobFile file = new JobFile(id, user, Jobs.fileOf(app.getApplicationSubmissionContext()));
                inTurn.computeIfAbsent(turns.merge(user, 1, Integer::sum), turn -> new ArrayList<>())
                        .add(file);
            }
        }));
        Map<ApplicationId, String> jobs = new HashMap<>();
        Map<String, Integer> ofUser = new HashMap<>();
        int all = 0;
        for (List<JobFile> turn : inTurn.values()) {
            for (JobFile file : turn) {
                int length = file.text().length();
                int own = ofUser.getOrDefault(file.user(), 0) + length;
                if (own <= MOST_OF_USER && all + length <= MOST_OF_ALL) {
                    jobs.put(file.id(), file.text());
                    ofUser.put(file.user(), own);
                    all += length;
                }
            }
        }
        return jobs;
    }

    private record JobFile(ApplicationId id, String user, String text) {}

    /** The configured maximum allocation, without unlimited types. The nodes' own capacity is in their rows. */
    private Map<String, Long> largest() {
        Map<String, Long> largest =
                amounts(ResourceUtils.fetchMaximumAllocationFromConfig(scheduler.getConfiguration()));
        largest.values().removeIf(amount -> amount >= Integer.MAX_VALUE);
        return largest;
    }

    /** Reads a node. Returns false if the node isn't known yet. */
    private boolean read(RMNode node, Node.Builder row) {
        row.setName(node.getHostName());
        org.apache.hadoop.yarn.api.records.NodeState state = node.getState();
        SchedulerNode scheduled = scheduler.getSchedulerNode(node.getNodeID());
        switch (state) {
            case NEW -> {
                return false;
            }
            case RUNNING -> {
                if (scheduled == null || isReturning(node, scheduled)) {
                    return false;
                }
                row.setState(NodeState.NODE_STATE_RUNNING);
            }
            case DECOMMISSIONING -> row.setState(NodeState.NODE_STATE_DECOMMISSIONING);
            default -> {
                complete.remove(node.getNodeID());
                row.setState(NodeState.NODE_STATE_GONE);
            }
        }
        row.putAllCapacity(amounts(node.getTotalCapability()));
        row.setRack(Objects.requireNonNullElse(node.getRackName(), ""));
        if (scheduled != null) {
            row.setName(scheduled.getNodeName())
                    .putAllCapacity(amounts(scheduled.getTotalResource()))
                    .setPartition(scheduled.getPartition());
            Map<String, Long> allocated = amounts(scheduled.getAllocatedResource());
            RMContainer reserved = scheduled.getReservedContainer();
            if (reserved != null) {
                amounts(reserved.getReservedResource()).forEach((name, much) -> allocated.merge(name, much, Long::sum));
            }
            row.putAllAllocated(allocated);
        }
        ResourceUtilization used = node.getAggregatedContainersUtilization();
        if (used != null) {
            row.putUsed(ResourceInformation.MEMORY_URI, used.getPhysicalMemory())
                    .putUsed(ResourceInformation.VCORES_URI, used.getCPU());
        }
        for (NodeAttribute attribute : node.getAllNodeAttributes()) {
            row.putAttributes(
                    attribute.getAttributeKey().getAttributePrefix() + "/"
                            + attribute.getAttributeKey().getAttributeName(),
                    Objects.requireNonNullElse(attribute.getAttributeValue(), ""));
        }
        return true;
    }

    /**
     * Whether the scheduler may not know a node's containers of an earlier ResourceManager yet. The scheduler first
     * adds the node, then its containers, both before the node's next heartbeat.
     */
    private boolean isReturning(RMNode node, SchedulerNode scheduled) {
        NodeId id = node.getNodeID();
        if (complete.contains(id)) {
            return false;
        }
        long heartbeat = scheduled.getLastHeartbeatMonotonicTime();
        Long first = returning.putIfAbsent(id, heartbeat);
        if (first == null ? hasEarlierApplications(node) : first == heartbeat) {
            return true;
        }
        returning.remove(id);
        complete.add(id);
        return false;
    }

    private boolean hasEarlierApplications(RMNode node) {
        for (ApplicationId id : node.getRunningApps()) {
            RMApp app = context.getRMApps().get(id);
            if (app != null && app.getStartTime() < since) {
                return true;
            }
        }
        return false;
    }

    /** Reads an application, with its job file or null. */
    private Application application(ApplicationId id, RMApp app, String job) {
        Application.Builder row = Application.newBuilder().setId(id.toString());
        faults.guard("reading the state of " + id, () -> row.setState(state(app)));
        row.setJob(Objects.requireNonNullElse(job, ""));
        faults.guard(
                "reading whether " + id + " has ended",
                () -> row.setUntold(job == null && !app.isAppInCompletedStates()));
        faults.guard(
                "reading the secret of " + id,
                () -> row.setSecretHash(Jobs.secretHashOf(app.getApplicationSubmissionContext())));
        faults.guard("reading the containers of " + id, () -> read(app, row));
        faults.guard("reading " + id, () -> row.setUser(app.getUser())
                .setQueue(app.getQueue())
                .setPriority(app.getApplicationPriority().getPriority())
                .setName(Jobs.cut(app.getName(), LONGEST_TEXT)));
        return row.build();
    }

    private void read(RMApp app, Application.Builder row) {
        RMAppAttempt attempt = app.getCurrentAppAttempt();
        if (attempt != null) {
            row.setAttempt(attempt.getAppAttemptId().getAttemptId());
        }
        if (app.isAppInCompletedStates()) {
            row.setDiagnostics(Jobs.cut(app.getDiagnostics().toString(), LONGEST_TEXT));
            return;
        }
        SchedulerApplicationAttempt scheduled =
                attempt == null ? null : scheduler.getApplicationAttempt(attempt.getAppAttemptId());
        if (scheduled == null) {
            return;
        }
        for (RMContainer container : scheduled.getLiveContainers()) {
            if (container.isAMContainer()) {
                row.setMasterNode(container.getAllocatedNode().toString())
                        .putAllMaster(amounts(container.getAllocatedResource()));
            } else {
                row.addContainers(live(container));
            }
        }
        scheduled.getReservedContainers().forEach(container -> row.addContainers(reserved(container)));
        // While the ApplicationMaster waits for its container, the only request is its own.
        if (!scheduled.isWaitingForAMContainer()) {
            row.addAllRequests(requests(scheduled.getAppSchedulingInfo().getAllResourceRequests()));
        }
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

    /** Merges the requests. YARN has one for any place, and one for each named rack and node. */
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
            if (request.getCount() > 0 && wanted.size() < MOST_REQUESTS) {
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
