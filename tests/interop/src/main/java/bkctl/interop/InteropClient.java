package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * A real BookKeeper client driven over stdin and stdout, so that one JVM serves many tests.
 *
 * <p>Arguments: the metadata service URI, then settings of the client as KEY=VALUE. Writers stay open between commands until "close" or the end of input.
 * Payloads travel as base64.
 */
public final class InteropClient implements CommandLoop.Commands {
    private final ClientConfiguration configuration;
    private final BookKeeper client;
    private final Map<Long, LedgerHandle> writers = new HashMap<>();

    private InteropClient(String[] arguments) throws Exception {
        configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setAddEntryTimeout(10);
        configuration.setReadEntryTimeout(10);
        for (String setting : List.of(arguments).subList(1, arguments.length)) {
            int end = setting.indexOf('=');
            configuration.setProperty(setting.substring(0, end), setting.substring(end + 1));
        }
        client = new BookKeeper(configuration);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever else writes to stdout must not be taken for an answer.
        System.setOut(System.err);
        new CommandLoop(new InteropClient(arguments), answers).run();
        // Open writers are left as they are: halt closes no ledger, as a killed client would not.
        Runtime.getRuntime().halt(0);
    }

    @Override
    public ObjectNode run(String command, JsonNode request) throws Exception {
        return switch (command) {
            case "create" -> create(request);
            case "append" -> append(request);
            case "close" -> close(request);
            case "read" -> read(request);
            case "read_batches" -> readBatches(request);
            case "fill" -> fill(request);
            case "follow" -> follow(request);
            case "force" -> force(request);
            case "explicit_lac" -> explicitLac(request);
            case "read_each_copy" -> CopyReads.run(client, request);
            case "delete" -> delete(request);
            case "recover_bookie" -> recoverBookie(request);
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private ObjectNode create(JsonNode request) throws Exception {
        // The builder accepts write flags; its handles are those of createLedger.
        CreateBuilder builder = client.newCreateLedgerOp()
                .withEnsembleSize(request.get("ensemble_size").asInt())
                .withWriteQuorumSize(request.get("write_quorum_size").asInt())
                .withAckQuorumSize(request.get("ack_quorum_size").asInt())
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.valueOf(digestType(request).name()))
                .withPassword(password(request))
                .withWriteFlags(request.path("deferred_sync").asBoolean() ? EnumSet.of(WriteFlag.DEFERRED_SYNC) : WriteFlag.NONE);
        LedgerHandle writer = request.hasNonNull("adv_ledger_id")
                ? (LedgerHandle) builder.makeAdv().withLedgerId(request.get("adv_ledger_id").asLong()).execute().get()
                : (LedgerHandle) builder.execute().get();
        writers.put(writer.getId(), writer);
        return CommandLoop.JSON.createObjectNode().put("ledger_id", writer.getId());
    }

    /** Sends all payloads, with "entry_ids" if given, before it waits for any, as a pipelining application does. */
    private ObjectNode append(JsonNode request) throws Exception {
        LedgerHandle writer = writer(request);
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        JsonNode chosenIds = request.path("entry_ids");
        for (JsonNode payload : request.get("payloads")) {
            pending.add(chosenIds.isMissingNode()
                    ? writer.appendAsync(payload.binaryValue())
                    : ((LedgerHandleAdv) writer)
                            .writeAsync(chosenIds.get(pending.size()).asLong(), payload.binaryValue()));
        }
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode entryIds = result.putArray("entry_ids");
        for (CompletableFuture<Long> entryId : pending) {
            entryIds.add(entryId.get());
        }
        return result.put("last_add_confirmed", writer.getLastAddConfirmed());
    }

    /** Makes all acknowledged entries of a writer with deferred sync durable. */
    private ObjectNode force(JsonNode request) throws Exception {
        LedgerHandle writer = writer(request);
        writer.force().get();
        return CommandLoop.JSON.createObjectNode().put("last_add_confirmed", writer.getLastAddConfirmed());
    }

    /**
     * Reads "count" entries of an open ledger by long polls of "timeout_ms", or stops after as many polls in vain.
     * Also answers when each arrived, in nanoseconds of the system's monotonic clock.
     */
    private ObjectNode follow(JsonNode request) throws Exception {
        int count = request.get("count").asInt();
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode payloads = result.putArray("payloads");
        ArrayNode arrivedNs = result.putArray("arrived_ns");
        int pollsInVain = 0;
        try (LedgerHandle reader = client.openLedgerNoRecovery(
                request.get("ledger_id").asLong(), digestType(request), password(request))) {
            while (payloads.size() < count && pollsInVain < count) {
                try (LastConfirmedAndEntry found = reader.readLastAddConfirmedAndEntryAsync(
                        payloads.size(), request.get("timeout_ms").asLong(), true).get()) {
                    if (found.hasEntry()) {
                        arrivedNs.add(System.nanoTime());
                        payloads.add(found.getEntry().getEntryBytes());
                    } else {
                        pollsInVain++;
                    }
                }
            }
        }
        return result.put("polls_in_vain", pollsInVain);
    }

    private ObjectNode explicitLac(JsonNode request) throws Exception {
        try (LedgerHandle reader = client.openLedgerNoRecovery(
                request.get("ledger_id").asLong(), digestType(request), password(request))) {
            return CommandLoop.JSON.createObjectNode().put("last_add_confirmed", reader.readExplicitLastConfirmed());
        }
    }

    private ObjectNode close(JsonNode request) throws Exception {
        LedgerHandle writer = writer(request);
        writers.remove(writer.getId());
        writer.close();
        return CommandLoop.JSON.createObjectNode().put("last_add_confirmed", writer.getLastAddConfirmed());
    }

    /** Reads 0..LAC; with "recover" the open fences, recovers and closes the ledger first. */
    private ObjectNode read(JsonNode request) throws Exception {
        long ledgerId = request.get("ledger_id").asLong();
        boolean isRecovering = request.get("recover").asBoolean();
        LedgerHandle reader = isRecovering
                ? client.openLedger(ledgerId, digestType(request), password(request))
                : client.openLedgerNoRecovery(ledgerId, digestType(request), password(request));
        try {
            ObjectNode result = CommandLoop.JSON.createObjectNode();
            result.put("last_add_confirmed", reader.getLastAddConfirmed());
            result.put("length", reader.getLength());
            result.put("is_closed", reader.isClosed());
            ArrayNode payloads = result.putArray("payloads");
            if (reader.getLastAddConfirmed() >= 0) {
                Enumeration<LedgerEntry> entries = reader.readEntries(0, reader.getLastAddConfirmed());
                while (entries.hasMoreElements()) {
                    payloads.add(entries.nextElement().getEntry());
                }
            }
            return result;
        } finally {
            reader.close();
        }
    }

    /** Reads 0..LAC by batches of at most "count" entries. Only clients since 4.17 have them, with protocol v2. */
    private ObjectNode readBatches(JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode payloads = result.putArray("payloads");
        int batches = 0;
        try (LedgerHandle reader = client.openLedgerNoRecovery(
                request.get("ledger_id").asLong(), digestType(request), password(request))) {
            while (payloads.size() <= reader.getLastAddConfirmed()) {
                batches++;
                Enumeration<LedgerEntry> entries =
                        reader.batchReadEntries(payloads.size(), request.get("count").asInt(), 1 << 20);
                while (entries.hasMoreElements()) {
                    payloads.add(entries.nextElement().getEntry());
                }
            }
        }
        return result.put("batches", batches);
    }

    /**
     * Creates and closes "count" ledgers of "entries" entries, several at once. The payloads, of "entry_bytes" bytes,
     * follow from ledger id and entry id.
     */
    private ObjectNode fill(JsonNode request) throws Exception {
        int count = request.get("count").asInt();
        ExecutorService writersAtOnce = Executors.newFixedThreadPool(8);
        try {
            List<Future<Long>> pending = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                pending.add(writersAtOnce.submit(() -> writeOne(request)));
            }
            ObjectNode result = CommandLoop.JSON.createObjectNode();
            ArrayNode ledgerIds = result.putArray("ledger_ids");
            for (Future<Long> ledgerId : pending) {
                ledgerIds.add(ledgerId.get());
            }
            return result;
        } finally {
            writersAtOnce.shutdownNow();
        }
    }

    private long writeOne(JsonNode request) throws Exception {
        try (LedgerHandle writer = client.createLedger(
                request.get("ensemble_size").asInt(),
                request.get("write_quorum_size").asInt(),
                request.get("ack_quorum_size").asInt(),
                digestType(request),
                password(request))) {
            int entries = request.get("entries").asInt();
            int entryBytes = request.get("entry_bytes").asInt();
            CompletableFuture<Long> last = CompletableFuture.completedFuture(-1L);
            for (int entryId = 0; entryId < entries; entryId++) {
                if (entryId % 64 == 0) {
                    last.get();
                }
                last = writer.appendAsync(CopyReads.payload(writer.getId(), entryId, entryBytes));
            }
            last.get();
            return writer.getId();
        }
    }

    private ObjectNode delete(JsonNode request) throws Exception {
        client.deleteLedger(request.get("ledger_id").asLong());
        return CommandLoop.JSON.createObjectNode();
    }

    private ObjectNode recoverBookie(JsonNode request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(configuration)) {
            admin.recoverBookieData(BookieId.parse(request.get("bookie_id").asText()));
        }
        return CommandLoop.JSON.createObjectNode();
    }

    private LedgerHandle writer(JsonNode request) {
        long ledgerId = request.get("ledger_id").asLong();
        LedgerHandle writer = writers.get(ledgerId);
        if (writer == null) {
            throw new IllegalArgumentException("this client has no writer of ledger " + ledgerId);
        }
        return writer;
    }

    private static DigestType digestType(JsonNode request) {
        return DigestType.valueOf(request.get("digest_type").asText());
    }

    private static byte[] password(JsonNode request) {
        return request.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }
}
