// Package guest is the contract between the host and the agent inside a
// sandbox: ports, paths and the body of the agent's internal /init. Both sides import
// it; it imports the standard library only. A change here is a change of the
// snapshot format (cay.SnapshotFormat), because agents live in snapshots.
package guest

import "time"

const (
	// Protocol is the version of /init that this build speaks. The host
	// speaks it and the last few; an agent answers with its own.
	Protocol = 2
	// ProtocolMounts is the first version that makes Init.Mounts.
	ProtocolMounts = 2
	// EnvdVersion is the version that SDKs see: that of E2B's daemon whose
	// wire the agent implements.
	EnvdVersion = "0.6.13"

	// AgentPort serves processes, files and the internal routes.
	AgentPort = 49983
	// InterpPort serves the code interpreter, where a template has one.
	InterpPort = 49999

	// NameServer is the address of every sandbox's name server, and of its
	// gateway. Root images name it in resolv.conf.
	NameServer = "169.254.77.1"

	// HostPort is where the host answers programs inside, at NameServer, over HTTP.
	HostPort = 49952

	// AgentPath is the agent in every root image; it is PID 1.
	AgentPath = "/usr/lib/cay/cay-agent"
	// GatewayPath is the gateway of tools, in the template mcp-gateway and what is
	// built from it: E2B's SDKs run it by its name.
	GatewayPath = "/usr/bin/mcp-gateway"
	// DockerStore is a file system of its own in sandboxes of templates with Docker.
	DockerStore = "/var/lib/docker"
	// SFTPFlag has AgentPath serve files on its standard input and output, as
	// their starter. Agents that are older do not know it.
	SFTPFlag = "-sftp"
	// JoinFlag, with a path, has AgentPath join them with a Unix socket. Agents
	// that are older do not know it either.
	JoinFlag = "-join"
	// JavaClasses are Java's console and compiler as its virtual machine maps
	// them, in root images that have Java: its kernel starts sooner.
	JavaClasses = "/usr/lib/cay/java.jsa"
	// ReservedMount is the bind mount that every bundle has. A later mount
	// below its source on the host appears inside a running sandbox.
	ReservedMount = "/.cay"
	// Volumes is the directory of ReservedMount that has a sandbox's volumes, each
	// under its number among them, from 0.
	Volumes = "volumes"
	// WatchedVariable is in the environment of PID 1, and of no other process,
	// where the engine watches the guest's memory: it sends SIGWINCH before the
	// memory gets short (cmd/cay-runsc/sentry). Without it the agent looks by
	// itself, twice a second at least.
	WatchedVariable = "CAY_MEMORY_WATCHED"
	// RunDir holds the files that tell a program where it runs.
	RunDir = "/run/e2b"

	// User is the default user of every template that names no other.
	User = "user"
	// Home is the default user's home and working directory.
	Home = "/home/user"
)

// InternalPaths are the agent's routes that only the host may call. The proxy
// answers 404 for them.
var InternalPaths = []string{
	"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade", TunnelPath, DiaryPath, RestPath, WakePath,
}

// POST RestPath stops the services of a sandbox and answers {"stopped": N}; POST
// WakePath starts those again and answers 204. Agents that are older answer 404.
const (
	RestPath = "/services/rest"
	WakePath = "/services/wake"
)

// TunnelPath is the agent's way to a service that listens on the loopback of
// the sandbox alone. POST TunnelPath?port=N with "Upgrade: tcp" answers 101,
// after which the connection is the service's, or 502 when nothing listens.
const TunnelPath = "/tunnel"

// Mode says why the host calls /init.
type Mode string

// The modes.
const (
	// ModeBuild is a template build: no identity yet.
	ModeBuild Mode = "build"
	// ModeCreate gives a fresh clone its identity: random generators are
	// reseeded, the machine id is written.
	ModeCreate Mode = "create"
	// ModeResume is the same sandbox going on: a user's own seeds survive.
	ModeResume Mode = "resume"
)

// Init is the body of POST /init, which answers 200 with InitReply. When the
// agent already has a token the call must carry it in X-Access-Token.
type Init struct {
	Mode        Mode              `json:"mode"`
	SandboxID   string            `json:"sandboxID,omitempty"`
	TemplateID  string            `json:"templateID,omitempty"`
	BuildID     string            `json:"buildID,omitempty"`
	EnvVars     map[string]string `json:"envVars,omitempty"`     // sandbox-wide; replaces earlier ones
	TemplateEnv map[string]string `json:"templateEnv,omitempty"` // ModeBuild only: below EnvVars, stays for good
	AccessToken string            `json:"accessToken,omitempty"` // empty: the agent asks for none
	Timestamp   time.Time         `json:"timestamp"`             // the host's clock
	DefaultUser string            `json:"defaultUser,omitempty"`
	DefaultDir  string            `json:"defaultWorkdir,omitempty"`
	CABundle    string            `json:"caBundle,omitempty"`  // PEM to trust besides the image's
	MachineID   string            `json:"machineID,omitempty"` // 32 hex digits
	Entropy     []byte            `json:"entropy,omitempty"`   // 32 bytes from the host
	CPUs        int               `json:"cpus,omitempty"`
	MemoryMB    int               `json:"memoryMB,omitempty"`
	DiskMB      int               `json:"diskMB,omitempty"`
	// Mounts are made before the answer, in this order. Those of a call before
	// that are the same stay, others of it go. 422 says that a path is none that
	// can be mounted over.
	Mounts []Mount `json:"mounts,omitempty"`
}

// Mount has a directory below ReservedMount appear at a path, which the agent
// makes where there is none.
type Mount struct {
	Source   string `json:"source"` // absolute, below ReservedMount
	Path     string `json:"path"`   // absolute and clean
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// InitReply is the answer to /init.
type InitReply struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // EnvdVersion of the agent inside
}
