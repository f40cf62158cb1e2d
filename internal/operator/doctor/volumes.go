package doctor

import (
	"context"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/machine/loopdev"
)

// volumes looks for what volumes need of a host: programs that make file
// systems, loop devices, and the right to make them larger in use.
func volumes(_ context.Context, h host) Check {
	const none = "sandboxes run as well, but volumes cannot be made"
	if _, err := h.sys.Open("dev/loop-control"); err != nil {
		return warn("there are no loop devices: "+none, loopdev.Hint)
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return warn("there is no mkfs.ext4: "+none, "apt-get install -y e2fsprogs xfsprogs")
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		return warn("there is no mkfs.xfs: large volumes become ext4, which counts its files beforehand", "apt-get install -y xfsprogs")
	}
	if os.Geteuid() == 0 && !mayGrow() {
		return warn("volumes below 1 GB do not become larger while a sandbox mounts them", "give the server CAP_SYS_RESOURCE")
	}
	return ok("loop devices, mkfs.xfs and mkfs.ext4 are there")
}

// mayGrow reports whether this process may make a mounted ext4 larger.
func mayGrow() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	return unix.Capget(&header, &has[0]) != nil || has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
