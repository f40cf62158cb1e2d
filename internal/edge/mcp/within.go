package mcp

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
)

// within sends requests to a handler of this process, without a connection, with
// the credential of the party on whose behalf they are.
type within struct {
	serve       http.Handler
	credentials http.Header // of requests to the API
	header      http.Header // of all requests
	remote      string      // the address of the client
}

// RoundTrip implements http.RoundTripper. It returns when the answer has begun;
// closing the body ends the request.
func (t *within) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI, in.RemoteAddr, in.Host = r.URL.RequestURI(), t.remote, r.URL.Host
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	maps.Copy(in.Header, t.header)
	if in.Header.Get("E2b-Sandbox-Id") == "" { // a sandbox is opened by its own token, and learns of no other
		for _, name := range credentialHeaders {
			in.Header.Del(name)
		}
		maps.Copy(in.Header, t.credentials)
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, w := io.Pipe()
	a := &answer{header: http.Header{}, body: w, began: make(chan struct{})}
	go a.serve(t.serve, in)
	select {
	case <-a.began:
	case <-ctx.Done():
		cancel()
		_ = body.CloseWithError(ctx.Err())
		return nil, r.Context().Err()
	}
	if a.err != nil {
		cancel()
		return nil, a.err
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.sent, ContentLength: -1, Request: r,
		Body: &ends{ReadCloser: body, end: cancel},
	}, nil
}

// ends has the end of a body be the end of the request.
type ends struct {
	io.ReadCloser
	end func()
}

func (e *ends) Close() error {
	e.end()
	return e.ReadCloser.Close()
}

// answer is what a handler writes.
type answer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	began  chan struct{} // closed when the fields below are there
	status int
	sent   http.Header
	err    error // the handler broke off before its answer began
}

func (a *answer) serve(h http.Handler, r *http.Request) {
	var err error
	defer func() {
		if v := recover(); v != nil { // http.ErrAbortHandler as a rule: the answer is not whole
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			a.begin(http.StatusOK, nil)
			_ = a.body.Close()
			return
		}
		a.begin(0, err)
		_ = a.body.CloseWithError(err)
	}()
	h.ServeHTTP(a, r)
}

func (a *answer) begin(status int, err error) {
	a.once.Do(func() {
		a.status, a.err, a.sent = status, err, a.header.Clone()
		close(a.began)
	})
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status >= 200 {
		a.begin(status, nil)
	}
}

// Write implements http.ResponseWriter: it returns when the client has read it.
func (a *answer) Write(p []byte) (int, error) {
	a.begin(http.StatusOK, nil)
	return a.body.Write(p)
}

// FlushError is for http.ResponseController; nothing is held back.
func (a *answer) FlushError() error {
	a.begin(http.StatusOK, nil)
	return nil
}

// EnableFullDuplex is for http.ResponseController; bodies go both ways at once.
func (*answer) EnableFullDuplex() error { return nil }
