package client

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cay-run/cay"
)

// AgentPort is the port of the agent inside every sandbox.
const AgentPort = 49983

// CreateOptions say what sandbox to make. The zero value is fine.
type CreateOptions struct {
	Template string        // id or name; empty means "base"
	Timeout  time.Duration // when it ends by itself; zero leaves it to the server
	Metadata map[string]string
	Env      map[string]string
	// NoInternet closes the internet to it.
	NoInternet bool
	// AskOut closes the internet to it but for these domains, * for any, which a
	// person is asked about.
	AskOut []string
	// AskCommands are patterns of commands and code whose start a person is asked
	// about; * in them is any text.
	AskCommands []string
	// AutoPause pauses it at its timeout instead of ending it.
	AutoPause bool
	// AutoResume has requests to it wake it when it is paused.
	AutoResume bool
	// ResumeOnHostLoss has it go on from the newest state that is kept of it when its machine
	// is lost.
	ResumeOnHostLoss bool
	// AutoCheckpoints says when checkpoints are taken by themselves.
	AutoCheckpoints AutoCheckpoints
	// Volumes are mounted before its first command runs.
	Volumes []VolumeMount
	// Near is a sandbox on whose node it is to be, in a cluster.
	Near string
	// IdempotencyKey makes it safe to ask again within a day: the same key
	// and options give the same sandbox, also when the first answer was lost.
	IdempotencyKey string
}

// Sandbox is a sandbox that can be talked to. Its JSON is that of the wire.
type Sandbox struct {
	ID           string  `json:"sandboxID"`
	TemplateID   string  `json:"templateID"`
	Alias        string  `json:"alias,omitempty"`
	AgentVersion string  `json:"envdVersion"`
	AccessToken  string  `json:"envdAccessToken,omitempty"`
	TrafficToken string  `json:"trafficAccessToken,omitempty"`
	Domain       *string `json:"domain,omitempty"`
	// Notice says what its last start could not keep, and why; empty when
	// nothing was lost.
	Notice string `json:"notice,omitempty"`

	client *Client
}

// Info describes a sandbox.
type Info struct {
	ID         string            `json:"sandboxID"`
	TemplateID string            `json:"templateID"`
	Alias      string            `json:"alias,omitempty"`
	State      string            `json:"state"`
	StartedAt  time.Time         `json:"startedAt"`
	EndAt      time.Time         `json:"endAt"`
	CPUs       int               `json:"cpuCount"`
	MemoryMB   int               `json:"memoryMB"`
	DiskMB     int               `json:"diskSizeMB"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Notice     string            `json:"notice,omitempty"` // as Sandbox has it
	// PauseMode and the two below are of a paused one, and Info alone has them:
	// Replicated says whether the server's bucket has what was saved, and is nil where
	// there is no bucket.
	PauseMode    string     `json:"pauseMode,omitempty"` // full or filesystem
	Replicated   *bool      `json:"replicated,omitempty"`
	ReplicatedAt *time.Time `json:"replicatedAt,omitempty"`
	OnHostLoss   string     `json:"onHostLoss,omitempty"` // resume, or nothing
}

// Template describes a template.
type Template struct {
	ID          string     `json:"templateID"`
	Names       []string   `json:"names"`
	Public      bool       `json:"public"`
	CPUs        int        `json:"cpuCount"`
	MemoryMB    int        `json:"memoryMB"`
	DiskMB      int        `json:"diskSizeMB"`
	BuildStatus string     `json:"buildStatus"`
	CreatedAt   time.Time  `json:"createdAt"`
	UpdatedAt   time.Time  `json:"updatedAt"`
	LastSpawned *time.Time `json:"lastSpawnedAt"`
	SpawnCount  int64      `json:"spawnCount"`
	Docker      bool       `json:"docker"` // root of its sandboxes has what Docker needs
}

// Create makes a sandbox and returns when it answers.
func (c *Client) Create(ctx context.Context, o CreateOptions) (*Sandbox, error) {
	in := map[string]any{"templateID": o.Template, "allow_internet_access": !o.NoInternet && len(o.AskOut) == 0}
	if len(o.AskOut) > 0 {
		in["network"] = map[string]any{"askOut": o.AskOut}
	}
	if len(o.AskCommands) > 0 {
		in["askCommands"] = o.AskCommands
	}
	if o.Template == "" {
		in["templateID"] = "base"
	}
	if o.Timeout != 0 {
		in["timeout"] = seconds(o.Timeout)
	}
	if o.AutoPause {
		in["autoPause"] = true
	}
	if o.AutoCheckpoints != (AutoCheckpoints{}) {
		in["autoCheckpoints"] = o.AutoCheckpoints
	}
	if o.ResumeOnHostLoss {
		in["onHostLoss"] = "resume"
	}
	if o.AutoResume {
		in["autoResume"] = map[string]bool{"enabled": true}
	}
	if len(o.Metadata) > 0 {
		in["metadata"] = o.Metadata
	}
	if o.Near != "" {
		in["near"] = o.Near
	}
	if len(o.Volumes) > 0 {
		in["volumeMounts"] = o.Volumes
	}
	if len(o.Env) > 0 {
		in["envVars"] = o.Env
	}
	s := &Sandbox{client: c}
	var header http.Header
	if o.IdempotencyKey != "" {
		header = http.Header{"Idempotency-Key": {o.IdempotencyKey}}
	}
	if _, err := c.callWith(ctx, header, http.MethodPost, "/v2/sandboxes", in, s); err != nil {
		return nil, err
	}
	return s, nil
}

// CreatedWith returns the id of the sandbox that a create with an idempotency
// key made in the last day, ended or not.
func (c *Client) CreatedWith(ctx context.Context, key string) (id string, err error) {
	var out struct {
		ID string `json:"sandboxID"`
	}
	_, err = c.call(ctx, http.MethodGet, "/cay/v1/idempotency-keys/"+url.PathEscape(key), nil, &out)
	return out.ID, err
}

// Connect returns a sandbox that exists, so that it can be talked to. One that
// is paused is resumed. It lives for the timeout at least from now on; zero
// leaves that to the server.
func (c *Client) Connect(ctx context.Context, id string, timeout time.Duration) (*Sandbox, error) {
	in := map[string]any{}
	if timeout != 0 {
		in["timeout"] = seconds(timeout)
	}
	return c.connect(ctx, id, in)
}

func (c *Client) connect(ctx context.Context, id string, in map[string]any) (*Sandbox, error) {
	s := &Sandbox{client: c}
	if _, err := c.call(ctx, http.MethodPost, "/v2/sandboxes/"+url.PathEscape(id)+"/connect", in, s); err != nil {
		return nil, err
	}
	return s, nil
}

// List lists the sandboxes that are not over, newest first.
func (c *Client) List(ctx context.Context) ([]Info, error) {
	return pages[Info](ctx, c, "/v2/sandboxes", url.Values{})
}

// Info describes one sandbox.
func (c *Client) Info(ctx context.Context, id string) (Info, error) {
	var out Info
	_, err := c.call(ctx, http.MethodGet, "/sandboxes/"+url.PathEscape(id), nil, &out)
	return out, err
}

// Kill ends a sandbox. NotFound when there is none of that id.
func (c *Client) Kill(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/sandboxes/"+url.PathEscape(id), nil, nil)
	return err
}

// SetTimeout lets a sandbox end that long from now.
func (c *Client) SetTimeout(ctx context.Context, id string, timeout time.Duration) error {
	in := map[string]any{"timeout": seconds(timeout)}
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/timeout", in, nil)
	return err
}

// KeepAlive lets a sandbox live that long from now at least. Unlike
// SetTimeout it never brings its end nearer.
func (c *Client) KeepAlive(ctx context.Context, id string, d time.Duration) error {
	in := map[string]any{"duration": seconds(d)}
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/refreshes", in, nil)
	return err
}

// Templates lists the templates that sandboxes can be made of.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	var out []Template
	_, err := c.call(ctx, http.MethodGet, "/templates", nil, &out)
	return out, err
}

// Kill ends the sandbox.
func (s *Sandbox) Kill(ctx context.Context) error { return s.client.Kill(ctx, s.ID) }

// SetTimeout lets the sandbox end that long from now.
func (s *Sandbox) SetTimeout(ctx context.Context, timeout time.Duration) error {
	return s.client.SetTimeout(ctx, s.ID, timeout)
}

// Host is the host name of a port inside the sandbox.
func (s *Sandbox) Host(port int) string {
	domain := ""
	if s.Domain != nil {
		domain = *s.Domain
	}
	domain = cmp.Or(domain, s.client.cfg.Domain)
	if domain == "" {
		if u, err := url.Parse(s.client.cfg.SandboxURL); err == nil {
			domain = u.Host
		}
	}
	return fmt.Sprintf("%d-%s.%s", port, s.ID, domain)
}

// seconds rounds up: a wish for half a second is no wish for none.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// header sets what routes a request to the sandbox's agent, and what opens it.
func (s *Sandbox) header(h http.Header) {
	h.Set("E2b-Sandbox-Id", s.ID)
	h.Set("E2b-Sandbox-Port", strconv.Itoa(AgentPort))
	if s.AccessToken != "" {
		h.Set("X-Access-Token", s.AccessToken)
	}
	if s.TrafficToken != "" {
		h.Set("E2b-Traffic-Access-Token", s.TrafficToken)
	}
}

// gone turns the proxy's answer for a sandbox that is over into words.
func (s *Sandbox) gone(err error) error {
	if cay.KindOf(err) != cay.Unavailable {
		return err
	}
	return cay.Wrap(cay.Unavailable, err, "sandbox %s does not answer", s.ID).
		WithHint("it may have reached its timeout: `cay sandbox list` shows those that live")
}
