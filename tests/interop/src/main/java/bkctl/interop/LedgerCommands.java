package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManager.LedgerRangeIterator;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

/** Ledger metadata through Java's ledger managers and id generators; no bookie takes part. */
final class LedgerCommands {
    private static final int DONE = 0;

    private LedgerCommands() {}

    /** Creates a ledger; without "ledger_id" under a generated id, as often as it takes to find a free one. */
    static ObjectNode create(Session session, JsonNode request) throws Exception {
        while (true) {
            long ledgerId = request.hasNonNull("ledger_id") ? request.get("ledger_id").asLong() : nextId(session);
            LedgerMetadata metadata = changed(fresh(ledgerId, request), request);
            try {
                Versioned<LedgerMetadata> stored = wait(session.ledgers().createLedgerMetadata(ledgerId, metadata));
                return described(ledgerId, stored);
            } catch (Exception refused) {
                boolean isTaken = CommandLoop.codeOf(refused) == BKException.Code.LedgerExistException;
                if (request.hasNonNull("ledger_id") || !isTaken) {
                    throw refused;
                }
            }
        }
    }

    static ObjectNode read(Session session, JsonNode request) throws Exception {
        long ledgerId = request.get("ledger_id").asLong();
        return described(ledgerId, wait(session.ledgers().readLedgerMetadata(ledgerId)));
    }

    /** One compare-and-set, at "version" if that is given, else at the one that is read. */
    static ObjectNode update(Session session, JsonNode request) throws Exception {
        long ledgerId = request.get("ledger_id").asLong();
        Versioned<LedgerMetadata> found = wait(session.ledgers().readLedgerMetadata(ledgerId));
        Version expected = request.hasNonNull("version")
                ? new LongVersion(request.get("version").asLong())
                : found.getVersion();
        LedgerMetadata next = changed(LedgerMetadataBuilder.from(found.getValue()), request);
        return described(ledgerId, wait(session.ledgers().writeLedgerMetadata(ledgerId, next, expected)));
    }

    static ObjectNode delete(Session session, JsonNode request) throws Exception {
        Version expected = request.hasNonNull("version")
                ? new LongVersion(request.get("version").asLong())
                : Version.ANY;
        wait(session.ledgers().removeLedgerMetadata(request.get("ledger_id").asLong(), expected));
        return CommandLoop.JSON.createObjectNode();
    }

    /** Ids by both of Java's ways: the walk of the auditor, and the ranges of a bookie's collector. */
    static ObjectNode list(Session session, JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode walked = result.putArray("walked");
        walk(session.ledgers()).forEach(walked::add);
        ArrayNode ranged = result.putArray("ranged");
        LedgerRangeIterator ranges = session.ledgers().getLedgerRanges(0);
        while (ranges.hasNext()) {
            new TreeSet<>(ranges.next().getLedgers()).forEach(ranged::add);
        }
        return result;
    }

    private static List<Long> walk(LedgerManager ledgers) throws Exception {
        List<Long> found = Collections.synchronizedList(new ArrayList<>());
        CompletableFuture<Integer> ended = new CompletableFuture<>();
        ledgers.asyncProcessLedgers(
                (ledgerId, done) -> {
                    found.add(ledgerId);
                    done.processResult(DONE, null, null);
                },
                (code, path, context) -> ended.complete(code),
                null,
                DONE,
                BKException.Code.ReadException);
        int code = wait(ended);
        if (code != DONE) {
            throw BKException.create(code);
        }
        Collections.sort(found);
        return found;
    }

    /** Generates "count" ids, and creates nothing under them. */
    static ObjectNode generateIds(Session session, JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode ids = result.putArray("ids");
        for (int i = 0; i < request.get("count").asInt(); i++) {
            ids.add(nextId(session));
        }
        return result;
    }

    /**
     * Adds "count" labels to each ledger by one compare-and-set each, read again after a conflict. With "segments" each
     * label comes with a new segment whose first bookie is named by it.
     */
    static ObjectNode race(Session session, JsonNode request) throws Exception {
        int conflicts = 0;
        for (int i = 0; i < request.get("count").asInt(); i++) {
            for (JsonNode ledger : request.get("ledger_ids")) {
                conflicts += addMark(session.ledgers(), ledger.asLong(), request, i);
            }
        }
        return CommandLoop.JSON.createObjectNode().put("conflicts", conflicts);
    }

    /** Creates and deletes each ledger "count" times, which takes directories away and brings them back. */
    static ObjectNode churn(Session session, JsonNode request) throws Exception {
        for (int i = 0; i < request.get("count").asInt(); i++) {
            for (JsonNode ledger : request.get("ledger_ids")) {
                long ledgerId = ledger.asLong();
                wait(session.ledgers().createLedgerMetadata(ledgerId, fresh(ledgerId, request).build()));
                wait(session.ledgers().removeLedgerMetadata(ledgerId, Version.ANY));
            }
        }
        return CommandLoop.JSON.createObjectNode();
    }

    private static int addMark(LedgerManager ledgers, long ledgerId, JsonNode request, int number) throws Exception {
        String label = request.get("prefix").asText() + number;
        for (int conflicts = 0; ; conflicts++) {
            Versioned<LedgerMetadata> found = wait(ledgers.readLedgerMetadata(ledgerId));
            LedgerMetadata metadata = found.getValue();
            Map<String, byte[]> labels = new TreeMap<>(metadata.getCustomMetadata());
            labels.put(label, new byte[] {(byte) number});
            LedgerMetadataBuilder next = LedgerMetadataBuilder.from(metadata).withCustomMetadata(labels);
            if (request.path("segments").asBoolean()) {
                long last = metadata.getAllEnsembles().lastKey();
                List<BookieId> ensemble = new ArrayList<>(metadata.getAllEnsembles().get(last));
                ensemble.set(0, BookieId.parse(label + ":3181"));
                next.newEnsembleEntry(last + 1, ensemble);
            }
            try {
                wait(ledgers.writeLedgerMetadata(ledgerId, next.build(), found.getVersion()));
                return conflicts;
            } catch (Exception refused) {
                if (CommandLoop.codeOf(refused) != BKException.Code.MetadataVersionException) {
                    throw refused;
                }
            }
        }
    }

    private static long nextId(Session session) throws Exception {
        CompletableFuture<Long> generated = new CompletableFuture<>();
        session.ids().generateLedgerId((code, ledgerId) -> {
            if (code == BKException.Code.OK) {
                generated.complete(ledgerId);
            } else {
                generated.completeExceptionally(BKException.create(code));
            }
        });
        return wait(generated);
    }

    private static LedgerMetadataBuilder fresh(long ledgerId, JsonNode request) {
        List<BookieId> ensemble = bookies(request.get("ensemble"));
        LedgerMetadataBuilder builder = LedgerMetadataBuilder.create()
                .withId(ledgerId)
                .withMetadataFormatVersion(request.path("format_version").asInt(3))
                .withEnsembleSize(ensemble.size())
                .withWriteQuorumSize(request.path("write_quorum_size").asInt(2))
                .withAckQuorumSize(request.path("ack_quorum_size").asInt(2))
                .withDigestType(DigestType.valueOf(request.path("digest_type").asText("CRC32C")))
                .withPassword(request.path("password").asText("").getBytes(java.nio.charset.StandardCharsets.UTF_8))
                .newEnsembleEntry(0, ensemble);
        if (request.hasNonNull("ctime_ms")) {
            builder.withCreationTime(request.get("ctime_ms").asLong()).storingCreationTime(true);
        }
        return builder;
    }

    /** What "labels", "segments", "state" with "last_entry_id" and "length" ask for. */
    private static LedgerMetadata changed(LedgerMetadataBuilder builder, JsonNode request) {
        if (request.hasNonNull("labels")) {
            Map<String, byte[]> labels = new TreeMap<>();
            request.get("labels").fields().forEachRemaining(label -> labels.put(
                    label.getKey(), label.getValue().asText().getBytes(java.nio.charset.StandardCharsets.UTF_8)));
            builder.withCustomMetadata(labels);
        }
        for (JsonNode segment : request.path("new_segments")) {
            builder.newEnsembleEntry(segment.get(0).asLong(), bookies(segment.get(1)));
        }
        for (JsonNode segment : request.path("replaced_segments")) {
            builder.replaceEnsembleEntry(segment.get(0).asLong(), bookies(segment.get(1)));
        }
        switch (request.path("state").asText()) {
            case "IN_RECOVERY" -> builder.withInRecoveryState();
            case "CLOSED" -> builder.withClosedState()
                    .withLastEntryId(request.get("last_entry_id").asLong())
                    .withLength(request.get("length").asLong());
            default -> { }
        }
        return builder.build();
    }

    private static ObjectNode described(long ledgerId, Versioned<LedgerMetadata> found) {
        LedgerMetadata metadata = found.getValue();
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        result.put("ledger_id", ledgerId);
        result.put("version", ((LongVersion) found.getVersion()).getLongVersion());
        result.put("format_version", metadata.getMetadataFormatVersion());
        result.put("ensemble_size", metadata.getEnsembleSize());
        result.put("write_quorum_size", metadata.getWriteQuorumSize());
        result.put("ack_quorum_size", metadata.getAckQuorumSize());
        result.put("state", metadata.getState().name());
        result.put("last_entry_id", metadata.getLastEntryId());
        result.put("length", metadata.getLength());
        result.put("digest_type", metadata.hasPassword() ? metadata.getDigestType().name() : null);
        result.put("password", metadata.hasPassword() ? metadata.getPassword() : null);
        ArrayNode segments = result.putArray("segments");
        metadata.getAllEnsembles().forEach((first, ensemble) -> {
            ArrayNode segment = segments.addArray().add(first);
            ArrayNode members = segment.addArray();
            ensemble.forEach(bookie -> members.add(bookie.getId()));
        });
        ObjectNode labels = result.putObject("labels");
        new TreeMap<>(metadata.getCustomMetadata()).forEach(labels::put);
        return result;
    }

    private static List<BookieId> bookies(JsonNode names) {
        List<BookieId> found = new ArrayList<>();
        names.forEach(name -> found.add(BookieId.parse(name.asText())));
        return found;
    }

    private static <T> T wait(CompletableFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }
}
