package rates

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/cay-run/cay"
)

// Tell says in headers what is left of a rate.
func (s State) Tell(h http.Header) {
	if !s.Bounded {
		return
	}
	h["Ratelimit-Limit"] = []string{strconv.Itoa(s.Burst)}
	h["Ratelimit-Remaining"] = []string{strconv.Itoa(s.Remaining)}
	h["Ratelimit-Reset"] = []string{strconv.Itoa(wholeSeconds(s.Reset))}
}

// Refusal is the error of a request that finds no token, in E2B's words.
func (s State) Refusal() error {
	after := time.Duration(max(1, wholeSeconds(s.Wait))) * time.Second
	return late{cay.Errorf(cay.Exhausted, "Rate limit exceeded").WithCode(cay.CodeRateLimit), after}
}

// late is an error after which a client should wait for a time of its own.
type late struct {
	error
	after time.Duration
}

func (l late) Unwrap() error { return l.error }

// RetryOf is cay.RetryOf, with the wait that a refusal of a rate has.
func RetryOf(err error) cay.Retry {
	retry := cay.RetryOf(err)
	if own := (late{}); errors.As(err, &own) {
		retry.After = own.after
	}
	return retry
}

// TellRetry says in headers whether a request should be sent again, and when.
// Should-Retry is always there: without it, SDKs repeat some statuses on their own.
func TellRetry(h http.Header, retry cay.Retry) {
	h.Set("Should-Retry", strconv.FormatBool(retry.May))
	if retry.May {
		h.Set("Retry-After", strconv.Itoa(int(retry.After/time.Second)))
	}
}

// Refuse answers in plain words a request that no retry helps.
func Refuse(w http.ResponseWriter, status int, text string) {
	TellRetry(w.Header(), cay.Retry{})
	http.Error(w, text, status)
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
