import com.sun.management.HotSpotDiagnosticMXBean;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import java.lang.management.CompilationMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.LongAdder;
import org.apache.catalina.Context;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;

/**
 * A small portal in an embedded Tomcat: what it serves is in the heap.
 *
 * <p>A request of {@code /portal} renders one document, drawn at random, with the excerpts of those
 * that it refers to, and notes the visit in the trail of a session, also drawn at random. So a
 * request reads old objects that are spread over the heap, makes garbage of about ten times its
 * answer, and leaves a few objects that live for some time. {@code /counters} gives, as one JSON
 * object, what the process has counted since it began: {@code requests}, {@code gc_time} and
 * {@code jit_time} (seconds), {@code gc_count}; and {@code heap_used} (bytes), {@code collectors}.
 *
 * <p>Words of the command line: {@code socket=PATH} or {@code port=N} (of 127.0.0.1),
 * {@code live_mib=N} (documents in the heap), {@code threads=N} (that serve).
 */
public final class Portal {
    private static final int PARAGRAPHS = 8;
    private static final int PARAGRAPH_BYTES = 480;
    private static final int LINKS = 10;
    private static final int DOCUMENT_BYTES = 4608; // with its objects' headers; measured
    private static final int SESSIONS_PER_MIB = 16;
    private static final int TRAIL = 20;

    private static final class Document {
        final String title;
        final String[] paragraphs = new String[PARAGRAPHS];
        final Document[] links = new Document[LINKS];

        Document(int number, Random random) {
            title = "Document " + number + " <" + random.nextInt(1000) + ">";
            for (int n = 0; n < PARAGRAPHS; n++) {
                paragraphs[n] = words(random);
            }
        }

        private static String words(Random random) {
            StringBuilder text = new StringBuilder(PARAGRAPH_BYTES);
            while (text.length() < PARAGRAPH_BYTES) {
                for (int left = 2 + random.nextInt(9); left > 0; left--) {
                    text.append((char) ('a' + random.nextInt(26)));
                }
                text.append(random.nextInt(24) == 0 ? " & " : " ");
            }
            text.setLength(PARAGRAPH_BYTES);
            return text.toString();
        }
    }

    private static final class Visit {
        final Document document;
        final long when;

        Visit(Document document, long when) {
            this.document = document;
            this.when = when;
        }
    }

    private static final class Pages extends HttpServlet {
        private static final long serialVersionUID = 1L;
        private final transient Document[] documents;
        private final transient ArrayDeque<Visit>[] sessions;
        private final LongAdder requests;

        @SuppressWarnings({"unchecked", "rawtypes"})
        Pages(int mib, LongAdder requests) {
            this.requests = requests;
            Random random = new Random(1); // every instance, every trial: the same documents
            documents = new Document[(int) ((long) mib * (1 << 20) / DOCUMENT_BYTES)];
            for (int n = 0; n < documents.length; n++) {
                documents[n] = new Document(n, random);
            }
            for (Document document : documents) {
                for (int n = 0; n < LINKS; n++) {
                    document.links[n] = documents[random.nextInt(documents.length)];
                }
            }
            sessions = new ArrayDeque[mib * SESSIONS_PER_MIB];
            for (int n = 0; n < sessions.length; n++) {
                sessions[n] = new ArrayDeque<>(TRAIL);
            }
        }

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response)
                throws IOException {
            ThreadLocalRandom random = ThreadLocalRandom.current();
            Document document = documents[random.nextInt(documents.length)];
            StringBuilder page = new StringBuilder("<html><head><title>");
            escape(page, document.title).append("</title></head><body>");
            trail(page, sessions[random.nextInt(sessions.length)], document);
            for (String paragraph : document.paragraphs) {
                escape(page.append("<p>"), paragraph).append("</p>\n");
            }
            excerpts(page.append("<ul>"), document).append("</ul></body></html>\n");
            byte[] bytes = page.toString().getBytes(StandardCharsets.UTF_8);
            response.setContentType("text/html;charset=UTF-8");
            response.setContentLength(bytes.length);
            response.getOutputStream().write(bytes);
            requests.increment();
        }

        /** Show where the session was before, and note that it is here now. */
        private static void trail(StringBuilder page, ArrayDeque<Visit> visits, Document document) {
            synchronized (visits) {
                if (visits.size() == TRAIL) {
                    visits.removeFirst();
                }
                visits.addLast(new Visit(document, System.nanoTime()));
                page.append("<ol>");
                for (Visit visit : visits) {
                    page.append("<li value=\"").append(visit.when).append("\">");
                    escape(page, visit.document.title).append("</li>");
                }
                page.append("</ol>\n");
            }
        }

        /** List what the document refers to, each with its most frequent words. */
        private static StringBuilder excerpts(StringBuilder page, Document document) {
            for (Document link : document.links) {
                String first = link.paragraphs[ThreadLocalRandom.current().nextInt(PARAGRAPHS)];
                Map<String, Integer> counts = new HashMap<>();
                for (String word : first.split(" ")) {
                    counts.merge(word, 1, Integer::sum);
                }
                escape(page.append("<li>"), link.title).append(": ");
                int shown = 0;
                for (String word : new TreeSet<>(counts.keySet())) {
                    escape(page, word).append(' ');
                    if (++shown == 8) {
                        break;
                    }
                }
                page.append("</li>\n");
            }
            return page;
        }

        private static StringBuilder escape(StringBuilder page, String text) {
            for (int at = 0; at < text.length(); at++) {
                char one = text.charAt(at);
                switch (one) {
                    case '<': page.append("&lt;"); break;
                    case '>': page.append("&gt;"); break;
                    case '&': page.append("&amp;"); break;
                    default: page.append(one);
                }
            }
            return page;
        }
    }

    private static final class Counters extends HttpServlet {
        private static final long serialVersionUID = 1L;
        private final LongAdder requests;

        Counters(LongAdder requests) {
            this.requests = requests;
        }

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response)
                throws IOException {
            long ms = 0;
            long count = 0;
            StringBuilder names = new StringBuilder();
            for (GarbageCollectorMXBean one : ManagementFactory.getGarbageCollectorMXBeans()) {
                ms += one.getCollectionTime();
                count += one.getCollectionCount();
                names.append(names.length() > 0 ? ", " : "").append(one.getName());
            }
            CompilationMXBean jit = ManagementFactory.getCompilationMXBean();
            Runtime runtime = Runtime.getRuntime();
            response.setContentType("application/json");
            response.getWriter().printf(
                Locale.ROOT,
                "{\"requests\": %d, \"gc_time\": %.3f, \"gc_count\": %d, \"jit_time\": %.3f,"
                    + " \"heap_used\": %d, \"collectors\": \"%s\"}%n",
                requests.sum(), ms / 1e3, count, jit.getTotalCompilationTime() / 1e3,
                runtime.totalMemory() - runtime.freeMemory(), names);
        }
    }

    private Portal() {}

    /** Tell whether the JVM was asked for a flag that is not in force: it drops some in silence. */
    private static boolean dropped(String flag) {
        return ManagementFactory.getRuntimeMXBean().getInputArguments().contains("-XX:+" + flag)
            && ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class)
                .getVMOption(flag).getValue().equals("false");
    }

    private static Map<String, String> words(String[] arguments) {
        Map<String, String> found = new HashMap<>(Map.of("live_mib", "64", "threads", "16"));
        for (String word : arguments) {
            String[] parts = word.split("=", 2);
            if (parts.length != 2) {
                throw new IllegalArgumentException("not NAME=VALUE: " + word);
            }
            found.put(parts[0], parts[1]);
        }
        return found;
    }

    private static Connector connector(Map<String, String> words) {
        Connector connector = new Connector("org.apache.coyote.http11.Http11NioProtocol");
        if (words.containsKey("socket")) {
            connector.setProperty("unixDomainSocketPath", words.get("socket"));
        } else {
            connector.setProperty("address", "127.0.0.1");
            connector.setPort(Integer.parseInt(words.get("port")));
        }
        connector.setProperty("maxThreads", words.get("threads"));
        connector.setProperty("minSpareThreads", words.get("threads"));
        connector.setProperty("maxKeepAliveRequests", "-1");
        connector.setProperty("keepAliveTimeout", "-1");
        connector.setThrowOnFailure(true);
        return connector;
    }

    /** Start, or end with a message on standard error and status 1. */
    public static void main(String[] arguments) throws Exception {
        Map<String, String> words = words(arguments);
        if (dropped("UseNUMA")) {
            System.err.println("the JVM dropped -XX:+UseNUMA: it may use the memory of one node only,"
                + " or has no libnuma");
            System.exit(1);
        }
        LongAdder requests = new LongAdder();
        Pages pages = new Pages(Integer.parseInt(words.get("live_mib")), requests);
        System.gc(); // the documents are old before the first request
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(new File(".").getAbsolutePath());
        tomcat.setConnector(connector(words));
        Context context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "portal", pages).addMapping("/portal");
        Tomcat.addServlet(context, "counters", new Counters(requests)).addMapping("/counters");
        try {
            tomcat.start();
        } catch (Exception wrong) {
            System.err.println("Tomcat did not start: " + root(wrong));
            System.exit(1);
        }
        tomcat.getServer().await();
    }

    private static Throwable root(Throwable wrong) {
        return wrong.getCause() == null ? wrong : root(wrong.getCause());
    }
}
