//! BYTEA from and to text, and its length.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{of_inner, result, strict_field, undefined};

/// Parses a text in one of PostgreSQL's formats: `\x` and hexadecimal digits; or text that stands for its bytes, in which
/// `\\` is a backslash, `\ooo` an octal byte and, as in DuckDB, `\xhh` a hexadecimal one. `None` for other backslashes.
pub(crate) fn parse(text: &str) -> Option<Vec<u8>> {
    if let Some(bytes) = text.strip_prefix("\\x").and_then(|digits| hexadecimal(digits.as_bytes())) {
        return Some(bytes);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                out.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                out.extend(hexadecimal(&[*high, *low])?);
                rest = after;
            }
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => return None,
        }
    }
    Some(out)
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
}

/// Bytes as text: `\x` and hexadecimal digits.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// `length` and `octet_length`, which count the bytes of BYTEA.
pub(crate) fn lengths() -> [ScalarUDF; 2] {
    let of = |inner: Arc<ScalarUDF>| {
        ScalarUDF::new_from_impl(Length { inner, signature: Signature::user_defined(Volatility::Immutable) })
    };
    [of(datafusion::functions::unicode::character_length()), of(datafusion::functions::string::octet_length())]
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    /// The function of texts.
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for Length {
    of_inner!(name, aliases);

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [DataType::Binary | DataType::LargeBinary | DataType::BinaryView] => Ok(vec![DataType::BinaryView]),
            [ty] if ty.is_string() => Ok(vec![ty.clone()]),
            [DataType::Null | DataType::Dictionary(..)] => Ok(vec![DataType::Utf8View]),
            [ty] if ty.is_primitive() => Ok(vec![DataType::Utf8View]),
            types => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        match &types[0] {
            DataType::BinaryView => Ok(DataType::Int32),
            _ => self.inner.return_type(types),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let ty = self.return_type(&[args.arg_fields[0].data_type().clone()])?;
        Ok(strict_field(self.name(), ty, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        if args.args[0].data_type() != DataType::BinaryView {
            return self.inner.invoke_with_args(args);
        }
        let is_single = matches!(args.args[0], ColumnarValue::Scalar(_));
        let bytes = args.args[0].to_array(if is_single { 1 } else { args.number_rows })?;
        let lengths = bytes.as_binary_view().lengths().map(|length| length as i32);
        let lengths = Int32Array::new(lengths.collect(), bytes.nulls().cloned());
        result(Arc::new(lengths) as ArrayRef, is_single)
    }
}
