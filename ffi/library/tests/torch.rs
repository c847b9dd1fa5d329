//! The example of `docs/gpu.md` for PyTorch, run by Python as it stands there, over a PyTorch of two pages (`torch.py`) and
//! the library in C in place of CUDA's driver that the tests of GPUs have. So what it says to `ctypes` is checked; that
//! PyTorch is as `torch.py` has it is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library, which cargo builds for no test: it is one that Rust does not link. All else of it is there by now.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let mut build = Command::new(std::env::var("CARGO").unwrap());
    build
        .args(["build", "--quiet", "--lib", "-p", "polyrail-ffi-library"])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = build.output().unwrap();
    assert!(built.status.success(), "{build:?}: {}", words(&built));
    target.join("debug/libpolyrail.so")
}

/// The page's only block of Python.
fn example() -> String {
    let page = std::fs::read_to_string(root().join("docs/gpu.md")).unwrap();
    let blocks: Vec<_> = page.split("```python\n").skip(1).collect();
    assert_eq!(blocks.len(), 1);
    let (block, _) = blocks[0].split_once("```").unwrap();
    block.to_owned()
}

fn words(output: &Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    words(&output.stdout) + &words(&output.stderr)
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
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let stand_in = root().join("tests/gpu/tests/cuda.c");
    let mut build = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    build
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(["-shared", "-fPIC", "-o"])
        .arg(at("libcuda.so.1"))
        .arg(stand_in)
        .arg("-lpthread");
    let built = build.output().unwrap();
    assert!(built.status.success(), "{build:?}: {}", words(&built));
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch.py");
    std::fs::copy(here, at("torch.py")).unwrap();
    std::fs::copy(library(), at("libpolyrail.so")).unwrap();
    std::fs::write(at("example.py"), example()).unwrap();
    let ran = Command::new(python)
        .arg(at("example.py"))
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", words(&ran));
    assert_eq!(words(&ran), "the tensor came back\n");
}
