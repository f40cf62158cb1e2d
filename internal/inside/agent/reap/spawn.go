package reap

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// Spawn is cmd.Start for a process whose exit this Reaper collects. The
// returned function stands in for cmd.Wait and may be called once.
func (r *Reaper) Spawn(cmd *exec.Cmd) (wait func() error, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Child{Pid: cmd.Process.Pid, reaper: r, done: make(chan struct{})}
	r.add(c)
	return func() error {
		status := c.Status()
		// The exit is taken, so Wait finds no child; it still ends the
		// copying of input and output.
		if err := cmd.Wait(); err != nil && !errors.Is(err, syscall.ECHILD) && !errors.Is(err, syscall.ESRCH) {
			return err // ESRCH is what gVisor's waitid says in place of ECHILD
		}
		switch {
		case status.Signaled():
			return fmt.Errorf("signal: %s", status.Signal())
		case status.ExitStatus() != 0:
			return fmt.Errorf("exit status %d", status.ExitStatus())
		}
		return nil
	}, nil
}
