//! Images of one static program each, as `FROM scratch` with a `COPY` and an `ENTRYPOINT` makes them.

use std::{
    fs,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::{folder::Folder, parts::leasehold, process::run};

/// As the manifests name it, in the words of containerd.
const LEASEHOLD: &str = "docker.io/library/leasehold";
/// The release that the manifests name.
const RELEASE: &str = "0.1.0";

/// What holds a pod's namespaces, and what runs in it: waits for its end, or for so many seconds as its argument says.
pub(super) const PAUSE: &str = "leasehold.test/pause:1";

const PAUSE_SOURCE: &str = "
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
int main(int count, char **words) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  if (count > 1) return sleep(atoi(words[1]));
  for (;;) pause();
}
";

/// Archives for `ctr images import`, made once.
pub(super) fn archives() -> &'static [PathBuf; 2] {
    static MADE: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
        let folder = folder_of("pause");
        let source = folder.join("pause.c");
        fs::write(&source, PAUSE_SOURCE).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-static", "-Os", "-o"]).arg(folder.join("pause")).arg(source);
        run(&mut gcc, b"").success();
        [archive(&folder, "pause", PAUSE), release(RELEASE)]
    });
    &MADE
}

/// An archive of what is to count as this release: another program from byte to byte, and the same in all it does.
pub(super) fn release(version: &str) -> PathBuf {
    let folder = folder_of(version);
    // Nobody there reads what a debug build carries, and each node stores it.
    run(Command::new("strip").arg("-o").arg(program(version)).arg(leasehold()), b"").success();
    OpenOptions::new().append(true).open(program(version)).unwrap().write_all(version.as_bytes()).unwrap();
    archive(&folder, "leasehold", &format!("{LEASEHOLD}:{version}"))
}

/// The program of a release that was made.
pub(super) fn program(version: &str) -> PathBuf {
    folder_of(version).join("leasehold")
}

fn folder_of(image: &str) -> PathBuf {
    static IMAGES: LazyLock<Folder> = LazyLock::new(Folder::new);
    let folder = IMAGES.path().join(image);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The program as the image's only layer, in the format of `docker save`.
fn archive(folder: &Path, program: &str, reference: &str) -> PathBuf {
    let tar = |name: &str, files: &[&str]| {
        let mut tar = Command::new("tar");
        tar.current_dir(folder).args(["--create", "--owner=0", "--group=0", "--file", name]).args(files);
        run(&mut tar, b"").success();
    };
    tar("layer.tar", &[program]);
    let digest = Sha256::digest(fs::read(folder.join("layer.tar")).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Entrypoint": [format!("/{program}")] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"] }]);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    tar(&format!("{program}.tar"), &["config.json", "manifest.json", "layer.tar"]);
    folder.join(format!("{program}.tar"))
}
