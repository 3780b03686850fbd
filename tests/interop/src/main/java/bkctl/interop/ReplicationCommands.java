package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.replication.ReplicationException.UnavailableException;

/** Marks, locks and switches of under-replication through Java's manager, and the election of the auditor. */
final class ReplicationCommands {
    private static final long NOTHING = -1;

    private ReplicationCommands() {}

    static ObjectNode mark(Session session, JsonNode request) throws Exception {
        for (JsonNode ledger : request.get("ledger_ids")) {
            List<String> missing = new ArrayList<>();
            request.get("missing").forEach(bookie -> missing.add(bookie.asText()));
            session.underReplication()
                    .markLedgerUnderreplicatedAsync(ledger.asLong(), missing)
                    .get(60, TimeUnit.SECONDS);
        }
        return CommandLoop.JSON.createObjectNode();
    }

    /** Marks each ledger "count" times, each time with another bookie. */
    static ObjectNode markRace(Session session, JsonNode request) throws Exception {
        for (int i = 0; i < request.get("count").asInt(); i++) {
            for (JsonNode ledger : request.get("ledger_ids")) {
                session.underReplication()
                        .markLedgerUnderreplicatedAsync(
                                ledger.asLong(), List.of(request.get("prefix").asText() + i + ":3181"))
                        .get(60, TimeUnit.SECONDS);
            }
        }
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode listMarks(Session session, JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode marks = result.putArray("marks");
        Iterator<UnderreplicatedLedger> found = session.underReplication().listLedgersToRereplicate(null);
        while (found.hasNext()) {
            UnderreplicatedLedger mark = found.next();
            ObjectNode each = marks.addObject().put("ledger_id", mark.getLedgerId()).put("ctime_ms", mark.getCtime());
            ArrayNode missing = each.putArray("missing");
            mark.getReplicaList().forEach(missing::add);
            each.put("worker", session.underReplication().getReplicationWorkerIdRereplicatingLedger(mark.getLedgerId()));
        }
        return result;
    }

    /** Picks a ledger and keeps its lock; null when there is none. */
    static ObjectNode pick(Session session, JsonNode request) throws Exception {
        long ledgerId = session.underReplication().pollLedgerToRereplicate();
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        return ledgerId == NOTHING ? result.putNull("ledger_id") : result.put("ledger_id", ledgerId);
    }

    /** Takes the lock of a ledger; "acquired" false when somebody else holds it. */
    static ObjectNode acquire(Session session, JsonNode request) throws Exception {
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        try {
            session.underReplication().acquireUnderreplicatedLedger(request.get("ledger_id").asLong());
            return result.put("acquired", true);
        } catch (UnavailableException refused) {
            return result.put("acquired", false).put("message", String.valueOf(refused.getMessage()));
        }
    }

    static ObjectNode release(Session session, JsonNode request) throws Exception {
        session.underReplication().releaseUnderreplicatedLedger(request.get("ledger_id").asLong());
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode finish(Session session, JsonNode request) throws Exception {
        session.underReplication().markLedgerReplicated(request.get("ledger_id").asLong());
        return CommandLoop.JSON.createObjectNode();
    }

    /**
     * Picks "count" times, holding each lock for a moment, then gives it back or, with "clear", clears the mark. With
     * "ends_early" it ends when no mark is left. Answers when each lock was held, on the machine's monotonic clock.
     */
    static ObjectNode work(Session session, JsonNode request) throws Exception {
        LedgerUnderreplicationManager manager = session.underReplication();
        boolean isClearing = request.path("clear").asBoolean();
        boolean endsEarly = request.path("ends_early").asBoolean();
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        ArrayNode holds = result.putArray("holds");
        int count = request.get("count").asInt();
        while (holds.size() < count) {
            long ledgerId = manager.pollLedgerToRereplicate();
            if (ledgerId == NOTHING && endsEarly && !manager.listLedgersToRereplicate(null).hasNext()) {
                break;
            }
            if (ledgerId == NOTHING) {
                Thread.sleep(1);
                continue;
            }
            long beganNs = System.nanoTime();
            Thread.sleep(2);
            holds.addArray().add(ledgerId).add(beganNs).add(System.nanoTime());
            if (isClearing) {
                manager.markLedgerReplicated(ledgerId);
            } else {
                manager.releaseUnderreplicatedLedger(ledgerId);
            }
        }
        return result;
    }

    static ObjectNode switches(Session session, JsonNode request) throws Exception {
        LedgerUnderreplicationManager manager = session.underReplication();
        return CommandLoop.JSON.createObjectNode()
                .put("is_enabled", manager.isLedgerReplicationEnabled())
                .put("delay_s", manager.getLostBookieRecoveryDelay())
                .put("all_ledgers_ms", manager.getCheckAllLedgersCTime())
                .put("placement_ms", manager.getPlacementPolicyCheckCTime())
                .put("replicas_ms", manager.getReplicasCheckCTime());
    }

    /** Sets what is given of "is_enabled", "delay_s", "initial_delay_s" and the times of the three checks. */
    static ObjectNode setSwitches(Session session, JsonNode request) throws Exception {
        LedgerUnderreplicationManager manager = session.underReplication();
        if (request.has("is_enabled")) {
            if (request.get("is_enabled").asBoolean()) {
                manager.enableLedgerReplication();
            } else {
                manager.disableLedgerReplication();
            }
        }
        if (request.has("initial_delay_s")) {
            manager.initializeLostBookieRecoveryDelay(request.get("initial_delay_s").asInt());
        }
        if (request.has("delay_s")) {
            manager.setLostBookieRecoveryDelay(request.get("delay_s").asInt());
        }
        if (request.has("checks_ms")) {
            manager.setCheckAllLedgersCTime(request.get("checks_ms").asLong());
            manager.setPlacementPolicyCheckCTime(request.get("checks_ms").asLong());
            manager.setReplicasCheckCTime(request.get("checks_ms").asLong());
        }
        return CommandLoop.JSON.createObjectNode();
    }

    /** Takes part in the election from now on; "is_elected" tells how it stands. */
    static ObjectNode campaign(Session session, JsonNode request) throws Exception {
        session.campaign(request.get("bookie_id").asText());
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode isElected(Session session, JsonNode request) throws Exception {
        return CommandLoop.JSON.createObjectNode().put("is_elected", session.isElected());
    }

    static ObjectNode auditor(Session session, JsonNode request) throws Exception {
        var auditor = session.election().getCurrentAuditor();
        return CommandLoop.JSON.createObjectNode().put("bookie_id", auditor == null ? null : auditor.getId());
    }
}
