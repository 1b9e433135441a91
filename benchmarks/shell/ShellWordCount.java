package peer;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.ShellBolt;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.IRichBolt;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.tuple.Fields;
import org.apache.storm.utils.VersionInfo;

/** The peer's word count, but the split bolt is a Python program: LINES SCRIPT MODULES PYTHON TASKS. */
public final class ShellWordCount {
    private static final long TIMEOUT_S = 900;

    private ShellWordCount() {
    }

    public static void main(String[] arguments) throws Exception {
        Bench.lines = Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8).toArray(String[]::new);
        Bench.emitNanos = new long[Bench.lines.length];
        Bench.latencyNanos = new long[Bench.lines.length];
        int tasks = Integer.parseInt(arguments[4]);
        Bench.tasks = 2 * tasks;
        Map<String, Long> expected = counted();

        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new LineSpout(), 1);
        builder.setBolt("split", new Split(arguments[3], arguments[1], arguments[2]), tasks).shuffleGrouping("lines");
        builder.setBolt("count", new CountBolt(), tasks).fieldsGrouping("split", new Fields("word"));
        Config configuration = new Config();
        configuration.setNumWorkers(1);
        configuration.setNumAckers(1);
        configuration.setMaxSpoutPending(5_000);
        configuration.setMessageTimeoutSecs((int) TIMEOUT_S);

        LocalCluster cluster = new LocalCluster();
        cluster.submitTopology("shell", configuration, builder.createTopology());
        boolean finished = Bench.allAcked.await(TIMEOUT_S, TimeUnit.SECONDS);
        double seconds = (Bench.lastAckNanos - Bench.firstEmitNanos) / 1e9;
        boolean exact = finished && Bench.merged().equals(expected);
        System.out.printf(
                Locale.ROOT,
                "{\"storm\": \"%s\", \"lines\": %d, \"seconds\": %f, \"counts_exact\": %b}%n",
                VersionInfo.getVersion(), Bench.lines.length, seconds, exact);
        System.out.flush();
        Runtime.getRuntime().addShutdownHook(new Thread(ShellWordCount::stopChildren));
        System.exit(exact ? 0 : 1);
    }

    private static Map<String, Long> counted() {
        Map<String, Long> counts = new HashMap<>();
        List<String> words = new ArrayList<>();
        for (String line : Bench.lines) {
            Bench.split(line, words);
            words.forEach(word -> counts.merge(word, 1L, Long::sum));
        }
        return counts;
    }

    /** LocalCluster is left as it is; only its Python programs must not outlive it. */
    private static void stopChildren() {
        ProcessHandle.current().descendants().forEach(ProcessHandle::destroyForcibly);
    }

    /** Storm's way to a bolt in Python: its process, and JSON over its standard input and output. */
    public static final class Split extends ShellBolt implements IRichBolt {
        public Split(String python, String script, String modules) {
            super(python, script);
            changeChildCWD(false);
            setEnv(Map.of("PYTHONPATH", modules));
        }

        @Override
        public void prepare(Map<String, Object> configuration, TopologyContext context, OutputCollector collector) {
            super.prepare(configuration, context, collector);
            Bench.ready.incrementAndGet();
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return null;
        }
    }
}
