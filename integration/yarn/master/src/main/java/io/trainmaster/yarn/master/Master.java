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

/** The loop around the {@link Fleet}, on one thread: YARN and the adapter tell it things, and it does what it says. */
final class Master {
    private static final Logger LOG = LoggerFactory.getLogger(Master.class);
    private static final int HEARTBEAT_MS = 500;
    private static final int SERVERS_PRIORITY = 10;
    private static final int WORKERS_PRIORITY = 20;

    private final Launcher launcher;
    private final Orders alone;
    /** From the registration on. */
    private Fleet fleet;
    /** The most that one container may have; null: not known yet. */
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
     * Of a job.
     *
     * @param alone its orders while nobody gives any; null: none
     */
    Master(Launcher launcher, Orders alone) {
        this.launcher = launcher;
        this.alone = alone;
        scheduler = AMRMClientAsync.createAMRMClientAsync(HEARTBEAT_MS, new SchedulerEvents(this));
        nodes = NMClientAsync.createNMClientAsync(new NodeEvents(this));
        // A successor takes over what may stay; YARN ends the rest.
        nodes.getClient().cleanupRunningContainersOnStop(false);
    }

    /** Manages the job until it is over. */
    void run(Configuration configuration, Settings settings, Identity identity) throws Exception {
        nodes.init(configuration);
        nodes.start();
        scheduler.init(configuration);
        scheduler.start();
        loop.submit(this::register).get();
        tell(() -> {});
        Follower follower = new Follower(
                settings, identity, next -> tell(() -> follow(next)), () -> tell(() -> fleet.disconnected(now())));
        try {
            end.get();
        } finally {
            follower.close();
            loop.shutdownNow();
            scheduler.stop();
            nodes.stop();
        }
    }

    /** On the loop's thread, so that nothing is heard of containers before they are known. */
    private Void register() throws YarnException, IOException {
        RegisterApplicationMasterResponse answer = scheduler.registerApplicationMaster("", 0, "");
        largest = answer.getMaximumResourceCapability();
        List<Held> adopted = answer.getContainersFromPreviousAttempts().stream()
                .map(container -> new Held(
                        hold(container), container.getNodeId().toString(), container.getAllocationRequestId()))
                .toList();
        fleet = new Fleet(Policy.DEFAULT, alone, now());
        fleet.adopted(adopted, now());
        return null;
    }

    /** Something happened: takes it in, and does what is to be done about it. */
    private void tell(Runnable event) {
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
                    alarm = loop.schedule(() -> tell(() -> {}), wait, TimeUnit.MILLISECONDS);
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
        tell(() -> allocated.forEach(container -> fleet.allocated(
                hold(container), container.getNodeId().toString(), container.getAllocationRequestId())));
    }

    void completed(List<ContainerStatus> statuses) {
        tell(() -> statuses.forEach(status -> {
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
        tell(() -> fleet.preempting(ids, now()));
    }

    void notStarted(ContainerId id, Throwable why) {
        tell(() -> {
            release(id.toString());
            fleet.completed(id.toString(), Exit.notStarted(String.valueOf(why.getMessage())), now());
        });
    }

    /** Its node didn't. */
    void notStopped(ContainerId id) {
        tell(() -> release(id.toString()));
    }

    /** The job can't be managed here any longer. */
    void fail(Throwable why) {
        end.completeExceptionally(why);
    }

    /** The ResourceManager doesn't want it any longer. */
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
            // A command or a resource that makes no sense.
            tell(() -> fleet.fail(bad.getMessage()));
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
            ContainerLaunchContext context = launcher.context(alone, launch.slot(), host(container), peers);
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
