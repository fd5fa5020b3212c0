//! A wire for real programs: UDP is taken at one address and carried to another through the links of
//! the model, in real time and without root.
//!
//! ```text
//!  client ──▶ [ listening socket ─ up Link ─▶ socket of this client ] ──▶ target
//!  client ◀── [ listening socket ◀─ down Link ─ socket of this client ] ◀── target
//! ```
//!
//! The links are one wire that all clients share. To the target each client is a socket of its own, as
//! behind a NAT; [`Relay::rebind`] gives all of them new ones. One task owns wire and clients; the
//! handle sends it orders, and ends it by being dropped. tokio's timers have a resolution of a
//! millisecond, so a packet leaves up to one later than the model says.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::link::LinkConfig;
use crate::wire::{Parcel, Wire, WireCounts};
use crate::world::Direction;

/// The largest UDP payload.
const MAX_PAYLOAD: usize = 65_535;

/// Room for what comes faster than it is taken, so that little is lost but by the links.
const SOCKET_BUFFER: usize = 4 << 20;

/// Packets from targets that wait for the relay's task.
const RETURNED: usize = 1024;

/// Clients at once. One more, and the one that was silent longest is forgotten.
const CLIENTS: usize = 1024;

enum Order {
    Links(Box<[LinkConfig; 2]>),
    Rebind(oneshot::Sender<io::Result<()>>),
    Counts(oneshot::Sender<[WireCounts; 2]>),
}

/// A wire between real sockets. It is gone once this is dropped.
#[derive(Debug)]
pub struct Relay {
    local: SocketAddr,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<()>,
}

impl Relay {
    /// Takes UDP at `listen` (port 0: any that is free) and carries it to `target` over a wire with
    /// these links; randomness comes from `seed`.
    ///
    /// # Errors
    /// The address can't be had.
    pub async fn start(
        listen: SocketAddr,
        target: SocketAddr,
        up: LinkConfig,
        down: LinkConfig,
        seed: u64,
    ) -> io::Result<Self> {
        let socket = bind(listen).await?;
        let local = socket.local_addr()?;
        let (orders, ordered) = mpsc::unbounded_channel();
        let (returns, returned) = mpsc::channel(RETURNED);
        let exchange = Exchange {
            socket,
            target,
            wire: Wire::new(up, down, seed),
            began: Instant::now(),
            clients: HashMap::new(),
            returns,
        };
        let task = tokio::spawn(exchange.run(ordered, returned));
        Ok(Self {
            local,
            orders,
            task,
        })
    }

    /// The address to send to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Changes what the links do to packets that enter from now on.
    pub fn set_links(&self, up: LinkConfig, down: LinkConfig) {
        // The task ends with this handle only.
        let _ = self.orders.send(Order::Links(Box::new([up, down])));
    }

    /// Gives every client a new socket to the target, as a NAT does that forgot its mappings. What is
    /// on the way to the old ones is lost.
    ///
    /// # Errors
    /// There is no socket to be had.
    pub async fn rebind(&self) -> io::Result<()> {
        let (reply, done) = oneshot::channel();
        let _ = self.orders.send(Order::Rebind(reply));
        done.await.map_err(io::Error::other)?
    }

    /// What became of the packets so far: up, down.
    pub async fn counts(&self) -> [WireCounts; 2] {
        let (reply, counts) = oneshot::channel();
        let _ = self.orders.send(Order::Counts(reply));
        counts.await.unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // The system gives as much of it as it allows.
    SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER)?;
    // What is sent without waiting is taken only once the socket is known to take it.
    socket.writable().await?;
    Ok(socket)
}

/// Bytes of the IP and UDP headers of packets to or from this address.
fn headers(address: &SocketAddr) -> usize {
    if address.is_ipv4() { 28 } else { 48 }
}

/// One client's way to the target.
struct Client {
    socket: Arc<UdpSocket>,
    reader: JoinHandle<()>,
    heard: Instant,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

struct Exchange {
    socket: UdpSocket,
    target: SocketAddr,
    wire: Wire,
    began: Instant,
    clients: HashMap<SocketAddr, Client>,
    returns: mpsc::Sender<Parcel>,
}

impl Exchange {
    async fn run(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        mut returned: mpsc::Receiver<Parcel>,
    ) {
        let mut buffer = vec![0; MAX_PAYLOAD];
        loop {
            let next = self.wire.next().map(|at| self.began + at);
            let due = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                () = due => {}
                Some(parcel) = returned.recv() => self.enter(Direction::Down, &parcel),
                got = self.socket.recv_from(&mut buffer) => {
                    // What a client's machine says of a packet that did not reach it is no packet.
                    if let Ok((length, client)) = got {
                        let payload = Bytes::copy_from_slice(&buffer[..length]);
                        self.take(&Parcel { client, payload }).await;
                    }
                }
            }
            self.deliver();
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Links(links) => {
                let [up, down] = *links;
                self.wire.reconfigure(up, down);
            }
            Order::Counts(reply) => {
                let _ = reply.send(self.wire.counts());
            }
            Order::Rebind(reply) => {
                let mut done = Ok(());
                let clients: Vec<_> = self.clients.drain().collect();
                for (address, old) in clients {
                    match self.connect(address, old.heard).await {
                        Ok(client) => drop(self.clients.insert(address, client)),
                        Err(error) => done = Err(error),
                    }
                }
                let _ = reply.send(done);
            }
        }
    }

    /// A socket of this client's own, and a task that reads from it.
    async fn connect(&self, address: SocketAddr, heard: Instant) -> io::Result<Client> {
        let any: SocketAddr = match self.target {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0; 8], 0).into(),
        };
        let socket = Arc::new(bind(any).await?);
        socket.connect(self.target).await?;
        let (source, returns) = (socket.clone(), self.returns.clone());
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; MAX_PAYLOAD];
            loop {
                // A target that nobody listens at is told as an error, once for each packet.
                let Ok(length) = source.recv(&mut buffer).await else {
                    continue;
                };
                let payload = Bytes::copy_from_slice(&buffer[..length]);
                let parcel = Parcel {
                    client: address,
                    payload,
                };
                if returns.send(parcel).await.is_err() {
                    return;
                }
            }
        });
        Ok(Client {
            socket,
            reader,
            heard,
        })
    }

    async fn take(&mut self, parcel: &Parcel) {
        let now = Instant::now();
        if let Some(client) = self.clients.get_mut(&parcel.client) {
            client.heard = now;
        } else {
            if self.clients.len() >= CLIENTS {
                let silent = self.clients.iter().min_by_key(|(_, client)| client.heard);
                let silent = silent.map(|(address, _)| *address);
                self.clients.retain(|address, _| Some(*address) != silent);
            }
            // Without a socket the packet is lost, as on a machine that has none left.
            let Ok(client) = self.connect(parcel.client, now).await else {
                return;
            };
            self.clients.insert(parcel.client, client);
        }
        self.enter(Direction::Up, parcel);
    }

    fn enter(&mut self, direction: Direction, parcel: &Parcel) {
        let now = self.began.elapsed();
        let headers = headers(&self.target);
        self.wire.enter(direction, parcel, headers, now);
    }

    /// Sends what has left the wire. A socket that takes no more loses it, as a full card does.
    fn deliver(&mut self) {
        let now = self.began.elapsed();
        while let Some((direction, Parcel { client, payload })) = self.wire.leave(now) {
            let _ = match direction {
                Direction::Up => match self.clients.get(&client) {
                    Some(client) => client.socket.try_send(&payload),
                    None => continue,
                },
                Direction::Down => self.socket.try_send_to(&payload, client),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::link::{Link, Verdict};
    use crate::seed;

    const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
    /// So few that they fit into a socket's buffer, whoever is slow.
    const PACKETS: u16 = 200;

    async fn socket() -> UdpSocket {
        UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.unwrap()
    }

    /// The limit only turns a hang into a failure.
    async fn receive(socket: &UdpSocket) -> (u16, SocketAddr) {
        let mut bytes = [0; 2];
        let got = timeout(Duration::from_secs(60), socket.recv_from(&mut bytes));
        let (length, from) = got.await.expect("it comes").unwrap();
        assert_eq!(length, 2);
        (u16::from_be_bytes(bytes), from)
    }

    /// Which packets a link with this seed lets through.
    fn through(config: &LinkConfig, seed: u64, label: &str, packets: &[u16]) -> Vec<u16> {
        let mut link = Link::with_rng(config.clone(), seed::rng(seed, label));
        let survives = |_: &u16| {
            let mut verdicts = link.transmit(30, Duration::ZERO);
            verdicts.any(|verdict| matches!(verdict, Verdict::Deliver { .. }))
        };
        packets.iter().copied().filter(survives).collect()
    }

    #[tokio::test]
    async fn real_packets_meet_what_the_model_says() {
        let (client, target) = (socket().await, socket().await);
        let config = LinkConfig::perfect()
            .loss(0.3)
            .delay(Duration::from_millis(5));
        let to = target.local_addr().unwrap();
        let listen = SocketAddr::from(LOOPBACK);
        let relay = Relay::start(listen, to, config.clone(), config.clone(), 11)
            .await
            .unwrap();

        let all: Vec<u16> = (0..PACKETS).collect();
        let up = through(&config, 11, "up", &all);
        for n in &all {
            client
                .send_to(&n.to_be_bytes(), relay.local_addr())
                .await
                .unwrap();
        }
        for n in &up {
            let (got, from) = receive(&target).await;
            assert_eq!(got, *n);
            target.send_to(&got.to_be_bytes(), from).await.unwrap();
        }
        let down = through(&config, 11, "down", &up);
        for n in &down {
            assert_eq!(receive(&client).await, (*n, relay.local_addr()));
        }
        let [sent, back] = relay.counts().await;
        let counted = |counts: WireCounts| (counts.entered, counts.left, counts.lost);
        let expected = |entered: &[u16], left: &[u16]| {
            let (entered, left) = (entered.len() as u64, left.len() as u64);
            (entered, left, entered - left)
        };
        assert_eq!(counted(sent), expected(&all, &up));
        assert_eq!(counted(back), expected(&up, &down));
        assert!(down.len() < up.len() && up.len() < all.len());
    }

    #[tokio::test]
    async fn clients_are_told_apart_and_come_from_elsewhere_after_a_rebinding() {
        let target = socket().await;
        let to = target.local_addr().unwrap();
        let perfect = LinkConfig::perfect;
        let listen = SocketAddr::from(LOOPBACK);
        let relay = Relay::start(listen, to, perfect(), perfect(), 1)
            .await
            .unwrap();
        let clients = [socket().await, socket().await];
        let mut sources = BTreeSet::new();
        for round in 0..2_u16 {
            for (n, client) in (round * 2..).zip(&clients) {
                client
                    .send_to(&n.to_be_bytes(), relay.local_addr())
                    .await
                    .unwrap();
                let (got, from) = receive(&target).await;
                assert_eq!(got, n);
                assert!(sources.insert(from), "a source of its own, and a new one");
                target.send_to(&n.to_be_bytes(), from).await.unwrap();
                assert_eq!(receive(client).await.0, n);
            }
            relay.rebind().await.unwrap();
        }
    }

    #[tokio::test]
    async fn links_can_be_changed() {
        let (client, target) = (socket().await, socket().await);
        let to = target.local_addr().unwrap();
        let (dark, perfect) = (LinkConfig::perfect().loss(1.0), LinkConfig::perfect());
        let listen = SocketAddr::from(LOOPBACK);
        let relay = Relay::start(listen, to, dark.clone(), dark, 1)
            .await
            .unwrap();
        client.send_to(&[0, 1], relay.local_addr()).await.unwrap();
        while relay.counts().await[0].lost < 1 {
            tokio::task::yield_now().await;
        }
        relay.set_links(perfect.clone(), perfect);
        client.send_to(&[0, 2], relay.local_addr()).await.unwrap();
        assert_eq!(receive(&target).await.0, 2);
    }
}
