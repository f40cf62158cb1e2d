package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/cp"
)

// inVolume splits "VOLUME:path". A text that cannot be a volume is a path of
// this machine, as is one with a slash before the colon.
func inVolume(text string) (ref, file string) {
	ref, rest, found := strings.Cut(text, ":")
	if !found || cay.CheckVolumeName(ref) != nil {
		return "", text
	}
	return ref, path.Join("/", rest)
}

type volumeLsCmd struct {
	Where string `arg:"" help:"VOLUME or VOLUME:path."`
	Depth int    `default:"1" help:"How many directories deep [1]."`
}

func (c *volumeLsCmd) Run(a *app) error {
	ref, dir := inVolume(c.Where)
	if ref == "" {
		ref, dir = c.Where, "/"
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	files, err := api.VolumeFiles(a.ctx, ref)
	if err != nil {
		return err
	}
	list, err := files.List(a.ctx, dir, c.Depth)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"MODE", "OWNER", "SIZE", "CHANGED", "NAME"}}
	for _, e := range list {
		t.add(modeOf(e), strconv.Itoa(e.UID)+":"+strconv.Itoa(e.GID), volume(e.Size), ago(e.MTime, time.Now()), nameIn(dir, e))
	}
	t.print(a.out, 0) // names are what people copy
	return nil
}

func modeOf(e client.VolumeEntry) string {
	m := fs.FileMode(e.Mode & 0o777)
	switch e.Type {
	case "directory":
		m |= fs.ModeDir
	case "symlink":
		m |= fs.ModeSymlink
	}
	return m.String()
}

// nameIn is an entry's path below a directory; what it is shows at the end.
func nameIn(dir string, e client.VolumeEntry) string {
	name := strings.TrimPrefix(strings.TrimPrefix(e.Path, dir), "/")
	switch e.Type {
	case "directory":
		name += "/"
	case "symlink":
		name += " -> " + e.Target
	}
	return clean(name)
}

type volumeRmCmd struct {
	Paths     []string `arg:"" name:"path" help:"VOLUME:path, several if need be."`
	Recursive bool     `short:"r" help:"Remove directories with all in them."`
}

func (c *volumeRmCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, text := range c.Paths {
		if err := c.remove(a, api, text); err != nil {
			return err
		}
	}
	return nil
}

func (c *volumeRmCmd) remove(a *app, api *client.Client, text string) error {
	ref, file := inVolume(text)
	switch {
	case ref == "":
		return cay.Errorf(cay.Invalid, "%.100q is no path of a volume", text).WithHint("say VOLUME:path")
	case file == "/":
		return cay.Errorf(cay.Invalid, "the root of a volume stays").WithHint("remove what is in it by name, or the volume with cay volume delete")
	}
	files, err := api.VolumeFiles(a.ctx, ref)
	if err != nil {
		return err
	}
	there, err := files.Stat(a.ctx, file)
	if err != nil {
		return err
	}
	if there.Dir() && !c.Recursive {
		return cay.Errorf(cay.Invalid, "%s is a directory", clean(file)).WithHint("remove it whole with -r")
	}
	return files.Remove(a.ctx, file)
}

type volumeCpCmd struct {
	From      string `arg:"" help:"VOLUME:path, a local path, or - for standard input."`
	To        string `arg:"" help:"VOLUME:path, a local path, or - for standard output."`
	Recursive bool   `short:"r" help:"Copy directories with all in them."`

	moved atomic.Int64
}

func (c *volumeCpCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	fromRef, from := inVolume(c.From)
	toRef, to := inVolume(c.To)
	var done client.Copied
	err = a.watch(c.progress, func() (err error) {
		switch {
		case fromRef != "" && toRef != "":
			done, err = c.across(a, api, fromRef, from, toRef, to)
		case toRef != "":
			done, err = c.upload(a, api, from, toRef, to)
		case fromRef != "":
			done, err = c.download(a, api, fromRef, from, to)
		default:
			err = cay.Errorf(cay.Invalid, "one of the two must be in a volume").WithHint("e.g. cay volume cp data.csv VOLUME:data.csv")
		}
		return err
	})
	switch {
	case err != nil || to == "-" && toRef == "":
		return err
	case a.json:
		return a.printJSON(done)
	case isTerminal(a.err):
		fmt.Fprintf(a.err, "copied %d entries, %s\n", done.Entries, volume(done.Bytes))
	}
	return nil
}

func (c *volumeCpCmd) progress() string { return copying(c.moved.Load()) }

func copying(n int64) string {
	if n > 0 {
		return "copying, " + volume(n)
	}
	return "copying"
}

// Write counts what moves.
func (c *volumeCpCmd) Write(p []byte) (int, error) {
	c.moved.Add(int64(len(p)))
	return len(p), nil
}

func (c *volumeCpCmd) options() client.FillOptions {
	return client.FillOptions{Progress: c.moved.Store}
}

// place says where in a volume a copy of what is called name lands.
func (c *volumeCpCmd) place(a *app, files *client.VolumeFiles, to, asked, from, name string, dir bool) (string, error) {
	there, err := files.Stat(a.ctx, to)
	switch {
	case err == nil && dir && !there.Dir():
		return "", cay.Errorf(cay.Invalid, "%s is there already and no directory", clean(to))
	case err == nil:
		return cp.Under(to, there.Dir(), from, name), nil
	case cay.KindOf(err) != cay.NotFound:
		return "", err
	case strings.HasSuffix(asked, "/") && !dir:
		return path.Join(to, name), nil
	}
	return to, nil
}

func (c *volumeCpCmd) upload(a *app, api *client.Client, from, ref, to string) (client.Copied, error) {
	files, err := api.VolumeFiles(a.ctx, ref)
	if err != nil {
		return client.Copied{}, err
	}
	if from == "-" {
		return c.send(a, files, a.in, to)
	}
	st, err := os.Stat(from)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.NotFound, err, "cannot read")
	}
	if st.IsDir() && !c.Recursive {
		return client.Copied{}, c.needsR(from)
	}
	whole, err := filepath.Abs(from) // "..", too, has a name
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	to, err = c.place(a, files, to, c.To, from, filepath.Base(whole), st.IsDir())
	if err != nil {
		return client.Copied{}, err
	}
	if st.IsDir() {
		in := client.PackDir(from)
		defer in.Close()
		return api.FillVolume(a.ctx, ref, to, in, c.options())
	}
	f, err := os.Open(from)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot read")
	}
	defer f.Close()
	return c.send(a, files, f, to)
}

// send writes one file of a volume.
func (c *volumeCpCmd) send(a *app, files *client.VolumeFiles, content io.Reader, to string) (client.Copied, error) {
	err := files.WriteFile(a.ctx, to, io.TeeReader(content, c))
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

func (c *volumeCpCmd) download(a *app, api *client.Client, ref, from, to string) (client.Copied, error) {
	files, err := api.VolumeFiles(a.ctx, ref)
	if err != nil {
		return client.Copied{}, err
	}
	if to == "-" {
		return c.fetch(a, files, from, a.out)
	}
	source, err := files.Stat(a.ctx, from)
	if err != nil {
		return client.Copied{}, err
	}
	if source.Dir() && !c.Recursive {
		return client.Copied{}, c.needsR(from)
	}
	st, err := os.Stat(to)
	if err == nil && source.Dir() && !st.IsDir() {
		return client.Copied{}, cay.Errorf(cay.Invalid, "%s is there already and no directory", to)
	}
	to = cp.Under(to, err == nil && st.IsDir(), c.From, path.Base(from))
	if source.Dir() {
		in, err := api.ExportVolume(a.ctx, ref, from)
		if err != nil {
			return client.Copied{}, err
		}
		defer in.Close()
		return client.UnpackDir(io.TeeReader(in, c), to)
	}
	f, err := os.Create(to)
	if err != nil {
		return client.Copied{}, cay.Wrap(cay.Invalid, err, "cannot write")
	}
	done, err := c.fetch(a, files, from, f)
	return done, errors.Join(err, f.Close())
}

// fetch reads one file of a volume.
func (c *volumeCpCmd) fetch(a *app, files *client.VolumeFiles, from string, w io.Writer) (client.Copied, error) {
	content, err := files.ReadFile(a.ctx, from)
	if err != nil {
		return client.Copied{}, err
	}
	defer content.Close()
	_, err = io.Copy(io.MultiWriter(w, c), content)
	return client.Copied{Entries: 1, Bytes: c.moved.Load()}, err
}

// across copies from one volume to another, or within one, through this machine.
func (c *volumeCpCmd) across(a *app, api *client.Client, fromRef, from, toRef, to string) (client.Copied, error) {
	source, err := api.VolumeFiles(a.ctx, fromRef)
	if err != nil {
		return client.Copied{}, err
	}
	st, err := source.Stat(a.ctx, from)
	if err != nil {
		return client.Copied{}, err
	}
	if st.Dir() && !c.Recursive {
		return client.Copied{}, c.needsR(from)
	}
	same := fromRef == toRef
	if !same && st.Dir() { // a volume has a name and an id
		if same, err = isSameVolume(a, api, fromRef, toRef); err != nil {
			return client.Copied{}, err
		}
	}
	if same && st.Dir() && strings.HasPrefix(to+"/", strings.TrimSuffix(from, "/")+"/") {
		return client.Copied{}, cay.Errorf(cay.Invalid, "a directory cannot be copied into itself")
	}
	target, err := api.VolumeFiles(a.ctx, toRef)
	if err != nil {
		return client.Copied{}, err
	}
	to, err = c.place(a, target, to, c.To, c.From, path.Base(from), st.Dir())
	if err != nil {
		return client.Copied{}, err
	}
	read := source.ReadFile
	if st.Dir() {
		read = func(ctx context.Context, from string) (io.ReadCloser, error) {
			return api.ExportVolume(ctx, fromRef, from)
		}
	}
	in, err := read(a.ctx, from)
	if err != nil {
		return client.Copied{}, err
	}
	defer in.Close()
	if st.Dir() {
		return api.FillVolume(a.ctx, toRef, to, in, c.options())
	}
	return c.send(a, target, in, to)
}

func isSameVolume(a *app, api *client.Client, one, other string) (bool, error) {
	from, err := api.Volume(a.ctx, one)
	if err != nil {
		return false, err
	}
	to, err := api.Volume(a.ctx, other)
	return from.ID == to.ID, err
}

func (c *volumeCpCmd) needsR(path string) error {
	return cay.Errorf(cay.Invalid, "%s is a directory", clean(path)).WithHint("copy it whole with cay volume cp -r")
}
