package bkctl.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import java.util.Base64;
import java.util.Map;
import javax.security.auth.Subject;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import javax.security.auth.login.LoginContext;
import javax.security.sasl.AuthorizeCallback;
import javax.security.sasl.RealmCallback;
import javax.security.sasl.Sasl;
import javax.security.sasl.SaslClient;
import javax.security.sasl.SaslException;
import javax.security.sasl.SaslServer;

/**
 * One side of a login by the JDK's own SASL. Needs no jar: <code>java SaslPeer.java SIDE MECHANISM HOST USER
 * AUTHORIZATION</code>, the password in the variable PASSWORD. A line is a token in base64; the last one starts with
 * "done" or "failed".
 */
public final class SaslPeer {
    private static final String SERVICE = "bookkeeper";

    private SaslPeer() {}

    public static void main(String[] arguments) throws Exception {
        String mechanism = arguments[1];
        PrivilegedExceptionAction<Void> login = () -> {
            if (arguments[0].equals("client")) {
                runClient(mechanism, arguments[2], arguments[3], arguments[4]);
            } else {
                runServer(mechanism, arguments[2], arguments[3]);
            }
            return null;
        };
        try {
            if (mechanism.equals("GSSAPI")) {
                LoginContext context = new LoginContext("Peer");
                context.login();
                Subject.doAs(context.getSubject(), login);
            } else {
                login.run();
            }
        } catch (java.security.PrivilegedActionException error) {
            System.out.println("failed " + error.getCause());
        } catch (SaslException error) {
            System.out.println("failed " + error);
        }
    }

    private static void runClient(String mechanism, String host, String user, String authorization) throws Exception {
        String id = authorization.isEmpty() ? null : authorization;
        SaslClient client =
                Sasl.createSaslClient(new String[] {mechanism}, id, SERVICE, host, Map.of(), answering(user));
        send(client.hasInitialResponse() ? client.evaluateChallenge(new byte[0]) : new byte[0]);
        while (!client.isComplete()) {
            send(client.evaluateChallenge(receive()));
        }
        System.out.println("done");
    }

    private static void runServer(String mechanism, String host, String user) throws Exception {
        SaslServer server = Sasl.createSaslServer(mechanism, SERVICE, host, Map.of(), answering(user));
        while (!server.isComplete()) {
            send(server.evaluateResponse(receive()));
        }
        System.out.println("done " + server.getAuthorizationID());
    }

    private static CallbackHandler answering(String user) {
        return callbacks -> {
            for (Callback each : callbacks) {
                if (each instanceof NameCallback name) {
                    name.setName(user);
                } else if (each instanceof PasswordCallback password) {
                    password.setPassword(System.getenv("PASSWORD").toCharArray());
                } else if (each instanceof RealmCallback realm) {
                    realm.setText(realm.getDefaultText());
                } else if (each instanceof AuthorizeCallback authorize) {
                    String id = authorize.getAuthenticationID();
                    authorize.setAuthorized(id.equals(authorize.getAuthorizationID()));
                    authorize.setAuthorizedID(id);
                }
            }
        };
    }

    private static void send(byte[] token) {
        System.out.println(token == null ? "" : Base64.getEncoder().encodeToString(token));
    }

    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));

    private static byte[] receive() throws Exception {
        return Base64.getDecoder().decode(INPUT.readLine());
    }
}
