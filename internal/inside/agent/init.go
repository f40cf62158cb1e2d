package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

const (
	// maxInit bounds the body of /init; certificates are the bulk of it.
	maxInit = 8 << 20

	caPath  = "/etc/ssl/certs/ca-certificates.crt"
	caBegin = "# cay: certificates of this sandbox begin\n"
	caEnd   = "# cay: certificates of this sandbox end\n"
)

var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// init gives the sandbox its identity. A caller with the current token may
// change it; before there is one, only the host can reach this route.
func (a *Agent) init(w http.ResponseWriter, r *http.Request) {
	if !a.trusts(r) {
		wire.Error(w, http.StatusUnauthorized, "access token is wrong")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxInit))
	if err != nil {
		wire.Error(w, http.StatusBadRequest, "read body: "+err.Error())
		return
	}
	var in guest.Init
	if err := json.Unmarshal(body, &in); err != nil {
		wire.Error(w, http.StatusBadRequest, "decode body: "+err.Error())
		return
	}
	if err := checkInit(in); err != nil {
		wire.Error(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := a.takeIdentity(r.Context(), in); err != nil {
		var refused *mountError
		if errors.As(err, &refused) {
			wire.Error(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		a.log.Error("init failed", "err", err)
		wire.Error(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, guest.InitReply{Protocol: guest.Protocol, Version: guest.EnvdVersion})
}

// checkInit refuses what the agent cannot obey.
func checkInit(in guest.Init) error {
	switch in.Mode {
	case guest.ModeBuild, guest.ModeCreate, guest.ModeResume:
	default:
		return fmt.Errorf("unknown mode %q", in.Mode)
	}
	if in.MachineID != "" && !machineID.MatchString(in.MachineID) {
		return errors.New("machineID is not 32 hex digits")
	}
	if in.CABundle != "" {
		if block, _ := pem.Decode([]byte(in.CABundle)); block == nil || block.Type != "CERTIFICATE" {
			return errors.New("caBundle holds no certificate")
		}
	}
	return checkMounts(in.Mounts)
}

// takeIdentity sets the files that show an identity, the state that calls see,
// then runs the hooks.
func (a *Agent) takeIdentity(ctx context.Context, in guest.Init) error {
	a.initing.Lock()
	defer a.initing.Unlock()
	if in.Mode == guest.ModeBuild {
		a.plainCA, a.marked = false, false // a boot finds the files of a sandbox before it
	}
	if err := errors.Join(
		a.mixEntropy(in.Entropy),
		a.writeMachineID(in.MachineID),
		a.writeMarks(in),
		a.trustCA(in.CABundle),
	); err != nil {
		return err
	}
	a.adopt(in)
	if err := a.remount(in.Mounts); err != nil { // before any command of a user or a template
		return err
	}
	a.diary.begin()
	if err := a.cloned(ctx, in); err != nil {
		return err
	}
	a.mu.RLock()
	hooks := a.hooks
	a.mu.RUnlock()
	for _, hook := range hooks {
		if err := hook(ctx, in); err != nil {
			return err
		}
	}
	if in.Mode == guest.ModeBuild && a.cfg.Services != nil {
		a.cfg.Services.Boot(bootServices)
	}
	return nil
}

// adopt takes over the state that calls see.
func (a *Agent) adopt(in guest.Init) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = in.AccessToken
	if in.Mode == guest.ModeBuild && in.TemplateEnv != nil {
		a.templateEnv = maps.Clone(in.TemplateEnv)
	}
	if in.EnvVars != nil || in.Mode != guest.ModeResume {
		a.sandboxEnv = map[string]string{"E2B_SANDBOX": "true"}
	}
	for name, value := range map[string]string{
		"E2B_SANDBOX_ID":  in.SandboxID,
		"E2B_TEMPLATE_ID": in.TemplateID,
	} {
		if value != "" && a.sandboxEnv != nil {
			a.sandboxEnv[name] = value
		}
	}
	if a.sandboxEnv != nil {
		maps.Copy(a.sandboxEnv, in.EnvVars)
	}
	if in.DefaultUser != "" {
		a.defaultUser = in.DefaultUser
	}
	if in.DefaultDir != "" {
		a.defaultDir = in.DefaultDir
	}
	a.limits.merge(in)
}

// path returns where a file of the sandbox is.
func (a *Agent) path(name string) string { return filepath.Join("/", a.cfg.Root, name) }

// mixEntropy stirs the host's randomness into the kernel's.
func (a *Agent) mixEntropy(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	// An os.File would be made known to the poller and taken off it again: five
	// more system calls, while a caller waits for a sandbox.
	fd, err := unix.Open(a.path("/dev/urandom"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/urandom: %w", err)
	}
	_, err = unix.Write(fd, b)
	return errors.Join(err, unix.Close(fd))
}

func (a *Agent) writeMachineID(id string) error {
	if id == "" {
		return nil
	}
	return replaceFile(a.path("/etc/machine-id"), []byte(id+"\n"), 0o444)
}

// writeMarks writes the files that tell a program where it runs, all that an
// earlier call has not written.
func (a *Agent) writeMarks(in guest.Init) (err error) {
	if in.SandboxID == "" && in.TemplateID == "" && a.marked {
		return nil
	}
	defer func() { a.marked = err == nil }()
	dir := a.path(guest.RunDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	marks := map[string]string{".E2B_SANDBOX": "true"}
	if in.SandboxID != "" {
		marks[".E2B_SANDBOX_ID"] = in.SandboxID
	}
	if in.TemplateID != "" {
		marks[".E2B_TEMPLATE_ID"] = in.TemplateID
	}
	for name, text := range marks {
		if err := replaceFile(filepath.Join(dir, name), []byte(text), 0o444); err != nil {
			return err
		}
	}
	if in.TemplateID == "" {
		return nil
	}
	text := fmt.Sprintf("ENV_ID=%s\nTEMPLATE_ID=%s\nBUILD_ID=%s\n", in.TemplateID, in.TemplateID, in.BuildID)
	return replaceFile(a.path("/.e2b"), []byte(text), 0o444)
}

// trustCA adds certificates to those that the image trusts, in place of those
// that an earlier call added.
func (a *Agent) trustCA(bundle string) (err error) {
	if bundle == "" && a.plainCA {
		return nil
	}
	defer func() { a.plainCA = err == nil && bundle == "" }()
	path := a.path(caPath)
	old, err := os.ReadFile(path)
	if err != nil && (!errors.Is(err, os.ErrNotExist) || bundle == "") {
		if bundle == "" {
			return nil // nothing to add, nothing that could be there
		}
		return err
	}
	if bundle != "" && bytes.Contains(old, bytes.TrimSpace([]byte(bundle))) {
		return nil // the image brings it
	}
	text := withCA(old, bundle)
	if bytes.Equal(text, old) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replaceFile(path, text, 0o644)
}

// withCA returns file with bundle in place of what a call before added.
func withCA(file []byte, bundle string) []byte {
	before, rest, found := bytes.Cut(file, []byte(caBegin))
	out := bytes.Clone(before)
	if found {
		_, after, _ := bytes.Cut(rest, []byte(caEnd))
		out = append(out, after...)
	}
	if bundle == "" {
		return out
	}
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	out = append(out, caBegin...)
	out = append(out, bundle...)
	if bundle[len(bundle)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, caEnd...)
}

// fileSays reports whether a regular file has a text and a mode: a guest may have
// put a link, a pipe or a device in its place.
func fileSays(path string, text []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(text)) {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, text)
}

// replaceFile writes a file so that readers see the old or the new one. One
// that is as it should be stays: a sandbox resumes on a disk that it has filled.
func replaceFile(path string, text []byte, mode os.FileMode) error {
	if fileSays(path, text, mode) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".cay-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}
