package volumes

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
)

// usualOwner is the number of the user and the group that own what comes from
// outside: the default user of E2B's templates and of ours.
const usualOwner = 1000

// Fill unpacks a tar into a directory of a volume, which is made if it is missing.
// Sandboxes may change what is there meanwhile. All belongs to the sandboxes'
// usual user, unless owners says that the tar's numbers are to be kept. At an
// error what was unpacked before it stays.
func (v *Volumes) Fill(ctx context.Context, who cay.Caller, ref, dir string, owners bool, tar io.Reader) (out archive.Stats, err error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return out, err
	}
	name, err := pathIn(dir)
	if err != nil {
		return out, err
	}
	in, err := v.enter(ctx, who, ref)
	if err != nil {
		return out, err
	}
	defer in.leave()
	target, err := makeDir(in.root, name)
	if err != nil {
		return out, in.error(err, dir)
	}
	defer target.Close()
	how := archive.Unpacker{Strict: true, Endless: true}
	if !owners {
		how.Owner = &archive.Owner{UID: usualOwner, GID: usualOwner}
	}
	body := &arriving{Reader: tar}
	if out, err = how.Into(ctx, target, body); err == nil {
		err = syncAll(target) // what is answered for stays
	}
	if body.err != nil {
		return out, cay.Wrap(cay.Unavailable, body.err, "the archive did not come as a whole")
	}
	return out, in.error(err, dir)
}

// arriving keeps why a body cannot be read.
type arriving struct {
	io.Reader
	err error
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if err != nil && err != io.EOF {
		a.err = err
	}
	return n, err
}

// Tree is a part of a volume that is open. Close ends it.
type Tree struct {
	in   entered
	name string // in its root
	as   string // in the tar
}

// Open opens what is at a path of a volume.
func (v *Volumes) Open(ctx context.Context, who cay.Caller, ref, file string) (*Tree, error) {
	if err := v.may(who, cay.ReadVolumes); err != nil {
		return nil, err
	}
	name, err := pathIn(file)
	if err != nil {
		return nil, err
	}
	in, err := v.enter(ctx, who, ref)
	if err != nil {
		return nil, err
	}
	st, err := in.root.Lstat(name)
	if err != nil {
		in.leave()
		return nil, in.error(err, file)
	}
	t := &Tree{in: in, name: name, as: path.Base(name)}
	if st.IsDir() {
		t.as = "."
	}
	return t, nil
}

// Close closes it.
func (t *Tree) Close() { t.in.leave() }

// Pack writes a tar of it: names are relative to a directory, a file has its own.
func (t *Tree) Pack(ctx context.Context, tar io.Writer) error {
	return t.in.error(archive.Packer{}.PackRoot(ctx, leaving{ctx, tar}, t.in.root, t.name, t.as), t.name)
}

// leaving ends a copy with its context: a client that is gone reads no more.
type leaving struct {
	ctx context.Context
	io.Writer
}

func (l leaving) Write(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	return l.Writer.Write(p)
}

// entered is a volume whose root, which is a guest's, is open until leave.
type entered struct {
	root    *os.Root
	leave   func()
	failure func(error) *cay.Error
}

func (v *Volumes) enter(ctx context.Context, who cay.Caller, ref string) (in entered, err error) {
	found, err := v.find(ctx, who, ref)
	if err != nil {
		return in, err
	}
	dir, err := v.storage.Attach(ctx, found.ID)
	if err != nil {
		return in, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		v.storage.Detach(found.ID)
		return in, cay.Wrap(cay.Internal, err, "open volume %s", found.ID)
	}
	leave := func() {
		_ = root.Close()
		v.storage.Detach(found.ID)
	}
	return entered{root, leave, func(err error) *cay.Error { return v.storage.Failure(found.ID, err) }}, nil
}

// pathIn is a path of a volume relative to its root.
func pathIn(text string) (string, error) {
	switch {
	case !utf8.ValidString(text), strings.ContainsRune(text, 0):
		return "", cay.Errorf(cay.Invalid, "path: %.200q is not UTF-8, or holds a zero byte", text)
	case archive.Deep(text):
		return "", cay.Errorf(cay.Invalid, "path: %.200q is too long or has too many levels", text)
	}
	for part := range strings.SplitSeq(text, "/") {
		if part == ".." {
			return "", cay.Errorf(cay.Invalid, "path: %.200q has a %q", text, "..")
		}
	}
	if name := strings.TrimPrefix(path.Clean("/"+text), "/"); name != "" {
		return name, nil
	}
	return ".", nil
}

// makeDir opens a directory and makes what is missing of it.
func makeDir(root *os.Root, name string) (*os.Root, error) {
	at, err := root.OpenRoot(".")
	for part := range strings.SplitSeq(name, "/") {
		if err != nil || part == "." {
			break
		}
		var next *os.Root
		next, err = stepInto(at, part)
		_ = at.Close()
		at = next
	}
	return at, err
}

func stepInto(dir *os.Root, name string) (*os.Root, error) {
	next, err := dir.OpenRoot(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return next, err
	}
	if err := dir.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := dir.Lchown(name, usualOwner, usualOwner); err != nil {
		return nil, err
	}
	return dir.OpenRoot(name)
}

func syncAll(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// error says what is wrong with a path or an archive.
func (in entered) error(err error, name string) error {
	var known *cay.Error
	var bad *archive.FormatError
	var errno syscall.Errno
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &bad):
		return cay.Errorf(cay.Invalid, "%s", bad.Reason)
	}
	if failure := in.failure(err); failure != nil {
		return failure
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cay.Errorf(cay.NotFound, "path %.200q does not exist in the volume", name)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), !errors.As(err, &errno):
		return cay.Wrap(cay.Invalid, err, "path %.200q", name)
	}
	return cay.Wrap(cay.Internal, err, "path %.200q of the volume", name)
}
