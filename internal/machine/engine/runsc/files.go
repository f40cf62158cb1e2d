package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
)

// layerName is the directory of a snapshot, of either kind, that holds what
// the instance had changed of its root: a file checkpoint of gVisor's. Other
// builds than the one that wrote it read it.
const layerName = engine.FilesDir

// layerFiles are the files of a layer.
var layerFiles = []string{"fscheckpoint.pb", "multitar.img", "pages.img", "pages_meta.img"}

// SnapshotFiles implements engine.Engine. gVisor stops the guest while it
// reads; a guest writes to the files that are read, so nothing is to be synced
// inside.
func (e *Engine) SnapshotFiles(ctx context.Context, id cay.InstanceID, dir string) (cay.Snapshot, error) {
	in, err := e.get(id)
	if err != nil {
		return cay.Snapshot{}, err
	}
	if err := ctx.Err(); err != nil {
		return cay.Snapshot{}, err
	}
	files, err := e.writeLayer(context.WithoutCancel(ctx), in, dir)
	if err != nil {
		return cay.Snapshot{}, disk.Error(err, "cannot save the files of instance %s", id)
	}
	s := in.snapshot(cay.FilesSnapshot)
	s.Files = files
	return s, nil
}

func (e *Engine) writeLayer(ctx context.Context, in *instance, dir string) ([]cay.SnapFile, error) {
	layer := filepath.Join(dir, layerName)
	if err := os.Mkdir(layer, 0o700); err != nil {
		return nil, err
	}
	written := writeBack(layer)
	args := []string{"fscheckpoint", "--leave-running", "--image-path=" + layer}
	if in.Docker {
		args = append(args, "--path=/", "--path="+guest.DockerStore)
	}
	_, err := e.call(ctx, in.record, append(args, string(in.ID))...)
	written()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(layerFiles)+1)
	for _, name := range layerFiles {
		names = append(names, filepath.Join(layerName, name))
	}
	bundle := filepath.Join(dir, bundleName)
	if _, err := os.Lstat(bundle); errors.Is(err, os.ErrNotExist) {
		if err := copyFile(bundle, filepath.Join(bundleDir(in.Dir), "config.json")); err != nil {
			return nil, err
		}
		names = append(names, bundleName)
	}
	files, err := seal(dir, names)
	if err != nil {
		return nil, err
	}
	return files, disk.Sync(layer)
}

// snapshot is what the engine says of a snapshot of an instance.
func (in *instance) snapshot(kind cay.SnapshotKind) cay.Snapshot {
	limits := in.Limits
	limits.DiskMB = in.DiskMB
	format := cay.SnapshotFormat
	if in.Docker {
		format = cay.DockerFormat
	}
	return cay.Snapshot{
		Format: format, Kind: kind, Engine: Name, EngineHash: in.EngineHash,
		EngineFlags: in.Flags, Root: in.Root, CPUFeatures: in.CPUFeatures, Limits: limits,
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
}

// Capabilities says what a sentry with its gofer costs.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Isolation: "user-space kernel", IdleMemory: 24 << 20, BootMemory: 64 << 20, IdleTasks: 64}
}

// CanBoot implements engine.Engine.
func (e *Engine) CanBoot(s cay.Snapshot) error {
	refuse := func(format string, args ...any) error {
		return cay.Errorf(cay.Conflict, "snapshot %s cannot be booted from here: "+format, append([]any{s.ID}, args...)...)
	}
	switch {
	case s.Engine != Name:
		return refuse("it was taken by engine %q, this is %q", s.Engine, Name)
	case s.Format > cay.DockerFormat:
		return refuse("it has format %d, this build reads up to %d", s.Format, cay.DockerFormat)
	}
	for _, name := range append(slices.Clone(layerFiles), "../"+bundleName) {
		name = filepath.Join(layerName, name)
		if !slices.ContainsFunc(s.Files, func(f cay.SnapFile) bool { return f.Name == name }) {
			return refuse("it holds memory only, no %s", name)
		}
	}
	return nil
}

// bootedWith reads what PID 1 was when the instance of a snapshot was booted.
func bootedWith(from string) ([]string, error) {
	d, err := readDocument(filepath.Join(from, bundleName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, cay.Wrap(cay.NotFound, err, "the files of the snapshot in %s are missing", from)
	}
	if err != nil {
		return nil, err
	}
	process, err := json.Marshal(d["process"])
	if err != nil {
		return nil, err
	}
	var p struct{ Args []string }
	if err := json.Unmarshal(process, &p); err != nil {
		return nil, err
	}
	return p.Args, nil
}

// checkLayer sees that a layer is there before anything is started over it.
func checkLayer(from string) error {
	for _, name := range layerFiles {
		if _, err := os.Stat(filepath.Join(from, layerName, name)); err != nil {
			return cay.Wrap(cay.NotFound, err, "the files of the snapshot in %s are missing", from)
		}
	}
	return nil
}
