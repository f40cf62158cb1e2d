package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
)

// adminFile has the operator's token, for root alone to read.
const adminFile = "admin.token"

// OpenAdmin reads the operator's token from the data directory and makes it at
// the first start.
func OpenAdmin(dataDir string) (string, error) {
	path := filepath.Join(dataDir, adminFile)
	token, err := seal.Token(path)
	if err == nil && len(token) < 32 {
		err = cay.Errorf(cay.Internal, "the operator's token %s is damaged: it has %d characters", path, len(token)).
			WithHint("remove the file: the next start makes another token")
	}
	return token, err
}

// TrustAdmin has a token open all teams. It is called before any request.
func (a *Auth) TrustAdmin(token string) { a.admin = sha256.Sum256([]byte(token)) }

// Presented is what a request brings to say on whose behalf it is.
type Presented struct {
	Key    string // an API key
	Bearer string // an API key, or a token of a person
	Admin  string // the operator's token
	Team   string // the team that an operator or a person means, by id or name
}

// PresentedIn reads what the headers of a request bring.
func PresentedIn(h http.Header) Presented {
	p := Presented{Key: h.Get("X-API-Key"), Admin: h.Get("X-Admin-Token"), Team: h.Get("X-Team-ID")}
	if scheme, token, _ := strings.Cut(h.Get("Authorization"), " "); strings.EqualFold(scheme, "bearer") {
		p.Bearer = strings.TrimSpace(token)
	}
	return p
}

// errAdmin is the one answer to every wrong token of an operator.
var errAdmin = (&cay.Error{Kind: cay.Unauthenticated, Msg: "the admin token is wrong"}).
	WithHint("it is in admin.token of the server's data directory; `cay team` as root on that machine finds it")

// Caller returns the caller of a request. An operator's and a person's is of the
// team that the request names, or of none.
func (a *Auth) Caller(ctx context.Context, p Presented) (cay.Caller, error) {
	if p.Admin != "" {
		hash := sha256.Sum256([]byte(p.Admin))
		if a.admin == [32]byte{} || subtle.ConstantTimeCompare(hash[:], a.admin[:]) != 1 {
			return cay.Caller{}, errAdmin
		}
		return a.inTeam(ctx, cay.Caller{Scopes: cay.AllScopes}, p.Team)
	}
	key := p.Key
	if key == "" && IsSession(p.Bearer) {
		return a.sessionCaller(ctx, p.Bearer, p.Team)
	}
	if key == "" && IsAccessToken(p.Bearer) {
		return a.tokenCaller(ctx, p.Bearer, p.Team)
	}
	if key == "" {
		key = p.Bearer
	}
	record, err := a.Verify(ctx, key)
	if err != nil {
		return cay.Caller{}, err
	}
	who := record.Caller()
	if who.Scopes&cay.Admin != 0 {
		return a.inTeam(ctx, who, p.Team)
	}
	return who, nil
}

// inTeam is a caller who may act in all teams, in the one that it names by id or
// name.
func (a *Auth) inTeam(ctx context.Context, who cay.Caller, team string) (cay.Caller, error) {
	if team == "" || team == string(who.Team) {
		return who, nil
	}
	look := a.store.TeamByName
	if cay.ValidUUID(team) {
		look = func(ctx context.Context, id string) (cay.Team, error) { return a.store.Team(ctx, cay.TeamID(id)) }
	}
	t, err := look(ctx, team)
	who.Team = t.ID
	return who, err
}
