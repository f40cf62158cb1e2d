package parcel

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
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

// source adds all that one source means.
func (c *Context) source(p *Parcel, src string, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) error {
	clean := strings.TrimPrefix(path.Clean("/"+src), "/") // what climbs out stays at the top, as with Docker
	if clean == "" {
		clean = "."
	}
	names, err := fs.Glob(os.DirFS(c.dir), clean)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "%q is no good pattern", src)
	}
	found := false
	for _, name := range names {
		some, err := c.walk(p, name, cp, exclude)
		if err != nil {
			return err
		}
		found = found || some
	}
	if !found {
		return cay.Errorf(cay.NotFound, "%q is not in the context, or left out by .dockerignore", src)
	}
	return nil
}

// walk adds a file, or what a directory holds.
func (c *Context) walk(p *Parcel, top string, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) (found bool, err error) {
	err = filepath.WalkDir(filepath.Join(c.dir, filepath.FromSlash(top)), func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot read %s", full)
		}
		rel, err := filepath.Rel(c.dir, full)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if skip, err := c.skips(rel, exclude); err != nil || skip {
			if skip && d.IsDir() && !c.ignore.Exclusions() && !exclude.Exclusions() {
				return fs.SkipDir
			}
			return err
		}
		found = true
		to := strings.TrimPrefix(strings.TrimPrefix(rel, top), "/")
		switch {
		case cp.Parents:
			to = rel
		case top == ".":
			to = rel
		case rel == top && !d.IsDir():
			to = path.Base(rel)
		}
		if rel == top && d.IsDir() && !cp.Parents {
			return p.Directory()
		}
		if cp.Add && rel == top && d.Type().IsRegular() {
			if done, err := unpackInto(p, full); done || err != nil {
				return err
			}
		}
		return addFile(p, full, to, d)
	})
	return found, err
}

func (c *Context) skips(rel string, exclude *patternmatcher.PatternMatcher) (bool, error) {
	if rel == "." {
		return false, nil
	}
	for _, m := range []*patternmatcher.PatternMatcher{c.ignore, exclude} {
		skip, err := m.MatchesOrParentMatches(rel)
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
