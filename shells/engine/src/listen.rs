//! Where an engine listens: one port, on its listening address and on every rail's.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::error::EngineError;

/// How often a port that the kernel chose for one address is tried on the others.
const PORT_TRIES: usize = 32;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The listening sockets of an engine.
pub(crate) struct Listening {
    pub(crate) listeners: Vec<TcpListener>,
    /// The address that was asked for, with the port that it became.
    pub(crate) address: Option<SocketAddr>,
    /// What peers are told to use.
    pub(crate) rails: Vec<SocketAddr>,
}

/// Binds what `config` asks for.
pub(crate) fn listen(config: &Config) -> Result<Listening, EngineError> {
    let Some(asked) = config.listen else {
        return Ok(Listening {
            listeners: Vec::new(),
            address: None,
            rails: Vec::new(),
        });
    };
    let mut hosts = vec![asked.ip()];
    if !asked.ip().is_unspecified() {
        hosts.extend(config.rails.iter().filter(|rail| **rail != asked.ip()));
    }
    let exposed = hosts
        .iter()
        .chain(&config.rails)
        .find(|host| !host.is_loopback());
    if let Some(host) = exposed.filter(|_| !config.may_be_reached()) {
        return Err(EngineError::Insecure {
            address: SocketAddr::new(*host, asked.port()),
        });
    }
    let (listeners, port) = bind_all(&hosts, asked.port())?;
    // A wildcard is no address that a peer could use; it keeps to the one it came by.
    let announced = match config.rails.is_empty() {
        true if asked.ip().is_unspecified() => Vec::new(),
        true => vec![asked.ip()],
        false => config.rails.clone(),
    };
    Ok(Listening {
        listeners,
        address: Some(SocketAddr::new(asked.ip(), port)),
        rails: announced
            .into_iter()
            .map(|host| SocketAddr::new(host, port))
            .collect(),
    })
}

/// Binds all hosts to one port; a port of 0 becomes one that is free on all of them.
fn bind_all(hosts: &[IpAddr], port: u16) -> Result<(Vec<TcpListener>, u16), EngineError> {
    let tries = if port == 0 { PORT_TRIES } else { 1 };
    let mut last = None;
    for _ in 0..tries {
        match bind_once(hosts, port) {
            Ok(bound) => return Ok(bound),
            Err(error @ EngineError::Listen { .. }) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| EngineError::Config {
        text: "no address to listen on".into(),
    }))
}

fn bind_once(hosts: &[IpAddr], mut port: u16) -> Result<(Vec<TcpListener>, u16), EngineError> {
    let mut listeners = Vec::new();
    for host in hosts {
        let address = SocketAddr::new(*host, port);
        let refused = |source| EngineError::Listen { address, source };
        // A rail may come later than the engine; where it listens first has to be there.
        let listener = bind(address, !listeners.is_empty()).map_err(refused)?;
        port = listener.local_addr().map_err(refused)?.port();
        listeners.push(listener);
    }
    Ok((listeners, port))
}

/// Binds one address more, which has to be there.
pub(crate) fn also(address: SocketAddr) -> Result<TcpListener, EngineError> {
    bind(address, false).map_err(|source| EngineError::Listen { address, source })
}

/// Binds an address that has to be there, or that `may_come` later.
fn bind(address: SocketAddr, may_come: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Connections of an engine that has just ended do not keep its successor from the port; an engine that
    // lives does.
    socket.set_reuse_address(true)?;
    match address.ip() {
        IpAddr::V4(_) => socket.set_freebind_v4(may_come)?,
        IpAddr::V6(_) => socket.set_freebind_v6(may_come)?,
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Checks that lanes can be bound to the rail addresses: to one at least, because others may come later.
pub(crate) fn check_rails(rails: &[IpAddr]) -> Result<(), EngineError> {
    let mut missing = None;
    let mut is_any_there = false;
    for rail in rails {
        match try_rail(*rail) {
            Ok(()) => is_any_there = true,
            Err(source) => {
                let may_come = source.kind() == io::ErrorKind::AddrNotAvailable;
                let error = EngineError::Rail {
                    address: *rail,
                    source,
                };
                match may_come {
                    true => missing = missing.or(Some(error)),
                    false => return Err(error),
                }
            }
        }
    }
    match missing.filter(|_| !is_any_there) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Binds an address of this host, and lets go of it.
pub(crate) fn try_rail(rail: IpAddr) -> io::Result<()> {
    let address = SocketAddr::new(rail, 0);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&address.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Payload;

    fn config(listen: &str, rails: &[&str], insecure: bool) -> Config {
        Config {
            listen: Some(listen.parse().unwrap()),
            rails: rails.iter().map(|rail| rail.parse().unwrap()).collect(),
            insecure,
            ..Config::default()
        }
    }

    #[test]
    fn all_rails_get_one_port() {
        let bound = listen(&config("127.0.0.1:0", &["127.0.0.1", "127.0.0.2"], false)).unwrap();
        assert_eq!(bound.listeners.len(), 2);
        let port = bound.address.unwrap().port();
        assert!(port != 0 && bound.rails.iter().all(|rail| rail.port() == port));
        let taken = listen(&config(&format!("127.0.0.2:{port}"), &[], false));
        assert!(matches!(taken, Err(EngineError::Listen { .. })));
    }

    #[test]
    fn nobody_listens_beyond_loopback_by_accident() {
        for (address, rails) in [
            ("0.0.0.0:0", &[][..]),
            ("192.0.2.1:0", &[]),
            ("127.0.0.1:0", &["192.0.2.1"]),
        ] {
            let error = listen(&config(address, rails, false)).err().unwrap();
            assert!(
                error.is_usage() && error.to_string().contains("--insecure"),
                "{error}"
            );
        }
        assert!(listen(&config("0.0.0.0:0", &[], true)).is_ok());
        let mut encrypting = config("0.0.0.0:0", &[], false);
        encrypting.security.payload = Payload::Encrypt;
        assert!(listen(&encrypting).is_ok());
    }

    #[test]
    fn an_address_of_another_machine_is_no_rail_unless_another_is_there() {
        let foreign = "192.0.2.1".parse().unwrap();
        let error = check_rails(&[foreign]).err().unwrap();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
        check_rails(&[foreign, [127, 0, 0, 1].into()]).unwrap();
        // It listens there already, for when it comes.
        let bound = listen(&config("127.0.0.1:0", &["127.0.0.1", "192.0.2.1"], true)).unwrap();
        assert_eq!((bound.listeners.len(), bound.rails.len()), (2, 2));
        let alone = listen(&config("192.0.2.1:0", &[], true));
        assert!(matches!(alone, Err(EngineError::Listen { .. })));
    }
}
