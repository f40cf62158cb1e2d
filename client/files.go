package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

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
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	r, err := http.NewRequestWithContext(ctx, method, s.client.cfg.SandboxURL+route+"?"+query.Encode(), content)
	if err != nil {
		return nil, err
	}
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
