package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/template/bundle"
)

type templateExportCmd struct {
	Name   string `arg:"" help:"Template's name, name:tag or id."`
	Output string `short:"o" placeholder:"FILE" help:"Where to write it; - for standard output [NAME.cay]."`
}

// Help says what is in the file.
func (templateExportCmd) Help() string {
	return "The file has the template's files and how it starts; `cay template import` boots and starts it where it is read, " +
		"which may be another processor or another version of Cay."
}

func (c *templateExportCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	in, err := api.ExportTemplate(a.ctx, c.Name)
	if err != nil {
		return err
	}
	defer in.Close()
	if c.Output == "-" {
		_, err := io.Copy(a.out, in)
		return brokenOff(err)
	}
	path := or(c.Output, strings.NewReplacer("/", "-", ":", "-").Replace(c.Name)+".cay")
	f, err := os.CreateTemp(filepath.Dir(path), ".cay-export-")
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot write %s", path)
	}
	defer os.Remove(f.Name()) // fails when it has its name
	var n int64
	err = a.wait("exporting "+clean(c.Name), func() error {
		n, err = io.Copy(f, in)
		return errors.Join(brokenOff(err), f.Chmod(0o644), f.Close())
	})
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot write %s", path)
	}
	fmt.Fprintln(a.out, path)
	fmt.Fprintf(a.err, "  %s; take it elsewhere with: cay template import %s\n", volume(n), path)
	return nil
}

func brokenOff(err error) error {
	if err == nil {
		return nil
	}
	return cay.Wrap(cay.Unavailable, err, "the file did not come as a whole").WithHint("the server's log says why")
}

type templateImportCmd struct {
	File   string `arg:"" help:"The file that cay template export wrote."`
	Name   string `short:"t" help:"Its name, with a tag or without [the name that it had]."`
	CPUs   int    `name:"cpus" help:"CPUs of its sandboxes [as they were]."`
	Memory int    `placeholder:"MB" help:"Memory of its sandboxes [as it was]."`
}

func (c *templateImportCmd) Run(a *app) error {
	m, hash, size, err := readTemplateFile(c.File)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	name := or(c.Name, m.Name)
	b := &dockerBuild{app: a, begun: time.Now()}
	build, err := api.RequestBuild(a.ctx, client.NewBuild{Name: name, CPUs: cmp.Or(c.CPUs, m.Limits.CPUs), MemoryMB: cmp.Or(c.Memory, m.Limits.MemoryMB)})
	if err != nil {
		return err
	}
	err = a.wait("sending "+clean(c.File), func() error {
		return api.UploadFiles(a.ctx, build, hash, size, func() (io.ReadCloser, error) { return os.Open(c.File) })
	})
	if err != nil {
		return err
	}
	if err := api.StartBuild(a.ctx, build, client.BuildStart{Archive: hash}); err != nil {
		return err
	}
	if err := api.WaitBuild(a.ctx, build, func(l client.BuildLog) { b.say("", clean(l.Message)) }); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(build)
	}
	fmt.Fprintln(a.out, clean(build.TemplateID))
	fmt.Fprintf(a.err, "  make a sandbox: cay sandbox create %s\n", clean(name))
	return nil
}

// readTemplateFile reads what the file of a template says of itself.
func readTemplateFile(name string) (m bundle.Manifest, hash string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return m, "", 0, cay.Wrap(cay.NotFound, err, "cannot read %s", name)
	}
	defer f.Close()
	in, err := bundle.Open(f)
	if err != nil {
		return m, "", 0, err
	}
	m = in.Manifest
	in.Close()
	sum := sha256.New()
	if _, err = f.Seek(0, io.SeekStart); err == nil {
		size, err = io.Copy(sum, f)
	}
	if err != nil {
		return m, "", 0, cay.Wrap(cay.Invalid, err, "cannot read %s", name)
	}
	return m, hex.EncodeToString(sum.Sum(nil)), size, nil
}
