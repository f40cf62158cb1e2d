package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type templateCmd struct {
	Init    templateInitCmd    `cmd:"" help:"Write a Dockerfile to begin with."`
	Build   buildCmd           `cmd:"" help:"Build a template of a Dockerfile."`
	Add     templateAddCmd     `cmd:"" help:"Build a template that Cay brings but has only when it is asked for: code-interpreter-newer, desktop, mcp-gateway, docker, devcontainer, claude-agent, codex."`
	Wait    templateWaitCmd    `cmd:"" help:"Wait for the templates that the server builds by itself."`
	Prepare templatePrepareCmd `cmd:"" hidden:""`
	List    templateListCmd    `cmd:"" aliases:"ls" help:"List the templates that sandboxes can be made of."`
	Info    templateInfoCmd    `cmd:"" help:"Show a template and its builds."`
	Tag     templateTagCmd     `cmd:"" help:"Give a build more tags, or take tags away."`
	Publish templatePublishCmd `cmd:"" help:"Let other teams use a template, or no longer."`
	Export  templateExportCmd  `cmd:"" help:"Write a template to one file, for machines without a network."`
	Import  templateImportCmd  `cmd:"" help:"Take a template from such a file."`
	Pack    templatePackCmd    `cmd:"" help:"Write what the templates that Cay brings are made of to one file, for servers without a network."`
	Unpack  templateUnpackCmd  `cmd:"" help:"Take it from such a file."`
	Delete  templateDeleteCmd  `cmd:"" aliases:"rm" help:"Delete templates that no sandbox uses."`
}

type templateInitCmd struct {
	Dir string `arg:"" optional:"" default:"." help:"Where to write it [.]."`
}

const starter = `# A template of Cay. Build it: cay template build -t my-template
FROM e2bdev/base

# Steps run as root until USER says otherwise.
RUN echo "made by cay" > /etc/motd

# Files of this directory; .dockerignore says what stays out.
# COPY . /home/user/app

# Runs in every sandbox from the start; the check tells that it is up:
# CMD ["python3", "-m", "http.server", "8000"]
# HEALTHCHECK CMD curl -sf localhost:8000
`

func (c *templateInitCmd) Run(a *app) error {
	if err := os.MkdirAll(c.Dir, 0o777); err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot make %s", c.Dir)
	}
	for name, text := range map[string]string{"Dockerfile": starter, ".dockerignore": ".git\nnode_modules\n"} {
		path := filepath.Join(c.Dir, name)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			fmt.Fprintf(a.err, "%s is there already; left as it is\n", path)
			continue
		}
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot write %s", path)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot write %s", path)
		}
		fmt.Fprintln(a.out, path)
	}
	return nil
}

type templateInfoCmd struct {
	Name string `arg:"" help:"Template's name or id."`
}

func (c *templateInfoCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	t, err := api.TemplateInfo(a.ctx, c.Name)
	if err != nil {
		return err
	}
	use, err := api.DiskUse(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			client.TemplateInfo
			DiskUse client.DiskUse `json:"diskUse"`
		}{t, use[t.ID]})
	}
	who := "private"
	if t.Public {
		who = "public"
	}
	fmt.Fprintf(a.out, "%s  %s, %s\n", clean(t.ID), clean(strings.Join(t.Names, " ")), who)
	fmt.Fprintf(a.out, "on disk: %s of its own, %s shared with other templates\n", volume(use[t.ID].Own), volume(use[t.ID].Shared))
	rows := table{header: []string{"BUILD", "STATUS", "CPUS", "MEMORY", "DISK", "MADE"}}
	now := time.Now()
	for _, b := range t.Builds {
		rows.add(clean(b.ID), clean(b.Status), fmt.Sprint(b.CPUs), size(b.MemoryMB), size(b.DiskMB), ago(b.CreatedAt, now))
	}
	rows.print(a.out, width(a.out))
	return nil
}

type templateTagCmd struct {
	Target string   `arg:"" help:"Template's name, or name:tag for the build that has that tag."`
	Tags   []string `arg:"" help:"Tags."`
	Remove bool     `short:"d" help:"Take the tags away."`
}

func (c *templateTagCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	if c.Remove {
		return api.RemoveTags(a.ctx, c.Target, c.Tags)
	}
	return api.AssignTags(a.ctx, c.Target, c.Tags)
}

type templatePublishCmd struct {
	Name   string `arg:"" help:"Template's name or id."`
	Remove bool   `short:"d" help:"Keep it to your team again."`
}

func (c *templatePublishCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	return api.PublishTemplate(a.ctx, c.Name, !c.Remove)
}

type templateDeleteCmd struct {
	Names []string `arg:"" help:"Names or ids."`
}

func (c *templateDeleteCmd) Run(a *app) error {
	return a.each(c.Names, "deleting", func(api *client.Client, name string) error {
		return api.RemoveTemplate(a.ctx, name)
	})
}

type templateListCmd struct{}

func (templateListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Templates(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Template{}, list...))
	}
	use, err := api.DiskUse(a.ctx)
	if err != nil {
		return err
	}
	t := table{header: []string{"ID", "NAMES", "STATUS", "CPUS", "MEMORY", "DISK", "ON DISK", "OWN", "SANDBOXES", "UPDATED"}}
	now := time.Now()
	for _, one := range list {
		t.add(clean(one.ID), clean(strings.Join(one.Names, " ")), clean(one.BuildStatus), fmt.Sprint(one.CPUs),
			size(one.MemoryMB), size(one.DiskMB), volume(use[one.ID].Own+use[one.ID].Shared), volume(use[one.ID].Own), fmt.Sprint(one.SpawnCount), ago(one.UpdatedAt, now))
	}
	t.print(a.out, width(a.out))
	return nil
}
