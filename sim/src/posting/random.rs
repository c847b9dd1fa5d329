//! Random scenarios: queue pairs, callers, settings and faults drawn from a seed.

use crate::model::chance::Chance;

/// The stream of what is drawn.
const DRAW_STREAM: u64 = 4 << 32;

/// The file of the scenario of this seed. It has one setting.
pub fn draw(seed: u64) -> String {
    let mut chance = Chance::new(seed, DRAW_STREAM);
    let mut below = |end: u64| chance.below(end);
    let pairs = 1 + below(5);
    let workers = 1 + below(6);
    let depth = [1, 2, 16, 64, 64, 200][below(6) as usize];
    let maybe = |below: &mut dyn FnMut(u64) -> u64, values: &[u64]| {
        values[below(values.len() as u64) as usize]
    };
    let mut text = format!(
        "name = \"posting-{seed}\"\nseed = {seed}\nduration_ms = {}\n[engine]\nworkers = {workers}\npost_ns = {}\n\
         answer_ns = {}\ncompletion_ns = {}\nwake_ns = {}\nsubmit_ns = {}\nfence_us = {}\nopen_us = {}\n\
         notice_us = {}\n\
         post_works_max = {}\nentries_max = {}\nwork_bytes_max = {}\n",
        1 + below(8),
        below(500),
        below(30_000),
        below(2_000),
        below(5_000),
        below(1_000),
        below(600),
        below(300),
        1 + below(2_000),
        maybe(&mut below, &[0, 0, 1, 5, 32]),
        1 + below(4),
        maybe(&mut below, &[1 << 30, 1 << 30, 30_000]),
    );
    let often = [0, 0, 0, 100, 1_000];
    let rare = [0, 0, 0, 1_000, 10_000];
    text += &format!(
        "[trouble]\nerror_one_in = {}\npartial_one_in = {}\nrejected_one_in = {}\nunknown_one_in = {}\n\
         repeated_one_in = {}\nunopened_one_in = {}\n",
        maybe(&mut below, &rare),
        maybe(&mut below, &[0, 0, 3, 20]),
        maybe(&mut below, &often),
        maybe(&mut below, &often),
        maybe(&mut below, &[0, 0, 3, 20]),
        maybe(&mut below, &[0, 0, 3]),
    );
    text += &format!(
        "[[queue_pair]]\nname = \"qp\"\ncount = {pairs}\nrate_gbits_per_sec = {}\ndelay_us = {}\ndepth = {depth}\n\
         reads_max = {}\n",
        1 + below(200),
        below(40),
        maybe(&mut below, &[1, 4, 16, 255]),
    );
    for _ in 0..1 + below(2) {
        let batch = 1 + below(200);
        text += &format!(
            "[[burst]]\ncallers = {}\nbatch = {batch}\nbatch_max = {}\nblock = {}\nop = \"{}\"\nneighbours = {}\n\
             count = {}\nstart_ms = {}\npause_us = {}\n",
            1 + below(8),
            batch + below(300),
            maybe(&mut below, &[1, 4_096, 65_536]),
            if below(4) == 0 { "read" } else { "write" },
            1 + below(6),
            1 + below(6),
            below(20) as f64 / 10.0,
            maybe(&mut below, &[0, 0, 100, 1_000]),
        );
    }
    for _ in 0..below(5) {
        let kinds = [
            "slow",
            "fail",
            "silent",
            "degrade",
            "poller-stalls",
            "worker-stops",
        ];
        let kind = kinds[below(6) as usize];
        let target = match kind {
            "worker-stops" => below(workers),
            "poller-stalls" => 0,
            _ => below(pairs),
        };
        text += &format!(
            "[[fault]]\nkind = \"{kind}\"\nat_ms = {}\nfor_ms = {}\ntarget = {target}\nfactor = {}\n",
            below(80) as f64 / 10.0,
            (1 + below(60)) as f64 / 10.0,
            [0.01, 0.3][below(2) as usize],
        );
    }
    let slice_us = 1 + below(300);
    text += &format!(
        "[[setting]]\nname = \"drawn\"\nreserve_timeout_us = {}\nsignal_interval_works = {}\n\
         resume_watermark_works = {}\nadmission = {}\nadmission_wait_slice_us = {slice_us}\n\
         admission_timeout_us = {}\nadmission_resume_watermark_works = {}\nadmission_chunk_works = {}\n\
         admission_chunks_max = {}\nsplit_policy = \"{}\"\nenable_experimental_capacity = true\n",
        maybe(&mut below, &[0, 1_000, 100_000, 1_000_000]),
        maybe(&mut below, &[0, 1, 7, 32, 128]),
        maybe(&mut below, &[0, 0, 3, 4_096]),
        below(3) > 0,
        slice_us + maybe(&mut below, &[0, 10_000, 1_000_000, 1_000_000]),
        maybe(&mut below, &[0, 5, 2_048]),
        maybe(&mut below, &[0, 0, 1, 16]),
        below(5),
        ["static", "least_loaded", "capacity"][below(3) as usize],
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Broken, Setup, run, run_broken};
    use super::*;
    use crate::settings::check_drawn;

    #[test]
    fn nothing_is_violated_whatever_is_drawn_and_the_same_seed_gives_the_same_run() {
        let (mut requests, mut failed, mut full, mut ended) = (0, 0, 0, 0);
        let run = |text: &str| Ok(run(&Setup::new(text, None)?, 0).outcome);
        check_drawn(draw, run, |report| {
            let figures = report.send_queue.as_ref().unwrap();
            requests += report.requests;
            failed += report.failed_requests;
            full += figures.queue_full_errors;
            ended += figures.ended_queue_pairs;
        });
        // What is drawn is worth something.
        assert!(
            requests > 100_000 && failed > 1_000 && full > 100 && ended > 100,
            "{requests} {failed} {full} {ended}"
        );
    }

    #[test]
    fn a_shell_that_is_wrong_is_noticed() {
        for (broken, words) in [
            (Broken::KeepsCredits, "is not at rest"),
            (Broken::TellsEarly, "of its works can move"),
        ] {
            let found = (0..100).find_map(|seed| {
                let setup = Setup::new(&draw(seed), None).ok()?;
                run_broken(&setup, 0, broken).outcome.violation
            });
            let found = found.expect("it is noticed");
            assert!(found.contains(words), "{broken:?}: {found}");
        }
    }
}
