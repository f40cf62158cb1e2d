package parcel

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// fetchMost bounds what an ADD fetches, in bytes.
const fetchMost = 4 << 30

// fetch adds what a URL leads to, under the last part of its path.
func fetch(ctx context.Context, p *Parcel, url, checksum string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "%q is no good URL", url)
	}
	name := path.Base(r.URL.Path)
	if name == "/" || name == "." {
		return cay.Errorf(cay.Invalid, "%s names no file", url)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot fetch %s: %v", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return cay.Errorf(cay.NotFound, "cannot fetch %s: %s", url, resp.Status)
	}
	sum := sha256.New()
	body, size, err := sized(resp)
	if err != nil {
		return err
	}
	defer body.Close()
	if size > fetchMost {
		return cay.Errorf(cay.Invalid, "%s is larger than %d GB", url, fetchMost>>30)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: size, ModTime: time.Unix(0, 0)}
	if err := p.add(h, io.TeeReader(body, sum)); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); checksum != "" && checksum != got {
		return cay.Errorf(cay.Invalid, "%s has the checksum %s, not %s", url, got, checksum)
	}
	return nil
}

// sized is what an answer holds, and how much that is: of one that does not
// say so, all is written down first.
func sized(resp *http.Response) (body io.ReadCloser, size int64, err error) {
	from := &fetched{resp.Body, resp.Request.URL.Redacted()}
	if resp.ContentLength >= 0 {
		return io.NopCloser(from), resp.ContentLength, nil
	}
	tmp, err := tempFile()
	if err != nil {
		return nil, 0, err
	}
	size, read, err := disk.Copy(tmp, io.LimitReader(from, fetchMost+1))
	switch {
	case read != nil:
		return nil, 0, errors.Join(read, tmp.Close())
	case err != nil:
		return nil, 0, errors.Join(tempError(err), tmp.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(tmp, 0, size), tmp}, size, nil
}

// fetched is the body of an answer that may break off.
type fetched struct {
	r   io.Reader
	url string
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		err = cay.Wrap(cay.Unavailable, err, "cannot fetch all of %s: %v", f.url, err)
	}
	return n, err
}
