// Package config is the one configuration of a Cay server: its defaults, an
// optional YAML file, and the environment, which wins. Decoding is strict: a
// misspelt name is an error that says so, not a setting that silently does
// nothing.
package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// Config is what a server needs to know before it starts.
type Config struct {
	// Data is where everything that must survive a reboot lies.
	Data string `yaml:"data"`
	// Run is where what must not survive a reboot lies; a tmpfs is best.
	Run string `yaml:"run"`
	// Database says where the records are.
	Database `yaml:",inline"`
	// Cluster says how the other members of a cluster reach this machine.
	Cluster `yaml:",inline"`
	// Bucket says where copies of snapshots go.
	Bucket `yaml:",inline"`
	// Listen is the address of the one port.
	Listen string `yaml:"listen"`
	// Domain is the domain below which sandboxes have host names. Empty
	// leaves the choice to clients: any <port>-<id>.<anything> is routed. It
	// has a port where clients use another than 443.
	Domain string `yaml:"domain"`
	// Edge is how clients reach the one port, but for its address.
	Edge `yaml:",inline"`
	// Logs is what the log looks like.
	Logs `yaml:",inline"`
	// MetricsListen is the address of the metrics; empty turns them off.
	MetricsListen string `yaml:"metricsListen"`
	// SSHListen is the address of the SSH server; empty leaves it to be reached
	// through the one port alone.
	SSHListen string `yaml:"sshListen"`
	// ConsoleListen is where the console alone answers, for machines that are
	// reached by a bare address; empty for nowhere.
	ConsoleListen string `yaml:"consoleListen"`
	// Resolvers answer questions for names, in the host's stead.
	Resolvers []netip.AddrPort `yaml:"resolvers"`
	// Network is where sandboxes get their addresses from.
	Network netip.Prefix `yaml:"network"`
	// NetworkOpen are ranges that sandboxes may reach like the internet, though
	// they are private; everything private is closed otherwise.
	NetworkOpen []netip.Prefix `yaml:"networkOpen"`
	// NetworkClosed are ranges that neither sandboxes nor pulls of images may
	// reach, though they are public.
	NetworkClosed []netip.Prefix `yaml:"networkClosed"`
	// WebhookOpen are ranges that webhooks may be sent to though they are
	// private, the server's own addresses among them.
	WebhookOpen []netip.Prefix `yaml:"webhookOpen"`
	// Models has sandboxes find the models of their team's providers. ModelOpen are
	// ranges that providers may have though they are private, the server's own
	// addresses among them.
	Models    bool           `yaml:"models"`
	ModelOpen []netip.Prefix `yaml:"modelOpen"`
	// NetworkName prefixes everything that is named on the host: network
	// namespaces, interfaces, the nftables table and cgroups. Two servers on
	// one machine need two.
	NetworkName string `yaml:"networkName"`
	// Registries are image registries (host:port) on private networks, which
	// are not asked otherwise; PlainRegistries those that speak no TLS.
	Registries      []string `yaml:"registries"`
	PlainRegistries []string `yaml:"plainRegistries"`
	// PackageCache is how much disk a cache of packages may take that sandboxes
	// install, e.g. "10GiB"; empty for no cache.
	PackageCache string `yaml:"packageCache"`
	// PackageHosts are the hosts whose packages are cached, name or name=mirror;
	// none means those of pip, npm and apt.
	PackageHosts []string `yaml:"packageHosts"`
	// PoolMemory bounds the memory of the warm pool, of sandboxes that are made
	// before a client asks: "512" for megabytes, "5%" of all, "0" for none.
	PoolMemory string `yaml:"poolMemory"`
	// MemoryLoading is when sandboxes get the memory of the snapshot that they
	// start from: "eager", before they start; "demand", when they touch it; or
	// "auto", by demand where many start from it, eagerly where one goes on.
	MemoryLoading string `yaml:"memoryLoading"`
	// MemorySharing says which sandboxes may have one copy of what they only read
	// of that memory: "all" of a snapshot, those of the "team" that it is of, or
	// "off" for none.
	MemorySharing string `yaml:"memorySharing"`
	// LoadReserve is how much of what sandboxes may still load is kept free,
	// a percentage.
	LoadReserve string `yaml:"loadReserve"`
	// DiskReserve is how much of the data directory's disk is kept for records
	// and for ending what runs, e.g. "2GiB"; empty chooses by the disk's size.
	DiskReserve string `yaml:"diskReserve"`
	// AdminToken opens all teams, in place of the one in the data directory.
	AdminToken string `yaml:"adminToken"`
	// Teams bounds what teams may have and do.
	Teams `yaml:",inline"`
	// BuildStepTimeout is how long one step of a template's build may take.
	BuildStepTimeout time.Duration `yaml:"buildStepTimeout"`
	// BuildReadyTimeout is how long a build waits for its ready command.
	BuildReadyTimeout time.Duration `yaml:"buildReadyTimeout"`
	// RestoreTimeout is how long the restore of a memory may take that a client
	// waits for.
	RestoreTimeout time.Duration `yaml:"restoreTimeout"`
	// AuditDays is how many days the audit log is kept; 0 keeps all of it.
	AuditDays int `yaml:"auditDays"`
	// AuditHeads is the file that the audit log's signed heads are appended to;
	// empty is one in the data directory.
	AuditHeads string `yaml:"auditHeads"`
}

// The values of MemoryLoading and MemorySharing.
const (
	LoadAuto   = "auto"
	LoadEager  = "eager"
	LoadDemand = "demand"

	ShareAll  = "all"
	ShareTeam = "team"
	ShareOff  = "off"
)

// Default is the configuration of a server that was told nothing.
func Default() Config {
	return Config{
		Data:        "/var/lib/cay",
		Run:         "/run/cay",
		Listen:      "127.0.0.1:7070",
		Network:     netip.MustParsePrefix("10.201.0.0/16"),
		NetworkName: "cay",
		Models:      true,
		PoolMemory:  "5%",

		MemoryLoading: LoadAuto,
		MemorySharing: ShareAll,
		LoadReserve:   "20%",

		BuildStepTimeout:  time.Hour,
		BuildReadyTimeout: 10 * time.Minute,
		RestoreTimeout:    45 * time.Second,

		AuditDays: 400,
		Teams:     Teams{TeamBuilds: 20, TeamModelRequests: 16},
	}
}

// fileVariable names the YAML file.
const fileVariable = "CAY_CONFIG"

// Variable describes an environment variable.
type Variable struct {
	Name string
	Key  string // of the same setting in the file; empty for the file itself
	Use  string // what it sets, for people
	set  func(*Config, string) error
}

// Variables are those that Load knows, with their defaults in their use.
var Variables = slices.Concat([]Variable{
	{fileVariable, "", "YAML file with the same settings (data, run, listen, …), which the variables override", nil},
	{"CAY_DATA_DIR", "data", "what must survive a reboot [/var/lib/cay]",
		func(c *Config, v string) error { c.Data = v; return nil }},
	{"CAY_RUN_DIR", "run", "what must not, best on a tmpfs [/run/cay]",
		func(c *Config, v string) error { c.Run = v; return nil }},
	{"CAY_LISTEN", "listen", "address of the one port [127.0.0.1:7070]",
		func(c *Config, v string) error { c.Listen = v; return nil }},
	{"CAY_DOMAIN", "domain", "domain of sandboxes' host names [any]",
		func(c *Config, v string) error { c.Domain = v; return nil }},
	{"CAY_METRICS_LISTEN", "metricsListen", "address of the Prometheus metrics [off]",
		func(c *Config, v string) error { c.MetricsListen = v; return nil }},
	{"CAY_SSH_LISTEN", "sshListen", "address of the SSH server [off: through the one port only]",
		func(c *Config, v string) error { c.SSHListen = v; return nil }},
	{"CAY_CONSOLE_LISTEN", "consoleListen", "address of the console alone, where browsers reach the server by a bare address [off: console.localhost and console.<domain>]",
		func(c *Config, v string) error { c.ConsoleListen = v; return nil }},
	{"CAY_RESOLVERS", "resolvers", "name servers, e.g. 192.168.1.1:53,…, in place of those of /etc/resolv.conf",
		func(c *Config, v string) error { return c.resolvers(v) }},
	{"CAY_NETWORK", "network", "where sandboxes get addresses from [10.201.0.0/16]",
		func(c *Config, v string) (err error) { c.Network, err = netip.ParsePrefix(v); return err }},
	{"CAY_NETWORK_OPEN", "networkOpen", "private ranges that sandboxes may reach like the internet, e.g. 10.8.0.0/24,192.168.1.7/32 [none]",
		func(c *Config, v string) (err error) { c.NetworkOpen, err = ranges(v); return err }},
	{"CAY_NETWORK_CLOSED", "networkClosed", "public ranges that neither sandboxes nor pulls of images may reach, e.g. the public address of a machine behind NAT [none]",
		func(c *Config, v string) (err error) { c.NetworkClosed, err = ranges(v); return err }},
	{"CAY_WEBHOOK_OPEN", "webhookOpen", "private ranges that webhooks may be sent to, besides those of CAY_NETWORK_OPEN; 127.0.0.0/8 for receivers on this machine, which opens its services to every team [none]",
		func(c *Config, v string) (err error) { c.WebhookOpen, err = ranges(v); return err }},
	{"CAY_MODELS", "models", "whether sandboxes find the models of their team's providers at http://models.cay.internal [true]",
		func(c *Config, v string) (err error) { c.Models, err = strconv.ParseBool(v); return err }},
	{"CAY_MODEL_OPEN", "modelOpen", "private ranges that providers of models may have, besides those of CAY_NETWORK_OPEN; 127.0.0.0/8 for servers of models on this machine, which opens its services to every team [none]",
		func(c *Config, v string) (err error) { c.ModelOpen, err = ranges(v); return err }},
	{"CAY_NETWORK_NAME", "networkName", "prefix of namespaces, interfaces and cgroups; two servers on one machine need two [cay]",
		func(c *Config, v string) error { c.NetworkName = v; return nil }},
	{"CAY_REGISTRIES", "registries", "image registries on private networks that may be asked, host:port,… [none]",
		func(c *Config, v string) error { c.Registries = commas(v); return nil }},
	{"CAY_PLAIN_REGISTRIES", "plainRegistries", "the same for those that speak no TLS [none]",
		func(c *Config, v string) error { c.PlainRegistries = commas(v); return nil }},
	{"CAY_PACKAGE_CACHE", "packageCache", "disk for a cache of the packages that sandboxes install, e.g. 10GiB [off]",
		func(c *Config, v string) error { c.PackageCache = v; return nil }},
	{"CAY_PACKAGE_HOSTS", "packageHosts", "whose packages it keeps: host,host=http://mirror.lan/path,… [those of pip, npm and apt]",
		func(c *Config, v string) error { c.PackageHosts = commas(v); return nil }},
	{"CAY_POOL_MEMORY", "poolMemory", "memory for sandboxes made before a client asks, in MB or %, 0 for none [5%]",
		func(c *Config, v string) error { c.PoolMemory = v; return nil }},
	{"CAY_MEMORY_LOADING", "memoryLoading", "when sandboxes get the memory that they start from: demand, as they touch it; eager, all of it first; auto, by demand from templates and named snapshots, eagerly in resumes, rollbacks and forks [auto]",
		func(c *Config, v string) error { c.MemoryLoading = v; return nil }},
	{"CAY_MEMORY_SHARING", "memorySharing", "by demand, who has one copy of memory that is only read: all sandboxes of a template or snapshot, those of its own team alone, or none: all, team or off [all]",
		func(c *Config, v string) error { c.MemorySharing = v; return nil }},
	{"CAY_LOAD_RESERVE", "loadReserve", "by demand, how much of what running sandboxes may still load is kept free, 0% to 100% [20%]",
		func(c *Config, v string) error { c.LoadReserve = v; return nil }},
	{"CAY_DISK_RESERVE", "diskReserve", "disk kept for records and for ending what runs: new work is refused before it, e.g. 2GiB [2% of the disk, 256MiB to 2GiB]",
		func(c *Config, v string) error { c.DiskReserve = v; return nil }},
	{"CAY_ADMIN_TOKEN", "adminToken", "what opens all teams, at least 32 characters; `cay team` reads it too [admin.token of the data directory]",
		func(c *Config, v string) error { c.AdminToken = v; return nil }},
	{"CAY_BUILD_STEP_TIMEOUT", "buildStepTimeout", "how long one step of a template's build may take [1h]",
		func(c *Config, v string) (err error) { c.BuildStepTimeout, err = time.ParseDuration(v); return err }},
	{"CAY_BUILD_READY_TIMEOUT", "buildReadyTimeout", "how long a template's build waits for its ready command [10m]",
		func(c *Config, v string) (err error) { c.BuildReadyTimeout, err = time.ParseDuration(v); return err }},
	{"CAY_RESTORE_TIMEOUT", "restoreTimeout", "how long the restore of a memory may take that a client waits for, less than 1m [45s]",
		func(c *Config, v string) (err error) { c.RestoreTimeout, err = time.ParseDuration(v); return err }},
	{"CAY_AUDIT_DAYS", "auditDays", "how many days rows of the audit log are kept, 0 for always [400]",
		func(c *Config, v string) (err error) { c.AuditDays, err = strconv.Atoi(v); return err }},
	{"CAY_AUDIT_HEADS", "auditHeads", "file that signed heads of the audit log are appended to, best on another machine [audit-heads.jsonl in the data directory]",
		func(c *Config, v string) error { c.AuditHeads = v; return nil }},
}, databaseVariables, clusterVariables, bucketVariables, teamVariables, logVariables, edgeVariables)

// commas splits a list.
func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// ranges reads a list of ranges; an address is one of its own.
func ranges(v string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range commas(v) {
		p, err := netip.ParsePrefix(text)
		if a, one := netip.ParseAddr(text); one == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// resolvers reads a list of addresses, whose port is 53 unless they say so.
func (c *Config) resolvers(v string) error {
	c.Resolvers = nil
	for _, text := range commas(v) {
		if a, err := netip.ParseAddr(text); err == nil {
			c.Resolvers = append(c.Resolvers, netip.AddrPortFrom(a, 53))
			continue
		}
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return err
		}
		c.Resolvers = append(c.Resolvers, a)
	}
	return nil
}

func variable(name string) *Variable {
	for i := range Variables {
		if Variables[i].Name == name {
			return &Variables[i]
		}
	}
	return nil
}

// foreign are the beginnings of names that tests and benchmarks use.
var foreign = []string{"CAY_TEST_", "CAY_E2E_", "CAY_BENCH_"}

// networkName leaves room for "-" and an index in the 15 characters of an
// interface's name, and cannot be confused with another name's interfaces.
var networkName = regexp.MustCompile(`^[a-z][a-z0-9]{0,5}$`)

// problems lists what is wrong with c, naming the fields.
func (c Config) problems() []error {
	var out []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			out = append(out, cay.Errorf(cay.Invalid, format, args...))
		}
	}
	wrong(!filepath.IsAbs(c.Data), "data directory %q is not an absolute path", c.Data)
	wrong(!filepath.IsAbs(c.Run), "run directory %q is not an absolute path", c.Run)
	wrong(filepath.Clean(c.Data) == filepath.Clean(c.Run), "data and run directory are the same: %s", c.Data)
	wrong(!networkName.MatchString(c.NetworkName), "network name %q is not a letter and at most 5 more letters or digits, in lower case", c.NetworkName)
	four := c.Network.IsValid() && c.Network.Addr().Is4() && c.Network == c.Network.Masked()
	wrong(!four, "network %q is not an IPv4 prefix such as 10.201.0.0/16", c.Network)
	wrong(four && (c.Network.Bits() < 8 || c.Network.Bits() > 28), "network %s is not between /8 and /28", c.Network)
	wrong(slices.ContainsFunc(c.NetworkOpen, func(p netip.Prefix) bool { return !p.IsValid() || !p.Addr().Is4() || p != p.Masked() }),
		"network open %v are not IPv4 prefixes such as 10.8.0.0/24", c.NetworkOpen)
	wrong(slices.ContainsFunc(c.NetworkClosed, func(p netip.Prefix) bool { return !p.IsValid() || p != p.Masked() }),
		"network closed %v are not prefixes such as 198.51.100.7/32", c.NetworkClosed)
	wrong(slices.ContainsFunc(c.WebhookOpen, func(p netip.Prefix) bool { return !p.IsValid() || p != p.Masked() }),
		"webhook open %v are not prefixes such as 10.8.0.0/24", c.WebhookOpen)
	wrong(slices.ContainsFunc(c.ModelOpen, func(p netip.Prefix) bool { return !p.IsValid() || p != p.Masked() }),
		"model open %v are not prefixes such as 10.8.0.0/24", c.ModelOpen)
	wrong(c.BuildReadyTimeout <= 0, "build ready timeout %s is not above zero", c.BuildReadyTimeout)
	wrong(c.RestoreTimeout <= 0 || c.RestoreTimeout >= time.Minute, // all that a create, a resume or a rollback may take
		"restore timeout %s is not above zero and below a minute", c.RestoreTimeout)
	wrong(c.BuildStepTimeout <= 0, "build step timeout %s is not above zero", c.BuildStepTimeout)
	wrong(c.AdminToken != "" && len(c.AdminToken) < 32, "the admin token has fewer than 32 characters")
	wrong(c.AuditDays < 0, "the audit log cannot be kept for %d days: 0 means always", c.AuditDays)
	_, teams := c.TeamLimits()
	out = append(out, teams)
	out = append(out, c.edgeProblems()...)
	out = append(out, c.logProblems()...)
	out = append(out, c.databaseProblems()...)
	out = append(out, c.clusterProblems()...)
	out = append(out, c.bucketProblems()...)
	_, reserve := c.ReserveBytes()
	_, pool := c.PoolBytes(0)
	_, packages := c.PackageBytes()
	_, load := c.LoadPercent()
	out = append(out, reserve, pool, packages, load)
	wrong(!slices.Contains([]string{LoadAuto, LoadEager, LoadDemand}, c.MemoryLoading), "memory loading %q is none of %s, %s and %s", c.MemoryLoading, LoadAuto, LoadDemand, LoadEager)
	wrong(!slices.Contains([]string{ShareAll, ShareTeam, ShareOff}, c.MemorySharing), "memory sharing %q is none of %s, %s and %s", c.MemorySharing, ShareAll, ShareTeam, ShareOff)
	for _, host := range slices.Concat(c.Registries, c.PlainRegistries) {
		out = append(out, address("registry", host))
	}
	out = append(out, address("listen", c.Listen))
	if c.MetricsListen != "" {
		out = append(out, address("metrics listen", c.MetricsListen))
	}
	if c.SSHListen != "" {
		out = append(out, address("ssh listen", c.SSHListen))
	}
	return slices.DeleteFunc(out, func(err error) bool { return err == nil })
}

// ReserveBytes is DiskReserve in bytes; 0 for the usual one.
func (c Config) ReserveBytes() (int64, error) {
	if c.DiskReserve == "" {
		return 0, nil
	}
	if bytes, ok := Size(c.DiskReserve); ok && bytes > 0 {
		return bytes, nil
	}
	return 0, cay.Errorf(cay.Invalid, "disk reserve %q is not a size such as 512MiB or 2GiB", c.DiskReserve)
}

// LoadPercent is LoadReserve as a number.
func (c Config) LoadPercent() (int, error) {
	digits, percent := strings.CutSuffix(c.LoadReserve, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !percent || n > 100 {
		return 0, cay.Errorf(cay.Invalid, "load reserve %q is not a percentage up to 100%%", c.LoadReserve)
	}
	return int(n), nil
}

// PoolBytes is PoolMemory in bytes, on a machine with that much memory.
func (c Config) PoolBytes(memory int64) (int64, error) {
	digits, percent := strings.CutSuffix(c.PoolMemory, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	switch {
	case err != nil || percent && n > 90:
		return 0, cay.Errorf(cay.Invalid, "pool memory %q is neither megabytes nor a percentage up to 90%%", c.PoolMemory)
	case percent:
		return memory / 100 * int64(n), nil
	}
	return int64(n) << 20, nil
}

func address(field, s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "%s address %q is not host:port", field, s)
	}
	return nil
}

// AuditHeadsFile is where signed heads of the audit log are appended.
func (c Config) AuditHeadsFile() string {
	if c.AuditHeads != "" {
		return c.AuditHeads
	}
	return filepath.Join(c.Data, "audit-heads.jsonl")
}
