//! One connection to one endpoint: HTTP/2 over TCP or TLS, made once, and never again by itself.
//!
//! tonic's own channel would do, but for two things. It connects again unseen; and its layers (a buffer, a balancer, an
//! executor, a client that pools) cost a process that makes three requests more than these cost on the way. So the
//! requests of etcd-client go to h2, on which tonic is built, too.

use std::{
    error::Error,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use etcd_client::Channel;
use h2::{
    RecvStream,
    client::{Builder, SendRequest},
};
use http_body_util::BodyExt;
use hyper::{
    Request, Response, Uri, Version,
    body::{Bytes, Frame},
    http::uri::{Authority, PathAndQuery, Scheme},
};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, pki_types::ServerName};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufWriter},
    net::TcpStream,
    task::yield_now,
};
use tokio_rustls::TlsConnector;
use tonic::{body::Body, codegen::Service};
use tower::util::BoxCloneSyncService;

/// As the server announces it and we ask for it (RFC 7301).
pub(super) const ALPN: &[u8] = b"h2";

/// What a server may send before it must wait for us: an answer, and all answers together. As hyper has them; a page of
/// records is some MB, and 64 KiB at a time, which HTTP/2 begins with, is a round trip each.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;

type AnyError = Box<dyn Error + Send + Sync>;

/// The connection had ended before the request was given to it.
#[derive(Debug, Error)]
#[error("the connection ended")]
pub(super) struct Ended(#[source] h2::Error);

#[derive(Debug, Error)]
#[error("it does not speak HTTP/2 over TLS: is it an etcd?")]
struct NotHttp2;

/// Connects, with TLS if there is a configuration for it; nothing is asked yet.
///
/// # Errors
/// What stopped it; no request was made.
pub(super) async fn connect(uri: &Uri, tls: Option<ClientConfig>) -> Result<Channel, AnyError> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let stream = connector.call(uri.clone()).await?.into_inner();
    match tls {
        None => speak(stream, uri).await,
        // Boxed: who connects without pays for its stack, too, else.
        Some(tls) => Box::pin(speak_tls(stream, uri, tls)).await,
    }
}

async fn speak_tls(stream: TcpStream, uri: &Uri, tls: ClientConfig) -> Result<Channel, AnyError> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned())?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(NotHttp2.into());
    }
    speak(stream, uri).await
}

async fn speak<S>(stream: S, uri: &Uri) -> Result<Channel, AnyError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Greeting, settings and request leave as one: h2 writes each by itself.
    let (requests, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .enable_push(false)
        .handshake(BufWriter::new(stream))
        .await?;
    tokio::spawn(async move {
        let _ = connection.await; // whoever waits for an answer is told
    });
    let connection = Connection {
        requests,
        scheme: uri.scheme().cloned(),
        authority: uri.authority().cloned(),
        used: Arc::default(),
    };
    Ok(Channel::Custom(BoxCloneSyncService::new(connection)))
}

/// What etcd-client sends its requests to. Of unary ones only: a request is taken whole before it leaves.
#[derive(Clone)]
struct Connection {
    requests: SendRequest<Bytes>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    /// It has carried a request.
    used: Arc<AtomicBool>,
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Body>;
    type Error = AnyError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { requests, scheme, authority, used } = self.clone();
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            head.version = Version::HTTP_2;
            let path = head.uri.path_and_query().cloned();
            let mut parts = hyper::http::uri::Parts::default();
            (parts.scheme, parts.authority) = (scheme, authority);
            parts.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
            head.uri = Uri::from_parts(parts)?;
            if used.swap(true, Ordering::Relaxed) {
                // Between two requests nobody may have looked at the connection: first the runtime at the socket, then
                // h2 at what came. A request that meets an end that is known proves that nothing was sent. So it is on
                // one thread, which all our runtimes are; on more only the certainty would be gone.
                yield_now().await;
                yield_now().await;
            }
            let mut requests = requests.ready().await.map_err(Ended)?;
            let (answer, mut stream) =
                requests.send_request(Request::from_parts(head, ()), false).map_err(Ended)?;
            stream.send_data(body, true)?;
            Ok(answer.await?.map(|stream| Body::new(Answer(stream))))
        })
    }
}

/// The body of an answer, and its trailers, in which gRPC says how it went.
struct Answer(RecvStream);

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut self.0;
        if let Some(data) = ready!(stream.poll_data(context)).transpose()? {
            stream.flow_control().release_capacity(data.len())?;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(stream.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
