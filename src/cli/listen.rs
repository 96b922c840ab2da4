//! The port of `reap --watch`: `/metrics`, `/healthz`, `/readyz`. It answers what anybody may know, and takes nothing.
//!
//! A stranger can cost it little: a head of 8 KiB within five seconds, one request a connection, ten seconds a connection,
//! and of those the oldest goes when there are too many.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::reaper::Metrics;

/// The least that hyper takes; Prometheus and kubelets send some hundred bytes.
const MOST_HEAD: usize = 8192;
const MOST_HEADERS: usize = 64;
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// A slow reader of a large answer has this long.
const WITHIN: Duration = Duration::from_secs(10);
/// Scrapers and probes are a handful, and done in milliseconds: the oldest of many is none of them.
const MOST_CONNECTIONS: usize = 64;

/// Where to listen: the first of these that there is.
#[derive(Clone, Debug)]
pub(crate) struct Listen(Vec<SocketAddr>);

/// `ADDRESS:PORT`, or `:PORT`: on all addresses, of both families where the host has both.
pub(crate) fn parse(text: &str) -> Result<Listen, String> {
    let wrong = "must be ADDRESS:PORT, [ADDRESS]:PORT or :PORT, such as :9402";
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| wrong)?;
        return Ok(Listen(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]));
    }
    Ok(Listen(vec![text.parse().map_err(|_| wrong)?]))
}

/// Takes the port.
pub(super) async fn bind(listen: &Listen) -> io::Result<TcpListener> {
    TcpListener::bind(listen.0.as_slice()).await
}

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, metrics: Arc<Metrics>, interval: Duration) -> Infallible {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No file handle is left, or the peer is gone already: the next one may be better.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let metrics = Arc::clone(&metrics);
        open.push_back(tokio::spawn(connection(stream, metrics, interval)).abort_handle());
    }
}

async fn connection(stream: TcpStream, metrics: Arc<Metrics>, interval: Duration) {
    let answers = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &metrics, interval);
        async { Ok::<_, Infallible>(answer) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answers);
    // Whoever is cut off or talks nonsense knows it himself.
    let _ = timeout(WITHIN, serving).await;
}

fn answer(method: &Method, path: &str, metrics: &Metrics, interval: Duration) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
    let health = |state: Result<(), String>| match state {
        Ok(()) => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    };
    let known = matches!(path, "/metrics" | "/healthz" | "/readyz");
    let (status, kind, body) = match path {
        _ if known && !matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET and HEAD only\n".to_owned())
        }
        "/metrics" => (StatusCode::OK, METRICS, metrics.text()),
        "/healthz" => health(metrics.alive(interval)),
        "/readyz" => health(metrics.ready(interval)),
        _ => (StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz, /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn case(text: &str, expected: Option<&[&str]>) {
        let found = parse(text).ok().map(|all| all.0.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(found, expected.map(|all| all.iter().map(ToString::to_string).collect()), "{text}");
    }

    #[test]
    fn an_address_may_be_left_out() {
        case(":9402", Some(&["[::]:9402", "0.0.0.0:9402"]));
        case("127.0.0.1:0", Some(&["127.0.0.1:0"]));
        case("[fd00::1]:80", Some(&["[fd00::1]:80"]));
        for text in ["", "9402", ":", ":x", ":65536", "fd00::1", "localhost:80", "127.0.0.1"] {
            case(text, None);
        }
    }
}
