//! The command line: names, flags, help. Nothing is decided here.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::listen::{self, Listen};
use crate::domain::{
    addr::parse_address,
    names::{ClusterName, DomainName, IfName, Namespace, NetworkName, NodeName, PoolName, Uid},
    pool::parse_duration,
};

fn name<T, E: std::fmt::Display>(
    parse: impl Fn(String) -> Result<T, E> + Clone + Send + Sync,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| parse(text.to_owned()).map_err(|error| error.to_string())
}

/// Leases addresses to pods from per-service ranges, and gives a pod its old address back.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    about,
    propagate_version = false,
    term_width = 120,
    after_help = "Exit status: 0 done; 1 failed; 2 wrong usage; 3 done, and there is something to look at;\n4 refused, and the hint says what it needs: --force, or which cluster or domain is meant;\n5 what is named is not there: a pool, lease, cluster, domain or network.\n\nCalled by a container runtime (CNI_COMMAND is set) it is a CNI IPAM plugin: `ipam: {\"type\": \"leasehold\"}`."
)]
pub(crate) struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// How data is printed.
    #[arg(short, long, global = true, value_enum, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Only this namespace
    #[arg(short, long, global = true, value_name = "NAMESPACE", value_parser = name(Namespace::new))]
    pub(crate) namespace: Option<Namespace>,
    /// All namespaces (the default)
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Tables without their first line
    #[arg(long, global = true)]
    pub(crate) no_headers: bool,
    /// Only this cluster; for what is made: in this cluster
    #[arg(long, global = true, value_name = "NAME", value_parser = name(ClusterName::new))]
    pub(crate) cluster: Option<ClusterName>,
    /// Only this domain (the space in which an address is unique)
    #[arg(long, global = true, value_name = "NAME", value_parser = name(DomainName::new))]
    pub(crate) domain: Option<DomainName>,
    /// Host file [default: $LEASEHOLD_CONFIG, /etc/cni/net.d/leasehold.d/config.json, /etc/leasehold/config.json]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Store")]
    pub(crate) config: Option<PathBuf>,
    /// Members of the etcd, instead of the host file's
    #[arg(
        long,
        global = true,
        value_name = "URL,…",
        env = "ETCDCTL_ENDPOINTS",
        value_delimiter = ',',
        help_heading = "Store"
    )]
    pub(crate) endpoints: Vec<String>,
    /// CA that signed the members' certificates
    #[arg(long, global = true, value_name = "FILE", env = "ETCDCTL_CACERT", help_heading = "Store")]
    pub(crate) cacert: Option<PathBuf>,
    /// Our certificate
    #[arg(long, global = true, value_name = "FILE", env = "ETCDCTL_CERT", help_heading = "Store")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key
    #[arg(long, global = true, value_name = "FILE", env = "ETCDCTL_KEY", help_heading = "Store")]
    pub(crate) key: Option<PathBuf>,
    /// User and password; give them in ETCDCTL_USER rather than here, where `ps` shows them
    #[arg(
        long,
        global = true,
        value_name = "USER:PASSWORD",
        env = "ETCDCTL_USER",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub(crate) user: Option<String>,
    /// What stands before every key [default: /leasehold]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Store")]
    pub(crate) prefix: Option<String>,
    /// An embedded store in this folder, instead of an etcd
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "endpoints", help_heading = "Store")]
    pub(crate) local: Option<PathBuf>,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// Columns
    Table,
    /// More columns, and the store's revision on stderr
    Wide,
    /// One JSON document with stable fields
    Json,
    /// The same in YAML
    Yaml,
    /// One KIND/NAME a line
    Name,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ranges of addresses, and whom they serve
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Who has which address
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Which pool and address a pod gets, why, and what stands in the way
    #[command(
        after_help = "Examples:\n  leasehold explain shop/db-0\n  leasehold explain shop/web-7d9c4f6b5d-x7k2p --node n31 --network lan100\n\nExit status 3: the pod would get no address."
    )]
    Explain(Explain),
    /// Audits the store: every invariant, every record
    #[command(
        after_help = "Examples:\n  leasehold check\n  leasehold check --repair --dry-run\n  leasehold check --repair\n  leasehold check --against-pods --cluster prod-a\n\n--repair mends what has one right answer: half pairs, stale attachments, the index of pools.\nIt never touches what it cannot read, never decides between two holders of an address, and frees nothing that a\npod may use: a lost lease is written again, and the reaper judges it.\n--against-pods asks the Kubernetes API which addresses pods run with: those without a lease may be given to\nanother pod (`leasehold adopt`).\nExit status 3: something is left to look at."
    )]
    Check(Check),
    /// The clusters that may lease
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Leases nothing new until `thaw`; pods that have an address keep it
    #[command(
        after_help = "Example, before a snapshot of the store is restored:\n  leasehold freeze --reason 'restoring the snapshot of Monday'"
    )]
    Freeze(Freeze),
    /// Ends a freeze, and gives the store a new identity
    #[command(
        after_help = "Run it once every pod that runs has its lease back (`leasehold adopt`): until then the address of a pod\nthat runs could be given to another, and where the Kubernetes API can be asked it warns of those.\n\nExamples:\n  leasehold check --against-pods && leasehold thaw\n  leasehold thaw --dry-run"
    )]
    Thaw(Thaw),
    /// Gives back what dead pods left: one pass, for a CronJob, or a controller
    #[command(
        after_help = "Nothing that lives is given back: every candidate is asked for once more, and doubt keeps. Which row of the\ntable says so stands in the column ROW; the table is in the README.\n\nExamples:\n  leasehold reap --cluster prod-a --dry-run\n  leasehold reap --cluster prod-a --dry-run -o wide        every lease, and why it is kept\n  leasehold reap --cluster prod-a -o json | jq '.items[] | select(.verdict == \"given back\")'\n  leasehold reap --cluster prod-a --watch --listen :9402        a controller; two of them do no harm\n\nWith --watch it goes on whatever fails, says so once a minute, and ends at SIGTERM with 0.\nExit status 1: leases or pods could not be listed, and nothing was given back. 3: a brake stopped the pass, or\npart of it, or a question or a write failed, or half a pair of keys or a record that cannot be read is left for a person, or it\nwas stopped (SIGTERM, SIGINT: what is under way is finished, a second signal does not wait for that and ends it\nwith 1); what and why is on stderr."
    )]
    Reap(Box<Reap>),
    /// Gives pods that run with an address of a pool the lease that the store has lost
    #[command(
        after_help = "After a restore of the store from a snapshot, while it is frozen:\n  leasehold adopt --dry-run\n  leasehold adopt\n  leasehold check --against-pods\n  leasehold thaw\n\nWhat a pod has is in its annotation k8s.v1.cni.cncf.io/network-status, else in its status.podIPs. Where the API does\nnot tell the CNI network, --network does; where it does not tell the address, a file does:\n  leasehold adopt --network lan100\n  echo 'shop/db-0 10.0.0.1 lan100 net1' | leasehold adopt --from -\n\nWhat somebody else has is listed with who and why, and never overwritten. Killed half-way, run it again.\nExit status 3: there are conflicts."
    )]
    Adopt(Adopt),
    /// Replays this node's journal: ends of pods that the store did not take when they came
    #[command(after_help = "Every later call of the plugin on this node does the same by and by.")]
    Flush(Write),
    /// Looks at this node and its store, and says what to do
    #[command(after_help = "Exit status 3: something is to look at.")]
    Doctor,
    /// Puts this program, its host file and its certificates on a node, and keeps them new
    #[command(
        after_help = "What is right is not touched. The order: binary, certificates, host file, and the network of --conflist last.\nEach file is whole at every moment; certificate and key change together.\n\nExamples:\n  leasehold install --cluster prod-a --node n1 --endpoints https://10.0.3.11:2379 --secret ./node-tls\n  leasehold install --cluster prod-a --node n1 --endpoints https://10.0.3.11:2379 --secret ./node-tls --dry-run\n  leasehold install --check --expiry-margin 14d\n  leasehold install --uninstall\n\nIn a DaemonSet (config-examples/kubernetes/installer.yaml), with NODE_NAME, LEASEHOLD_SECRET and LEASEHOLD_HOST_ROOT set:\n  leasehold install --stay --cluster prod-a --endpoints https://10.0.3.11:2379\n  leasehold install --check                                            (its readiness probe)\n\nExit status 3: --check found something, one reason a line. 4: the etcd is an API server's, or pods here have leases."
    )]
    Install(Box<Install>),
    /// Prints the version
    Version,
    /// Prints a completion script
    #[command(after_help = "Example:\n  leasehold completion bash > /etc/bash_completion.d/leasehold")]
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// What every command that writes takes.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Write {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What every list takes.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Go on, and print what changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Ranges of addresses, and whom they serve.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Lists pools, and how many of their addresses are what
    #[command(
        after_help = "SIZE counts usable addresses; FREE those that nobody has, that are past their cool-down, and on which no\nstranger answered. An address counts for the pool that its lease names. DOUBT counts leases that are kept\nbecause nobody knows whether their pods come back.\n\nExamples:\n  leasehold pool list\n  leasehold pool list -o json | jq '.items[] | select(.counts.free == 0) | .name'"
    )]
    List(Watch),
    /// Shows a pool
    #[command(
        after_help = "Change a pool:\n  leasehold pool show shop-db -o yaml > shop-db.yaml\n  $EDITOR shop-db.yaml\n  leasehold pool diff -f shop-db.yaml\n  leasehold pool apply -f shop-db.yaml"
    )]
    Show {
        /// Its name
        #[arg(value_parser = name(PoolName::new))]
        name: PoolName,
    },
    /// Makes a pool from flags
    #[command(
        after_help = "Examples:\n  leasehold pool create shop-db --network lan100 --subnet 10.0.0.0/22 --range 10.0.0.1-10.0.0.10 \\\n    --gateway 10.0.0.254 --default-route --serves shop/db\n  leasehold pool create lan --network lan100 --subnet 10.0.0.0/22 --serves '*/*'"
    )]
    Create(Box<Create>),
    /// Makes pools what the documents say
    #[command(
        after_help = "All documents are checked before the first is written, and all faults are reported at once.\n\nExamples:\n  leasehold pool apply -f pools.yaml\n  leasehold pool apply -f pools/ --prune --dry-run\n  ssh admin cat pools.yaml | leasehold pool apply -f -"
    )]
    Apply(Apply),
    /// Shows what `apply` would change
    #[command(
        after_help = "Example:\n  leasehold pool diff -f pools/ --prune\n\nExit status 3: something would change."
    )]
    Diff(Files),
    /// Deletes pools
    #[command(
        after_help = "A pool with leases is not deleted. With --force it is; its leases stay with their pods, are listed as\noutside, and each pod gets another address at its next start.\n\nExample:\n  leasehold pool delete shop-db"
    )]
    Delete {
        /// Their names
        #[arg(required = true, value_parser = name(PoolName::new))]
        names: Vec<PoolName>,
        /// Also with leases
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
}

/// Documents.
#[derive(Args, Clone, Debug)]
pub(crate) struct Files {
    /// A file of YAML or JSON documents, a folder of *.yaml, *.yml, *.json, or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// Delete pools that no document names
    #[arg(long)]
    pub(crate) prune: bool,
    /// Also pools with leases
    #[arg(long, requires = "prune")]
    pub(crate) force: bool,
}

/// Makes pools what the documents say.
#[derive(Args, Clone, Debug)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Makes a pool from flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct Create {
    /// Its name
    pub(crate) name: String,
    /// CNI networks it is for (repeatable), or '*'
    #[arg(long = "network", required = true, value_name = "NAME")]
    pub(crate) networks: Vec<String>,
    /// A subnet (repeatable: one IPv4 and one IPv6 for dual stack)
    #[arg(long = "subnet", required = true, value_name = "CIDR")]
    pub(crate) subnets: Vec<String>,
    /// Part of a subnet (repeatable) [default: all of it]
    #[arg(long = "range", value_name = "A-B")]
    pub(crate) ranges: Vec<String>,
    /// Gateway of its subnet (repeatable); never leased
    #[arg(long = "gateway", value_name = "ADDRESS")]
    pub(crate) gateways: Vec<String>,
    /// Give pods a default route through the gateway
    #[arg(long, requires = "gateways")]
    pub(crate) default_route: bool,
    /// Address, range A-B or subnet that is not leased (repeatable)
    #[arg(long = "exclude", value_name = "A|A-B|CIDR")]
    pub(crate) excludes: Vec<String>,
    /// A route, to be used by pods (repeatable)
    #[arg(long = "route", value_name = "CIDR[,GATEWAY]")]
    pub(crate) routes: Vec<String>,
    /// Whom it serves (repeatable): NAMESPACE/WORKLOAD, NAMESPACE/* or */*
    #[arg(long = "serves", value_name = "NS/WORKLOAD")]
    pub(crate) serves: Vec<String>,
    /// Only in these clusters (repeatable)
    #[arg(long = "only-cluster", value_name = "NAME")]
    pub(crate) clusters: Vec<String>,
    /// Only on these nodes (repeatable): a pattern, or LABEL=VALUE of the host file
    #[arg(long = "only-node", value_name = "PATTERN")]
    pub(crate) nodes: Vec<String>,
    /// Lower first, between pools that serve a pod equally closely [default: 100]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<u32>,
    /// Name servers (repeatable)
    #[arg(long = "nameserver", value_name = "ADDRESS")]
    pub(crate) nameservers: Vec<String>,
    /// Do pods keep their address: auto, always, never [default: auto]
    #[arg(long, value_name = "RULE")]
    pub(crate) sticky: Option<String>,
    /// When the controller is gone: Delete, Retain [default: Delete]
    #[arg(long, value_name = "RULE")]
    pub(crate) when_deleted: Option<String>,
    /// When it was scaled below the pod: Delete, Retain [default: Retain]
    #[arg(long, value_name = "RULE")]
    pub(crate) when_scaled: Option<String>,
    /// Longest time an address is kept for its pod [default: 0s, no limit]
    #[arg(long, value_name = "DURATION")]
    pub(crate) hold_for: Option<String>,
    /// What is assumed of a node that cannot be asked: free, keep [default: free]
    #[arg(long, value_name = "RULE")]
    pub(crate) node_lost: Option<String>,
    /// How long a released address rests [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) cool_down: Option<String>,
    /// When an address is asked for on the wire: unconfirmed, always, never [default: unconfirmed]
    #[arg(long, value_name = "RULE")]
    pub(crate) probe: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Who has which address.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Lists addresses that somebody has
    #[command(
        after_help = "AGE is how long a lease has been in its state. CLUSTER is shown where the leases are of several clusters, and with\n-o wide. Released and declined addresses are listed if --state asks for them.\n\nExamples:\n  leasehold lease list -n shop\n  leasehold lease list --node n07 --state bound\n  leasehold lease list --workload shop/db -o wide\n  leasehold lease list --state released,declined\n  leasehold lease list -o json | jq -r '.items[] | [.address, .namespace, .pod, .node] | @tsv'"
    )]
    List(LeaseList),
    /// Shows all about an address or a pod
    #[command(after_help = "Examples:\n  leasehold lease show 10.0.0.2\n  leasehold lease show shop/db-1")]
    Show {
        /// An address, or NAMESPACE/POD
        #[arg(value_name = "ADDRESS|NS/POD")]
        target: String,
    },
    /// Gives an address to a pod before it asks, or keeps it for a device
    #[command(
        after_help = "Examples:\n  leasehold lease reserve shop/db-0 --address 10.0.0.1\n  leasehold lease reserve shop/db --addresses 10.0.0.1-10.0.0.3      (db-0 gets 10.0.0.1, db-1 10.0.0.2, …)\n  leasehold lease reserve 10.0.0.12 --reason 'printer, 2nd floor'\n\nA reserved address is nobody else's until it is released."
    )]
    Reserve(Reserve),
    /// Gives the lease of a pod that does not run to another pod
    #[command(after_help = "Example:\n  leasehold lease move shop/db-0 shop/primary-0")]
    Move {
        /// Who has it, as NAMESPACE/POD
        #[arg(value_name = "NS/POD")]
        from: String,
        /// Who gets it
        #[arg(value_name = "NS/POD")]
        to: String,
        /// Only on this network
        #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
        network: Option<NetworkName>,
        #[command(flatten)]
        write: Write,
    },
    /// Ends leases; their addresses are free to others after the cool-down
    #[command(
        after_help = "The lease of a running pod is not released. With --force it is, and the address is probed before it is\ngiven to another pod.\n\nExamples:\n  leasehold lease release 10.0.0.3\n  leasehold lease release shop/db-7\n  leasehold lease release --workload shop/db"
    )]
    Release(Release),
    /// Says that nobody answers on an address: it is not probed before its next use
    #[command(
        after_help = "An address whose pod was never seen to end is unconfirmed, and one on which a stranger answered is declined. A\nsilent probe takes either mark away. Where nothing can be probed (ptp, host-device) and nodeLost is keep, only a\nperson does. Of a lease with an address of each family both are meant.\n\nExample:\n  leasehold lease confirm 10.0.0.3"
    )]
    Confirm {
        /// The address: free, or of a lease that nobody uses
        #[arg(value_name = "ADDRESS")]
        address: String,
        #[command(flatten)]
        write: Write,
    },
}

/// Lists addresses that somebody has.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaseList {
    /// Only of this pool
    #[arg(long, value_name = "NAME", value_parser = name(PoolName::new))]
    pub(crate) pool: Option<PoolName>,
    /// Only on this node
    #[arg(long, value_name = "NAME", value_parser = name(NodeName::new))]
    pub(crate) node: Option<NodeName>,
    /// Only in these states: bound, held, reserved, invalid, released, declined
    #[arg(long, value_name = "STATE,…", value_delimiter = ',')]
    pub(crate) state: Vec<String>,
    /// Only on this network
    #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    /// Only of this workload
    #[arg(long, value_name = "[NS/]WORKLOAD")]
    pub(crate) workload: Option<String>,
    /// Only what is kept because nobody knows
    #[arg(long)]
    pub(crate) doubtful: bool,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Gives an address to a pod before it asks, or keeps it for a device.
#[derive(Args, Clone, Debug)]
pub(crate) struct Reserve {
    /// A pod, a workload (with --addresses), or an address (with --reason)
    #[arg(value_name = "NS/POD|NS/WORKLOAD|ADDRESS")]
    pub(crate) target: String,
    /// The pod's address (repeatable: one of each family)
    #[arg(long = "address", value_name = "A", value_parser = parse_address, conflicts_with_all = ["addresses", "reason"])]
    pub(crate) address: Vec<std::net::IpAddr>,
    /// Addresses of the workload's pods: ordinal 0 gets A
    #[arg(long, value_name = "A-B", conflicts_with = "reason")]
    pub(crate) addresses: Option<String>,
    /// Why the address is kept
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// The CNI network [default: the pool's only one]
    #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    /// The interface in the pod
    #[arg(long, value_name = "NAME", default_value = "eth0", value_parser = name(IfName::new))]
    pub(crate) ifname: IfName,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Ends leases.
#[derive(Args, Clone, Debug)]
pub(crate) struct Release {
    /// An address, or NAMESPACE/POD
    #[arg(value_name = "ADDRESS|NS/POD", required_unless_present = "workload", conflicts_with = "workload")]
    pub(crate) target: Option<String>,
    /// All leases of a workload's pods
    #[arg(long, value_name = "NS/WORKLOAD")]
    pub(crate) workload: Option<String>,
    /// Only on this network
    #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    /// Also of running pods
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Which pool and address a pod gets.
#[derive(Args, Clone, Debug)]
pub(crate) struct Explain {
    /// The pod
    #[arg(value_name = "NS/POD")]
    pub(crate) pod: String,
    /// The CNI network [default: that of the pod's lease, or the only one that pools name]
    #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    /// The node [default: that of the pod's lease, or of the host file]
    #[arg(long, value_name = "NAME", value_parser = name(NodeName::new))]
    pub(crate) node: Option<NodeName>,
}

/// Audits the store.
#[derive(Args, Clone, Debug)]
pub(crate) struct Check {
    /// Mend what has one right answer
    #[arg(long)]
    pub(crate) repair: bool,
    /// Hold the store against the addresses that pods run with
    #[arg(long)]
    pub(crate) against_pods: bool,
    /// Only this network; and that of addresses of which the API does not tell
    #[arg(long, value_name = "NAME", requires = "against_pods", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    #[command(flatten)]
    pub(crate) api: KubernetesArgs,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Which Kubernetes API, and who asks.
#[derive(Args, Clone, Debug)]
pub(crate) struct KubernetesArgs {
    /// The kubeconfig [default: $KUBECONFIG, the service account of the pod, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context in it [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub(crate) context: Option<String>,
}

/// Gives back what dead pods left.
#[derive(Args, Clone, Debug)]
pub(crate) struct Reap {
    /// A node is lost when its Ready has been Unknown for so long
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub(crate) lost_after: Duration,
    /// A pod is gone when passes have missed it for so long; at least 15s
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    pub(crate) absent_after: Duration,
    /// A finished pod gives its address back so long after its last container ended
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    pub(crate) finished_after: Duration,
    /// A held lease waits so long for a controller that is gone
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) owner_after: Duration,
    /// More leases than that without a pod, on nodes that live, are kept [default: 20, and 10 % of the bound ones]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = max_orphans)]
    pub(crate) max_orphans: Option<usize>,
    /// Kinds whose pods come back under their names, besides the host file's (repeatable), as Kind.group
    #[arg(long = "sticky-kind", value_name = "KIND", value_parser = sticky_kind)]
    pub(crate) sticky_kinds: Vec<String>,
    /// Do not look for half pairs
    #[arg(long)]
    pub(crate) no_mend: bool,
    /// Record no Events in the Kubernetes API
    #[arg(long)]
    pub(crate) no_events: bool,
    /// Forget the store's history but for so long, where nobody keeps less; `off` never [default: 1h with --watch, else off]
    #[arg(long, value_name = "DURATION|off", value_parser = compact)]
    pub(crate) compact: Option<Compact>,
    /// Go on: a pass whenever the API says that something changed, or a deadline is over
    #[arg(long, conflicts_with = "dry_run", help_heading = "Controller")]
    pub(crate) watch: bool,
    /// With --watch: between two full passes, whatever the API said; at least 5s
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration, requires = "watch", help_heading = "Controller")]
    pub(crate) interval: Duration,
    /// With --watch: serve /metrics, /healthz and /readyz there; without an address on all, as :9402
    #[arg(long, value_name = "[ADDRESS]:PORT", value_parser = listen::parse, requires = "watch", help_heading = "Controller")]
    pub(crate) listen: Option<Listen>,
    /// Without --watch: write metrics into this file, for node_exporter's textfile collector; totals go on from what is in it
    #[arg(long, value_name = "FILE.prom", value_parser = textfile, conflicts_with_all = ["watch", "dry_run"])]
    pub(crate) textfile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) api: KubernetesArgs,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// What becomes of the store's history.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Compact {
    /// The store's own settings say.
    Off,
    /// What is older goes.
    Keep(Duration),
}

fn compact(text: &str) -> Result<Compact, String> {
    /// A pass over a large store reads at one revision for some seconds.
    const LEAST: Duration = Duration::from_secs(300);
    /// The record that tells the revision is looked back through for 600 passes: ten hours of a CronJob's minutes, five
    /// of two reapers.
    const MOST: Duration = Duration::from_secs(4 * 3600);
    if text == "off" {
        return Ok(Compact::Off);
    }
    match parse_duration(text)? {
        keep if keep < LEAST => Err("must be at least 5m, or off: a list is read at one revision".into()),
        keep if keep > MOST => {
            Err("must be at most 4h, or off: for more, run etcd with --auto-compaction-retention".into())
        }
        keep => Ok(Compact::Keep(keep)),
    }
}

/// As Kubernetes gives each object one.
fn uid(text: &str) -> Result<Uid, String> {
    let parts = text.split('-').map(str::len);
    let is_hex = |byte: u8| byte == b'-' || byte.is_ascii_hexdigit();
    if parts.eq([8, 4, 4, 4, 12]) && text.bytes().all(is_hex) {
        return Uid::new(text.to_ascii_lowercase()).map_err(|error| error.to_string());
    }
    Err("must be a UUID: kubectl get namespace kube-system -o jsonpath={.metadata.uid}".into())
}

/// node_exporter reads no other.
fn textfile(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|extension| extension == "prom") {
        return Ok(path);
    }
    Err("must end in .prom: node_exporter's textfile collector reads no other file".into())
}

fn max_orphans(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "must be a number of leases, such as 50".into())
}

fn sticky_kind(text: &str) -> Result<String, String> {
    match text.split_once('.') {
        Some((kind, group)) if !kind.is_empty() && !group.is_empty() && !text.contains([',', ' ', '/']) => {
            Ok(text.to_owned())
        }
        Some(_) | None => {
            Err("must be one Kind.group, such as CloneSet.apps.kruise.io; repeat the flag for more".into())
        }
    }
}

/// Gives pods that run the leases that the store has lost.
#[derive(Args, Clone, Debug)]
pub(crate) struct Adopt {
    /// Only this network; and that of addresses of which the API does not tell
    #[arg(long, value_name = "NAME", value_parser = name(NetworkName::new))]
    pub(crate) network: Option<NetworkName>,
    /// Also the addresses in this file (- is stdin): lines NS/POD ADDRESS [NETWORK [IFNAME]]
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) api: KubernetesArgs,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// The clusters that may lease.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Lists registered clusters
    List(Watch),
    /// Registers a cluster
    #[command(
        after_help = "Example:\n  leasehold cluster add prod-a --uid \"$(kubectl get namespace kube-system -o jsonpath='{.metadata.uid}')\""
    )]
    Add {
        /// Its name: part of every lease's key
        #[arg(value_parser = name(ClusterName::new))]
        name: ClusterName,
        /// The UID of its namespace kube-system
        #[arg(long, value_parser = uid)]
        uid: Uid,
        #[command(flatten)]
        write: Write,
    },
    /// Forgets a cluster
    #[command(
        after_help = "Nothing can be leased in a cluster that is not registered. With --force its leases stay in the store.\n\nExample:\n  leasehold cluster delete prod-a"
    )]
    Delete {
        /// Its name
        #[arg(value_parser = name(ClusterName::new))]
        name: ClusterName,
        /// Also with leases
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
}

/// Leases nothing new.
#[derive(Args, Clone, Debug)]
pub(crate) struct Freeze {
    /// Why; every pod that gets no address is told so
    #[arg(long, value_name = "TEXT", default_value = "frozen by hand")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Ends a freeze.
#[derive(Args, Clone, Debug)]
pub(crate) struct Thaw {
    #[command(flatten)]
    pub(crate) api: KubernetesArgs,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// Puts this program, its host file and its certificates on a node.
#[derive(Args, Clone, Debug)]
pub(crate) struct Install {
    /// The Node object's name
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node: Option<String>,
    /// A label of this node that pools' `nodes` may ask for (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = super::install::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// A folder, such as a mounted Secret, with ca.crt, tls.crt and tls.key, or username and password; they are copied
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_SECRET")]
    pub(crate) secret: Option<PathBuf>,
    /// Another name of a file in it (repeatable): ca, cert, key, username or password=FILE
    #[arg(long = "secret-name", value_name = "KEY=FILE", value_parser = super::install::pair, requires = "secret")]
    pub(crate) secret_names: Vec<(String, String)>,
    /// More keys of the host file, as a JSON object: log, deadlines, stickyKinds, …
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// A network that uses this plugin, to be put beside the others under its own file name
    #[arg(long, value_name = "FILE")]
    pub(crate) conflist: Option<PathBuf>,
    /// Where the runtime finds plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) bin_dir: PathBuf,
    /// Where the runtime finds networks; the host file is in leasehold.d in it
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) conf_dir: PathBuf,
    /// Where the host's file system is mounted; what is written names the host's own paths
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_HOST_ROOT", default_value = "/")]
    pub(crate) host_root: PathBuf,
    /// Also if the etcd holds an API server's keys
    #[arg(long)]
    pub(crate) shared_etcd: bool,
    /// Do not ask the store whether it is right and knows the cluster
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Go on, and install again what changes: a renewed Secret, a file that somebody touched
    #[arg(long, conflicts_with_all = ["check", "uninstall", "dry_run"])]
    pub(crate) stay: bool,
    /// Between two looks of --stay
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) interval: String,
    /// Only look whether all is right on this node's disk: for a probe
    #[arg(long, conflicts_with_all = ["uninstall", "dry_run"])]
    pub(crate) check: bool,
    /// With --check: how long certificates must last
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub(crate) expiry_margin: String,
    /// Take all of it away again; the network first, the binary last
    #[arg(long)]
    pub(crate) uninstall: bool,
    /// With --uninstall: also if pods of this node have leases
    #[arg(long, requires = "uninstall")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_fit_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cluster_is_known_by_a_uuid() {
        let good = "5f3c0e9a-1d52-4c1b-9a39-7d6a4c0e2b11";
        assert_eq!(uid(good).unwrap().as_str(), good);
        assert_eq!(uid(&good.to_uppercase()).unwrap().as_str(), good);
        for text in ["", "prod-a", "11111111-2222", &good[1..], &good.replace('5', "g"), &format!("{good}-1")]
        {
            let fault = uid(text).unwrap_err();
            assert!(fault.contains("kubectl get namespace kube-system"), "{text}: {fault}");
        }
    }

    #[test]
    fn a_textfile_is_one_that_is_collected() {
        assert_eq!(textfile("/var/lib/a.b.prom"), Ok("/var/lib/a.b.prom".into()));
        for text in ["leasehold.txt", "leasehold.prom.1", ".prom", "prom", "leasehold.prom/", ""] {
            assert_eq!(textfile(text).is_ok(), text == "leasehold.prom/", "{text}");
        }
    }

    #[test]
    fn history_is_kept_for_minutes_to_hours() {
        assert_eq!(compact("off"), Ok(Compact::Off));
        for text in ["5m", "1h", "4h"] {
            assert!(matches!(compact(text), Ok(Compact::Keep(_))), "{text}");
        }
        for text in ["4m59s", "24h", "0s", "x"] {
            assert!(compact(text).is_err(), "{text}");
        }
    }

    /// Every command that somebody can run has a help text, and those that take arguments an example.
    #[test]
    fn help_teaches() {
        fn walk(command: &clap::Command, path: &str, without: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path}");
                let mut own =
                    sub.get_arguments().filter(|arg| !arg.is_global_set() && arg.get_id() != "help");
                let needs = own.any(|arg| arg.is_required_set());
                if needs && sub.get_after_help().is_none() {
                    without.push(path.clone());
                }
                walk(sub, &path, without);
            }
        }
        let mut without = Vec::new();
        walk(&Cli::command(), "leasehold", &mut without);
        assert_eq!(without, Vec::<String>::new());
    }
}
