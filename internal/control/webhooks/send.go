package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/trail"
)

const (
	answerWithin = 15 * time.Second // an attempt from its start, the answer's body included
	bodyKept     = 4 << 10          // of an answer; not read any further
	headersMost  = 16 << 10         // of an answer
	textMost     = 512              // of an error

	// failingMost is how long an address may fail before it is told nothing
	// more.
	failingMost = 5 * 24 * time.Hour
	// retryAfterMost bounds how long an address may have us wait.
	retryAfterMost = 24 * time.Hour
)

// waits are the times after each attempt that failed until the next; after the
// last there is none.
var waits = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// newTransport sends over connections that dial makes, and to nothing else: no
// proxy of the environment, no redirect, no body that is packed.
func newTransport(dial func(context.Context, string, string) (net.Conn, error)) http.RoundTripper {
	return &http.Transport{
		DialContext: dial, DisableCompression: true, MaxResponseHeaderBytes: headersMost,
		TLSHandshakeTimeout: answerWithin, ResponseHeaderTimeout: answerWithin,
		MaxIdleConns: 2 * mostAtOnce, MaxIdleConnsPerHost: window, IdleConnTimeout: time.Minute,
	}
}

// try makes an attempt, whose event, body and number are given, and fills in
// what came of it and when it is repeated.
func (h *Hooks) try(ctx context.Context, w cay.Webhook, a *cay.WebhookAttempt) {
	a.ID, a.At, a.URL = cay.NewDeliveryID(), ledger.Now(), w.URL
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, done := trail.Begin(ctx, trail.Deliver)
	wait := h.send(within, w, a)
	if a.Failed() {
		done(errors.Join(errors.New(a.Class), ctx.Err()))
	} else {
		done(nil)
	}
	a.Took = time.Since(a.At).Truncate(time.Millisecond)
	if a.Failed() && errors.Is(ctx.Err(), context.Canceled) { // not its fault
		a.Class, a.Error, a.Next = cay.FailedCanceled, "the server stopped", ledger.Now()
		return
	}
	a.Next = next(*a, wait)
}

// next is when an attempt is repeated, not before the answer's own wait is over.
// A little is added by chance, so that what failed together does not come
// together again.
func next(a cay.WebhookAttempt, wait time.Duration) time.Time {
	if !a.Failed() || a.Number > len(waits) {
		return time.Time{}
	}
	after := waits[a.Number-1]
	after += rand.N(after / 10)
	return a.At.Add(a.Took + max(after, min(wait, retryAfterMost))).Truncate(time.Millisecond)
}

// send makes the request and reads the answer. It returns the wait that the
// answer asks for.
func (h *Hooks) send(ctx context.Context, w cay.Webhook, a *cay.WebhookAttempt) (wait time.Duration) {
	fail := func(class, text string) time.Duration {
		a.Class, a.Error = class, cay.Fit(text, textMost)
		return wait
	}
	s, err := h.secretsOf(w)
	if err != nil {
		h.log.Error("cannot sign the requests of a webhook", "webhook", w.ID, "err", err)
		return fail(cay.FailedSignature, "the secret cannot be read")
	}
	body, link, err := h.withLink(ctx, w, *a)
	if err != nil {
		h.log.ErrorContext(ctx, "cannot make the link of an approval", "webhook", w.ID, "err", err)
		return fail(cay.FailedRequest, "the request cannot be made")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, strings.NewReader(body))
	if err != nil {
		return fail(cay.FailedRequest, "the request cannot be made")
	}
	dress(r.Header, s, *a, body)
	a.RequestHeaders = headerText(r.Header)
	resp, err := h.transport.RoundTrip(r)
	if err != nil {
		return fail(classOf(err))
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, bodyKept)) // what came before it broke off
	a.Status, a.ResponseHeaders = resp.StatusCode, headerText(resp.Header)
	a.ResponseBody = strings.ReplaceAll(strings.ToValidUTF8(string(answer), "\ufffd"), "\x00", "\ufffd")
	if link != "" { // an address may repeat what it was sent
		a.ResponseHeaders, a.ResponseBody = strings.ReplaceAll(a.ResponseHeaders, link, "[redacted]"), strings.ReplaceAll(a.ResponseBody, link, "[redacted]")
	}
	wait = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	switch {
	case a.Status/100 == 2:
		return 0
	case a.Status/100 == 3:
		return fail(cay.FailedHTTP, "the answer is a redirect, which is not followed: "+strconv.Itoa(a.Status))
	}
	return fail(cay.FailedHTTP, "the answer is "+strconv.Itoa(a.Status))
}

// dress sets the headers of a request: E2B's, and those of Standard Webhooks.
func dress(header http.Header, s secrets, a cay.WebhookAttempt, body string) {
	for name, value := range map[string]string{
		"Content-Type":          "application/json",
		"User-Agent":            "Cay-Webhooks/" + cay.Version,
		"e2b-webhook-id":        string(a.Webhook),
		"e2b-delivery-id":       a.ID,
		"e2b-signature-version": "v1",
		"e2b-signature":         s.e2b(body),
		"webhook-id":            a.Event,
		"webhook-timestamp":     strconv.FormatInt(a.At.Unix(), 10),
		"webhook-signature":     s.standard(a.Event, a.At, body),
	} {
		header.Set(name, value)
	}
}

// hidden are the headers whose values are not recorded.
var hidden = []string{"E2b-Signature", "Webhook-Signature", "Set-Cookie", "Authorization"}

// headerText is a record of headers, as JSON with names in lower case.
func headerText(header http.Header) string {
	out := make(map[string]string, len(header))
	for name, values := range header {
		out[strings.ToLower(name)] = strings.ToValidUTF8(strings.Join(values, ", "), "\ufffd")
	}
	for _, name := range hidden {
		if header.Get(name) != "" {
			out[strings.ToLower(name)] = "[redacted]"
		}
	}
	text, err := json.Marshal(out)
	if err != nil { // strings
		panic(err)
	}
	return string(text)
}

// classOf says why there was no answer, in words that tell nothing of the
// server's own networks.
func classOf(err error) (class, text string) {
	var dns *net.DNSError
	var net net.Error
	switch {
	case cay.KindOf(err) == cay.Denied:
		var ours *cay.Error
		errors.As(err, &ours)
		return cay.FailedTransport, ours.Msg
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &net) && net.Timeout():
		return cay.FailedTimeout, "there was no answer within 15 seconds"
	case errors.As(err, &dns):
		return cay.FailedDNS, "the name " + dns.Name + " was not found: " + dns.Err
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return cay.FailedTransport, err.Error()
}

// retryAfter reads the header Retry-After: seconds or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, retryAfterMost)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
