package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/machine/vnet"
)

const (
	minKernelMajor, minKernelMinor = 5, 10

	minDisk  = 2 << 30  // less and not even a template fits
	goodDisk = 20 << 30 // less and it is soon full
	goodFree = 2 << 30  // of memory
	goodPids = 100_000
)

func root(context.Context, host) Check {
	if uid := os.Geteuid(); uid != 0 {
		return fail(fmt.Sprintf("running as user %d, not as root", uid),
			"run it as root, e.g. with sudo: sandboxes need network namespaces and cgroups")
	}
	return ok("running as root")
}

// read returns a kernel file's text, trimmed.
func (h host) read(path string) (string, bool) {
	b, err := fs.ReadFile(h.sys, strings.TrimPrefix(path, "/"))
	return strings.TrimSpace(string(b)), err == nil
}

func (h host) number(path string) (int64, bool) {
	s, found := h.read(path)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, found && err == nil
}

func kernel(_ context.Context, h host) Check {
	release, found := h.read("/proc/sys/kernel/osrelease")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); !found || err != nil {
		return warn("the kernel's version cannot be read", "Linux 5.10 or newer is needed")
	}
	if major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		return fail(fmt.Sprintf("Linux %s is too old", release),
			fmt.Sprintf("use Linux %d.%d or newer, e.g. Debian 12", minKernelMajor, minKernelMinor))
	}
	return ok("Linux " + release)
}

// cgroups looks for the controllers in the unified hierarchy, then in the old ones.
func cgroups(_ context.Context, h host) Check {
	const hint = "boot with systemd.unified_cgroup_hierarchy=1, or mount the controllers cpu, memory and pids below /sys/fs/cgroup"
	want := []string{"cpu", "memory", "pids"}
	if text, found := h.read("/sys/fs/cgroup/cgroup.controllers"); found {
		have := strings.Fields(text)
		for _, c := range want {
			if !slices.Contains(have, c) {
				return fail("cgroup v2 lacks the controller "+c, hint)
			}
		}
		return ok("v2 with " + strings.Join(want, ", "))
	}
	mounts, _ := h.read("/proc/self/mounts")
	have := map[string]bool{}
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 3 && f[2] == "cgroup" {
			for _, option := range strings.Split(f[3], ",") {
				have[option] = true
			}
		}
	}
	for _, c := range want {
		if !have[c] {
			return fail("there is no cgroup controller "+c, hint)
		}
	}
	return ok("v1 with " + strings.Join(want, ", "))
}

func packetFilter(context.Context, host) Check {
	if err := vnet.Probe(); err != nil {
		return fail("nftables does not work: "+err.Error(),
			"use a kernel with nf_tables, nft_nat, nft_masq and nft_reject_inet (modprobe nf_tables), and run as root")
	}
	return ok("nftables works")
}

// systemCalls looks at what gVisor's platform lives on.
func systemCalls(_ context.Context, h host) Check {
	if scope, found := h.number("/proc/sys/kernel/yama/ptrace_scope"); found && scope >= 3 {
		return fail("ptrace is forbidden (kernel.yama.ptrace_scope=3)",
			"set kernel.yama.ptrace_scope to 1 and reboot: it cannot be lowered while running")
	}
	if n, found := h.number("/proc/sys/user/max_user_namespaces"); found && n == 0 {
		return fail("user namespaces are turned off (user.max_user_namespaces=0)",
			"sysctl -w user.max_user_namespaces=15000")
	}
	if actions, found := h.read("/proc/sys/kernel/seccomp/actions_avail"); !found || !slices.Contains(strings.Fields(actions), "trap") {
		return fail("the kernel has no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	return ok("ptrace, seccomp and user namespaces")
}

func dataDirectory(_ context.Context, h host) Check {
	if loopfs.Waiting(h.cfg.Data) {
		return ok(h.cfg.Data + " has storage of its own, which is mounted when the server starts")
	}
	var down *cay.Error
	if errors.As(loopfs.Down(h.cfg.Data), &down) {
		return fail(down.Msg, down.Hint)
	}
	dir := existing(h.cfg.Data)
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return fail(fmt.Sprintf("%s cannot be written: %v", dir, err), "set CAY_DATA_DIR to a directory that can")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return warn(fmt.Sprintf("the free space of %s cannot be read: %v", dir, err), "see that it has some 20 GB")
	}
	free := st.Bavail * uint64(st.Bsize)
	detail := fmt.Sprintf("%s free in %s", gib(free), h.cfg.Data)
	bytes, _ := h.cfg.ReserveBytes()
	level, err := disk.Reserve{Dir: dir, Bytes: bytes}.Level()
	used := isUsed(h.cfg.Data)
	switch {
	case free < minDisk && !used:
		return fail("no disk space: only "+detail, "free some, or set CAY_DATA_DIR to a larger disk")
	case st.Files > 0 && st.Ffree < 10_000 && !used:
		return fail(fmt.Sprintf("no disk space: only %d inodes free in %s", st.Ffree, h.cfg.Data), "remove files, or set CAY_DATA_DIR to another disk")
	case err == nil && level.Low():
		return warn(fmt.Sprintf("new work is refused: only %s; %s are kept for records (CAY_DISK_RESERVE)", detail, gib(uint64(level.Reserve))), disk.Cure)
	case err == nil && level.Near():
		return warn(fmt.Sprintf("only %s; with less than %s new work is refused", detail, gib(uint64(level.Reserve))), disk.Cure)
	case free < goodDisk:
		return warn("only "+detail, "snapshots and sandboxes' files live there: "+gib(goodDisk)+" or more is better")
	}
	return ok(detail)
}

// passage looks at the directories that lead to the engine: the guest's kernel is
// started from there as a user without rights.
func passage(_ context.Context, h host) Check {
	for at := existing(h.cfg.Data); ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.Mode()&0o001 == 0 {
			return fail(fmt.Sprintf("%s lets no other user through, and the kernels of sandboxes start from %s as one", at, h.cfg.Data),
				fmt.Sprintf("chmod o+x %s, or set CAY_DATA_DIR to a directory that all users can enter", at))
		}
		if at == filepath.Dir(at) {
			return ok("all users can enter it, as the kernels of sandboxes must")
		}
	}
}

// isUsed reports whether a server has run on a data directory: it must start on
// a full disk as well, so that there is a server to remove things with.
func isUsed(data string) bool {
	_, err := os.Stat(filepath.Join(data, "cay.db"))
	return err == nil
}

func runDirectory(_ context.Context, h host) Check {
	dir := existing(h.cfg.Run)
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return fail(fmt.Sprintf("%s cannot be written: %v", dir, err), "set CAY_RUN_DIR to a directory that can")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return warn(h.cfg.Run+" is on a disk, so what it says of processes outlives a reboot",
			"set CAY_RUN_DIR to a directory on a tmpfs, or: mount -t tmpfs tmpfs "+h.cfg.Run)
	}
	return ok(h.cfg.Run + " is on a tmpfs")
}

func gib(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// existing is the nearest directory above path that is there.
func existing(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// portPatience is how long a port may stay taken: a server that was killed
// while it started a program leaves its listener with that child for a moment.
const portPatience = time.Second

func port(ctx context.Context, h host) Check {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", h.cfg.Listen)
	for begun := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(begun) < portPatience; {
		time.Sleep(20 * time.Millisecond)
		l, err = lc.Listen(ctx, "tcp", h.cfg.Listen)
	}
	switch {
	case err == nil:
		l.Close()
		return ok(h.cfg.Listen + " is free")
	case errors.Is(err, syscall.EADDRINUSE):
		_, number, _ := net.SplitHostPort(h.cfg.Listen)
		return fail(h.cfg.Listen+" is taken by another program",
			"stop it (`ss -ltnp 'sport = :"+number+"'` names it), or set CAY_LISTEN, e.g. to 127.0.0.1:7071")
	}
	return fail(fmt.Sprintf("cannot listen on %s: %v", h.cfg.Listen, err), "set CAY_LISTEN to an address of this host")
}

// Serving reports whether a server answers at an address.
func Serving(ctx context.Context, listen string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode < 300
}

func memory(_ context.Context, h host) Check {
	text, _ := h.read("/proc/meminfo")
	for line := range strings.Lines(text) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n != 1 {
			continue
		}
		detail := gib(kb<<10) + " available"
		if kb<<10 < goodFree {
			return warn("only "+detail, "a sandbox with a Python kernel takes some 200 MB, a template build more: add memory, or run fewer")
		}
		return ok(detail)
	}
	return warn("the available memory cannot be read", "see that there are some gigabytes")
}

func tasks(_ context.Context, h host) Check {
	const each = 60 // tasks of an idle sandbox
	low := int64(goodPids)
	name := ""
	for _, file := range []string{"pid_max", "threads-max"} {
		if n, found := h.number("/proc/sys/kernel/" + file); found && n < low {
			low, name = n, file
		}
	}
	if name != "" {
		return warn(fmt.Sprintf("kernel.%s=%d is room for some %d sandboxes", name, low, low/each),
			fmt.Sprintf("sysctl -w kernel.%s=4194304", name))
	}
	return ok("room for more than " + strconv.Itoa(goodPids/each) + " sandboxes")
}

func forwarding(_ context.Context, h host) Check {
	if chains, err := vnet.DropsForwarded(); err == nil && len(chains) > 0 {
		guests := h.cfg.NetworkName + "-+"
		return warn("another firewall drops forwarded packets ("+strings.Join(chains, ", ")+"): sandboxes may not reach the internet",
			fmt.Sprintf("let them pass: iptables -I FORWARD -i %s -j ACCEPT; iptables -I FORWARD -o %s -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", guests, guests))
	}
	if on, found := h.read("/proc/sys/net/ipv4/ip_forward"); !found || on != "1" {
		return warn("packets are not forwarded yet", "nothing to do: the server turns net.ipv4.ip_forward on when it starts")
	}
	return ok("packets are forwarded")
}

func buildTools(context.Context, host) Check {
	var missing []string
	for tool, pkg := range map[string]string{"mkfs.erofs": "erofs-utils", "mmdebstrap": "mmdebstrap"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		list := strings.Join(missing, " ")
		return warn("templates cannot be built without "+list, "apt-get install -y "+list)
	}
	return ok("mkfs.erofs and mmdebstrap")
}
