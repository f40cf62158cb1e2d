package rest

import "net/http"

// later lists the routes of E2B's surface that this version answers with 501,
// so that a client can tell them from a wrong address.
var later = []struct{ method, pattern, what string }{
	{http.MethodPost, "/templates", "building a template"},
	{http.MethodPost, "/templates/{id}", "building a template"},
	{http.MethodPost, "/templates/{id}/builds/{build}", "building a template"},
	{http.MethodGet, "/volumes", "volumes"},
	{http.MethodPost, "/volumes", "volumes"},
	{http.MethodGet, "/volumes/{id}", "volumes"},
	{http.MethodDelete, "/volumes/{id}", "volumes"},
	{http.MethodPost, "/access-tokens", "access tokens"},
	{http.MethodDelete, "/access-tokens/{id}", "access tokens"},
}
