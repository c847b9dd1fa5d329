//! What a worker is told besides submissions.

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::{LaneLoad, Proof};
use polyrail_core::time::Instant;

use super::Loop;
use crate::intake::End;
use crate::post::Command;
use crate::rows::RowId;

impl Loop<'_> {
    pub(super) fn commands(&mut self, now: Instant) -> bool {
        let commands = self.post.take_commands();
        let busy = !commands.is_empty();
        for command in commands {
            self.command(now, command);
        }
        busy
    }

    /// What a peer has said, as core knows it: which works have arrived, the lane's transport has to read.
    fn understand(&self, frame: Frame) -> Frame {
        match frame {
            Frame::Fenced {
                lane,
                epoch,
                delivered,
            } => Frame::Fenced {
                lane,
                epoch,
                delivered: self.endpoint.arrived(lane, epoch, delivered),
            },
            other => other,
        }
    }

    /// What its lanes hold.
    pub(crate) fn lanes(&self) -> Vec<LaneLoad> {
        self.core.lanes().collect()
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::AttachLocal(segment, region) => self.endpoint.attach_local(segment, region),
            Command::DetachLocal(segment) => self.endpoint.detach_local(segment),
            Command::AttachRemote(segment, region) => self.endpoint.attach_remote(segment, region),
            Command::DetachRemote(segment) => self.endpoint.detach_remote(segment),
            Command::AttachRail(rail, address) => self.endpoint.attach_rail(rail, address),
            Command::AttachDisk(disk) => self.disks.add(disk),
            Command::InstallPlan(id, plan) => {
                self.handover.learn(id, &plan, &self.around.transports);
                let installed = self.core.install_plan(now, id, &plan);
                debug_assert!(installed, "the tables are as large as the engine's numbers");
            }
            Command::RetirePlan(id) => {
                self.handover.forget(id);
                self.core.retire_plan(id);
            }
            Command::StagedEnded(tag, report) => {
                self.report(tag, report);
                if self.handover.end(now, tag, &report) {
                    self.finish(RowId::from_tag(tag).0);
                }
            }
            Command::Frame(peer, frame) => {
                let frame = self.understand(frame);
                self.core.handle_frame(now, peer, &frame);
            }
            Command::PeerGone(peer, proof) => {
                if proof == Proof::ProcessGone {
                    self.lost.is_gone(peer);
                }
                self.core.handle_peer_gone(now, peer, proof);
            }
            Command::ForgetPeer(lost) => self.lost.add(now, lost),
            Command::Cancel(row) => self.intake.ask(End::Cancel(row)),
            Command::CaughtUp => self.catches_up_by = None,
            Command::Room => self.core.handle_wake(),
            Command::Lanes(question) => question.answer(self.lanes()),
            Command::ShutDown(at) => self.intake.ask(End::ShutDown(at)),
        }
    }
}
