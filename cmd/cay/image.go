package main

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type imageCmd struct {
	List   imageListCmd   `cmd:"" aliases:"ls" help:"List images that templates can be built from."`
	Pull   imagePullCmd   `cmd:"" help:"Fetch an image from its registry."`
	Import imageImportCmd `cmd:"" help:"Take an image from an archive or a directory."`
	Remove imageRemoveCmd `cmd:"" aliases:"rm" help:"Forget images. Templates that were built from them stay."`
}

type imageListCmd struct{}

func (imageListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Images(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Image{}, list...))
	}
	if len(list) == 0 {
		fmt.Fprintln(a.err, "no images; fetch one with: cay image pull debian:12")
		return nil
	}
	t := table{header: []string{"NAME", "DIGEST", "SIZE", "FILES", "FROM"}}
	for _, img := range list {
		from := "registry"
		if img.Imported {
			from = "archive"
		}
		t.add(clean(strings.Join(img.Names, " ")), clean(img.Digest), volume(img.Size), fmt.Sprint(img.Files), from)
	}
	t.print(a.out, width(a.out))
	return nil
}

type imagePullCmd struct {
	Name     string `arg:"" help:"As for docker pull, e.g. debian:12."`
	Username string `help:"For a private registry."`
	Password string `env:"REGISTRY_PASSWORD" help:"For a private registry; best given as REGISTRY_PASSWORD."`
}

func (c *imagePullCmd) Run(a *app) error {
	var creds *client.Registry
	if c.Username != "" || c.Password != "" {
		creds = &client.Registry{Type: "registry", Username: c.Username, Password: c.Password}
	}
	return a.takeImage("pulling "+c.Name, func(api *client.Client, step func(string)) (client.Image, error) {
		return api.PullImage(a.ctx, c.Name, creds, step)
	})
}

type imageImportCmd struct {
	Path string `arg:"" help:"Archive of docker save or of an OCI layout, its directory, or - for standard input."`
	Name string `arg:"" optional:"" help:"Its name [as the archive has it]."`
}

func (c *imageImportCmd) Run(a *app) error {
	archive, err := c.open(a)
	if err != nil {
		return err
	}
	defer archive.Close()
	return a.takeImage("sending "+c.Path, func(api *client.Client, step func(string)) (client.Image, error) {
		return api.ImportImage(a.ctx, archive, c.Name, step)
	})
}

func (c *imageImportCmd) open(a *app) (io.ReadCloser, error) {
	if c.Path == "-" {
		return io.NopCloser(a.in), nil
	}
	f, err := os.Open(c.Path)
	if err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "cannot open %s", c.Path)
	}
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return f, err
	}
	f.Close()
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := out.AddFS(os.DirFS(c.Path))
		if err == nil {
			err = out.Close()
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

// takeImage has the server take an image, tells how it goes and what came of it.
func (a *app) takeImage(what string, work func(*client.Client, func(string)) (client.Image, error)) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var now atomic.Value
	now.Store(what)
	var img client.Image
	err = a.watch(func() string { return now.Load().(string) }, func() (err error) {
		img, err = work(api, func(step string) { now.Store(clean(step)) })
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(img)
	}
	fmt.Fprintln(a.out, clean(strings.Join(img.Names, "\n")))
	fmt.Fprintf(a.err, "  %s in %d files; build from it: FROM %s\n", volume(img.Size), img.Files, clean(img.Names[0]))
	return nil
}

type imageRemoveCmd struct {
	Names []string `arg:"" help:"Names or digests."`
}

func (c *imageRemoveCmd) Run(a *app) error {
	return a.each(c.Names, "removing", func(api *client.Client, name string) error {
		return api.RemoveImage(a.ctx, name)
	})
}
