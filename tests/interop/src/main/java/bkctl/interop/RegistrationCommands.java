package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

/** Registrations and cookies through Java's registration manager, as a bookie uses it. */
final class RegistrationCommands {
    private RegistrationCommands() {}

    static ObjectNode register(Session session, JsonNode request) throws Exception {
        List<BookieServiceInfo.Endpoint> endpoints = new ArrayList<>();
        for (JsonNode endpoint : request.get("endpoints")) {
            List<String> extensions = new ArrayList<>();
            endpoint.path("extensions").forEach(extension -> extensions.add(extension.asText()));
            endpoints.add(new BookieServiceInfo.Endpoint(
                    endpoint.get("id").asText(),
                    endpoint.get("port").asInt(),
                    endpoint.get("host").asText(),
                    endpoint.get("protocol").asText(),
                    List.of(),
                    extensions));
        }
        Map<String, String> properties = new TreeMap<>();
        request.path("properties").fields().forEachRemaining(
                property -> properties.put(property.getKey(), property.getValue().asText()));
        session.registration().registerBookie(
                bookieId(request), request.path("is_read_only").asBoolean(), new BookieServiceInfo(properties, endpoints));
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode unregister(Session session, JsonNode request) throws Exception {
        session.registration().unregisterBookie(bookieId(request), request.path("is_read_only").asBoolean());
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode isRegistered(Session session, JsonNode request) throws Exception {
        return CommandLoop.JSON.createObjectNode()
                .put("is_registered", session.registration().isBookieRegistered(bookieId(request)));
    }

    /** Writes a cookie, new or at "version". */
    static ObjectNode writeCookie(Session session, JsonNode request) throws Exception {
        Version version = request.hasNonNull("version")
                ? new LongVersion(request.get("version").asLong())
                : Version.NEW;
        byte[] bytes = cookie(request).toString().getBytes(java.nio.charset.StandardCharsets.UTF_8);
        session.registration().writeCookie(bookieId(request), new Versioned<>(bytes, version));
        return CommandLoop.JSON.createObjectNode();
    }

    /** The cookie as it is stored, and as Java understands it. */
    static ObjectNode readCookie(Session session, JsonNode request) throws Exception {
        Versioned<byte[]> found = session.registration().readCookie(bookieId(request));
        return CommandLoop.JSON.createObjectNode()
                .put("data", found.getValue())
                .put("version", ((LongVersion) found.getVersion()).getLongVersion())
                .put("understood", Cookie.parseFromBytes(found.getValue()).toString());
    }

    /** Compares the cookie that is described with the stored one, as a booting bookie does. */
    static ObjectNode verifyCookie(Session session, JsonNode request) throws Exception {
        Versioned<Cookie> stored = Cookie.readFromRegistrationManager(session.registration(), bookieId(request));
        cookie(request).verify(stored.getValue());
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode removeCookie(Session session, JsonNode request) throws Exception {
        session.registration().removeCookie(bookieId(request), new LongVersion(request.get("version").asLong()));
        return CommandLoop.JSON.createObjectNode();
    }

    static ObjectNode setHealthCheck(Session session, JsonNode request) throws Exception {
        if (request.get("is_enabled").asBoolean()) {
            session.driver().enableHealthCheck().get();
        } else {
            session.driver().disableHealthCheck().get();
        }
        return CommandLoop.JSON.createObjectNode();
    }

    private static Cookie cookie(JsonNode request) {
        Cookie.Builder builder = Cookie.newBuilder()
                .setBookieId(request.get("bookie_id").asText())
                .setJournalDirs(String.join(",", names(request.get("journals"))))
                .setLedgerDirs(Cookie.encodeDirPaths(names(request.get("ledgers"))));
        if (request.hasNonNull("indexes")) {
            builder.setIndexDirs(Cookie.encodeDirPaths(names(request.get("indexes"))));
        }
        if (request.hasNonNull("instance_id")) {
            builder.setInstanceId(request.get("instance_id").asText());
        }
        return builder.build();
    }

    private static String[] names(JsonNode array) {
        List<String> found = new ArrayList<>();
        array.forEach(name -> found.add(name.asText()));
        return found.toArray(String[]::new);
    }

    private static BookieId bookieId(JsonNode request) {
        return BookieId.parse(request.get("bookie_id").asText());
    }
}
