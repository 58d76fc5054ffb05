//! macOS links an extension module only with arguments that leave the symbols of Python open.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
