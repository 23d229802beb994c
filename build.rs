//! Compiles the C++ shim (`shim/`) against the llama.cpp that the sys crate built.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim");
    #[cfg(feature = "llama")]
    shim::build();
}

#[cfg(feature = "llama")]
mod shim {
    use std::path::{Path, PathBuf};

    /// Compile the shim with the headers of the very sources that are linked.
    pub(super) fn build() {
        let root = PathBuf::from(std::env::var_os("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 names its build folder"));
        let source = source_folder(&root.join("build").join("CMakeCache.txt"));
        let mut shim = cc::Build::new();
        shim.cpp(true)
            .std("c++17")
            .warnings(false)
            .define("NDEBUG", None)
            .file("shim/llama_shim.cpp")
            .file("shim/chat_shim.cpp");
        shim.include(root.join("include"));
        for folder in ["include", "src", "common", "vendor", "ggml/include"] {
            shim.include(source.join(folder));
        }
        shim.compile("llama_batch_shim");
    }

    /// Where the sources are that cmake built: the crate's own copy.
    fn source_folder(cache: &Path) -> PathBuf {
        let text = std::fs::read_to_string(cache).expect("the build folder of llama-cpp-sys-2 holds a CMakeCache.txt");
        let line = text.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="));
        PathBuf::from(line.expect("CMakeCache.txt names its source folder"))
    }
}
