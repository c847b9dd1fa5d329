//! Signs of life over real sockets: how many there are, and what they still show when rails are dark.

use super::*;
use crate::codec::GREETING_BYTES;

/// Of a [`Frame::Heartbeat`], and of a [`Frame::Alive`].
const HEARTBEAT_BYTES: usize = 5;

/// How often signs of life are asked for here.
const BEAT: Duration = Duration::from_millis(200);

fn beating(config: &mut PlaneConfig) {
    config.heartbeat = BEAT;
    config.idle_heartbeat = BEAT * 2;
    config.silence_max = PATIENCE;
}

/// A session over four rails; what came before they were open does not count.
fn four_rails(target: &Engine, initiator: &Engine) -> [Forwarder; 4] {
    let start = |at: &str| Forwarder::start(at, target.listens[0]);
    let rails = [
        start("127.0.0.11:0"),
        start("127.0.0.12:0"),
        start("127.0.0.13:0"),
        start("127.0.0.14:0"),
    ];
    initiator.connect(rails[0].address);
    let routes = rails.iter().map(|rail| (None, rail.address)).collect();
    initiator.plane.maintain(PEER, routes);
    until("all have been asked", || {
        rails.iter().all(|rail| rail.passed() > 0)
    });
    initiator.describe_works();
    rails
}

#[test]
fn one_rail_of_a_session_beats_at_a_time_and_each_has_its_turn() {
    let target = Engine::start("beta", &["127.0.0.2:0"], beating);
    let initiator = Engine::start("alpha", &[], beating);
    let rails = four_rails(&target, &initiator);
    let passed = || rails.each_ref().map(Forwarder::passed);
    // (whether nothing is in flight, more than the usual number of heartbeats in the time of one)
    for (idle, most) in [(false, 1.5), (true, 0.75)] {
        initiator.idle.store(idle, Ordering::SeqCst);
        // On a busy machine some answers come late, and all rails are asked. But not every time.
        until("as few as need be", || {
            let (before, start) = (passed(), Instant::now());
            until("each rail has had its turn", || {
                let turn = |(now, before): (usize, usize)| now >= before + 2 * HEARTBEAT_BYTES;
                passed().into_iter().zip(before).all(turn)
            });
            let beats = start.elapsed().as_secs_f64() / BEAT.as_secs_f64();
            let bytes: usize = passed().iter().sum::<usize>() - before.iter().sum::<usize>();
            (bytes as f64) < most * beats * (2 * HEARTBEAT_BYTES) as f64
        });
    }
}

#[test]
fn a_peer_is_heard_over_the_one_rail_that_is_not_dark() {
    let target = Engine::start("beta", &["127.0.0.2:0"], beating);
    let initiator = Engine::start("alpha", &[], beating);
    let rails = four_rails(&target, &initiator);
    rails[..3].iter().for_each(|rail| rail.swallow(true));
    let heard = || initiator.heard.load(Ordering::SeqCst);
    let (before, start) = (heard(), Instant::now());
    until("it was heard ten times", || heard() >= before + 10);
    let beats = start.elapsed().as_secs_f64() / BEAT.as_secs_f64();
    // With each dark rail asked in its turn it would be forty.
    assert!(
        beats < 25.0,
        "heard ten times in the time of {beats} heartbeats"
    );
}

#[test]
fn a_target_that_hears_nothing_asks_and_lets_go_of_who_does_not_answer() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.heartbeat = BEAT;
        config.silence_max = BEAT * 10;
    });
    let hello = Frame::Hello {
        name: "alpha".into(),
        incarnation: 1,
        session: None,
        token: vec![],
    };
    let mut stream = say(target.listens[0], &greeted(Purpose::Control, &[hello]));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut decoder = Decoder::default();
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).unwrap();
    let mut answered = 0;
    let mut buffer = [0; 4096];
    let mut since = Instant::now();
    loop {
        let bytes = match stream.read(&mut buffer) {
            Ok(bytes @ 1..) => bytes,
            ended => {
                assert!(
                    !matches!(&ended, Err(error) if error.kind() == io::ErrorKind::WouldBlock),
                    "{ended:?}"
                );
                break;
            }
        };
        decoder.push(&buffer[..bytes]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            // Three answers, and then silence.
            if frame == Frame::Heartbeat && answered < 3 {
                answered += 1;
                stream.write_all(&frame_bytes(&Frame::Alive)).unwrap();
                since = Instant::now();
            }
        }
    }
    assert_eq!(answered, 3, "as long as it answers it is kept");
    let silent = since.elapsed();
    assert!(silent > BEAT * 9, "let go of after {silent:?}");
}
