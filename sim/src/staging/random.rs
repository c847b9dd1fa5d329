//! Random scenarios: slots, hops, workloads and what goes wrong drawn from a seed.

use crate::model::chance::Chance;

/// The stream of what is drawn.
const DRAW_STREAM: u64 = 7 << 32;

/// The file of the scenario of this seed. It has one setting.
pub fn draw(seed: u64) -> String {
    let mut chance = Chance::new(seed, DRAW_STREAM);
    let mut below = |end: u64| chance.below(end);
    let mut text = format!(
        "name = \"staging-{seed}\"\nseed = {seed}\nduration_ms = {}\n[slots]\nbytes = {}\n[hops]\n\
         copy_gbits_per_sec = {}\ncopy_delay_us = {}\nnetwork_gbits_per_sec = {}\nnetwork_delay_us = {}\n\
         message_us = {}\n",
        1 + below(4),
        [4_096, 65_536, 1 << 20][below(3) as usize],
        1 + below(300),
        below(20),
        1 + below(300),
        below(20),
        below(50),
    );
    let mut maybe = |values: &[u64]| values[below(values.len() as u64) as usize];
    text += &format!(
        "[trouble]\nfailed_one_in = {}\nunfenced_one_in = {}\nlost_one_in = {}\nrepeated_one_in = {}\n\
         message_spread_us = {}\ncancelled_one_in = {}\n",
        maybe(&[0, 0, 8, 60]),
        maybe(&[0, 0, 20, 200]),
        maybe(&[0, 0, 3, 20]),
        maybe(&[0, 0, 3, 20]),
        maybe(&[0, 5, 200, 20_000]),
        maybe(&[0, 0, 4]),
    );
    for _ in 0..1 + maybe(&[0, 1, 2, 3]) {
        let gpus = maybe(&[0, 0, 1, 2]);
        text += &format!(
            "[[workload]]\nfrom = {}\nop = \"{}\"\nblock = {}\nthreads = {}\ncount = {}\n\
             local_gpu = {}\nremote_gpu = {}\n",
            maybe(&[0, 1]),
            if maybe(&[0, 1]) == 0 { "write" } else { "read" },
            maybe(&[1, 5_000, 65_536, 1_000_001, 4 << 20]),
            1 + maybe(&[0, 1, 4]),
            1 + maybe(&[0, 3, 9]),
            gpus != 1,
            gpus != 2,
        );
    }
    for _ in 0..maybe(&[0, 0, 1, 2]) {
        text += &format!(
            "[[fault]]\nkind = \"{}\"\nat_ms = {}\nfor_ms = {}\nhost = {}\nhop = \"{}\"\nfactor = 0.1\n",
            ["slow", "fail", "unfenced", "mute"][maybe(&[0, 1, 2, 3]) as usize],
            maybe(&[0, 1, 15]) as f64 / 10.0,
            maybe(&[1, 5, 40]) as f64 / 10.0,
            maybe(&[0, 1]),
            ["network", "copy"][maybe(&[0, 1]) as usize],
        );
    }
    for kind in ["stop", "forget"] {
        for _ in 0..maybe(&[0, 0, 0, 1, 2]) {
            text += &format!(
                "[[fault]]\nkind = \"{kind}\"\nat_ms = {}\nfor_ms = {}\nhost = {}\n",
                maybe(&[0, 1, 3, 8, 20]) as f64 / 10.0,
                if kind == "stop" {
                    // The last one is longer than everything that anybody waits for.
                    maybe(&[1, 40, 3_000, 14_000])
                } else {
                    maybe(&[1, 5])
                },
                maybe(&[0, 1]),
            );
        }
    }
    text += &format!(
        "[[setting]]\nname = \"drawn\"\nslots = {}\ntickets = {}\nstage_attempts_max = {}\n",
        1 + maybe(&[0, 1, 3, 7]),
        1 + maybe(&[0, 1, 4, 15]),
        maybe(&[1, 3, 255]),
    );
    if maybe(&[0, 1]) == 0 {
        text += &format!("proof_us = {}\n", maybe(&[0, 50, 5_000]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Setup, run};
    use super::*;
    use crate::settings::check_drawn;

    #[test]
    fn nothing_is_violated_whatever_is_drawn_and_the_same_seed_gives_the_same_run() {
        let (mut requests, mut completed, mut unfenced, mut lost) = (0, 0, 0, 0);
        let (mut forgotten, mut settled) = (0, 0);
        let run = |text: &str| Ok(run(&Setup::new(text, None)?, 0).outcome);
        check_drawn(draw, run, |report| {
            let figures = report.staging.as_ref().unwrap();
            requests += report.requests;
            completed += report.requests - report.failed_requests;
            unfenced += figures.unfenced_hops;
            lost += figures.staging_lost;
            forgotten += figures.forgotten_sessions;
            settled += figures.settled_requests;
        });
        // What is drawn is worth something.
        assert!(
            requests > 5_000 && completed > 2_000 && unfenced > 300 && lost > 20,
            "{requests} {completed} {unfenced} {lost}"
        );
        assert!(forgotten > 50 && settled > 30, "{forgotten} {settled}");
    }
}
