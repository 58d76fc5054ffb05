//! Property test: key ranges and implications of random filters compared with DataFusion's evaluation of the filters on
//! random rows.

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, Operator, binary_expr, cast, col, lit};
use datafusion::prelude::SessionContext;
use keyaki_store::{Column, ColumnType, KeyCodec, KeyRange, Schema};
use proptest::prelude::*;

use super::{Ranges, covers, key_ranges};

const TYPES: [ColumnType; 9] = [
    ColumnType::Int32,
    ColumnType::Int64,
    ColumnType::Text,
    ColumnType::Boolean,
    ColumnType::Date,
    ColumnType::Timestamp { utc: false },
    ColumnType::Decimal { precision: 10, scale: 2 },
    ColumnType::Float64,
    ColumnType::Bytes,
];

/// The value number `n` of a small domain, so that filters match rows. Number 0 is null.
fn scalar(ty: ColumnType, n: u8) -> ScalarValue {
    let v = i64::from(n) - 4;
    let some = n != 0;
    match ty {
        ColumnType::Int32 => ScalarValue::Int32(some.then_some(v as i32)),
        ColumnType::Int64 => ScalarValue::Int64(some.then_some(v)),
        ColumnType::Text => {
            ScalarValue::Utf8View(some.then(|| ["", "a", "ab", "abc", "b", "ba", "é"][n as usize % 7].into()))
        }
        ColumnType::Boolean => ScalarValue::Boolean(some.then_some(n.is_multiple_of(2))),
        ColumnType::Date => ScalarValue::Date32(some.then_some(v as i32)),
        ColumnType::Timestamp { .. } => ScalarValue::TimestampMicrosecond(some.then_some(v * 43_200_000_000), None),
        ColumnType::Decimal { .. } => ScalarValue::Decimal128(some.then_some(i128::from(v) * 50), 10, 2),
        ColumnType::Float64 => {
            ScalarValue::Float64(some.then(|| [0.0, -0.0, 1.5, f64::NAN, -1.0, f64::INFINITY][n as usize % 6]))
        }
        _ => ScalarValue::BinaryView(some.then(|| vec![n % 3, n / 3])),
    }
}

/// A constant to compare a column with; of another type than the column's if `odd` and the type has a test for that.
fn constant(ty: ColumnType, n: u8, odd: bool) -> ScalarValue {
    let v = i64::from(n) - 4;
    match (ty, odd) {
        (ColumnType::Int32, true) => ScalarValue::Int64(Some(v * 1_000_000_000)),
        (ColumnType::Int64, true) => ScalarValue::Decimal128(Some(i128::from(v) * 5), 22, 1),
        (ColumnType::Date, true) => ScalarValue::TimestampMicrosecond(Some(v * 43_200_000_000), None),
        (ColumnType::Decimal { .. }, true) => ScalarValue::Decimal128(Some(i128::from(v) * 25), 20, 3),
        (ColumnType::Text, true) => ScalarValue::Utf8(Some("a".into())),
        _ => scalar(ty, n),
    }
}

fn condition(types: Vec<ColumnType>) -> impl Strategy<Value = Expr> {
    let columns = types.len();
    (0..columns, 0u8..10, any::<[u8; 3]>(), any::<bool>()).prop_map(move |(column, kind, n, odd)| {
        let ty = types[column];
        let n = n.map(|n| n % 9);
        let name = col(format!("c{column}"));
        let one = constant(ty, n[0], odd);
        let subject = if one.data_type() == ty.arrow() { name.clone() } else { cast(name.clone(), one.data_type()) };
        let value = |i: usize| lit(constant(ty, n[i], odd));
        let operators = [Operator::Eq, Operator::NotEq, Operator::Lt, Operator::LtEq, Operator::Gt, Operator::GtEq];
        match kind {
            0..=3 => binary_expr(subject, operators[n[1] as usize % 6], value(0)),
            4 => binary_expr(value(0), operators[n[1] as usize % 6], subject),
            5 => subject.between(value(0), value(1)),
            6 => subject.in_list(vec![value(0), value(1), value(2)], n[0].is_multiple_of(2)),
            7 => name.is_null(),
            8 => name.is_not_null(),
            _ if ty == ColumnType::Text => {
                name.like(lit(["a%", "ab", "%b", "ab%c", "a_%", "%", "é%"][n[0] as usize % 7]))
            }
            _ if ty == ColumnType::Boolean => {
                if odd {
                    name
                } else {
                    Expr::Not(Box::new(name))
                }
            }
            _ => binary_expr(subject, Operator::IsNotDistinctFrom, value(0)),
        }
    })
}

fn filter(types: Vec<ColumnType>) -> impl Strategy<Value = Expr> {
    condition(types).prop_recursive(2, 6, 2, |inner| {
        (inner.clone(), inner, any::<bool>()).prop_map(|(a, b, or)| if or { a.or(b) } else { a.and(b) })
    })
}

#[derive(Debug, Clone)]
struct Case {
    types: Vec<ColumnType>,
    nullable: Vec<bool>,
    rows: Vec<Vec<u8>>,
    filters: Vec<Expr>,
}

fn cases() -> impl Strategy<Value = Case> {
    prop::collection::vec(0..TYPES.len(), 1..4).prop_flat_map(|types| {
        let types: Vec<ColumnType> = types.into_iter().map(|t| TYPES[t]).collect();
        let width = types.len();
        (
            Just(types.clone()),
            prop::collection::vec(any::<bool>(), width),
            prop::collection::vec(prop::collection::vec(0u8..9, width), 1..40),
            prop::collection::vec(filter(types), 1..4),
        )
            .prop_map(|(types, nullable, rows, filters)| Case { types, nullable, rows, filters })
    })
}

fn schema(types: &[ColumnType], nullable: &[bool]) -> Schema {
    let columns = types.iter().zip(nullable).enumerate();
    let columns = columns.map(|(i, (&ty, &nullable))| Column { name: format!("c{i}"), ty, nullable }).collect();
    Schema::new(columns, types.len())
}

fn nullable(types: &[ColumnType]) -> Schema {
    schema(types, &vec![true; types.len()])
}

fn ranges_of(schema: &Schema, filters: &[Expr]) -> Ranges {
    key_ranges(schema, filters, &|column| column.name.strip_prefix('c')?.parse().ok())
}

fn contains(ranges: &[KeyRange], key: &[u8]) -> bool {
    ranges.iter().filter(|range| range.contains(key)).count() > 0
}

fn start(range: &KeyRange) -> Vec<u8> {
    match &range.start {
        std::ops::Bound::Included(start) | std::ops::Bound::Excluded(start) => start.clone(),
        std::ops::Bound::Unbounded => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn ranges_contain_the_rows_that_pass(case in cases()) {
        let schema = schema(&case.types, &case.nullable);
        let columns: Vec<ArrayRef> = (0..case.types.len())
            .map(|c| {
                let value = |row: &Vec<u8>| scalar(case.types[c], row[c].max(u8::from(!case.nullable[c])));
                ScalarValue::iter_to_array(case.rows.iter().map(value)).unwrap()
            })
            .collect();
        let batch = RecordBatch::try_new(schema.arrow().clone(), columns.clone()).unwrap();
        let context = SessionContext::new();
        let df_schema = DFSchema::try_from(schema.arrow().as_ref().clone()).unwrap();
        let passes: Vec<BooleanArray> = case.filters.iter().map(|filter| {
            let expr = context.create_physical_expr(filter.clone(), &df_schema).unwrap();
            let array = expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
            array.as_any().downcast_ref::<BooleanArray>().unwrap().clone()
        }).collect();

        let found = ranges_of(&schema, &case.filters);
        for pair in found.ranges.windows(2) {
            prop_assert!(start(&pair[0]) < start(&pair[1]), "not ascending: {:?}", found);
        }
        let codec = KeyCodec::new(&schema);
        // For each filter, true if the others imply it.
        let implied: Vec<bool> = (0..case.filters.len()).map(|filter| {
            let mut given = case.filters.clone();
            let condition = given.remove(filter);
            let by_column = |(c, &ty): (usize, &ColumnType)| {
                covers(ty, case.nullable[c], &given, &condition, &|column| column.name == format!("c{c}"))
            };
            case.types.iter().enumerate().any(by_column)
        }).collect();
        for row in 0..batch.num_rows() {
            let mut key = Vec::new();
            codec.encode(&columns, row, &mut key);
            let inside = contains(&found.ranges, &key);
            let pass = |filter: usize| passes[filter].is_valid(row) && passes[filter].value(row);
            for (i, _) in implied.iter().enumerate().filter(|(_, implied)| **implied) {
                let others = (0..case.filters.len()).filter(|&other| other != i).all(pass);
                prop_assert!(!others || pass(i), "row {row} passes the filters that imply filter {i}: {:?}", case.filters);
            }
            if (0..case.filters.len()).all(pass) {
                prop_assert!(inside, "row {row} is missing from {:?}", found);
            }
            if inside {
                for (i, answered) in found.answered.iter().enumerate() {
                    prop_assert!(!answered || pass(i), "row {row} does not pass filter {i}: {:?}", found);
                }
            }
        }
    }
}

#[test]
fn equality_on_a_prefix_is_followed_by_a_range() {
    let schema = nullable(&[ColumnType::Int64, ColumnType::Date, ColumnType::Int32]);
    let filters = [
        col("c1").gt_eq(lit(ScalarValue::Date32(Some(3)))),
        col("c0").in_list(vec![lit(5i64), lit(2i64)], false),
        col("c1").lt(lit(ScalarValue::Date32(Some(9)))),
        col("c2").eq(lit(1i32)),
    ];
    let found = ranges_of(&schema, &filters);
    assert_eq!((found.ranges.len(), found.points, found.fixed, found.bounded), (2, 1, 0, 2));
    assert_eq!(found.answered, [true, true, true, false]);
    let found = ranges_of(&schema, &[col("c0").eq(lit(5i64)), filters[0].clone()]);
    assert_eq!((found.ranges.len(), found.points, found.fixed, found.bounded), (1, 1, 1, 2));
}

#[test]
fn contradictions_give_no_ranges() {
    let schema = nullable(&[ColumnType::Int32]);
    let beyond = cast(col("c0"), DataType::Int64).eq(lit(5_000_000_000i64));
    assert!(ranges_of(&schema, &[beyond]).ranges.is_empty());
    let contradiction = [col("c0").gt(lit(5i32)), col("c0").lt(lit(3i32))];
    assert!(ranges_of(&schema, &contradiction).ranges.is_empty());
    let everything = cast(col("c0"), DataType::Int64).lt(lit(5_000_000_000i64));
    assert_eq!(ranges_of(&schema, &[everything]).ranges.len(), 1);
}

#[test]
fn unsupported_filters_are_ignored() {
    let schema = nullable(&[ColumnType::Int64]);
    let lossy = cast(col("c0"), DataType::Float64).lt(lit(5.0f64));
    let computed = (col("c0") + lit(1i64)).eq(lit(5i64));
    let other = col("c0").eq(col("x"));
    let found = ranges_of(&schema, &[lossy, computed, other]);
    assert_eq!((found.bounded, found.ranges), (0, vec![KeyRange::all()]));
}

#[test]
fn long_lists_become_one_range() {
    let schema = nullable(&[ColumnType::Int64]);
    let list = col("c0").in_list((0..10_000i64).map(|v| lit(v * 2)).collect(), false);
    let found = ranges_of(&schema, &[list]);
    assert_eq!((found.ranges.len(), found.answered), (1, vec![false]));
}
