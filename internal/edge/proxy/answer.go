package proxy

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rates"
)

// answer is an answer of the proxy itself. Programs get it as JSON, whose texts
// SDKs and their tests compare; people in browsers get a page.
type answer struct {
	SandboxID cay.SandboxID `json:"sandboxId"`
	Message   string        `json:"message"`
	Port      int           `json:"port,omitempty"`
	Code      int           `json:"code"`
	ErrorCode string        `json:"error_code,omitempty"`
	Cause     cay.Cause     `json:"cause,omitempty"`  // why it ended
	Detail    string        `json:"detail,omitempty"` // what Message cannot say, since clients match on it

	title, text string // of the page
	retry       cay.Retry
}

func notFound(id cay.SandboxID) answer {
	return answer{
		SandboxID: id, Message: "The sandbox was not found", Code: http.StatusBadGateway,
		title: "Sandbox Not Found",
		text:  fmt.Sprintf("The sandbox %s wasn't found. It may be paused, have ended, or never have existed.", id),
	}
}

func portClosed(rt route) answer {
	return answer{
		SandboxID: rt.id, Message: "The sandbox is running but port is not open",
		Port: rt.port, Code: http.StatusBadGateway,
		title: "Closed Port",
		text: fmt.Sprintf("The sandbox %s is running but there's no service running on port %d. "+
			"Start one inside the sandbox and reload.", rt.id, rt.port),
	}
}

func noAnswer(rt route) answer {
	return answer{
		SandboxID: rt.id, Message: "The service on the port closed the connection without an answer",
		Port: rt.port, Code: http.StatusBadGateway,
		title: "No Answer",
		text: fmt.Sprintf("The service on port %d of the sandbox %s closed the connection "+
			"without an answer.", rt.port, rt.id),
	}
}

// trafficToken is the header that opens a sandbox which is not public.
const trafficToken = "e2b-traffic-access-token"

// tokenHint tells people what programs do by header.
const tokenHint = ". In a browser, add ?" + trafficToken + "=TOKEN to the address, once."

func tokenMissing(id cay.SandboxID) answer {
	const m = "Sandbox is secured with traffic access token. Token header '" + trafficToken + "' is missing"
	return answer{SandboxID: id, Message: m, Code: http.StatusForbidden, title: "Missing Traffic Access Token", text: m + tokenHint}
}

func tokenInvalid(id cay.SandboxID) answer {
	const m = "Sandbox is secured with traffic access token. Provided token in header '" + trafficToken + "' is invalid"
	return answer{SandboxID: id, Message: m, Code: http.StatusForbidden, title: "Invalid Traffic Access Token", text: m + tokenHint}
}

// gone says what became of a sandbox that a request did not reach.
func (p *Proxy) gone(id cay.SandboxID, err error) answer {
	if cay.KindOf(err) != cay.NotFound || p.cfg.Fate == nil {
		return lookupFailed(id, err)
	}
	switch fate := p.cfg.Fate(id); fate.State {
	case cay.Pausing, cay.Paused, cay.Resuming:
		return p.saved(id)
	case cay.Killed:
		return over(id, fate.Cause)
	}
	return notFound(id)
}

// saved answers a request to a paused sandbox. E2B's clients read from the message of
// an unknown one that it does not run.
func (p *Proxy) saved(id cay.SandboxID) answer {
	a := notFound(id)
	a.ErrorCode, a.Detail = cay.CodePaused, "The sandbox is paused, and no request resumes it: connect to it first"
	a.title, a.text = "Sandbox Paused", a.Detail
	if p.cfg.Asleep != nil {
		if _, wakes := p.cfg.Asleep(id); wakes {
			a.Message, a.Code, a.retry = "The sandbox was paused before the request reached it: send it again", http.StatusServiceUnavailable, cay.Retry{May: true, After: time.Second}
			a.Detail, a.text = "", a.Message
		}
	}
	return a
}

// ends are causes in words.
var ends = map[cay.Cause]string{
	cay.CauseAsked:       "it was ended on request",
	cay.CauseTimeout:     "its time was over",
	cay.CauseOutOfMemory: "it ran out of memory",
	cay.CauseEngine:      "the engine that ran it ended",
	cay.CauseHostLost:    "it was lost with its host",
	cay.CauseFailedStart: "it could not be started",
	cay.CauseBudget:      "a budget of its team was exhausted",
	cay.CauseMemoryLost:  "its memory could not be read from its snapshot",
}

// over answers a request to a sandbox that has ended, with the message that E2B's
// clients compare.
func over(id cay.SandboxID, cause cay.Cause) answer {
	a := notFound(id)
	a.ErrorCode, a.Cause = cay.CodeEnded, cause
	if words := ends[cause]; words != "" {
		a.Detail = "The sandbox has ended: " + words
		a.text = fmt.Sprintf("The sandbox %s has ended: %s.", id, words)
	}
	return a
}

// noSandbox is what Lookup says of a sandbox that has just gone.
func noSandbox(id cay.SandboxID) error { return cay.Errorf(cay.NotFound, "sandbox %s is over", id) }

// lookupFailed turns an error of Lookup or Wake into an answer.
func lookupFailed(id cay.SandboxID, err error) answer {
	a := notFound(id)
	switch cay.KindOf(err) {
	case cay.NotFound:
		return a
	case cay.Conflict:
		a.Code, a.Message = http.StatusConflict, "The sandbox is changing its state, try again"
	case cay.Exhausted:
		a.Code, a.Message = http.StatusTooManyRequests, "Too many connections to the sandbox"
		if code := cay.CodeOf(err); code == cay.CodeTeamLimit || code == cay.CodeBudget {
			a.Message = "The sandbox is paused, and the limits of its team allow no other to run"
		}
	case cay.Denied:
		a.Code, a.Message = http.StatusForbidden, "The sandbox may not be resumed by this request"
	default:
		a.Code, a.Message = http.StatusServiceUnavailable, "The sandbox is paused or away, and could not be reached now"
		a.ErrorCode = cay.CodeOf(err)
	}
	a.title, a.text, a.retry = http.StatusText(a.Code), a.Message, cay.RetryOf(err)
	return a
}

// internalRoute answers calls of what only the host may call.
func internalRoute(id cay.SandboxID) answer {
	const m = "This endpoint is reserved for the E2B control plane"
	return answer{SandboxID: id, Message: m, Code: http.StatusNotFound, title: "Not Found", text: m}
}

func (a answer) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	rates.TellRetry(h, a.retry)
	// Pages elsewhere may read the reason: it says nothing secret.
	h.Set("Access-Control-Allow-Origin", "*")
	if isNavigation(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(a.Code)
		text := a.text
		if id := string(a.SandboxID); !strings.Contains(text, id) {
			text += " Sandbox: " + id
		}
		fmt.Fprintf(w, page, html.EscapeString(a.title), html.EscapeString(a.title), html.EscapeString(text))
		return
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	body, err := json.Marshal(a)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	w.WriteHeader(a.Code)
	_, _ = w.Write(body)
}

// ServeHTTP is write.
func (a answer) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.write(w, r) }

// isNavigation tells a person's browser from a program, by the name that it
// gives itself, as E2B does. A request of a page's script counts as a program's,
// where the browser marks it so.
func isNavigation(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" && mode != "navigate" {
		return false
	}
	agent := strings.ToLower(r.UserAgent())
	return slices.ContainsFunc(browsers, func(name string) bool { return strings.Contains(agent, name) })
}

// browsers are words in the names of browsers.
var browsers = []string{"mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"}

// page begins as E2B's pages do, which clients look for.
const page = `<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>%s</title>
<style>
body { overflow-wrap: break-word; font: 16px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 20vh auto; padding: 0 1rem; color: #1d2733; background: #fbfaf6 }
h1 { font-size: 1.5rem }
@media (prefers-color-scheme: dark) { body { color: #e6e4dc; background: #16191d } }
</style>
</head>
<body><h1>%s</h1><p>%s</p></body>
</html>`
