package models

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/providers"
)

const (
	// streamWithin and wholeWithin are how long a provider usually has until it
	// begins to answer: one that does not stream begins when its answer is whole.
	streamWithin = time.Minute
	wholeWithin  = 10 * time.Minute
	// restAfter is how long a provider is passed over that did not answer, and
	// restMost the longest time for which one may ask to be.
	restAfter = 15 * time.Second
	restMost  = time.Minute
	// tellEvery is how often a team is told of a provider that fails.
	tellEvery = 5 * time.Minute

	maxQuery = 1 << 10
	// anthropicVersion is what a client means that names none.
	anthropicVersion = "2023-06-01"
)

// errSlow is why a request to a provider was called off.
var errSlow = errors.New("no answer in time")

// ask asks providers in their order until one answers. The last of them counts
// whatever it answers.
func (g *Gateway) ask(r *http.Request, turn *providers.Turn, to route, q question, choices []providers.Choice) (answer, error) {
	ready, over := g.resting.pass(choices)
	for i, c := range ready {
		last := i == len(ready)-1
		begun := time.Now()
		got, err := g.try(r, turn, to, q, c)
		if r.Context().Err() == nil {
			g.cfg.Watch.ModelAttempt(to.wire, outcomeOf(got, err), time.Since(begun))
		}
		if err == nil && (last || !passes(got.resp.StatusCode)) {
			got.over = strings.Join(over, "; ")
			if passes(got.resp.StatusCode) {
				g.failing(r.Context(), c, statusText(got.resp.StatusCode))
			}
			g.resting.note(c, got.resp)
			return got, nil
		}
		if r.Context().Err() != nil {
			got.close()
			return answer{}, cay.Wrap(cay.Unavailable, r.Context().Err(), "the client has gone")
		}
		why := ""
		if err == nil {
			why = statusText(got.resp.StatusCode)
			g.failing(r.Context(), c, why)
			g.resting.note(c, got.resp)
			got.close()
		} else {
			why = reason(err)
			g.resting.set(c, restAfter, why)
			g.failing(r.Context(), c, why)
			g.cfg.Log.DebugContext(r.Context(), "a provider of models does not answer", "team", c.Team, "provider", c.Name, "err", err)
		}
		over = append(over, c.Name+": "+why)
	}
	told := strings.Join(over, "; ")
	return answer{over: told}, cay.Errorf(cay.Unavailable, "no provider of models answered: %s", told)
}

// failing tells the team of a provider that did not answer, or has no room.
func (g *Gateway) failing(ctx context.Context, c providers.Choice, why string) {
	if g.resting.tell(c) {
		g.cfg.Providers.Failing(ctx, c.ModelProvider, why)
	}
}

// outcomeOf says how a provider took a request.
func outcomeOf(got answer, err error) string {
	switch {
	case err != nil:
		return silent
	case passes(got.resp.StatusCode):
		return full
	case got.resp.StatusCode >= http.StatusBadRequest:
		return refused
	}
	return answered
}

// passes reports whether a status has the next provider asked.
func passes(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

func statusText(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

// reason says in words for a guest why a provider did not answer.
func reason(err error) string {
	var certificate *tls.CertificateVerificationError
	var ours *cay.Error
	switch {
	case errors.Is(err, errSlow):
		return errSlow.Error()
	case errors.Is(err, errPlain):
		return errPlain.Error()
	case errors.As(err, &certificate):
		return "its certificate is not good"
	case errors.As(err, &ours):
		return ours.Msg
	}
	return "it cannot be reached"
}

// try sends a request to one provider. It is called off when the answer does not
// begin in time.
func (g *Gateway) try(r *http.Request, turn *providers.Turn, to route, q question, c providers.Choice) (answer, error) {
	key, err := turn.Key(r.Context(), c.ModelProvider)
	if err != nil {
		return answer{}, cay.Wrap(cay.KindOf(err), err, "the secret %q cannot be read", c.Secret)
	}
	if strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return answer{}, cay.Errorf(cay.Invalid, "the secret %q holds line breaks or other control characters", c.Secret)
	}
	q = q.named(c.Model)
	asked, added := q, false
	if to.options {
		asked, added = q.counted()
	}
	got, err := g.send(r, to, asked, c, key)
	if err == nil && added && (got.resp.StatusCode == http.StatusBadRequest || got.resp.StatusCode == http.StatusUnprocessableEntity) {
		got.close() // some servers refuse the option
		added = false
		got, err = g.send(r, to, q, c, key)
	}
	if err != nil {
		return answer{}, err
	}
	got.from, got.key = c.ModelProvider, key
	got.meter.streams = isStream(got.resp)
	if added && got.meter.streams {
		got.strip = &strip{}
	}
	return got, nil
}

func isStream(resp *http.Response) bool {
	return strings.HasPrefix(strings.ToLower(resp.Header.Get("Content-Type")), "text/event-stream")
}

func (g *Gateway) send(r *http.Request, to route, q question, c providers.Choice, key string) (answer, error) {
	within := c.Timeout
	switch {
	case within > 0:
	case q.stream:
		within = streamWithin
	default:
		within = wholeWithin
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	req, err := request(ctx, r, to.path, c.ModelProvider, key)
	if err != nil {
		cancel(err)
		return answer{}, err
	}
	req.Method, req.Body, req.ContentLength = http.MethodPost, readCloser{bytes.NewReader(q.body)}, int64(len(q.body))
	req.GetBody = nil // sent once
	timer := time.AfterFunc(within, func() { cancel(errSlow) })
	resp, err := g.transportOf(req).RoundTrip(req)
	if timer.Stop(); err != nil {
		if cause := context.Cause(ctx); cause != nil && r.Context().Err() == nil {
			err = cause
		}
		cancel(err)
		return answer{}, err
	}
	return answer{resp: resp, cancel: cancel}, nil
}

func (g *Gateway) transportOf(req *http.Request) *http.Transport {
	if req.URL.Scheme == "https" {
		return g.secure
	}
	return g.plain
}

// passedHeaders are those of a sandbox's request that a provider gets. Others may
// say whose account is charged, or which sandbox asks.
var passedHeaders = []string{"Accept", "Content-Type", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta", "Idempotency-Key"}

// request is a request to a provider, without a body.
func request(ctx context.Context, r *http.Request, path string, p cay.ModelProvider, key string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.URL, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	if len(r.URL.RawQuery) <= maxQuery {
		req.URL.RawQuery = r.URL.RawQuery
	}
	for name, values := range r.Header {
		if slices.Contains(passedHeaders, name) || strings.HasPrefix(name, "X-Stainless-") {
			req.Header[name] = values
		}
	}
	if len(req.Header["User-Agent"]) == 0 {
		req.Header["User-Agent"] = nil // not ours
	}
	req.Header.Set("Accept-Encoding", "identity") // the usage is read in it
	switch {
	case p.Wire == cay.AnthropicWire:
		if req.Header.Get("Anthropic-Version") == "" {
			req.Header.Set("Anthropic-Version", anthropicVersion)
		}
		if key != "" {
			req.Header.Set("X-Api-Key", key)
		}
	case key != "":
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, nil
}

// readCloser is a body that there is nothing to close of.
type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

// resting are providers that failed a moment ago: others are asked before them.
type resting struct {
	mu    sync.Mutex
	until map[string]rest
	told  map[string]time.Time // until when the team is told of no other failure
}

type rest struct {
	until time.Time
	why   string
}

// restKey names a provider as it is now: a change of it gives it another chance.
func restKey(c providers.Choice) string {
	return fmt.Sprintf("%s %s %d", c.Team, c.Name, c.Version)
}

// pass leaves out providers that rest, and says why; all are left where all rest.
func (x *resting) pass(choices []providers.Choice) (ready []providers.Choice, over []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for key, one := range x.until {
		if now.After(one.until) {
			delete(x.until, key)
		}
	}
	for _, c := range choices {
		if one, ok := x.until[restKey(c)]; ok {
			over = append(over, c.Name+": not asked again so soon after: "+one.why)
			continue
		}
		ready = append(ready, c)
	}
	if len(ready) == 0 {
		return choices, nil
	}
	return ready, over
}

// tell reports whether the team is told of a failure of a provider now.
func (x *resting) tell(c providers.Choice) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for key, until := range x.told {
		if now.After(until) {
			delete(x.told, key)
		}
	}
	_, told := x.told[restKey(c)]
	if !told {
		x.told[restKey(c)] = now.Add(tellEvery)
	}
	return !told
}

func (x *resting) set(c providers.Choice, d time.Duration, why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.until[restKey(c)] = rest{time.Now().Add(d), why}
}

// note has a provider rest for as long as its answer asks to.
func (x *resting) note(c providers.Choice, resp *http.Response) {
	if !passes(resp.StatusCode) {
		return
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err == nil && seconds > 0 {
		x.set(c, min(time.Duration(seconds)*time.Second, restMost), statusText(resp.StatusCode))
	}
}
