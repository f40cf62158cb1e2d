package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/cargo"
)

type volumeFillCmd struct {
	Where  string `arg:"" help:"VOLUME or VOLUME:path; the directory is made if it is missing."`
	Source string `arg:"" help:"An archive, a directory, VOLUME:path, s3://BUCKET/PREFIX, or - for a tar on standard input."`
	Owners bool   `help:"Keep the numbers of the owners that an archive or volume has [the sandboxes' usual user owns all]."`
}

// Help says what is read, and with which credentials.
func (volumeFillCmd) Help() string {
	return "An archive may be a tar, a tar.gz, a tar.zst or a zip. Files that are there already are replaced, and others stay. " + s3Help
}

const s3Help = "S3 is read and written by this program, not by the server, with the variables that AWS' own tools read: " +
	"AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."

func (c *volumeFillCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	ref, dir := whereIn(c.Where)
	done, err := fill(a, api, ref, dir, c.Source, client.FillOptions{Owners: c.Owners})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(done)
	}
	fmt.Fprintf(a.err, "filled with %d entries, %s\n", done.Entries, volume(done.Bytes))
	return nil
}

// whereIn reads VOLUME or VOLUME:path.
func whereIn(text string) (ref, file string) {
	if ref, file = inVolume(text); ref == "" {
		return text, "/"
	}
	return ref, file
}

// fill puts what is at a source into a directory of a volume.
func fill(a *app, api *client.Client, ref, dir, source string, o client.FillOptions) (done client.Copied, err error) {
	in, err := openSource(a, api, source)
	if err != nil {
		return done, err
	}
	defer in.Close()
	var moved atomic.Int64
	o.Progress = moved.Store
	watched := &failing{Reader: in}
	err = a.watch(func() string { return "filling, " + volume(moved.Load()) }, func() error {
		done, err = api.FillVolume(a.ctx, ref, dir, watched, o)
		return err
	})
	if err != nil && watched.err != nil && a.ctx.Err() == nil {
		err = watched.err // why the request broke off
	}
	return done, err
}

// failing keeps what went wrong with reading.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	var known *cay.Error
	if err != nil && err != io.EOF {
		if f.err = err; !errors.As(err, &known) {
			f.err = cay.Wrap(cay.Invalid, err, "the source cannot be read")
		}
	}
	return n, err
}

// openSource opens what is to be put into a volume, as a tar.
func openSource(a *app, api *client.Client, source string) (io.ReadCloser, error) {
	if cargo.IsBucket(source) {
		b, err := cargo.OpenBucket(source, a.getenv)
		if err != nil {
			return nil, err
		}
		return b.Tar(a.ctx), nil
	}
	if source == "-" {
		return cargo.Open(a.in)
	}
	if ref, file := inVolume(source); ref != "" {
		return api.ExportVolume(a.ctx, ref, file)
	}
	st, err := os.Stat(source)
	if err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "cannot read")
	}
	if st.IsDir() {
		return client.PackDir(source), nil
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	in, err := cargo.Open(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return both{in, f}, nil
}

// both closes an archive and its file.
type both struct {
	io.ReadCloser
	file *os.File
}

func (b both) Close() error { return errors.Join(b.ReadCloser.Close(), b.file.Close()) }

type volumeExportCmd struct {
	Where  string `arg:"" help:"VOLUME or VOLUME:path."`
	Target string `arg:"" help:"A file that ends with .tar, .tar.gz, .tar.zst or .zip; a directory; s3://BUCKET/PREFIX; or - for a tar on standard output."`
}

// Help says what is written.
func (volumeExportCmd) Help() string {
	return "The volume may be mounted: each file is read at its moment; for one moment of all, export a clone of a snapshot. " +
		"An archive keeps owners, modes, times, links and user attributes; a zip and S3 do not. " + s3Help
}

func (c *volumeExportCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	ref, file := whereIn(c.Where)
	in, err := api.ExportVolume(a.ctx, ref, file)
	if err != nil {
		return err
	}
	defer in.Close()
	var moved atomic.Int64
	counted := io.TeeReader(in, counting{&moved})
	var done any
	err = a.watch(func() string { return "exporting, " + volume(moved.Load()) }, func() (err error) {
		done, err = c.write(a, counted)
		return err
	})
	switch {
	case err != nil || c.Target == "-":
		return err
	case a.json:
		return a.printJSON(done)
	}
	fmt.Fprintf(a.err, "exported to %s\n", clean(c.Target))
	if s, ok := done.(cargo.Stored); ok && s.Left > 0 {
		fmt.Fprintf(a.err, "  %d links were left out: a bucket has none\n", s.Left)
	}
	return nil
}

// counting counts what is written.
type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

func (c *volumeExportCmd) write(a *app, in io.Reader) (any, error) {
	if cargo.IsBucket(c.Target) {
		b, err := cargo.OpenBucket(c.Target, a.getenv)
		if err != nil {
			return nil, err
		}
		return b.Store(a.ctx, in)
	}
	if c.Target == "-" {
		_, err := io.Copy(a.out, in)
		return nil, brokenOff(err)
	}
	kind, ok := cargo.KindOf(c.Target)
	if !ok {
		if st, err := os.Stat(c.Target); err == nil && !st.IsDir() {
			return nil, cay.Errorf(cay.Invalid, "%s is a file, and no name of an archive", clean(c.Target)).
				WithHint("choose a name that ends with .tar, .tar.gz, .tar.zst or .zip")
		}
		return client.UnpackDir(in, c.Target)
	}
	n, err := c.archive(kind, in)
	return map[string]any{"file": c.Target, "bytes": n}, err
}

// archive writes an archive, which has its name when it is whole.
func (c *volumeExportCmd) archive(kind cargo.Kind, in io.Reader) (bytes int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(c.Target), ".cay-export-")
	if err != nil {
		return 0, cay.Wrap(cay.Invalid, err, "cannot write %s", c.Target)
	}
	defer os.Remove(f.Name()) // fails when it has its name
	err = cargo.Save(f, kind, in)
	bytes, _ = f.Seek(0, io.SeekCurrent)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	var known *cay.Error
	switch {
	case errors.As(err, &known):
		return 0, known
	case err != nil:
		return 0, cay.Wrap(cay.Unavailable, err, "the archive was not written as a whole")
	}
	if err := os.Rename(f.Name(), c.Target); err != nil {
		return 0, cay.Wrap(cay.Invalid, err, "cannot write %s", c.Target)
	}
	return bytes, nil
}
