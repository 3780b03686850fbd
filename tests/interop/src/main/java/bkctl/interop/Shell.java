package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;

/**
 * Java's shell inside this JVM. Its findings are log events whose values its own console layout drops (they are
 * attributes of the event), so the events themselves are collected, beside what goes to stdout.
 */
final class Shell {
    private final List<LogEvent> events = new ArrayList<>();
    private final ByteArrayOutputStream printed = new ByteArrayOutputStream();

    Shell() {
        AbstractAppender collector = new AbstractAppender("collector", null, null, true, Property.EMPTY_ARRAY) {
            @Override
            public void append(LogEvent event) {
                synchronized (events) {
                    events.add(event.toImmutable());
                }
            }
        };
        collector.start();
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        context.getConfiguration().getRootLogger().addAppender(collector, null, null);
        context.updateLoggers();
        // Before any class of the shell takes System.out for itself.
        System.setOut(new PrintStream(new OutputStream() {
            @Override
            public void write(int octet) {
                synchronized (printed) {
                    printed.write(octet);
                }
            }
        }, true, StandardCharsets.UTF_8));
    }

    /** Runs one command: exit code as a process would have, events as message and attributes, text of stdout. */
    ObjectNode run(JsonNode request) throws Exception {
        List<String> arguments = new ArrayList<>();
        request.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        synchronized (events) {
            events.clear();
        }
        synchronized (printed) {
            printed.reset();
        }
        ObjectNode result = CommandLoop.JSON.createObjectNode();
        try {
            ServerConfiguration configuration = Session.configuration(request);
            BookieShell shell = new BookieShell(
                    LedgerIdFormatter.newLedgerIdFormatter(configuration),
                    EntryFormatter.newEntryFormatter(configuration));
            shell.setConf(configuration);
            result.put("exit_code", shell.run(arguments.toArray(String[]::new)) & 0xFF);
        } catch (Throwable thrown) {
            result.put("exit_code", 255).put("exception", CommandLoop.unwrap(thrown).toString());
        }
        ArrayNode lines = result.putArray("events");
        synchronized (events) {
            for (LogEvent event : events) {
                ObjectNode values = lines.addObject()
                        .put("message", event.getMessage().getFormattedMessage())
                        .put("logger", event.getLoggerName())
                        .putObject("values");
                event.getContextData().toMap().forEach(values::put);
            }
        }
        synchronized (printed) {
            result.put("stdout", printed.toString(StandardCharsets.UTF_8));
        }
        return result;
    }
}
