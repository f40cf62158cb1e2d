package image

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cay-run/cay/internal/machine/disk"
)

// node puts node and npm into a tree. Debian's are too old, and npm's
// package of node carries the binary, so the host's npm fetches both.
func node(ctx context.Context, r Recipe, tree, work string) error {
	if err := need("npm", "cp"); err != nil {
		return err
	}
	fetched := filepath.Join(work, "node")
	if err := os.Mkdir(fetched, 0o755); err != nil {
		return disk.Error(err, "make %s", fetched)
	}
	name := "node-" + nodePlatform()
	if err := run(ctx, nil, fetched, os.Environ(), "npm", "install", "--prefix", fetched,
		"--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error",
		name+"@"+r.Node, "npm@"+r.NPM); err != nil {
		return err
	}
	modules := filepath.Join(fetched, "node_modules")
	local := filepath.Join(tree, "usr/local")
	for _, dir := range []string{"bin", "include", "lib/node_modules", "etc"} {
		if err := os.MkdirAll(filepath.Join(local, dir), 0o755); err != nil {
			return disk.Error(err, "make %s", dir)
		}
	}
	for from, to := range map[string]string{
		name + "/bin/node":     "bin/node",
		name + "/include/node": "include/node",
		"npm":                  "lib/node_modules/npm",
	} {
		if err := run(ctx, nil, "/", os.Environ(), "cp", "--recursive", "--preserve=mode,timestamps,links", "--no-target-directory",
			filepath.Join(modules, from), filepath.Join(local, to)); err != nil {
			return err
		}
	}
	for _, cli := range []string{"npm", "npx"} {
		if err := os.Symlink("../lib/node_modules/npm/bin/"+cli+"-cli.js", filepath.Join(local, "bin", cli)); err != nil {
			return disk.Error(err, "link %s", cli)
		}
	}
	return nil
}
