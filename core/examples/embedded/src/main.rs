//! The runtime with a console: `cargo run -p polyrail-embedded`.

use polyrail_core::report::Status;
use polyrail_embedded::device::Device;
use polyrail_embedded::{RATES, TOTAL_BYTES, Tables, boot, run};

/// Standard output, as a console of the runtime.
struct Stdout;

impl core::fmt::Write for Stdout {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        print!("{text}");
        Ok(())
    }
}

fn main() {
    let mut ours: Vec<u8> = (0..TOTAL_BYTES).map(|i| (i % 251) as u8).collect();
    let mut theirs = vec![0; TOTAL_BYTES];
    let mut device = Device::new(&mut ours, &mut theirs, RATES);
    let status = boot(&mut Tables::new(), |shared, mut core| {
        run(shared, &mut core, &mut device, &mut Stdout)
    });
    assert_eq!(status, Some(Status::Completed));
    assert!(ours == theirs, "every byte is where it should be");
    println!("{} bytes compared", theirs.len());
}
