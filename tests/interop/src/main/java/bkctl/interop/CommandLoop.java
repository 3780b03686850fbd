package bkctl.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.BKException;

/**
 * Commands on stdin, answers on stdout, so that one JVM serves many tests.
 *
 * <p>Each line read is a JSON object with "command" and its arguments; each line written is the answer,
 * {@code {"result": {...}}} or {@code {"error": {"code": N, "type": "...", "message": "..."}}} with the code of
 * BKException.
 */
final class CommandLoop {
    static final ObjectMapper JSON = new ObjectMapper();

    /** What a program does with one command. */
    interface Commands {
        ObjectNode run(String command, JsonNode request) throws Exception;
    }

    private final Commands commands;
    private final PrintStream answers;

    CommandLoop(Commands commands, PrintStream answers) {
        this.commands = commands;
        this.answers = answers;
    }

    /** Serves until the end of input. */
    void run() throws IOException {
        say(JSON.createObjectNode().set("result", JSON.createObjectNode().put("ready", true)));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            say(answer(line));
        }
    }

    private void say(JsonNode answer) throws IOException {
        answers.println(JSON.writeValueAsString(answer));
        answers.flush();
    }

    private ObjectNode answer(String line) throws IOException {
        JsonNode request = JSON.readTree(line);
        ObjectNode answer = JSON.createObjectNode();
        try {
            answer.set("result", commands.run(request.get("command").asText(), request));
        } catch (Throwable thrown) {
            Throwable cause = unwrap(thrown);
            ObjectNode error = answer.putObject("error");
            error.put("code", codeOf(cause));
            error.put("type", cause.getClass().getSimpleName());
            error.put("message", cause.toString());
        }
        return answer;
    }

    /** The code of a BKException, 0 for any other. */
    static int codeOf(Throwable thrown) {
        return unwrap(thrown) instanceof BKException bk ? bk.getCode() : 0;
    }

    /** The exception that a future was failed with. */
    static Throwable unwrap(Throwable thrown) {
        Throwable cause = thrown;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }
}
