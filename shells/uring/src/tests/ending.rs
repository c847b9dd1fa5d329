//! Endpoints that end while the kernel still reads or writes for them.

use super::*;

#[test]
fn an_endpoint_that_ends_waits_for_the_kernel() {
    if !has_uring() {
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let mut bench = Bench::new(Way::Uring, 4096, FileRange::of(file, 1 << 20));
    bench.post(&[work(7, Op::Read, 0, 0, 4)]);
    let Bench {
        driven: Driven { endpoint, .. },
        region,
        ..
    } = bench;
    std::thread::scope(|scope| {
        let ended = scope.spawn(move || drop(endpoint));
        for _ in 0..1_000 {
            std::thread::yield_now();
        }
        assert!(!ended.is_finished(), "the kernel may still write there");
        writer.write_all(b"late").unwrap();
        ended.join().unwrap();
    });
    region.revoke();
}

/// Waits for something that a thread brings about.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < std::time::Duration::from_secs(60),
            "{what}"
        );
        std::thread::yield_now();
    }
}

/// Memory was once told to be free as soon as its worker had ended, while the kernel still wrote to it.
#[test]
fn memory_says_that_it_is_touched_until_the_kernel_lets_go_also_after_the_end_of_its_endpoint() {
    if !has_uring() {
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let mut bench = Bench::new(Way::Uring, 4096, FileRange::of(file, 1 << 20));
    assert!(!bench.region.is_touched());
    bench.post(&[work(7, Op::Read, 100, 0, 4)]);
    assert!(bench.region.is_touched());
    let Bench {
        driven: Driven { endpoint, .. },
        region,
        files,
    } = bench;
    drop(endpoint);
    let range = Arc::downgrade(files.0.lock().unwrap().values().next().unwrap());
    drop(files);
    assert!(
        region.is_touched() && range.upgrade().is_some(),
        "the kernel may still write there"
    );
    writer.write_all(b"late").unwrap();
    wait_until("the kernel has let go", || !region.is_touched());
    let mut bytes = [0; 4];
    region.load(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"late");
    region.revoke();
    wait_until("the file is let go of", || range.upgrade().is_none());
}
