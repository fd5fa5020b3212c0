//! The handle through which a test builds the simulated internet, changes it while it runs, and
//! looks at what happened.
//!
//! All handles share one [`World`](crate::world::World) behind a lock. Its clock is tokio's, so it
//! stands still and jumps with a paused runtime. One task per network, started with the first
//! socket, sleeps until the next entry of the agenda is due, lets it happen and wakes the sockets
//! that can read; it ends when the last handle and socket are gone.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{
    link::LinkConfig,
    nat::NatConfig,
    seed::derive_seed,
    socket::{SimSocket, SocketConfig},
    trace::{Trace, TraceMode},
    world::{BindError, Direction, HostId, HostStats, NatId, World},
};

/// A simulated internet. Clones are handles to the same one.
///
/// Methods that take a [`HostId`] panic if it is not a host of this network or no longer one, and
/// those that take an address panic if it is malformed: both are mistakes in the test.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    origin: Instant,
    /// Tells the driver that something happens earlier than it sleeps for.
    sooner: Arc<Notify>,
}

struct State {
    world: World,
    /// What the driver sleeps for.
    armed: Option<Duration>,
    driver: Option<AbortHandle>,
}

impl Network {
    /// A network without hosts whose every random choice follows from `seed`. Its time starts now,
    /// by the clock of the current tokio runtime. Keeps a full trace.
    pub fn new(seed: u64) -> Self {
        Self::with_trace(seed, TraceMode::Full)
    }

    /// As [`Network::new`], with a choice of what the trace keeps.
    pub fn with_trace(seed: u64, mode: TraceMode) -> Self {
        let state = State {
            world: World::new(seed, mode),
            armed: None,
            driver: None,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                origin: Instant::now(),
                sooner: Arc::default(),
            }),
        }
    }

    /// Simulated time since the network was made.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// The seed the network was made with.
    pub fn seed(&self) -> u64 {
        self.change(|world, _| world.seed())
    }

    /// A seed for something else in the same simulation, such as an endpoint:
    /// [`derive_seed`] of the network's seed.
    pub fn derive_seed(&self, label: &str) -> [u8; 32] {
        derive_seed(self.seed(), label)
    }

    /// Adds a host with a public address, connected by perfect links.
    pub fn host(&self, name: &str, address: &str) -> HostId {
        self.change(|world, _| world.add_host(name, parse(address), None))
    }

    /// Adds a NAT with a public address and nobody behind it yet.
    pub fn nat(&self, config: NatConfig, external: &str) -> NatId {
        self.change(|world, _| world.add_nat(config, parse(external)))
    }

    /// Adds a host behind a NAT. Hosts behind the same NAT reach each other directly; the same
    /// private address may be in use behind several.
    pub fn host_behind(&self, name: &str, address: &str, nat: NatId) -> HostId {
        self.change(|world, _| world.add_host(name, parse(address), Some(nat)))
    }

    /// Adds a host behind a NAT of its own.
    pub fn host_behind_nat(
        &self,
        name: &str,
        address: &str,
        config: NatConfig,
        external: &str,
    ) -> HostId {
        let nat = self.nat(config, external);
        self.host_behind(name, address, nat)
    }

    /// Gives a host one more address, for instance one of the other family.
    pub fn add_address(&self, host: HostId, address: &str) {
        self.change(|world, _| world.add_address(host, parse(address)));
    }

    /// Removes a host. Its open sockets fail from now on, packets on their way to it are dropped,
    /// and its NAT goes with it if nobody else is behind it. Removing it again does nothing.
    pub fn remove_host(&self, host: HostId) {
        self.change(|world, _| world.remove_host(host));
    }

    /// The name the host was given.
    pub fn name(&self, host: HostId) -> String {
        self.change(|world, _| world.name(host).to_owned())
    }

    /// Changes one of a host's links, for packets that enter it from now on.
    pub fn set_link(&self, host: HostId, direction: Direction, config: LinkConfig) {
        self.change(|world, _| world.link_mut(host, direction).reconfigure(config));
    }

    /// Changes both links of a host.
    pub fn set_links(&self, host: HostId, config: &LinkConfig) {
        self.set_link(host, Direction::Up, config.clone());
        self.set_link(host, Direction::Down, config.clone());
    }

    /// Restarts the NAT a host is behind: it forgets its mappings, and packets out get new ports.
    pub fn rebind_nat(&self, host: HostId) {
        self.change(|world, _| world.nat_mut(host).rebind());
    }

    /// Restarts the NAT a host is behind and gives it another public address.
    pub fn rebind_nat_to(&self, host: HostId, external: &str) {
        self.change(|world, _| world.move_nat(host, parse(external)));
    }

    /// Mappings that the NAT of a host holds.
    pub fn nat_mappings(&self, host: HostId) -> usize {
        self.change(|world, _| world.nat_mut(host).mappings())
    }

    /// Cuts a host off for a while: whatever enters or leaves its links until then is lost, packets
    /// already in flight included if they would arrive before the end.
    pub fn blackout(&self, host: HostId, duration: Duration) {
        self.change(|world, now| world.unplug(host, now.saturating_add(duration)));
    }

    /// Cuts a host off until [`Network::heal`].
    pub fn cut(&self, host: HostId) {
        self.change(|world, _| world.unplug(host, Duration::MAX));
    }

    /// Ends a cut or a blackout.
    pub fn heal(&self, host: HostId) {
        self.change(|world, _| world.unplug(host, Duration::ZERO));
    }

    /// What a host sent, received and lost so far.
    pub fn stats(&self, host: HostId) -> HostStats {
        self.change(|world, _| world.stats(host).clone())
    }

    /// Sockets that are open on a host. A socket closes when its last handle is dropped.
    pub fn open_sockets(&self, host: HostId) -> usize {
        self.change(|world, _| world.open_sockets(host))
    }

    /// Packets that were sent and neither delivered nor dropped yet.
    pub fn in_flight(&self) -> usize {
        self.change(|world, _| world.in_flight())
    }

    /// A copy of the trace so far.
    pub fn trace(&self) -> Trace {
        self.change(|world, _| world.trace.clone())
    }

    /// The trace so far, and an empty one of the same kind in its place.
    pub fn take_trace(&self) -> Trace {
        self.change(|world, _| {
            let empty = Trace::new(world.trace.mode());
            std::mem::replace(&mut world.trace, empty)
        })
    }

    /// Opens a UDP socket at a host's first address. Port 0 means the next free one from 49152 up.
    ///
    /// Fails with [`io::ErrorKind::AddrInUse`] if the port is taken.
    pub fn bind(&self, host: HostId, port: u16) -> io::Result<Arc<SimSocket>> {
        self.open(host, None, port, SocketConfig::default())
    }

    /// Opens a UDP socket at an address of the host, not at its first, or with settings of its own.
    ///
    /// Fails with [`io::ErrorKind::AddrInUse`] if the port is taken, and with
    /// [`io::ErrorKind::AddrNotAvailable`] if the host does not have the address.
    pub fn bind_with(
        &self,
        host: HostId,
        address: SocketAddr,
        config: SocketConfig,
    ) -> io::Result<Arc<SimSocket>> {
        self.open(host, Some(address.ip()), address.port(), config)
    }

    fn open(
        &self,
        host: HostId,
        address: Option<IpAddr>,
        port: u16,
        config: SocketConfig,
    ) -> io::Result<Arc<SimSocket>> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let local = self
            .change(|world, _| world.bind(host, address, port, config.receive_queue_bytes))
            .map_err(|error| io::Error::new(bind_error_kind(error), error))?;
        let mut state = self.shared.lock();
        if state.driver.as_ref().is_none_or(AbortHandle::is_finished) {
            let sooner = self.shared.sooner.clone();
            let driver = runtime.spawn(drive(Arc::downgrade(&self.shared), sooner));
            state.driver = Some(driver.abort_handle());
        }
        drop(state);
        Ok(Arc::new(SimSocket::new(self.clone(), host, local, config)))
    }

    /// Runs `f` on the world as it is now: what is due has happened.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut World, Duration) -> T) -> T {
        self.shared.change(f)
    }

    /// Runs `f` on the world without letting anything happen first. For readers, whose packets are
    /// in their queue already when they are woken.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.shared.lock().world)
    }
}

impl Shared {
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.origin)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, f: impl FnOnce(&mut World, Duration) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        state.world.advance(now);
        let result = f(&mut state.world, now);
        let woken = state.world.take_woken();
        let next = state.world.next_event();
        let sooner = next.is_some_and(|at| state.armed.is_none_or(|armed| at < armed));
        if sooner {
            state.armed = next;
        }
        drop(state);
        // Outside the lock: a waker may run code that comes back here.
        woken.into_iter().for_each(std::task::Waker::wake);
        if sooner {
            self.sooner.notify_one();
        }
        result
    }

    /// Lets happen what is due, and says when to come back.
    fn step(&self) -> Option<Instant> {
        let now = self.now();
        let mut state = self.lock();
        state.world.advance(now);
        let woken = state.world.take_woken();
        state.armed = state.world.next_event();
        let next = state.armed;
        drop(state);
        woken.into_iter().for_each(std::task::Waker::wake);
        next.and_then(|at| self.origin.checked_add(at))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sooner.notify_one();
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// The network's only task. It holds the network weakly, so that it ends with it.
async fn drive(network: Weak<Shared>, sooner: Arc<Notify>) {
    while let Some(shared) = network.upgrade() {
        let next = shared.step();
        drop(shared);
        match next {
            None => sooner.notified().await,
            Some(at) => tokio::select! {
                biased;
                () = sooner.notified() => {}
                () = sleep_until(at) => {}
            },
        }
    }
}

fn bind_error_kind(error: BindError) -> io::ErrorKind {
    match error {
        BindError::InUse | BindError::NoPortLeft => io::ErrorKind::AddrInUse,
        BindError::NotLocal => io::ErrorKind::AddrNotAvailable,
    }
}

fn parse(address: &str) -> IpAddr {
    address
        .parse()
        .unwrap_or_else(|_| panic!("{address:?} is not an IP address"))
}
