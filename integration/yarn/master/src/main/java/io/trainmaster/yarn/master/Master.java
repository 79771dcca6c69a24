package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.io.IOException;
import java.security.SecureRandom;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.client.api.async.NMClientAsync;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.exceptions.YarnRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The loop around the {@link Fleet}, on one thread. It passes events of YARN and the adapter to it, and carries out
 * actions.
 */
final class Master {
    private static final Logger LOG = LoggerFactory.getLogger(Master.class);
    private static final int HEARTBEAT_MS = 500;
    private static final int SERVERS_PRIORITY = 10;
    private static final int WORKERS_PRIORITY = 20;

    private final Launcher launcher;
    private final Orders standalone;
    /** Null before the registration. */
    private Fleet fleet;
    /** The limit of one container. Null before the registration. */
    private Resource largest;
    private final ScheduledExecutorService loop = Executors.newSingleThreadScheduledExecutor();
    private final CompletableFuture<Void> end = new CompletableFuture<>();
    private final AMRMClientAsync<ContainerRequest> scheduler;
    private final NMClientAsync nodes;
    private final SecureRandom random = new SecureRandom();
    private final Map<Long, ContainerRequest> requests = new HashMap<>();
    private final Map<String, Container> containers = new HashMap<>();
    private Orders orders;
    private Future<?> alarm = CompletableFuture.completedFuture(null);

    /**
     * Makes the ApplicationMaster of a job.
     *
     * @param standalone the orders for standalone mode. Null: none
     */
    Master(Launcher launcher, Orders standalone) {
        this.launcher = launcher;
        this.standalone = standalone;
        scheduler = AMRMClientAsync.createAMRMClientAsync(HEARTBEAT_MS, new SchedulerEvents(this));
        nodes = NMClientAsync.createNMClientAsync(new NodeEvents(this));
        // A successor adopts running containers. YARN ends the others.
        nodes.getClient().cleanupRunningContainersOnStop(false);
    }

    /** Manages the job until its end. */
    void run(Configuration configuration, Settings settings, Identity identity) throws Exception {
        nodes.init(configuration);
        nodes.start();
        scheduler.init(configuration);
        scheduler.start();
        loop.submit(this::register).get();
        handle(() -> {});
        Follower follower = new Follower(
                settings,
                identity,
                next -> handle(() -> follow(next)),
                () -> handle(() -> fleet.disconnected(now())));
        try {
            end.get();
        } finally {
            follower.close();
            loop.shutdownNow();
            scheduler.stop();
            nodes.stop();
        }
    }

    /** Registers on the loop's thread, so that no event about a container comes before its adoption. */
    private Void register() throws YarnException, IOException {
        RegisterApplicationMasterResponse answer = scheduler.registerApplicationMaster("", 0, "");
        largest = answer.getMaximumResourceCapability();
        List<Held> adopted = answer.getContainersFromPreviousAttempts().stream()
                .map(container -> new Held(
                        hold(container), container.getNodeId().toString(), container.getAllocationRequestId()))
                .toList();
        fleet = new Fleet(Policy.DEFAULT, standalone, now());
        fleet.adopted(adopted, now());
        return null;
    }

    /** Handles an event, and carries out the actions that follow. */
    private void handle(Runnable event) {
        if (loop.isShutdown()) {
            return;
        }
        loop.execute(() -> {
            try {
                event.run();
                fleet.step(now()).forEach(this::act);
                alarm.cancel(false);
                if (fleet.wake() != Fleet.NEVER) {
                    long wait = Math.max(fleet.wake() - now(), 1);
                    alarm = loop.schedule(() -> handle(() -> {}), wait, TimeUnit.MILLISECONDS);
                }
            } catch (RuntimeException error) {
                fail(error);
            }
        });
    }

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private void follow(Orders next) {
        LOG.info("{} of {}, incarnation {}, revision {}: {} slots. {}", next.getStanding(), next.getName(),
                next.getIncarnation(), next.getRevision(), next.getSlotsCount(), next.getReason());
        orders = next;
        fleet.follow(next, now());
    }

    void allocated(List<Container> allocated) {
        handle(() -> allocated.forEach(container -> fleet.allocated(
                hold(container), container.getNodeId().toString(), container.getAllocationRequestId())));
    }

    void completed(List<ContainerStatus> statuses) {
        handle(() -> statuses.forEach(status -> {
            String id = status.getContainerId().toString();
            containers.remove(id);
            fleet.completed(id, new Exit(status.getExitStatus(), status.getDiagnostics()), now());
        }));
    }

    void preempting(PreemptionMessage message) {
        Set<PreemptionContainer> due = new HashSet<>();
        if (message.getContract() != null) {
            due.addAll(message.getContract().getContainers());
        }
        if (message.getStrictContract() != null) {
            due.addAll(message.getStrictContract().getContainers());
        }
        List<String> ids = due.stream().map(container -> container.getId().toString()).toList();
        handle(() -> fleet.preempting(ids, now()));
    }

    void notStarted(ContainerId id, Throwable why) {
        handle(() -> {
            release(id.toString());
            fleet.completed(id.toString(), Exit.notStarted(String.valueOf(why.getMessage())), now());
        });
    }

    /** Releases a container that its node failed to stop. */
    void notStopped(ContainerId id) {
        handle(() -> release(id.toString()));
    }

    /** Ends with an error. */
    void fail(Throwable why) {
        end.completeExceptionally(why);
    }

    /** Ends at the ResourceManager's request. */
    void end() {
        end.complete(null);
    }

    private String hold(Container container) {
        String id = container.getId().toString();
        containers.put(id, container);
        return id;
    }

    private void act(Action action) {
        LOG.info("{}", action instanceof Action.Warn warning ? warning.text() : action);
        try {
            perform(action);
        } catch (IllegalArgumentException | YarnRuntimeException bad) {
            // An invalid command or resource.
            handle(() -> fleet.fail(bad.getMessage()));
        }
    }

    private void perform(Action action) {
        if (action instanceof Action.Ask ask) {
            ask(ask.slot());
        } else if (action instanceof Action.Withdraw withdraw) {
            withdraw(withdraw.request());
        } else if (action instanceof Action.Release release) {
            release(release.container());
        } else if (action instanceof Action.Stop stop) {
            Container container = containers.get(stop.container());
            nodes.stopContainerAsync(container.getId(), container.getNodeId());
        } else if (action instanceof Action.Launch launch) {
            Container container = containers.get(launch.container());
            nodes.startContainerAsync(container, launcher.context(orders, launch.slot(), host(container)));
        } else if (action instanceof Action.LaunchTogether together) {
            launch(together.launches());
        } else if (action instanceof Action.Finish finish) {
            finish(finish);
        }
    }

    private void ask(SlotOrder slot) {
        Resource resource = Resource.newInstance(0, 1);
        slot.getResourceMap().forEach(resource::setResourceValue);
        Demand.check(slot, resource, largest);
        boolean anywhere = slot.getNode().isEmpty();
        ContainerRequest request = new ContainerRequest(
                resource,
                anywhere ? null : new String[] {slot.getNodeName()},
                null,
                Priority.newInstance(slot.getServer() ? SERVERS_PRIORITY : WORKERS_PRIORITY),
                slot.getAllocationRequest(),
                anywhere);
        requests.put(slot.getAllocationRequest(), request);
        scheduler.addContainerRequest(request);
    }

    private void withdraw(long slot) {
        ContainerRequest request = requests.remove(slot);
        if (request != null) {
            scheduler.removeContainerRequest(request);
        }
    }

    private void launch(List<Action.Launch> gang) {
        Map<SlotOrder, String> hosts = new HashMap<>();
        gang.forEach(launch -> hosts.put(launch.slot(), host(containers.get(launch.container()))));
        Peers peers = Peers.choose(hosts, random);
        for (Action.Launch launch : gang) {
            Container container = containers.get(launch.container());
            ContainerLaunchContext context = launcher.context(standalone, launch.slot(), host(container), peers);
            nodes.startContainerAsync(container, context);
        }
    }

    private static String host(Container container) {
        return container.getNodeId().getHost();
    }

    private void release(String id) {
        Container container = containers.get(id);
        if (container != null) {
            scheduler.releaseAssignedContainer(container.getId());
        }
    }

    private void finish(Action.Finish finish) {
        FinalApplicationStatus status =
                finish.succeeded() ? FinalApplicationStatus.SUCCEEDED : FinalApplicationStatus.FAILED;
        try {
            scheduler.unregisterApplicationMaster(status, finish.reason(), "");
            end.complete(null);
        } catch (YarnException | IOException error) {
            fail(error);
        }
    }
}
