// Package wire reads the headers that every part of the agent understands and
// writes its plain HTTP errors.
package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	defaultKeepalive = 90 * time.Second
	// maxKeepalive keeps the interval inside what a timer can hold.
	maxKeepalive = 24 * time.Hour
)

// Keepalive returns how often a stream that answers a request with these
// headers says that it is alive.
func Keepalive(h http.Header) time.Duration {
	s, err := strconv.ParseUint(strings.TrimSpace(h.Get("Keepalive-Ping-Interval")), 10, 31)
	if err != nil || s == 0 {
		return defaultKeepalive
	}
	return min(time.Duration(s)*time.Second, maxKeepalive)
}

// User returns the account that a call asks for with HTTP basic
// authentication, empty where it asks for none. The password means nothing:
// the access token is what lets a caller in.
func User(h http.Header) string {
	scheme, text, ok := strings.Cut(h.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(pair), ":")
	return name
}

// Mount has h serve the calls of a file's services, each on a route of its own:
// calls that do not exist are then answered as all else that does not.
func Mount(mux *http.ServeMux, file protoreflect.FileDescriptor, h http.Handler) {
	services := file.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			mux.Handle(fmt.Sprintf("POST /%s/%s", services.Get(i).FullName(), methods.Get(j).Name()), h)
		}
	}
}

// Error answers a plain HTTP request with code and message as JSON.
func Error(w http.ResponseWriter, code int, message string) {
	body, err := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, message})
	if err != nil { // cannot happen: an int and a string
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client is gone: nothing to do
}
