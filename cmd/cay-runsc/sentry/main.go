// Command sentry is gVisor's kernel in a program of its own: cay-runsc
// starts one for each sandbox from gvisor-bin/gvisor_sentry beside itself. It
// is the process that guest code lives under, so it holds nothing else.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
	"gvisor.dev/gvisor/runsc/version"
)

// The version is set by the linker; the reference keeps the variable alive.
var _ = version.Version()

func main() {
	const internal = "internal use only"
	cli.Run(&gvisorbinaries.GvisorSentry, map[util.SubCommand]string{
		new(sentrycmd.Boot):   internal,
		new(sentrycmd.Umount): internal,
	}, nil)
}
