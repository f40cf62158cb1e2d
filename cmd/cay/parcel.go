package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// parcel is the archive of one COPY, laid out as it is to lie below its
// destination, in a temporary file without a name: it goes with the process.
type parcel struct {
	file   *os.File
	out    *bufio.Writer
	tar    *tar.Writer
	sum    hash.Hash // of what matters: not of times
	names  []string
	dirs   bool
	single string // the name of its only file
	size   int64
}

func newParcel() (*parcel, error) {
	f, err := tempFile()
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(f, 1<<18)
	return &parcel{file: f, out: out, tar: tar.NewWriter(out), sum: sha256.New()}, nil
}

func (p *parcel) remove() { p.file.Close() }

func (p *parcel) open() (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(p.file, 0, p.size)), nil
}

// tempFile makes a file that goes when it is closed.
func tempFile() (*os.File, error) {
	f, err := os.CreateTemp("", "cay-")
	if err != nil {
		return nil, tempError(err)
	}
	return f, os.Remove(f.Name())
}

// tempError is a failure of a temporary file.
func tempError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return cay.Wrap(cay.NoSpace, err, "no room for a temporary file in %s", os.TempDir()).WithHint("set TMPDIR to a directory that has some")
	}
	return cay.Wrap(cay.Internal, err, "write a temporary file")
}

// add adds an entry. Its content, if it has one, is read from r.
func (p *parcel) add(h *tar.Header, r io.Reader) error {
	h.Name = strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if h.Name == "" {
		return nil // the destination itself
	}
	if h.Typeflag == tar.TypeDir {
		p.dirs = true
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	p.names = append(p.names, h.Name)
	fmt.Fprintf(p.sum, "%q %c %o %d %q\n", h.Name, h.Typeflag, h.Mode&0o7777, h.Size, h.Linkname)
	if err := p.tar.WriteHeader(h); err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot pack %s: %v", h.Name, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, read, err := disk.Copy(io.MultiWriter(p.tar, p.sum), r)
	var ours *cay.Error
	switch {
	case errors.As(read, &ours):
		return read
	case errors.Is(err, syscall.ENOSPC):
		return tempError(err)
	case read != nil:
		return cay.Wrap(cay.Invalid, read, "cannot pack %s: %v", h.Name, read)
	case err != nil:
		return cay.Wrap(cay.Invalid, err, "cannot pack %s: %v", h.Name, err)
	}
	return nil
}

// content adds a file that is here as text.
func (p *parcel) content(name, data string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
	return p.add(h, strings.NewReader(data))
}

// directory says that the parcel is what a directory holds, even if that is
// one file.
func (p *parcel) directory() error {
	if p.dirs {
		return nil
	}
	p.dirs = true
	return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755})
}

// seal ends the archive.
func (p *parcel) seal() error {
	if len(p.names) == 0 && !p.dirs {
		return cay.Errorf(cay.NotFound, "no files to copy")
	}
	if len(p.names) == 1 && !p.dirs {
		p.single = p.names[0]
	}
	if err := errors.Join(p.tar.Close(), p.out.Flush()); err != nil {
		return tempError(err)
	}
	info, err := p.file.Stat()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "write a temporary file")
	}
	p.size = info.Size()
	return nil
}

// hash names the content and what is done with it.
func (p *parcel) hash(args []string) string {
	all := sha256.New()
	fmt.Fprintf(all, "%q %x", args, p.sum.Sum(nil))
	return hex.EncodeToString(all.Sum(nil))
}

// buildContext is the directory that COPY takes files from.
type buildContext struct {
	dir    string
	ignore *patternmatcher.PatternMatcher
}

// openContext reads <Dockerfile>.dockerignore, else .dockerignore.
func openContext(dir, dockerfile string) (*buildContext, error) {
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
	return &buildContext{dir: dir, ignore: ignore}, nil
}

// pack adds what a COPY or ADD takes of the context, the net and the
// Dockerfile.
func (c *buildContext) pack(ctx context.Context, p *parcel, cp dockerfile.Copy) error {
	exclude, err := patternmatcher.New(cp.Exclude)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "a pattern of --exclude is wrong: %v", err)
	}
	for _, f := range cp.Contents {
		if err := p.content(f.Name, f.Data); err != nil {
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
func (c *buildContext) source(p *parcel, src string, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) error {
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
func (c *buildContext) walk(p *parcel, top string, cp dockerfile.Copy, exclude *patternmatcher.PatternMatcher) (found bool, err error) {
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
			return p.directory()
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

func (c *buildContext) skips(rel string, exclude *patternmatcher.PatternMatcher) (bool, error) {
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
func addFile(p *parcel, full, name string, d fs.DirEntry) error {
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

// addAll adds the entries of another archive that keep wants, under the names
// that it gives.
func addAll(p *parcel, in *tar.Reader, keep func(name string, dir bool) (string, bool)) error {
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "an archive is damaged: %v", err)
		}
		if !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}, h.Typeflag) {
			continue
		}
		name, ok := keep(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), h.Typeflag == tar.TypeDir)
		if !ok {
			continue
		}
		next := &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode & 0o7777, Size: h.Size, ModTime: h.ModTime}
		if h.Typeflag == tar.TypeLink {
			if next.Linkname, ok = keep(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), false); !ok {
				return cay.Errorf(cay.Unsupported, "%s is a hard link to what is not copied", h.Name)
			}
		}
		if err := p.add(next, in); err != nil {
			return err
		}
	}
}
