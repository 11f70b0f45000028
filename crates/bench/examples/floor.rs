//! What an echo between two processes over loopback costs, without encryption or protocol: the floor under an operation's messages.
//! `cargo run --release -p quorate-bench --example floor`, about half a minute.
//!
//! The server and the clients are a process each, as a replica and the benchmark's clients are. Each way is measured in turns, a second at a
//! time, and the medians of three rounds are shown.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_bench::cpu;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(125);
const MEASURED: Duration = Duration::from_secs(1);

/// How bytes travel, between how many clients and the server.
#[derive(Clone, Copy)]
enum Way {
    Udp,
    Tcp,
    /// In one thread of tokio on each side.
    Tokio(usize),
}

impl Way {
    const ALL: [Way; 4] = [Way::Udp, Way::Tcp, Way::Tokio(1), Way::Tokio(64)];

    fn name(self) -> String {
        match self {
            Way::Udp => "UDP, 1 client".into(),
            Way::Tcp => "TCP, 1 client".into(),
            Way::Tokio(1) => "TCP by tokio, 1 client".into(),
            Way::Tokio(clients) => format!("TCP by tokio, {clients} clients"),
        }
    }

    fn of_server(self) -> &'static str {
        match self {
            Way::Udp => "udp",
            Way::Tcp => "tcp",
            Way::Tokio(_) => "tokio",
        }
    }
}

/// In microseconds.
#[derive(Clone, Copy)]
struct Figures {
    round_trip: f64,
    server: f64,
    clients: f64,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, way, bytes] = &args[..]
        && serve == "serve"
    {
        return self::serve(way, bytes.parse()?);
    }
    println!("| | bytes | round trip, p50 | server's CPU | clients' CPU |");
    println!("|---|---|---|---|---|");
    for bytes in [100, 4096] {
        let mut rounds = vec![Vec::new(); Way::ALL.len()];
        for _ in 0..ROUNDS {
            for (way, rounds) in Way::ALL.into_iter().zip(&mut rounds) {
                rounds.push(measure(way, bytes)?);
            }
        }
        for (way, rounds) in Way::ALL.into_iter().zip(rounds) {
            let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
            println!(
                "| {} | {bytes} | {:.1} us | {:.1} us | {:.1} us |",
                way.name(),
                of(|f| f.round_trip),
                of(|f| f.server),
                of(|f| f.clients)
            );
        }
    }
    Ok(())
}

#[allow(clippy::disallowed_methods)] // Measuring is what it is for.
fn clock() -> Instant {
    Instant::now()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// A process that echoes until its input ends, and its port.
fn server(way: Way, bytes: usize) -> Result<(Child, u16)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["serve", way.of_server(), &bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut port = [0; 2];
    let said = child
        .stdout
        .as_mut()
        .context("no output")?
        .read_exact(&mut port);
    said.context("the server has not begun")?;
    Ok((child, u16::from_le_bytes(port)))
}

fn measure(way: Way, bytes: usize) -> Result<Figures> {
    let (mut child, port) = server(way, bytes)?;
    let pid = child.id();
    let mut times = Vec::new();
    let mut used = (0.0, 0.0);
    let mut begin = None;
    let started = clock();
    // Whether to go on; called with the time of each echo.
    let mut note = |took: Duration| -> Result<bool> {
        if begin.is_none() && started.elapsed() >= WARM_UP {
            used = (cpu::seconds(pid)?, cpu::seconds(std::process::id())?);
            begin = Some(clock());
            return Ok(true);
        }
        let Some(begin) = begin else {
            return Ok(true);
        };
        times.push(took.as_secs_f64() * 1e6);
        Ok(begin.elapsed() < MEASURED)
    };
    match way {
        Way::Udp => by_udp(port, bytes, &mut note)?,
        Way::Tcp => by_tcp(port, bytes, &mut note)?,
        Way::Tokio(clients) => by_tokio(port, bytes, clients, &mut note)?,
    }
    let [server, clients] = [(pid, used.0), (std::process::id(), used.1)]
        .map(|(pid, before)| Ok::<f64, anyhow::Error>(cpu::seconds(pid)? - before));
    let (server, clients) = (server?, clients?);
    drop(child.stdin.take());
    child.wait()?;
    let count = times.len() as f64;
    Ok(Figures {
        round_trip: median(times),
        server: server * 1e6 / count,
        clients: clients * 1e6 / count,
    })
}

type Note<'a> = &'a mut dyn FnMut(Duration) -> Result<bool>;

fn by_udp(port: u16, bytes: usize, note: Note<'_>) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut buffer = vec![0; bytes];
    loop {
        let asked = clock();
        socket.send(&buffer)?;
        socket.recv(&mut buffer)?;
        if !note(asked.elapsed())? {
            return Ok(());
        }
    }
}

fn by_tcp(port: u16, bytes: usize, note: Note<'_>) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; bytes];
    loop {
        let asked = clock();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        if !note(asked.elapsed())? {
            return Ok(());
        }
    }
}

fn by_tokio(port: u16, bytes: usize, clients: usize, note: Note<'_>) -> Result<()> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..clients {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; bytes];
                loop {
                    let asked = clock();
                    stream.write_all(&buffer).await?;
                    stream.read_exact(&mut buffer).await?;
                    if tell.send(asked.elapsed()).is_err() {
                        return io::Result::Ok(());
                    }
                }
            });
        }
        while let Some(took) = told.recv().await {
            if !note(took)? {
                break;
            }
        }
        Ok(())
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Echoes until standard input ends.
fn serve(way: &str, bytes: usize) -> Result<()> {
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let tell = |port: u16| -> io::Result<()> {
        let mut out = io::stdout();
        out.write_all(&port.to_le_bytes())?;
        out.flush()
    };
    let mut buffer = vec![0; bytes];
    match way {
        "udp" => {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            tell(socket.local_addr()?.port())?;
            loop {
                let (length, from) = socket.recv_from(&mut buffer)?;
                socket.send_to(&buffer[..length], from)?;
            }
        }
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            tell(listener.local_addr()?.port())?;
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            while stream.read_exact(&mut buffer).is_ok() {
                stream.write_all(&buffer)?;
            }
            Ok(())
        }
        "tokio" => runtime()?.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            tell(listener.local_addr()?.port())?;
            loop {
                let (mut stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(async move {
                    let mut buffer = vec![0; bytes];
                    loop {
                        stream.read_exact(&mut buffer).await?;
                        stream.write_all(&buffer).await?;
                    }
                    #[expect(unreachable_code)]
                    io::Result::Ok(())
                });
            }
        }),
        _ => bail!("there is no way {way:?}"),
    }
}
