// Command pages reads the files of a snapshot for one sandbox that is restored
// while they are still on their way to this machine. cay-runsc starts it, as
// gvisor-bin/checkpointgofer, when the directory that it restores from has the
// options of a checkpoint gofer. The sentry asks it for parts of the files and
// gives it the memory that they go into (pkg/sentry/state/stateipc). It asks the
// server to have those parts on the disk, and reads them from there. It waits for
// a server that starts anew. It ends when the sentry has everything.
//
// It runs in the sandbox's cgroup, as the user 65534, without capabilities: the
// sentry's word may be a guest's.
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
)

// The descriptors that cay-runsc gives to a checkpoint gofer.
const (
	sentryFD  = 3
	optionsFD = 4
)

// options are written by internal/machine/engine/runsc (arriving.go).
type options struct {
	Socket   string `json:"socket"`   // of the server
	Instance string `json:"instance"` // whose files these are
	Status   string `json:"status"`   // the file that says how far the loading is
}

func main() {
	if serve() != nil { // the server knows why a part does not arrive, and a log would be the guest's to fill
		os.Exit(1)
	}
}

func serve() error {
	var o options
	if err := json.NewDecoder(os.NewFile(optionsFD, "options")).Decode(&o); err != nil {
		return err
	}
	status, err := os.OpenFile(o.Status, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	// The way to the socket is closed to that user; the directory itself is not.
	if err := os.Chdir(filepath.Dir(o.Socket)); err != nil {
		return err
	}
	if err := confine(); err != nil {
		return err
	}
	sentry, err := unet.NewSocket(sentryFD)
	if err != nil {
		return err
	}
	at := place{socket: filepath.Base(o.Socket), instance: o.Instance}
	handler, err := stateipc.NewAsyncFileServer(&files{at: at, status: progress{file: status}})
	if err != nil {
		return err
	}
	server := urpc.NewServer()
	server.Register(handler)
	return server.Handle(sentry) // until the sentry closes its end
}

// confine gives up all that a process of root may do.
func confine() error {
	const user = 65534
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(user, user, user); err != nil {
		return err
	}
	if err := syscall.Setresuid(user, user, user); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return errno
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// files are those of the snapshot. It implements stateipc.AsyncFileServerImpl.
type files struct {
	at     place
	status progress
}

// OpenRead implements stateipc.AsyncFileServerImpl.
func (f *files) OpenRead(name string) (stateio.AsyncReader, error) {
	r, err := open(f.at, name)
	if err == nil && name == checkpointfiles.PagesFileName {
		r.status = &f.status
		r.status.begin(r.size)
	}
	return r, err
}

// OpenWrite implements stateipc.AsyncFileServerImpl.
func (*files) OpenWrite(string) (stateio.AsyncWriter, error) { return nil, unix.EROFS }

// Destroy implements stateipc.AsyncFileServerImpl.
func (*files) Destroy() {}
