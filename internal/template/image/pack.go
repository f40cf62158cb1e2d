package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/spawn"
)

// packWindow is the memory that reading a file of trees takes.
const packWindow = 8 << 20

// Pack writes the trees of recipes, made now if need be, for machines without a
// network: a tar in zstd of <architecture>/<recipe digest>/…. A tree's files of
// this host stay out, and a file that a tree has of the one it begins with is there
// once.
func (b *Builder) Pack(ctx context.Context, w io.Writer, recipes []Recipe, p Progress) error {
	unlock, err := b.begin(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	work, err := os.MkdirTemp(b.trees, tempPrefix)
	if err != nil {
		return disk.Error(err, "make a directory in %s", b.trees)
	}
	defer os.RemoveAll(work)
	staged := filepath.Join(work, runtime.GOARCH)
	if err := os.Mkdir(staged, 0o755); err != nil {
		return disk.Error(err, "make %s", staged)
	}
	for _, r := range recipes {
		tree, err := b.tree(ctx, r, p)
		if err != nil {
			return err
		}
		p(r.Name+": laying out", -1)
		if err := stage(ctx, tree, staged, r); err != nil {
			return err
		}
	}
	p("writing the file", -1)
	z, err := zstd.NewWriter(w, zstd.WithWindowSize(packWindow))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "compress")
	}
	err = archive.Packer{}.Pack(z, work, ".")
	if err := errors.Join(err, z.Close(), ctx.Err()); err != nil {
		return disk.Error(err, "write the file of trees")
	}
	return nil
}

// stage lays a tree below staged, where its files are links to the same.
func stage(ctx context.Context, tree, staged string, r Recipe) error {
	to := filepath.Join(staged, r.Digest())
	if err := run(ctx, nil, "/", spawn.Env(), "cp", "--archive", "--link", tree, to); err != nil {
		return err
	}
	local, _ := filepath.Glob(filepath.Join(to, localAuthorities, "*.crt"))
	for _, path := range append(local, filepath.Join(to, bundlePath), filepath.Join(to, pipPath), filepath.Join(to, npmPath)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return disk.Error(err, "leave out %s", path)
		}
	}
	if r.From == nil {
		return nil
	}
	from := filepath.Join(staged, r.From.Digest())
	if _, err := os.Lstat(from); err != nil {
		return nil // it is not packed
	}
	return filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(to, path)
		if err != nil {
			return err
		}
		return shareFile(path, filepath.Join(from, rel))
	})
}

// shareFile makes a file a link to another that is the same in all respects.
func shareFile(path, other string) error {
	mine, err := os.Lstat(path)
	if err != nil {
		return err
	}
	its, err := os.Lstat(other)
	if err != nil || !alike(mine, its) {
		return nil
	}
	a, err := os.ReadFile(path)
	if err != nil {
		return disk.Error(err, "read %s", path)
	}
	b, err := os.ReadFile(other)
	if err != nil {
		return disk.Error(err, "read %s", other)
	}
	if !bytes.Equal(a, b) {
		return nil
	}
	if err := errors.Join(os.Remove(path), os.Link(other, path)); err != nil {
		return disk.Error(err, "link %s", path)
	}
	return nil
}

// alike reports whether two files differ in content at most.
func alike(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, also := b.Sys().(*syscall.Stat_t)
	return ok && also && a.Mode() == b.Mode() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) &&
		x.Uid == y.Uid && x.Gid == y.Gid && x.Ino != y.Ino
}

// Unpack reads what Pack wrote on a machine of the same architecture. Only trees
// of the recipes are taken, and all of the file or nothing: a file of another
// version of Cay has others.
func (b *Builder) Unpack(ctx context.Context, r io.Reader, recipes []Recipe, p Progress) error {
	unlock, err := b.begin(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	work, err := os.MkdirTemp(b.trees, tempPrefix)
	if err != nil {
		return disk.Error(err, "make a directory in %s", b.trees)
	}
	defer os.RemoveAll(work)
	p("unpacking", -1)
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(packWindow))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "decompress")
	}
	defer z.Close()
	if _, err := archive.Unpack(ctx, z, work, nil); err != nil {
		return unpackError(err)
	}
	known := map[string]bool{}
	for _, r := range recipes {
		known[r.Digest()] = true
	}
	trees, err := packedTrees(work, known)
	if err != nil {
		return err
	}
	for _, tree := range trees {
		final := filepath.Join(b.trees, filepath.Base(tree))
		if _, err := os.Lstat(final); err == nil {
			continue
		}
		if err := os.Rename(tree, final); err != nil {
			return disk.Error(err, "name a tree")
		}
	}
	return nil
}

// unpackError says whether the file or the disk is at fault.
func unpackError(err error) error {
	var bad *archive.FormatError
	var errno syscall.Errno
	if errors.As(err, &errno) && !errors.As(err, &bad) {
		return disk.Error(err, "unpack trees")
	}
	return cay.Wrap(cay.Invalid, err, "this is no whole file of trees: %v", err).WithHint("make one with: cay template pack FILE")
}

// packedTrees returns the paths of unpacked trees that this machine can use.
func packedTrees(work string, known map[string]bool) ([]string, error) {
	trees, err := filepath.Glob(filepath.Join(work, "*", "*"))
	if err != nil || len(trees) == 0 {
		return nil, cay.Errorf(cay.Invalid, "the file holds no trees").WithHint("make one with: cay template pack FILE")
	}
	for _, tree := range trees {
		if arch := filepath.Base(filepath.Dir(tree)); arch != runtime.GOARCH {
			return nil, cay.Errorf(cay.Invalid, "the file is for %s; this machine is %s", arch, runtime.GOARCH)
		}
		if st, err := os.Lstat(tree); err != nil || !st.IsDir() || !known[filepath.Base(tree)] {
			return nil, cay.Errorf(cay.Invalid, "the file holds templates of another version of Cay").
				WithHint("make it with the version that is installed here: cay template pack FILE")
		}
	}
	return trees, nil
}
