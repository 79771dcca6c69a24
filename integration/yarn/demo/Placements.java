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
 * Compares, container by container, what the daemon plans for its jobs with what the ResourceManager says they have, until all
 * have ended. Then prints the shapes that jobs had, and what the comparison found; exits with 1 if anything was elsewhere.
 *
 * <p>The ResourceManager knows a container's node and resources; which slot it is, the program in it has written down. Plans take
 * a while to be carried out, so one is compared from when its containers are there, or {@link #PATIENCE_MS} after it was
 * made at the latest. What was seen counts if the plan still stands, and the job still runs, at the next look.
 */
final class Placements {
    /** The adapter's {@code placement_timeout}: who waits longer for a container is told to make another plan. */
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

    /** What a job has and should have; as long as `plan` is the same. */
    private static final class Watched {
        final List<String> shapes = new ArrayList<>();
        int incarnation;
        int live;
        int restarts;
        String plan = "";
        long since;
        boolean settled;
        List<String> planned = List.of();
        /** Of the last look, until the next one confirms it. */
        List<String> there;
    }

    private final Map<String, Watched> jobs = new TreeMap<>();
    private final List<Long> delays = new ArrayList<>();
    private int compared;
    private int mismatches;
    private int late;
    private int superseded;

    /** The arguments: trainmaster, the daemon's address, the ResourceManager's, what programs wrote, how many jobs there will be. */
    public static void main(String[] arguments) throws Exception {
        Placements placements = new Placements(arguments);
        while (placements.look() < Integer.parseInt(arguments[4])) {
            Thread.sleep(INTERVAL_MS);
        }
        System.exit(placements.report() ? 0 : 1);
    }

    /** How many jobs have ended. */
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
            boolean runs = job.get("state").asText().equals("running");
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
        String plan = job.get("state").asText() + job.get("incarnation") + "." + job.get("revision") + job.get("slots");
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
            String which = words(job.get("incarnation").asText(), slot.get("role").asText(), slot.get("index").asText());
            planned.add(words(which, slot.get("server").asText(), worker ? 1 : 0));
        }
        Collections.sort(planned);
        return planned;
    }

    private static String words(String incarnation, String role, String index) {
        return role + " " + index + " of incarnation " + incarnation;
    }

    private static String words(String which, String node, int gpus) {
        return which + " on " + node + " with " + gpus + " GPUs";
    }

    /** All of an application's but the ApplicationMaster's. */
    private List<String> containers(String application) throws IOException {
        List<String> containers = new ArrayList<>();
        JsonNode attempts = application == null ? JSON.createArrayNode() : get("/" + application + "/appattempts").at("/appAttempts/appAttempt");
        if (attempts.isEmpty()) {
            return containers;
        }
        JsonNode attempt = attempts.get(attempts.size() - 1);
        JsonNode there = get("/" + application + "/appattempts/" + attempt.get("appAttemptId").asText() + "/containers");
        Map<String, String> written = new HashMap<>();
        for (String line : Files.readAllLines(slots)) {
            String[] words = line.split(" ");
            written.put(words[0], words(words[1], words[2], words[3]));
        }
        for (JsonNode container : there.at("/container")) {
            String id = container.get("containerId").asText();
            if (!id.equals(attempt.get("containerId").asText())) {
                int gpus = 0;
                for (JsonNode resource : container.at("/allocatedResources/entry")) {
                    gpus += resource.get("key").asText().equals("yarn.io/gpu") ? resource.get("value").asInt() : 0;
                }
                containers.add(words(written.getOrDefault(id, id), container.get("nodeId").asText(), gpus));
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
            System.err.println(name + ": planned but not there: " + missing + "; there but not planned: " + unplanned);
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
        System.out.printf("(w,p) changed %d times without a stop and %d times by a restart from the checkpoint%n", live, restarts);
        System.out.printf(
                "%d comparisons of a slot in a plan with its container: %d mismatches, in %d plans; %d more were superseded before%n",
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
