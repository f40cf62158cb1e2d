package models

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const (
	// idleWithin is how long an answer may pause.
	idleWithin = 5 * time.Minute
	pieceSize  = 32 << 10
	maxRefusal = 1 << 20 // of an error of a provider
)

// errIdle is why an answer was called off.
var errIdle = errors.New("the provider sent nothing for too long")

// answer is a provider's answer that has begun.
type answer struct {
	from   cay.ModelProvider
	over   string // the providers before it, and why each was passed over
	resp   *http.Response
	cancel context.CancelCauseFunc
	key    string
	meter  meter
	strip  *strip // nil passes all on
}

func (a *answer) close() {
	if a.resp != nil {
		a.cancel(nil)
		_ = a.resp.Body.Close()
	}
}

// hiddenHeaders are those of an answer that no sandbox gets: of the connection, of
// the provider's site, and of the team's account.
var hiddenHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Alt-Svc",
	"Set-Cookie", "Openai-Organization", "Openai-Project", "Anthropic-Organization-Id",
}

// copyTo copies the answer as it comes. An error means that it is not whole.
func (a *answer) copyTo(rw http.ResponseWriter) error {
	for name, values := range a.resp.Header {
		hidden := a.key != "" && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, a.key) })
		if !hidden && !slices.Contains(hiddenHeaders, name) && !strings.HasPrefix(name, "X-Cay-") {
			rw.Header()[name] = values
		}
	}
	if a.resp.StatusCode >= http.StatusBadRequest {
		return a.copyRefusal(rw)
	}
	if a.strip != nil {
		rw.Header().Del("Content-Length")
	}
	rw.WriteHeader(a.resp.StatusCode)
	control := http.NewResponseController(rw)
	if err := control.Flush(); err != nil {
		return err
	}
	idle := time.AfterFunc(idleWithin, func() { a.cancel(errIdle) })
	defer idle.Stop()
	piece := make([]byte, pieceSize)
	for {
		n, err := a.resp.Body.Read(piece)
		idle.Reset(idleWithin)
		a.meter.take(piece[:n])
		if failed := a.pass(rw, control, piece[:n], err); failed != nil {
			return failed
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// pass writes a piece of the answer, and has it sent at once.
func (a *answer) pass(rw http.ResponseWriter, control *http.ResponseController, piece []byte, read error) error {
	if a.strip != nil {
		piece = a.strip.take(piece)
		if read != nil {
			piece = append(piece, a.strip.rest()...)
		}
	}
	if len(piece) == 0 {
		return nil
	}
	if _, err := rw.Write(piece); err != nil {
		return err
	}
	return control.Flush()
}

// copyRefusal copies an error of a provider, which may tell the key that it refuses:
// stars stand for that.
func (a *answer) copyRefusal(rw http.ResponseWriter) error {
	body, err := io.ReadAll(io.LimitReader(a.resp.Body, maxRefusal))
	if err != nil {
		return err
	}
	if a.key != "" {
		body = bytes.ReplaceAll(body, []byte(a.key), []byte(strings.Repeat("*", len(a.key))))
	}
	rw.Header().Del("Content-Length") // of what is beyond
	rw.WriteHeader(a.resp.StatusCode)
	_, err = rw.Write(body)
	return err
}
