package bkctl.interop;

import java.io.File;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.ReplicationWorker;

/**
 * Only the auditor, or only the replication worker, which Java's own daemon always runs together.
 *
 * <p>Arguments: configuration file, "auditor" or "worker".
 */
public final class RecoveryPart {
    private RecoveryPart() {}

    public static void main(String[] arguments) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.loadConf(new File(arguments[0]).toURI().toURL());
        switch (arguments[1]) {
            case "auditor" ->
                new AuditorElector("127.0.0.1:" + configuration.getBookiePort(), configuration).start();
            case "worker" -> new ReplicationWorker(configuration).start();
            default -> throw new IllegalArgumentException("no such part: " + arguments[1]);
        }
        new CountDownLatch(1).await();
    }
}
