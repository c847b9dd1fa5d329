//! The program from outside: flags, exit codes, and what strangers can do to it.

mod agent;
mod bench;
mod config;
mod cp;
mod day;
mod death;
mod demo;
mod explain;
mod extras;
mod ghost;
mod harness;
mod keys;
mod life;
mod logs;
mod path;
mod pause;
mod record;
mod serve;
mod sim;
mod top;
mod topo;
mod transport;
mod usage;
