package fs

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/inside/agent/user"
)

// written is what an upload says of each file.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload serves POST /files.
func (s *Service) upload(w http.ResponseWriter, r *http.Request, c call) error {
	metadata, err := headerMetadata(r.Header)
	if err != nil {
		return err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return invalid("the content type cannot be read: %s", err)
	}
	body, err := requestBody(r)
	if err != nil {
		return err
	}
	defer body.Close()
	up := uploading{call: c, metadata: metadata, seen: map[string]bool{}}
	switch kind {
	case "application/octet-stream":
		if !c.query.Has("path") {
			return invalid("an upload of type application/octet-stream needs the query parameter 'path'")
		}
		size := int64(-1)
		if r.Header.Get("Content-Encoding") == "" {
			size = r.ContentLength
		}
		err = up.file(c.query.Get("path"), body, size)
	case "multipart/form-data":
		err = up.form(body, params["boundary"], func(path string, content io.Reader) error {
			return up.file(path, content, -1)
		})
	default:
		return invalid("content type '%s' is not supported; use multipart/form-data or application/octet-stream", kind)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, up.done)
}

// uploading is one request's files.
type uploading struct {
	call
	metadata map[string]string
	seen     map[string]bool
	done     []written
}

// form calls file for each file of a multipart body.
func (up *uploading) form(body io.Reader, boundary string, file func(path string, content io.Reader) error) error {
	if boundary == "" {
		return invalid("the multipart content type has no boundary")
	}
	// The multipart reader itself reads in units of 4 KiB.
	count := 0
	parts := multipart.NewReader(bufio.NewReaderSize(body, bufSize), boundary)
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return partFault(err)
		}
		d, ok := parseDisposition(part.Header.Get("Content-Disposition"))
		if !ok || d.name != "file" {
			continue
		}
		path := d.file
		if up.query.Has("path") {
			if count > 0 {
				return invalid("the query parameter 'path' names one file, but the request has several")
			}
			path = up.query.Get("path")
		} else if path == "" {
			return invalid("a part has no file name and the request no query parameter 'path'")
		}
		if err := file(path, partReader{part}); err != nil {
			return err
		}
		count++
	}
	if count == 0 {
		return invalid("the request has no part named 'file'")
	}
	return nil
}

// partReader makes errors of the form the client's fault.
type partReader struct{ r io.Reader }

func (p partReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err != nil && err != io.EOF {
		err = partFault(err)
	}
	return n, err
}

func partFault(err error) error {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return invalid("the multipart body cannot be read: %s", err)
}

// file writes one file. size is that of content, -1 if unknown.
func (up *uploading) file(path string, content io.Reader, size int64) error {
	target, err := up.target(path)
	if err != nil {
		return err
	}
	if up.seen[target] {
		return invalid("the request has '%s' twice", target)
	}
	up.seen[target] = true
	if err := writeFile(target, content, size, up.user, up.metadata); err != nil {
		return err
	}
	up.done = append(up.done, written{Path: target, Name: filepath.Base(target), Type: "file", Metadata: up.metadata})
	return nil
}

// writeFile makes content the whole of the file at path, owned by u, with
// missing parents made for it. A watcher sees a new small file as exactly
// three events: created, attributes changed, written. So the owner comes
// before the content, and content that fits the buffer is one write. size is
// the length of the content, -1 if unknown. At an error no part of a new file
// stays.
func writeFile(path string, content io.Reader, size int64, u user.User, metadata map[string]string) error {
	if _, err := makeDirs(filepath.Dir(path), u); err != nil {
		return err
	}
	f, isNew, err := openTarget(path)
	if err != nil {
		return pathFault(path, err)
	}
	err = fill(f, content, size, u, metadata, isNew)
	real := path
	if err != nil && isNew { // the name that a link led to
		if p, lerr := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); lerr == nil {
			real = p
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		return nil
	}
	if isNew {
		_ = os.Remove(real)
	}
	return pathFault(path, err)
}

// openTarget opens a file to be overwritten and says whether it is new.
func openTarget(path string) (f *os.File, isNew bool, err error) {
	const flags = os.O_WRONLY | syscall.O_NONBLOCK // a FIFO does not wait for readers
	f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		return f, true, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	f, err = os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) { // a link to nothing makes what it names
		f, err = os.OpenFile(path, flags|os.O_CREATE, 0o644)
		return f, true, err
	}
	return f, false, err
}

func fill(f *os.File, content io.Reader, size int64, u user.User, metadata map[string]string, isNew bool) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return invalid("path '%s' is not a regular file", f.Name())
	}
	if err := room(f, size-st.Size()); err != nil {
		return err
	}
	if err := f.Chown(int(u.UID), int(u.GID)); err != nil {
		return err
	}
	if st.Size() > 0 {
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	if err := writeAll(f, content); err != nil {
		return err
	}
	return replaceMetadata(f, metadata, isNew)
}

// room fails early where size bytes more cannot fit.
func room(f *os.File, size int64) error {
	var st unix.Statfs_t
	if size < bufSize || unix.Fstatfs(int(f.Fd()), &st) != nil || st.Blocks == 0 || st.Bsize <= 0 {
		return nil // writing will tell
	}
	if uint64(size)/uint64(st.Bsize) > st.Bfree {
		return syscall.ENOSPC
	}
	return nil
}

// writeAll copies in units of the buffer, so that less than one is a single
// write whatever the reads give.
func writeAll(f *os.File, content io.Reader) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := io.ReadFull(content, *buf)
		if n > 0 {
			if _, werr := f.Write((*buf)[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF: // ReadFull's own: the end
			return nil
		case err != nil:
			return err
		}
	}
}
