//! Tests of pages with some of their columns in memory.

use super::*;
use crate::base::Error;

/// Decodes columns that are in memory.
fn decode(page: &Page, schema: &Schema, column: usize) -> ArrayRef {
    page.check_columns(&[column]).unwrap();
    let mut builder = ColumnBuilder::new(schema.columns()[column].ty, 0);
    page.append_to(column, 0..page.rows(), schema, &mut builder);
    let selection: Vec<u32> = (0..page.rows() as u32).collect();
    let mut selected = ColumnBuilder::new(schema.columns()[column].ty, 0);
    page.append_selected(column, &selection, schema, &mut selected);
    let array = builder.finish();
    array.to_data().validate_full().unwrap();
    assert!(selected.finish().to_data() == array.to_data());
    array
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn projected_pages_have_the_columns_of_whole_ones(
        table in table(150),
        wanted in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        key in any::<prop::sample::Index>(),
        masks in damage::damage(),
    ) {
        let mut columns = table.schema.columns().to_vec();
        let written = columns.len();
        columns.push(Column { name: "later".into(), ty: ColumnType::Int64, nullable: true });
        let schema = Arc::new(Schema::new(columns, table.schema.key_columns()));
        let wanted: Vec<usize> = wanted.iter().map(|index| index.index(written + 1)).collect();
        let projection = Arc::new(Projection::new(&schema, wanted.iter().copied()));
        let (mut bytes, whole) = page_of(&table, 1 << 20, 0, None);
        let place = PageRef {
            len: bytes.len() as u32,
            checksum: u32::from_le_bytes(bytes[4..8].try_into().unwrap()),
            ..PLACE
        };
        let page = Page::open_columns(&bytes, place, &schema, &test_path(), Some(&projection)).unwrap();
        prop_assert_eq!((page.rows(), page.kind(), page.columns()), (whole.rows(), PageKind::Leaf, written));
        prop_assert!(page.has(Some(&projection)) && whole.has(Some(&projection)) && whole.has(None));
        prop_assert_eq!(page.has(None), page.is_whole());
        if !page.is_whole() {
            prop_assert!(page.memory_bytes() < whole.memory_bytes());
        }
        for column in 0..=written {
            let is_kept = column < schema.key_columns() || wanted.contains(&column);
            if page.is_whole() || is_kept || column == written {
                let (a, b) = (decode(&page, &schema, column), decode(&whole, &schema, column));
                prop_assert!(a.to_data() == b.to_data(), "column {}", column);
                prop_assert!(column == written || page.column_memory(column)[0] == whole.column_memory(column)[0]);
            } else {
                let is_refused = |result| matches!(result, Err(Error::InvalidArgument { .. }));
                prop_assert!(is_refused(page.check_columns(&[column])));
                prop_assert!(is_refused(page.check_all_columns()));
                prop_assert!(page.column_memory(column).iter().all(|memory| memory.is_empty()));
            }
        }
        let key = table.key(key.index(table.rows()));
        prop_assert_eq!(page.lower_bound(&key, true), whole.lower_bound(&key, true));
        prop_assert_eq!(page.lower_bound(&key, false), whole.lower_bound(&key, false));
        page.prefetch_layout(&wanted);
        page.prefetch_columns(&wanted);
        // Damaged pages are errors, or harmless.
        let place = damage::damage_and_reseal(&mut bytes, PageRef { checksum: 0, ..place }, &masks);
        if let Ok(page) = Page::open_columns(&bytes, place, &schema, &test_path(), Some(&projection))
            && page.kind() != PageKind::Index
        {
            for column in (0..=written).filter(|column| page.check_columns(&[*column]).is_ok()) {
                let mut builder = ColumnBuilder::new(schema.columns()[column].ty, 0);
                page.append_to(column, 0..page.rows(), &schema, &mut builder);
                builder.finish().to_data().validate_full().unwrap();
            }
            page.lower_bound(&key, true);
        }
    }
}

#[test]
fn projections_cover_their_parts() {
    let column = |ty| Column { name: "c".into(), ty, nullable: false };
    let schema = Schema::new(vec![column(ColumnType::Int64); 6], 2);
    let projection = |columns: &[usize]| Projection::new(&schema, columns.iter().copied());
    assert_eq!(projection(&[5, 3, 3]), projection(&[3, 0, 5]));
    let covers = |kept: &[usize], wanted: &[usize], written| projection(kept).covers(&projection(wanted), written);
    assert!(covers(&[3, 5], &[5], 6) && covers(&[3], &[], 6));
    assert!(!covers(&[5], &[3, 5], 6) && !covers(&[], &[2], 6));
    assert!(covers(&[3], &[3, 5], 5) && !covers(&[3], &[3, 5], 6), "a page of five columns");
    let partial = |columns: &[usize]| Projection::partial(&schema, columns.iter().copied());
    assert!(partial(&[5, 4, 3, 2]).is_none());
    assert_eq!(partial(&[5, 4, 3]).as_deref(), Some(&projection(&[3, 4, 5])));
}
