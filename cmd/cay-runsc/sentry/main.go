// Command sentry is gVisor's kernel in a program of its own: cay-runsc
// starts one for each sandbox from gvisor-bin/gvisor_sentry beside itself. It
// is the process that guest code lives under, so it holds nothing else.
package main

import (
	"os"
	"strconv"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
	"gvisor.dev/gvisor/runsc/version"
)

// The version is set by the linker; the reference keeps the variable alive.
var _ = version.Version()

// fuse is what the engine's cgroup limit holds above the guest's memory, in
// bytes (internal/engine/runsc, memoryFuse). cay-runsc would tell the guest
// that it may use that too.
const fuse = 512 << 20

// promised takes the fuse off what the guest is told of its memory.
func promised(args []string) []string {
	for i := 1; i < len(args); i++ {
		if n, err := strconv.ParseUint(args[i], 10, 64); err == nil && args[i-1] == "--total-memory" && n > fuse {
			args[i] = strconv.FormatUint(n-fuse, 10)
		}
	}
	return args
}

func main() {
	const internal = "internal use only"
	os.Args = promised(os.Args)
	cli.Run(&gvisorbinaries.GvisorSentry, map[util.SubCommand]string{
		new(sentrycmd.Boot):   internal,
		new(sentrycmd.Umount): internal,
	}, nil)
}
