//! Changed bytes: damage to acknowledged data is an error, and no bytes make the log panic or allocate without bound.

use super::*;
