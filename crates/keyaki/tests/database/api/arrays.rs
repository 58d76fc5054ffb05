//! Arrays as parameters, appended values and results.

use keyaki::{Row, ToSql, Value, ValueRef, params};

use super::connection;

#[test]
fn arrays() {
    let connection = connection();
    connection
        .execute_batch("CREATE TABLE e (id INT PRIMARY KEY, n INT[], t TEXT[], d DECIMAL(5,2)[], nn INT[][])")
        .unwrap();
    let array = |values: &[i64]| Value::Array(values.iter().map(|value| Value::Integer(*value)).collect());
    let nested = Value::Array(vec![array(&[1, 2]), array(&[]), Value::Null]);
    let insert = connection.prepare("INSERT INTO e VALUES (?, ?, ?, ?, ?)").unwrap();
    assert_eq!(insert.parameter_type_name(1).as_deref(), Some("integer[]"));
    insert.execute(params![1, array(&[1, 2]), vec!["a b", "", "NULL"], vec![1.5, 2.0], nested.clone()]).unwrap();
    insert.execute(params![2, vec![Some(1), None], vec![None::<&str>], Value::Array(vec![]), "{{3}}"]).unwrap();
    let mut appender = connection.appender("e").unwrap();
    appender.append_row(params![3, vec![7_i64], vec![String::from("x")], "[1, 2.345]", Value::Null]).unwrap();
    appender
        .append_row(params![4, Value::Null, "{q}", vec![Value::Integer(1), Value::Text("2.5".into())], nested.clone()])
        .unwrap();
    let refused = |appender: &mut keyaki::Appender, n: &dyn ToSql| {
        let error = appender.append_row(params![5, n, Value::Null, Value::Null, Value::Null]).unwrap_err();
        error.sqlstate().code().to_string()
    };
    assert_eq!(refused(&mut appender, &vec![i64::MAX]), "22003");
    assert_eq!(refused(&mut appender, &"{x}"), "22P02");
    assert_eq!(refused(&mut appender, &"{1"), "22P02");
    assert_eq!(refused(&mut appender, &vec![true]), "42804");
    assert_eq!(refused(&mut appender, &1), "42804");
    assert_eq!(appender.finish().unwrap(), 2);
    let rows = connection.query("SELECT n, t, d, nn FROM e ORDER BY id", ()).unwrap();
    let texts =
        |row: &Row<'_>| (0..4).map(|i| Ok(row.get::<_, Value>(i)?.to_string())).collect::<keyaki::Result<Vec<_>>>();
    let found: Vec<Vec<String>> = rows.mapped(texts).map(Result::unwrap).collect();
    let expected = [
        ["{1,2}", "{\"a b\",\"\",\"NULL\"}", "{1.50,2.00}", "{{1,2},{},NULL}"],
        ["{1,NULL}", "{NULL}", "{}", "{{3}}"],
        ["{7}", "{x}", "{1.00,2.35}", "NULL"],
        ["NULL", "{q}", "{1.00,2.50}", "{{1,2},{},NULL}"],
    ];
    assert_eq!(found, expected);
    let read = |row: &Row<'_>| Ok((row.get::<_, Vec<i32>>(0)?, row.get::<_, Vec<String>>(1)?, row.get::<_, Value>(2)?));
    let (n, t, nn) = connection.query_row("SELECT n, t, nn FROM e WHERE id = $1", (1,), read).unwrap();
    assert_eq!((n, t.len(), nn), (vec![1, 2], 3, nested));
    let options: Vec<Option<i64>> = connection.query_row("SELECT n FROM e WHERE id = 2", (), |row| row.get(0)).unwrap();
    assert_eq!(options, [Some(1), None]);
    connection
        .query_row("SELECT n FROM e WHERE id = 2", (), |row| {
            assert!(row.get::<_, Vec<i32>>(0).is_err(), "NULL is no i32");
            let ValueRef::Array(elements) = row.get_ref(0)? else { panic!("not an array") };
            assert_eq!((elements.len(), elements.is_empty()), (2, false));
            assert_eq!((elements.get(0), elements.get(2)), (Some(ValueRef::Integer(1)), None));
            Ok(())
        })
        .unwrap();
    let find = |condition: &str, value: &dyn ToSql| -> Vec<i64> {
        let rows =
            connection.query(&format!("SELECT id FROM e WHERE {condition} ORDER BY id"), params![value]).unwrap();
        rows.mapped(|row| row.get(0)).map(Result::unwrap).collect()
    };
    for one in [&array(&[1, 2]) as &dyn ToSql, &"{1,2}", &vec![1_i32, 2]] {
        assert_eq!(find("n = $1", one), [1]);
    }
    assert_eq!(find("id = ANY($1)", &vec![2_i64, 4, 9]), [2, 4]);
    assert_eq!(find("id <> ALL($1)", &"{2,4}"), [1, 3]);
    assert!(find("id = ANY($1)", &Vec::<i64>::new()).is_empty() && find("n && $1", &vec![None::<i64>]).is_empty());
    assert_eq!(find("id <> ALL($1)", &Vec::<i64>::new()), [1, 2, 3, 4]);
    assert_eq!(find("$1 = ANY(n)", &7), [3]);
    assert_eq!(find("n @> $1", &vec![1_i32]), [1, 2]);
    assert_eq!(find("t && $1", &vec!["x", "q"]), [3, 4]);
    let update = connection.prepare("UPDATE e SET n = n || $1, t = $2 WHERE id = $3").unwrap();
    update.execute(params![vec![9], vec!["new"], 1]).unwrap();
    let (n, t): (Vec<i64>, Value) =
        connection.query_row("SELECT n, t FROM e WHERE id = 1", (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!((n, t.to_string().as_str()), (vec![1, 2, 9], "{new}"));
    assert_eq!(connection.query_row("SELECT $1", (array(&[5]),), |row| row.get::<_, Value>(0)).unwrap(), array(&[5]));
    let upsert = connection
        .prepare("INSERT INTO e (id, n) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET n = excluded.n")
        .unwrap();
    upsert.execute(params![1, vec![8]]).unwrap();
    upsert.execute(params![6, vec![6, 6]]).unwrap();
    assert_eq!(find("cardinality(n) = $1", &2), [2, 6]);
    let error = connection.execute("UPDATE e SET n = $1", (vec![i64::MAX],)).unwrap_err();
    assert_eq!(error.sqlstate().code(), "22003");
}
