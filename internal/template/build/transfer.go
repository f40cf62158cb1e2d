package build

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
	"github.com/cay-run/cay/internal/template/bundle"
	"github.com/cay-run/cay/internal/template/image"
)

// importMost bounds the files of a template that comes as a file.
const importMost = 32 << 30

// Export returns a template as one file. The caller keeps its snapshot until
// the file is closed.
func (b *Builder) Export(ctx context.Context, name string, limits cay.Limits, setup cay.Setup, id cay.SnapshotID) (io.ReadCloser, error) {
	defer b.cfg.Snapshots.Use(id)()
	_, path, err := b.have(ctx, id)
	if err != nil {
		return nil, err
	}
	tree, err := erofs.Open(path)
	if err != nil {
		return nil, disk.Error(err, "read the root image of template %s", name)
	}
	in, out := io.Pipe()
	go func() {
		m := bundle.Manifest{Name: name, Limits: limits, Setup: setup, CreatedAt: time.Now().UTC().Truncate(time.Second)}
		err := bundle.Write(ctx, out, m, tree)
		out.CloseWithError(errors.Join(err, tree.Close()))
	}()
	return in, nil
}

// imported makes the root image of an uploaded file of a template, or finds it.
// The agent and the authorities are those of this machine.
func (r *run) imported(ctx context.Context) (cay.Setup, error) {
	files, err := r.guestFiles()
	if err != nil {
		return cay.Setup{}, err
	}
	key := digest("import 1", string(r.spec.Team), r.spec.Archive, image.FilesDigest(files))
	var done provisioned
	if r.layers.Find(key, &done) {
		if _, err := r.cfg.Snapshots.Image(done.Root); err == nil {
			r.root = done.Root
			r.hold(r.root, false)
			return done.Setup, nil
		}
	}
	r.say(baseStep, "[base] reading the file")
	in, err := os.Open(r.upload(r.spec.Team, r.spec.Archive))
	if err != nil {
		return cay.Setup{}, cay.Wrap(cay.Invalid, err, "the template's file was never uploaded")
	}
	defer in.Close()
	if done, err = r.importFile(ctx, in, files); err != nil {
		if cay.KindOf(err) == cay.Invalid { // the same file will never do
			_ = os.Remove(in.Name()) // else it goes with time
		}
		return cay.Setup{}, err
	}
	r.root = done.Root
	return done.Setup, r.layers.Remember(key, done)
}

// importFile makes a root image of a template's file, and says how it starts.
func (r *run) importFile(ctx context.Context, in io.Reader, files []image.File) (done provisioned, err error) {
	file, err := bundle.Open(in)
	if err != nil {
		return done, err
	}
	defer file.Close()
	if done.Setup, err = importedSetup(file.Manifest.Setup); err != nil {
		return done, err
	}
	done.Root, err = r.importRoot(ctx, file, files)
	return done, err
}

// importRoot makes a root image of the files in a template's file. They pass a
// layer, which takes what hostile guests make of tars.
func (r *run) importRoot(ctx context.Context, file *bundle.Reader, files []image.File) (string, error) {
	in, out := io.Pipe()
	go func() { out.CloseWithError(file.Files(out)) }()
	l, err := r.layers.Add(ctx, "", nil, in, importMost)
	in.CloseWithError(io.ErrClosedPipe)
	if err != nil {
		return "", err
	}
	name := flatName("import "+image.FilesDigest(files), l.Digest)
	r.hold(name, true)
	if _, err := r.cfg.Snapshots.Image(name); err == nil {
		return name, nil
	}
	tree := erofs.New()
	defer tree.Close()
	if err := r.layers.Apply(tree, l.Digest); err != nil {
		return "", err
	}
	if err := putFiles(tree, r.work, files); err != nil {
		return "", cay.Wrap(cay.Invalid, err, "the template has no room for what sandboxes need: %v", err)
	}
	tmp, err := r.write(ctx, tree)
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp)
	return name, r.cfg.Snapshots.AddNamed(tmp, name)
}

// importedSetup takes over what processes of an imported template start with.
// PID 1 is this Cay's agent; with which arguments and settings is the guest's
// own affair, within bounds.
func importedSetup(s cay.Setup) (cay.Setup, error) {
	bad := len(s.Args) > 16 || len(s.Ports) > 16 || len(s.Env) > 1000 || len(s.Args) > 0 && s.Args[0] != guest.AgentPath
	for _, port := range s.Ports {
		bad = bad || port < 1 || port > 65535
	}
	for name := range s.Env {
		bad = bad || !envName.MatchString(name)
	}
	if bad {
		return s, cay.Errorf(cay.Invalid, "the file says something unusable of how its template starts")
	}
	return s, nil
}
