package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/cay-run/cay"
)

// route is a request that the gateway carries.
type route struct {
	wire    cay.ModelWire
	path    string // below the provider's base URL
	usage   bool   // its tokens count
	options bool   // its streams say their usage when asked to
}

// routes are those of both wires, by their paths.
var routes = map[string]route{
	"/v1/chat/completions":      {cay.OpenAIWire, "/chat/completions", true, true},
	"/v1/completions":           {cay.OpenAIWire, "/completions", true, true},
	"/v1/responses":             {cay.OpenAIWire, "/responses", true, false},
	"/v1/embeddings":            {cay.OpenAIWire, "/embeddings", true, false},
	"/v1/messages":              {cay.AnthropicWire, "/v1/messages", true, false},
	"/v1/messages/count_tokens": {cay.AnthropicWire, "/v1/messages/count_tokens", false, false},
}

// listPath is where both wires list models.
const listPath = "/v1/models"

// wireOf is the wire that a client speaks, also where it asks for nothing that there
// is.
func wireOf(r *http.Request) cay.ModelWire {
	if known, ok := routes[r.URL.Path]; ok {
		return known.wire
	}
	if r.Header.Get("Anthropic-Version") != "" {
		return cay.AnthropicWire
	}
	return cay.OpenAIWire
}

// The names that both wires have for errors.
var errorTypes = map[int]string{
	http.StatusBadRequest:       "invalid_request_error",
	http.StatusForbidden:        "permission_error",
	http.StatusNotFound:         "not_found_error",
	http.StatusMethodNotAllowed: "invalid_request_error",
	http.StatusTooManyRequests:  "rate_limit_error",
}

// refuse answers with an error in the words of a wire.
func refuse(rw http.ResponseWriter, wire cay.ModelWire, status int, code, text string) {
	kind := cmp.Or(errorTypes[status], "api_error")
	var body any = map[string]any{"error": map[string]any{"message": text, "type": kind, "param": nil, "code": cmp.Or(code, kind)}}
	if wire == cay.AnthropicWire {
		body = map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": text}}
	}
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body) // the guest may be gone
}

// fail answers with an error of ours. Clients are told whether to try again by the
// header that both wires' SDKs heed.
func fail(rw http.ResponseWriter, wire cay.ModelWire, err error) {
	status, text := cay.StatusOf(err), "the gateway failed; its operator's log says how"
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Kind != cay.Internal {
		text = ours.Msg
		if ours.Hint != "" {
			text += "; " + ours.Hint
		}
	}
	again := cay.CodeOf(err) == cay.CodeRateLimit || status == http.StatusServiceUnavailable
	rw.Header().Set("X-Should-Retry", strconv.FormatBool(again))
	refuse(rw, wire, status, cay.CodeOf(err), text)
}
