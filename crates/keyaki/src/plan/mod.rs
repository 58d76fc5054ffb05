//! Planning: index ranges, join trees along indexes, costs in device time.
