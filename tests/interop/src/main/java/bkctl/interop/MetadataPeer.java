package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;

/**
 * Java's metadata code and shell, driven over stdin and stdout.
 *
 * <p>Commands name a metadata service "uri", a "session" (one ZooKeeper session each, made when first named) and
 * "settings" of the bookie configuration. "close" ends a session; the end of input ends all of them as a crash would.
 */
public final class MetadataPeer implements CommandLoop.Commands {
    private final Map<String, Session> sessions = new HashMap<>();
    private final Shell shell = new Shell();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        new CommandLoop(new MetadataPeer(), answers).run();
        Runtime.getRuntime().halt(0);
    }

    @Override
    public ObjectNode run(String command, JsonNode request) throws Exception {
        return switch (command) {
            case "shell" -> shell.run(request);
            case "close" -> close(request);
            case "ledger_create" -> LedgerCommands.create(session(request), request);
            case "ledger_read" -> LedgerCommands.read(session(request), request);
            case "ledger_update" -> LedgerCommands.update(session(request), request);
            case "ledger_delete" -> LedgerCommands.delete(session(request), request);
            case "ledger_list" -> LedgerCommands.list(session(request), request);
            case "ledger_ids" -> LedgerCommands.generateIds(session(request), request);
            case "ledger_race" -> LedgerCommands.race(session(request), request);
            case "ledger_churn" -> LedgerCommands.churn(session(request), request);
            case "mark" -> ReplicationCommands.mark(session(request), request);
            case "mark_race" -> ReplicationCommands.markRace(session(request), request);
            case "marks" -> ReplicationCommands.listMarks(session(request), request);
            case "pick" -> ReplicationCommands.pick(session(request), request);
            case "acquire" -> ReplicationCommands.acquire(session(request), request);
            case "release" -> ReplicationCommands.release(session(request), request);
            case "finish" -> ReplicationCommands.finish(session(request), request);
            case "work" -> ReplicationCommands.work(session(request), request);
            case "switches" -> ReplicationCommands.switches(session(request), request);
            case "set_switches" -> ReplicationCommands.setSwitches(session(request), request);
            case "campaign" -> ReplicationCommands.campaign(session(request), request);
            case "is_elected" -> ReplicationCommands.isElected(session(request), request);
            case "auditor" -> ReplicationCommands.auditor(session(request), request);
            case "register" -> RegistrationCommands.register(session(request), request);
            case "unregister" -> RegistrationCommands.unregister(session(request), request);
            case "is_registered" -> RegistrationCommands.isRegistered(session(request), request);
            case "cookie_write" -> RegistrationCommands.writeCookie(session(request), request);
            case "cookie_read" -> RegistrationCommands.readCookie(session(request), request);
            case "cookie_verify" -> RegistrationCommands.verifyCookie(session(request), request);
            case "cookie_remove" -> RegistrationCommands.removeCookie(session(request), request);
            case "set_health_check" -> RegistrationCommands.setHealthCheck(session(request), request);
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private Session session(JsonNode request) throws Exception {
        String key = key(request);
        Session session = sessions.get(key);
        if (session == null) {
            session = new Session(request);
            sessions.put(key, session);
        }
        return session;
    }

    private ObjectNode close(JsonNode request) throws Exception {
        Session session = sessions.remove(key(request));
        if (session != null) {
            session.close();
        }
        return CommandLoop.JSON.createObjectNode();
    }

    private static String key(JsonNode request) {
        return request.get("uri").asText() + " " + request.path("session").asText("main");
    }
}
