import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.UUID;
import org.postgresql.PGConnection;

/** Checks of pgjdbc: values, batches, transactions, errors, generated keys, fetch sizes, COPY, cancellation, metadata. */
public class Check {
    interface Action {
        void run() throws Exception;
    }

    static Connection connect(String... settings) throws SQLException {
        var environment = System.getenv();
        var properties = new Properties();
        properties.setProperty("user", environment.get("PGUSER"));
        properties.setProperty("password", environment.get("PGPASSWORD"));
        properties.setProperty("sslmode", environment.get("PGSSLMODE"));
        properties.setProperty("sslrootcert", environment.get("PGSSLROOTCERT"));
        properties.setProperty("channelBinding", "require");
        for (int i = 0; i < settings.length; i += 2) {
            properties.setProperty(settings[i], settings[i + 1]);
        }
        var address = environment.get("PGHOST") + ":" + environment.get("PGPORT") + "/" + environment.get("PGDATABASE");
        return DriverManager.getConnection("jdbc:postgresql://" + address, properties);
    }

    static void equal(Object found, Object expected) {
        if (!Objects.deepEquals(found, expected)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    static void fails(String code, Action action) throws Exception {
        try {
            action.run();
        } catch (SQLException error) {
            equal(error.getSQLState(), code);
            return;
        }
        throw new AssertionError("no error, expected " + code);
    }

    static void execute(Connection c, String sql) throws SQLException {
        try (Statement statement = c.createStatement()) {
            statement.execute(sql);
        }
    }

    static List<List<String>> rows(ResultSet result, String... columns) throws SQLException {
        var all = new ArrayList<List<String>>();
        while (result.next()) {
            var row = new ArrayList<String>();
            for (String column : columns) {
                row.add(result.getString(column));
            }
            all.add(row);
        }
        return all;
    }

    static void values(Connection c) throws Exception {
        Object[][] cases = {
            {"BOOLEAN", true, Boolean.class}, {"SMALLINT", -3, Integer.class}, {"INTEGER", 70000, Integer.class},
            {"BIGINT", 1L << 40, Long.class}, {"REAL", 0.25f, Float.class}, {"DOUBLE PRECISION", 0.1, Double.class},
            {"DECIMAL(20, 4)", new BigDecimal("-12345.6789"), BigDecimal.class}, {"TEXT", "käyaki 'x'", String.class},
            {"VARCHAR(20)", "short", String.class}, {"BYTEA", new byte[] {0, -1}, byte[].class},
            {"UUID", UUID.fromString("12345678-1234-5678-1234-567812345678"), UUID.class},
            {"DATE", LocalDate.of(1999, 12, 31), LocalDate.class},
            {"TIME", LocalTime.of(23, 59, 59, 123456000), LocalTime.class},
            {"TIMESTAMP", LocalDateTime.of(2024, 2, 29, 1, 2, 3, 4000), LocalDateTime.class},
            {"TIMESTAMPTZ", OffsetDateTime.of(2024, 2, 29, 1, 2, 3, 4000, ZoneOffset.UTC), OffsetDateTime.class},
        };
        for (int number = 0; number < cases.length; number++) {
            var type = (String) cases[number][0];
            var table = "of_type_" + number;
            execute(c, "CREATE TABLE " + table + " (id INT PRIMARY KEY, v " + type + ")");
            try (var insert = c.prepareStatement("INSERT INTO " + table + " VALUES (?, ?)")) {
                insert.setInt(1, 1);
                insert.setObject(2, cases[number][1]);
                insert.executeUpdate();
                insert.setInt(1, 2);
                insert.setNull(2, Types.NULL);
                insert.executeUpdate();
            }
            // The first five executions return text, later ones binary values.
            try (var select = c.prepareStatement("SELECT v FROM " + table + " WHERE id = ?")) {
                for (int i = 0; i < 8; i++) {
                    select.setInt(1, 1);
                    try (var result = select.executeQuery()) {
                        equal(result.next(), true);
                        equal(result.getObject(1, (Class<?>) cases[number][2]), cases[number][1]);
                    }
                    select.setInt(1, 2);
                    try (var result = select.executeQuery()) {
                        equal(result.next(), true);
                        equal(result.getObject(1), null);
                        equal(result.wasNull(), true);
                    }
                }
            }
        }
        execute(c, "CREATE TABLE arrays (id INT PRIMARY KEY, v INT[], w TEXT[])");
        try (var insert = c.prepareStatement("INSERT INTO arrays VALUES (1, ?, ?)")) {
            insert.setArray(1, c.createArrayOf("int4", new Integer[] {1, null, 3}));
            insert.setArray(2, c.createArrayOf("text", new String[] {"a", "b,c", "d\"e"}));
            insert.executeUpdate();
        }
        try (var result = c.createStatement().executeQuery("SELECT v, w FROM arrays")) {
            equal(result.next(), true);
            equal(result.getArray(1).getArray(), new Integer[] {1, null, 3});
            equal(result.getArray(2).getArray(), new String[] {"a", "b,c", "d\"e"});
        }
    }

    static void batches(Connection c) throws Exception {
        execute(c, "CREATE TABLE b (id INT PRIMARY KEY, v TEXT NOT NULL)");
        try (var insert = c.prepareStatement("INSERT INTO b VALUES (?, ?)")) {
            for (int i = 0; i < 1000; i++) {
                insert.setInt(1, i);
                insert.setString(2, "row " + i);
                insert.addBatch();
            }
            equal(Arrays.stream(insert.executeBatch()).sum(), 1000);
            insert.setInt(1, 2000);
            insert.setString(2, "x");
            insert.addBatch();
            insert.setInt(1, 0);
            insert.addBatch();
            try {
                insert.executeBatch();
                throw new AssertionError("no error");
            } catch (BatchUpdateException error) {
                equal(error.getSQLState(), "23505");
            }
        }
        execute(c, "CREATE TABLE keys (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v INT)");
        try (var insert = c.prepareStatement("INSERT INTO keys (v) VALUES (5), (6)", Statement.RETURN_GENERATED_KEYS)) {
            insert.executeUpdate();
            try (var keys = insert.getGeneratedKeys()) {
                equal(rows(keys, "id"), List.of(List.of("1"), List.of("2")));
            }
        }
    }

    static void transactions(Connection c) throws Exception {
        c.setAutoCommit(false);
        execute(c, "INSERT INTO b VALUES (3000, 'x')");
        Savepoint savepoint = c.setSavepoint();
        fails("23502", () -> execute(c, "INSERT INTO b VALUES (3001, NULL)"));
        fails("25P02", () -> execute(c, "SELECT 1"));
        c.rollback(savepoint);
        c.commit();
        execute(c, "DELETE FROM b WHERE id = 3000");
        c.rollback();
        c.setAutoCommit(true);
        try (var result = c.createStatement().executeQuery("SELECT count(*) FROM b WHERE id = 3000")) {
            result.next();
            equal(result.getInt(1), 1);
        }
        c.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        equal(c.getTransactionIsolation(), Connection.TRANSACTION_SERIALIZABLE);
        c.setReadOnly(true);
        c.setAutoCommit(false);
        fails("25006", () -> execute(c, "DELETE FROM b"));
        c.rollback();
        c.setAutoCommit(true);
        c.setReadOnly(false);
        fails("42601", () -> execute(c, "SELEC 1"));
        fails("42P01", () -> execute(c, "SELECT * FROM nowhere"));
        fails("42703", () -> execute(c, "SELECT nothing FROM b"));
        fails("22012", () -> execute(c, "SELECT 1 / 0"));
    }

    static void largeResults(Connection c) throws Exception {
        c.setAutoCommit(false);
        try (var statement = c.prepareStatement("SELECT a, a::text FROM generate_series(1, 200000) g (a)")) {
            statement.setFetchSize(1000);
            long sum = 0;
            try (var result = statement.executeQuery()) {
                while (result.next()) {
                    sum += result.getLong(1);
                }
            }
            equal(sum, 200000L * 200001 / 2);
            // The portal of a result that is not read to its end is closed.
            try (var result = statement.executeQuery()) {
                equal(result.next(), true);
            }
        }
        c.commit();
        c.setAutoCommit(true);
    }

    static void copies(Connection c) throws Exception {
        execute(c, "CREATE TABLE c (id INT PRIMARY KEY, v TEXT)");
        var copies = c.unwrap(PGConnection.class).getCopyAPI();
        var text = new StringBuilder();
        for (int i = 0; i < 1000; i++) {
            text.append(i).append('\t').append(i % 2 == 0 ? "\\N" : "row\\t" + i).append('\n');
        }
        equal(copies.copyIn("COPY c FROM STDIN", new StringReader(text.toString())), 1000L);
        var out = new ByteArrayOutputStream();
        copies.copyOut("COPY (SELECT * FROM c WHERE id < 2 ORDER BY id) TO STDOUT (FORMAT csv)", out);
        equal(out.toString(StandardCharsets.UTF_8), "0,\n1,row\t1\n");
        fails("23505", () -> copies.copyIn("COPY c FROM STDIN", new StringReader("1\tagain\n")));
    }

    static void cancellation(Connection c) throws Exception {
        var endless = "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)";
        try (var statement = c.createStatement()) {
            statement.setQueryTimeout(1);
            fails("57014", () -> statement.executeQuery(endless));
            statement.setQueryTimeout(0);
            var thread = new Thread(() -> {
                try {
                    Thread.sleep(300);
                    statement.cancel();
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            thread.start();
            fails("57014", () -> statement.executeQuery(endless));
            thread.join();
        }
    }

    static void metadata(Connection c) throws Exception {
        execute(c, "CREATE TABLE parent (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL DEFAULT 'q', d NUMERIC(10, 2))");
        execute(c, "CREATE TABLE child (id BIGINT PRIMARY KEY, p INT REFERENCES parent (id))");
        execute(c, "CREATE INDEX parent_v ON parent (v)");
        execute(c, "CREATE VIEW shown AS SELECT id FROM parent");
        DatabaseMetaData data = c.getMetaData();
        equal(data.getDatabaseProductName(), "PostgreSQL");
        equal(rows(data.getTables(null, "public", "parent", new String[] {"TABLE"}), "TABLE_NAME"), List.of(List.of("parent")));
        equal(rows(data.getTables(null, "public", "%", new String[] {"VIEW"}), "TABLE_NAME"), List.of(List.of("shown")));
        equal(rows(data.getColumns(null, "public", "parent", "%"), "COLUMN_NAME", "TYPE_NAME", "COLUMN_SIZE", "IS_NULLABLE"),
                List.of(List.of("id", "int4", "10", "NO"), List.of("v", "varchar", "20", "NO"), List.of("d", "numeric", "10", "YES")));
        equal(rows(data.getPrimaryKeys(null, "public", "parent"), "COLUMN_NAME"), List.of(List.of("id")));
        equal(rows(data.getImportedKeys(null, "public", "child"), "PKTABLE_NAME", "PKCOLUMN_NAME", "FKCOLUMN_NAME"),
                List.of(List.of("parent", "id", "p")));
        equal(rows(data.getExportedKeys(null, "public", "parent"), "FKTABLE_NAME"), List.of(List.of("child")));
        equal(rows(data.getIndexInfo(null, "public", "parent", false, false), "INDEX_NAME").contains(List.of("parent_v")), true);
        equal(rows(data.getSchemas(), "TABLE_SCHEM").contains(List.of("public")), true);
        for (ResultSet result : List.of(data.getTableTypes(), data.getTypeInfo(), data.getFunctions(null, null, "%"),
                data.getProcedures(null, null, "%"), data.getTablePrivileges(null, "public", "%"), data.getCatalogs())) {
            while (result.next()) {
                result.getString(1);
            }
            result.close();
        }
        try (PreparedStatement statement = c.prepareStatement("SELECT id, v FROM parent WHERE d > ?")) {
            equal(statement.getParameterMetaData().getParameterCount(), 1);
            equal(statement.getMetaData().getColumnTypeName(1), "int4");
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection c = connect()) {
            Object[][] checks = {
                {"values", (Action) () -> values(c)}, {"batches and generated keys", (Action) () -> batches(c)},
                {"transactions and errors", (Action) () -> transactions(c)}, {"large results", (Action) () -> largeResults(c)},
                {"COPY", (Action) () -> copies(c)}, {"metadata", (Action) () -> metadata(c)},
                {"cancellation", (Action) () -> cancellation(c)},
            };
            for (Object[] check : checks) {
                ((Action) check[1]).run();
                System.out.println("ok " + check[0]);
            }
        }
        for (String mode : List.of("simple", "extendedForPrepared", "extendedCacheEverything")) {
            try (Connection c = connect("preferQueryMode", mode); var p = c.prepareStatement("SELECT ?::int + 1, ?::text")) {
                for (int i = 0; i < 8; i++) {
                    p.setInt(1, i);
                    p.setString(2, "it's " + i);
                    try (var result = p.executeQuery()) {
                        equal(result.next(), true);
                        equal(result.getInt(1), i + 1);
                        equal(result.getString(2), "it's " + i);
                    }
                }
            }
            System.out.println("ok query mode " + mode);
        }
        fails("28P01", () -> connect("password", "wrong"));
        System.out.println("ok wrong password");
    }
}
