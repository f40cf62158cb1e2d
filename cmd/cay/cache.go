package main

import (
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/operator"
)

type cacheCmd struct {
	Status cacheStatusCmd `cmd:"" default:"1" help:"Say what the package cache holds and did."`
	Clear  cacheClearCmd  `cmd:"" help:"Remove all that it holds."`
}

type cacheStatusCmd struct{}

func (cacheStatusCmd) Run(a *app) error {
	r, err := a.packages(false)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	if !r.On {
		fmt.Fprintln(a.err, "  there is no package cache; CAY_PACKAGE_CACHE=10GiB turns it on")
		return nil
	}
	t := table{header: []string{"FILES", "SIZE", "LIMIT", "HITS", "STALE", "MISSES", "PASSED ON", "SERVED", "FETCHED"}}
	t.add(fmt.Sprint(r.Files), volume(r.Bytes), volume(r.Limit), fmt.Sprint(r.Hits), fmt.Sprint(r.Stale),
		fmt.Sprint(r.Misses), fmt.Sprint(r.Passed), volume(r.Served), volume(r.Fetched))
	t.print(a.out, width(a.out))
	return nil
}

type cacheClearCmd struct{}

func (cacheClearCmd) Run(a *app) error {
	r, err := a.packages(true)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(r)
	case !r.On:
		return cay.Errorf(cay.Unavailable, "there is no package cache").WithHint("CAY_PACKAGE_CACHE=10GiB turns it on")
	}
	fmt.Fprintf(a.err, "  %d files removed, %s\n", r.RemovedFiles, volume(r.RemovedBytes))
	return nil
}

func (a *app) packages(clear bool) (operator.PackageReport, error) {
	cfg, err := a.config()
	if err != nil {
		return operator.PackageReport{}, err
	}
	return operator.Ask(cfg).Packages(a.ctx, clear)
}
