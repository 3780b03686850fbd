package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.net.URI;
import java.util.concurrent.FutureTask;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.stats.NullStatsLogger;

/** One ZooKeeper session of Java's metadata driver; its managers are made when they are first asked for. */
final class Session implements AutoCloseable {
    private final MetadataBookieDriver driver;
    private LedgerManager ledgers;
    private LedgerIdGenerator ids;
    private LedgerUnderreplicationManager underReplication;
    private LedgerAuditorManager election;
    private RegistrationManager registration;
    private FutureTask<Void> campaign;
    private Thread candidate;

    Session(JsonNode request) throws Exception {
        ServerConfiguration configuration = configuration(request);
        URI uri = URI.create(configuration.getMetadataServiceUri());
        driver = MetadataDrivers.getBookieDriver(uri);
        driver.initialize(configuration, NullStatsLogger.INSTANCE);
    }

    /** A server configuration of "uri" and "settings". */
    static ServerConfiguration configuration(JsonNode request) {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(request.get("uri").asText());
        configuration.setProperty("allowLoopback", true);
        if (request.has("settings")) {
            request.get("settings").fields().forEachRemaining(
                    setting -> configuration.setProperty(setting.getKey(), setting.getValue().asText()));
        }
        return configuration;
    }

    synchronized LedgerManager ledgers() throws Exception {
        if (ledgers == null) {
            ledgers = driver.getLedgerManagerFactory().newLedgerManager();
        }
        return ledgers;
    }

    synchronized LedgerIdGenerator ids() throws Exception {
        if (ids == null) {
            ids = driver.getLedgerManagerFactory().newLedgerIdGenerator();
        }
        return ids;
    }

    synchronized LedgerUnderreplicationManager underReplication() throws Exception {
        if (underReplication == null) {
            underReplication = driver.getLedgerManagerFactory().newLedgerUnderreplicationManager();
        }
        return underReplication;
    }

    synchronized LedgerAuditorManager election() throws Exception {
        if (election == null) {
            election = driver.getLedgerManagerFactory().newLedgerAuditorManager();
        }
        return election;
    }

    /** Takes part in the election of the auditor; Java's call waits until it is won. */
    void campaign(String bookieId) throws Exception {
        LedgerAuditorManager manager = election();
        campaign = new FutureTask<>(() -> {
            manager.tryToBecomeAuditor(bookieId, event -> { });
            return null;
        });
        candidate = new Thread(campaign, "candidate");
        candidate.setDaemon(true);
        candidate.start();
    }

    /** Whether the election was won; throws what ended it otherwise. */
    boolean isElected() throws Exception {
        if (campaign == null || !campaign.isDone()) {
            return false;
        }
        campaign.get();
        return true;
    }

    synchronized RegistrationManager registration() {
        if (registration == null) {
            registration = driver.createRegistrationManager();
        }
        return registration;
    }

    MetadataBookieDriver driver() {
        return driver;
    }

    @Override
    public void close() throws Exception {
        if (candidate != null) {
            candidate.interrupt();
            candidate.join();
        }
        if (election != null) {
            election.close();
        }
        if (underReplication != null) {
            underReplication.close();
        }
        if (registration != null) {
            registration.close();
        }
        if (ids != null) {
            ids.close();
        }
        if (ledgers != null) {
            ledgers.close();
        }
        driver.close();
    }
}
