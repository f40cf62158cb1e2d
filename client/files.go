package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// FileQuery is the path and query of a link to a file of the sandbox, for the
// agent's port: it needs no token, and reads that file alone until it expires.
func (s *Sandbox) FileQuery(path, user string, expires time.Time) string {
	sign := guest.Signature{Path: path, User: user, Expiry: strconv.FormatInt(expires.Unix(), 10)}
	token, _, _ := strings.Cut(s.AccessToken, "~") // what is behind says which party has it
	query := url.Values{"path": {path}, "signature": {sign.Sign("read", token)}, "signature_expiration": {sign.Expiry}}
	if user != "" {
		query.Set("username", user)
	}
	return guest.FilesPath + "?" + query.Encode()
}

// ReadFileAt opens a file of the sandbox at an offset and reads n bytes of it at
// most.
func (s *Sandbox) ReadFileAt(ctx context.Context, path, user string, offset, n int64) (io.ReadCloser, error) {
	resp, err := s.fileWith(ctx, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+n-1)}}, http.MethodGet, guest.FilesPath, path, user, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// ReadFile opens a file of the sandbox. Relative paths begin at the user's
// home; an empty user is the sandbox's usual one.
func (s *Sandbox) ReadFile(ctx context.Context, path, user string) (io.ReadCloser, error) {
	resp, err := s.file(ctx, http.MethodGet, "/files", path, user, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile writes a file of the sandbox, and makes the directories above it.
func (s *Sandbox) WriteFile(ctx context.Context, path, user string, content io.Reader) error {
	resp, err := s.file(ctx, http.MethodPost, "/files", path, user, content)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// file makes a request of one of the agent's routes for file contents.
func (s *Sandbox) file(ctx context.Context, method, route, path, user string, content io.Reader) (*http.Response, error) {
	return s.fileWith(ctx, nil, method, route, path, user, content)
}

// fileWith is file with headers.
func (s *Sandbox) fileWith(ctx context.Context, header http.Header, method, route, path, user string, content io.Reader) (*http.Response, error) {
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	r, err := http.NewRequestWithContext(ctx, method, s.client.cfg.SandboxURL+route+"?"+query.Encode(), content)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.Header, header)
	s.header(r.Header)
	// Packing costs more than the way to the sandbox, as a rule.
	r.Header.Set("Accept-Encoding", "identity")
	if content != nil {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	resp, err := s.client.cfg.HTTP.Do(r)
	if err != nil {
		return nil, s.client.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, s.gone(failure(resp))
	}
	return resp, nil
}
