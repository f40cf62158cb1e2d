package runsc

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Changes implements engine.Engine. It takes a file checkpoint of the running
// instance, which is consistent, and turns it into a layer.
//
// A layer cannot say everything: sockets, and extended attributes that are
// empty or not UTF-8, are left out by gVisor; files that are named like
// whiteouts are left out here.
func (e *Engine) Changes(ctx context.Context, id cay.InstanceID) (io.ReadCloser, error) {
	in, err := e.get(id)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(in.Dir, "changes-")
	if err != nil {
		return nil, disk.Error(err, "cannot make room for the changed files of instance %s", id)
	}
	out, err := e.changes(ctx, in, dir)
	if err != nil {
		os.RemoveAll(dir)
		return nil, disk.Error(err, "cannot read the changed files of instance %s", id)
	}
	return out, nil
}

func (e *Engine) changes(ctx context.Context, in *instance, dir string) (io.ReadCloser, error) {
	if _, err := e.call(ctx, in.record, "fscheckpoint", "--leave-running", "--image-path="+dir, string(in.ID)); err != nil {
		return nil, err
	}
	files, err := openSaved(dir)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := files.layer(w)
		files.close()
		w.CloseWithError(err)
	}()
	return &layerStream{PipeReader: r, done: done, dir: dir}, nil
}

// layerStream removes the checkpoint when the reader is done with it.
type layerStream struct {
	*io.PipeReader
	done chan struct{}
	dir  string
}

func (l *layerStream) Close() error {
	l.PipeReader.Close()
	<-l.done
	return os.RemoveAll(l.dir)
}

// saved is a file checkpoint on disk.
type saved struct {
	multi, pages *os.File
	trees        []*savedTree
}

// savedTree is one file system of a checkpoint.
type savedTree struct {
	below string    // where it is mounted, without a slash in front; empty for the root
	tree  io.Reader // a tar whose bodies say where the contents are
	pages *os.File
	index []extent // where in pages a part of gVisor's memory file lies

	removed map[string]bool // names that were met of what is removed
}

func openSaved(dir string) (*saved, error) {
	text, err := os.ReadFile(filepath.Join(dir, "fscheckpoint.pb"))
	if err != nil {
		return nil, err
	}
	manifest, err := parseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("manifest of a file checkpoint: %w", err)
	}
	meta, err := os.ReadFile(filepath.Join(dir, "pages_meta.img"))
	if err != nil {
		return nil, err
	}
	s := new(saved)
	if s.multi, err = os.Open(filepath.Join(dir, "multitar.img")); err != nil {
		return nil, err
	}
	if s.pages, err = os.Open(filepath.Join(dir, "pages.img")); err != nil {
		s.multi.Close()
		return nil, err
	}
	for _, m := range manifest {
		index, err := parseIndex(meta, m)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("page index of a file checkpoint: %w", err)
		}
		s.trees = append(s.trees, &savedTree{
			below: strings.TrimPrefix(m.at, "/"), pages: s.pages, index: index,
			tree: io.NewSectionReader(s.multi, m.tarStart, m.tarEnd-m.tarStart),
		})
	}
	return s, nil
}

func (s *saved) close() {
	s.multi.Close()
	s.pages.Close()
}

// each visits the files of all trees as an OCI layer has them.
func (s *saved) each(visit func(*tar.Header, io.Reader) error) error {
	for _, t := range s.trees {
		if err := t.each(visit); err != nil {
			return err
		}
	}
	return nil
}

// ReadFiles implements engine.Engine.
func (e *Engine) ReadFiles(dir string, visit func(*tar.Header, io.Reader) error) error {
	files, err := openSaved(filepath.Join(dir, layerName))
	if errors.Is(err, os.ErrNotExist) {
		return cay.Wrap(cay.NotFound, err, "the files of the snapshot in %s are missing", dir)
	}
	if err != nil {
		return disk.Error(err, "cannot read the files of the snapshot in %s", dir)
	}
	defer files.close()
	return files.each(visit)
}

// layer writes the tree as an OCI layer.
func (s *saved) layer(w io.Writer) error {
	out := tar.NewWriter(w)
	err := s.each(func(h *tar.Header, body io.Reader) error {
		if err := out.WriteHeader(h); err != nil || h.Size == 0 {
			return err
		}
		_, err := io.Copy(out, body)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// each visits the tree's files.
func (s *savedTree) each(visit func(*tar.Header, io.Reader) error) error {
	in := tar.NewReader(s.tree)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.entry(in, visit, h); err != nil {
			return fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
}

const (
	whiteout  = ".wh."
	opaque    = ".wh..wh..opq"
	paxXattr  = "SCHILY.xattr."
	ovlXattrs = "trusted.overlay."
)

func (s *savedTree) entry(in io.Reader, visit func(*tar.Header, io.Reader) error, h *tar.Header) error {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" || strings.HasPrefix(path.Base(name), whiteout) {
		return nil
	}
	none := strings.NewReader("")
	// Removed files are one device with many names: the second one on is a
	// link to the first.
	target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 || h.Typeflag == tar.TypeLink && s.removed[target] {
		if s.removed == nil {
			s.removed = map[string]bool{}
		}
		s.removed[name] = true
		if s.below != "" { // a removal in an image of Docker's, not one of the root
			return nil
		}
		dir, base := path.Split(name)
		return visit(&tar.Header{Name: dir + whiteout + base, Typeflag: tar.TypeReg, Mode: 0o600, ModTime: h.ModTime}, none)
	}
	next := *h
	next.Format = tar.FormatPAX
	next.Name = path.Join(s.below, name)
	replaces := takeOverlayMarks(&next) && s.below == ""
	switch h.Typeflag {
	case tar.TypeLink:
		next.Linkname = path.Join(s.below, target)
	case tar.TypeDir:
		next.Name += "/"
		if err := visit(&next, none); err != nil || !replaces {
			return err
		}
		return visit(&tar.Header{Name: next.Name + opaque, Typeflag: tar.TypeReg, Mode: 0o600, ModTime: h.ModTime}, none)
	case tar.TypeReg:
		body, size, err := s.body(in, h.Size)
		if err != nil {
			return err
		}
		next.Size = size
		return visit(&next, body)
	}
	return visit(&next, none)
}

// takeOverlayMarks removes what gVisor's overlay noted for itself and reports
// whether a directory hides the image's one of the same name.
func takeOverlayMarks(h *tar.Header) (replaces bool) {
	kept := make(map[string]string, len(h.PAXRecords))
	for k, v := range h.PAXRecords {
		attr, isXattr := strings.CutPrefix(k, paxXattr)
		switch {
		case !isXattr: // the writer makes these from the header's fields
		case strings.HasPrefix(attr, ovlXattrs):
			replaces = replaces || attr == ovlXattrs+"opaque" && v == "y"
		default:
			kept[k] = v
		}
	}
	h.PAXRecords = kept
	return replaces
}
