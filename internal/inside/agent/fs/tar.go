package fs

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/gzip"

	"github.com/cay-run/cay/internal/guest/archive"
)

// pack serves GET /files/tar.
func (s *Service) pack(w http.ResponseWriter, r *http.Request, c call) error {
	path, err := c.target(c.query.Get("path"))
	if err != nil {
		return err
	}
	// A link named by the caller is followed, links inside are packed.
	st, err := os.Stat(path)
	if err != nil {
		return lookFault(path, err)
	}
	if !st.IsDir() && !st.Mode().IsRegular() {
		return invalid("path '%s' is neither a directory nor a regular file", path)
	}
	name := filepath.Base(path)
	if st.IsDir() {
		name = "."
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return lookFault(path, err)
	}
	coding, ok := negotiate(r.Header)
	if !ok {
		return &fault{status: http.StatusNotAcceptable, msg: "no content coding that the request accepts is supported; supported are gzip and identity"}
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Type", "application/x-tar")
	h.Set("Content-Disposition", disposition(filepath.Base(path)+".tar"))
	out := io.Writer(w)
	var z *gzip.Writer
	if coding == codingGzip {
		h.Set("Content-Encoding", codingGzip)
		z = gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(z)
		z.Reset(w)
		out = z
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	names := s.users.Names()
	err = archive.Packer{User: names.User, Group: names.Group}.Pack(out, path, name)
	if err == nil && z != nil {
		err = z.Close()
	}
	if err != nil {
		s.log.Warn("archive broken off", "path", path, "err", err)
		abort()
	}
	return nil
}

// unpack serves POST and PUT /files/tar.
func (s *Service) unpack(w http.ResponseWriter, r *http.Request, c call) error {
	dir, err := c.target(c.query.Get("path"))
	if err != nil {
		return err
	}
	body, err := requestBody(r)
	if err != nil {
		return err
	}
	defer body.Close()
	// Look at the archive before anything is made for it.
	in := bufio.NewReaderSize(body, bufSize)
	if _, err := in.Peek(1); err != nil {
		if errors.Is(err, io.EOF) {
			return invalid("the archive is empty")
		}
		return err
	}
	if _, err := makeDirs(dir, c.user); err != nil {
		return err
	}
	stats, err := archive.Unpack(r.Context(), in, dir, &archive.Owner{UID: int(c.user.UID), GID: int(c.user.GID)})
	var bad *archive.FormatError
	if errors.As(err, &bad) {
		return invalid("%s", bad.Reason)
	}
	if err != nil {
		return pathFault(dir, err)
	}
	return writeJSON(w, stats)
}
