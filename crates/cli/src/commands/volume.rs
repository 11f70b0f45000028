//! `quorate volume`.

pub mod control;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use quorate_router::config::{Config, Location};
use serde_json::{Value, json};

use crate::args::{RouterConfig, Volume};
use crate::{commands, words};
use control::{Order, order};

/// How often progress is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

pub fn run(args: &Volume) -> Result<()> {
    let RouterConfig { config } = match args {
        Volume::List { router, .. }
        | Volume::Add { router, .. }
        | Volume::Drain { router, .. }
        | Volume::Remove { router, .. }
        | Volume::Balance { router, .. } => router,
    };
    let socket = Config::load(config)?.socket();
    commands::runtime()?.block_on(carry_out(args, &socket))
}

async fn carry_out(args: &Volume, socket: &Path) -> Result<()> {
    match args {
        Volume::List {
            json, prometheus, ..
        } => {
            let all = order(socket, &Order::List {}).await?;
            match (json, prometheus) {
                (true, _) => tell!("{all}"),
                (_, true) => words::put(&prometheus_text(&all)),
                _ => words::put(&table(&all)),
            }
            Ok(())
        }
        Volume::Add { url, detach, .. } => {
            let url = located(url, &std::env::current_dir()?)?;
            let added = order(socket, &Order::Add { url: url.clone() }).await?;
            say!("{url} is volume {}", added["volume"]);
            if let Some(why) = stays_empty(&order(socket, &Order::List {}).await?) {
                say!("{why}");
            }
            follow(socket, *detach).await
        }
        Volume::Drain {
            volume,
            stop,
            detach,
            ..
        } => {
            let (volume, stop) = (*volume, *stop);
            order(socket, &Order::Drain { volume, stop }).await?;
            follow(socket, *detach || stop).await
        }
        Volume::Remove { volume, .. } => {
            let volume = *volume;
            order(socket, &Order::Remove { volume }).await?;
            say!(
                "volume {volume} is no part of the set any more: take it out of the configuration"
            );
            Ok(())
        }
        Volume::Balance { detach, .. } => {
            order(socket, &Order::Balance {}).await?;
            follow(socket, *detach).await
        }
    }
}

/// A volume as the router can find it, which works in another directory.
fn located(url: &str, here: &Path) -> Result<String> {
    let location = Location::parse_beside(url, here).map_err(Error::msg)?;
    Ok(location.url)
}

/// Why a new volume gets nothing, if that is so.
fn stays_empty(all: &Value) -> Option<String> {
    let buckets = all["buckets"].as_u64()? as usize;
    let serving = volumes(all).filter(|volume| volume["state"] == "serving");
    (serving.count() > buckets).then(|| {
        format!(
            "it stays empty for now: there are only {buckets} buckets, for good. What is drained goes there"
        )
    })
}

/// Tells how far moves are until there are none.
async fn follow(socket: &Path, detach: bool) -> Result<()> {
    let mut told = String::new();
    loop {
        let all = order(socket, &Order::List {})
            .await
            .context("asking how far it is")?;
        let left = all["to_move"].as_u64().unwrap_or(0);
        if left == 0 && all["moving"].is_null() {
            say!("nothing is left to move");
            return Ok(());
        }
        let mut line = format!("{left} buckets to move");
        if let Value::Object(moving) = &all["moving"] {
            let get = |name: &str| moving.get(name).cloned().unwrap_or_default();
            let _ = write!(
                line,
                "; now {} from volume {} to {}: {} objects, {} bytes",
                get("bucket"),
                get("from"),
                get("to"),
                get("objects"),
                get("bytes")
            );
        }
        if let Value::String(trouble) = &all["trouble"] {
            let _ = write!(line, "; tried again: {trouble}");
        }
        if line != told {
            say!("{line}");
            told = line;
        }
        if detach {
            say!("this goes on in the background: see `quorate volume list`");
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn volumes(all: &Value) -> impl Iterator<Item = &Value> {
    all["volumes"].as_array().into_iter().flatten()
}

/// For people.
fn table(all: &Value) -> String {
    let mut out =
        String::from("VOLUME  STATE     BUCKETS  FREE GIB  CALLS       P50 US  P99 US  WHERE\n");
    for volume in volumes(all) {
        let number = |name: &str| volume[name].as_u64().unwrap_or(0);
        let text = |name: &str| volume[name].as_str().unwrap_or("").to_string();
        let away = match volume["connected"].as_bool() {
            Some(true) => "",
            _ => "  (no connection)",
        };
        let _ = writeln!(
            out,
            "{:<6}  {:<8}  {:<7}  {:<8}  {:<10}  {:<6}  {:<6}  {}{away}",
            number("number"),
            text("state"),
            number("buckets"),
            number("free_bytes") >> 30,
            number("calls"),
            number("p50_us"),
            number("p99_us"),
            text("url"),
        );
    }
    let left = all["to_move"].as_u64().unwrap_or(0);
    if left > 0 {
        let _ = writeln!(out, "{left} buckets to move");
    }
    if let Value::String(trouble) = &all["trouble"] {
        let _ = writeln!(
            out,
            "the last move did not work and is tried again: {trouble}"
        );
    }
    out
}

/// For Prometheus.
fn prometheus_text(all: &Value) -> String {
    let mut out = String::new();
    let figures = [
        (
            "buckets",
            "buckets",
            "gauge",
            "How many buckets a volume has",
        ),
        (
            "free_bytes",
            "free_bytes",
            "gauge",
            "Bytes that are free, as the server said last",
        ),
        (
            "connected",
            "connected",
            "gauge",
            "Whether there is a connection to the server",
        ),
        (
            "calls_total",
            "calls",
            "counter",
            "Calls that were sent to the server",
        ),
        (
            "unanswered_total",
            "unanswered",
            "counter",
            "Calls that got no answer",
        ),
        (
            "p50_microseconds",
            "p50_us",
            "gauge",
            "How long half of the calls took at most",
        ),
        (
            "p99_microseconds",
            "p99_us",
            "gauge",
            "How long 99 of a hundred calls took at most",
        ),
    ];
    for (name, field, kind, help) in figures {
        let _ = writeln!(out, "# HELP quorate_volume_{name} {help}");
        let _ = writeln!(out, "# TYPE quorate_volume_{name} {kind}");
        for volume in volumes(all) {
            let value = match &volume[field] {
                Value::Bool(yes) => json!(u8::from(*yes)),
                value => value.clone(),
            };
            let _ = writeln!(
                out,
                "quorate_volume_{name}{{volume=\"{}\"}} {value}",
                volume["number"]
            );
        }
    }
    for (name, field, kind, help) in [
        (
            "to_move",
            "to_move",
            "gauge",
            "How many buckets have to move yet",
        ),
        (
            "moved_total",
            "moved",
            "counter",
            "How many have moved since the router started",
        ),
    ] {
        let _ = writeln!(out, "# HELP quorate_buckets_{name} {help}");
        let _ = writeln!(out, "# TYPE quorate_buckets_{name} {kind}");
        let _ = writeln!(out, "quorate_buckets_{name} {}", all[field]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The router takes it as it is sent, wherever it works itself.
    #[test]
    fn group_files_are_found_from_where_the_operator_is() {
        let here = Path::new("/here");
        for (said, sent) in [
            ("b/group.toml", "/here/b/group.toml?key=/here/b/client.key"),
            ("/b/g.toml?key=k", "/b/g.toml?key=/here/k"),
            ("nfs://a/x", "nfs://a/x"),
        ] {
            let url = located(said, here).unwrap();
            assert_eq!(url, sent);
            let taken = Location::parse(&url).unwrap();
            assert_eq!(taken.is_group(), said.contains(".toml"), "{taken:?}");
        }
        let error = located("b/group", here).unwrap_err();
        assert!(error.to_string().contains("*.toml"), "{error}");
    }

    #[test]
    fn who_adds_more_volumes_than_there_are_buckets_is_told() {
        let all = |states: &[&str]| {
            let volumes: Vec<_> = states.iter().map(|state| json!({"state": state})).collect();
            json!({"buckets": 2, "volumes": volumes})
        };
        assert_eq!(stays_empty(&all(&["serving", "serving"])), None);
        assert_eq!(stays_empty(&all(&["serving", "draining", "serving"])), None);
        let told = stays_empty(&all(&["serving", "serving", "serving"])).unwrap();
        assert!(told.contains("only 2 buckets"), "{told}");
    }

    #[test]
    fn volumes_are_shown_to_people_and_to_prometheus() {
        let all = json!({
            "volumes": [{"number": 3, "url": "nfs://a/x", "state": "draining", "buckets": 7, "free_bytes": 5u64 << 30,
                "connected": false, "calls": 11, "unanswered": 1, "p50_us": 64, "p99_us": 512}],
            "to_move": 7, "moved": 2, "moving": null, "trouble": "why",
        });
        let text = table(&all);
        for part in [
            "3 ",
            "draining",
            "nfs://a/x  (no connection)",
            "7 buckets to move",
            "why",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = prometheus_text(&all);
        for line in [
            "quorate_volume_connected{volume=\"3\"} 0\n",
            "quorate_volume_p99_microseconds{volume=\"3\"} 512\n",
            "quorate_buckets_to_move 7\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
