//! A way out of a namespace to one port of this machine, at the same address: a node's programs find an etcd where its
//! settings say that it is.

use std::{
    fs::File,
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

use nix::sched::{CloneFlags, setns};

use super::lan::Namespace;

/// Open until it is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
}

impl Door {
    /// `address` is `127.0.0.1:port`, in there and out here.
    pub(crate) fn to(namespace: &Namespace, address: &str) -> Self {
        let listener = listen_inside(namespace, address);
        let accepting = listener.try_clone().unwrap();
        let target = address.to_owned();
        // A thread's namespace is that of the thread that started it: this one and its children are out here.
        thread::spawn(move || {
            for inside in accepting.incoming() {
                let (Ok(inside), Ok(outside)) = (inside, TcpStream::connect(&target)) else { return };
                pass(&inside, &outside);
                pass(&outside, &inside);
            }
        });
        Self { listener }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both); // it ends the accepting
    }
}

fn listen_inside(namespace: &Namespace, address: &str) -> TcpListener {
    let file = File::open(namespace.path()).unwrap();
    let address = address.to_owned();
    let (send, listener) = mpsc::channel();
    thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        send.send(TcpListener::bind(address).unwrap()).unwrap();
    });
    listener.recv().unwrap()
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to); // whichever end breaks, both are over
        let _ = to.shutdown(Shutdown::Write);
    });
}
