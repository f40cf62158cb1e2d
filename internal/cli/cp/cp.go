// Package cp copies files between this machine and a sandbox, as cp would.
package cp

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/text"
)

// Copy is one copy, of a file or of a directory with all in it.
type Copy struct {
	Box       *client.Sandbox
	User      string // whose files they are inside
	Recursive bool   // directories are copied too
	In        io.Reader
	Out       io.Writer

	moved atomic.Int64
}

// Moved is how many bytes have moved so far; any goroutine may ask.
func (c *Copy) Moved() int64 { return c.moved.Load() }

func (c *Copy) options() client.CopyOptions {
	return client.CopyOptions{User: c.User, Progress: c.moved.Store}
}

// Place splits "ID:path". A text that cannot be an id is a path of this machine.
func Place(s string) (id, path string) {
	id, rest, found := strings.Cut(s, ":")
	if !found || !cay.ValidID(id) {
		return "", s
	}
	return id, rest
}

// Under says where a copy of from lands: in a directory that is there, under
// its own name. A path that ends in "/." means a directory's contents, which land
// in to itself.
func Under(to string, toIsDir bool, from, name string) string {
	if !toIsDir || name == "" || name == "/" || from == "." || strings.HasSuffix(from, "/.") {
		return to
	}
	return path.Join(to, name)
}

// Upload copies a path of this machine inside; "-" is In.
func (c *Copy) Upload(ctx context.Context, from, to string) (client.Copied, error) {
	if from == "-" {
		return c.send(ctx, c.In, to)
	}
	st, err := os.Stat(from)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.NotFound, err, "cannot read")
	}
	if st.IsDir() && !c.Recursive {
		return client.Copied{}, isDirectory(from)
	}
	whole, err := filepath.Abs(from) // "..", too, has a name
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	there, err := c.Box.Stat(ctx, to, c.User)
	switch {
	case err == nil && st.IsDir() && !there.Dir:
		return client.Copied{}, cay.Errorf(cay.Invalid, "%s is there already and no directory", text.Clean(there.Path))
	case err == nil:
		to = Under(there.Path, there.Dir, from, filepath.Base(whole))
	case cay.KindOf(err) != cay.NotFound:
		return client.Copied{}, err
	case strings.HasSuffix(to, "/") && !st.IsDir():
		to += filepath.Base(whole)
	}
	if st.IsDir() {
		return c.Box.CopyIn(ctx, from, to, c.options())
	}
	f, err := os.Open(from)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	defer f.Close()
	return c.send(ctx, f, to)
}

// send writes one file inside.
func (c *Copy) send(ctx context.Context, content io.Reader, to string) (client.Copied, error) {
	err := c.Box.WriteFile(ctx, to, c.User, io.TeeReader(content, c))
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

// Download copies a path inside to this machine; "-" is Out.
func (c *Copy) Download(ctx context.Context, from, to string) (client.Copied, error) {
	if to == "-" {
		return c.fetch(ctx, from, c.Out)
	}
	source, err := c.Box.Stat(ctx, from, c.User)
	if err != nil {
		return client.Copied{}, err
	}
	if source.Dir && !c.Recursive {
		return client.Copied{}, isDirectory(source.Path)
	}
	st, err := os.Stat(to)
	if err == nil && source.Dir && !st.IsDir() {
		return client.Copied{}, cay.Errorf(cay.Invalid, "%s is there already and no directory", to)
	}
	to = Under(to, err == nil && st.IsDir(), from, path.Base(source.Path))
	if source.Dir {
		return c.Box.CopyOut(ctx, source.Path, to, c.options())
	}
	f, err := os.Create(to)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot write")
	}
	done, err := c.fetch(ctx, from, f)
	return done, errors.Join(err, f.Close())
}

// fetch reads one file inside.
func (c *Copy) fetch(ctx context.Context, from string, w io.Writer) (client.Copied, error) {
	content, err := c.Box.ReadFile(ctx, from, c.User)
	if err != nil {
		return client.Copied{}, err
	}
	defer content.Close()
	_, err = io.Copy(io.MultiWriter(w, c), content)
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

// Write counts what moves.
func (c *Copy) Write(p []byte) (int, error) {
	c.moved.Add(int64(len(p)))
	return len(p), nil
}

func isDirectory(path string) error {
	return cay.Errorf(cay.Invalid, "%s is a directory", text.Clean(path)).WithHint("copy it whole with cay sandbox cp -r")
}
