package bkctl.interop;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.BitSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** Numbered messages of one topic: produced by one thread, consumed by another, both until the end. */
final class PulsarFlow {
    private static final int PENDING_MAX = 1000;
    private static final int BODY_BYTES = 1000;

    private final PulsarClient client;
    private final String topic;
    private final int perSecond;
    private final long count;
    private final BitSet acknowledged = new BitSet();
    private final Seen consumed = new Seen();
    private final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
    private volatile boolean isProducing = true;
    private volatile boolean isConsuming = true;
    private Thread producing;
    private Thread consuming;

    PulsarFlow(PulsarClient client, String topic, int perSecond, long count) {
        this.client = client;
        this.topic = topic;
        this.perSecond = perSecond;
        this.count = count;
    }

    void start() throws Exception {
        Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName("flow")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
        // What is not acknowledged in time is sent again until it is: a broker that is away is no error.
        Producer<byte[]> producer = client.newProducer()
                .topic(topic)
                .enableBatching(false)
                .sendTimeout(0, TimeUnit.SECONDS)
                .maxPendingMessages(PENDING_MAX)
                .blockIfQueueFull(true)
                .create();
        consuming = new Thread(() -> consume(consumer), "consumer");
        producing = new Thread(() -> produce(producer), "producer");
        consuming.start();
        producing.start();
    }

    private void produce(Producer<byte[]> producer) {
        Semaphore unanswered = new Semaphore(PENDING_MAX);
        long began = System.nanoTime();
        try (producer) {
            for (long number = 0; isProducing && number < count; number++) {
                long due = began + number * TimeUnit.SECONDS.toNanos(1) / perSecond;
                TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                int each = (int) number;
                unanswered.acquire();
                producer.sendAsync(body(number)).whenComplete((id, failure) -> {
                    if (failure == null) {
                        synchronized (acknowledged) {
                            acknowledged.set(each);
                        }
                    } else {
                        failures.add(number(each) + ": " + failure);
                    }
                    unanswered.release();
                });
            }
            unanswered.acquire(PENDING_MAX);
        } catch (Exception failure) {
            failures.add("producer: " + failure);
        }
    }

    private static String number(int number) {
        return "message " + number;
    }

    private static byte[] body(long number) {
        byte[] text = PulsarPeer.number(number);
        byte[] body = new byte[BODY_BYTES];
        java.util.Arrays.fill(body, (byte) ' ');
        System.arraycopy(text, 0, body, 0, text.length);
        return body;
    }

    private void consume(Consumer<byte[]> consumer) {
        try (consumer) {
            while (isConsuming) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumed.add(message);
                    consumer.acknowledgeAsync(message);
                }
            }
        } catch (Exception failure) {
            failures.add("consumer: " + failure);
        }
    }

    /** Waits until all that was sent is acknowledged and consumed; what is missing after two minutes is lost. */
    ObjectNode end() throws Exception {
        isProducing = count < Long.MAX_VALUE;
        producing.join();
        long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(2);
        while (consumed.missing(acknowledged).cardinality() > 0 && System.nanoTime() < end) {
            Thread.sleep(50);
        }
        isConsuming = false;
        consuming.join();
        return result(consumed);
    }

    /** Reads the topic from its start to its end. */
    ObjectNode readAll() throws Exception {
        Seen seen = new Seen();
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    failures.add("reader: no message in 60 s");
                    break;
                }
                seen.add(message);
            }
        }
        return result(seen);
    }

    private ObjectNode result(Seen seen) {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        result.put("acknowledged", acknowledged.cardinality());
        result.put("lost", seen.missing(acknowledged).cardinality());
        result.put("out_of_order", seen.outOfOrder);
        ArrayNode texts = result.putArray("failures");
        failures.stream().limit(10).forEach(texts::add);
        return result;
    }

    /** Which messages were seen. A message may come twice after a broker died, but no first one after a later one. */
    private static final class Seen {
        private final BitSet numbers = new BitSet();
        private int outOfOrder;

        synchronized void add(Message<byte[]> message) {
            int number = Integer.parseInt(new String(message.getValue(), StandardCharsets.US_ASCII).strip());
            if (!numbers.get(number) && numbers.length() > number) {
                outOfOrder++;
            }
            numbers.set(number);
        }

        synchronized BitSet missing(BitSet expected) {
            synchronized (expected) {
                BitSet missing = (BitSet) expected.clone();
                missing.andNot(numbers);
                return missing;
            }
        }
    }
}
