package main

import (
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/pkgcache"
	"github.com/cay-run/cay/internal/operator"
)

type cacheCmd struct {
	Status cacheStatusCmd `cmd:"" default:"withargs" help:"Say what the package cache holds and did."`
	Clear  cacheClearCmd  `cmd:"" help:"Remove all that it holds."`
}

type cacheStatusCmd struct {
	ofNode
}

func (c *cacheStatusCmd) Run(a *app) error {
	r, err := c.packages(a, false)
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

type cacheClearCmd struct {
	ofNode
}

func (c *cacheClearCmd) Run(a *app) error {
	r, err := c.packages(a, true)
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

// packages asks what the cache of the machine holds, or has it cleared first.
func (n ofNode) packages(a *app, clear bool) (out operator.PackageReport, err error) {
	if n.Node == "" {
		cfg, err := a.config()
		if err != nil {
			return out, err
		}
		return operator.Ask(cfg).Packages(a.ctx, clear)
	}
	api, node, err := n.at(a)
	if err != nil {
		return out, err
	}
	if clear {
		gone, err := api.ClearPackageCache(a.ctx, node)
		if err != nil {
			return out, err
		}
		out.RemovedFiles, out.RemovedBytes = gone.Files, gone.Bytes
	}
	c, err := api.PackageCache(a.ctx, node)
	if err != nil {
		return out, err
	}
	out.On = true
	out.Stats = pkgcache.Stats{
		Files: c.Files, Bytes: c.Bytes, Limit: c.LimitBytes, Hits: c.Hits, Stale: c.Stale, Misses: c.Misses, Passed: c.Passed,
		Served: c.ServedBytes, Fetched: c.FetchedBytes,
	}
	return out, nil
}
