import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.yarn.applications.distributedshell.Client;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * Submits a distributed shell for each line {@code NAME SECONDS} of its input: a container with a GPU that sleeps for
 * this time. One Java process submits all, because a process for each would take seconds to start.
 */
final class Shells {
    /** Argument: the distributed shell's jar, which its client copies for its ApplicationMaster. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        List<Thread> clients = new ArrayList<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            Thread client = new Thread(() -> run(arguments[0], words[0], words[1]), words[0]);
            client.start();
            clients.add(client);
        }
        for (Thread client : clients) {
            client.join();
        }
        System.exit(0);
    }

    private static void run(String jar, String name, String seconds) {
        String[] options = {
            "-jar", jar, "-appname", name, "-master_memory", "128", "-num_containers", "1",
            "-container_resources", "memory-mb=128,vcores=1,yarn.io/gpu=1",
            "-shell_command", "sleep", "-shell_args", seconds
        };
        try {
            Client client = new Client(new YarnConfiguration());
            client.init(options);
            System.err.println(name + (client.run() ? " succeeded" : " failed"));
        } catch (Exception e) {
            e.printStackTrace();
        }
    }
}
