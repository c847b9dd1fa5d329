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
    if let Some(host) = exposed.filter(|_| !config.insecure) {
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
        let listener = bind(address).map_err(refused)?;
        port = listener.local_addr().map_err(refused)?.port();
        listeners.push(listener);
    }
    Ok((listeners, port))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Connections of an engine that has just ended do not keep its successor from the port; an engine that
    // lives does.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Checks that lanes can be bound to the rail addresses.
pub(crate) fn check_rails(rails: &[IpAddr]) -> Result<(), EngineError> {
    for rail in rails {
        let address = SocketAddr::new(*rail, 0);
        Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )
        .and_then(|socket| socket.bind(&address.into()))
        .map_err(|source| EngineError::Rail {
            address: *rail,
            source,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn an_address_of_another_machine_is_no_rail() {
        let error = check_rails(&["192.0.2.1".parse().unwrap()]).err().unwrap();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }
}
