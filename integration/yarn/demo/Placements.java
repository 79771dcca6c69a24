import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Compares the containers that the daemon plans for its jobs with those in the ResourceManager, until all jobs have
 * ended. Then prints the jobs' shapes and the result. Exits with 1 if a container is on another node than planned.
 *
 * <p>The ResourceManager has a container's node and resources. Its slot is in a file that the program in it writes.
 * Since plans take time to be carried out, a plan is compared once its containers exist, or {@link #PATIENCE_MS} after
 * it was made. A comparison counts if the plan is still in force, and the job still running, at the next look.
 */
final class Placements {
    /**
     * The adapter's {@code placement_timeout}: a plan whose containers aren't allocated within this time is refused.
     */
    private static final long PATIENCE_MS = 30_000;

    private static final long INTERVAL_MS = 1000;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final List<String> command;
    private final String resourceManager;
    private final Path slots;

    private Placements(String[] arguments) {
        command = List.of(arguments[0], "--server", arguments[1], "jobs", "--all", "--json");
        resourceManager = arguments[2] + "/ws/v1/cluster/apps";
        slots = Path.of(arguments[3]);
    }

    /** A job's planned and existing containers, for its current plan. */
    private static final class Watched {
        final List<String> shapes = new ArrayList<>();
        int incarnation;
        int live;
        int restarts;
        String plan = "";
        long since;
        boolean settled;
        List<String> planned = List.of();
        /** The containers at the last look, until the next look confirms them. */
        List<String> there;
    }

    private final Map<String, Watched> jobs = new TreeMap<>();
    private final List<Long> delays = new ArrayList<>();
    private int compared;
    private int mismatches;
    private int late;
    private int superseded;

    /** Arguments: trainmaster, addresses of daemon and ResourceManager, the programs' file, number of jobs. */
    public static void main(String[] arguments) throws Exception {
        Placements placements = new Placements(arguments);
        while (placements.look() < Integer.parseInt(arguments[4])) {
            Thread.sleep(INTERVAL_MS);
        }
        System.exit(placements.report() ? 0 : 1);
    }

    /** Compares all jobs. Returns the number of ended jobs. */
    private int look() throws Exception {
        JsonNode list;
        try {
            list = plans();
        } catch (IOException e) {
            System.err.println("no answer: " + e.getMessage());
            return 0;
        }
        Map<String, String> applications = new HashMap<>();
        for (JsonNode app : get("?applicationTypes=TRAINMASTER&deSelects=resourceRequests").at("/apps/app")) {
            applications.put(app.get("name").asText(), app.get("id").asText());
        }
        int ended = 0;
        for (JsonNode job : list.get("jobs")) {
            ended += job.get("ended_ms").isNull() ? 0 : 1;
            String name = job.get("name").asText();
            Watched watched = jobs.computeIfAbsent(name, key -> new Watched());
            follow(name, job, watched);
            boolean runs = runs(job);
            watched.there = runs ? containers(applications.get(name)) : null;
            if (!runs || watched.settled) {
                continue;
            }
            long took = System.currentTimeMillis() - watched.since;
            boolean equal = watched.there.equals(watched.planned);
            if (equal || took > PATIENCE_MS) {
                watched.settled = true;
                delays.add(took);
                late += equal ? 0 : 1;
            } else {
                watched.there = null;
            }
        }
        return ended;
    }

    /** Whether some of its slots exist. */
    private static boolean runs(JsonNode job) {
        return List.of("running", "restarting", "crashing").contains(job.get("state").asText());
    }

    private JsonNode plans() throws Exception {
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        JsonNode list = JSON.readTree(process.getInputStream());
        if (process.waitFor() != 0) {
            throw new IOException("the daemon's jobs can't be listed");
        }
        return list;
    }

    private JsonNode get(String path) throws IOException {
        return JSON.readTree(URI.create(resourceManager + path).toURL());
    }

    private void follow(String name, JsonNode job, Watched watched) {
        String state = runs(job) ? "running" : "waiting";
        String plan = state + job.get("incarnation") + "." + job.get("revision") + job.get("slots");
        if (plan.equals(watched.plan)) {
            if (watched.there != null) {
                count(name, watched);
            }
            return;
        }
        if (watched.plan.startsWith("running") && !watched.settled) {
            superseded += 1;
        }
        watched.plan = plan;
        watched.since = System.currentTimeMillis();
        watched.settled = false;
        watched.planned = planned(job);
        shape(job, watched);
    }

    private static void shape(JsonNode job, Watched watched) {
        int incarnation = job.get("incarnation").asInt();
        String shape = "(" + job.get("workers") + "," + job.get("servers") + ")";
        boolean first = watched.shapes.isEmpty();
        boolean restart = incarnation != watched.incarnation;
        boolean same = !first && watched.shapes.get(watched.shapes.size() - 1).endsWith(shape);
        if (!job.get("state").asText().equals("running") || same && !restart) {
            return;
        }
        watched.shapes.add((first ? "" : restart ? "!" : "~") + shape);
        watched.restarts += !first && restart ? 1 : 0;
        watched.live += first || restart ? 0 : 1;
        watched.incarnation = incarnation;
    }

    private static List<String> planned(JsonNode job) {
        List<String> planned = new ArrayList<>();
        for (JsonNode slot : job.get("slots")) {
            boolean worker = slot.get("role").asText().equals("worker");
            String which =
                    describe(job.get("incarnation").asText(), slot.get("role").asText(), slot.get("index").asText());
            planned.add(describe(which, slot.get("server").asText(), worker ? 1 : 0));
        }
        Collections.sort(planned);
        return planned;
    }

    private static String describe(String incarnation, String role, String index) {
        return role + " " + index + " of incarnation " + incarnation;
    }

    private static String describe(String which, String node, int gpus) {
        return which + " on " + node + " with " + gpus + " GPUs";
    }

    /** All containers of an application, without the ApplicationMaster's. */
    private List<String> containers(String application) throws IOException {
        List<String> containers = new ArrayList<>();
        JsonNode attempts = JSON.createArrayNode();
        if (application != null) {
            attempts = get("/" + application + "/appattempts").at("/appAttempts/appAttempt");
        }
        if (attempts.isEmpty()) {
            return containers;
        }
        JsonNode attempt = attempts.get(attempts.size() - 1);
        String id = attempt.get("appAttemptId").asText();
        JsonNode there = get("/" + application + "/appattempts/" + id + "/containers");
        Map<String, String> written = new HashMap<>();
        for (String line : Files.readAllLines(slots)) {
            String[] fields = line.split(" ");
            written.put(fields[0], describe(fields[1], fields[2], fields[3]));
        }
        for (JsonNode container : there.at("/container")) {
            String containerId = container.get("containerId").asText();
            if (!containerId.equals(attempt.get("containerId").asText())) {
                int gpus = 0;
                for (JsonNode resource : container.at("/allocatedResources/entry")) {
                    gpus += resource.get("key").asText().equals("yarn.io/gpu") ? resource.get("value").asInt() : 0;
                }
                String which = written.getOrDefault(containerId, containerId);
                containers.add(describe(which, container.get("nodeId").asText(), gpus));
            }
        }
        Collections.sort(containers);
        return containers;
    }

    private void count(String name, Watched watched) {
        List<String> missing = new ArrayList<>(watched.planned);
        watched.there.forEach(missing::remove);
        List<String> unplanned = new ArrayList<>(watched.there);
        watched.planned.forEach(unplanned::remove);
        compared += watched.planned.size();
        mismatches += Math.max(missing.size(), unplanned.size());
        if (!missing.isEmpty() || !unplanned.isEmpty()) {
            System.err.println(name + ": planned but missing: " + missing + "; existing but not planned: " + unplanned);
        }
    }

    private boolean report() {
        int live = 0;
        int restarts = 0;
        for (Map.Entry<String, Watched> job : jobs.entrySet()) {
            System.out.println("shapes " + job.getKey() + " " + String.join(" ", job.getValue().shapes));
            live += job.getValue().live;
            restarts += job.getValue().restarts;
        }
        Collections.sort(delays);
        System.out.printf(
                "(w,p) changed %d times in place and %d times by a restart from a checkpoint%n", live, restarts);
        System.out.printf(
                "%d comparisons of a slot in a plan with its container: %d mismatches, in %d plans;"
                        + " %d more were superseded before%n",
                compared, mismatches, delays.size(), superseded);
        if (!delays.isEmpty()) {
            System.out.printf(
                    "plans were carried out within %.1f s in the median and %.1f s at most; %d were not within %d s%n",
                    delays.get(delays.size() / 2) / 1000.0,
                    delays.get(delays.size() - 1) / 1000.0,
                    late,
                    PATIENCE_MS / 1000);
        }
        return compared > 0 && mismatches == 0 && late == 0 && live + restarts > 0;
    }
}
