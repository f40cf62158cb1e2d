package build

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// graftAbove is how many files a COPY has that makes a layer of its archive
// without the sandbox: each file that is made inside costs more than a
// millisecond, and the sandbox's next start, from an image with them in it,
// less than a thousand times that.
const graftAbove = 1000

// graftBytes is what an archive has that becomes a layer so as well: inside,
// its contents would be written twice, and every later step would read them
// again to see that they are known.
const graftBytes = 256 << 20

const passwdMost = 1 << 20

// tree reads the root as the steps so far have left it.
func (r *run) tree() (*erofs.Tree, error) {
	base, err := r.cfg.Snapshots.Image(r.root)
	if err != nil {
		return nil, err
	}
	tree, err := erofs.Open(base)
	if err != nil {
		return nil, disk.Error(err, "read the base's root image")
	}
	if err := r.layers.Apply(tree, r.state.Layer); err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return tree, nil
}

// account is a line of /etc/passwd.
type account struct {
	name     string
	uid, gid int
}

// accountIn finds a user by name or number; ok is false where the sandbox has
// to be asked.
func accountIn(tree *erofs.Tree, user string) (a account, ok bool) {
	n := tree.Lookup("etc/passwd")
	if n == nil || !n.IsRegular() || n.Size > passwdMost {
		return a, false
	}
	for lines := bufio.NewScanner(n.Content()); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] != user && fields[2] != user {
			continue
		}
		uid, uerr := strconv.ParseUint(fields[2], 10, 31)
		gid, gerr := strconv.ParseUint(fields[3], 10, 31)
		return account{fields[0], int(uid), int(gid)}, uerr == nil && gerr == nil
	}
	return a, false
}

const linksMost = 40

// dirIn finds the directory that a path means, links followed.
func dirIn(tree *erofs.Tree, name string) (real string, ok bool) {
	rest, links := strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		next := path.Join("/", real, part)
		n := tree.Lookup(next)
		switch {
		case n == nil:
			return "", false
		case n.IsSymlink():
			if links++; links > linksMost {
				return "", false
			}
			if path.IsAbs(n.Target) {
				real = "/"
			}
			rest = append(strings.Split(n.Target, "/"), rest...)
		case !n.IsDir():
			return "", false
		default:
			real = next
		}
	}
	return path.Join("/", real), true
}

// placeIn is what resolveDir does inside.
func placeIn(tree *erofs.Tree, dest string) (dir string, there bool) {
	for up := dest; ; up = path.Dir(up) {
		if real, ok := dirIn(tree, up); ok {
			return path.Join(real, strings.TrimPrefix(dest, up)), up == dest
		}
	}
}

// onHost carries a step out that needs no program, where the sandbox would
// take longer: a COPY of much, and what needs no sandbox while there is
// none. It reports whether it did.
func (r *run) onHost(ctx context.Context, s cay.BuildStep) (bool, error) {
	if s.Type == "COPY" {
		c, much, err := r.copyPlan(s)
		if err != nil || !much {
			return false, err
		}
		return r.graft(ctx, s, c)
	}
	if r.box != nil || s.Type == "RUN" {
		return false, nil
	}
	if s.Type == "ENV" {
		env, err := r.newEnv(s)
		if err != nil || env["PATH"] != r.state.Env["PATH"] {
			return false, err
		}
		r.state.Env = env
		return true, nil
	}
	tree, err := r.tree()
	if err != nil {
		return false, err
	}
	defer tree.Close()
	switch s.Type {
	case "WORKDIR":
		dir := r.newDir(s)
		if _, ok := dirIn(tree, dir); ok {
			r.state.Dir = dir
			return true, nil
		}
	case "USER":
		if name := r.newUser(s); name != "" {
			if a, ok := accountIn(tree, name); ok {
				r.state.User = a.name
				return true, nil
			}
		}
	}
	return false, nil
}

// graft makes a layer of a COPY's archive. It reports whether it did: where
// the tree does not name the owner, the sandbox has to.
func (r *run) graft(ctx context.Context, s cay.BuildStep, c copying) (bool, error) {
	tree, err := r.tree()
	if err != nil {
		return false, err
	}
	defer tree.Close()
	owner, ok := accountIn(tree, c.user)
	if !ok {
		return false, nil
	}
	dir, there := placeIn(tree, c.dest)
	dir, c.name = c.target(dir, there)
	in, err := r.openUpload(r.spec.Team, s.FilesHash)
	if err != nil {
		return false, err
	}
	defer in.Close()
	g := &grafting{tree: tree, owner: owner, dir: dir}
	c.put = g.put
	most := int64(r.spec.Limits.DiskMB) << 20
	out, pipe := io.Pipe()
	translated := make(chan error, 1)
	go func() {
		err := translate(pipe, in, c, most)
		pipe.CloseWithError(err)
		translated <- err
	}()
	l, err := r.layers.Add(ctx, r.state.Layer, nil, out, most)
	out.CloseWithError(io.ErrClosedPipe)
	if terr := <-translated; terr != nil && !errors.Is(terr, io.ErrClosedPipe) {
		return false, terr
	}
	if err != nil {
		return false, err
	}
	r.leave() // it does not see them
	r.state.Layer, r.last = l.Digest, nil
	return true, nil
}

// grafting puts the entries of an archive over a tree as the agent unpacks it
// into the directory dir (internal/guest/archive), and tells what changed
// as a tar of the whole root. The tree itself is for looking: it gets no
// contents.
type grafting struct {
	tree  *erofs.Tree
	owner account
	dir   string
}

func (g *grafting) put(out *tar.Writer, h *tar.Header) error {
	name := path.Join(g.dir, h.Name)
	if err := g.parents(out, path.Dir(name)); err != nil {
		return err
	}
	h.Uid, h.Gid, h.Mode = g.owner.uid, g.owner.gid, h.Mode&0o777
	old := g.tree.Lookup(name)
	node := erofs.Node{Mtime: h.ModTime, UID: uint32(h.Uid), GID: uint32(h.Gid)}
	switch {
	case h.Typeflag == tar.TypeDir:
		if old != nil && old.IsDir() {
			h.Uid, h.Gid = int(old.UID), int(old.GID)
			node.UID, node.GID = old.UID, old.GID
		}
		if old != nil && old.IsSymlink() {
			return linkInTheWay(name)
		}
		node.Mode = 0o040000
	case old != nil && old.IsDir():
		return cay.Errorf(cay.Invalid, "failed to run COPY: a directory is in the way of the archive's entry %.200q", h.Name)
	case h.Typeflag == tar.TypeLink:
		return g.link(out, h, name)
	case h.Typeflag == tar.TypeSymlink:
		h.Mode, node.Mode, node.Target = 0o777, 0o120000, h.Linkname
	default:
		node.Mode = 0o100000
	}
	node.Mode |= uint32(h.Mode)
	if err := g.tree.Put(name, node); err != nil {
		return cay.Wrap(cay.Invalid, err, "failed to run COPY: %v", err)
	}
	h.Name = rooted(name)
	return out.WriteHeader(h)
}

// rooted is a path as a layer has it.
func rooted(name string) string { return strings.TrimPrefix(name, "/") }

func (g *grafting) link(out *tar.Writer, h *tar.Header, name string) error {
	target := path.Join(g.dir, h.Linkname)
	if target == name {
		return nil
	}
	if !strings.HasPrefix(target, strings.TrimSuffix(g.dir, "/")+"/") {
		return cay.Errorf(cay.Invalid, "failed to run COPY: the archive links to %.200q, which is not in it", h.Linkname)
	}
	if err := g.parents(out, path.Dir(target)); err != nil {
		return err
	}
	if err := g.tree.Link(name, target); err != nil {
		return cay.Errorf(cay.Invalid, "failed to run COPY: the archive links to %.200q, which is not there", h.Linkname)
	}
	h.Name, h.Linkname = rooted(name), rooted(target)
	return out.WriteHeader(h)
}

// parents makes the directories on the way to an entry that are not there.
func (g *grafting) parents(out *tar.Writer, dir string) error {
	if dir == "/" {
		return nil
	}
	n := g.tree.Lookup(dir)
	if n != nil && n.IsDir() {
		return nil
	}
	if n != nil && n.IsSymlink() {
		return linkInTheWay(dir)
	}
	if n != nil && !strings.HasPrefix(dir, strings.TrimSuffix(g.dir, "/")+"/") {
		return cay.Errorf(cay.Invalid, "failed to run COPY: path '%s' exists and is not a directory", dir)
	}
	if err := g.parents(out, path.Dir(dir)); err != nil {
		return err
	}
	h := &tar.Header{
		Typeflag: tar.TypeDir, Name: rooted(dir) + "/", Mode: 0o755, ModTime: time.Now().Truncate(time.Second),
		Uid: g.owner.uid, Gid: g.owner.gid, Format: tar.FormatPAX,
	}
	if err := g.tree.Put(dir, erofs.Node{Mode: 0o040755, UID: uint32(h.Uid), GID: uint32(h.Gid), Mtime: h.ModTime}); err != nil {
		return cay.Wrap(cay.Invalid, err, "failed to run COPY: %v", err)
	}
	return out.WriteHeader(h)
}

func linkInTheWay(dir string) error {
	return cay.Errorf(cay.Invalid, "failed to run COPY: the archive's directory %.200q is a link here, which is not followed", dir)
}
