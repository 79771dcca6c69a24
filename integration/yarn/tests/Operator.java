import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceOption;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.client.ClientRMProxy;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocol;
import org.apache.hadoop.yarn.server.api.protocolrecords.UpdateNodeResourceRequest;

/** Operations that the ResourceManager's REST API lacks, because it supports only memory and cores. */
public final class Operator {
    private Operator() {}

    /**
     * {@code provide NODE=NAME:AMOUNT,… …} sets the resources of nodes. {@code occupy NODE=NAME:AMOUNT,…} submits
     * another user's application with these resources of a node, and prints its id.
     */
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration configuration = new YarnConfiguration();
        Map<String, Resource> nodes = new HashMap<>();
        for (String pair : Arrays.asList(arguments).subList(1, arguments.length)) {
            nodes.put(pair.substring(0, pair.indexOf('=')), resource(pair.substring(pair.indexOf('=') + 1)));
        }
        if (arguments[0].equals("provide")) {
            provide(configuration, nodes);
        } else {
            String node = nodes.keySet().iterator().next();
            occupy(configuration, node, nodes.get(node));
        }
    }

    private static Resource resource(String amounts) {
        Resource resource = Resource.newInstance(1, 0);
        for (String amount : amounts.split(",")) {
            String[] pair = amount.split(":");
            resource.setResourceValue(pair[0], Long.parseLong(pair[1]));
        }
        return resource;
    }

    private static void provide(YarnConfiguration configuration, Map<String, Resource> nodes) throws Exception {
        Map<NodeId, ResourceOption> options = new HashMap<>();
        nodes.forEach(
                (node, resource) -> options.put(NodeId.fromString(node), ResourceOption.newInstance(resource, -1)));
        ClientRMProxy.createRMProxy(configuration, ResourceManagerAdministrationProtocol.class)
                .updateNodeResource(UpdateNodeResourceRequest.newInstance(options));
        // The connection would keep the program running.
        System.exit(0);
    }

    private static void occupy(YarnConfiguration configuration, String node, Resource resource) throws Exception {
        YarnClient client = YarnClient.createYarnClient();
        client.init(configuration);
        client.start();
        ApplicationSubmissionContext context = client.createApplication().getApplicationSubmissionContext();
        context.setApplicationName("guest");
        context.setMaxAppAttempts(1);
        List<String> sleep = List.of("sleep 600");
        context.setAMContainerSpec(ContainerLaunchContext.newInstance(null, null, sleep, null, null, null));
        context.setAMContainerResourceRequests(List.of(
                request(ResourceRequest.ANY, resource, false),
                request("/default-rack", resource, false),
                request(node, resource, true)));
        System.out.println(client.submitApplication(context));
        client.stop();
    }

    private static ResourceRequest request(String where, Resource resource, boolean relaxed) {
        return ResourceRequest.newInstance(Priority.newInstance(0), where, resource, 1, relaxed);
    }
}
