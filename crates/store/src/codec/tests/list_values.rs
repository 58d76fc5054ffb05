//! Tests of the encoding of lists.

use arrow_array::builder::{Int32Builder, ListBuilder, StringViewBuilder};
use arrow_array::{BinaryViewArray, ListArray};

use super::*;

fn list_of(ty: ColumnType) -> ListType {
    ListType::of(ty).unwrap()
}

fn encoded(array: &ListArray, ty: ListType) -> Vec<Option<Vec<u8>>> {
    lists::encode(array, ty).iter().map(|list| list.map(<[u8]>::to_vec)).collect()
}

#[test]
fn lists_have_documented_bytes() {
    let mut numbers = ListBuilder::new(Int32Builder::new());
    numbers.append_value([Some(1), Some(-2)]);
    numbers.append_value([]);
    numbers.append_null();
    numbers.append_value([None, Some(258)]);
    let numbers = numbers.finish();
    let expected = [
        Some(vec![4, 1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]),
        Some(vec![]),
        None,
        Some(vec![5, 1, 0, 0, 0, 0, 2, 1, 0, 0]),
    ];
    assert_eq!(encoded(&numbers, list_of(ColumnType::Int32)), expected);
    assert_eq!(encoded(&numbers.slice(3, 1), list_of(ColumnType::Int32)), expected[3..]);

    let mut texts = ListBuilder::new(StringViewBuilder::new());
    texts.append_value([Some("ab"), None, Some("")]);
    let texts = texts.finish();
    assert_eq!(encoded(&texts, list_of(ColumnType::Text)), [Some(vec![7, 2, 2, 0, 0, b'a', b'b'])]);
}

#[test]
fn other_bytes_are_refused() {
    let int = ColumnType::List(list_of(ColumnType::Int32));
    let text = ColumnType::List(list_of(ColumnType::Text));
    let nested = ColumnType::List(list_of(int));
    let boolean = ColumnType::List(list_of(ColumnType::Boolean));
    let cases: [(ColumnType, &[u8]); 14] = [
        (int, &[0]),
        (int, &[2, 0, 0, 0]),
        (int, &[2, 0, 0, 0, 0, 0]),
        (int, &[3, 0, 0, 0, 0]),
        (int, &[0x80]),
        // Counts near 2^63, whose lengths overflow.
        (int, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        (text, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        (boolean, &[2, 2]),
        (text, &[2, 1, 0xff]),
        (text, &[2, 2, b'a']),
        (text, &[2, 1, b'a', b'b']),
        (text, &[4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1]),
        (nested, &[2, 1, 0]),
        (nested, &[2, 2, 2, 0]),
    ];
    for (ty, bytes) in cases {
        assert!(!lists::is_sound(bytes, ty), "{ty:?} {bytes:?}");
        let ColumnType::List(list) = ty else { panic!("not a list") };
        let decoded = lists::decode(&BinaryViewArray::from(vec![Some(bytes)]), list);
        assert_eq!(decoded.len(), 1);
    }
    assert!(lists::is_sound(&[], nested));
    assert!(lists::is_sound(&[2, 0], nested));
}

proptest! {
    #[test]
    fn sound_lists_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..20), deep in any::<bool>()) {
        let element = if deep { ColumnType::List(list_of(ColumnType::Bytes)) } else { ColumnType::Bytes };
        let ty = list_of(element);
        let decoded = lists::decode(&BinaryViewArray::from(vec![Some(&bytes[..]), None]), ty);
        decoded.to_data().validate_full().unwrap();
        if lists::is_sound(&bytes, ColumnType::List(ty)) {
            let again = lists::encode(&decoded, ty);
            prop_assert_eq!(lists::decode(&again, ty), decoded);
        }
    }
}
