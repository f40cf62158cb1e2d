package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type cpCmd struct {
	From      string `arg:"" help:"Local path, ID:path, or - for standard input."`
	To        string `arg:"" help:"Local path, ID:path, or - for standard output."`
	User      string `short:"u" help:"Whose files they are inside."`
	Recursive bool   `short:"r" help:"Copy directories with all in them."`

	moved atomic.Int64
}

func (c *cpCmd) Run(a *app) error {
	fromID, from := place(c.From)
	toID, to := place(c.To)
	if (fromID == "") == (toID == "") {
		return cay.Errorf(cay.Invalid, "one of the two must be in a sandbox, the other here").
			WithHint("e.g. cay sandbox cp data.csv ID:data.csv")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	box, err := api.Connect(a.ctx, fromID+toID, enough)
	if err != nil {
		return err
	}
	var done client.Copied
	err = a.watch(c.progress, func() (err error) {
		if toID != "" {
			done, err = c.upload(a, box, from, to)
		} else {
			done, err = c.download(a, box, from, to)
		}
		return err
	})
	switch {
	case err != nil || to == "-":
		return err
	case a.json:
		return a.printJSON(done)
	case isTerminal(a.err):
		fmt.Fprintf(a.err, "copied %d entries, %s\n", done.Entries, volume(done.Bytes))
	}
	return nil
}

func (c *cpCmd) progress() string {
	if n := c.moved.Load(); n > 0 {
		return "copying, " + volume(n)
	}
	return "copying"
}

func (c *cpCmd) options() client.CopyOptions {
	return client.CopyOptions{User: c.User, Progress: c.moved.Store}
}

// place splits "ID:path". A text that cannot be an id is a path of this machine.
func place(s string) (id, path string) {
	id, rest, found := strings.Cut(s, ":")
	if !found || !cay.ValidID(id) {
		return "", s
	}
	return id, rest
}

// under says where a copy of from lands: in a directory that is there, under
// its own name. A path that ends in "/." means a directory's contents, which land
// in to itself.
func under(to string, toIsDir bool, from, name string) string {
	if !toIsDir || name == "" || name == "/" || from == "." || strings.HasSuffix(from, "/.") {
		return to
	}
	return path.Join(to, name)
}

func (c *cpCmd) upload(a *app, box *client.Sandbox, from, to string) (client.Copied, error) {
	if from == "-" {
		return c.send(a, box, a.in, to)
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
	there, err := box.Stat(a.ctx, to, c.User)
	switch {
	case err == nil && st.IsDir() && !there.Dir:
		return client.Copied{}, cay.Errorf(cay.Invalid, "%s is there already and no directory", clean(there.Path))
	case err == nil:
		to = under(there.Path, there.Dir, from, filepath.Base(whole))
	case cay.KindOf(err) != cay.NotFound:
		return client.Copied{}, err
	case strings.HasSuffix(to, "/") && !st.IsDir():
		to += filepath.Base(whole)
	}
	if st.IsDir() {
		return box.CopyIn(a.ctx, from, to, c.options())
	}
	f, err := os.Open(from)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	defer f.Close()
	return c.send(a, box, f, to)
}

// send writes one file inside.
func (c *cpCmd) send(a *app, box *client.Sandbox, content io.Reader, to string) (client.Copied, error) {
	err := box.WriteFile(a.ctx, to, c.User, io.TeeReader(content, c))
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

func (c *cpCmd) download(a *app, box *client.Sandbox, from, to string) (client.Copied, error) {
	if to == "-" {
		return c.fetch(a, box, from, a.out)
	}
	source, err := box.Stat(a.ctx, from, c.User)
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
	to = under(to, err == nil && st.IsDir(), from, path.Base(source.Path))
	if source.Dir {
		return box.CopyOut(a.ctx, source.Path, to, c.options())
	}
	f, err := os.Create(to)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot write")
	}
	done, err := c.fetch(a, box, from, f)
	return done, errors.Join(err, f.Close())
}

// fetch reads one file inside.
func (c *cpCmd) fetch(a *app, box *client.Sandbox, from string, w io.Writer) (client.Copied, error) {
	content, err := box.ReadFile(a.ctx, from, c.User)
	if err != nil {
		return client.Copied{}, err
	}
	defer content.Close()
	_, err = io.Copy(io.MultiWriter(w, c), content)
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

// Write counts what moves.
func (c *cpCmd) Write(p []byte) (int, error) {
	c.moved.Add(int64(len(p)))
	return len(p), nil
}

func isDirectory(path string) error {
	return cay.Errorf(cay.Invalid, "%s is a directory", clean(path)).WithHint("copy it whole with cay sandbox cp -r")
}
