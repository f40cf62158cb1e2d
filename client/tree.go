package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
)

// Copied counts what a copy of a tree wrote.
type Copied struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// CopyOptions say how to copy a tree. The zero value is fine.
type CopyOptions struct {
	User string // the owner of the files inside; empty means the usual one
	// Progress is called with the bytes that have moved so far.
	Progress func(bytes int64)
}

// ReadTar opens a tar of a directory of the sandbox, names relative to it.
func (s *Sandbox) ReadTar(ctx context.Context, dir, user string) (io.ReadCloser, error) {
	resp, err := s.file(ctx, http.MethodGet, "/files/tar", dir, user, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteTar unpacks a tar below a directory of the sandbox, which is made if it
// is missing. At an error what was unpacked before it stays.
func (s *Sandbox) WriteTar(ctx context.Context, dir, user string, tar io.Reader) (Copied, error) {
	var out Copied
	resp, err := s.file(ctx, http.MethodPost, "/files/tar", dir, user, tar)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, s.gone(cay.Wrap(cay.Unavailable, err, "the connection broke"))
	}
	return out, nil
}

// CopyIn copies what is in the directory from of this machine into the
// directory to of the sandbox. Links stay links; sockets, FIFOs and devices
// are left out.
func (s *Sandbox) CopyIn(ctx context.Context, from, to string, o CopyOptions) (Copied, error) {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Packer{}.Pack(w, from, ".")
		w.CloseWithError(err)
		packed <- err
	}()
	out, err := s.WriteTar(ctx, to, o.User, &counter{Reader: r, tell: o.Progress})
	// Also ends a packer without a reader.
	_ = r.CloseWithError(errStopped)
	if e := <-packed; e != nil && !errors.Is(e, errStopped) && !errors.Is(e, io.ErrClosedPipe) && ctx.Err() == nil {
		return out, local(e, "cannot read")
	}
	return out, err
}

// CopyOut copies the contents of the directory from of the sandbox into the
// directory to of this machine, which is made if it is missing. It writes nothing
// outside that directory, whatever the sandbox sends.
func (s *Sandbox) CopyOut(ctx context.Context, from, to string, o CopyOptions) (Copied, error) {
	tar, err := s.ReadTar(ctx, from, o.User)
	if err != nil {
		return Copied{}, err
	}
	defer tar.Close()
	if err := os.MkdirAll(to, 0o777); err != nil {
		return Copied{}, local(err, "cannot write")
	}
	in := &counter{Reader: tar, tell: o.Progress}
	stats, err := archive.Unpack(ctx, in, to, &archive.Owner{UID: os.Getuid(), GID: os.Getgid()})
	out := Copied(stats)
	var bad *archive.FormatError
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return out, ctx.Err()
	case in.err != nil:
		return out, s.gone(cay.Wrap(cay.Unavailable, in.err, "the connection broke"))
	case errors.As(err, &bad):
		return out, cay.Wrap(cay.Invalid, err, "cannot unpack into %s", to)
	}
	return out, local(err, "cannot write")
}

// errStopped ends a packer whose reader is done.
var errStopped = errors.New("the reader is done")

// local is an error of this machine's files.
func local(err error, doing string) error {
	kind := cay.Invalid
	switch {
	case errors.Is(err, os.ErrNotExist):
		kind = cay.NotFound
	case errors.Is(err, os.ErrPermission):
		kind = cay.Denied
	case errors.Is(err, syscall.ENOSPC):
		kind = cay.NoSpace
	}
	return cay.Wrap(kind, err, "%s", doing)
}

// counter counts what is read, and keeps what went wrong with reading.
type counter struct {
	io.Reader
	n    int64
	tell func(int64)
	err  error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.n += int64(n); n > 0 && c.tell != nil {
		c.tell(c.n)
	}
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}
