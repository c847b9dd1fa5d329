//! The example of `docs/gpu.md` for PyTorch, run by Python as it stands there, over a PyTorch of two pages (`torch.py`) and
//! the library in C in place of CUDA's driver that the tests of GPUs have. So what it says to `ctypes` is checked; that
//! PyTorch is as `torch.py` has it is not.

use std::path::Path;
use std::process::Command;

use crate::{compiler, folder, said};

/// The archive, as a library that Python can load.
fn link(library: &Path) {
    let mut link = Command::new(compiler("CC", "cc"));
    link.args(["-shared", "-o"])
        .arg(library)
        .arg("-Wl,--whole-archive")
        .arg(crate::library())
        .args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm"]);
    said(&format!("{link:?}"), link.output().unwrap());
}

/// The page's only block of Python.
fn example() -> String {
    let page = std::fs::read_to_string(folder().join("../docs/gpu.md")).unwrap();
    let blocks: Vec<_> = page.split("```python\n").skip(1).collect();
    assert_eq!(blocks.len(), 1);
    let (block, _) = blocks[0].split_once("```").unwrap();
    block.to_owned()
}

/// A machine need not have Python; that of `.ci/run` has.
#[test]
fn the_example_for_pytorch_moves_a_tensor() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if Command::new(&python).arg("--version").output().is_err() {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "{python} is not there, and CI=true");
        eprintln!("skipped: {python} is not there");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let stand_in = folder().join("../tests/gpu/tests/cuda.c");
    let mut build = Command::new(compiler("CC", "cc"));
    build
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(["-shared", "-fPIC", "-o"])
        .arg(at("libcuda.so.1"))
        .arg(stand_in)
        .arg("-lpthread");
    said(&format!("{build:?}"), build.output().unwrap());
    let here = folder().join("tests/programs/torch.py");
    std::fs::copy(here, at("torch.py")).unwrap();
    link(&at("libpolyrail.so"));
    std::fs::write(at("example.py"), example()).unwrap();
    let ran = Command::new(python)
        .arg(at("example.py"))
        .env("LD_LIBRARY_PATH", scratch.path())
        .output()
        .unwrap();
    assert_eq!(said("example.py", ran), "the tensor came back\n");
}
