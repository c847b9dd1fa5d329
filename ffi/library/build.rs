//! Gives `libpolyrail.so` the name by which loaders know it, and puts a link of that name beside it, so that programs
//! run with the folder that cargo builds into.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// The number changes when something of `polyrail.h` changes its meaning; `docs/versions.md` promises that nothing does.
const SONAME: &str = "libpolyrail.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // FOLDER/build/PACKAGE-HASH/out, where FOLDER is what the library is built into.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let folder = out.ancestors().nth(3).expect("it is three folders below");
    let link = folder.join(SONAME);
    let _ = fs::remove_file(&link);
    symlink("libpolyrail.so", &link).expect("cargo's folder can be written");
}
