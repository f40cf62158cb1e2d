package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/trail"
)

// isOpen reports whether a route is for those who have no credential of this
// server yet.
func isOpen(r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	path := r.URL.Path
	return path == "/cay/v1/token-exchange" || path == "/cay/v1/console-sessions" || path == "/cay/v1/logins" || strings.HasPrefix(path, "/cay/v1/logins/")
}

// ofPeople are the routes that are about the party that asks.
var ofPeople = map[string]bool{
	"/cay/v1/me": true, "/cay/v1/logout": true, "/cay/v1/sessions": true, "/cay/v1/caller": true, "/cay/v1/console-links": true,
}

// maxExchanges is how many exchanges an address may ask for in a minute.
const maxExchanges = 60

// paced bounds how often a stranger asks.
func (s *server) paced(ctx context.Context, what string, most int) (*cay.Origin, error) {
	from := trail.OriginOf(ctx)
	address := ""
	if from != nil {
		address = from.Address
	}
	return from, s.pace.take(what, address, most)
}

// ExchangeToken gives a key for a token of another issuer.
func (o own) ExchangeToken(ctx context.Context, r cayv1.ExchangeTokenRequestObject) (cayv1.ExchangeTokenResponseObject, error) {
	from, err := o.paced(ctx, "exchanges of tokens", maxExchanges)
	if err != nil {
		return nil, err
	}
	key, record, err := o.logins.Exchange(ctx, r.Body.Token, value(r.Body.Team, ""), from)
	if err != nil {
		return nil, err
	}
	out := wireAPIKey(record)
	out.Key = &key
	return cayv1.ExchangeToken201JSONResponse(out), nil
}
