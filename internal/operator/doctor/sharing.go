package doctor

import (
	"context"

	"github.com/cay-run/cay/internal/machine/loopfs"
)

// sharing tries whether two files in the data directory can have the same
// blocks of the disk. A template that is built from another then takes what is
// new in it; else it takes its whole size.
func sharing(_ context.Context, h host) Check {
	const hint = "sandboxes run as well, but every template takes its whole size, and builds wait for it to be copied: `cay storage create` changes that (docs/use/templates.md, Disk)"
	if loopfs.Waiting(h.cfg.Data) {
		return ok("templates share blocks, in storage that is mounted when the server starts")
	}
	if loopfs.Down(h.cfg.Data) != nil {
		return warn("whether files can share blocks is not known: their file system is down", "see the data directory")
	}
	err := loopfs.Shares(existing(h.cfg.Data))
	switch {
	case err == nil:
		return ok("templates share blocks on the disk")
	case loopfs.Cannot(err):
		return warn("the file system of "+h.cfg.Data+" cannot share blocks between files", hint)
	}
	return warn("whether files can share blocks is not known: "+err.Error(), hint)
}
