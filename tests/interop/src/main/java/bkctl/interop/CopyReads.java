package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.OneBookie;
import org.apache.bookkeeper.net.BookieId;

/** Reads each copy of each entry from its bookie alone, as Java's own client checks it. */
final class CopyReads {
    private static final int READS_AT_ONCE = 500;

    private CopyReads() {}

    /** The payload that "fill" writes. */
    static byte[] payload(long ledgerId, long entryId, int entryBytes) {
        byte[] payload = new byte[entryBytes];
        new Random(ledgerId * 1_000_003 + entryId).nextBytes(payload);
        return payload;
    }

    private record Pending(BookieId bookie, long entryId, CompletableFuture<byte[]> body) {}

    /**
     * Asks each bookie of the write set of each entry of the ledgers "ledger_ids", which "fill" wrote. Answers the
     * number of good copies of each entry, by ledger, and what is wrong with the others.
     */
    static ObjectNode run(BookKeeper client, JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode bad = result.putArray("bad");
        ObjectNode good = result.putObject("good");
        for (JsonNode each : request.get("ledger_ids")) {
            ArrayNode counts = good.putArray(each.asText());
            for (int count : readLedger(client, each.asLong(), request, bad)) {
                counts.add(count);
            }
        }
        return result;
    }

    private static int[] readLedger(BookKeeper client, long ledgerId, JsonNode request, ArrayNode bad)
            throws Exception {
        try (LedgerHandle ledger = client.openLedgerNoRecovery(
                ledgerId,
                DigestType.valueOf(request.get("digest_type").asText()),
                request.get("password").asText().getBytes(StandardCharsets.UTF_8))) {
            int[] good = new int[(int) ledger.getLastAddConfirmed() + 1];
            int writeQuorum = ledger.getLedgerMetadata().getWriteQuorumSize();
            List<Pending> pending = new ArrayList<>();
            for (long entryId = 0; entryId <= ledger.getLastAddConfirmed(); entryId++) {
                List<BookieId> ensemble = ensembleOf(ledger, entryId);
                for (int i = 0; i < writeQuorum; i++) {
                    BookieId bookie = ensemble.get((int) ((entryId + i) % ensemble.size()));
                    pending.add(new Pending(bookie, entryId, OneBookie.read(client, ledger, bookie, entryId)));
                }
                if (pending.size() >= READS_AT_ONCE || entryId == ledger.getLastAddConfirmed()) {
                    check(ledgerId, pending, request.get("entry_bytes").asInt(), good, bad);
                    pending.clear();
                }
            }
            return good;
        }
    }

    private static void check(long ledgerId, List<Pending> pending, int entryBytes, int[] good, ArrayNode bad) {
        for (Pending each : pending) {
            String wrong = null;
            try {
                if (!Arrays.equals(each.body.get(), payload(ledgerId, each.entryId, entryBytes))) {
                    wrong = "other bytes";
                }
            } catch (Exception failed) {
                wrong = CommandLoop.unwrap(failed).toString();
            }
            if (wrong == null) {
                good[(int) each.entryId]++;
            } else {
                bad.add("ledger " + ledgerId + " entry " + each.entryId + " on " + each.bookie + ": " + wrong);
            }
        }
    }

    private static List<BookieId> ensembleOf(LedgerHandle ledger, long entryId) {
        List<BookieId> found = List.of();
        for (Map.Entry<Long, ? extends List<BookieId>> segment : ledger.getLedgerMetadata().getAllEnsembles().entrySet()) {
            if (segment.getKey() <= entryId) {
                found = segment.getValue();
            }
        }
        return found;
    }
}
