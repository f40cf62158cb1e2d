package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// A clone is a copy of a process's memory that the process did not ask for: its
// siblings draw the same random numbers. Kernels are reseeded; other programs
// can look at the generation, which differs in every clone, and a template can
// bring a command that reseeds its own programs.
const (
	generationPath = "/run/cay/generation"
	onClonePath    = "/etc/cay/on-clone"
	bootIDPath     = "/proc/sys/kernel/random/boot_id"
	// onCloneTime bounds how long a create waits for the command.
	onCloneTime = 10 * time.Second
)

// cloned marks a new clone and lets its template's command run, as root,
// before a client can reach the sandbox.
func (a *Agent) cloned(ctx context.Context, in guest.Init) error {
	if in.Mode != guest.ModeCreate {
		return nil
	}
	path := a.path(generationPath)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := replaceFile(path, []byte(hex.EncodeToString(derived("generation", in.Entropy))+"\n"), 0o444); err != nil {
		return err
	}
	if err := a.writeBootID(in.Entropy); err != nil { // the engine that took the snapshot offers no other
		a.log.Debug("the boot id stays as it was saved", "err", err)
	}
	if err := a.onClone(ctx, path); err != nil { // the template's affair: the sandbox is whole
		a.log.Error("the on-clone command failed", "command", onClonePath, "err", err)
	}
	return nil
}

// derived makes 16 bytes of the host's randomness that tell nothing of what the
// kernel was given.
func derived(what string, entropy []byte) []byte {
	sum := sha256.Sum256(append([]byte(what+" "), entropy...))
	return sum[:16]
}

// writeBootID gives a clone a boot id of its own: programs take it to be a
// machine's that no other one has.
func (a *Agent) writeBootID(entropy []byte) error {
	f, err := os.OpenFile(a.path(bootIDPath), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	id := derived("boot id", entropy)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a random UUID
	_, err = fmt.Fprintf(f, "%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return errors.Join(err, f.Close())
}

func (a *Agent) onClone(ctx context.Context, generation string) error {
	command := a.path(onClonePath)
	info, err := os.Stat(command)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return errors.Join(err, errors.New("it is not an executable file"))
	}
	ctx, cancel := context.WithTimeout(ctx, onCloneTime)
	defer cancel()
	cmd := exec.Command(command, generation)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	for name, value := range a.Env() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	wait, err := a.cfg.Reaper.Spawn(cmd)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := wait(); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return nil
}
