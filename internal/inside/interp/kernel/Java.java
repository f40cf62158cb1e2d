import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.ExpressionSnippet;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.execution.DirectExecutionControl;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

/**
 * The Java kernel of one context: java Java.java DIR.
 *
 * <p>Each line of DIR/requests is a number and what to do with the content of DIR/code; JSON lines
 * in DIR/events say what came of it. Code runs in this process through JShell, the console that
 * comes with Java. Its output is events too; output of programs that it starts goes straight to the
 * standard outputs.
 */
public class Java {
    private static final List<String> IMPORTS = List.of(
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.time.*", "java.util.*",
        "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*");
    /** Where displayed values go; code reaches it by this name alone. */
    private static final String DISPLAY = "cay.display";

    private final Path dir;
    private final OutputStream events;
    private final Engine engine = new Engine();
    private final JShell shell;
    private final Deque<String[]> undo = new ArrayDeque<>();
    private int cell;

    public static void main(String[] args) throws Exception {
        Java kernel = new Java(Path.of(args[0]));
        kernel.emit(Map.of("type", "done", "id", 0));
        kernel.serve();
    }

    private Java(Path dir) throws Exception {
        this.dir = dir;
        events = new FileOutputStream(dir.resolve("events").toFile(), true);
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> engine.interrupt());
        System.setOut(new Output("stdout"));
        System.setErr(new Output("stderr"));
        System.getProperties().put(DISPLAY, (Consumer<Object>) value -> show(value, false));
        shell = JShell.builder().executionEngine(engine, null).build();
        for (String name : IMPORTS) shell.eval("import " + name + ";");
        shell.eval("@SuppressWarnings(\"unchecked\") void display(Object value) {"
            + "((java.util.function.Consumer<Object>) System.getProperties().get(\"" + DISPLAY + "\")).accept(value); }");
    }

    private void serve() throws IOException {
        for (;;) {
            // Opened each time: what code starts inherits nothing of ours.
            try (var lines = Files.newBufferedReader(dir.resolve("requests"))) {
                String line = lines.readLine();
                if (line == null) continue;
                String[] request = line.split(" ");
                try {
                    handle(request[1]);
                } catch (Throwable e) { // also of the code's, amid what JShell does for it
                    emit(error(e.getClass().getName(), "the code could not be run to its end", e.getClass().getName()));
                }
                System.out.flush();
                System.err.flush();
                emit(Map.of("type", "done", "id", Integer.valueOf(request[0])));
            }
        }
    }

    private void handle(String op) throws IOException {
        String text = Files.readString(dir.resolve("code"));
        switch (op) {
            case "execute" -> execute(text);
            case "prepare" -> prepare(text.split("\0", -1));
            case "restore" -> {
                while (!undo.isEmpty()) setProperty(undo.peek()[0], undo.pop()[1]);
            }
            default -> { }
        }
    }

    /** Runs the statements of the code up to the first that fails. */
    private void execute(String code) {
        cell++;
        engine.ready();
        SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
        int line = 1;
        for (String rest = code; !rest.isBlank(); ) {
            int blank = rest.length() - rest.stripLeading().length();
            line += count(rest, blank);
            rest = rest.substring(blank);
            SourceCodeAnalysis.CompletionInfo info = analysis.analyzeCompletion(rest);
            String source = info.source();
            if (source == null || info.completeness() == SourceCodeAnalysis.Completeness.UNKNOWN) source = rest;
            String remaining = info.remaining() == null || source == rest ? "" : info.remaining();
            boolean last = remaining.isBlank();
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() == null && !report(event, last, line)) return;
            }
            if (engine.interrupted()) {
                emit(interrupted());
                return;
            }
            line += count(rest, rest.length() - remaining.length());
            rest = remaining;
        }
    }

    private static int count(String text, int end) {
        return (int) text.substring(0, end).chars().filter(c -> c == '\n').count();
    }

    /** Reports what a piece of code did; false ends the execution. */
    private boolean report(SnippetEvent event, boolean last, int line) {
        Snippet snippet = event.snippet();
        if (engine.interrupted()) {
            emit(interrupted());
            return false;
        }
        if (event.status() == Snippet.Status.REJECTED) {
            emit(rejected(snippet, line));
            return false;
        }
        if (event.exception() != null) {
            emit(thrown(event.exception(), line));
            return false;
        }
        Object value = engine.take();
        boolean shown = snippet instanceof ExpressionSnippet e
            && e.subKind() != Snippet.SubKind.ASSIGNMENT_SUBKIND
            || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        if (!last || !shown || event.value() == null) return true;
        try {
            show(value, true);
        } catch (RuntimeException | StackOverflowError e) { // of its toString()
            emit(error(e.getClass().getName(), Objects.toString(e.getMessage(), ""), "while the result was shown: " + e));
        }
        return true;
    }

    private void show(Object value, boolean main) {
        Map<String, Object> data = new HashMap<>();
        data.put("text/plain", text(value));
        if (value instanceof java.awt.image.RenderedImage image) {
            try {
                var out = new ByteArrayOutputStream();
                javax.imageio.ImageIO.write(image, "png", out);
                data.put("image/png", Base64.getEncoder().encodeToString(out.toByteArray()));
            } catch (IOException e) {
                // Its text must do.
            }
        }
        emit(Map.of("type", "result", "main", main, "data", data));
    }

    private static String text(Object value) {
        if (value == null || !value.getClass().isArray()) return Objects.toString(value);
        if (value instanceof Object[] items) return Arrays.deepToString(items);
        var out = new ArrayList<String>();
        for (int i = 0; i < Array.getLength(value); i++) out.add(Objects.toString(Array.get(value, i)));
        return out.toString();
    }

    // Errors

    private static Map<String, Object> error(String name, String value, String traceback) {
        return Map.of("type", "error", "name", name, "value", value, "traceback", traceback);
    }

    private static Map<String, Object> interrupted() {
        return error("Interrupted", "the execution was interrupted", "the execution was interrupted");
    }

    private Map<String, Object> rejected(Snippet snippet, int line) {
        List<Diag> problems = shell.diagnostics(snippet).filter(Diag::isError).toList();
        if (problems.isEmpty()) return error("CompilationError", "the code is not Java", snippet.source());
        var out = new StringBuilder();
        for (Diag problem : problems) {
            String before = snippet.source().substring(0, (int) Math.max(0, Math.min(problem.getPosition(), snippet.source().length())));
            int at = count(before, before.length());
            String code = snippet.source().lines().skip(at).findFirst().orElse("");
            int column = before.length() - (before.lastIndexOf('\n') + 1);
            out.append("cell-%d:%d: error: %s\n%s\n%s^\n".formatted(
                cell, line + at, problem.getMessage(Locale.ENGLISH), code, " ".repeat(column)));
        }
        return error("CompilationError", problems.get(0).getMessage(Locale.ENGLISH), out.toString());
    }

    private Map<String, Object> thrown(JShellException thrown, int line) {
        if (thrown instanceof UnresolvedReferenceException unresolved) {
            DeclarationSnippet snippet = unresolved.getSnippet();
            String value = "this is used before it is defined: " + String.join(", ", shell.unresolvedDependencies(snippet).toList());
            return error("UnresolvedReferenceException", value, value + "\n" + snippet.source());
        }
        String name = name(thrown);
        var out = new StringBuilder();
        for (Throwable t = thrown; t != null; t = t.getCause()) {
            out.append(t == thrown ? "" : "Caused by: ").append(name(t));
            out.append(t.getMessage() == null ? "" : ": " + t.getMessage()).append('\n');
            for (StackTraceElement frame : t.getStackTrace()) {
                String file = String.valueOf(frame.getFileName());
                if (file.startsWith("Java.java") || frame.getClassName().startsWith("jdk.")) break;
                out.append("\tat ").append(place(frame, line)).append('\n');
            }
        }
        return error(name, Objects.toString(thrown.getMessage(), ""), out.toString());
    }

    /** The class of an exception, by the name that the user gave it. */
    private static String name(Throwable t) {
        String name = t instanceof EvalException e ? e.getExceptionClassName() : t.getClass().getName();
        return name.replaceFirst("^REPL\\.\\$JShell\\$\\w+\\$", "");
    }

    /** A frame with the names that the user knows: JShell's own say nothing. */
    private String place(StackTraceElement frame, int line) {
        String file = String.valueOf(frame.getFileName());
        if (!file.startsWith("#")) return frame.toString();
        boolean top = frame.getClassName().isEmpty() && frame.getMethodName().isEmpty();
        return top ? "cell-%d:%d".formatted(cell, line + frame.getLineNumber() - 1)
            : "%s (snippet %s:%d)".formatted(frame.getMethodName(), file, frame.getLineNumber());
    }

    // The environment: Java's own cannot change, so it is system properties

    private void prepare(String[] fields) {
        for (int i = 0; i + 2 < fields.length; i += 3) {
            String name = fields[i + 1];
            String value = fields[i + 2];
            switch (fields[i]) {
                case "set" -> setProperty(name, value);
                case "unset" -> setProperty(name, null);
                case "call" -> {
                    undo.push(new String[] {name, System.getProperty(name)});
                    setProperty(name, value);
                }
                case "entropy" -> reseed(new BigInteger(value, 16));
                default -> { }
            }
        }
    }

    private static void setProperty(String name, String value) {
        if (name.isEmpty()) return;
        if (value == null) System.clearProperty(name);
        else System.setProperty(name, value);
    }

    /** Makes this process draw other random numbers than its twins. */
    private static void reseed(BigInteger entropy) {
        try {
            Field shared = Class.forName("java.lang.Math$RandomNumberGeneratorHolder").getDeclaredField("randomNumberGenerator");
            shared.setAccessible(true);
            ((Random) shared.get(null)).setSeed(entropy.longValue());
            Field seeder = java.util.concurrent.ThreadLocalRandom.class.getDeclaredField("seeder");
            seeder.setAccessible(true);
            ((AtomicLong) seeder.get(null)).set(entropy.shiftRight(64).longValue());
        } catch (ReflectiveOperationException | RuntimeException e) {
            // Another Java keeps them elsewhere.
        }
    }

    // Output

    /**
     * The code's output, one event a write. A line and its end are two writes, as a PrintStream of a
     * class of its own makes them: clients see the end as a message of its own, as with E2B's kernel.
     */
    private final class Output extends PrintStream {
        Output(String name) {
            super(new OutputStream() {
                private byte[] half = {}; // of a character

                @Override public void write(int b) {
                    write(new byte[] {(byte) b}, 0, 1);
                }

                @Override public synchronized void write(byte[] bytes, int from, int length) {
                    byte[] all = Arrays.copyOf(half, half.length + length);
                    System.arraycopy(bytes, from, all, half.length, length);
                    int whole = all.length - incomplete(all);
                    half = Arrays.copyOfRange(all, whole, all.length);
                    if (whole > 0) emit(Map.of("type", name, "text", new String(all, 0, whole, StandardCharsets.UTF_8)));
                }
            }, true, StandardCharsets.UTF_8);
        }
    }

    /** The length of a character's beginning at the end of bytes. */
    private static int incomplete(byte[] bytes) {
        for (int n = 1; n <= Math.min(3, bytes.length); n++) {
            int b = bytes[bytes.length - n] & 0xff;
            if (b < 0x80) return 0;
            if (b >= 0xc0) return n < (b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2) ? n : 0;
        }
        return 0;
    }

    // Events

    private void emit(Map<String, Object> event) {
        var out = new StringBuilder();
        json(event, out);
        try {
            synchronized (events) {
                events.write(out.append('\n').toString().getBytes(StandardCharsets.UTF_8));
            }
        } catch (IOException e) {
            Runtime.getRuntime().halt(1); // the agent is gone
        }
    }

    private static void json(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String between = "{";
            for (var entry : map.entrySet()) {
                out.append(between);
                json(entry.getKey(), out);
                out.append(':');
                json(entry.getValue(), out);
                between = ",";
            }
            out.append('}');
        } else if (value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            out.append('"');
            for (char c : String.valueOf(value).toCharArray()) {
                if (c == '"' || c == '\\') out.append('\\').append(c);
                else if (c < ' ' || Character.isSurrogate(c)) out.append("\\u%04x".formatted((int) c));
                else out.append(c);
            }
            out.append('"');
        }
    }

    /** Runs what JShell compiled, in a thread for each execution that can be ended. */
    private static final class Engine extends DirectExecutionControl implements ExecutionControlProvider {
        private Thread running;
        private boolean stopped;
        private Object value;

        @Override public String name() { return "cay"; }

        @Override public ExecutionControl generate(ExecutionEnv env, Map<String, String> parameters) { return this; }

        synchronized void ready() { stopped = false; }

        synchronized boolean interrupted() { return stopped; }

        Object take() {
            Object last = value;
            value = null;
            return last;
        }

        @SuppressWarnings({"deprecation", "removal"})
        synchronized void interrupt() {
            stopped = true;
            if (running == null) return;
            running.interrupt(); // ends what waits
            running.stop(); // and what computes
        }

        @Override protected String invoke(Method method) throws Exception {
            var failure = new Throwable[1];
            var thread = new Thread(() -> {
                try {
                    value = method.invoke(null);
                } catch (java.lang.reflect.InvocationTargetException e) {
                    failure[0] = e.getCause();
                } catch (Throwable e) {
                    failure[0] = e;
                }
            }, "main");
            thread.setContextClassLoader(method.getDeclaringClass().getClassLoader());
            synchronized (this) {
                if (stopped) throw new StoppedException();
                running = thread;
                thread.start();
            }
            for (boolean over = false; !over; ) {
                try {
                    thread.join();
                    over = true;
                } catch (InterruptedException e) {
                    // No other thread interrupts this one.
                }
            }
            synchronized (this) {
                running = null;
                if (stopped) throw new StoppedException();
            }
            if (failure[0] != null) throw new java.lang.reflect.InvocationTargetException(failure[0]);
            return method.getReturnType() == void.class ? null : "";
        }
    }
}
