//! The defects of DataFusion that Keyaki works around still exist. A test that fails after an upgrade means that DataFusion
//! has corrected the defect: remove the workaround that `docs/upstream.md` names, and the test.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::Result;
use datafusion::prelude::{SessionConfig, SessionContext};

/// The rows of a query in DataFusion alone, sorted, or its error.
async fn rows(sql: &str) -> Result<Vec<String>, String> {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let tables = [
        "CREATE TABLE t (a BIGINT NOT NULL, b BIGINT, c BIGINT, d DECIMAL(10,2)) AS VALUES
         (1, 1, 5, 1.50), (2, 5, 5, 2.50), (4, 30, NULL, NULL), (2, NULL, 6, -1.00)",
        "CREATE TABLE u (a BIGINT, b BIGINT, e BIGINT NOT NULL) AS VALUES
         (1, 100, 1), (NULL, 200, 2), (2, NULL, 3), (5, 7, 4)",
    ];
    for table in tables {
        collect(&context, table).await.expect("a table");
    }
    let batches = collect(&context, sql).await.map_err(|error| error.to_string())?;
    let mut rows: Vec<String> = batches.iter().flat_map(shown).collect();
    rows.sort();
    Ok(rows)
}

async fn collect(context: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    context.sql(sql).await?.collect().await
}

fn shown(batch: &RecordBatch) -> Vec<String> {
    let value = |column: usize, row: usize| match batch.column(column).is_null(row) {
        true => "NULL".into(),
        false => array_value_to_string(batch.column(column), row).expect("a printable type"),
    };
    let row = |row| (0..batch.num_columns()).map(|column| value(column, row)).collect::<Vec<_>>().join(" ");
    (0..batch.num_rows()).map(row).collect()
}

/// Asserts a wrong answer.
async fn answers(sql: &str, wrong: &[&str]) {
    assert_eq!(rows(sql).await, Ok(wrong.iter().map(|row| (*row).into()).collect()), "{sql}");
}

/// Asserts an error.
async fn refuses(sql: &str, message: &str) {
    let error = rows(sql).await.expect_err(sql);
    assert!(error.contains(message), "{sql}: {error}");
}

#[tokio::test]
async fn filters_are_pushed_below_ungrouped_aggregates() {
    answers("SELECT x FROM (SELECT count(b) AS x FROM t) q WHERE x = 2 AND x = 10", &["0"]).await;
    answers("SELECT count(*) FROM t HAVING (SELECT count(*) FROM u) = 0", &["0"]).await;
    answers("SELECT count(*) FROM t HAVING random() > 2", &["0"]).await;
}

#[tokio::test]
async fn counts_of_frames_are_taken_for_ordered() {
    let counts = "SELECT count(a) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM u";
    answers(&format!("SELECT n FROM ({counts}) q ORDER BY n LIMIT 1 OFFSET 3"), &["1"]).await;
}

#[tokio::test]
async fn grouping_sets_rely_on_sorted_inputs() {
    let sorted = "(SELECT a FROM u WHERE a IS NOT NULL ORDER BY a LIMIT 4) x";
    let groups = format!("SELECT a AS v FROM {sorted} GROUP BY GROUPING SETS ((a), (a))");
    answers(&format!("SELECT DISTINCT v FROM ({groups}) q"), &["1", "2", "5"]).await;
}

#[tokio::test]
async fn cases_in_lists_are_taken_for_constants() {
    answers("SELECT b FROM t WHERE b IN (7, 8, 9, 10, CASE WHEN b < 2 THEN 6 ELSE b END)", &[]).await;
}

#[tokio::test]
async fn lists_of_the_same_outer_column_are_dropped() {
    answers("SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE t.b IN (t.b))", &[]).await;
}

#[tokio::test]
async fn merged_columns_are_those_of_one_table() {
    answers("SELECT b FROM (SELECT 1 AS b) x RIGHT JOIN (SELECT 2 AS b) y USING (b)", &["NULL"]).await;
    answers("SELECT b FROM (SELECT 1 AS b) x FULL JOIN (SELECT 2 AS b) y USING (b)", &["1", "NULL"]).await;
    answers("SELECT * FROM (SELECT 1 AS b) y LEFT JOIN (SELECT 2 AS b) x USING (b)", &["NULL"]).await;
    let chain = "(SELECT 1 AS b) x FULL JOIN (SELECT 2 AS b) y USING (b) FULL JOIN (SELECT 2 AS b) z USING (b)";
    answers(&format!("SELECT count(*) FROM {chain}"), &["3"]).await;
}

#[tokio::test]
async fn merged_columns_are_ambiguous() {
    refuses("SELECT 1 FROM t JOIN u USING (b) WHERE b < 3", "Ambiguous reference to unqualified field b").await;
    let chain = "SELECT a FROM t JOIN u USING (a) JOIN (SELECT 2 AS a) v USING (a)";
    refuses(chain, "Ambiguous reference to unqualified field a").await;
}

#[tokio::test]
async fn null_safe_joins_are_flattened_with_others() {
    let sql = "SELECT x.e, y.e, z.e FROM u x JOIN u y ON x.b IS NOT DISTINCT FROM y.b JOIN u z ON x.a = z.a";
    answers(sql, &["1 1 1", "4 4 4"]).await;
}

#[tokio::test]
async fn with_queries_are_executed_for_each_reference() {
    let sql = "WITH r AS (SELECT random() AS x) SELECT v.x = w.x FROM r v, r w";
    answers(sql, &["false"]).await;
}

#[tokio::test]
async fn arguments_of_table_functions_are_not_compared() {
    let sum = |last| format!("(SELECT sum(value) FROM generate_series(1, {last}))");
    answers(&format!("SELECT {} AS a, {} AS b", sum(5), sum(10)), &["15 15"]).await;
}

#[tokio::test]
async fn copies_of_rows_are_not_counted() {
    answers("SELECT a FROM t INTERSECT ALL SELECT 2", &["2", "2"]).await;
    answers("SELECT a FROM t WHERE a = 2 EXCEPT ALL SELECT 2", &[]).await;
}

#[tokio::test]
async fn operands_are_evaluated_although_others_decide() {
    for condition in ["b <> 5 AND 10 / (b - 5) < 9", "CASE WHEN b <> 5 THEN 10 / (b - 5) < 9 ELSE false END"] {
        refuses(&format!("SELECT a FROM t WHERE {condition}"), "Divide by zero").await;
    }
}

#[tokio::test]
async fn null_elements_do_not_count() {
    answers("SELECT 5 = ANY(make_array(1, NULL))", &["false"]).await;
    answers("SELECT 5 < ANY(make_array(1, NULL))", &["false"]).await;
    answers("SELECT make_array(1, NULL) @> make_array(arrow_cast(NULL, 'Int64'))", &["true"]).await;
}

#[tokio::test]
async fn null_elements_have_two_orders() {
    answers("SELECT make_array(1, NULL) < make_array(1, 2)", &["true"]).await;
    let sorted = "SELECT x[2] IS NULL FROM (VALUES (make_array(1, NULL)), (make_array(1, 2))) v(x) ORDER BY x LIMIT 1";
    answers(sorted, &["false"]).await;
}

#[tokio::test]
async fn nullability_of_case_differs() {
    let sql = "SELECT DISTINCT CASE WHEN b > 0 AND c = 5 THEN b ELSE a END AS x FROM t";
    refuses(sql, "Physical input schema should be the same").await;
}

#[tokio::test]
async fn conditions_are_copied_to_rows_that_are_not_joined() {
    let sql = "SELECT count(*) FROM t JOIN u ON t.a = u.e WHERE 10 / (t.a - 3) < 100";
    refuses(sql, "Divide by zero").await;
}

#[tokio::test]
async fn sums_of_sums_of_decimals_have_another_type() {
    let sql = "SELECT a, count(DISTINCT b) FROM t GROUP BY a HAVING sum(d) <> 0.50";
    refuses(sql, "Invalid comparison operation: Decimal128(30, 2) != Decimal128(20, 2)").await;
}

#[tokio::test]
async fn lists_are_intersected_as_expressions() {
    answers("SELECT a FROM t WHERE a IN (b, 2) AND a IN (1, 2)", &["2", "2"]).await;
    answers("SELECT b FROM t WHERE b NOT IN (1, 2, 3, 9) OR b NOT IN (5, 6, 7, 8)", &["1", "30", "5", "NULL"]).await;
}

#[tokio::test]
async fn sorts_below_offsets_lose_rows() {
    answers("SELECT a FROM (SELECT a FROM t LIMIT 2 OFFSET 1) q ORDER BY a", &["2"]).await;
}

#[tokio::test]
async fn recursive_terms_lose_digits() {
    let rows = "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x * 2.5 FROM n WHERE x < 3) SELECT x FROM n";
    answers(rows, &["1", "2", "5"]).await;
    let limited =
        "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 3 LIMIT 2) SELECT x FROM n";
    answers(limited, &["1", "2", "3"]).await;
}

#[tokio::test]
async fn names_of_results_come_first() {
    answers("SELECT -a AS a FROM t ORDER BY a + 0 LIMIT 1", &["-4"]).await;
    refuses("SELECT b, sum(a) AS a FROM t GROUP BY b ORDER BY sum(a)", "").await;
}

#[tokio::test]
async fn ceilings_of_decimals_overflow() {
    refuses("SELECT ceil(CAST(9.5 AS DECIMAL(2, 1)))", "overflow").await;
}

#[tokio::test]
async fn quotients_of_decimals_are_cut() {
    answers("SELECT CAST(2 AS DECIMAL(2, 1)) / CAST(3 AS DECIMAL(2, 1))", &["0.66666"]).await;
}

#[tokio::test]
async fn multiples_of_decimals_exceed_their_type() {
    answers("SELECT lcm(CAST(99.9 AS DECIMAL(3, 1)), CAST(10.1 AS DECIMAL(3, 1)))", &["10.0"]).await;
}

#[tokio::test]
async fn functions_outside_of_their_domain_have_results() {
    answers("SELECT ln(-1), asin(2.0), power(10.0, 400)", &["NaN NaN inf"]).await;
}

#[tokio::test]
async fn statistics_of_single_values_are_numbers() {
    answers("SELECT var_pop(CAST('NaN' AS DOUBLE))", &["0.0"]).await;
    answers("SELECT regr_r2(y, x) FROM (VALUES (1.0, 1.0), (1.0, 2.0)) v(y, x)", &["NULL"]).await;
}

#[tokio::test]
async fn truncated_timestamps_have_nanoseconds() {
    refuses("SELECT date_trunc('month', arrow_cast(-99999999999999999, 'Timestamp(µs)'))", "").await;
}

#[tokio::test]
async fn sorts_in_subqueries_are_removed_below_limits() {
    answers("SELECT * FROM (SELECT e FROM u ORDER BY e DESC) q LIMIT 1", &["1"]).await;
}

#[tokio::test]
async fn marks_have_two_truth_values() {
    answers("SELECT a FROM t WHERE (b IN (SELECT b FROM u)) IS NULL", &[]).await;
}

#[tokio::test]
async fn correlated_not_in_is_refused() {
    let sql = "SELECT a FROM t WHERE b NOT IN (SELECT b FROM u WHERE u.a = t.a)";
    refuses(sql, "null_aware anti join only supports single column join key").await;
}

#[tokio::test]
async fn subqueries_outside_of_filters_are_refused() {
    refuses("SELECT a, b IN (SELECT b FROM u) AS x FROM t", "does not support logical expression InSubquery").await;
    refuses("SELECT a, EXISTS (SELECT 1 FROM u) AS x FROM t", "does not support logical expression Exists").await;
    let sql = "SELECT a, (SELECT count(*) FROM u WHERE u.b > t.b) AS x FROM t";
    refuses(sql, "does not support logical expression ScalarSubquery").await;
    let sql = "SELECT a, (SELECT e FROM u WHERE u.a = t.a) AS x FROM t";
    refuses(sql, "Correlated scalar subquery must be aggregated").await;
}

#[tokio::test]
async fn types_of_outer_columns_are_stale() {
    let sql = "SELECT count(*) FROM (SELECT CASE WHEN a > 1 THEN 1 ELSE 2.5 END AS v FROM t) q
        WHERE EXISTS (SELECT 1 FROM u WHERE u.a < q.v)";
    refuses(sql, "Invalid comparison operation").await;
}

#[tokio::test]
async fn lateral_subqueries_are_refused() {
    let sql = "SELECT * FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a LIMIT 1) x";
    refuses(sql, "OuterReferenceColumn").await;
}

#[tokio::test]
async fn repeated_names_are_refused() {
    refuses("SELECT a, a FROM t", "Projections require unique expression names").await;
}

#[tokio::test]
async fn casts_have_the_names_of_their_operands() {
    refuses("SELECT max(a) AS x, max(CAST(a AS INT)) AS y FROM t", "max(t.a)").await;
    refuses("SELECT count(*) FROM t GROUP BY a, CAST(a AS INT)", "t.a").await;
}

#[tokio::test]
async fn extremes_of_groups_ignore_nan() {
    let values = "(VALUES (1, CAST('NaN' AS DOUBLE)), (1, CAST(2.5 AS DOUBLE))) v (g, x)";
    answers(&format!("SELECT max(x) FROM {values}"), &["NaN"]).await;
    answers(&format!("SELECT max(x) FROM {values} GROUP BY g"), &["2.5"]).await;
}

#[tokio::test]
async fn nested_references_are_not_lateral() {
    let sql = "SELECT * FROM t, LATERAL (SELECT (SELECT max(b) FROM u WHERE u.a <= t.a) AS m) x";
    refuses(sql, "Physical plan does not support logical expression ScalarSubquery").await;
}

#[tokio::test]
async fn repeated_window_functions_are_projected() {
    let sql = "SELECT sum(0 + a) OVER (ORDER BY a) AS x, sum(a + 0) OVER (ORDER BY a) AS y FROM t";
    refuses(sql, "Physical plan does not support logical expression WindowFunction").await;
}

#[tokio::test]
async fn keys_of_windows_get_names() {
    let context = SessionContext::new();
    collect(&context, "CREATE TABLE i (a INT) AS VALUES (1), (2)").await.expect("a table");
    let sql = "SELECT sum(a + 1) OVER (PARTITION BY a % 2) AS x, count(a) OVER (PARTITION BY a % 2) AS y FROM i";
    // The physical planner panics.
    let plan = context.sql(sql).await.expect(sql).into_optimized_plan().expect(sql).to_string();
    assert!(plan.contains("PARTITION BY [__common_expr_2 AS"), "{plan}");
}

#[tokio::test]
async fn names_are_internal() {
    let context = SessionContext::new();
    let names = |sql: &'static str| {
        let context = context.clone();
        async move { context.sql(sql).await.expect(sql).schema().field_names() }
    };
    assert_eq!(names("SELECT sum(a) FROM (VALUES (1)) t(a)").await, ["sum(t.a)"]);
    assert_eq!(names("SELECT 'x'").await, ["Utf8(\"x\")"]);
}

#[tokio::test]
async fn floats_are_compared_as_decimals() {
    answers("SELECT CAST(0.0 AS DECIMAL(4, 2)) = CAST('1e-20' AS DOUBLE)", &["true"]).await;
    refuses("SELECT a FROM t WHERE d > 1e300", "Cannot cast to Decimal128(30, 15)").await;
}

#[tokio::test]
async fn timestamps_have_nanoseconds() {
    answers("SELECT arrow_typeof(TIMESTAMP '2020-01-01 00:00:00')", &["Timestamp(ns)"]).await;
    refuses("SELECT TIMESTAMP '9999-12-31 00:00:00'", "Nanosecond").await;
    let compared = "SELECT arrow_cast('2020-01-01', 'Timestamp(µs)') < '9999-12-31'";
    refuses(compared, "Nanosecond").await;
}

#[tokio::test]
async fn is_distinct_from_binds_too_loosely() {
    refuses("SELECT e FROM u WHERE a IS NOT DISTINCT FROM 1 AND b = 100", "Cannot infer common argument type").await;
}

#[tokio::test]
async fn constants_are_no_operands_of_not_in() {
    answers("SELECT count(*) FROM t WHERE 5 NOT IN (SELECT b FROM u)", &["4"]).await;
    answers("SELECT count(*) FROM t WHERE nullif(a, 2) NOT IN (SELECT e FROM u WHERE e = 4)", &["3"]).await;
}

#[tokio::test]
async fn scalar_subqueries_are_not_nullable() {
    refuses("SELECT (SELECT e FROM u WHERE e > 10)", "declared as non-nullable but contains null values").await;
}

#[tokio::test]
async fn correlated_columns_of_the_same_name_are_one() {
    let sql = "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM u x LEFT JOIN u y ON x.a = y.b
               WHERE t.a = 9 OR y.b IS NOT NULL AND x.b IS NOT NULL)";
    answers(sql, &["4"]).await;
}

#[tokio::test]
async fn sorts_by_unique_columns_are_missed() {
    let groups =
        "SELECT count(b) AS n, a, min(b) AS m FROM (SELECT * FROM t ORDER BY a LIMIT 3) GROUP BY a HAVING max(b) >= 0";
    let frame = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW";
    let sql = format!("SELECT n, a, last_value(a) OVER (ORDER BY a, m, n {frame}) FROM ({groups}) q");
    refuses(&sql, "does not satisfy order requirements").await;
}

#[tokio::test]
async fn equalities_are_added_to_null_safe_joins() {
    let sql = "SELECT count(*) FROM u x LEFT JOIN u y ON x.a IS NOT DISTINCT FROM y.a
               LEFT JOIN u z ON y.e IS NOT DISTINCT FROM z.e WHERE x.b = z.b";
    answers(sql, &["4"]).await;
}

/// A table with a primary key, and a table that refers to it.
async fn with_keys() -> SessionContext {
    let tables = "CREATE TABLE c (id BIGINT PRIMARY KEY) AS VALUES (1), (2);
                  CREATE TABLE o (c BIGINT, y BIGINT) AS VALUES (1, 1), (1, 3), (1, 2), (2, 2), (2, 1)";
    let context = SessionContext::new();
    for table in tables.split(';') {
        collect(&context, table).await.expect("a table");
    }
    context
}

#[tokio::test]
async fn keys_are_unique_above_groups() {
    let sql = "SELECT DISTINCT c.id FROM c JOIN o ON c.id < o.y GROUP BY c.id, o.y";
    let mut ids: Vec<String> = collect(&with_keys().await, sql).await.expect(sql).iter().flat_map(shown).collect();
    ids.sort();
    assert_eq!(ids, ["1", "1", "2"]);
    let sql = "SELECT DISTINCT id FROM (SELECT id, unnest([1, 2]) AS u FROM c) q";
    assert_eq!(collect(&with_keys().await, sql).await.expect(sql).iter().flat_map(shown).count(), 4);
}

#[tokio::test]
async fn keys_determine_columns_of_other_tables() {
    let context = with_keys().await;
    let sql = "EXPLAIN SELECT c.id, o.y FROM c JOIN o ON o.c = c.id GROUP BY c.id, o.y ORDER BY c.id, o.y";
    let plan = collect(&context, sql).await.expect(sql).iter().flat_map(shown).next().expect("a logical plan");
    assert!(plan.contains("Sort: c.id ASC NULLS LAST\n"), "{plan}");
}

#[tokio::test]
async fn integers_wrap() {
    answers("SELECT 9223372036854775807 + 1", &["-9223372036854775808"]).await;
    let sum = "SELECT sum(a) FROM (VALUES (9223372036854775807), (1)) q (a)";
    answers(sum, &["-9223372036854775808"]).await;
}

#[tokio::test]
async fn frames_over_bytes_are_refused() {
    let message = "Cannot run range queries on datatype";
    refuses("SELECT rank() OVER (ORDER BY x) FROM (VALUES (X'00')) AS v (x)", message).await;
}

#[tokio::test]
async fn filtered_aggregates_are_replaced() {
    let sql = "SELECT count(*) FILTER (WHERE v > 9) FROM (SELECT count(*) AS v FROM (VALUES (1), (2)) x) q";
    refuses(sql, "does not match with the projection expression").await;
}

#[tokio::test]
async fn casts_truncate() {
    answers("SELECT arrow_cast(2.5, 'Decimal128(3, 1)')::int", &["2"]).await;
    answers("SELECT 3.5::double::int", &["3"]).await;
    answers("SELECT '1e400'::double", &["inf"]).await;
}

#[tokio::test]
async fn at_time_zone_keeps_the_type() {
    let sql = "SELECT arrow_typeof(TIMESTAMP '2024-03-31 03:30:00' AT TIME ZONE 'UTC' AT TIME ZONE 'UTC')";
    answers(sql, &["Timestamp(ns, \"UTC\")"]).await;
}

#[test]
fn words_of_column_definitions_are_skipped() {
    use datafusion::sql::sqlparser::{dialect::PostgreSqlDialect, parser::Parser};
    let parsed = Parser::parse_sql(&PostgreSqlDialect {}, "CREATE TABLE t (a INT AUTOINCREMENT)").expect("a statement");
    assert_eq!(parsed[0].to_string(), "CREATE TABLE t (a INT)");
}

#[test]
fn generated_columns_must_be_stored() {
    use datafusion::sql::sqlparser::{dialect::PostgreSqlDialect, parser::Parser};
    for clause in ["AS (a + 1)", "GENERATED ALWAYS AS (a + 1)", "GENERATED ALWAYS AS (a + 1) VIRTUAL"] {
        let sql = format!("CREATE TABLE t (a INT, b INT {clause})");
        assert!(Parser::parse_sql(&PostgreSqlDialect {}, &sql).is_err(), "{sql}");
    }
}

#[tokio::test]
async fn names_of_windows_belong_to_outer_queries() {
    let inner = "SELECT max(m) FROM (SELECT sum(a) OVER n AS m FROM t WINDOW n AS (ORDER BY a)) x";
    refuses(&format!("SELECT ({inner}) AS v FROM t"), "The window n is not defined").await;
}

#[tokio::test]
async fn bit_xor_of_frames_ignores_null() {
    let sql = "SELECT bit_xor(b) OVER (ORDER BY e ROWS BETWEEN CURRENT ROW AND CURRENT ROW) FROM u";
    answers(sql, &["0", "100", "200", "7"]).await;
}

#[tokio::test]
async fn similar_to_matches_parts() {
    answers("SELECT 'abc' SIMILAR TO 'b'", &["true"]).await;
}

#[tokio::test]
async fn replacements_have_dollars() {
    answers("SELECT regexp_replace('abc', 'b', '$5')", &["ac"]).await;
}

#[tokio::test]
async fn aggregates_of_frames_need_retract() {
    let sql = "SELECT string_agg(b::text, ',') OVER (ORDER BY e ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM u";
    refuses(sql, "`retract_batch` is not implemented").await;
}

#[tokio::test]
async fn orders_of_string_agg_conflict() {
    let sql = "SELECT string_agg(b::text, ',' ORDER BY a), string_agg(b::text, ',' ORDER BY e) FROM u";
    refuses(sql, "Conflicting ordering requirements").await;
}

#[tokio::test]
async fn like_has_one_escape_character() {
    refuses("SELECT b::text LIKE '1!_%' ESCAPE '!' FROM u", "escape_char").await;
}

#[tokio::test]
async fn defaults_of_lag_have_the_type_of_the_column() {
    answers("SELECT lag(b, 1, 2.5) OVER (ORDER BY e) FROM u", &["100", "2", "200", "NULL"]).await;
    refuses("SELECT lag(b, 1, a) OVER (ORDER BY e) FROM u", "Literal").await;
}

#[tokio::test]
async fn keys_determine_columns_of_grouping_sets() {
    let context = SessionContext::new();
    collect(&context, "CREATE TABLE k (a BIGINT PRIMARY KEY, b BIGINT) AS VALUES (1, 5)").await.expect("a table");
    let batches = collect(&context, "SELECT a, b FROM k GROUP BY a, ROLLUP (b)").await.expect("rows");
    let rows: Vec<String> = batches.iter().flat_map(shown).collect();
    assert_eq!(rows, ["1 5", "1 5"]);
}

#[tokio::test]
async fn arguments_are_evaluated_although_filters_exclude_rows() {
    refuses("SELECT a, sum(10 / (b - 5)) FILTER (WHERE b <> 5) FROM t GROUP BY a", "Divide by zero").await;
}

#[tokio::test]
async fn conditions_of_joins_are_evaluated_below() {
    let condition = "CASE WHEN t.b <> 5 THEN 10 / (t.b - 5) > 0 ELSE u.b > 0 END";
    refuses(&format!("SELECT count(*) FROM t JOIN u ON t.a < u.e AND {condition}"), "Divide by zero").await;
}
