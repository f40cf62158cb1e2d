package runsc

import (
	"fmt"
	"strconv"

	"github.com/cay-run/cay"
)

// Everything in this file is snapshot format: a memory snapshot restores only
// under equal flags, mounts, capabilities and limits. A change here raises
// cay.SnapshotFormat.

// flags are runsc's, for every instance. A restore uses those in the
// snapshot's record instead.
func flags() []string {
	return []string{
		"--platform=systrap",
		"--network=sandbox",
		"--directfs=false", // the sentry has uid 65534 and no capabilities
		"--allow-suid=true",
		"--net-disconnect-ok=true",
		"--file-access-mounts=shared", // the host adds to the reserved mount later
	}
}

// capabilities are a comfortable root's, short of what changes the sandbox
// itself: no mounts, no limits, no raw packets.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	"CAP_SYS_NICE", "CAP_SYS_PTRACE",
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
func mounts(reserved string, l cay.Limits) []mount {
	shm := fmt.Sprintf("size=%dm", max(l.MemoryMB/2, 16))
	return []mount{
		{"/proc", "proc", "proc", nil},
		{"/sys", "sysfs", "sysfs", []string{"ro", "nosuid", "noexec", "nodev"}},
		{"/dev", "tmpfs", "tmpfs", nil},
		{"/dev/pts", "devpts", "devpts", nil},
		{"/dev/shm", "tmpfs", "shm", []string{"mode=1777", "nosuid", "nodev", shm}},
		{reservedMount, "bind", reserved, []string{"rbind", "rw", "rslave"}},
	}
}

// rootAnnotations make the image the root, with its writes on disk.
func rootAnnotations(diskMB int) map[string]string {
	const prefix = "dev.gvisor.spec.rootfs."
	return map[string]string{
		prefix + "source":  imageFD,
		prefix + "type":    "erofs",
		prefix + "overlay": overlayMedium,
		prefix + "options": "size=" + strconv.Itoa(diskMB) + "m",
	}
}
