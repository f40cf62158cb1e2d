// Command sentry is gVisor's kernel in a program of its own: cay-runsc
// starts one for each sandbox from gvisor-bin/gvisor_sentry beside itself. It
// is the process that guest code lives under, so it holds nothing else.
package main

import (
	"os"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
	"gvisor.dev/gvisor/runsc/version"
)

// The version is set by the linker; the reference keeps the variable alive.
var _ = version.Version()

// fuse is what the engine's cgroup limit holds above the guest's memory, in
// bytes (internal/machine/engine/runsc, memoryFuse). cay-runsc would tell the guest
// that it may use that too.
const fuse = 512 << 20

// promise takes the fuse off what the guest is told of its memory, and returns
// what is left of it in bytes, 0 where nothing is said. The program starts
// itself again, with the smaller figure and in the form with "=".
func promise(args []string) uint64 {
	const flag = "--total-memory"
	for i, arg := range args {
		if text, ok := strings.CutPrefix(arg, flag+"="); ok {
			n, _ := strconv.ParseUint(text, 10, 64) // what it makes of that is no worse than the flag's own error
			return n
		}
		if i == 0 || args[i-1] != flag {
			continue
		}
		if n, err := strconv.ParseUint(arg, 10, 64); err == nil && n > fuse {
			args[i] = strconv.FormatUint(n-fuse, 10)
			return n - fuse
		}
	}
	return 0
}

func main() {
	const internal = "internal use only"
	promised := promise(os.Args)
	(&brake{promised: promised}).install()
	(&watch{promised: promised}).install()
	cli.Run(&gvisorbinaries.GvisorSentry, map[util.SubCommand]string{
		new(sentrycmd.Boot):   internal,
		new(sentrycmd.Umount): internal,
	}, nil)
}
