package main

import (
	"archive/tar"
	"bufio"
	"path"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/cli/parcel"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// packStage adds what a COPY takes of a stage before it.
func (b *dockerBuild) packStage(p *parcel.Parcel, c dockerfile.Copy) error {
	if len(c.Exclude) > 0 || c.Parents {
		return cay.Errorf(cay.Unsupported, "--exclude and --parents are for files of the context")
	}
	box, err := b.box(c.Stage)
	if err != nil {
		return err
	}
	for _, f := range c.Contents {
		if err := p.Content(f.Name, f.Data); err != nil {
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
				err = p.Directory()
			}
			if err != nil {
				return err
			}
		}
		in, err := box.ReadTar(b.app.ctx, dir, "root")
		if err != nil {
			return err
		}
		err = p.AddAll(tar.NewReader(bufio.NewReaderSize(in, 1<<16)), func(name string, dir bool) (string, bool) { return matched(pattern, name, dir) })
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

// matched returns the destination of a file whose name, or that of a directory
// above it, is of a pattern: a file keeps its own name, a directory's contents go
// below the destination.
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
