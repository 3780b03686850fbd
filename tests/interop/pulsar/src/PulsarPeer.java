package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.policies.data.ManagedLedgerInternalStats.CursorStats;
import org.apache.pulsar.common.policies.data.ManagedLedgerInternalStats.LedgerInfo;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * A Pulsar client and administrator driven over stdin and stdout. Messages are numbered from 0 in each topic, and what the broker acknowledged is remembered,
 * so that a reader can tell what was lost.
 *
 * <p>Arguments: the service URL, the URL of the web service, the name of the cluster.
 */
public final class PulsarPeer implements CommandLoop.Commands {
    private static final int PENDING_MAX = 1000;
    private static final String NAMESPACE = "tenant/space";

    private final String clusterName;
    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final ConcurrentHashMap<String, PulsarFlow> flows = new ConcurrentHashMap<>();

    private PulsarPeer(String[] arguments) throws Exception {
        clusterName = arguments[2];
        client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        new CommandLoop(new PulsarPeer(arguments), answers).run();
        Runtime.getRuntime().halt(0);
    }

    @Override
    public ObjectNode run(String command, JsonNode request) throws Exception {
        return switch (command) {
            case "check_health" -> checkHealth();
            case "set_up" -> setUp();
            case "start_flow" -> startFlow(request);
            case "end_flow" -> flow(request).end();
            case "read_all" -> flow(request).readAll();
            case "individual_acks" -> individualAcks(request);
            case "schemas" -> schemas(request);
            case "compact" -> compact(request);
            case "transactions" -> transactions(request);
            case "unload" -> unload(request);
            case "ledgers" -> ledgers();
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private ObjectNode checkHealth() throws Exception {
        admin.brokers().healthcheck(org.apache.pulsar.common.naming.TopicVersion.V2);
        return CommandLoop.JSON.createObjectNode();
    }

    private ObjectNode setUp() throws Exception {
        admin.tenants().createTenant("tenant", TenantInfo.builder().allowedClusters(Set.of(clusterName)).build());
        admin.namespaces().createNamespace(NAMESPACE, Set.of(clusterName));
        return CommandLoop.JSON.createObjectNode();
    }

    private static String topic(JsonNode request) {
        return "persistent://" + NAMESPACE + "/" + request.get("topic").asText();
    }

    private PulsarFlow flow(JsonNode request) {
        return flows.get(topic(request));
    }

    /** Produces and consumes until "end_flow"; at most "count" messages if that is given. */
    private ObjectNode startFlow(JsonNode request) throws Exception {
        long count = request.has("count") ? request.get("count").asLong() : Long.MAX_VALUE;
        PulsarFlow flow = new PulsarFlow(client, topic(request), request.get("per_second").asInt(), count);
        flows.put(topic(request), flow);
        flow.start();
        return CommandLoop.JSON.createObjectNode();
    }

    /** Every third message stays without acknowledgement: the cursor keeps its holes in a ledger. */
    private ObjectNode individualAcks(JsonNode request) throws Exception {
        String topic = topic(request);
        int count = request.get("count").asInt();
        try (Consumer<byte[]> consumer = client.newConsumer()
                        .topic(topic)
                        .subscriptionName("some of them")
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int i = 0; i < count; i++) {
                producer.sendAsync(number(i));
            }
            producer.flush();
            for (int i = 0; i < count; i++) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (i % 3 != 0) {
                    consumer.acknowledge(message);
                }
            }
        }
        return CommandLoop.JSON.createObjectNode();
    }

    /** A topic with several versions of its schema. */
    private ObjectNode schemas(JsonNode request) throws Exception {
        String topic = topic(request);
        send(Schema.JSON(First.class), topic, new First());
        send(Schema.JSON(Second.class), topic, new Second());
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        return result.put("versions", admin.schemas().getAllSchemas(topic).size());
    }

    private <T> void send(Schema<T> schema, String topic, T value) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
        }
    }

    /** Values of a schema: the second has one more field. */
    public static class First {
        public String name = "a";
    }

    /** See First. */
    public static class Second extends First {
        public Integer size;
    }

    /** Messages of ten keys, compacted; returns how many a compacted reader gets. */
    private ObjectNode compact(JsonNode request) throws Exception {
        String topic = topic(request);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).maxPendingMessages(PENDING_MAX).blockIfQueueFull(true).create()) {
            for (int i = 0; i < request.get("count").asInt(); i++) {
                producer.newMessage().key("key " + i % 10).value(number(i)).sendAsync();
            }
            producer.flush();
        }
        admin.topics().triggerCompaction(topic);
        LongRunningProcessStatus.Status status = LongRunningProcessStatus.Status.RUNNING;
        while (status == LongRunningProcessStatus.Status.RUNNING) {
            Thread.sleep(100);
            status = admin.topics().compactionStatus(topic).status;
        }
        int seen = 0;
        try (Reader<byte[]> reader = client.newReader().topic(topic).readCompacted(true).startMessageId(MessageId.earliest).create()) {
            for (; reader.hasMessageAvailable(); seen++) {
                reader.readNext(60, TimeUnit.SECONDS);
            }
        }
        return CommandLoop.JSON.createObjectNode().put("status", status.name()).put("messages", seen);
    }

    /** Every third transaction is aborted; returns what a reader of committed messages gets. */
    private ObjectNode transactions(JsonNode request) throws Exception {
        String topic = topic(request);
        int count = request.get("count").asInt();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int i = 0; i < count; i++) {
                Transaction transaction = client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().get();
                producer.newMessage(transaction).value(number(i)).send();
                (i % 3 == 2 ? transaction.abort() : transaction.commit()).get();
            }
        }
        int seen = 0;
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName("committed")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            for (; consumer.receive(5, TimeUnit.SECONDS) != null; seen++) {}
        }
        return CommandLoop.JSON.createObjectNode().put("committed", seen);
    }

    /** The broker closes the topic; whoever uses it next makes the broker recover its ledgers. */
    private ObjectNode unload(JsonNode request) throws Exception {
        admin.topics().unload(topic(request));
        return CommandLoop.JSON.createObjectNode();
    }

    /** Ledgers in use by the broker's own word, each with the topic, of every topic of every namespace. */
    private ObjectNode ledgers() throws Exception {
        TreeMap<Long, String> used = new TreeMap<>();
        for (String tenant : admin.tenants().getTenants()) {
            for (String namespace : admin.namespaces().getNamespaces(tenant)) {
                for (String topic : admin.topics().getList(namespace)) {
                    PersistentTopicInternalStats stats = admin.topics().getInternalStats(topic);
                    for (LedgerInfo ledger : stats.ledgers) {
                        used.put(ledger.ledgerId, topic);
                    }
                    for (LedgerInfo ledger : stats.schemaLedgers) {
                        used.put(ledger.ledgerId, topic);
                    }
                    for (CursorStats cursor : stats.cursors.values()) {
                        used.put(cursor.cursorLedger, topic);
                    }
                    if (stats.compactedLedger != null) {
                        used.put(stats.compactedLedger.ledgerId, topic);
                    }
                }
            }
        }
        used.remove(-1L);
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        used.forEach((ledgerId, topic) -> result.put(Long.toString(ledgerId), topic));
        return result;
    }

    static byte[] number(long number) {
        return Long.toString(number).getBytes(StandardCharsets.US_ASCII);
    }
}
