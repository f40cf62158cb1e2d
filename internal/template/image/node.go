package image

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/spawn"
)

const (
	indexMost   = 64 << 20 // of a package's index
	packageMost = 1 << 30  // of a package's archive
	fetchTries  = 4
)

// node puts node and npm into a tree. Debian's are too old, and npm's package of
// node carries the binary, so both are fetched from the registry that the host
// uses. npm itself is no requirement of the host: Debian's brings 400 packages.
func node(ctx context.Context, r Recipe, tree, work string) error {
	if err := need("cp"); err != nil {
		return err
	}
	fetched := filepath.Join(work, "node")
	if err := os.Mkdir(fetched, 0o755); err != nil {
		return disk.Error(err, "make %s", fetched)
	}
	registry := cmp.Or(npmRegistry(), "https://registry.npmjs.org")
	name := "node-" + nodePlatform()
	for _, p := range []struct{ name, major string }{{name, r.Node}, {"npm", r.NPM}} {
		if err := fetchAgain(ctx, registry, p.name, p.major, filepath.Join(fetched, p.name)); err != nil {
			return err
		}
	}
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
		if err := run(ctx, nil, "/", spawn.Env(), "cp", "--recursive", "--preserve=mode,timestamps,links", "--no-target-directory",
			filepath.Join(fetched, from), filepath.Join(local, to)); err != nil {
			return err
		}
	}
	for _, cli := range []string{"npm", "npx"} {
		script := "lib/node_modules/npm/bin/" + cli + "-cli.js"
		if err := os.Chmod(filepath.Join(local, script), 0o755); err != nil {
			return disk.Error(err, "make %s a program", cli)
		}
		if err := os.Symlink("../"+script, filepath.Join(local, "bin", cli)); err != nil {
			return disk.Error(err, "link %s", cli)
		}
	}
	if err := os.Chmod(filepath.Join(local, "bin/node"), 0o755); err != nil {
		return disk.Error(err, "make node a program")
	}
	return nil
}

// registryClient gives up on a registry that is silent.
var registryClient = func() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	return &http.Client{Transport: t}
}()

// npmDist is where a version of a package lies, and what its archive hashes to.
type npmDist struct {
	Tarball   string `json:"tarball"`
	Integrity string `json:"integrity"`
}

// fetchAgain tries a few times, as apt and pip do: a registry may break off.
func fetchAgain(ctx context.Context, registry, name, major, dir string) (err error) {
	for range fetchTries {
		if err = fetchPackage(ctx, registry, name, major, dir); cay.KindOf(err) != cay.Unavailable || ctx.Err() != nil {
			return err
		}
		if gone := os.RemoveAll(dir); gone != nil {
			return disk.Error(gone, "remove %s", dir)
		}
	}
	return err
}

// fetchPackage unpacks the newest release of a major version of a package from
// an npm registry into dir, which it makes.
func fetchPackage(ctx context.Context, registry, name, major, dir string) error {
	var index struct {
		Versions map[string]struct {
			Dist npmDist `json:"dist"`
		} `json:"versions"`
	}
	body, err := get(ctx, strings.TrimRight(registry, "/")+"/"+url.PathEscape(name), "application/vnd.npm.install-v1+json")
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, indexMost)).Decode(&index); err != nil {
		return cay.Wrap(cay.Unavailable, err, "read what versions of %s there are", name)
	}
	var versions []string
	for v := range index.Versions {
		versions = append(versions, v)
	}
	version, ok := newest(versions, major)
	if !ok {
		return cay.Errorf(cay.Unavailable, "the registry %s has no version %s of %s", registry, major, name)
	}
	return fetchArchive(ctx, index.Versions[version].Dist, name, dir)
}

// newest finds the highest release, a.b.c without more, of a major version.
func newest(versions []string, major string) (best string, ok bool) {
	var bestParts []int
	for _, v := range versions {
		fields := strings.Split(v, ".")
		if len(fields) != 3 || fields[0] != major {
			continue
		}
		var parts []int
		for _, f := range fields {
			if n, err := strconv.Atoi(f); err == nil && n >= 0 {
				parts = append(parts, n)
			}
		}
		if len(parts) == 3 && slices.Compare(parts, bestParts) > 0 {
			best, bestParts = v, parts
		}
	}
	return best, bestParts != nil
}

// fetchArchive unpacks a package's archive. Its files are of no use after an
// error: the hash is compared at the end.
func fetchArchive(ctx context.Context, dist npmDist, name, dir string) error {
	body, err := get(ctx, dist.Tarball, "*/*")
	if err != nil {
		return err
	}
	defer body.Close()
	sum := sha512.New()
	in := io.TeeReader(io.LimitReader(body, packageMost), sum)
	if err := unpackPackage(in, dir); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "unpack %s", name)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return cay.Wrap(cay.Unavailable, err, "fetch %s", name)
	}
	if want := "sha512-" + base64.StdEncoding.EncodeToString(sum.Sum(nil)); dist.Integrity != want {
		return cay.Errorf(cay.Unavailable, "the archive of %s is not what the registry says: it hashes to %s, which is to be %s", name, want, dist.Integrity)
	}
	return nil
}

// unpackPackage unpacks files, and nothing else, below dir without the first
// part of their names, as npm does.
func unpackPackage(r io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return disk.Error(err, "make %s", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return disk.Error(err, "open %s", dir)
	}
	defer root.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "read a package's archive")
	}
	in := tar.NewReader(z)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cay.Wrap(cay.Unavailable, err, "read a package's archive")
		}
		_, path, ok := strings.Cut(h.Name, "/")
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := writeFrom(in, root, path, os.FileMode(h.Mode&0o755|0o644)); err != nil {
			return err
		}
	}
}

func writeFrom(r io.Reader, root *os.Root, path string, mode os.FileMode) error {
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return disk.Error(err, "make the directory of %s", path)
	}
	f, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return disk.Error(err, "make %s", path)
	}
	_, read, err := disk.Copy(f, r)
	err = errors.Join(err, f.Chmod(mode), f.Close()) // not masked by umask
	switch {
	case read != nil:
		return cay.Wrap(cay.Unavailable, read, "read a package's archive")
	case err != nil:
		return disk.Error(err, "write %s", path)
	}
	return nil
}

func get(ctx context.Context, address, accept string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "%s is no address of a registry", address)
	}
	request.Header.Set("Accept", accept)
	resp, err := registryClient.Do(request)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("it answers %s", resp.Status), resp.Body.Close())
	}
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "fetch %s: %v", address, err)
	}
	return resp.Body, nil
}
