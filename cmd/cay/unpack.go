package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// unpackInto adds what a local archive of an ADD holds, and reports whether
// the file is one: a tar, plain or packed with gzip or bzip2.
func unpackInto(p *parcel, name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, cay.Wrap(cay.Invalid, err, "cannot read %s", name)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var r io.Reader = in
	magic, _ := in.Peek(6)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if r, err = gzip.NewReader(in); err != nil {
			return false, nil
		}
	case bytes.HasPrefix(magic, []byte("BZh")):
		r = bzip2.NewReader(in)
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")), bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return false, cay.Errorf(cay.Unsupported, "ADD of %s: xz and zstd archives are not unpacked here", path.Base(name)).
			WithHint("pack it with gzip, or COPY it and unpack it with RUN")
	}
	// A tar says so at the 257th byte; a gzipped file may be no tar.
	plain := bufio.NewReaderSize(r, 1<<16)
	head, err := plain.Peek(512)
	if len(head) < 512 || string(head[257:262]) != "ustar" {
		if errors.Is(err, gzip.ErrChecksum) {
			return false, cay.Wrap(cay.Invalid, err, "the archive %s is damaged", name)
		}
		return false, nil
	}
	if err := p.directory(); err != nil {
		return true, err
	}
	return true, addAll(p, tar.NewReader(plain), func(name string, _ bool) (string, bool) { return name, true })
}

// packStage adds what a COPY takes of a stage before it.
func (b *dockerBuild) packStage(p *parcel, c dockerfile.Copy) error {
	if len(c.Exclude) > 0 || c.Parents {
		return cay.Errorf(cay.Unsupported, "--exclude and --parents are for files of the context")
	}
	box, err := b.box(c.Stage)
	if err != nil {
		return err
	}
	for _, f := range c.Contents {
		if err := p.content(f.Name, f.Data); err != nil {
			return err
		}
	}
	for _, src := range c.Sources {
		src = path.Clean("/" + src)
		dir, pattern := globbed(src)
		if pattern == "" {
			e, err := box.Stat(b.app.ctx, src, "root")
			if err != nil {
				return err
			}
			if e.Dir {
				err = p.directory()
			}
			if err != nil {
				return err
			}
		}
		in, err := box.ReadTar(b.app.ctx, dir, "root")
		if err != nil {
			return err
		}
		err = addAll(p, tar.NewReader(bufio.NewReaderSize(in, 1<<16)), func(name string, dir bool) (string, bool) { return matched(pattern, name, dir) })
		in.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// globbed cuts a path before its first part that is a pattern.
func globbed(src string) (dir, pattern string) {
	parts := strings.Split(src, "/")
	for i, part := range parts {
		if strings.ContainsAny(part, `*?[\`) {
			return path.Join("/", path.Join(parts[:i]...)), path.Join(parts[i:]...)
		}
	}
	return src, ""
}

// matched returns where a file goes whose name, or that of a directory above
// it, is of a pattern: a file under its own name, what is in a directory below
// the destination.
func matched(pattern, name string, dir bool) (string, bool) {
	if pattern == "" {
		return name, true
	}
	depth := strings.Count(pattern, "/") + 1
	parts := strings.Split(name, "/")
	if len(parts) < depth {
		return "", false
	}
	if ok, err := path.Match(pattern, path.Join(parts[:depth]...)); err != nil || !ok {
		return "", false
	}
	if len(parts) == depth {
		return parts[depth-1], !dir
	}
	return path.Join(parts[depth:]...), true
}
