package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/cay-run/cay"
)

// Login is a login of a person that is under way: they go to URL with a browser,
// on any machine, and compare Code.
type Login struct {
	ID        string    `json:"loginID"`
	URL       string    `json:"url"`
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expiresAt"`

	client   *Client
	verifier string
}

// Session is a person's login.
type Session struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
	UsedAt    time.Time `json:"usedAt"`
	ExpiresAt time.Time `json:"expiresAt"`
	Address   string    `json:"address,omitempty"`
	Agent     string    `json:"agent,omitempty"`
	Current   bool      `json:"current,omitempty"`
}

// Me is a person with the teams that they are in.
type Me struct {
	ID    string `json:"id"`
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
	Teams []struct {
		ID       string `json:"id"`
		Name     string `json:"name"`
		Role     string `json:"role"`
		Disabled bool   `json:"disabled,omitempty"`
	} `json:"teams"`
}

// LoggedIn is what a login ends in. The token goes into Config.Session.
type LoggedIn struct {
	Token   string  `json:"token"`
	Session Session `json:"session"`
	Person  Me      `json:"person"`
}

// BeginLogin begins a login at the server of a configuration, which needs no
// credential.
func BeginLogin(ctx context.Context, cfg Config) (*Login, error) {
	cfg.APIKey, cfg.AdminToken, cfg.Session = "", "", "none"
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	c.cfg.Session = ""
	l := &Login{client: c, verifier: rand.Text()}
	sum := sha256.Sum256([]byte(l.verifier))
	body := map[string]any{"challenge": base64.RawURLEncoding.EncodeToString(sum[:])}
	_, err = c.call(ctx, http.MethodPost, "/cay/v1/logins", body, l)
	return l, err
}

// Wait waits for the person.
func (l *Login) Wait(ctx context.Context) (LoggedIn, error) {
	for time.Now().Before(l.ExpiresAt) {
		var out LoggedIn // stays empty while the person is not done
		_, err := l.client.call(ctx, http.MethodPost, "/cay/v1/logins/"+l.ID+"/session", map[string]any{"verifier": l.verifier}, &out)
		if err != nil || out.Token != "" {
			return out, err
		}
	}
	return LoggedIn{}, cay.Errorf(cay.Unauthenticated, "the login took longer than ten minutes").WithCode(cay.CodeLoginUnknown).
		WithHint("begin again")
}

// Me tells of the person of the session.
func (c *Client) Me(ctx context.Context) (Me, error) {
	var out Me
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/me", nil, &out)
	return out, err
}

// Sessions lists the person's sessions, the newest first.
func (c *Client) Sessions(ctx context.Context) ([]Session, error) {
	var out []Session
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/sessions", nil, &out)
	return out, err
}

// EndSession ends a session of the person's; an empty id, all but this one.
func (c *Client) EndSession(ctx context.Context, id string) error {
	path := "/cay/v1/sessions"
	if id != "" {
		path += "/" + id
	}
	_, err := c.call(ctx, http.MethodDelete, path, nil, nil)
	return err
}

// LogOut ends the session.
func (c *Client) LogOut(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/logout", nil, nil)
	return err
}

// ConsoleLink is a link that opens the console once.
type ConsoleLink struct {
	URL       string    `json:"url"`
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// ConsoleLink makes a link that opens the console as this client's credential,
// once and within two minutes.
func (c *Client) ConsoleLink(ctx context.Context) (ConsoleLink, error) {
	var out ConsoleLink
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/console-links", nil, &out)
	return out, err
}
