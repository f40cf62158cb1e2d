package logins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc"
	"github.com/cay-run/cay/internal/control/accounts"
)

// Exchange gives a short-lived API key for a token of another issuer, by the
// first rule that takes it: of one team, if one is named. A token is exchanged
// once.
func (l *Logins) Exchange(ctx context.Context, raw, team string, from *cay.Origin) (key string, record cay.APIKey, err error) {
	issuer, err := oidc.IssuerOf(raw)
	if err != nil {
		return "", record, err
	}
	rules := l.rulesOf(issuer)
	if len(rules) == 0 {
		return "", record, cay.Errorf(cay.Unauthenticated, "this server exchanges no tokens of %.200q", issuer).
			WithCode(cay.CodeTokenInvalid).WithHint("the operator names issuers in CAY_TOKEN_EXCHANGE")
	}
	var audiences []string
	for _, r := range rules {
		audiences = append(audiences, r.Audience)
	}
	claims, err := l.issuers[issuer].Verify(ctx, raw, audiences...)
	if err != nil {
		return "", record, err
	}
	rule, err := choose(rules, claims, team)
	if err != nil {
		return "", record, err
	}
	t, err := l.cfg.Store.TeamByName(ctx, rule.Team)
	if err == nil {
		err = t.Open()
	}
	if err != nil {
		return "", record, err
	}
	if err := l.once(ctx, raw, claims); err != nil {
		return "", record, err
	}
	who := cay.Caller{Team: t.ID, Scopes: cay.TeamScopes, From: from, Name: keyName(claims)}
	return l.cfg.Accounts.CreateKey(ctx, who, accounts.NewKey{
		Name: keyName(claims), Scopes: rule.Scopes, ExpiresAt: time.Now().Add(rule.Lifetime), Exchange: partyOf(claims),
	})
}

// choose returns the first rule that takes the claims.
func choose(rules []cay.ExchangeRule, claims oidc.Claims, team string) (cay.ExchangeRule, error) {
	var missed []string
	for _, r := range rules {
		if team != "" && r.Team != team || !slices.Contains(claims.Audience, r.Audience) {
			continue
		}
		wrong := differs(r, claims)
		if len(wrong) == 0 {
			return r, nil
		}
		missed = append(missed, wrong...)
	}
	slices.Sort(missed)
	refused := cay.Errorf(cay.Denied, "no rule of this server takes the token").WithCode(cay.CodeTokenRefused)
	if missed = slices.Compact(missed); len(missed) > 0 {
		refused = refused.WithHint("its claims %s are not those that a rule wants", strings.Join(missed, ", "))
	}
	return cay.ExchangeRule{}, refused
}

// differs lists the claims of a rule that a token does not meet.
func differs(r cay.ExchangeRule, claims oidc.Claims) []string {
	var out []string
	for name, pattern := range r.Claims {
		if got, ok := claims.Text(name); !ok || !cay.Matches(pattern, got) {
			out = append(out, name)
		}
	}
	return out
}

// once refuses a token that was exchanged before. One without an id is known by
// its bytes: those that are signed, because the signature has many forms.
func (l *Logins) once(ctx context.Context, raw string, claims oidc.Claims) error {
	name := "jti\x00" + claims.ID
	if claims.ID == "" {
		name = "token\x00" + raw[:strings.LastIndexByte(raw, '.')]
	}
	digest := sha256.Sum256([]byte(claims.Issuer + "\x00" + name))
	err := l.cfg.Store.UseToken(ctx, digest, time.Now(), claims.Expiry.Add(oidc.Skew))
	if cay.KindOf(err) == cay.Conflict {
		return cay.Errorf(cay.Unauthenticated, "the token was exchanged before").WithCode(cay.CodeTokenReplayed).
			WithHint("ask the issuer for a new one")
	}
	return err
}

// partyOf names the party that an issuer means by a subject: all its tokens are one
// party's.
func partyOf(claims oidc.Claims) string {
	sum := sha256.Sum256([]byte(claims.Issuer + "\x00" + claims.Subject))
	return hex.EncodeToString(sum[:])
}

// keyName tells people in a list of keys where one came from.
func keyName(claims oidc.Claims) string {
	const most = 100
	subject := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, claims.Subject)
	if len(subject) > most {
		subject = strings.ToValidUTF8(subject[:most], "")
	}
	return "exchange: " + subject
}
