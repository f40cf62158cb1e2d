package runsc

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cay-run/cay/internal/guest"
)

// Everything in this file is snapshot format: a memory snapshot restores only
// under equal flags, mounts, capabilities and limits. A change here raises
// cay.SnapshotFormat.

// flags are runsc's, for every instance. A restore uses those in the
// snapshot's record instead.
func flags(docker bool) []string {
	out := []string{
		"--platform=systrap",
		"--network=sandbox",
		"--directfs=false", // the sentry has uid 65534 and no capabilities
		"--allow-suid=true",
		"--net-disconnect-ok=true",
		"--file-access-mounts=shared", // the host adds to the reserved mount later
	}
	if docker {
		out = append(out, "--net-raw") // else CAP_NET_RAW is taken away
	}
	return out
}

// capabilities are a comfortable root's, short of what changes the sandbox
// itself: no mounts, no limits, no raw packets.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	"CAP_SYS_NICE", "CAP_SYS_PTRACE",
}

// dockerCapabilities are what Docker needs beyond: it mounts, makes network
// namespaces and bridges, and gives containers NET_RAW. The sentry checks them;
// on the host they are nothing. With SYS_ADMIN the limit of processes binds root
// no more, as on Linux: the sentry's brake and the agent's guard do.
var dockerCapabilities = []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"}

func capabilitiesOf(docker bool) []string {
	if docker {
		return slices.Concat(capabilities, dockerCapabilities)
	}
	return capabilities
}

// rlimits are all given, because gVisor takes those that are not from the host.
// maxProcesses stops a fork bomb long before the host's task limits do.
var rlimits = []rlimit{
	{"RLIMIT_CORE", 0, 0},
	{"RLIMIT_FSIZE", unlimited, unlimited},
	{"RLIMIT_MEMLOCK", 8 << 20, 8 << 20},
	{"RLIMIT_NOFILE", 65536, 65536},
	{"RLIMIT_NPROC", maxProcesses, maxProcesses},
	{"RLIMIT_STACK", 8 << 20, unlimited},
}

const (
	unlimited    = ^uint64(0)
	maxProcesses = 1024

	// imageFD is how cay-runsc opens the root image: the path is part of the
	// format, so it names a descriptor that the engine hands over, and images
	// may lie anywhere.
	imageFD = "/proc/self/fd/3"
	// overlayMedium is on disk; the directory is a flag's and free to change.
	overlayMedium = "dir=/overlay"
)

// mounts are what a program expects to find. /tmp is not among them: it stays
// in the root's overlay, as long as the image has a file in it.
//
// Shared memory is memory of the guest, and gVisor would offer half the host's.
func mounts(p place, docker bool) []mount {
	shm := fmt.Sprintf("size=%dm", max(p.limits.MemoryMB/2, 16))
	out := []mount{
		{"/proc", "proc", "proc", nil},
		{"/sys", "sysfs", "sysfs", []string{"ro", "nosuid", "noexec", "nodev"}},
		{"/dev", "tmpfs", "tmpfs", nil},
		{"/dev/pts", "devpts", "devpts", nil},
		{"/dev/shm", "tmpfs", "shm", []string{"mode=1777", "nosuid", "nodev", shm}},
		{reservedMount, "bind", p.reserved, []string{"rbind", "rw", "rslave"}},
	}
	if docker {
		out = append(out,
			mount{"/sys/fs/cgroup", "cgroup", "cgroup", []string{"rw"}},
			mount{guest.DockerStore, "bind", p.store, []string{"rw"}})
	}
	return out
}

// annotations make the image the root, with its writes on disk. The store of
// Docker has a file system of its own there, because gVisor's overlay takes none as
// its upper layer but a tmpfs: each of the two gets half of the disk.
func annotations(diskMB int, p place, docker bool) map[string]string {
	const root, store = "dev.gvisor.spec.rootfs.", storePrefix
	size := func(mb int) string { return "size=" + strconv.Itoa(mb) + "m" }
	out := map[string]string{
		root + "source":  imageFD,
		root + "type":    "erofs",
		root + "overlay": overlayMedium,
		root + "options": size(diskMB),
	}
	if docker {
		out[root+"options"] = size(diskMB - diskMB/2)
		out[store+"source"] = p.store
		out[store+"type"] = "tmpfs"
		out[store+"share"] = "container"
		out[store+"options"] = "rw," + size(diskMB/2)
	}
	return out
}

// storePrefix begins the annotations of Docker's store; its source is the host's
// directory, which has the file with the pages, and is free to change.
const storePrefix = "dev.gvisor.spec.mount.docker."
