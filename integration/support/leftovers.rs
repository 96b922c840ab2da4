//! What a run leaves behind: whoever outlives it takes that away.

use std::process::{Child, Command, Stdio};

/// Nobody tells it when to begin: its standard input ends when the run does, in whatever way. Processes of the run may take
/// a moment to end, and cgroups and folders of theirs until then.
const SCRIPT: &str = r#"
run=$1
cat >/dev/null
for turn in $(seq 100); do
  for space in /run/netns/leasehold-"$run"-*; do
    [ ! -e "$space" ] || ip netns delete "${space##*/}"
  done
  find /sys/fs/cgroup -depth -type d -path "*/leasehold-test-$run-*" -exec rmdir {} +
  [ -n "${LEASEHOLD_KEEP-}" ] || rm -rf "${TMPDIR:-/tmp}"/leasehold-test-"$run"-* /dev/shm/leasehold-test-"$run"-*
  left=$(find /run/netns /sys/fs/cgroup "${TMPDIR:-/tmp}" /dev/shm -maxdepth 2 -name "leasehold-$run-*" \
    -o -maxdepth 2 -name "leasehold-test-$run-*")
  [ -n "$left" ] || exit 0
  sleep 0.1
done 2>/dev/null
"#;

/// Starts what waits for the end of a run, and then takes its namespaces, cgroups and folders away. It has a session of its
/// own, since Ctrl-C ends all of ours, and our standard output: who reads that to its end waits for it, too.
pub(crate) fn follow(run: u32) -> Child {
    let mut shell = Command::new("/usr/bin/setsid");
    shell.args(["/bin/sh", "-c", SCRIPT, "sh", &run.to_string()]);
    shell.stdin(Stdio::piped()).spawn().unwrap()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::support::{
        parts::{Part, require},
        process::run,
    };

    #[test]
    fn what_a_run_leaves_behind_goes_when_it_ends() {
        require!(Part::Root);
        const RUN: u32 = 1 << 23; // no process has such an ID
        let mut follower = follow(RUN);
        let name = format!("leasehold-{RUN}-0-node");
        run(Command::new("/sbin/ip").args(["netns", "add", &name]), b"").success();
        let folder = std::env::temp_dir().join(format!("leasehold-test-{RUN}-0"));
        fs::create_dir_all(folder.join("disk/etc")).unwrap();
        drop(follower.stdin.take());
        assert!(follower.wait().unwrap().success());
        assert!(!Path::new("/run/netns").join(name).exists());
        assert!(!folder.exists());
    }
}
