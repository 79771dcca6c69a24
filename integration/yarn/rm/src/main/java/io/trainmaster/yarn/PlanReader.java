package io.trainmaster.yarn;

import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationPlan;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Container;
import io.trainmaster.yarn.v1.Node;
import io.trainmaster.yarn.v1.NodeState;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Request;
import io.trainmaster.yarn.v1.Slot;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;

/** Checks a plan against the snapshot that it answers. Invalid parts are ignored, and the others stay in force. */
final class PlanReader {
    /** The longest TTL that is enforced without a newer answer. */
    private static final long LONGEST_TTL_MS = TimeUnit.MINUTES.toMillis(1);

    private final Map<String, Application> applications;
    /** The room that the plan leaves on each node that isn't gone. */
    private final Map<String, Map<String, Long>> room = new HashMap<>();

    private final List<String> ignored = new ArrayList<>();

    private PlanReader(Cluster cluster) {
        applications = cluster.getApplicationsList().stream().collect(Collectors.toMap(Application::getId, app -> app));
        for (Node node : cluster.getNodesList()) {
            if (node.getState() != NodeState.NODE_STATE_GONE) {
                room.put(node.getId(), new HashMap<>(node.getCapacityMap()));
            }
        }
    }

    /**
     * Reads a plan.
     *
     * @param ignored gets a line for each ignored part
     */
    static EnforceablePlan read(Plan plan, Cluster cluster, List<String> ignored) throws SidecarException {
        if (plan.getTtlMs() <= 0) {
            throw new SidecarException(Failure.ERROR, "a plan with a TTL of " + plan.getTtlMs() + " ms", null);
        }
        PlanReader reader = new PlanReader(cluster);
        if (plan.getTtlMs() > LONGEST_TTL_MS) {
            reader.ignored.add("the TTL of " + plan.getTtlMs() + " ms is cut to " + LONGEST_TTL_MS + " ms");
        }
        Map<ApplicationId, EnforceablePlan.Job> jobs = reader.jobs(plan);
        ignored.addAll(reader.ignored);
        return new EnforceablePlan(
                plan.getTerm(),
                plan.getNumber(),
                Math.min(plan.getTtlMs(), LONGEST_TTL_MS),
                reader.applications.keySet().stream()
                        .map(ApplicationId::fromString)
                        .collect(Collectors.toUnmodifiableSet()),
                Map.copyOf(jobs));
    }

    private Map<ApplicationId, EnforceablePlan.Job> jobs(Plan plan) {
        Map<ApplicationId, EnforceablePlan.Job> jobs = new HashMap<>();
        for (ApplicationPlan part : plan.getApplicationsList()) {
            Application application = applications.get(part.getId());
            if (application == null) {
                ignored.add("\"" + part.getId() + "\" is not a live application of type " + Jobs.TYPE);
                continue;
            }
            OptionalInt priority = part.hasPriority() ? OptionalInt.of(part.getPriority()) : OptionalInt.empty();
            EnforceablePlan.Job job =
                    switch (part.getAction()) {
                        case ACTION_RUN -> run(application, part.getSlotsList(), part.getGraceMs(), priority);
                        case ACTION_HOLD -> run(application, List.of(), part.getGraceMs(), priority);
                        case ACTION_RELEASE -> new EnforceablePlan.Release(priority);
                        case ACTION_KILL -> new EnforceablePlan.Kill(part.getReason());
                        case UNRECOGNIZED -> {
                            ignored.add(part.getId() + ": unknown action " + part.getActionValue());
                            yield null;
                        }
                    };
            if (job != null && jobs.put(ApplicationId.fromString(part.getId()), job) != null) {
                ignored.add(part.getId() + ": planned twice, the last one counts");
            }
        }
        return jobs;
    }

    private EnforceablePlan.Run run(Application application, List<Slot> planned, long graceMs, OptionalInt priority) {
        Map<Long, Map<String, Long>> sizes = sizes(application);
        Map<Long, NodeId> slots = new HashMap<>();
        Set<Long> left = new HashSet<>();
        for (Slot slot : planned) {
            long id = slot.getAllocationRequest();
            String where = application.getId() + ", slot " + id + ": ";
            if (slots.containsKey(id) || left.contains(id)) {
                ignored.add(where + "planned twice, the first one counts");
            } else if (!room.containsKey(slot.getNode())) {
                ignored.add(where + "unknown node \"" + slot.getNode() + "\"");
                left.add(id);
            } else if (!take(slot.getNode(), sizes.getOrDefault(id, Map.of()))) {
                ignored.add(where + "the plan exceeds the capacity of node " + slot.getNode());
                left.add(id);
            } else {
                slots.put(id, NodeId.fromString(slot.getNode()));
            }
        }
        return new EnforceablePlan.Run(Map.copyOf(slots), Set.copyOf(left), Math.max(0, graceMs), priority);
    }

    /** The demand of each slot of an application, if a container or a request has it. */
    private static Map<Long, Map<String, Long>> sizes(Application application) {
        Map<Long, Map<String, Long>> sizes = new HashMap<>();
        for (Request request : application.getRequestsList()) {
            sizes.put(request.getAllocationRequest(), request.getResourceMap());
        }
        for (Container container : application.getContainersList()) {
            sizes.put(container.getAllocationRequest(), container.getResourceMap());
        }
        return sizes;
    }

    private boolean take(String node, Map<String, Long> size) {
        Map<String, Long> free = room.get(node);
        boolean fits = size.entrySet().stream()
                .allMatch(amount -> amount.getValue() <= free.getOrDefault(amount.getKey(), 0L));
        if (fits) {
            size.forEach((name, much) -> free.merge(name, -much, Long::sum));
        }
        return fits;
    }
}
