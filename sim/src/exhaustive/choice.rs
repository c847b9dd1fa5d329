//! What can happen in a state.

use polyrail_core::work::Op;

use super::act::{Act, Answer, Bytes};
use super::bench::{Bench, RAILS};

impl Bench<'_> {
    /// What can happen now.
    pub(super) fn acts(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        if let Some((_, batch)) = &self.posting {
            let count = batch.works.len() as u8;
            acts.extend(
                [
                    Answer::All,
                    Answer::Full(0),
                    Answer::Rejected,
                    Answer::Refused,
                ]
                .map(Act::Posted),
            );
            acts.extend([0, count].map(|taken| Act::Posted(Answer::Unknown(taken))));
            if count > 1 {
                acts.push(Act::Posted(Answer::Full(1)));
            }
        } else {
            for rail in 0..RAILS {
                self.acts_of_lane(rail, &mut acts);
            }
            for (number, story) in (0..).zip(&self.stories) {
                if story.reported.is_none() {
                    acts.push(Act::Cancel(number));
                }
            }
            if self.last.is_some() {
                acts.push(Act::Again);
            }
            if !self.peer_gone {
                acts.extend([Act::Alive, Act::SessionEnded, Act::ProcessGone]);
            }
            if !self.shut_down {
                acts.push(Act::ShutDown);
            }
            if self.core.poll_timeout().is_some() && self.bounds.timers > 0 {
                acts.push(Act::Time);
            }
        }
        acts.retain(|act| self.bounds.faults > 0 || !act.is_fault());
        acts
    }

    fn acts_of_lane(&self, rail: u8, acts: &mut Vec<Act>) {
        let line = &self.lines[usize::from(rail)];
        if line.opening {
            acts.extend([Act::Opened(rail), Act::OpenFailed(rail)]);
        }
        if line.asked_local {
            acts.extend([Act::LetGo(rail), Act::Unfenceable(rail)]);
        }
        if line.asked_remote.is_some() && !self.peer_gone {
            acts.push(Act::Fenced(rail));
        }
        if line.full {
            acts.push(Act::Writable(rail));
        }
        if line.posted > 0 && !line.failed {
            acts.push(Act::Broken(rail));
        }
        for (index, flight) in (0..).zip(&line.flights) {
            let seen = flight.pending && flight.epoch > line.let_go;
            let is_write = flight.work.op == Op::Write;
            let lands = flight.landed || flight.epoch > line.fenced;
            if seen && lands {
                acts.push(Act::Completes(rail, index));
            }
            if seen && line.failed && flight.epoch == line.epoch {
                acts.push(Act::Flushed(rail, index));
            } else if seen {
                if lands {
                    acts.extend([
                        Act::Unsaid(rail, index),
                        Act::Fails(rail, index, Bytes::Landed),
                    ]);
                }
                if is_write && !flight.landed {
                    acts.push(Act::Fails(rail, index, Bytes::OnTheWay));
                }
                acts.extend([Act::Fails(rail, index, Bytes::Gone), Act::Errs(rail, index)]);
            }
            let is_over = flight.landed || flight.gone;
            if !flight.pending && !is_over && is_write && flight.epoch > line.fenced {
                acts.push(Act::Lands(rail, index));
            }
        }
    }
}
