//! Serialised form. Placeholder text replaced below.
