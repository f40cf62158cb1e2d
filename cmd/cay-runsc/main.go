// Command cay-runsc is gVisor's runsc with the commands that Cay drives and no
// others. The server starts it; people have no use for it. It is built apart
// from the server, by scripts/build-engine, with the engine's hash as its
// version: a snapshot restores only under the build that took it.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/version"
)

// The version is set by the linker; the reference keeps the variable alive.
var _ = version.Version()

func main() {
	const driven, internal = "", "internal use only"
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint):   driven,
		new(cmd.Create):       driven,
		new(cmd.CPUFeatures):  driven,
		new(cmd.Delete):       driven,
		new(cmd.Events):       driven,
		new(cmd.FSCheckpoint): driven,
		new(cmd.Kill):         driven,
		new(cmd.List):         driven,
		new(cmd.Loading):      driven,
		new(cmd.PS):           driven,
		new(cmd.Pause):        driven,
		new(cmd.Restore):      driven,
		new(cmd.Resume):       driven,
		new(cmd.Run):          driven,
		new(cmd.Start):        driven,
		new(cmd.State):        driven,
		new(cmd.Wait):         driven,
		new(cmd.Gofer):        internal,
	}, nil)
}
