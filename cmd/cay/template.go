package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cay-run/cay/client"
)

type templateCmd struct {
	List templateListCmd `cmd:"" aliases:"ls" help:"List the templates that sandboxes can be made of."`
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
	t := table{header: []string{"ID", "NAMES", "STATUS", "CPUS", "MEMORY", "DISK", "SANDBOXES", "UPDATED"}}
	now := time.Now()
	for _, one := range list {
		t.add(clean(one.ID), clean(strings.Join(one.Names, " ")), clean(one.BuildStatus), fmt.Sprint(one.CPUs),
			size(one.MemoryMB), size(one.DiskMB), fmt.Sprint(one.SpawnCount), ago(one.UpdatedAt, now))
	}
	t.print(a.out, width(a.out))
	return nil
}
