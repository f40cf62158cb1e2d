package rest

import (
	"context"
	"strings"
	"time"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/control/fleet"
)

const (
	keyPrefix   = "e2b_"
	tokenPrefix = "sk_e2b_"
	keyLength   = 40 // characters after the prefix, of both
	// teamMetricsSince is how far samples of a team go back unless asked.
	teamMetricsSince = 7 * 24 * time.Hour
)

// ListTeams names the team whose key the request carries. Clients that log in
// take the key from here, so it is the one that they sent. A person sees all
// teams that the person is in, an operator all that there are.
func (s *server) ListTeams(ctx context.Context, _ e2b.ListTeamsRequestObject) (e2b.ListTeamsResponseObject, error) {
	who := callerOf(ctx)
	list, err := s.accounts.TeamsOf(ctx, who)
	if err != nil {
		return nil, err
	}
	key, _ := ctx.Value(presentedKey{}).(string)
	if who.Key == "" { // what a person and an operator present is no key of a team
		key = ""
	}
	out := e2b.ListTeams200JSONResponse{}
	for i, t := range list {
		out = append(out, e2b.Team{TeamID: string(t.ID), Name: t.Name, APIKey: key, IsDefault: i == 0})
	}
	return out, nil
}

// ListKeys lists a team's keys.
func (s *server) ListKeys(ctx context.Context, _ e2b.ListKeysRequestObject) (e2b.ListKeysResponseObject, error) {
	list, err := s.accounts.Keys(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	people, err := s.accounts.Makers(ctx, list)
	if err != nil {
		return nil, err
	}
	out := make(e2b.ListKeys200JSONResponse, 0, len(list))
	for _, k := range list {
		out = append(out, wireKey(k, people))
	}
	return out, nil
}

// CreateKey makes a key that may do what its maker may.
func (s *server) CreateKey(ctx context.Context, r e2b.CreateKeyRequestObject) (e2b.CreateKeyResponseObject, error) {
	key, record, err := s.accounts.CreateKey(ctx, callerOf(ctx), accounts.NewKey{Name: value(r.Body.Name, "")})
	if err != nil {
		return nil, err
	}
	people, err := s.accounts.Makers(ctx, []cay.APIKey{record})
	if err != nil {
		return nil, err
	}
	out := wireKey(record, people)
	out.Key = &key
	return e2b.CreateKey201JSONResponse(out), nil
}

// UpdateKey gives a key another name.
func (s *server) UpdateKey(ctx context.Context, r e2b.UpdateKeyRequestObject) (e2b.UpdateKeyResponseObject, error) {
	name := value(r.Body.Name, "")
	if _, err := s.accounts.UpdateKey(ctx, callerOf(ctx), cay.KeyID(r.KeyID), accounts.KeyChange{Name: &name}); err != nil {
		return nil, err
	}
	return e2b.UpdateKey200Response{}, nil
}

// DeleteKey removes a key.
func (s *server) DeleteKey(ctx context.Context, r e2b.DeleteKeyRequestObject) (e2b.DeleteKeyResponseObject, error) {
	if err := s.accounts.RemoveKey(ctx, callerOf(ctx), cay.KeyID(r.KeyID)); err != nil {
		return nil, err
	}
	return e2b.DeleteKey204Response{}, nil
}

// wireKey is a key as E2B shows it; people are those who made keys.
func wireKey(k cay.APIKey, people map[string]cay.Person) e2b.TeamKey {
	out := e2b.TeamKey{
		ID: string(k.ID), Name: k.Name, CreatedAt: k.CreatedAt, LastUsed: pointer(k.LastUsed), Mask: wireMask(k.Mask, keyPrefix),
	}
	if p, ok := people[k.CreatedBy]; ok {
		out.CreatedBy = &e2b.TeamUser{ID: string(p.ID), Email: &p.Email}
	}
	return out
}

func wireMask(mask, prefix string) e2b.KeyMask {
	first, last, _ := strings.Cut(strings.TrimPrefix(mask, prefix), "…")
	return e2b.KeyMask{Prefix: prefix, ValueLength: keyLength, MaskedValuePrefix: first, MaskedValueSuffix: last}
}

// CreateAccessToken makes a token that stands for the person who asks.
func (s *server) CreateAccessToken(ctx context.Context, r e2b.CreateAccessTokenRequestObject) (e2b.CreateAccessTokenResponseObject, error) {
	token, record, err := s.accounts.CreateAccessToken(ctx, callerOf(ctx), r.Body.Name)
	if err != nil {
		return nil, err
	}
	return e2b.CreateAccessToken201JSONResponse{
		ID: record.ID, Name: record.Name, Token: token, Mask: wireMask(record.Mask, tokenPrefix), CreatedAt: record.CreatedAt,
	}, nil
}

// DeleteAccessToken removes a token of the person who asks.
func (s *server) DeleteAccessToken(ctx context.Context, r e2b.DeleteAccessTokenRequestObject) (e2b.DeleteAccessTokenResponseObject, error) {
	if err := s.accounts.RemoveAccessToken(ctx, callerOf(ctx), r.AccessTokenID); err != nil {
		return nil, err
	}
	return e2b.DeleteAccessToken204Response{}, nil
}

// GetTeamMetrics returns how many sandboxes a team had running, and how many
// it started.
func (s *server) GetTeamMetrics(ctx context.Context, r e2b.GetTeamMetricsRequestObject) (e2b.GetTeamMetricsResponseObject, error) {
	list, err := s.teamMetrics(ctx, r.TeamID, r.Params.Start, r.Params.End)
	if err != nil {
		return nil, err
	}
	out := make(e2b.GetTeamMetrics200JSONResponse, 0, len(list))
	for _, m := range list {
		out = append(out, e2b.TeamMetric{
			Timestamp: m.At, TimestampUnix: m.At.Unix(),
			ConcurrentSandboxes: int32(m.Running), SandboxStartRate: m.StartRate,
		})
	}
	return out, nil
}

// GetTeamMetricsMax returns the greatest sample.
func (s *server) GetTeamMetricsMax(ctx context.Context, r e2b.GetTeamMetricsMaxRequestObject) (e2b.GetTeamMetricsMaxResponseObject, error) {
	var of func(fleet.TeamMetric) float64
	switch r.Params.Metric {
	case "concurrent_sandboxes":
		of = func(m fleet.TeamMetric) float64 { return float64(m.Most) }
	case "sandbox_start_rate":
		of = func(m fleet.TeamMetric) float64 { return m.StartRate }
	default:
		return nil, cay.Errorf(cay.Invalid, "metric: must be concurrent_sandboxes or sandbox_start_rate")
	}
	list, err := s.teamMetrics(ctx, r.TeamID, r.Params.Start, r.Params.End)
	if err != nil {
		return nil, err
	}
	var most e2b.MaxTeamMetric
	for i, m := range list {
		if v := of(m); i == 0 || v > most.Value {
			most = e2b.MaxTeamMetric{Timestamp: m.At, TimestampUnix: m.At.Unix(), Value: v}
		}
	}
	return e2b.GetTeamMetricsMax200JSONResponse(most), nil
}

func (s *server) teamMetrics(ctx context.Context, id string, start, end *int64) ([]fleet.TeamMetric, error) {
	who := callerOf(ctx)
	if id != string(who.Team) {
		return nil, cay.Errorf(cay.Denied, "team %.80q is not yours", id)
	}
	to := time.Now()
	if end != nil {
		to = time.Unix(*end, 0)
	}
	from := to.Add(-teamMetricsSince)
	if start != nil {
		from = time.Unix(*start, 0)
	}
	if !from.Before(to) {
		return nil, cay.Errorf(cay.Invalid, "start: must be before end")
	}
	return s.fleet.TeamMetrics(ctx, who, from, to)
}
