//! A recording as a list of what is worth a line.

use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{Event, LaneAction};
use polyrail_core::report::{Local, Remote, Status};
use polyrail_core::time::Instant;
use polyrail_core::units::LaneId;
use polyrail_core::work::{LaneFact, Outcome, Stop};
use polyrail_record::{Answer, Call, Entry, Install, Step};

use super::Tell;
use super::story::{Story, time};

/// Tells of everything but the ordinary: works that are posted and complete, requests that do.
pub(super) struct Timeline<'a> {
    tell: Tell<'a>,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(tell: Tell<'a>) -> Self {
        Self { tell }
    }

    /// Takes in one call that `story` has just taken in.
    pub(super) fn note(&mut self, entry: &Entry<'_>, at: Instant, story: &Story) {
        let (who, lines) = match &entry.step {
            Step::Shared(install) => ("engine".to_owned(), vec![installed(install)]),
            Step::Worker(worker, call) => {
                let lines =
                    called(call, story)
                        .into_iter()
                        .chain(answered(call, &entry.answer, story));
                (format!("worker {worker}"), lines.collect())
            }
        };
        for line in lines {
            (self.tell)(format!("{}  {who:<9}  {line}", time(at.as_nanos())));
        }
    }
}

fn installed(install: &Install<'_>) -> String {
    match install {
        Install::Device(device, config) => {
            format!("device {} at {:?}", device.0, config.rate_nominal)
        }
        Install::Rail(rail, config, name) => format!(
            "rail {} is {name}: peer {}, device {}",
            rail.0, config.peer.0, config.device.0
        ),
        Install::Spare(rail, of, config, name) => format!(
            "rail {} is {name}, a spare for rail {}: peer {}, device {}",
            rail.0, of.0, config.peer.0, config.device.0
        ),
        Install::Others(device, bytes) => format!(
            "device {}: other processes' {bytes} bytes in flight count",
            device.0
        ),
    }
}

fn lane(lane: LaneId, story: &Story) -> String {
    format!("lane on {}", story.rail_name(lane.rail()))
}

/// What was handed in.
fn called(call: &Call<'_>, story: &Story) -> Vec<String> {
    let one = match call {
        Call::InstallPlan { id, plan, .. } => format!(
            "plan {}: segment {} to {} of peer {} over {} rails",
            id.index,
            plan.local.0,
            plan.remote.0,
            plan.peer.0,
            plan.all_rails().count()
        ),
        Call::ShutDown { .. } => "shut down".to_owned(),
        Call::HandlePosted {
            lane: id,
            accepted,
            stop: stop @ (Stop::Rejected(_) | Stop::Unknown),
            ..
        } => format!("{} took {accepted} works, then {stop:?}", lane(*id, story)),
        Call::HandleCompletions { completions, .. } => {
            let errors = completions.iter().filter_map(|one| match one.outcome {
                Outcome::Success => None,
                Outcome::Error(cause) => Some(format!(
                    "a work failed on the {}: {cause}",
                    lane(one.lane, story)
                )),
            });
            return errors.collect();
        }
        Call::HandleLane {
            lane: id,
            epoch,
            fact,
            ..
        } if *fact != LaneFact::Writable => {
            format!("{}, epoch {}: {}", lane(*id, story), epoch.0, said(fact))
        }
        Call::HandleFrame {
            peer,
            frame:
                Frame::Fenced {
                    lane: id,
                    epoch,
                    delivered,
                },
            ..
        } => format!(
            "peer {} says that the {}, epoch {}, is fenced: {delivered} works arrived",
            peer.0,
            lane(*id, story),
            epoch.0
        ),
        Call::HandlePeerGone { peer, proof, .. } => format!("peer {} is gone: {proof:?}", peer.0),
        Call::HandBack { id, how, .. } => format!(
            "request {} was handed back as {}",
            id.index,
            how.status.name()
        ),
        Call::Withdraw { count, why, .. } => {
            format!("{count} requests never begin: {why:?}")
        }
        Call::RestoreShared { .. } => "rails and devices are as they were".to_owned(),
        Call::Restore { .. } => "core is as it was".to_owned(),
        Call::ForgetPeer { peer, .. } => format!("peer {} is to be forgotten", peer.0),
        _ => return Vec::new(),
    };
    vec![one]
}

fn said(fact: &LaneFact) -> String {
    match fact {
        LaneFact::Opened { limits } => format!("opened, takes {} works", limits.works_max),
        LaneFact::OpenFailed(cause) => format!("could not be opened: {cause}"),
        LaneFact::Writable => "has room".to_owned(),
        LaneFact::Broken(cause) => format!("broken: {cause}"),
        LaneFact::Fenced { scope, delivered } => match delivered {
            Some(works) => format!("fenced ({scope:?}), {works} works arrived"),
            None => format!("fenced ({scope:?})"),
        },
        LaneFact::Unfenceable { scope } => format!("cannot be fenced ({scope:?})"),
        LaneFact::PortActive => "its port is active again".to_owned(),
        LaneFact::Crowded => "an idle one is to make room for it".to_owned(),
    }
}

/// What core wanted or said.
fn answered(call: &Call<'_>, answer: &Answer<'_>, story: &Story) -> Option<String> {
    match answer {
        Answer::Submitted(Err(error)) => Some(format!("a request is refused: {error:?}")),
        Answer::Cancelled(cancelled) => Some(format!("a request is cancelled: {cancelled:?}")),
        Answer::Report(Some(report)) if report.status != Status::Completed => {
            let id = match call {
                Call::Take { id } => id.index,
                _ => return None,
            };
            let because = report.cause.map(|cause| format!(": {cause}"));
            Some(format!(
                "request {id} ends as {} with {} bytes delivered{}",
                report.status.name(),
                report.delivered_bytes,
                because.unwrap_or_default()
            ))
        }
        Answer::Lane(Some(action)) => Some(match action {
            LaneAction::Open {
                lane: id,
                epoch,
                by,
            } => format!(
                "open the {}, epoch {}, by {}",
                lane(*id, story),
                epoch.0,
                time(by.as_nanos()).trim_start()
            ),
            LaneAction::Fence {
                lane: id, epoch, ..
            } => format!("fence the {}, epoch {}", lane(*id, story), epoch.0),
            LaneAction::Close { lane: id, epoch } => {
                format!("close the {}, epoch {}", lane(*id, story), epoch.0)
            }
        }),
        Answer::Message(Some(Message::Fence {
            peer,
            lane: id,
            epoch,
        })) => Some(format!(
            "ask peer {} to fence the {}, epoch {}",
            peer.0,
            lane(*id, story),
            epoch.0
        )),
        Answer::Event(Some(event)) => happened(event, story),
        _ => None,
    }
}

fn happened(event: &Event, story: &Story) -> Option<String> {
    match event {
        Event::RailChanged {
            rail,
            state,
            cause,
            expired,
        } => {
            let expired = expired.then(|| ": its cooldown is over".to_owned());
            let because = cause.map(|cause| format!(": {cause}")).or(expired);
            Some(format!(
                "rail {} is {}{}",
                story.rail_name(*rail),
                state.name(),
                because.unwrap_or_default()
            ))
        }
        Event::Failover {
            from, to, attempt, ..
        } => Some(format!(
            "a request goes on with transport {} instead of {} (its own switch {attempt})",
            to.0, from.0
        )),
        Event::PeerChanged { peer, silent } => {
            let how = if *silent { "silent" } else { "heard again" };
            Some(format!("peer {} is {how}", peer.0))
        }
        Event::Settled {
            local: Local::Released,
            remote: Remote::Settled,
            ..
        } => Some("an indeterminate request has ended after all".to_owned()),
        Event::Settled { local, remote, .. } => Some(format!(
            "more is known of an indeterminate request: memory here is {local:?}, and there {remote:?}"
        )),
        Event::HandedOver { request, .. } => Some(format!(
            "request {} is handed over, to be staged",
            request.index
        )),
        Event::CalledBack { request, .. } => {
            Some(format!("request {} is called back", request.index))
        }
        Event::RequestDone { .. } | Event::BatchDone { .. } | Event::WakeWorker { .. } => None,
    }
}
