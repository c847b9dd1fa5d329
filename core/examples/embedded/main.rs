//! Core without an operating system: the runtime and its made-up device are in files of their own, which also link
//! for a bare target (`tests/bare`); this one only lends them a console.
//!
//! ```text
//! cargo run -p polyrail-core --example embedded
//! ```

mod device;
mod runtime;

use polyrail_core::report::Status;

/// Standard output, as a console of the runtime.
struct Stdout;

impl core::fmt::Write for Stdout {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        print!("{text}");
        Ok(())
    }
}

fn main() {
    let mut ours: Vec<u8> = (0..runtime::TOTAL_BYTES).map(|i| (i % 251) as u8).collect();
    let mut theirs = vec![0; runtime::TOTAL_BYTES];
    let mut device = device::Device::new(&mut ours, &mut theirs, runtime::RATES);
    let status = runtime::run(&mut runtime::Tables::new(), &mut device, &mut Stdout);
    assert_eq!(status, Some(Status::Completed));
    assert!(ours == theirs, "every byte is where it should be");
    println!("{} bytes compared", theirs.len());
}
