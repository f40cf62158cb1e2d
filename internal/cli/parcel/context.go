package parcel

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// Context is the directory that COPY takes files from.
type Context struct {
	dir    string
	ignore *patternmatcher.PatternMatcher
}

// OpenContext opens a directory, with what <Dockerfile>.dockerignore, else
// .dockerignore, leaves out of it.
func OpenContext(dir, dockerfile string) (*Context, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, cay.Errorf(cay.NotFound, "%s is no directory", dir)
	}
	var patterns []string
	for _, name := range []string{dockerfile + ".dockerignore", filepath.Join(dir, ".dockerignore")} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "cannot read %s", name)
		}
		patterns, err = ignorefile.ReadAll(f)
		f.Close()
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "cannot read %s", name)
		}
		break
	}
	ignore, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "a pattern of .dockerignore is wrong: %v", err)
	}
	return &Context{dir: dir, ignore: ignore}, nil
}

// Pack adds what a COPY or ADD takes of the context, the net and the
// Dockerfile.
func (c *Context) Pack(ctx context.Context, p *Parcel, cp dockerfile.Copy) error {
	exclude, err := patternmatcher.New(cp.Exclude)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "a pattern of --exclude is wrong: %v", err)
	}
	for _, f := range cp.Contents {
		if err := p.Content(f.Name, f.Data); err != nil {
			return err
		}
	}
	for _, src := range cp.Sources {
		if cp.Add && (strings.HasPrefix(src, "http://") || strings.HasPrefix(src, "https://")) {
			err = fetch(ctx, p, src, cp.Checksum)
		} else {
			err = c.source(p, src, cp, exclude)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// found is a file or directory that a source means.
type found struct {
	top  string // where it is in the context, links followed
	name string // as the source names it
	from string // the part of the path that --parents leaves out
}

// source adds all that one source means.
func (c *Context) source(p *Parcel, src string, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) error {
	var f found
	if before, _, pivot := strings.Cut(src, "/./"); pivot && cp.Parents {
		f.from = inContext(before)
	}
	clean := inContext(src)
	if clean == "" {
		clean = "."
	}
	names := []string{clean}
	var err error
	if strings.ContainsAny(clean, `*?[\`) {
		if names, err = fs.Glob(os.DirFS(c.dir), clean); err != nil {
			return cay.Wrap(cay.Invalid, err, "%q is no good pattern", src)
		}
	}
	any := false
	for _, name := range names {
		f.top, f.name = name, name
		if !cp.Parents {
			f.top = c.follow(name)
		}
		if _, err := os.Lstat(filepath.Join(c.dir, filepath.FromSlash(f.top))); f.top == "" || err != nil {
			continue
		}
		if cp.Parents {
			if err := c.parents(p, f); err != nil {
				return err
			}
		}
		some, err := c.walk(p, f, cp, exclude)
		if err != nil {
			return err
		}
		any = any || some
	}
	if !any {
		return cay.Errorf(cay.NotFound, "%q is not in the context, leads to what is not, or is left out by .dockerignore or --exclude", src)
	}
	return nil
}

// inContext is a path in the context: what climbs out stays at the top, as with Docker.
func inContext(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// linksMost is how many links a path may have.
const linksMost = 40

// follow returns the path that a name of the context leads to, within the context; empty
// for a circle.
// A link that a source names is followed; those in a directory are copied as they are.
func (c *Context) follow(name string) string {
	done, left := "", strings.Split(name, "/")
	for links := 0; len(left) > 0; {
		at := path.Join(done, left[0])
		left = left[1:]
		to, err := os.Readlink(filepath.Join(c.dir, filepath.FromSlash(at)))
		if err != nil { // no link
			done = at
			continue
		}
		if links++; links > linksMost {
			return ""
		}
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(at), to)
		}
		done, left = "", append(strings.Split(inContext(to), "/"), left...)
	}
	return cmp.Or(done, ".")
}

// parents adds the directories above what --parents keeps the path of.
func (c *Context) parents(p *Parcel, f found) error {
	if err := p.Directory(); err != nil { // a single file is not named by the destination
		return err
	}
	var above []string
	for dir := path.Dir(f.name); dir != "." && dir != f.from; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	for _, dir := range slices.Backward(above) {
		to := below(f.from, dir)
		if slices.Contains(p.names, to+"/") {
			continue
		}
		full := filepath.Join(c.dir, filepath.FromSlash(dir))
		info, err := os.Stat(full)
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
		}
		if err := addFile(p, full, to, fs.FileInfoToDirEntry(info)); err != nil {
			return err
		}
	}
	return nil
}

// below returns a path without the directory that it begins with.
func below(dir, name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
}

// walk adds a file, or what a directory holds.
func (c *Context) walk(p *Parcel, f found, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) (any bool, err error) {
	err = filepath.WalkDir(filepath.Join(c.dir, filepath.FromSlash(f.top)), func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
		}
		rel, err := filepath.Rel(c.dir, full)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		to := below(f.top, rel)
		switch {
		case cp.Parents:
			to = below(f.from, rel)
		case f.top == ".":
			to = rel
		case rel == f.top && !d.IsDir():
			to = path.Base(f.name)
		}
		if skip, err := c.skips(rel, to, exclude); err != nil || skip {
			if skip && d.IsDir() && !c.ignore.Exclusions() && !exclude.Exclusions() {
				return fs.SkipDir
			}
			return err
		}
		any = true
		if rel == f.top && d.IsDir() && !cp.Parents {
			return p.Directory()
		}
		if cp.Add && rel == f.top && d.Type().IsRegular() {
			if done, err := unpackInto(p, full); done || err != nil {
				return err
			}
		}
		return addFile(p, full, to, d)
	})
	return any, err
}

// skips reports whether .dockerignore or --exclude leaves a file out. The patterns of
// --exclude are of paths below the source, and those without an exception also of paths
// in the context: builders differ.
func (c *Context) skips(rel, to string, exclude *patternmatcher.PatternMatcher) (bool, error) {
	for _, try := range []struct {
		m    *patternmatcher.PatternMatcher
		name string
		on   bool
	}{{c.ignore, rel, true}, {exclude, to, true}, {exclude, rel, !exclude.Exclusions()}} {
		if !try.on || try.name == "." || try.name == "" {
			continue
		}
		skip, err := try.m.MatchesOrParentMatches(try.name)
		if err != nil {
			return false, cay.Wrap(cay.Invalid, err, "a pattern is wrong: %v", err)
		}
		if skip {
			return true, nil
		}
	}
	return false, nil
}

// addFile adds a file of this machine; sockets and the like are left out.
func addFile(p *Parcel, full, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(full); err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
		}
	} else if !info.IsDir() && !info.Mode().IsRegular() {
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot pack %s", full)
	}
	h.Name = name
	if !info.Mode().IsRegular() {
		return p.add(h, nil)
	}
	f, err := os.Open(full)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
	}
	defer f.Close()
	return p.add(h, f)
}
