package build

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
	"github.com/cay-run/cay/internal/template/image"
	"github.com/cay-run/cay/internal/template/oci"
)

// provisioned is what the key of an image stands for: the root image that was
// made of it.
type provisioned struct {
	Root  string
	Setup cay.Setup
}

// rootOf makes the root image of a registry's image, or finds it: the image's
// files, the agent, the authorities of the host, and what sandboxes expect of
// a system, which a script inside provides. Unavailable means that no registry
// could be reached.
func (r *run) rootOf(ctx context.Context) (cay.Setup, error) {
	images, err := r.cfg.Images.Of(r.spec.Team)
	if err != nil {
		return cay.Setup{}, err
	}
	img, err := images.Pull(ctx, r.spec.Image, oci.CredentialsOf(r.spec.Registry), func(step string) { r.say(baseStep, "[base] %s", step) })
	if err != nil {
		return cay.Setup{}, err
	}
	files, err := r.guestFiles()
	if err != nil {
		return cay.Setup{}, err
	}
	key := digest("image 1", string(r.spec.Team), img.Digest, image.FilesDigest(files), provision, img.Config.Env)
	var done provisioned
	if r.layers.Find(key, &done) {
		if _, err := r.cfg.Snapshots.Image(done.Root); err == nil {
			r.root = done.Root
			return done.Setup, nil
		}
	}
	done.Setup = setupOf(img.Config)
	if done.Root, err = r.provision(ctx, images, img, files, done.Setup); err != nil {
		return cay.Setup{}, err
	}
	r.root = done.Root
	return done.Setup, r.layers.Remember(key, done)
}

// setupOf is the setting in which processes of an image's sandboxes begin. Their
// user follows E2B's rule, not the image's.
func setupOf(c oci.Config) cay.Setup {
	env := image.Env()
	for _, pair := range c.Env {
		if name, value, ok := strings.Cut(pair, "="); ok && envName.MatchString(name) {
			env[name] = value
		}
	}
	return cay.Setup{Args: []string{guest.AgentPath}, Env: env, User: guest.User, Dir: guest.Home}
}

// guestFiles are what Cay puts into every root.
func (r *run) guestFiles() ([]image.File, error) {
	agent, err := os.ReadFile(r.cfg.AgentPath)
	if err != nil {
		return nil, disk.Error(err, "read the agent")
	}
	files, err := image.HostFiles()
	if err != nil {
		return nil, err
	}
	return slices.Concat(files, image.SystemFiles(), []image.File{
		image.ResolverFile(guest.NameServer),
		{Path: guest.AgentPath, Mode: 0o755, Data: agent},
	}), nil
}

// provision returns the digest of an image's root image, ready for sandboxes.
func (r *run) provision(ctx context.Context, images *oci.Store, img oci.Image, files []image.File, setup cay.Setup) (string, error) {
	r.say(baseStep, "[base] making a root of %d files", img.Files)
	raw, family, err := r.rawRoot(ctx, images, img, files)
	if err != nil {
		return "", err
	}
	defer os.Remove(raw)
	name := digest("raw 1", img.Digest, image.FilesDigest(files))
	inside := setup
	inside.User, inside.Dir = "root", "/" // there is no other yet
	x, err := r.enter(ctx, raw, name, inside, cay.Limits{CPUs: 2, MemoryMB: 1024, DiskMB: r.spec.Limits.DiskMB}, nil)
	if err != nil {
		return "", err
	}
	defer x.close()
	r.say(baseStep, "[base] provisioning (%s)", family)
	if err := r.prepare(ctx, x, family, setup.Env["PATH"]); err != nil {
		return "", x.explain(err)
	}
	changes, err := x.lease.Changes(ctx)
	if err != nil {
		return "", x.explain(err)
	}
	l, err := r.layers.Add(ctx, "", nil, changes, int64(r.spec.Limits.DiskMB)<<20)
	if err := errors.Join(err, changes.Close()); err != nil {
		return "", x.explain(err)
	}
	x.close() // its disk and memory are of no more use
	r.tellCapable(baseStep, l.Capable)
	tmp, err := r.flattenOn(ctx, raw, l.Digest)
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp)
	final := flatName(name, l.Digest)
	return final, r.cfg.Snapshots.AddNamed(tmp, final)
}

// prepare runs the script that makes a system of an image.
func (r *run) prepare(ctx context.Context, x *box, family, searchPath string) error {
	err := x.run(ctx, command{
		user: "root", dir: "/", args: []string{"/bin/sh", "-c", provision, "provision", family},
		env: map[string]string{"PATH": defaultPath},
		line: func(stream, line string) {
			r.log(cay.BuildLog{Level: cay.LogDebug, Step: baseStep, Message: "[base] [" + stream + "]: " + line})
		},
	})
	var failed *exit
	if errors.As(err, &failed) {
		return cay.Errorf(cay.Invalid, "the image could not be made a sandbox's: %s", failed.Status).WithHint("its log says more")
	}
	if err == nil && searchPath != "" && searchPath != defaultPath {
		_, err = x.shell(ctx, pathProfile, searchPath)
	}
	return err
}

// rawRoot writes the image's files and ours as one image that only this build
// sees, and says of what family the system is.
func (r *run) rawRoot(ctx context.Context, images *oci.Store, img oci.Image, files []image.File) (file, family string, err error) {
	dir, release, err := images.Tree(img.Digest)
	if err != nil {
		return "", "", err
	}
	defer release()
	plain := filepath.Join(r.work, string(cay.NewInstanceID())+".plain")
	defer os.Remove(plain)
	if err := image.FromTree(ctx, dir, plain); err != nil {
		return "", "", err
	}
	capable, err := capableIn(dir)
	if err != nil {
		return "", "", err
	}
	r.tellCapable(baseStep, capable)
	tree, err := erofs.Open(plain)
	if err != nil {
		return "", "", disk.Error(err, "read the image's root")
	}
	defer tree.Close()
	if family, err = familyOf(tree); err != nil {
		return "", "", err
	}
	if err := putFiles(tree, r.work, files); err != nil {
		if full := disk.Error(err, "put Cay's files into the image"); full.Kind == cay.NoSpace {
			return "", "", full
		}
		return "", "", cay.Wrap(cay.Invalid, err, "the image has no room for what sandboxes need: %v", err)
	}
	f, err := os.CreateTemp(r.work, "image-")
	if err != nil {
		return "", "", disk.Error(err, "make room for a root image")
	}
	if err := errors.Join(tree.Write(ctx, f), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", "", diskError(ctx, err, "write a root image")
	}
	return f.Name(), family, nil
}

// putFiles puts files into a tree. Their content goes through one temporary
// file, which has no name any more when this returns.
func putFiles(tree *erofs.Tree, dir string, files []image.File) error {
	f, err := os.CreateTemp(dir, "files-")
	if err != nil {
		return err
	}
	os.Remove(f.Name())
	tree.Own(f)
	var at int64
	for _, file := range files {
		if _, err := f.WriteAt(file.Data, at); err != nil {
			return err
		}
		node := erofs.Node{
			Mode: 0o100000 | uint32(file.Mode.Perm()), Mtime: time.Unix(1577836800, 0),
			Size: int64(len(file.Data)), File: f, Offset: at,
		}
		if err := tree.Put(strings.TrimPrefix(file.Path, "/"), node); err != nil {
			return err
		}
		at += int64(len(file.Data))
	}
	// The engine mounts over these, so they must be there.
	for _, dir := range []string{"dev", "proc", "sys", strings.TrimPrefix(guest.ReservedMount, "/")} {
		if n := tree.Lookup(dir); n != nil && n.IsDir() {
			continue
		}
		if err := tree.Put(dir, erofs.Node{Mode: 0o040755, Mtime: time.Unix(1577836800, 0)}); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := tree.Put(dir, erofs.Node{Mode: 0o041777, Mtime: time.Unix(1577836800, 0)}); err != nil {
			return err
		}
	}
	return nil
}

// families are the systems that the script knows, by the ids in os-release.
var families = map[string]string{
	"debian": "debian", "ubuntu": "debian",
	"fedora": "fedora", "rhel": "fedora", "centos": "fedora", "rocky": "fedora", "almalinux": "fedora", "amzn": "fedora",
	"alpine": "alpine",
	"arch":   "arch",
}

const osReleaseMost = 64 << 10

// familyOf reads os-release: its ID, else one of those that it is like.
func familyOf(tree *erofs.Tree) (string, error) {
	fields := map[string]string{}
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		n := tree.Lookup(name)
		for links := 0; n != nil && n.IsSymlink() && links < 8; links++ {
			if name = path.Join(path.Dir(name), n.Target); path.IsAbs(n.Target) {
				name = strings.TrimPrefix(n.Target, "/")
			}
			n = tree.Lookup(name)
		}
		if n == nil || !n.IsRegular() {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(n.Content(), osReleaseMost))
		if err != nil {
			return "", disk.Error(err, "read the image's os-release")
		}
		maps.Copy(fields, osRelease(text))
		break
	}
	for _, id := range append([]string{fields["ID"]}, strings.Fields(fields["ID_LIKE"])...) {
		if family := families[id]; family != "" {
			return family, nil
		}
	}
	return "", cay.Errorf(cay.Invalid, "the image's system ID='%.80s' is not supported", fields["ID"]).
		WithHint("Debian, Ubuntu, Fedora, Alpine and Arch, and what is like them, are")
}

// osRelease reads lines of NAME=value, quoted or not.
func osRelease(text []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		if ok {
			out[name] = strings.Trim(value, `"'`)
		}
	}
	return out
}
